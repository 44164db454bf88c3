//! Access tokens of external issuers.
//!
//! Invariants: tokens are not stored, only the SHA-256 digests of valid ones, until they expire; a call with a known
//! token therefore costs as much as a call with a key. Signatures are checked on blocking threads, a few at a time.
//! Only asymmetric algorithms are accepted.

use crate::claims::Refused;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, Header, Validation, dangerous::insecure_decode};
use model::OidcSettings;
use tokio::sync::Semaphore;

use super::{
    claims::{self, Claims, Verified, invalid, text},
    issuer::{Http, Issuer, Key},
    keys::Digest,
};

/// Maximum bytes of a token. A token with many groups has 8 KiB.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Maximum number of remembered tokens.
const MAX_TOKENS: usize = 16_384;
/// Maximum signatures that are checked concurrently.
const MAX_CHECKS: usize = 2;
/// Maximum concurrent introspection requests.
const MAX_QUESTIONS: usize = 16;
/// Seconds for which an introspection result is valid.
const INTROSPECTION_TTL_SECONDS: i64 = 60;

const ALGORITHMS: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

pub struct Tokens {
    issuers: Vec<Issuer>,
    bases: Vec<String>,
    known: RwLock<HashMap<Digest, Known>>,
    checks: Arc<Semaphore>,
    questions: Semaphore,
}

/// A valid token.
#[derive(Clone)]
struct Known {
    verified: Arc<Verified>,
    /// When the issuer must be asked again, in seconds since 1970.
    fresh_until: i64,
    /// When the token expires, in seconds since 1970.
    ends_at: i64,
}

