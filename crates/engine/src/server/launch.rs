//! Creates a live connection from a server's spec.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp::{
    Era,
    chain::{self, Blocked},
    client::{
        Ambient, CallError, Client, ConnectError, Connector, Identity, Options, PROBE_TIMEOUT,
        SignIn, Stray, Target,
    },
};
use model::{EraPolicy, Launch, Origin, Place, Provider, Reach, ServerSpec, Surroundings};
use parking_lot::Mutex;
use runtime::{
    Exit, Fence, Handle, Tail, Unit, VisibleFiles,
    diagnosis::{START_LINES, diagnose},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::server::{
    advice::{ended, explained},
    connection::{Connection, Placement},
    gate::RemoteReplica,
    logins::{Issued, Logins},
    patience::Patience,
    runtimes::Runtimes,
};

/// Capabilities that a shared connection declares on behalf of all clients. If the calling client did not declare one,
/// each request that needs it is refused.
pub(crate) const SHARED_CAPABILITIES: &str =
    r#"{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}"#;

/// Characters shown of an output line that is not a message.
const PRINTED_CHARS: usize = 200;
/// Maximum wait for the exit of an instance that could not be connected to, and of one whose output has ended. An exit
/// counts once everything is cleaned up, which takes seconds for a sandbox on a busy machine.
const EXIT_WAIT: Duration = Duration::from_millis(500);
const EXIT_WAIT_AFTER_OUTPUT: Duration = Duration::from_secs(10);
/// Delay between attempts to reach an HTTP server that is starting.
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Interval between checks whether the host now has what a server needs.
const RECHECK_DELAY: Duration = Duration::from_secs(60);
const PORT_RECHECK_DELAY: Duration = Duration::from_secs(5);

/// Creates a live connection to an instance from a server's spec. [`Launcher`] is the real implementation; tests use
/// scripted servers.
pub trait Connect: Send + Sync {
    /// Starts or reaches the server and connects to it, declaring `capabilities` (JSON text). Requests carry the tokens
    /// of the sign-in of `whose` (`None`: of the shared one). The error's reason contains no secret of `spec`.
    ///
    /// # Cancel safety
    /// If this is dropped before it completes, the started instance is stopped. A caller that has to wait for the end
    /// of the instance finds it in `launched`.
    fn connect<'a>(
        &'a self,
        spec: &'a ServerSpec,
        whose: Option<&'a Arc<str>>,
        capabilities: &'a str,
        launched: &'a Launched,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>>;

    /// Connects to the gateway that runs the server.
    fn reach<'a>(
        &'a self,
        _spec: &'a ServerSpec,
        elsewhere: &'a RemoteReplica,
        _capabilities: &'a str,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>> {
        Box::pin(async { Err(StartError::new(elsewhere.why.as_str())) })
    }
}

/// The instance started last while connecting, and its fencing token.
#[derive(Default)]
pub struct Launched {
    handle: Mutex<Option<Handle>>,
    fence: Option<Fence>,
}

impl Launched {
    pub(crate) fn under(fence: Option<Fence>) -> Self {
        let handle = Mutex::default();
        Self { handle, fence }
    }

    pub fn put(&self, handle: &Handle) {
        *self.handle.lock() = Some(handle.clone());
    }

    pub(crate) fn take(&self) -> Option<Handle> {
        let mut launched = self.handle.lock();
        launched.take()
    }
}

/// Connects to instances started here and to URLs. Holds what the connections share.
pub(crate) struct Launcher {
    pub(crate) runtimes: Arc<Runtimes>,
    /// Limits how many sandboxes start at the same time, since starting one is CPU-intensive.
    pub(crate) starting: Semaphore,
    /// For servers of other parties.
    pub(crate) connector: Connector,
    /// For launched servers and other replicas, which are never reached through a proxy.
    pub(crate) direct: Connector,
    pub(crate) logins: Arc<dyn Logins>,
    pub(crate) identity: Identity,
    pub(crate) max_message: usize,
    pub(crate) max_depth: usize,
    pub(crate) stop_grace: Duration,
}

