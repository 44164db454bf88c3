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

/// Keeps users' sign-ins to servers. [`NoLogins`] keeps none.
pub trait Logins: Send + Sync {
    /// The source of access tokens for requests to the server, if the server may require any. `whose` is the principal
    /// whose tokens are used. `None` means the sign-in shared by all callers or, if callers do not share one, that of
    /// the caller who signed in last; it serves the lists that all callers see.
    fn authorize(&self, spec: &ServerSpec, whose: Option<&Arc<str>>) -> Option<Arc<dyn Authorize>>;

    /// The access token for the environment of an instance about to be launched, if it uses one
    /// (`model::LoginVariables`). `whose` is as in [`Logins::authorize`].
    fn issue(
        &self,
        spec: &ServerSpec,
        whose: Option<&Arc<str>>,
    ) -> Option<BoxFuture<'static, Result<Issued, SignIn>>>;

    /// Returns whether each caller of the server signs in separately.
    fn is_personal(&self, spec: &ServerSpec) -> bool;

    /// A link to sign in with, if the caller may sign in. It works once, and only in the caller's own browser.
    fn link(&self, spec: &ServerSpec, principal: &Arc<str>) -> Option<String>;

    /// Waits for a sign-in that the caller can use.
    fn signed_in(&self, spec: &ServerSpec, principal: &Arc<str>) -> BoxFuture<'static, ()>;
}

/// Provides no sign-ins.
pub struct NoLogins;

impl Logins for NoLogins {
    fn authorize(&self, _: &ServerSpec, _: Option<&Arc<str>>) -> Option<Arc<dyn Authorize>> {
        None
    }

    fn issue(
        &self,
        _: &ServerSpec,
        _: Option<&Arc<str>>,
    ) -> Option<BoxFuture<'static, Result<Issued, SignIn>>> {
        None
    }

    fn is_personal(&self, _: &ServerSpec) -> bool {
        false
    }

    fn link(&self, _: &ServerSpec, _: &Arc<str>) -> Option<String> {
        None
    }

    fn signed_in(&self, _: &ServerSpec, _: &Arc<str>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
