//! An issuer: its metadata (OpenID Connect Discovery, RFC 8414), its signing keys, and token introspection (RFC 7662).
//!
//! Invariants: metadata is accepted only if it names exactly the configured issuer. If keys cannot be fetched or read,
//! the known keys stay. Unknown keys trigger at most one fetch per [`UNKNOWN_KEY_INTERVAL`], regardless of the client.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_client::Client;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Header,
    jwk::{Jwk, PublicKeyUse},
};
use model::{OidcSettings, is_public};
use oauth::Metadata;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};
use url::{Host, Url};

use super::claims::{Claims, invalid};
use crate::claims::Refused;

/// Minimum time between fetches that are triggered by unknown keys.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between regular fetches of the keys, and the delay after a failed one.
const REFRESH_INTERVAL: Duration = Duration::from_secs(15 * 60);
const RETRY_DELAY: Duration = Duration::from_secs(60);
/// Timeout for a whole response, including connecting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a response. A large key set has 20 KiB.
const MAX_RESPONSE_BYTES: usize = 512 << 10;
/// Maximum keys of one issuer.
const MAX_KEYS: usize = 100;
/// Length of a 2048-bit modulus, in base64url characters. Shorter keys are weak and are ignored.
const MIN_RSA_CHARS: usize = 342;

pub(super) struct Issuer {
    pub(super) name: String,
    pub(super) settings: OidcSettings,
    http: Http,
    metadata: ArcSwapOption<Metadata>,
    keys: ArcSwap<Vec<Arc<Key>>>,
    /// When an unknown key last triggered a fetch. The lock holder may fetch.
    asked: Mutex<Option<Instant>>,
    /// Why the last fetch of the keys failed.
    failure: std::sync::Mutex<Option<String>>,
    told: AtomicBool,
}

/// Requests to issuers.
#[derive(Clone, Debug, Default)]
pub(super) struct Http(Client);

impl oauth::Http for Http {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(self.0.fetch(request, MAX_RESPONSE_BYTES, REQUEST_TIMEOUT))
    }
}

/// A key for checking signatures.
pub(super) struct Key {
    id: Option<String>,
    algorithm: Option<Algorithm>,
    pub(super) key: DecodingKey,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Issuer {
    pub(super) fn new(name: String, settings: OidcSettings, http: Http) -> Self {
        Self {
            name,
            settings,
            http,
            metadata: ArcSwapOption::empty(),
            keys: ArcSwap::default(),
            asked: Mutex::default(),
            failure: std::sync::Mutex::default(),
            told: AtomicBool::new(false),
        }
    }

    /// Keeps the keys up to date, in a loop.
    pub(super) async fn follow(&self) {
        loop {
            let turn = self.asked.lock().await;
            let fetched = self.refresh().await;
            drop(turn);
            tokio::time::sleep(if fetched {
                REFRESH_INTERVAL
            } else {
                RETRY_DELAY
            })
            .await;
        }
    }

    /// The keys that may have signed a token with this header. An unknown key triggers a fetch.
    pub(super) async fn keys_for(&self, header: &Header) -> Result<Vec<Arc<Key>>, Refused> {
        let known = self.known(header);
        if !known.is_empty() {
            return Ok(known);
        }
        let mut asked = self.asked.lock().await;
        // Another task may have fetched the key while this one waited for the lock.
        let known = self.known(header);
        if !known.is_empty() {
            return Ok(known);
        }
        if asked.is_none_or(|at| at.elapsed() >= UNKNOWN_KEY_INTERVAL) {
            *asked = Some(Instant::now());
            self.refresh().await;
            let known = self.known(header);
            if !known.is_empty() {
                return Ok(known);
            }
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Err(match &*failure {
            Some(why) => Refused::Away(format!(
                "the issuer `{}` cannot be queried: {why}",
                self.name
            )),
            None => invalid(&format!(
                "it was signed with a key that the issuer `{}` does not list; the issuer's keys are fetched at most once a minute",
                self.name
            )),
        })
    }

    fn known(&self, header: &Header) -> Vec<Arc<Key>> {
        let keys = self.keys.load();
        let fits = |key: &&Arc<Key>| key.fits(header);
        keys.iter().filter(fits).cloned().collect()
    }

    /// Fetches the metadata and the keys. Returns true on success.
    async fn refresh(&self) -> bool {
        let failure = self.fetch().await.err();
        match &failure {
            Some(why) if !self.told.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    "cannot refresh the keys of issuer `{}`; the known keys stay valid: {why}",
                    self.name
                );
            }
            None if self.told.swap(false, Ordering::Relaxed) => {
                tracing::info!("the keys of issuer `{}` are up to date again", self.name);
            }
            _ => {}
        }
        let fetched = failure.is_none();
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        fetched
    }

    async fn fetch(&self) -> Result<(), String> {
        let uri = match &self.settings.jwks_uri {
            Some(uri) => Url::parse(uri).map_err(|error| format!("`jwks_uri`: {error}"))?,
            None => {
                let metadata = self.discover().await?;
                let uri = metadata.jwks_uri.as_deref();
                self.trusted("jwks_uri", uri)?
            }
        };
        let set = oauth::document::<KeySet>(&self.http, &uri).await;
        let shown = model::url_for_display(uri.as_str());
        let set = set.map_err(|error| error.what)?;
        let set = set.ok_or_else(|| format!("there is no key set at {shown}"))?;
        let keys = set.keys.iter().filter_map(Key::read).take(MAX_KEYS);
        let keys: Vec<_> = keys.map(Arc::new).collect();
        if keys.is_empty() {
            return Err(format!(
                "{shown}: none of its {} keys can check a signature",
                set.keys.len()
            ));
        }
        self.keys.store(Arc::new(keys));
        Ok(())
    }

