//! Signing in to servers: what the engine needs of whoever keeps the tokens.

use std::{sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use mcp::client::{Authorize, SignIn};
use model::{Hidden, ServerSpec};

/// An access token in the environment of an instance.
#[derive(Clone, Debug)]
pub struct Issued {
    pub token: Hidden,
    /// From then on there is a newer one; `None`: it does not end.
    pub renew_at: Option<SystemTime>,
    pub ends_at: Option<SystemTime>,
}

/// Keeps people's sign-ins to servers. [`NoLogins`] keeps none.
pub trait Logins: Send + Sync {
    /// The source of access tokens for the requests of an instance of the server, if the server may ask for any. The tokens are those
    /// of the principal `whose`. `None` means those that all callers share. Where callers share none, they are those of the caller who
    /// signed in last, for the lists that all callers see.
    fn authorize(&self, spec: &ServerSpec, whose: Option<&Arc<str>>) -> Option<Arc<dyn Authorize>>;

    /// The access token for the environment of an instance that is launched now, if it has one there (`model::LoginVariables`). `whose` is
    /// as in [`Logins::authorize`].
    fn issue(
        &self,
        spec: &ServerSpec,
        whose: Option<&Arc<str>>,
    ) -> Option<BoxFuture<'static, Result<Issued, SignIn>>>;

    /// Whether each caller of the server signs in by themselves.
    fn is_personal(&self, spec: &ServerSpec) -> bool;

    /// Where the caller can sign in, if they may. The link is good once, and for their own browser.
    fn link(&self, spec: &ServerSpec, principal: &Arc<str>) -> Option<String>;

    /// Waits until a sign-in comes about that is of use to the caller.
    fn signed_in(&self, spec: &ServerSpec, principal: &Arc<str>) -> BoxFuture<'static, ()>;
}

/// No sign-in anywhere.
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
