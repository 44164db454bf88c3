//! The three ways to identify a caller, in one place.

use std::{io, sync::Arc, time::Duration};

use http::HeaderMap;
use model::Settings;

use super::{
    Browsers, Codes, Keys, PREFIX, Principal, Refused, Tokens,
    ended::Ended,
    keys::{Digest, digest},
};
use crate::tickets::Tickets;

/// Interval between checks for expired tokens and sessions.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Reason given while a key or session cannot be checked.
const STALE: &str =
    "the database does not answer, and the key may have been revoked on another replica";

/// Keys, tokens of configured issuers, and browser sessions. When a principal has no valid credential left, the
/// principal's open sessions and streams are closed.
pub struct Identities {
    pub keys: Arc<Keys>,
    pub tokens: Tokens,
    pub browsers: Browsers,
    pub codes: Codes,
    pub tickets: Arc<Tickets>,
    ended: Arc<Ended>,
}

impl Identities {
    /// `bases`: addresses of this gateway that tokens may name as audience. The first one is shown to clients.
    ///
    /// # Errors
    /// If there are issuers and the platform's root certificates cannot be read.
    pub fn new(
        settings: &Settings,
        bases: Vec<String>,
        tickets: Arc<Tickets>,
    ) -> io::Result<Arc<Self>> {
        let ended = Arc::<Ended>::default();
        let keys = Arc::new(Keys::new(ended.clone()));
        Self::with(keys, ended, settings, bases, tickets)
    }

    /// Creates identities with a single administrator's key.
    #[cfg(any(test, feature = "test-util"))]
    pub fn administrator(token: &str, settings: &Settings, tickets: &Arc<Tickets>) -> Arc<Self> {
        let bases = vec!["http://127.0.0.1:6280".to_owned()];
        let (keys, ended) = (Keys::administrator(token), Arc::default());
        let this = Self::with(keys, ended, settings, bases, tickets.clone());
        this.expect("root certificates")
    }

    fn with(
        keys: Arc<Keys>,
        ended: Arc<Ended>,
        settings: &Settings,
        bases: Vec<String>,
        tickets: Arc<Tickets>,
    ) -> io::Result<Arc<Self>> {
        let tokens = Tokens::new(&settings.oidc, bases);
        Ok(Arc::new(Self {
            keys,
            browsers: Browsers::new(tokens.base(), &settings.oidc, tickets.clone()),
            codes: Codes::new(tickets.clone()),
            tickets,
            tokens,
            ended,
        }))
    }

    /// Identifies the owner of a key or token; `None` if it is unknown. `path`: the path that it is used for, if the
    /// token may be limited to some paths. `base`: the gateway's address for this request, if a proxy says what it is.
    ///
    /// # Errors
    /// If it is a token of a configured issuer and cannot be used.
    pub async fn identify(
        &self,
        bearer: &[u8],
        path: Option<&str>,
        base: Option<&str>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let digest = digest(bearer);
        let who = self.keys.of(&digest);
        if (who.is_some() || bearer.starts_with(PREFIX.as_bytes())) && self.keys.are_stale() {
            return Err(Refused::Away(STALE.to_owned()));
        }
        if who.is_some() {
            return Ok(who);
        }
        if !self.tokens.are_taken() || bearer.starts_with(PREFIX.as_bytes()) {
            return Ok(None);
        }
        self.token(bearer, digest, path, base).await
    }

    async fn token(
        &self,
        token: &[u8],
        digest: Digest,
        path: Option<&str>,
        base: Option<&str>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let verified = match self.tokens.known(&digest) {
            Some(verified) => Some(verified),
            // This case is rare. Its future is boxed, because it would enlarge the future of every call, which is moved
            // into the call's connection.
            None => match std::str::from_utf8(token) {
                Ok(token) => Box::pin(self.tokens.verify(token, digest, base)).await?,
                Err(_) => None,
            },
        };
        let Some(verified) = verified else {
            return Ok(None);
        };
        if path.is_some_and(|path| !verified.covers(path)) {
            let why = "it is for another endpoint of this gateway".to_owned();
            return Err(Refused::Invalid(why));
        }
        Ok(Some(verified.principal.clone()))
    }

    /// Identifies the user signed in at the browser that sent these headers, by its cookie and page secret. Does not
    /// check whether the request may use them.
    ///
    /// # Errors
    /// If the session, or the key used to sign in, cannot be checked now.
    pub async fn browser(&self, headers: &HeaderMap) -> Result<Option<Arc<Principal>>, Refused> {
        // Browser requests are rare. Their future is boxed, because it would enlarge the future of every call, which is
        // moved into the call's connection.
        let found = Box::pin(self.browsers.principal(headers)).await;
        self.living(found)
    }

    /// Like [`Self::browser`], but checks only the cookie, which browsers also send to other ports of this host. Only
    /// for pages that are opened by navigation and whose forms contain a token (`Tickets::form_token`).
    ///
    /// # Errors
    /// If the session, or the key used to sign in, cannot be checked now.
    pub async fn navigating(&self, headers: &HeaderMap) -> Result<Option<Arc<Principal>>, Refused> {
        let found = Box::pin(self.browsers.by_cookie(headers)).await;
        self.living(found)
    }

    fn living(
        &self,
        found: store::Result<Option<Arc<Principal>>>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let Some(who) = found.map_err(Refused::of_database)? else {
            return Ok(None);
        };
        if self.keys.are_stale() {
            return Err(Refused::Away(STALE.to_owned()));
        }
        Ok(match who.id.starts_with("key:") {
            true => self.keys.holder(&who.id),
            false => Some(who),
        })
    }

    /// Forgets sessions that have ended at other replicas.
    ///
    /// # Errors
    /// Database errors.
    pub async fn refresh_browsers(&self) -> store::Result<()> {
        let gone = self.browsers.refresh().await?;
        self.end(gone);
        Ok(())
    }

    /// Reports the principals among `gone` that have no valid credential left.
    fn end(&self, gone: impl IntoIterator<Item = Arc<str>>) {
        let gone = gone.into_iter().filter(|id| !self.lives(id));
        let gone: Vec<_> = gone.collect();
        if !gone.is_empty() {
            self.ended.tell(gone);
        }
    }

    /// Returns true if this principal still has a valid credential.
    pub fn lives(&self, id: &str) -> bool {
        match id.starts_with("key:") {
            true => self.keys.holder(id).is_some(),
            false => self.tokens.lives(id) || self.browsers.lives(id),
        }
    }

    /// Returns the principals that lost all access since the last call; waits until there is one.
    pub async fn ended(&self) -> Vec<Arc<str>> {
        self.ended.next().await
    }

    /// Refreshes the issuers' keys, and ends expired tokens and browser sessions, in a loop.
    pub async fn follow(&self) {
        let expiry = async {
            let mut tick = tokio::time::interval(EXPIRY_INTERVAL);
            loop {
                tick.tick().await;
                let mut gone = self.tokens.expire();
                gone.extend(self.browsers.expire());
                self.end(gone);
            }
        };
        tokio::join!(expiry, self.tokens.follow());
    }
}