impl Tokens {
    /// `bases`: addresses of this gateway. The first one is shown to clients.
    pub(super) fn new<'s>(
        issuers: impl IntoIterator<Item = (&'s String, &'s OidcSettings)>,
        bases: Vec<String>,
    ) -> Self {
        let http = Http::default();
        let issuers = issuers.into_iter();
        let issuers = issuers
            .map(|(name, settings)| Issuer::new(name.clone(), settings.clone(), http.clone()));
        Self {
            issuers: issuers.collect(),
            bases,
            known: RwLock::default(),
            checks: Arc::new(Semaphore::new(MAX_CHECKS)),
            questions: Semaphore::new(MAX_QUESTIONS),
        }
    }

    /// Returns true if at least one issuer is configured.
    pub fn are_taken(&self) -> bool {
        !self.issuers.is_empty()
    }

    /// The main address of this gateway.
    pub fn base(&self) -> &str {
        self.bases.first().map_or("", String::as_str)
    }

    pub(super) fn issuer(&self, name: &str) -> Result<&Issuer, Refused> {
        let issuer = self.issuers.iter().find(|issuer| issuer.name == name);
        issuer.ok_or_else(|| invalid("unknown issuer"))
    }

    /// The names of the issuers with browser sign-in.
    pub fn sign_ins(&self) -> impl Iterator<Item = &str> {
        let all = self.issuers.iter();
        let all = all.filter(|issuer| issuer.settings.client_id.is_some());
        all.map(|issuer| issuer.name.as_str())
    }

    /// The URLs of the accepted issuers.
    pub fn issuers(&self) -> impl Iterator<Item = &str> {
        self.issuers
            .iter()
            .map(|issuer| issuer.settings.issuer.as_str())
    }

    /// All required scopes, without duplicates.
    pub fn scopes(&self) -> Vec<&str> {
        let all = self
            .issuers
            .iter()
            .flat_map(|issuer| &issuer.settings.scopes);
        let mut seen = HashSet::new();
        all.map(String::as_str)
            .filter(|scope| seen.insert(*scope))
            .collect()
    }

    /// The result of an earlier check of this token, while that result is valid.
    pub(super) fn known(&self, digest: &Digest) -> Option<Arc<Verified>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(digest)?;
        (found.fresh_until > now()).then(|| found.verified.clone())
    }

    /// Returns true if this principal has a valid token.
    pub(super) fn lives(&self, id: &str) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = known.values();
        all.any(|known| *known.verified.principal.id == *id && known.ends_at > now())
    }

    /// Checks a token that is not known yet; `None` if it is from none of the issuers. `base`: another address of this
    /// gateway that the token may name, that of the request.
    pub(super) async fn verify(
        &self,
        token: &str,
        digest: Digest,
        base: Option<&str>,
    ) -> Result<Option<Arc<Verified>>, Refused> {
        if token.len() > MAX_TOKEN_BYTES {
            let why = format!("it is longer than {MAX_TOKEN_BYTES} bytes");
            return Err(Refused::Invalid(why));
        }
        let bases = self.bases.iter().map(String::as_str).chain(base);
        let bases: Vec<String> = bases.map(str::to_owned).collect();
        let read = insecure_decode::<Claims>(token).ok();
        let found = match read {
            Some(read) => {
                let of = text(&read.claims, "iss").unwrap_or_default();
                let mut issuers = self.issuers.iter();
                match issuers.find(|own| own.settings.issuer == of) {
                    Some(issuer) => {
                        let verified = self.signed(issuer, token, read.header, &bases).await?;
                        Some((verified, i64::MAX))
                    }
                    None => None,
                }
            }
            // The decoder does not know the algorithm `none`, and no issuer confirms such a token.
            None => self.told(token, &bases).await?,
        };
        let Some((verified, fresh_until)) = found else {
            self.end(&digest);
            return Ok(None);
        };
        let verified = Arc::new(verified);
        self.remember(digest, &verified, fresh_until.min(verified.ends_at));
        Ok(Some(verified))
    }

    /// Checks a signed access token.
    async fn signed(
        &self,
        issuer: &Issuer,
        token: &str,
        header: Header,
        bases: &[String],
    ) -> Result<Verified, Refused> {
        let claims = self.signed_claims(issuer, token, header).await?;
        let (name, settings) = (&issuer.name, &issuer.settings);
        claims::verify(name, settings, bases, &claims, now(), false)
    }

    /// The claims of an ID token. Only the signature is checked.
    pub(super) async fn claims_of(&self, issuer: &Issuer, token: &str) -> Result<Claims, Refused> {
        let read = insecure_decode::<Claims>(token).map_err(|_| invalid("it is not a JWT"))?;
        self.signed_claims(issuer, token, read.header).await
    }

    async fn signed_claims(
        &self,
        issuer: &Issuer,
        token: &str,
        header: Header,
    ) -> Result<Claims, Refused> {
        if !ALGORITHMS.contains(&header.alg) {
            let alg = header.alg;
            let why = format!("its algorithm `{alg:?}` is not accepted; use `RS256` or `ES256`");
            return Err(Refused::Invalid(why));
        }
        if header.crit.is_some() {
            return Err(invalid("its header has `crit`, which is not supported"));
        }
        let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt", "application/at+jwt"].contains(&typ.as_str()) {
            return Err(invalid("its `typ` is neither `JWT` nor `at+jwt`"));
        }
        let keys = issuer.keys_for(&header).await?;
        let token = token.to_owned();
        let turn = self.checks.clone().acquire_owned().await;
        let checked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            keys.iter().find_map(|key| check(&token, key, header.alg))
        });
        let claims = checked.await.ok().flatten();
        claims.ok_or_else(|| invalid("its signature is wrong"))
    }

    /// Asks the issuers about an opaque token. Returns how long a positive result is valid.
    async fn told(
        &self,
        token: &str,
        bases: &[String],
    ) -> Result<Option<(Verified, i64)>, Refused> {
        let ask = self.issuers.iter().filter(|own| own.settings.introspection);
        for issuer in ask {
            let _turn = self.questions.acquire().await;
            let away = |why| {
                Refused::Away(format!(
                    "the issuer `{}` cannot be queried: {why}",
                    issuer.name
                ))
            };
            if let Some(claims) = issuer.introspect(token).await.map_err(away)? {
                let (name, settings) = (&issuer.name, &issuer.settings);
                let mut verified = claims::verify(name, settings, bases, &claims, now(), true)?;
                let fresh_until = now() + INTROSPECTION_TTL_SECONDS;
                // Without `exp`, the token remains valid while it is used.
                if verified.ends_at == i64::MAX {
                    verified.ends_at = fresh_until + INTROSPECTION_TTL_SECONDS;
                }
                return Ok(Some((verified, fresh_until)));
            }
        }
        Ok(None)
    }

    /// Records that the issuer no longer accepts a token.
    fn end(&self, digest: &Digest) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(digest) {
            known.ends_at = 0;
        }
    }

    fn remember(&self, digest: Digest, verified: &Arc<Verified>, fresh_until: i64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_TOKENS && !known.contains_key(&digest) {
            let first = known.iter().min_by_key(|(_, known)| known.ends_at);
            if let Some(first) = first.map(|(digest, _)| *digest) {
                known.remove(&first);
            }
        }
        let verified = verified.clone();
        known.insert(
            digest,
            Known {
                ends_at: verified.ends_at,
                verified,
                fresh_until,
            },
        );
    }

    /// Removes expired tokens and returns their principals.
    pub(super) fn expire(&self) -> HashSet<Arc<str>> {
        let now = now();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = HashSet::new();
        known.retain(|_, known| {
            let lives = known.ends_at > now;
            if !lives {
                gone.insert(known.verified.principal.id.clone());
            }
            lives
        });
        gone
    }

    /// Keeps the issuers' keys up to date, in a loop.
    pub(super) async fn follow(&self) {
        join_all(self.issuers.iter().map(Issuer::follow)).await;
    }
}

/// The claims of a token if this key signed it. [`claims::verify`] checks the claims.
fn check(token: &str, key: &Key, algorithm: Algorithm) -> Option<Claims> {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let decoded = jsonwebtoken::decode::<Claims>(token, &key.key, &validation);
    decoded.ok().map(|decoded| decoded.claims)
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    store::now().timestamp()
}
