//! Outgoing HTTP: connections, deadlines and bounded responses.
//!
//! [`Client`] makes the gateway's own requests: to issuers, registries, models, webhooks, E2B and other replicas. The
//! data plane (`mcp`) has its own pool, which uses the same [`Connector`].
//!
//! Invariants: the platform's root certificates are read at the first `https` connection, except by a client that accepts
//! only one certificate ([`Options::pin`]). With
//! [`Options::public_only`], connections go to public addresses only, whatever a name resolves to. Proxies of the
//! environment are used for all hosts except this machine and those in `NO_PROXY` ([`Proxies`]). Redirects are never
//! followed, because they could lead anywhere and would get the credentials. Deliberately absent: cookies and
//! compression.

mod client;
mod connector;
mod pin;
mod proxies;
mod tcp;

use std::time::Duration;

use http::{Uri, uri::Scheme};

pub use self::{
    client::{Client, Error, cause, collect},
    connector::Connector,
    pin::{InvalidPin, Pin},
    proxies::{Proxies, Via},
    tcp::{KEEPALIVE, Tcp},
};
pub use hyper::body::Incoming;

/// Why a connection failed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Timeout for the TCP connection, in total for all addresses of a name. Name lookup and TLS may take 10 seconds
    /// more.
    pub connect_timeout: Duration,
    /// Connect only to addresses on the public internet.
    pub public_only: bool,
    /// Use HTTP/2 if a server with TLS offers it.
    pub http2: bool,
    /// Maximum idle connections per host. With 0, each request has its own connection.
    pub max_idle: usize,
    /// The proxies to connect through.
    pub proxies: &'static Proxies,
    /// The certificate that servers must have. `None`: one from an authority that the platform trusts, for the name in the
    /// URL.
    pub pin: Option<Pin>,
}

impl Options {
    /// Options for connections to any address, with HTTP/2 and the proxies of the environment. Set `public_only` unless an administrator configured the
    /// URL.
    #[must_use]
    pub fn guarded(public_only: bool) -> Self {
        Self {
            public_only,
            http2: true,
            ..Self::default()
        }
    }

    /// The proxy that forwards requests for this URL. They must be in absolute form (RFC 9112, 3.2.2) and have its
    /// `Proxy-Authorization`. `None` for direct connections and for tunnels.
    #[must_use]
    pub fn forwarder(&self, uri: &Uri) -> Option<&'static Via> {
        if uri.scheme() == Some(&Scheme::HTTPS) || self.public_only {
            return None;
        }
        self.proxies.find(uri).ok().flatten()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            public_only: false,
            http2: false,
            max_idle: 256,
            proxies: Proxies::of_environment(),
            pin: None,
        }
    }
}
