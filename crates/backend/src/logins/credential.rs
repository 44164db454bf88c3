//! One credential: the token that requests carry, and its renewal.
//!
//! If several tasks or processes find a credential due, only one asks the issuer: a mutex guards it in this process,
//! and a lease in the database row across processes. Renewal runs in a separate task, since an issuer that rotates
//! refresh tokens must not be asked by a request that may be dropped.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use engine::{Command, Issued};
use futures_util::future::BoxFuture;
use http::HeaderValue;
use mcp::client::{Access, Authorize, Prove, SignIn, Token};
use model::{Assertion, AssertionText, Hidden, LoginMode};
use oauth::{Challenge, Code, Tokens, dpop::Prover, token};
use parking_lot::{Mutex, MutexGuard};
use tokio::{io::AsyncReadExt as _, sync::watch, time::Instant};

use super::{Id, Logins, Place, Stored, discover, mode, opened};

/// Seconds before expiry at which a token is renewed; 10 % of its lifetime if that is less.
const RENEW_AHEAD_SECONDS: i64 = 60;
/// Seconds until the next attempt if the issuer does not respond and the token is still valid.
const RETRY_SECONDS: i64 = 10;
/// The lease of a renewal.
const RENEWAL_LEASE: Duration = Duration::from_secs(45);
/// Interval between checks for the end of another process's renewal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Delay between attempts to store an issuer's response.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Within this time, a server that refuses tokens causes at most one request for a new token.
const RETRY_WINDOW: Duration = Duration::from_secs(30);
/// Maximum bytes of an assertion file.
const MAX_ASSERTION_BYTES: u64 = 64 * 1024;
/// Maximum consecutive requests of a server for more scopes (2026-07-28 basic/authorization "Scope Challenge Handling").
const MAX_STEPS: u32 = 3;
/// Time after which a request for more scopes no longer counts as consecutive.
const STEPS_WINDOW: Duration = Duration::from_secs(600);

pub(super) struct Credential {
    logins: Weak<Logins>,
    pub(super) id: Id,
    pub(super) place: Place,
    state: ArcSwap<State>,
    /// Signals a sign-in.
    signed_in: watch::Sender<()>,
    renewing: tokio::sync::Mutex<()>,
    wanted: Mutex<Wanted>,
}

enum State {
    /// The credential was not looked up yet, or a new sign-in is needed. It is looked up each time, since the sign-in
    /// may happen in another process.
    Unknown,
    /// No caller has signed in.
    Absent,
    Held(Held),
}

struct Held {
    token: Hidden,
    access: Access,
    renew_at: Option<i64>,
    ends_at: Option<i64>,
    /// When the token was issued, if this process received it from the issuer.
    made: Option<Instant>,
}

/// What the server requires.
#[derive(Default)]
struct Wanted {
    challenge: Challenge,
    /// True if the server has refused a request.
    is_refused: bool,
    /// When a token was last requested because the server refused one.
    tried_again: Option<Instant>,
    steps: u32,
    stepped: Option<Instant>,
    /// The token with which more scopes were last requested. Many calls with the same token cause one request.
    short: Option<Access>,
    /// True after a redirect that was refused here: the issuer does know the client, so the next sign-in does not check it.
    is_client_known: bool,
}

/// A credential as the source of tokens for requests.
pub(super) struct Authorizing(pub(super) Arc<Credential>);

impl fmt::Debug for Authorizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorizing({})", self.0.id.server)
    }
}

impl Authorize for Authorizing {
    fn token(&self) -> Token {
        let credential = &self.0;
        match &**credential.state.load() {
            State::Held(held) if !held.is_due() => return Token::Is(Some(held.access.clone())),
            State::Absent => return Token::Is(None),
            _ => {}
        }
        let renewing = credential.clone().renewed(None);
        Token::Comes(Box::pin(renewing))
    }

    fn refused(
        &self,
        used: Option<Access>,
        challenge: String,
    ) -> BoxFuture<'static, Result<Access, SignIn>> {
        let credential = self.0.clone();
        Box::pin(async move { credential.refused(used, &challenge).await })
    }
}