/// An instance that was started but not yet connected to.
struct Started {
    target: Target,
    handle: Handle,
    /// The first line on the instance's standard output that was not a message.
    printed: Printed,
    hosted: Option<Arc<Placement>>,
}

/// The first line of a server's standard output that is not a message, shortened.
#[derive(Clone, Default)]
struct Printed(Arc<OnceLock<String>>);

impl Printed {
    /// The handler of such lines. It also writes them to the instance's log.
    fn of(&self, handle: &Handle) -> Stray {
        let (first, note) = (self.0.clone(), handle.note());
        Box::new(move |line| {
            let line = String::from_utf8_lossy(line);
            first.get_or_init(|| line.chars().take(PRINTED_CHARS).collect());
            note(&format!("[stdout] {line}"));
        })
    }
}

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get() {
            Some(line) => write!(
                f,
                "; it printed `{line}` on its standard output, which is for MCP messages only (diagnostics belong on standard error)"
            ),
            None => Ok(()),
        }
    }
}

/// Why a server could not be started or reached.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct StartError {
    /// May be shown to clients: contains no output of the server.
    pub reason: Arc<str>,
    /// The end of the server's stderr, for logs and operators.
    pub stderr: Option<Tail>,
    /// How the instance exited, if it did by itself.
    pub exit: Option<Exit>,
    /// Nothing was started because the request cannot be met.
    pub refused: Option<Refused>,
    /// Set if waiting alone does not help.
    pub hindrance: Option<Hindrance>,
    /// The server is a gateway that must not be behind this one.
    pub blocked: Option<Blocked>,
}

/// An obstacle to starting a server, other than a fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// The server's spec lacks something, such as a secret. Correcting it declares the server again.
    Description,
    /// The host lacks something that the server needs, or has an unsuitable version of it: a command, an image, a
    /// limit.
    Host,
    /// A port is in use. It may be free soon.
    Port,
    /// A user has to sign in to the server.
    Login,
}

impl Hindrance {
    /// Delay before the next check whether the obstacle is gone. `None`: no check.
    pub(crate) fn again(self) -> Option<Duration> {
        match self {
            Self::Description | Self::Login => None,
            Self::Host => Some(RECHECK_DELAY),
            Self::Port => Some(PORT_RECHECK_DELAY),
        }
    }
}

/// The part of a registration that a runtime does not support.
#[derive(Clone, Debug)]
pub struct Refused {
    /// A JSON pointer into the registration.
    pub pointer: &'static str,
    pub why: Arc<str>,
}

impl Refused {
    /// `None`: a later attempt may work, or the registration is not at fault.
    fn of(error: &runtime::Error) -> Option<Self> {
        let (pointer, why) = match error {
            runtime::Error::Refused { field, why } => {
                let pointer = match *field {
                    "image" => "/image",
                    "command" => "/command",
                    "ports" => "/ports",
                    "volumes" => "/volumes",
                    "mounts" => "/mounts",
                    "network" => "/network",
                    "environment" => "/environment",
                    "memory" | "limits.memory" => "/resource_limits/memory",
                    _ => return None,
                };
                (pointer, why.clone())
            }
            runtime::Error::NotEnforced { what, .. } => {
                let pointer = match *what {
                    "cpu" => "/resource_limits/cpu",
                    "memory" => "/resource_limits/memory",
                    "disk" => "/resource_limits/disk",
                    "pids" => "/resource_limits/pids",
                    _ => "/resource_limits/strict",
                };
                (pointer, error.to_string())
            }
            _ => return None,
        };
        let why = why.into();
        Some(Self { pointer, why })
    }
}

