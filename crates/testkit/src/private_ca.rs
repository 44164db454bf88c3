//! A certificate authority that no system trusts, and TLS in front of servers.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

/// A certificate authority with one certificate for servers.
pub struct PrivateCa {
    folder: TempDir,
    config: Arc<ServerConfig>,
}

impl PrivateCa {
    /// Creates an authority, and a certificate for servers with these names.
    ///
    /// # Panics
    /// If `openssl` is not installed, or fails.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        let names = format!("subjectAltName={}", names.join(","));
        let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
        openssl(
            folder.path(),
            request,
            &[
                "-subj",
                "/CN=authority",
                "-keyout",
                "ca.key",
                "-out",
                "ca.pem",
            ],
        );
        openssl(
            folder.path(),
            &format!(
                "{request} -CA ca.pem -CAkey ca.key -subj /CN=server -keyout key.pem -out cert.pem"
            ),
            &[
                "-addext",
                &names,
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ],
        );
        let file = |name: &str| folder.path().join(name);
        let chain = CertificateDer::pem_file_iter(file("cert.pem")).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(file("key.pem")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the key is that of the certificate");
        Self {
            folder,
            config: Arc::new(config),
        }
    }

    /// The authority's certificate, in PEM format.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The folder with the certificate for servers, `cert.pem`, and its key, `key.pem`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Connects to a server whose certificate is from this authority and is for `name`.
    ///
    /// # Errors
    /// The connection fails, or the server has no such certificate.
    ///
    /// # Panics
    /// If the authority's certificate cannot be read, or `name` is not a name.
    pub async fn connect(
        &self,
        server: SocketAddr,
        name: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_file(self.file()).expect("a certificate");
        roots.add(root).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let socket = TcpStream::connect(server).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, socket)
            .await
    }

    /// Accepts TLS connections on a free loopback port and passes their content to `server`, until the set is dropped.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn serve(&self, server: SocketAddr) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let acceptor = TlsAcceptor::from(self.config.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let Ok(mut client) = acceptor.accept(client).await else {
                        return;
                    };
                    let Ok(mut server) = TcpStream::connect(server).await else {
                        return;
                    };
                    // Either side may break off.
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        (address, tasks)
    }
}

fn openssl(folder: &Path, words: &str, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    command.args(words.split(' ')).args(arguments);
    let made = command.current_dir(folder).output();
    let made = made.expect("openssl is missing; run: apt-get install openssl");
    assert!(made.status.success(), "{made:?}");
}
