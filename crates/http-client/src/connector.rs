//! Connections with and without TLS.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Uri, uri::Scheme};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::OnceCell};
use tower_service::Service;

use crate::{BoxError, Options, Tcp, tcp::in_time};

/// Connects to `http` and `https` URLs.
#[derive(Clone)]
pub struct Connector {
    tcp: Tcp,
    https: Arc<OnceCell<HttpsConnector<Tcp>>>,
    options: Options,
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

impl Connector {
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            tcp: Tcp::new(options),
            https: Arc::default(),
            options,
        }
    }

    /// Returns the part that connects without TLS.
    #[must_use]
    pub fn tcp(&self) -> &Tcp {
        &self.tcp
    }

    async fn connect(mut self, uri: Uri) -> Result<Stream, BoxError> {
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(MaybeHttpsStream::Http(self.tcp.call(uri).await?));
        }
        let mut https = self
            .https
            .get_or_try_init(|| async {
                let (tcp, http2) = (self.tcp.clone(), self.options.http2);
                tokio::task::spawn_blocking(move || tls(tcp, http2))
                    .await
                    .map_err(BoxError::from)?
            })
            .await?
            .clone();
        https.call(uri).await
    }
}

fn tls(tcp: Tcp, http2: bool) -> Result<HttpsConnector<Tcp>, BoxError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(provider)
        .map_err(|error| {
            format!("the platform's root certificates cannot be read: {error}; install them (`apt-get install ca-certificates`)")
        })?
        .https_or_http();
    Ok(match http2 {
        true => builder.enable_all_versions().wrap_connector(tcp),
        false => builder.enable_http1().wrap_connector(tcp),
    })
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let options = self.options;
        let connecting = self.clone().connect(uri);
        Box::pin(async move { in_time(&options, connecting).await })
    }
}