impl StartError {
    /// An error with only a reason.
    #[must_use]
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
            stderr: None,
            exit: None,
            refused: None,
            hindrance: None,
            blocked: None,
        }
    }

    /// The obstacle to starting the server, if waiting alone does not remove it.
    pub(crate) fn hindrance(&self) -> Option<Hindrance> {
        let refused = self.refused.as_ref();
        let of_host = refused.map(|refused| match refused.pointer {
            "/ports" => Hindrance::Port,
            _ => Hindrance::Host,
        });
        self.hindrance.or(of_host)
    }

    pub(crate) fn hindered(reason: impl Into<Arc<str>>, hindrance: Hindrance) -> Self {
        Self {
            hindrance: Some(hindrance),
            ..Self::new(reason)
        }
    }

    fn of(error: &ConnectError) -> Self {
        match error {
            ConnectError::Call(CallError::SignIn(why)) => Self::of_sign_in(why),
            error => Self {
                blocked: blocked(error),
                ..Self::new(error.to_string())
            },
        }
    }

    pub(crate) fn of_sign_in(why: &SignIn) -> Self {
        Self {
            hindrance: why.is_needed.then_some(Hindrance::Login),
            ..Self::new(why.reason.clone())
        }
    }
}

fn blocked(error: &ConnectError) -> Option<Blocked> {
    match error {
        ConnectError::Blocked(blocked) => Some(blocked.clone()),
        _ => None,
    }
}

impl Connect for Launcher {
    fn connect<'a>(
        &'a self,
        spec: &'a ServerSpec,
        whose: Option<&'a Arc<str>>,
        capabilities: &'a str,
        launched: &'a Launched,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>> {
        Box::pin(async move {
            let issued = self.issue(spec, whose).await?;
            let filled = issued.as_ref().map(|issued| with_token(spec, issued));
            let spec = filled.as_ref().unwrap_or(spec);
            let connecting = self.connect_as_configured(spec, whose, capabilities, launched);
            let connected = connecting.await.map(|(connection, ambient)| {
                let whose = whose.cloned();
                let connection = Connection {
                    issued,
                    whose,
                    ..connection
                };
                (connection, ambient)
            });
            // Reasons contain the command or the URL, where secrets may have been filled in (P04).
            connected.map_err(|error| StartError {
                reason: spec.redact(&error.reason).into(),
                stderr: error
                    .stderr
                    .map(|tail| tail.replaced(|text| spec.redact(text))),
                refused: error.refused.map(|refused| Refused {
                    why: spec.redact(&refused.why).into(),
                    ..refused
                }),
                ..error
            })
        })
    }

    fn reach<'a>(
        &'a self,
        spec: &'a ServerSpec,
        elsewhere: &'a RemoteReplica,
        capabilities: &'a str,
    ) -> BoxFuture<'a, Result<(Connection, Ambient), StartError>> {
        Box::pin(async move {
            let mut options = self.options(spec, capabilities, Some(Era::Modern));
            options.sign = Some(elsewhere.sign.clone());
            // The other gateway belongs to this installation and has the same place in the chain of gateways.
            options.identity.chain = None;
            let url = elsewhere.url.clone();
            let headers = Vec::new();
            let target = Target::Http { url, headers };
            let connected = self.direct.connect(target, &options).await;
            let (client, ambient) = connected.map_err(|error| StartError::of(&error))?;
            let connection = Connection {
                is_elsewhere: true,
                ..Connection::new(client, None, None)
            };
            Ok((connection, ambient))
        })
    }
}

/// Replaces `${login:NAME}` in the launch with the access token.
fn with_token(spec: &ServerSpec, issued: &Issued) -> ServerSpec {
    let mut spec = spec.clone();
    if let Origin::Launch(launch) = &mut spec.origin {
        let launch = Arc::make_mut(launch);
        for variable in launch.login.iter().flat_map(|login| &login.variables) {
            let token = issued.token.reveal().to_owned();
            launch.env.insert(variable.clone(), token);
        }
    }
    spec.secrets.0.insert(issued.token.reveal().to_owned());
    spec
}

impl Launcher {
    /// The access token for the environment of an instance, if it uses one.
    async fn issue(
        &self,
        spec: &ServerSpec,
        whose: Option<&Arc<str>>,
    ) -> Result<Option<Issued>, StartError> {
        let Some(issuing) = self.logins.issue(spec, whose) else {
            return Ok(None);
        };
        let issued = issuing.await.map_err(|why| StartError::of_sign_in(&why))?;
        Ok(Some(issued))
    }

