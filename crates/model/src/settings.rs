//! Toolwharf's own settings, with their defaults.
//!
//! Invariants: [`Settings::default`] is a working, loopback-only gateway, and every limit is
//! finite. Deliberately absent: reading a file (the binary's `config` does) and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    AuditBodies, Breaker, Hidden, Login, NamingPolicy, OidcSettings, Packages, Pinning, ProjectId,
    Provider, ServerName, StartPolicy, ToolRef,
};

/// Settings of one running Toolwharf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address and port of the one listener, as `host:port`.
    pub listen: String,
    pub naming: NamingPolicy,
    pub start: StartPolicy,
    pub pinning: Pinning,
    /// `Origin` values besides those of loopback that browsers may send; exact match.
    pub allowed_origins: BTreeSet<String>,
    /// `Host` values besides those of loopback and of `listen`; without a port any port.
    pub allowed_hosts: BTreeSet<String>,
    /// Where state is kept; `None` is the user's data directory.
    pub data_dir: Option<PathBuf>,
    /// `postgres://…`; `None` is a SQLite file in the data directory. May hold a password.
    pub database_url: Option<String>,
    /// Whether MCP needs a key on loopback, too.
    pub require_key: bool,
    /// Where clients and browsers reach this gateway, as `https://…` without a path or a slash at the end; `None`: where it listens.
    pub public_url: Option<String>,
    /// Where issuers find our client metadata document, if not below `public_url`.
    pub client_metadata_url: Option<String>,
    /// Issuers whose tokens are taken, by the name that stands in the ids of their people.
    pub oidc: BTreeMap<String, OidcSettings>,
    /// The sign-ins behind `${login:NAME}`, by name.
    pub logins: BTreeMap<String, Login>,
    /// Extensions that shared servers are told of, as clients have them: name and settings, which are JSON text.
    pub extensions: BTreeMap<String, String>,
    /// Of servers that name none.
    pub breaker: Breaker,
    pub defaults: Defaults,
    pub limits: Limits,
    pub audit: Audit,
    pub hosting: HostingSettings,
    /// The agent that can be talked to; `None`: no model is set up.
    pub agent: Option<AgentSettings>,
    /// Registries of servers besides the built-in one: their URLs, by name.
    pub registries: BTreeMap<String, String>,
    pub log: Log,
    pub console: Console,
    pub replicas: Replicas,
    pub projects: BTreeMap<ProjectId, ProjectView>,
}

/// What holds for servers of the configuration file that are launched and say nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Whether they run in a sandbox.
    pub sandbox: bool,
    pub packages: Packages,
}

/// Bounds on what others can make Toolwharf hold or wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest HTTP request body, in bytes; more is 413.
    pub max_body_bytes: usize,
    /// Request bodies of all connections together, in bytes; what finds no room is 503.
    pub max_bodies_bytes: usize,
    /// What waits for clients to read it, over all of them, in bytes; past it the slowest are cut off.
    pub max_unread_bytes: usize,
    /// Client connections at a time; fewer if the limit of open files does not allow so many.
    pub max_connections: usize,
    /// Longest line or event from a server, in bytes; a longer one ends its call.
    pub max_line_bytes: usize,
    /// Deepest nesting of JSON in a message.
    pub max_depth: usize,
    /// Client sessions at a time.
    pub max_sessions: usize,
    /// Resources that clients watch at a time, counted for each client.
    pub max_subscriptions: usize,
    /// Instances of one server with `sharing = "session"` at a time.
    pub max_session_instances: usize,
    /// Calls that wait for one server; one more is answered at once with an error.
    pub queue_len: usize,
    /// Messages that wait for one slow client before its stream is closed.
    pub client_queue_len: usize,
    /// A client session without a request or an open stream ends after this.
    pub session_idle: Duration,
    /// A server that is started at its first use is stopped once nobody used it for this long, at most twice
    /// that.
    pub server_idle: Duration,
    /// How long a call that waits for the client's input is held.
    pub held_call_ttl: Duration,
    /// Calls held like that at a time.
    pub max_held_calls: usize,
    /// From the polite request to stop until the kill.
    pub stop_grace: Duration,
    /// How long calls in flight may finish when Toolwharf stops.
    pub drain: Duration,
}

/// What is recorded of tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Whether a call is recorded before its server hears of it, and its outcome before its caller does.
    pub enabled: bool,
    pub bodies: AuditBodies,
    /// How long records are kept; `None`: for ever.
    pub retention: Option<Duration>,
}

