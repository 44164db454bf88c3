//! Everything that somebody can be known by.

use std::{io, sync::Arc};

use model::Settings;

use super::{
    Keys, PREFIX, Principal, Refused, Tokens,
    ended::Ended,
    keys::{Digest, digest},
};

/// Keys, and tokens of the issuers in the settings.
pub(crate) struct Identities {
    pub(crate) keys: Arc<Keys>,
    pub(crate) tokens: Tokens,
    ended: Arc<Ended>,
}

impl Identities {
    /// `bases` are the addresses of this gateway, which tokens have to be for; the one to show first.
    ///
    /// # Errors
    /// If there are issuers, and the platform's root certificates cannot be read.
    pub(crate) fn new(settings: &Settings, bases: Vec<String>) -> io::Result<Arc<Self>> {
        let ended = Arc::<Ended>::default();
        Ok(Arc::new(Self {
            keys: Arc::new(Keys::new(ended.clone())),
            tokens: Tokens::new(&settings.oidc, bases, ended.clone())?,
            ended,
        }))
    }

    /// With one key, an administrator's.
    #[cfg(test)]
    pub(crate) fn administrator(token: &str, settings: &Settings) -> Arc<Self> {
        let ended = Arc::<Ended>::default();
        let bases = vec!["http://127.0.0.1:6280".to_owned()];
        let tokens = Tokens::new(&settings.oidc, bases, ended.clone());
        Arc::new(Self {
            keys: Keys::administrator(token),
            tokens: tokens.expect("root certificates"),
            ended,
        })
    }

    /// Whose key or token that is; `None`: nobody's. `path` is that of what it is used for, if a token may be for some paths only.
    ///
    /// # Errors
    /// If it is a token of one of the issuers, and cannot be used.
    pub(crate) async fn identify(
        &self,
        bearer: &str,
        path: Option<&str>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let digest = digest(bearer);
        if let Some(who) = self.keys.of(&digest) {
            return Ok(Some(who));
        }
        if !self.tokens.are_taken() || bearer.starts_with(PREFIX) {
            return Ok(None);
        }
        self.token(bearer, digest, path).await
    }

    async fn token(
        &self,
        token: &str,
        digest: Digest,
        path: Option<&str>,
    ) -> Result<Option<Arc<Principal>>, Refused> {
        let verified = match self.tokens.known(&digest) {
            Some(verified) => Some(verified),
            // Rare, and boxed: what answers a call is moved into its connection.
            None => Box::pin(self.tokens.verify(token, digest)).await?,
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

    /// Whether somebody with this id has a key or a token that opens something.
    pub(crate) fn lives(&self, id: &str) -> bool {
        self.keys.lives(id) || self.tokens.lives(id)
    }

    /// Those who may do nothing any more since this was last asked; waits until there are some.
    pub(crate) async fn ended(&self) -> Vec<Arc<str>> {
        self.ended.next().await
    }
}