    fn options(&self, spec: &ServerSpec, capabilities: &str, era: Option<Era>) -> Options {
        Options {
            label: spec.name.as_str().into(),
            identity: self.identity.clone(),
            capabilities: capabilities.to_owned(),
            era,
            max_message: self.max_message,
            max_depth: self.max_depth,
            timeout: spec.start_timeout,
            public_only: matches!(&spec.origin, Origin::Remote(remote) if remote.public_only),
            authorize: None,
            sign: None,
        }
    }

    async fn connect_as_configured(
        &self,
        spec: &ServerSpec,
        whose: Option<&Arc<str>>,
        capabilities: &str,
        launched: &Launched,
    ) -> Result<(Connection, Ambient), StartError> {
        if let Some(why) = &spec.unusable {
            return Err(StartError::hindered(why.as_str(), Hindrance::Description));
        }
        let era = match spec.era {
            EraPolicy::Auto => None,
            EraPolicy::Legacy => Some(Era::Legacy),
            EraPolicy::Modern => Some(Era::Modern),
        };
        let remote = match &spec.origin {
            Origin::Remote(remote) => remote,
            Origin::Launch(launch) => {
                let turn = match launch.sandbox() {
                    Some(_) => Some(self.starting.acquire().await),
                    None => None,
                };
                let connecting = self.connect_instance(spec, launch, capabilities, era, launched);
                let mut connecting = std::pin::pin!(connecting);
                // A slow start does not keep other servers from starting.
                let timeout = spec.start_timeout;
                if let Ok(connected) = tokio::time::timeout(timeout, &mut connecting).await {
                    return connected;
                }
                drop(turn);
                return connecting.await;
            }
        };
        let url = remote.url.clone();
        let headers = remote.headers.clone().into_iter().collect();
        let target = match remote.sse {
            true => Target::Sse { url, headers },
            false => Target::Http { url, headers },
        };
        let mut options = self.options(spec, capabilities, era);
        options.authorize = self.logins.authorize(spec, whose);
        match self.connector.connect(target, &options).await {
            Ok((client, ambient)) => Ok((Connection::new(client, None, None), ambient)),
            Err(error) => Err(StartError::of(&error)),
        }
    }

    async fn connect_instance(
        &self,
        spec: &ServerSpec,
        launch: &Arc<Launch>,
        capabilities: &str,
        era: Option<Era>,
        launched: &Launched,
    ) -> Result<(Connection, Ambient), StartError> {
        let began = Instant::now();
        let longest = spec.longest_start();
        match self
            .connect_instance_once(spec, launch, capabilities, era, launched, longest)
            .await
        {
            // It refused `initialize` and then did not answer `server/discover`, perhaps because it had exited. Try
            // `server/discover` on a fresh process that has received nothing else. That needs as long to start, so a
            // process that stays silent is noticed before the start timeout.
            Err((ConnectErrorKind::NotLegacy, refusal)) if era.is_none() => {
                let modern = Some(Era::Modern);
                let longest = longest.min(began.elapsed() + PROBE_TIMEOUT);
                match self
                    .connect_instance_once(spec, launch, capabilities, modern, launched, longest)
                    .await
                {
                    Ok(connected) => Ok(connected),
                    Err((ConnectErrorKind::Other, error)) if error.stderr.is_some() => Err(error),
                    Err(_) => Err(refusal),
                }
            }
            Err((_, error)) => Err(error),
            Ok(connected) => Ok(connected),
        }
    }