/// What hosted servers may run on, and get to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostingSettings {
    /// What may be used; a server gets the strongest of them that works and suits it.
    pub providers: BTreeSet<Provider>,
    /// Where the Docker Engine API is, as `unix:///…`; `None`: `DOCKER_HOST`, or the usual socket.
    pub docker_host: Option<String>,
    /// The names under which Docker knows the runtimes of [`Provider::Gvisor`], [`Provider::Firecracker`] and
    /// [`Provider::Runc`].
    pub docker_runtimes: BTreeMap<Provider, String>,
    /// Docker's network for servers that may reach everything.
    pub docker_network: String,
    /// The key to E2B; without one there is no [`Provider::E2b`].
    pub e2b_api_key: Option<Hidden>,
    /// Where E2B's REST API is.
    pub e2b_url: String,
    /// Where one address serves all of E2B's sandboxes; `None`: each has a name of its own.
    pub e2b_sandbox_url: Option<String>,
    pub kubernetes: KubernetesSettings,
    pub swarm: SwarmSettings,
    /// Bytes that the installation of one package may write to the disk, caches included.
    pub package_bytes: u64,
    /// Files that it may make.
    pub package_files: u64,
    /// Hosts, as `host` or `host:port`, that installations reach over HTTPS besides the registries that npm and uv are configured for.
    pub package_hosts: Vec<String>,
    /// Paths of the host below which servers may mount something.
    pub mounts: Vec<PathBuf>,
    /// Where health warnings are sent to, as JSON.
    pub webhook: Option<String>,
}

/// Which cluster [`Provider::Kubernetes`] is, and what servers get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// `None`: `KUBECONFIG`, `~/.kube/config`, or the cluster that this process runs in.
    pub kubeconfig: Option<PathBuf>,
    /// `None`: the kubeconfig's current one.
    pub context: Option<String>,
    /// `None`: that of the context, or of this process's own pod.
    pub namespace: Option<String>,
    /// `None`: the cluster's default runtime.
    pub runtime_class: Option<String>,
    /// Of volumes; `None`: the cluster's default class.
    pub storage_class: Option<String>,
    /// An image that looks at the kernel of each pod; `None`: nobody does.
    pub probe_image: Option<String>,
    /// The number of the user that servers are; `None`: their image's, which may be root.
    pub user: Option<u32>,
    /// The namespace whose resources `MCPServer` are servers of this gateway; `None`: none are.
    pub watch_namespace: Option<String>,
}

/// Which swarm [`Provider::Swarm`] is, and what servers get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmSettings {
    /// The daemons of its nodes, as `unix:///…` or `tcp://…`; none: the one that [`Provider::Runc`] uses.
    pub daemons: Vec<String>,
    /// The directory of the certificates for `tcp://…`.
    pub tls: Option<PathBuf>,
    /// What Swarm has to find of a node.
    pub constraints: Vec<String>,
    /// Whether the kernel of servers has to be gVisor's.
    pub gvisor: bool,
    /// Of servers that may reach everything.
    pub network: String,
    /// What brings volumes to any node; `None`: they stay on the node where they were made.
    pub volume_driver: Option<String>,
    pub volume_options: BTreeMap<String, String>,
}

/// An agent: its model, and how far it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    pub api: ModelApi,
    /// The model's name, as its API knows it.
    pub model: String,
    /// Where the API is; `None`: where its provider has it.
    pub base_url: Option<String>,
    /// `None`: the secret or the variable that is called as its provider calls it.
    pub api_key: Option<Hidden>,
    /// The system prompt.
    pub system: Option<String>,
    /// The most tokens of one answer.
    pub max_tokens: Option<u32>,
    /// The most requests to the model for one message.
    pub max_turns: u32,
    /// Turns of conversations that are under way at a time; one more is answered at once with an error.
    pub max_chats: usize,
    /// How its servers are started at its first chat: [`StartPolicy::Sequential`] or [`StartPolicy::Parallel`].
    pub start: StartPolicy,
    /// Tools of this process that it has, by name.
    pub native: BTreeSet<String>,
    /// What a million tokens cost, by model: input, output, read from the cache, written to it; each in millionths of
    /// a currency.
    pub prices: BTreeMap<String, [u64; 4]>,
}

/// What a model is spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelApi {
    /// Anthropic's Messages API.
    #[default]
    Anthropic,
    /// OpenAI's chat completions, which local model servers speak too.
    OpenAi,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            api: ModelApi::default(),
            model: String::new(),
            base_url: None,
            api_key: None,
            system: None,
            max_tokens: None,
            max_turns: 20,
            max_chats: 32,
            start: StartPolicy::Sequential,
            native: BTreeSet::new(),
            prices: BTreeMap::new(),
        }
    }
}

