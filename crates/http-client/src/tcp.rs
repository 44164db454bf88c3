//! TCP connections, direct or through a proxy. If the URL does not come from an administrator, they go to addresses on
//! the public internet only, whatever the name resolves to. A proxy is then asked for the address that was checked here,
//! not for the name, which it could resolve differently.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{HttpConnector, dns::Name},
    rt::TokioIo,
};
use model::is_public;
use tokio::{net::TcpStream, time::timeout};
use tower_service::Service;

use crate::{
    BoxError, Options,
    proxies::{Via, port},
};

/// Timeout for name lookup and TLS, in addition to the TCP timeout.
const LOOKUP_AND_TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Silence on a socket after which the kernel sends a keepalive probe. Streams have no other idle limit.
pub const KEEPALIVE: Duration = Duration::from_secs(30);

/// Limit for the addresses of a name that a proxy is asked for.
const MAX_ADDRESSES: usize = 4;

/// Connects over plain TCP, through the proxy for the URL if there is one.
#[derive(Clone)]
pub struct Tcp {
    http: HttpConnector<Resolver>,
    /// Connects to proxies, which an administrator chose.
    proxy: HttpConnector<Resolver>,
    options: Options,
}

impl Tcp {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let connector = |public_only| {
            let mut http = HttpConnector::new_with_resolver(Resolver { public_only });
            http.enforce_http(false);
            // Without this option, Nagle's algorithm and delayed acknowledgements cost 40 ms per call.
            http.set_nodelay(true);
            http.set_connect_timeout(Some(options.connect_timeout));
            http.set_keepalive(Some(KEEPALIVE));
            http.set_keepalive_interval(Some(KEEPALIVE));
            http.set_keepalive_retries(Some(4));
            http
        };
        Self {
            http: connector(options.public_only),
            proxy: connector(false),
            options,
        }
    }

    /// [`Options::forwarder`].
    #[must_use]
    pub fn forwarder(&self, uri: &Uri) -> Option<&'static Via> {
        self.options.forwarder(uri)
    }

    /// Connects, with a timeout for all steps.
    ///
    /// # Errors
    /// The connection failed, took too long, or leads to an address that is not public.
    pub async fn connect(mut self, uri: Uri) -> Result<TokioIo<TcpStream>, BoxError> {
        let options = self.options;
        in_time(&options, self.call(uri)).await
    }
}

impl Service<Uri> for Tcp {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The resolver is not called for an address literal in the URL, so check the address here.
        let host = uri.host().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        let literal = literal.parse::<IpAddr>().ok();
        if self.options.public_only && literal.is_some_and(|ip| !is_public(ip)) {
            return Box::pin(async { Err(not_public().into()) });
        }
        match self.options.proxies.find(&uri) {
            Ok(None) => {
                let connecting = self.http.call(uri);
                Box::pin(async move { Ok(connecting.await?) })
            }
            Ok(Some(via)) => Box::pin(self.clone().through(via, uri, literal)),
            Err(why) => Box::pin(async move { Err(why.into()) }),
        }
    }
}

impl Tcp {
    /// Connects to the proxy and, unless it forwards requests, through it.
    async fn through(
        self,
        via: &'static Via,
        uri: Uri,
        literal: Option<IpAddr>,
    ) -> Result<TokioIo<TcpStream>, BoxError> {
        if self.forwarder(&uri).is_some() {
            return self.to_proxy(via).await;
        }
        let (host, port) = (uri.host().unwrap_or_default(), port(&uri));
        if !self.options.public_only || literal.is_some() {
            return self.tunnel(via, &format!("{host}:{port}")).await;
        }
        let found = resolved(host, true).await;
        let addresses = found.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => error.into(),
            _ => BoxError::from(format!(
                "cannot resolve `{host}`: {error}; the URL may lead to public addresses only, so its address is checked \
                 here before {via} connects to it; an administrator's key may register URLs without this check"
            )),
        })?;
        let mut failed: BoxError = format!("`{host}` has no address").into();
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            let place = SocketAddr::new(address.ip(), port).to_string();
            let tunnel = timeout(self.options.connect_timeout, self.tunnel(via, &place));
            match tunnel.await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = format!("{via} did not connect to {place} in time").into(),
            }
        }
        Err(failed)
    }

    async fn to_proxy(&self, via: &Via) -> Result<TokioIo<TcpStream>, BoxError> {
        let connected = self.proxy.clone().call(via.uri.clone()).await;
        connected.map_err(|error| via.unreachable(&model::with_causes(&error)))
    }

    async fn tunnel(&self, via: &Via, place: &str) -> Result<TokioIo<TcpStream>, BoxError> {
        let connected = self.to_proxy(via).await?;
        via.tunnel(connected, place).await
    }
}

#[derive(Clone)]
struct Resolver {
    public_only: bool,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let public_only = self.public_only;
        Box::pin(async move { Ok(resolved(name.as_str(), public_only).await?.into_iter()) })
    }
}

/// The addresses of a name, with port 0.
async fn resolved(name: &str, public_only: bool) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
    let usable: Vec<SocketAddr> = found
        .iter()
        .copied()
        .filter(|address| !public_only || is_public(address.ip()))
        .collect();
    if usable.is_empty() && !found.is_empty() {
        return Err(not_public());
    }
    Ok(usable)
}

fn not_public() -> io::Error {
    let why = "the URL leads to an address that is not public; only an administrator's key may register such a URL";
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Waits for a connection with a timeout for all its steps.
pub(crate) async fn in_time<T>(
    options: &Options,
    connecting: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    let within = options.connect_timeout + LOOKUP_AND_TLS_TIMEOUT;
    let connected = timeout(within, connecting).await;
    connected.map_err(|_| format!("no connection within {} seconds", within.as_secs()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_guarded_connection_reaches_nothing_local() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let tcp = |public_only| {
            Tcp::new(Options {
                public_only,
                ..Options::default()
            })
        };
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"] {
            let uri: Uri = format!("http://{host}:{port}/").parse().expect(host);
            let refused = tcp(true).call(uri.clone()).await;
            let why = refused
                .err()
                .map(|error| format!("{error:?}"))
                .unwrap_or_default();
            assert!(why.contains("not public"), "{host}: {why}");
        }
        let uri: Uri = format!("http://127.0.0.1:{port}/").parse().expect("a URL");
        assert!(tcp(false).call(uri).await.is_ok());
    }
}