    async fn connect_instance_once(
        &self,
        spec: &ServerSpec,
        launch: &Arc<Launch>,
        capabilities: &str,
        era: Option<Era>,
        launched: &Launched,
        longest: Duration,
    ) -> Result<(Connection, Ambient), (ConnectErrorKind, StartError)> {
        let started = self.start(spec, launch, launched.fence.clone()).await;
        let started = started.map_err(|error| (ConnectErrorKind::Other, error))?;
        let Started {
            target,
            handle,
            printed,
            hosted,
        } = started;
        launched.put(&handle);
        let options = self.options(spec, capabilities, era);
        let patience = Patience::new(spec.start_timeout, longest);
        let connected = match target {
            Target::Http { url, .. } => {
                let reaching = self.wait_until_reachable(url, &options, &handle, &patience);
                reaching.await
            }
            target => {
                let options = Options {
                    timeout: longest,
                    ..options
                };
                tokio::select! {
                    connected = self.direct.connect(target, &options) => connected,
                    silent = patience.over(&handle) => Err(silent),
                }
            }
        };
        let failure = match connected {
            Ok((client, ambient)) => {
                return Ok((Connection::new(client, Some(handle), hosted), ambient));
            }
            Err(error) => error,
        };
        let blocked = blocked(&failure);
        // Most failures are exits. Wait for the exit to be noticed, since its code says more than "closed".
        let exit_wait = match &failure {
            ConnectError::Blocked(_) => None,
            ConnectError::Call(CallError::Closed(_)) => Some(EXIT_WAIT_AFTER_OUTPUT),
            _ => Some(EXIT_WAIT),
        };
        let exit = match exit_wait {
            Some(wait) => tokio::time::timeout(wait, handle.exited()).await.ok(),
            None => None,
        };
        let unseen = hosted
            .and_then(|placement| placement.files.clone())
            .map(|files| unseen(&files, &handle.stderr_tail()))
            .unwrap_or_default();
        handle.stop(self.stop_grace).await;
        // The stderr is complete only after the stop.
        let (stderr, text) = (handle.stderr(), handle.stderr_tail());
        let reason = match exit {
            Some(exit) => {
                let what = format!("it ended with {exit} before it answered the handshake");
                explained(&what, exit, Some(launch), &text, START_LINES)
            }
            None => {
                let why = diagnose(&text, START_LINES, Some(launch)).filter(|_| blocked.is_none());
                why.map_or_else(|| failure.to_string(), |why| format!("{why}; {failure}"))
            }
        };
        let reason = format!("{reason}{printed}{unseen}");
        let kind = match failure {
            ConnectError::NotLegacy(_) => ConnectErrorKind::NotLegacy,
            _ => ConnectErrorKind::Other,
        };
        Err((
            kind,
            StartError {
                reason: reason.into(),
                stderr: Some(stderr).filter(|tail| !tail.0.is_empty()),
                exit,
                refused: None,
                hindrance: None,
                blocked,
            },
        ))
    }

    async fn start(
        &self,
        spec: &ServerSpec,
        launch: &Arc<Launch>,
        fence: Option<Fence>,
    ) -> Result<Started, StartError> {
        let choice = self.runtimes.choose(launch).await;
        let choice = choice.map_err(|none| match none.is_lasting {
            true => StartError::hindered(none.why, Hindrance::Host),
            false => StartError::new(none.why),
        })?;
        let surroundings = surroundings(choice.provider.as_ref().map(|(provider, _)| *provider));
        let mut unit = Unit {
            fence,
            ..Unit::new(spec.name.to_string(), launch.completed(surroundings))
        };
        // Passes the chain of gateways to a gateway that is started as a child process.
        if let (Place::Host, Some(own)) = (&launch.place, &self.identity.chain) {
            let env = &mut Arc::make_mut(&mut unit.launch).env;
            env.insert(chain::VARIABLE.to_owned(), own.for_children());
        }
        let instance = choice.runtime.launch(unit).await;
        let instance = instance.map_err(|error| StartError {
            refused: Refused::of(&error),
            hindrance: matches!(error, runtime::Error::Lasting(_)).then_some(Hindrance::Host),
            ..StartError::new(of_installation(model::with_causes(&error)))
        })?;
        let printed = Printed::default();
        let target = match instance.stdio {
            Some(stdio) => Target::Stream {
                reader: stdio.stdout,
                writer: stdio.stdin,
                stray: Some(printed.of(&instance.handle)),
                exit: Some(exit_text(&instance.handle, launch.clone())),
            },
            None => Target::Http {
                url: url(launch, &instance.ports)
                    .ok_or_else(|| StartError::new("the server's port is not reachable"))?,
                headers: Vec::new(),
            },
        };
        let hosted = choice.provider.map(|(provider, why)| {
            Arc::new(Placement {
                provider,
                why,
                enforced: instance.enforced,
                files: instance.files,
                ports: instance.ports.into_iter().collect(),
            })
        });
        Ok(Started {
            target,
            printed,
            handle: instance.handle,
            hosted,
        })
    }

