//! TLS of the listener for clients.
//!
//! Invariants:
//! - A certificate that cannot be used never replaces the one in use. At the start, it is an error.
//! - A handshake has a deadline, and holds a place of the connection limit. A client that sends nothing holds no place
//!   of the handshake limit, which bounds the memory for what clients send before they have completed a handshake.
//! - The key is never part of a log message or an error.
//!
//! Deliberately absent: client certificates, several certificates by name, ACME, HTTP/2.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use backend::reload::{Stamp, stamp};
use model::TlsSettings;
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{net::TcpStream, sync::Semaphore};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use zeroize::Zeroizing;

use super::idle::drain;

/// Interval between checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum bytes of each file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Time limit of a handshake, and the one that applies when connections or handshakes are scarce.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(9);
const SHORT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum concurrent handshakes. Each may need 64 KiB for a message of the client. Further clients wait unread.
const MAX_HANDSHAKES: usize = 1024;
/// Maximum bytes that a connection keeps encrypted while its client does not read: one record.
const MAX_UNSENT_BYTES: usize = 16 << 10;
/// The first byte of a connection with TLS: a record of the handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The certificate in use, and the files that it comes from.
pub struct Tls {
    files: TlsSettings,
    /// The versions of the files at the start.
    opened: [Stamp; 2],
    state: RwLock<State>,
    handshakes: Semaphore,
}

struct State {
    current: Loaded,
    /// Why the files cannot be used now.
    failure: Option<String>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// The SHA-256 of the certificate, in hex.
    digest: String,
}

impl Tls {
    /// Loads the certificate.
    ///
    /// # Errors
    /// If the files cannot be read, or contain no certificate with its key.
    pub fn open(files: &TlsSettings) -> anyhow::Result<Arc<Self>> {
        let opened = stamps(files);
        let current = load(files).context("the certificate of `[tls]` cannot be used")?;
        Ok(Arc::new(Self {
            files: files.clone(),
            opened,
            state: RwLock::new(State {
                current,
                failure: None,
            }),
            handshakes: Semaphore::new(MAX_HANDSHAKES),
        }))
    }

    /// The SHA-256 of the certificate in use, in hex.
    pub fn digest(&self) -> String {
        self.state.read().current.digest.clone()
    }

    /// Why the changed files cannot be used. The previous certificate is still in use.
    pub fn failure(&self) -> Option<String> {
        self.state.read().failure.clone()
    }

    /// The file of the certificate.
    pub fn file(&self) -> &Path {
        &self.files.cert
    }

    /// Loads the files when they change, in a loop. `changed` gets the digest of each new certificate.
    ///
    /// Polls their metadata like [`backend::reload`]. This covers symbolic links that are switched, also of folders. A
    /// change is loaded when the files were the same twice, because tools replace the certificate and the key one after
    /// the other.
    pub async fn watch(&self, mut changed: impl FnMut(&str)) {
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        let (mut seen, mut loaded) = (self.opened, self.opened);
        loop {
            tick.tick().await;
            let now = stamps(&self.files);
            let is_settled = now == seen;
            seen = now;
            // After a failure, the files are tried again: they may become readable without a change.
            let is_due = now != loaded || self.state.read().failure.is_some();
            if !(is_settled && is_due) {
                continue;
            }
            loaded = now;
            let files = self.files.clone();
            let read = tokio::task::spawn_blocking(move || load(&files)).await;
            let read = read.unwrap_or_else(|error| Err(error.into()));
            if let Some(digest) = self.take_in(read) {
                changed(&digest);
            }
        }
    }

    /// Puts the files in force, if they can be used. Returns the digest of the new certificate.
    fn take_in(&self, read: anyhow::Result<Loaded>) -> Option<String> {
        let cert = self.files.cert.display();
        match read {
            Ok(current) => {
                let digest = current.digest.clone();
                *self.state.write() = State {
                    current,
                    failure: None,
                };
                tracing::info!("the changed certificate {cert} is in use");
                Some(digest)
            }
            Err(error) => {
                let why = format!("{error:#}");
                let before = self.state.write().failure.replace(why.clone());
                if before.as_ref() != Some(&why) {
                    tracing::error!(
                        "the changed certificate cannot be used, keeping the previous one: {why}"
                    );
                }
                None
            }
        }
    }

    /// Completes the handshake of a connection. `None` if it fails, takes too long, or `stopped` is ready before.
    /// `is_scarce`: few more connections are allowed.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
        is_scarce: impl Fn() -> bool,
        stopped: impl Future<Output = ()>,
    ) -> Option<TlsStream<TcpStream>> {
        let deadline = async {
            tokio::time::sleep(SHORT_HANDSHAKE_TIMEOUT).await;
            if self.handshakes.available_permits() > 0 && !is_scarce() {
                tokio::time::sleep(HANDSHAKE_TIMEOUT - SHORT_HANDSHAKE_TIMEOUT).await;
            }
        };
        tokio::select! {
            biased;
            done = self.handshake(socket) => {
                done.inspect_err(|error| tracing::debug!("a TLS handshake failed: {error}")).ok()
            }
            () = deadline => {
                tracing::debug!("closed a connection: its TLS handshake took too long");
                None
            }
            () = stopped => None,
        }
    }

    async fn handshake(&self, mut socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[0] != HANDSHAKE_RECORD {
            // There is only one attempt to write: if the socket is not writable at once, the client gets no text.
            let _ = socket.try_write(plain_refusal().as_bytes());
            drain(&mut socket).await;
            return Err(io::Error::other("the client does not speak TLS"));
        }
        let _place = self.handshakes.acquire().await.map_err(io::Error::other)?;
        let config = self.state.read().current.config.clone();
        let limit = |session: &mut rustls::ServerConnection| {
            session.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        };
        TlsAcceptor::from(config).accept_with(socket, limit).await
    }
}

/// The response to a client that speaks plain HTTP.
fn plain_refusal() -> String {
    let what = "this address needs https: use a URL that begins with https://\n";
    format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{what}",
        what.len()
    )
}

fn stamps(files: &TlsSettings) -> [Stamp; 2] {
    [&files.cert, &files.key].map(|file| stamp(file))
}

fn load(files: &TlsSettings) -> anyhow::Result<Loaded> {
    let (cert, key) = (files.cert.display(), files.key.display());
    let text = read(&files.cert)?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let chain = chain.with_context(|| format!("{cert} is not a valid PEM file"))?;
    let Some(first) = chain.first() else {
        bail!("{cert} contains no certificate, which begins with `-----BEGIN CERTIFICATE-----`");
    };
    let digest = model::sha256_hex(first);
    let text = Zeroizing::new(read(&files.key)?);
    // The error could quote the file.
    let secret = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| anyhow!("{key} contains no private key in PEM format without a passphrase"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                anyhow!("the key in {key} is not that of the first certificate in {cert}")
            }
            error => {
                anyhow!("the certificate in {cert} cannot be used with the key in {key}: {error}")
            }
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Loaded {
        config: Arc::new(config),
        digest,
    })
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let cannot = || format!("cannot read {shown}");
    // A pipe would block.
    let meta = fs::metadata(path).with_context(cannot)?;
    ensure!(meta.is_file(), "{shown} is not a file");
    ensure!(
        meta.len() <= MAX_FILE_BYTES,
        "{shown} has more than {MAX_FILE_BYTES} bytes"
    );
    let mut text = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
    let file = File::open(path).with_context(cannot)?;
    let read = file.take(MAX_FILE_BYTES).read_to_end(&mut text);
    read.with_context(cannot)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