/// Where the console draws MCP Apps: on another origin than its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console {
    /// Address and port, as `host:port`; `None`: beside the gateway.
    pub apps_listen: Option<String>,
    /// Where browsers reach it, as `https://…` without a path; `None`: where it listens, if that is loopback.
    pub apps_url: Option<String>,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A level, or a filter such as `info,engine=debug`.
    pub level: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Several gateways on one Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// A replica that the database has not heard of for so long is lost, and what it held is free.
    pub lease: Duration,
    /// Where this replica listens for the others; by default on its address on the way to the database, on a free port.
    pub listen: Option<SocketAddr>,
    /// Which of them run a project's server that is launched.
    pub project_servers: RunBy,
}

/// Which of several replicas run a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunBy {
    /// Each that is asked for it.
    #[default]
    Each,
    /// The first that is asked for it; the others use it there.
    One,
}

/// What callers of one project see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectView {
    /// The servers it sees; `None` is every server that does not exclude it.
    pub servers: Option<BTreeSet<ServerName>>,
    /// Overrides [`Settings::naming`].
    pub naming: Option<NamingPolicy>,
    /// Overrides [`AgentSettings::start`].
    pub start: Option<StartPolicy>,
    pub disabled_tools: BTreeSet<ToolRef>,
}

impl Settings {
    pub const DEFAULT_LISTEN: &'static str = "127.0.0.1:6280";
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Self::DEFAULT_LISTEN.to_owned(),
            naming: NamingPolicy::default(),
            start: StartPolicy::default(),
            pinning: Pinning::default(),
            allowed_origins: BTreeSet::new(),
            allowed_hosts: BTreeSet::new(),
            data_dir: None,
            database_url: None,
            require_key: false,
            public_url: None,
            client_metadata_url: None,
            oidc: BTreeMap::new(),
            logins: BTreeMap::new(),
            extensions: BTreeMap::from([(
                "io.modelcontextprotocol/ui".to_owned(),
                r#"{"mimeTypes":["text/html;profile=mcp-app"]}"#.to_owned(),
            )]),
            breaker: Breaker::default(),
            defaults: Defaults::default(),
            limits: Limits::default(),
            audit: Audit::default(),
            hosting: HostingSettings::default(),
            agent: None,
            registries: BTreeMap::new(),
            log: Log::default(),
            console: Console::default(),
            replicas: Replicas::default(),
            projects: BTreeMap::new(),
        }
    }
}

impl Default for HostingSettings {
    fn default() -> Self {
        Self {
            providers: BTreeSet::from([
                Provider::Gvisor,
                Provider::Firecracker,
                Provider::E2b,
                Provider::Process,
            ]),
            docker_host: None,
            docker_runtimes: BTreeMap::from([
                (Provider::Gvisor, "runsc".to_owned()),
                (Provider::Firecracker, "kata-fc".to_owned()),
                (Provider::Runc, "runc".to_owned()),
            ]),
            docker_network: "bridge".to_owned(),
            e2b_api_key: None,
            e2b_url: "https://api.e2b.app".to_owned(),
            e2b_sandbox_url: None,
            kubernetes: KubernetesSettings::default(),
            swarm: SwarmSettings::default(),
            package_bytes: 2 << 30,
            package_files: 200_000,
            package_hosts: Vec::new(),
            mounts: Vec::new(),
            webhook: None,
        }
    }
}

impl KubernetesSettings {
    /// The user of servers, and the group of their volumes, if the settings name no other.
    pub const USER: u32 = 65_532;
    /// The user of the container that looks at a server. It is above those that servers may have, so no server can end it.
    pub const LOOKER: u32 = 2_000_000_001;
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            runtime_class: Some("gvisor".to_owned()),
            storage_class: None,
            probe_image: None,
            user: Some(Self::USER),
            watch_namespace: None,
        }
    }
}

impl Default for SwarmSettings {
    fn default() -> Self {
        Self {
            daemons: Vec::new(),
            tls: None,
            constraints: Vec::new(),
            gvisor: true,
            network: "bridge".to_owned(),
            volume_driver: None,
            volume_options: BTreeMap::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 * 1024 * 1024,
            max_bodies_bytes: 256 * 1024 * 1024,
            max_unread_bytes: 256 * 1024 * 1024,
            max_connections: 16_384,
            max_line_bytes: 20 * 1024 * 1024,
            max_depth: 128,
            max_sessions: 16_384,
            max_subscriptions: 16_384,
            max_session_instances: 16,
            queue_len: 256,
            client_queue_len: 256,
            session_idle: Duration::from_secs(30 * 60),
            server_idle: Duration::from_secs(30 * 60),
            held_call_ttl: Duration::from_secs(5 * 60),
            max_held_calls: 1_024,
            stop_grace: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            enabled: true,
            bodies: AuditBodies::default(),
            retention: Some(Duration::from_secs(90 * 24 * 60 * 60)),
        }
    }
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            listen: None,
            project_servers: RunBy::Each,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::default(),
        }
    }
}