/// DPoP proofs for one token.
#[derive(Debug)]
struct Proving(Prover);

impl Prove for Proving {
    fn proof(&self, method: &str, url: &str) -> Option<HeaderValue> {
        self.0.proof(method, url)
    }

    fn learn(&self, nonce: &str) {
        self.0.learn(nonce);
    }
}

impl Held {
    fn of(tokens: &Tokens, made: Option<Instant>) -> Option<Self> {
        let scheme = tokens.key.as_ref().map_or("Bearer", |_| "DPoP");
        let mut header = HeaderValue::from_str(&format!("{scheme} {}", tokens.access)).ok()?;
        header.set_sensitive(true);
        let prover = tokens.key.clone().map(|key| {
            let prover = Prover::new(key, tokens.access.clone());
            Arc::new(Proving(prover)) as Arc<dyn Prove>
        });
        let lasts = |end: i64| end.saturating_sub(oauth::now()).max(0);
        Some(Self {
            token: Hidden::new(&tokens.access),
            access: Access { header, prover },
            renew_at: tokens
                .expires_at
                .map(|end| end - RENEW_AHEAD_SECONDS.min(lasts(end) / 10)),
            ends_at: tokens.expires_at,
            made,
        })
    }

    fn is_due(&self) -> bool {
        self.renew_at.is_some_and(|at| at <= oauth::now())
    }

    fn is_over(&self) -> bool {
        self.ends_at.is_some_and(|at| at <= oauth::now())
    }
}

impl Credential {
    pub(super) fn new(logins: Weak<Logins>, id: &Id, place: &Place) -> Arc<Self> {
        Arc::new(Self {
            logins,
            id: id.clone(),
            place: place.clone(),
            state: ArcSwap::from_pointee(State::Unknown),
            signed_in: watch::Sender::new(()),
            renewing: tokio::sync::Mutex::default(),
            wanted: Mutex::default(),
        })
    }

    /// Returns true if Toolwharf itself signs in, not a user.
    fn is_own(&self) -> bool {
        !self.place.login.grant.needs_person()
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock()
    }

    /// The last challenge with which the server refused a request.
    pub(super) fn challenge(&self) -> Challenge {
        self.wanted().challenge.clone()
    }

    /// Called when a redirect of this sign-in was refused here.
    pub(super) fn came_back(&self) {
        self.wanted().is_client_known = true;
    }

    /// Returns whether the issuer is known to know the client. Applies to one sign-in.
    pub(super) fn take_client_known(&self) -> bool {
        std::mem::take(&mut self.wanted().is_client_known)
    }

