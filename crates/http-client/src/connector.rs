//! Connections with and without TLS.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
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

/// A connection to a server, or to the proxy that forwards its requests.
pub struct Stream {
    io: MaybeHttpsStream<TokioIo<TcpStream>>,
    is_forwarded: bool,
}

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
            let is_forwarded = self.tcp.forwarder(&uri).is_some();
            let io = MaybeHttpsStream::Http(self.tcp.call(uri).await?);
            return Ok(Stream { io, is_forwarded });
        }
        let mut https = self
            .https
            .get_or_try_init(|| async {
                let (tcp, options) = (self.tcp.clone(), self.options);
                tokio::task::spawn_blocking(move || tls(tcp, options))
                    .await
                    .map_err(BoxError::from)?
            })
            .await?
            .clone();
        let io = https.call(uri).await.map_err(explained)?;
        let is_forwarded = false;
        Ok(Stream { io, is_forwarded })
    }
}

/// Adds the remedy to the error for a certificate of an unknown authority.
fn explained(error: BoxError) -> BoxError {
    let why = model::with_causes(&*error);
    if why.contains("ApplicationVerificationFailure") {
        return "the server has another certificate than the gateway".into();
    }
    match why.contains("UnknownIssuer") {
        true => format!(
            "{why}: this machine does not trust the authority that issued the certificate; add its CA certificate to \
             those of the system, or to the file in `SSL_CERT_FILE`"
        )
        .into(),
        false => error,
    }
}

fn tls(tcp: Tcp, options: Options) -> Result<HttpsConnector<Tcp>, BoxError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new();
    let builder = match options.pin {
        Some(pin) => builder.with_tls_config(pin.config(Arc::new(provider))?),
        None => builder.with_provider_and_native_roots(provider).map_err(|error| {
            format!("the platform's root certificates cannot be read: {error}; install them (`apt-get install ca-certificates`), or correct `SSL_CERT_FILE` and `SSL_CERT_DIR`, if they are set")
        })?,
    };
    let builder = builder.https_or_http();
    Ok(match options.http2 {
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

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.is_forwarded)
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }
}
