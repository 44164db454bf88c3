//! A client for the daemon's API, with a deadline for every call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bollard::errors::Error as Bollard;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, InspectContainerOptions,
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use runtime::unit::Error;

pub(super) const LABEL_INSTALL: &str = "toolwharf.install";
pub(super) const LABEL_RUN: &str = "toolwharf.run";
/// The fencing token: the number of this launch among all launches by gateways of the same database.
pub(super) const LABEL_FENCE: &str = "toolwharf.fence";
pub(super) const LABEL_FENCE_OF: &str = "toolwharf.fence-of";
pub(super) const LABEL_HOSTING: &str = "toolwharf.hosting";

/// Timeout of calls that a daemon answers from memory.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of calls that create or remove something.
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// TCP keepalive of remote connections. They end when a node has been unreachable for one minute.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
/// bollard's own timeout in seconds, effectively disabled. Calls that wait for a container last as long as it runs, and
/// all others have our own deadlines.
const BOLLARD_TIMEOUT_SECS: u64 = 10 * 365 * 24 * 3600;

// bollard logs the bodies of its requests, environment included, at the debug level.
const _: () = assert!(
    log::STATIC_MAX_LEVEL as usize <= log::LevelFilter::Info as usize,
    "secrets would be logged"
);

/// The address of a daemon.
#[derive(Debug)]
pub(super) enum Engine {
    /// The path of a socket on this host.
    Local(String),
    /// `host:port`, and the directory with `ca.pem`, `cert.pem` and `key.pem`, as used by Docker's own client.
    Remote { address: String, keys: PathBuf },
}

/// A connection to a daemon that has responded.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) docker: Docker,
    pub(super) version: String,
}

impl Engine {
    /// A daemon on this host.
    pub(super) fn new(host: &str) -> Result<Self, Error> {
        match host.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(Self::Local(path.into())),
            _ => Err(Error::Refused {
                field: "host",
                why: format!(
                    "`{host}` must be the URL of a socket on this host, such as unix:///var/run/docker.sock"
                ),
            }),
        }
    }

    /// A local daemon, or a remote one at `tcp://host:port`. A remote daemon requires `keys`, because each side
    /// verifies the certificate of its peer.
    pub(super) fn anywhere(host: &str, keys: Option<&Path>) -> Result<Self, Error> {
        match (host.strip_prefix("tcp://"), keys) {
            (None, _) => Self::new(host),
            (Some(address), Some(keys)) => Ok(Self::Remote {
                address: address.into(),
                keys: keys.to_owned(),
            }),
            (Some(_), None) => Err(Error::Refused {
                field: "host",
                why: format!("`{host}`: a remote daemon requires certificates in `[swarm] tls`"),
            }),
        }
    }

    /// Checks that the daemon responds, and negotiates the API version. Done for every instance, because a daemon may
    /// be upgraded at any time.
    pub(super) async fn connect(&self) -> Result<Client, Error> {
        let missing = |why: &dyn std::fmt::Display| {
            Error::Unavailable(match self {
                Self::Local(path) => format!(
                    "no Docker daemon answers at unix://{path}: {why}; install Docker (`apt-get install docker.io`), \
                     start it, and allow this user to use its socket"
                ),
                Self::Remote { address, .. } => {
                    format!(
                        "no Docker daemon answers at tcp://{address}: {why}; check `[swarm] daemons` and `tls`"
                    )
                }
            })
        };
        // Open the socket directly first, because hyper's error for a missing daemon is too vague.
        if let Err(error) = within("connect to the Docker daemon", READ_TIMEOUT, async {
            Ok(match self {
                Self::Local(path) => UnixStream::connect(path).await.map(drop),
                Self::Remote { address, .. } => TcpStream::connect(address).await.map(drop),
            })
        })
        .await?
        {
            return Err(missing(&error));
        }
        let docker = match self {
            Self::Local(path) => {
                Docker::connect_with_unix(path, BOLLARD_TIMEOUT_SECS, API_DEFAULT_VERSION)
            }
            Self::Remote { address, keys } => {
                let http = secured(keys).map_err(|why| missing(&why))?;
                let transport = move |request: BollardRequest| {
                    let answer = http.request(request);
                    async { answer.await.map_err(Bollard::from) }
                };
                let address = Some(format!("https://{address}"));
                Docker::connect_with_custom_transport(
                    transport,
                    address,
                    BOLLARD_TIMEOUT_SECS,
                    API_DEFAULT_VERSION,
                )
            }
        };
        let docker = docker.map_err(|error| missing(&model::with_causes(&error)))?;
        let docker = within(
            "negotiate the API version with the Docker daemon",
            READ_TIMEOUT,
            docker.negotiate_version(),
        )
        .await?;
        let version = within(
            "read the version of the Docker daemon",
            READ_TIMEOUT,
            docker.version(),
        )
        .await?;
        Ok(Client {
            docker,
            version: version.version.unwrap_or_default(),
        })
    }
}

type Secured<B> = legacy::Client<HttpsConnector<HttpConnector>, B>;