    /// Fetches the current metadata.
    async fn discover(&self) -> Result<Arc<Metadata>, String> {
        let issuer = &self.settings.issuer;
        let url = Url::parse(issuer).map_err(|error| error.to_string())?;
        // The document of OpenID Connect comes first, because it has all the fields used here.
        let mut places = oauth::well_known(&url);
        places.reverse();
        let mismatch = |_: &Url, says: &str| {
            let other = oauth::excerpt(says);
            format!("its metadata names the issuer `{other}`, but the settings say `{issuer}`")
        };
        let metadata = oauth::first_of(&self.http, issuer, places, mismatch).await;
        let metadata = Arc::new(metadata.map_err(|error| error.what)?);
        self.metadata.store(Some(metadata.clone()));
        Ok(metadata)
    }

    /// The last known metadata, which is fetched on first use.
    pub(super) async fn metadata(&self) -> Result<Arc<Metadata>, String> {
        match self.metadata.load_full() {
            Some(metadata) => Ok(metadata),
            None => self.discover().await,
        }
    }

    /// Checks that an endpoint named in the metadata may be requested: it is at the issuer's origin, or uses TLS and no
    /// private address.
    pub(super) fn trusted(&self, what: &str, url: Option<&str>) -> Result<Url, String> {
        let text = url.ok_or_else(|| format!("its metadata has no `{what}`"))?;
        let refused = |why| {
            let shown = model::url_for_display(text);
            format!("its metadata names `{shown}` as `{what}`, {why}")
        };
        let url = Url::parse(text).map_err(|_| refused("which is not a URL"))?;
        let own = Url::parse(&self.settings.issuer).map_err(|error| error.to_string())?;
        if url.origin() == own.origin() {
            return Ok(url);
        }
        if url.scheme() != "https" {
            return Err(refused("which has another origin and is not https"));
        }
        let public = match url.host() {
            Some(Host::Ipv4(ip)) => is_public(ip.into()),
            Some(Host::Ipv6(ip)) => is_public(ip.into()),
            Some(Host::Domain(name)) => name != "localhost" && !name.ends_with(".localhost"),
            None => false,
        };
        match public {
            true => Ok(url),
            false => Err(refused("which has another origin and a private address")),
        }
    }

    /// Posts a form with the client's id and secret, if both are configured. The error contains nothing of the form.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        url: &Url,
        form: &[(&str, String)],
    ) -> Result<T, String> {
        let OidcSettings {
            client_id,
            client_secret,
            ..
        } = &self.settings;
        let posting = async {
            let client = client_id.as_deref().zip(client_secret.as_ref());
            let basic = client.map(|(id, secret)| oauth::basic(id, secret.reveal()));
            let answer = oauth::post_form(&self.http, url, form, basic.transpose()?, None).await?;
            oauth::parsed(url, &answer)
        };
        posting.await.map_err(|error: oauth::Error| error.what)
    }

    /// Asks the issuer about a token (RFC 7662); `None` if it is not an active token of this issuer.
    pub(super) async fn introspect(&self, token: &str) -> Result<Option<Claims>, String> {
        let metadata = self.metadata().await?;
        let endpoint = metadata.introspection_endpoint.as_deref();
        let url = self.trusted("introspection_endpoint", endpoint)?;
        let form = [("token", token), ("token_type_hint", "access_token")];
        let form = form.map(|(name, value)| (name, value.to_owned()));
        let claims: Claims = self.post(&url, &form).await?;
        let active = claims.get("active") == Some(&Value::Bool(true));
        Ok(active.then_some(claims))
    }
}

impl Key {
    /// Reads a key that may check signatures; `None` for any other key.
    fn read(value: &Value) -> Option<Self> {
        let short = |name: &str, least: usize| {
            let text = value.get(name).and_then(Value::as_str);
            text.is_some_and(|text| text.len() < least)
        };
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref();
        if signs.is_some_and(|wanted| *wanted != PublicKeyUse::Signature) {
            return None;
        }
        let algorithm = value.get("alg").and_then(Value::as_str);
        let algorithm = algorithm.map(str::parse).transpose().ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let weak = match key.family() {
            AlgorithmFamily::Hmac => true,
            AlgorithmFamily::Rsa => short("n", MIN_RSA_CHARS),
            AlgorithmFamily::Ec | AlgorithmFamily::Ed => false,
        };
        (!weak).then(|| Self {
            id: common.key_id.clone(),
            algorithm,
            key,
        })
    }

    /// Returns true if the key may have signed a token with this header. A token without `kid` may be signed with any
    /// key.
    fn fits(&self, header: &Header) -> bool {
        let named = header.kid.is_none() || self.id == header.kid;
        let algorithm = self.algorithm.is_none_or(|own| own == header.alg);
        named && algorithm && self.key.family() == header.alg.family()
    }
}