    /// Waits until a sign-in.
    pub(super) fn signed_in(&self) -> BoxFuture<'static, ()> {
        let mut bell = self.signed_in.subscribe();
        Box::pin(async move {
            if bell.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn set(&self, state: State) {
        self.state.store(Arc::new(state));
    }

    /// Uses the tokens of a new sign-in.
    pub(super) fn begin(&self, tokens: &Tokens) {
        self.hold(tokens, Some(Instant::now()));
        self.wanted().tried_again = None;
        self.signed_in.send_replace(());
    }

    fn hold(&self, tokens: &Tokens, made: Option<Instant>) -> Option<Access> {
        let held = Held::of(tokens, made)?;
        let access = held.access.clone();
        self.set(State::Held(held));
        Some(access)
    }

    /// Forgets the token. The next request loads it again.
    pub(super) fn forget(&self) {
        self.set(State::Unknown);
    }

    /// Returns true if the credential has a token.
    pub(super) fn is_held(&self) -> bool {
        matches!(&**self.state.load(), State::Held(_))
    }

    /// Called when a sign-in at another replica can be used here.
    pub(super) fn begun_elsewhere(&self) {
        self.wanted().tried_again = None;
        self.signed_in.send_replace(());
    }

    /// The current token, other than `refused`; `None` if no one has signed in.
    async fn renewed(self: Arc<Self>, refused: Option<Access>) -> Result<Option<Access>, SignIn> {
        let Some(logins) = self.logins.upgrade() else {
            return Err(passing("the gateway is stopping"));
        };
        if self.is_borrowed() {
            return match self.lender(&logins).await {
                Ok(lender) => Box::pin(lender.renewed(refused)).await,
                // The server may answer requests without a token if their results are visible to everyone.
                Err(_) if refused.is_none() => Ok(None),
                Err(error) => Err(error),
            };
        }
        let tasks = logins.tasks.clone();
        let renewing = async move { self.renew(&logins, refused.as_ref()).await };
        let renewed = tasks.spawn(renewing).await;
        renewed.unwrap_or_else(|_| Err(passing("the renewal of its access token was interrupted")))
    }

    /// The token for the environment of an instance that is launched now.
    pub(super) async fn issued(self: Arc<Self>) -> Result<Issued, SignIn> {
        if self.is_borrowed() {
            let logins = self.logins.upgrade();
            let logins = logins.ok_or_else(|| passing("the gateway is stopping"))?;
            let lender = self.lender(&logins).await?;
            return Box::pin(lender.issued()).await;
        }
        self.clone().renewed(None).await?;
        let state = self.state.load();
        let State::Held(held) = &**state else {
            return Err(self.needed("nobody has signed in"));
        };
        let time = |seconds: Option<i64>| {
            let seconds = u64::try_from(seconds?).unwrap_or_default();
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        };
        Ok(Issued {
            token: held.token.clone(),
            renew_at: time(held.renew_at),
            ends_at: time(held.ends_at),
        })
    }

    /// Returns true if this is the shared credential of a server to which each caller signs in. It borrows a caller's
    /// credential to fetch the lists that all callers see.
    fn is_borrowed(&self) -> bool {
        mode(&self.place.login) == LoginMode::User && self.id.principal.is_empty()
    }

    /// The credential to borrow: that of the caller who signed in last.
    async fn lender(&self, logins: &Logins) -> Result<Arc<Self>, SignIn> {
        let row = logins.store.login_latest(&self.id.server).await;
        let row =
            row.map_err(|error| passing(&format!("its sign-ins cannot be looked up: {error}")))?;
        let row = row.ok_or_else(|| self.needed("nobody has signed in"))?;
        let id = Id {
            server: self.id.server.clone(),
            principal: row.principal.into(),
        };
        Ok(logins.credential(&id, &self.place))
    }

    async fn renew(
        &self,
        logins: &Logins,
        refused: Option<&Access>,
    ) -> Result<Option<Access>, SignIn> {
        let _turn = self.renewing.lock().await;
        let due = match &**self.state.load() {
            State::Held(held) if !held.is_due() && Some(&held.access) != refused => {
                return Ok(Some(held.access.clone()));
            }
            State::Held(held) => Some(held.access.clone()),
            _ => None,
        };
        let unknown =
            |error: store::Error| passing(&format!("its sign-in cannot be looked up: {error}"));
        let give_up = Instant::now() + RENEWAL_LEASE;
        loop {
            let row = logins
                .store
                .login_get(&self.id.server, &self.id.principal)
                .await;
            let Some(row) = row.map_err(unknown)? else {
                self.set(State::Absent);
                // The server's refusal says where to get a token.
                let is_asked = self.wanted().is_refused;
                return match self.is_own() && is_asked {
                    true => self.obtain(logins, 1).await.map(Some),
                    false => Ok(None),
                };
            };
            if let Some(why) = &row.needs_login {
                self.set(State::Unknown);
                return Err(self.needed(why));
            }
            let version = row.version;
            let is_leased = row.leased_until.is_some_and(|until| until > store::now());
            let stored = opened(logins, &self.id, row).await;
            let stored = stored.map_err(|error| passing(&format!("{error:#}")))?;
            // Another process may have renewed the token, or a user may have signed in.
            if let Some(held) = Held::of(&stored.tokens, None)
                && !held.is_due()
                && Some(&held.access) != refused
                && Some(&held.access) != due.as_ref()
            {
                return Ok(self.hold(&stored.tokens, None));
            }
            // A server may refuse a token as soon as the issuer has issued the next one. So a refusal is final only if
            // no renewal has ended since then or is in progress.
            if !is_leased && self.is_in_vain(refused) {
                return Err(self.needed(
                    "the server refuses the access token that its issuer has just issued",
                ));
            }
            let until = store::now() + RENEWAL_LEASE;
            let lease =
                logins
                    .store
                    .login_lease(&self.id.server, &self.id.principal, version, until);
            if !lease.await.map_err(unknown)? {
                // Another process renews the token.
                if Instant::now() >= give_up {
                    return Err(passing(
                        "another process has been renewing its access token for too long",
                    ));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            return match self.is_own() {
                true => {
                    let obtained = self.obtain(logins, version + 1).await;
                    if obtained.is_err() {
                        self.release(logins, version).await;
                    }
                    obtained.map(Some)
                }
                false => {
                    self.refresh(logins, stored, version, refused.is_some())
                        .await
                }
            };
        }
    }

    /// Asks the issuer for a token that replaces `version`, whose lease this process holds.
    async fn refresh(
        &self,
        logins: &Logins,
        stored: Stored,
        version: i64,
        is_refused: bool,
    ) -> Result<Option<Access>, SignIn> {
        let http = logins.http(&self.place);
        let Stored {
            tokens,
            discovery,
            client,
        } = &stored;
        match token::refresh(&http, discovery, client, &self.place.login, tokens).await {
            Ok(tokens) => {
                let fresh = Stored { tokens, ..stored };
                self.keep(logins, version + 1, &fresh).await?;
                Ok(self.hold(&fresh.tokens, Some(Instant::now())))
            }
            Err(error) if error.code == Code::Refused => Err(self
                .lose(logins, version + 1, &stored, &error.to_string())
                .await),
            Err(error) => {
                self.release(logins, version).await;
                let held =
                    Held::of(&stored.tokens, None).filter(|held| !held.is_over() && !is_refused);
                match held {
                    // The token is still valid for a while, and not every request should wait for the issuer.
                    Some(mut held) => {
                        let access = held.access.clone();
                        let again = oauth::now() + RETRY_SECONDS;
                        held.renew_at = held.ends_at.map(|end| end.min(again));
                        self.set(State::Held(held));
                        Ok(Some(access))
                    }
                    None => Err(passing(&format!(
                        "its access token cannot be renewed: {error}"
                    ))),
                }
            }
        }
    }

    /// Releases the lease of a version, so that the next request need not wait until it expires.
    async fn release(&self, logins: &Logins, version: i64) {
        let Id { server, principal } = &self.id;
        let released = logins.store.login_release(server, principal, version);
        if let Err(error) = released.await {
            tracing::warn!(%server, "cannot release the lease of its sign-in: {error}");
        }
    }

    /// Stores the issuer's response. Retries for half of the lease, since the issuer may have revoked the previous
    /// token.
    async fn keep(&self, logins: &Logins, version: i64, stored: &Stored) -> Result<(), SignIn> {
        let give_up = Instant::now() + RENEWAL_LEASE / 2;
        loop {
            let Err(error) = logins.keep(&self.id, version, stored, None).await else {
                return Ok(());
            };
            let has_lost = matches!(error.downcast_ref(), Some(store::Error::Conflict { .. }));
            if has_lost || Instant::now() >= give_up {
                tracing::error!(server = %self.id.server, "cannot save the renewed sign-in: {error:#}");
                return Err(passing(
                    "its renewed access token cannot be saved; see the log",
                ));
            }
            tokio::time::sleep(STORE_RETRY_DELAY).await;
        }
    }

    /// Gets a token for Toolwharf itself.
    async fn obtain(&self, logins: &Logins, version: i64) -> Result<Access, SignIn> {
        let challenge = self.challenge();
        let (http, login) = (logins.http(&self.place), &self.place.login);
        let obtained = async {
            let discovery = discover(&http, &self.place, &challenge).await?;
            logins
                .bind(&self.id.server, &self.place, &discovery)
                .await?;
            let identity = logins.identity().unwrap_or_else(nowhere);
            let client = oauth::identify(&http, &discovery, login, &identity, None).await?;
            let tokens = match &login.assertion {
                None => token::of_client(&http, &discovery, &client, login).await?,
                Some(assertion) => {
                    let mut text = text_of(assertion, self.place.public_only).await?;
                    if let Some(idp) = &assertion.idp {
                        text = oauth::exchange(&http, &discovery, idp, text).await?;
                    }
                    oauth::of_assertion(&http, &discovery, &client, login, text).await?
                }
            };
            Ok(Stored {
                tokens,
                discovery,
                client,
            })
        };
        let stored = obtained.await.map_err(|error: oauth::Error| {
            passing(&format!(
                "Toolwharf cannot get an access token for it: {error}"
            ))
        })?;
        self.keep(logins, version, &stored).await?;
        let held = self.hold(&stored.tokens, Some(Instant::now()));
        held.ok_or_else(|| {
            passing("the issuer's access token has characters that a header cannot contain")
        })
    }

    /// Records that a user must sign in again.
    async fn lose(&self, logins: &Logins, version: i64, stored: &Stored, why: &str) -> SignIn {
        let why: Arc<str> = why.into();
        if let Err(error) = logins.keep(&self.id, version, stored, Some(&why)).await {
            tracing::warn!(server = %self.id.server, "cannot record that a new sign-in is needed: {error:#}");
        }
        tracing::warn!(server = %self.id.server, "a new sign-in is needed: {why}");
        self.set(State::Unknown);
        match self.id.principal.is_empty() {
            true => logins.wake(&self.id.server, Command::Restart),
            // The server still runs, so only this reports it.
            false => logins.report_expired(&self.id.server, &why),
        }
        self.needed(&why)
    }

    /// Gets another token after the server refused one, unless that is pointless.
    async fn refused(self: Arc<Self>, used: Option<Access>, said: &str) -> Result<Access, SignIn> {
        let challenge = Challenge::parse(said);
        if self.is_borrowed() {
            // The next sign-in uses this challenge.
            self.wanted().challenge = challenge;
            let Some(logins) = self.logins.upgrade() else {
                return Err(passing("the gateway is stopping"));
            };
            let lender = self.lender(&logins).await?;
            return Box::pin(lender.refused(used, said)).await;
        }
        if challenge.error.as_deref() == Some("insufficient_scope") {
            return self.step_up(used, challenge).await;
        }
        {
            let mut wanted = self.wanted();
            (wanted.challenge, wanted.is_refused) = (challenge, true);
        }
        match self.clone().renewed(used).await? {
            Some(access) => Ok(access),
            None => Err(self.needed("nobody has signed in")),
        }
    }

    /// Returns true if the server refuses a token that was requested because it had just refused another one, and that
    /// is not due yet. The sign-in stays as it is: the fault may lie with the server or its clock.
    fn is_in_vain(&self, refused: Option<&Access>) -> bool {
        let state = self.state.load();
        let State::Held(held) = &**state else {
            return false;
        };
        let is_meant = Some(&held.access) == refused && !held.is_due();
        let Some(made) = held.made.filter(|_| is_meant) else {
            return false;
        };
        let mut wanted = self.wanted();
        match wanted.tried_again {
            Some(at) if at.elapsed() < RETRY_WINDOW => made > at,
            _ => {
                wanted.tried_again = Some(Instant::now());
                false
            }
        }
    }

    /// Handles a server that requires more scopes: requests those that the server names together with those already
    /// granted.
    async fn step_up(
        self: Arc<Self>,
        used: Option<Access>,
        challenge: Challenge,
    ) -> Result<Access, SignIn> {
        let Some(logins) = self.logins.upgrade() else {
            return Err(passing("the gateway is stopping"));
        };
        let row = logins
            .store
            .login_get(&self.id.server, &self.id.principal)
            .await;
        let (granted, version) = match row {
            Ok(Some(row)) => {
                let version = row.version;
                let stored = opened(&logins, &self.id, row).await.ok();
                (stored.map_or_else(Vec::new, |it| it.tokens.scopes), version)
            }
            _ => (Vec::new(), 0),
        };
        let missing = {
            let mut wanted = self.wanted();
            if wanted.stepped.is_none_or(|at| at.elapsed() > STEPS_WINDOW) {
                (wanted.steps, wanted.short) = (0, None);
            }
            if wanted.short.is_none() || wanted.short != used {
                wanted.steps += 1;
                (wanted.stepped, wanted.short) = (Some(Instant::now()), used);
            }
            let asked = challenge.scope.clone().unwrap_or_default();
            if wanted.steps > MAX_STEPS {
                let why = format!(
                    "it still requires the scopes `{asked}`, although {MAX_STEPS} sign-ins have requested more scopes"
                );
                return Err(passing(&why));
            }
            let mut union: Vec<&str> = granted.iter().map(String::as_str).collect();
            union.extend(wanted.challenge.scopes());
            union.extend(challenge.scopes());
            let mut seen = std::collections::BTreeSet::new();
            union.retain(|scope| seen.insert(*scope));
            let scope = union.join(" ");
            wanted.challenge = Challenge {
                scope: Some(scope),
                resource_metadata: challenge
                    .resource_metadata
                    .or_else(|| wanted.challenge.resource_metadata.clone()),
                error: None,
                is_dpop: challenge.is_dpop || wanted.challenge.is_dpop,
            };
            asked
        };
        if self.is_own() {
            let _turn = self.renewing.lock().await;
            return self.obtain(&logins, version + 1).await;
        }
        Err(self.needed(&format!("its sign-in lacks the scopes `{missing}`")))
    }

    fn needed(&self, why: &str) -> SignIn {
        let name = &self.id.server.name;
        let of = self
            .id
            .server
            .owner
            .as_ref()
            .map_or_else(String::new, |owner| format!(" --project {owner}"));
        SignIn {
            reason: format!("it needs a sign-in ({why}): `toolwharf login {name}{of}`").into(),
            is_needed: true,
        }
    }
}

/// Reads the text of an assertion. A file is read each time, since its platform changes it.
async fn text_of(assertion: &Assertion, public_only: bool) -> Result<String, oauth::Error> {
    let unusable = |what: String| oauth::Error {
        code: Code::NoClient,
        what,
    };
    let file = match &assertion.text {
        AssertionText::Is(text) => return Ok(text.reveal().to_owned()),
        AssertionText::File(file) if !public_only => file,
        AssertionText::File(_) => {
            let what = "`assertionFile` is only allowed for servers that an administrator declared";
            return Err(unusable(what.to_owned()));
        }
    };
    let shown = file.display();
    let mut bytes = Vec::new();
    let reading = async {
        if !tokio::fs::metadata(file).await?.is_file() {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let file = tokio::fs::File::open(file).await?;
        file.take(MAX_ASSERTION_BYTES).read_to_end(&mut bytes).await
    };
    let read = reading.await;
    read.map_err(|error| unusable(format!("`assertionFile` {shown} cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let text = text.trim();
    // A text that is not a JWT must not be sent to the issuer.
    let is_jwt = text.split('.').count() == 3
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match is_jwt {
        true => Ok(text.to_owned()),
        false => Err(unusable(format!(
            "`assertionFile` {shown} does not contain a JWT"
        ))),
    }
}

/// A temporary error. A new sign-in would not fix it.
fn passing(why: &str) -> SignIn {
    SignIn {
        reason: why.into(),
        is_needed: false,
    }
}

/// The identity for grants that need no redirect, if no listener is running.
fn nowhere() -> oauth::Identity {
    oauth::Identity {
        redirect_uri: String::new(),
        metadata_url: None,
    }
}
