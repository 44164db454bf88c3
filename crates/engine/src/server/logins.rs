//! Sign-ins to servers: the interface that the engine needs from the token store.

use std::{sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use mcp::client::{Authorize, SignIn};
use model::{Hidden, ServerSpec};

/// An access token in the environment of an instance.
#[derive(Clone, Debug)]
pub struct Issued {
    pub token: Hidden,
    /// When a newer token will be available. `None`: it does not expire.
    pub renew_at: Option<SystemTime>,
    pub ends_at: Option<SystemTime>,
}

/// Keeps users' sign-ins to servers. The default methods keep none.
pub trait Logins: Send + Sync {
    /// The source of access tokens for requests to the server, if the server may require any. `whose` is the principal
    /// whose tokens are used. `None` means the sign-in shared by all callers or, if callers do not share one, that of
    /// the caller who signed in last; it serves the lists that all callers see.
    fn authorize(
        &self,
        _spec: &ServerSpec,
        _whose: Option<&Arc<str>>,
    ) -> Option<Arc<dyn Authorize>> {
        None
    }

    /// The access token for the environment of an instance about to be launched, if it uses one
    /// (`model::LoginVariables`). `whose` is as in [`Logins::authorize`].
    fn issue(
        &self,
        _spec: &ServerSpec,
        _whose: Option<&Arc<str>>,
    ) -> Option<BoxFuture<'static, Result<Issued, SignIn>>> {
        None
    }

    /// Returns whether each caller of the server signs in separately.
    fn is_personal(&self, _spec: &ServerSpec) -> bool {
        false
    }

    /// A link to sign in with, if the caller may sign in. It works once, and only in the caller's own browser.
    fn link(&self, _spec: &ServerSpec, _principal: &Arc<str>) -> Option<String> {
        None
    }

    /// Waits for a sign-in that the caller can use.
    fn signed_in(&self, _spec: &ServerSpec, _principal: &Arc<str>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Provides no sign-ins.
pub struct NoLogins;

impl Logins for NoLogins {}