    /// Connects to an HTTP server that may not be listening yet.
    async fn wait_until_reachable(
        &self,
        url: String,
        options: &Options,
        handle: &Handle,
        patience: &Patience,
    ) -> Result<(Client, Ambient), ConnectError> {
        loop {
            let target = Target::Http {
                url: url.clone(),
                headers: Vec::new(),
            };
            let mut options = options.clone();
            let deadline = patience.deadline(handle);
            options.timeout = deadline.saturating_duration_since(Instant::now());
            let failure = match self.direct.connect(target, &options).await {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
            let next = Instant::now() + CONNECT_RETRY_DELAY;
            if handle.exit_status().is_some() || next >= patience.deadline(handle) {
                return Err(failure);
            }
            tokio::time::sleep(CONNECT_RETRY_DELAY).await;
        }
    }
}

/// Puts the cause before the output of npm or uv that the error of an installation quotes.
fn of_installation(error: String) -> String {
    let mut programs = [" npm says: ", " uv says: "].into_iter();
    let said = programs.find_map(|by| error.split_once(by));
    match said.and_then(|(_, said)| diagnose(said, START_LINES, None)) {
        Some(why) => format!("{why}; {error}"),
        None => error,
    }
}

/// Returns the parts of this host that a server on this provider shares.
fn surroundings(provider: Option<Provider>) -> Surroundings {
    match provider {
        None | Some(Provider::Process) => Surroundings::Host,
        Some(Provider::Gvisor | Provider::Firecracker | Provider::Runc) => Surroundings::Container,
        Some(Provider::E2b | Provider::Kubernetes | Provider::Swarm) => Surroundings::Elsewhere,
    }
}

/// Waits for the exit of an instance, and describes it.
fn exit_text(handle: &Handle, launch: Arc<Launch>) -> BoxFuture<'static, String> {
    let exited = handle.exited();
    let handle = handle.clone();
    Box::pin(async move { ended(exited.await, &launch, &handle.stderr_tail()) })
}

/// The URL of an instance that is reached at a port.
fn url(launch: &Launch, ports: &BTreeMap<u16, SocketAddr>) -> Option<String> {
    let Reach::Port { path } = &launch.reach else {
        return None;
    };
    let reached = ports.get(&launch.sandbox()?.ports.first()?.inside)?;
    Some(format!("http://{reached}{path}"))
}

enum ConnectErrorKind {
    NotLegacy,
    Other,
}

/// An id for a temporary sandbox.
pub(crate) fn sandbox_id() -> String {
    let random: [u8; 8] = rand::random();
    format!("look-{}", hex::encode(random))
}

/// A copy of the spec with a separate sandbox, so that stopping one instance does not stop the other.
pub(crate) fn apart(spec: &ServerSpec) -> ServerSpec {
    let mut spec = spec.clone();
    if let Origin::Launch(launch) = &mut spec.origin
        && let Place::Sandbox(sandbox) = &mut Launch::clone(launch).place
    {
        sandbox.id = sandbox_id();
        for port in &mut sandbox.ports {
            port.host = None;
        }
        let place = Place::Sandbox(sandbox.clone());
        Arc::make_mut(launch).place = place;
    }
    spec
}

/// Paths named in an error.
const MAX_UNSEEN: usize = 5;

/// The host paths that the sandbox hid from an exited server although its entry or its stderr names them.
fn unseen(files: &VisibleFiles, stderr: &str) -> String {
    let mut paths = files.missing_in(stderr);
    paths.extend(files.missing.iter().cloned());
    if paths.is_empty() {
        return String::new();
    }
    let shown = paths.iter().take(MAX_UNSEEN);
    let shown: Vec<_> = shown.map(|path| format!("`{}`", path.display())).collect();
    format!(
        "; its sandbox does not show {}: list the paths that the server needs in `\"sandbox\": {{\"show\": […]}}`",
        shown.join(", ")
    )
}
