//! Everything that somebody can be known by.

use std::{io, sync::Arc, time::Duration};

use http::HeaderMap;
use model::Settings;

use super::{
    Browsers, Codes, Keys, PREFIX, Principal, Refused, Tokens,
    ended::Ended,
    keys::{Digest, digest},
};
use crate::tickets::Tickets;

/// How often what has ended is looked for.
const TICK: Duration = Duration::from_secs(1);

/// Why a key or a session opens nothing for now.
const STALE: &str =
    "the database does not answer, and the key may have been revoked on another replica";

/// Keys, tokens of the issuers in the settings, and browsers that signed in with either. When all that somebody had has ended,
/// what they have open ends, too.
pub(crate) struct Identities {
    pub(crate) keys: Arc<Keys>,
    pub(crate) tokens: Tokens,
    pub(crate) browsers: Browsers,
    pub(crate) codes: Codes,
    pub(crate) tickets: Arc<Tickets>,
    ended: Arc<Ended>,
}

impl Identities {
    /// `bases` are the addresses of this gateway, which tokens have to be for; the one to show first.
    ///
    /// # Errors
    /// If there are issuers, and the platform's root certificates cannot be read.
    pub(crate) fn new(
        settings: &Settings,
        bases: Vec<String>,
        tickets: Arc<Tickets>,
    ) -> io::Result<Arc<Self>> {
        let ended = Arc::<Ended>::default();
        let keys = Arc::new(Keys::new(ended.clone()));
        Self::with(keys, ended, settings, bases, tickets)
    }

    /// With one key, an administrator's.
    #[cfg(test)]
    pub(crate) fn administrator(
        token: &str,
        settings: &Settings,
        tickets: &Arc<Tickets>,
    ) -> Arc<Self> {
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
        let tokens = Tokens::new(&settings.oidc, bases)?;
        Ok(Arc::new(Self {
            keys,
            browsers: Browsers::new(tokens.base(), &settings.oidc, tickets.clone()),
            codes: Codes::new(tickets.clone()),
            tickets,
            tokens,
            ended,
        }))
    }

    /// Whose key or token that is; `None`: nobody's. `path` is that of what it is used for, if a token may be for some paths only.
    ///
    /// # Errors
    /// If it is a token of one of the issuers, and cannot be used.
    pub(crate) async fn identify(
        &self,
        bearer: &[u8],
        path: Option<&str>,
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
        self.token(bearer, digest, path).await
    }

    async fn token(
        &self,
        token: &[u8],
        digest: Digest,
        path: Option<&str>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let verified = match self.tokens.known(&digest) {
            Some(verified) => Some(verified),
            // Rare, and boxed: what answers a call is moved into its connection.
            None => match std::str::from_utf8(token) {
                Ok(token) => Box::pin(self.tokens.verify(token, digest)).await?,
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

    /// Who signed in at the browser that sent these headers: by its cookie and its page secret. Whether the request may use that is not
    /// looked at.
    ///
    /// # Errors
    /// If their session, or the key that they signed in with, cannot be checked now.
    pub(crate) async fn browser(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        // Rare beside calls, and boxed: what answers a call is moved into its connection.
        let found = Box::pin(self.browsers.principal(headers)).await;
        self.living(found)
    }

    /// The same by the cookie alone, which other ports of this host receive as well. Only for pages that are reached by navigation and
    /// whose forms carry a token (`Tickets::form_token`).
    ///
    /// # Errors
    /// If their session, or the key that they signed in with, cannot be checked now.
    pub(crate) async fn navigating(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Principal>>, Refused> {
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

    /// Takes in which sessions have ended at other replicas.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn refresh_browsers(&self) -> store::Result<()> {
        let gone = self.browsers.refresh().await?;
        self.end(gone);
        Ok(())
    }

    /// Ends what is open of those who have nothing any more that opens anything.
    fn end(&self, gone: impl IntoIterator<Item = Arc<str>>) {
        let gone = gone.into_iter().filter(|id| !self.lives(id));
        let gone: Vec<_> = gone.collect();
        if !gone.is_empty() {
            self.ended.tell(gone);
        }
    }

    /// Whether somebody with this id has something that opens anything.
    pub(crate) fn lives(&self, id: &str) -> bool {
        match id.starts_with("key:") {
            true => self.keys.holder(id).is_some(),
            false => self.tokens.lives(id) || self.browsers.lives(id),
        }
    }

    /// Those who may do nothing any more since this was last asked; waits until there are some.
    pub(crate) async fn ended(&self) -> Vec<Arc<str>> {
        self.ended.next().await
    }

    /// Keeps the keys of issuers up to date, and ends what has expired, for ever.
    pub(crate) async fn follow(&self) {
        let expiry = async {
            let mut tick = tokio::time::interval(TICK);
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