/// A client that presents the certificate in `keys`, and trusts only daemons with a certificate signed by `ca.pem`.
/// bollard's own client would also trust every root certificate of this host.
///
/// # Errors
///
/// Says which file cannot be used, and why.
fn secured<B>(keys: &Path) -> Result<Secured<B>, String>
where
    B: hyper::body::Body + Send + 'static + Unpin,
    B::Data: Send,
{
    fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
        let all: Vec<_> = read.map_err(|why| format!("cannot read `{}`: {why}", file.display()))?;
        match all.is_empty() {
            true => Err(format!("`{}` contains no certificate", file.display())),
            false => Ok(all),
        }
    }
    let (ca, cert, key) = (
        keys.join("ca.pem"),
        keys.join("cert.pem"),
        keys.join("key.pem"),
    );
    let unfit = |file: &Path, why: &dyn std::fmt::Display| {
        format!("`{}` cannot be used: {why}", file.display())
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(&ca)? {
        roots.add(root).map_err(|why| unfit(&ca, &why))?;
    }
    let own = certificates(&cert)?;
    let secret = PrivateKeyDer::from_pem_file(&key);
    let secret = secret.map_err(|why| format!("cannot read `{}`: {why}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?
        .with_root_certificates(roots)
        .with_client_auth_cert(own, secret)
        .map_err(|why| unfit(&cert, &why))?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(READ_TIMEOUT));
    tcp.set_nodelay(true);
    // A stream may be silent for days. Without keepalive, it would not end when its node is gone.
    tcp.set_keepalive(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_only()
        .enable_http1()
        .wrap_connector(tcp);
    let mut client = legacy::Client::builder(TokioExecutor::new());
    Ok(client.pool_max_idle_per_host(0).build(https))
}

impl Client {
    /// `None` if the container does not exist.
    pub(super) async fn inspect(
        &self,
        id: &str,
    ) -> Result<Option<ContainerInspectResponse>, Error> {
        let options = None::<InspectContainerOptions>;
        found(
            call(
                "inspect a container",
                READ_TIMEOUT,
                self.docker.inspect_container(id, options),
            )
            .await,
        )
    }

    /// Creates a container, and returns its id.
    pub(super) async fn create(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<String, Call> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.docker.create_container(Some(options), body);
        let created = call("create a container", CHANGE_TIMEOUT, created).await?;
        Ok(created.id)
    }

    /// Attaches to the output of a container and, with `stdin`, to its input.
    pub(super) async fn attach(
        &self,
        id: &str,
        stdin: bool,
    ) -> Result<AttachContainerResults, Error> {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(stdin)
            .stdout(true)
            .stderr(true);
        let attached = self.docker.attach_container(id, Some(options.build()));
        within("attach to a container", CHANGE_TIMEOUT, attached).await
    }

    pub(super) async fn kill(&self, id: &str, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::default().signal(signal);
        let killed = call(
            "signal a container",
            READ_TIMEOUT,
            self.docker.kill_container(id, Some(options.build())),
        )
        .await;
        match killed {
            // The container does not run or does not exist.
            Err(Call::Daemon(404 | 409, _)) => Ok(()),
            other => other.map_err(Error::from),
        }
    }

    /// Removes a container with its anonymous volumes. A running container is killed first.
    pub(super) async fn remove(&self, id: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true);
        let removed = call(
            "remove a container",
            CHANGE_TIMEOUT,
            self.docker.remove_container(id, Some(options.build())),
        )
        .await;
        match removed {
            // Already removed, or another process is removing it.
            Err(Call::Daemon(404, _)) => Ok(()),
            Err(Call::Daemon(409, why)) if why.contains("already in progress") => Ok(()),
            other => other.map_err(Error::from),
        }
    }

    /// Removes a container. After a failure, the container is left to the next sweep.
    pub(super) async fn remove_or_warn(&self, label: &str, id: &str) {
        if let Err(error) = self.remove(id).await {
            tracing::warn!(label, container = id, %error, "cannot remove a container; the next sweep retries");
        }
    }

    /// Returns all containers with these labels.
    pub(super) async fn list(
        &self,
        pairs: &[(&str, &str)],
    ) -> Result<Vec<ContainerSummary>, Error> {
        let filters = labels(pairs);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters);
        within(
            "list containers",
            READ_TIMEOUT,
            self.docker.list_containers(Some(options.build())),
        )
        .await
    }
}

/// A filter for objects with these labels.
pub(super) fn labels(pairs: &[(&str, &str)]) -> HashMap<String, Vec<String>> {
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    HashMap::from([("label".to_owned(), pairs.collect())])
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Call {
    /// The daemon's response, with its HTTP status.
    Daemon(u16, String),
    Other(Error),
}

impl From<Call> for Error {
    fn from(call: Call) -> Self {
        match call {
            Call::Daemon(_, why) => Self::Failed(format!("the Docker daemon says: {why}")),
            Call::Other(error) => error,
        }
    }
}

/// Runs one API call with a deadline.
pub(super) async fn call<T>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, Bollard>>,
) -> Result<T, Call> {
    match timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Bollard::DockerResponseServerError {
            status_code,
            message,
        })) => Err(Call::Daemon(status_code, message.trim().to_owned())),
        Ok(Err(error)) => Err(Call::Other(Error::Failed(format!(
            "cannot {what}: {}",
            model::with_causes(&error)
        )))),
        Err(_) => Err(Call::Other(Error::Timeout {
            what,
            within: limit,
        })),
    }
}

/// Like [`call`], but returns every failure as [`enum@Error`].
pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    future: impl Future<Output = Result<T, Bollard>>,
) -> Result<T, Error> {
    Ok(call(what, limit, future).await?)
}

/// Turns "not found" into `None`.
pub(super) fn found<T>(result: Result<T, Call>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Call::Daemon(404, _)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn start(client: &Client, id: &str) -> Result<(), Call> {
    let options = None::<StartContainerOptions>;
    call(
        "start a container",
        CHANGE_TIMEOUT,
        client.docker.start_container(id, options),
    )
    .await
}
