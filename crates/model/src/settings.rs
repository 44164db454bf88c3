//! Toolwharf's settings with their defaults.
//!
//! Invariants: [`Settings::default`] is a working gateway on loopback only, and every limit is finite. Deliberately
//! absent: reading files (see the crate `config`), and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    AddressRange, AuditBodies, Breaker, Hidden, HostEnv, Login, NamingPolicy, OidcSettings,
    Packages, Pinning, ProjectId, Provider, ServerName, StartPolicy, ToolMode, ToolRef, naming,
};

/// Splits the URL of a gateway, such as `https://example.com/tools`, into its origin and its path prefix. The prefix is
/// empty, or begins with a slash and ends without one.
pub fn origin_and_prefix(url: &str) -> (&str, &str) {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    url.split_at(end)
}

/// The settings of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address and port of the listener, as `host:port`.
    pub listen: String,
    pub naming: NamingPolicy,
    /// Maximum length of an exposed name, in characters, within [`naming::BOUNDS`]. Not applied to names that are
    /// preserved.
    pub max_name_len: usize,
    pub start: StartPolicy,
    /// The tools in the lists of clients that ask for nothing else.
    pub tools: ToolMode,
    /// Tools that lists contain in [`ToolMode::Search`].
    pub listed_tools: BTreeSet<ToolRef>,
    /// The length of a list, in tokens, above which [`ToolMode::Auto`] means [`ToolMode::Search`].
    pub search_above: usize,
    /// A sentence model for searches. `None`: searches use words only.
    pub search_model: Option<PathBuf>,
    /// An endpoint in place of the model.
    pub embeddings: Option<EmbeddingSettings>,
    /// True: searches learn from calls that followed earlier searches.
    pub search_past_calls: bool,
    /// True: clients may run code that calls tools.
    pub code: bool,
    /// The length of a tool's result, in tokens, above which clients get a preview. 0: no bound.
    pub max_result_tokens: usize,
    /// True: in the texts of results, JSON is written in fewer tokens.
    pub compact_results: bool,
    pub results: ResultSettings,
    pub pinning: Pinning,
    /// Additional `Origin` values that browsers may send. Exact match. Loopback origins are always allowed.
    pub allowed_origins: BTreeSet<String>,
    /// Additional `Host` values. Loopback names and the address in `listen` are always allowed. A value without a port
    /// matches any port.
    pub allowed_hosts: BTreeSet<String>,
    /// The directory for state. `None`: the user's data directory.
    pub data_dir: Option<PathBuf>,
    /// `postgres://…`, which may contain a password. `None`: a SQLite file in the data directory.
    pub database_url: Option<String>,
    /// True: MCP requires a key on loopback too.
    pub require_key: bool,
    /// True: an invalid entry of a server makes the whole configuration invalid. False: it only blocks its server.
    pub require_valid_entries: bool,
    /// In an upgrade, servers on the host itself start in the new process before they stop in the old one.
    pub upgrade_overlap: bool,
    /// The URL under which clients and browsers reach this gateway: an origin, with a path if a proxy serves the gateway
    /// below one, and without a trailing slash. `None`: the listen address.
    pub public_url: Option<String>,
    /// The URL where issuers find the client metadata document, unless it is below `public_url`.
    pub client_metadata_url: Option<String>,
    /// TLS of the listener for clients. `None`: plain HTTP.
    pub tls: Option<TlsSettings>,
    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are used.
    pub trusted_proxies: Vec<AddressRange>,
    /// Trusted token issuers, by the name used in the ids of their users.
    pub oidc: BTreeMap<String, OidcSettings>,
    /// The sign-ins for `${login:NAME}`, by name.
    pub logins: BTreeMap<String, Login>,
    /// Client extensions that are announced to shared servers, by name. The settings are JSON text.
    pub extensions: BTreeMap<String, String>,
    /// The circuit breaker for servers that do not set their own.
    pub breaker: Breaker,
    pub defaults: Defaults,
    /// The variables that all launched servers get.
    pub host_env: Arc<HostEnv>,
    pub limits: Limits,
    pub audit: Audit,
    pub backup: BackupSettings,
    pub hosting: HostingSettings,
    /// The agent for chats. `None`: no model is configured.
    pub agent: Option<AgentSettings>,
    /// URLs of additional server registries, by name.
    pub registries: BTreeMap<String, String>,
    pub log: Log,
    pub console: Console,
    pub replicas: Replicas,
    pub projects: BTreeMap<ProjectId, ProjectView>,
}

/// The storage of long results, of which clients get a preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultSettings {
    /// The time for which a result can be read.
    pub keep: Duration,
    /// Maximum bytes of the stored results of one caller in one project. Its oldest ones are removed.
    pub max_bytes: usize,
    /// Maximum bytes of all stored results.
    pub max_total_bytes: usize,
}

/// The files of a listener's certificate. Both are absolute paths of PEM files, and may be symbolic links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate, followed by those of the authorities between it and the root.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// Defaults for launched servers of the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// True: they run in a sandbox.
    pub sandbox: bool,
    pub packages: Packages,
}

/// Limits on the resources that clients and servers can make Toolwharf use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of an HTTP request body, in bytes. Larger ones get 413.
    pub max_body_bytes: usize,
    /// Maximum size of all request bodies together, in bytes. Beyond it, requests get 503.
    pub max_bodies_bytes: usize,
    /// Maximum size of the unread output of all clients, in bytes. Beyond it, the slowest clients are disconnected.
    pub max_unread_bytes: usize,
    /// Maximum number of client connections. Lower if the limit of open files is lower.
    pub max_connections: usize,
    /// Maximum length of a line or event from a server, in bytes. A longer one ends its call.
    pub max_line_bytes: usize,
    /// Maximum nesting depth of JSON in a message.
    pub max_depth: usize,
    /// Maximum number of client sessions.
    pub max_sessions: usize,
    /// Maximum number of resource subscriptions, counted per client.
    pub max_subscriptions: usize,
    /// Maximum number of instances of a server with `sharing = "session"`.
    pub max_session_instances: usize,
    /// Maximum number of calls queued for a server. Further calls fail immediately.
    pub queue_len: usize,
    /// Maximum number of messages queued for a slow client. Beyond it, its stream is closed.
    pub client_queue_len: usize,
    /// A client session ends after this time without a request or an open stream.
    pub session_idle: Duration,
    /// A server that was started at its first use is stopped after being unused for at least this time, and at most
    /// twice that.
    pub server_idle: Duration,
    /// Maximum time that a call may wait for the client's input.
    pub held_call_ttl: Duration,
    /// Maximum number of held calls.
    pub max_held_calls: usize,
    /// Grace period between the request to stop and the kill.
    pub stop_grace: Duration,
    /// Maximum time for running calls to finish when Toolwharf stops.
    pub drain: Duration,
}

/// The recording of tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// True: record each call before its server receives it, and each outcome before the caller does.
    pub enabled: bool,
    pub bodies: AuditBodies,
    /// True: the beginning of error texts is recorded, even if `bodies` is [`AuditBodies::Digests`].
    pub errors: bool,
    /// Retention time of records. `None`: permanently.
    pub retention: Option<Duration>,
}

/// Scheduled backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSettings {
    /// The folder for the files. `None`: no scheduled backups.
    pub folder: Option<PathBuf>,
    /// Time from one backup to the next.
    pub every: Duration,
    /// The number of files to keep. Older ones are removed after each backup.
    pub keep: usize,
    /// True: the files contain the volumes of hosted servers.
    pub volumes: bool,
}

/// The providers of hosted servers, and their access to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostingSettings {
    /// The allowed providers. A server gets the strongest one that works and supports it.
    pub providers: BTreeSet<Provider>,
    /// The address of the Docker Engine API, as `unix:///…`. `None`: `DOCKER_HOST` or the usual socket.
    pub docker_host: Option<String>,
    /// Docker's names for the runtimes of [`Provider::Gvisor`], [`Provider::Firecracker`] and [`Provider::Runc`].
    pub docker_runtimes: BTreeMap<Provider, String>,
    /// The Docker network for servers with open network access.
    pub docker_network: String,
    /// The E2B API key. Required for [`Provider::E2b`].
    pub e2b_api_key: Option<Hidden>,
    /// The URL of the E2B REST API.
    pub e2b_url: String,
    /// An address that serves all E2B sandboxes. `None`: each sandbox has its own name.
    pub e2b_sandbox_url: Option<String>,
    pub kubernetes: KubernetesSettings,
    pub swarm: SwarmSettings,
    /// Maximum number of bytes that the installation of a package may write to disk, including caches.
    pub package_bytes: u64,
    /// Maximum number of files that it may create.
    pub package_files: u64,
    /// Additional hosts that installations may reach over HTTPS, as `host` or `host:port`. The registries configured
    /// for npm and uv are always allowed.
    pub package_hosts: Vec<String>,
    /// Host paths below which servers may have bind mounts.
    pub mounts: Vec<PathBuf>,
    /// The URL that receives health warnings as JSON.
    pub webhook: Option<String>,
}

/// The cluster for [`Provider::Kubernetes`], and the options of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// `None`: `KUBECONFIG`, `~/.kube/config`, or the cluster in which this process runs.
    pub kubeconfig: Option<PathBuf>,
    /// `None`: the current context of the kubeconfig.
    pub context: Option<String>,
    /// `None`: the namespace of the context, or of this process's pod.
    pub namespace: Option<String>,
    /// `None`: the cluster's default runtime.
    pub runtime_class: Option<String>,
    /// For volumes. `None`: the cluster's default class.
    pub storage_class: Option<String>,
    /// An image that inspects the kernel of each pod. `None`: the kernel is not inspected.
    pub probe_image: Option<String>,
    /// The user id of servers. `None`: the user of the image, which may be root.
    pub user: Option<u32>,
    /// The namespace whose `MCPServer` resources are servers of this gateway. `None`: none.
    pub watch_namespace: Option<String>,
}

/// The swarm for [`Provider::Swarm`], and the options of its services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmSettings {
    /// The daemons of its nodes, as `unix:///…` or `tcp://…`. If empty: the one that [`Provider::Runc`] uses.
    pub daemons: Vec<String>,
    /// The directory with the certificates for `tcp://…`.
    pub tls: Option<PathBuf>,
    /// Placement constraints.
    pub constraints: Vec<String>,
    /// True: servers must run on the kernel of gVisor.
    pub gvisor: bool,
    /// The network for servers with open network access.
    pub network: String,
    /// The driver that makes volumes available on any node. `None`: they stay on the node where they were created.
    pub volume_driver: Option<String>,
    pub volume_options: BTreeMap<String, String>,
}

/// An endpoint for embeddings, with the API of OpenAI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingSettings {
    /// The URL to which `/embeddings` is added.
    pub url: String,
    /// The name of the model in its API.
    pub model: String,
    pub api_key: Option<Hidden>,
}

/// An agent: its model and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    pub api: ModelApi,
    /// The name of the model in its API.
    pub model: String,
    /// The URL of the API. `None`: the provider's.
    pub base_url: Option<String>,
    /// `None`: the secret or variable with the provider's usual name.
    pub api_key: Option<Hidden>,
    /// The system prompt.
    pub system: Option<String>,
    /// Maximum number of tokens per response.
    pub max_tokens: Option<u32>,
    /// Maximum number of model requests per message.
    pub max_turns: u32,
    /// Maximum number of chat turns running at a time. Further ones fail immediately.
    pub max_chats: usize,
    /// How its servers are started for its first chat: [`StartPolicy::Sequential`] or [`StartPolicy::Parallel`].
    pub start: StartPolicy,
    /// Built-in tools that it may use, by name.
    pub native: BTreeSet<String>,
    /// Prices per million tokens, by model: input, output, cache read, cache write. In millionths of a currency unit.
    pub prices: BTreeMap<String, [u64; 4]>,
}

/// The API of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelApi {
    /// Anthropic's Messages API.
    #[default]
    Anthropic,
    /// OpenAI's chat completions, which local model servers support too.
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

/// The separate origin on which the console renders MCP Apps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console {
    /// Address and port, as `host:port`. `None`: next to the gateway.
    pub apps_listen: Option<String>,
    /// The URL for browsers, as `https://…` without a path. `None`: the listen address, if it is loopback.
    pub apps_url: Option<String>,
}

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

/// Settings for several gateways on one Postgres.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// If the database receives no heartbeat for this time, the replica counts as lost, and its leases become free.
    pub lease: Duration,
    /// The address where this replica listens for the others. `None`: its address toward the database, on a free port.
    pub listen: Option<SocketAddr>,
    /// The replicas that run a project's launched server.
    pub project_servers: RunBy,
}

/// The replicas that run a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunBy {
    /// Each replica that needs it.
    #[default]
    Each,
    /// The first replica that needs the server. The other replicas use it through that replica.
    One,
}

/// The view of the callers of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectView {
    /// The visible servers. `None`: every server that does not exclude the project.
    pub servers: Option<BTreeSet<ServerName>>,
    /// Overrides [`Settings::naming`].
    pub naming: Option<NamingPolicy>,
    /// Overrides [`AgentSettings::start`].
    pub start: Option<StartPolicy>,
    pub disabled_tools: BTreeSet<ToolRef>,
    /// Overrides [`Settings::tools`].
    pub tools: Option<ToolMode>,
    /// In addition to [`Settings::listed_tools`].
    pub listed_tools: BTreeSet<ToolRef>,
    /// Overrides [`Settings::code`].
    pub code: Option<bool>,
    /// Overrides [`Settings::max_result_tokens`].
    pub max_result_tokens: Option<usize>,
    /// Overrides [`Settings::compact_results`].
    pub compact_results: Option<bool>,
}

impl Settings {
    pub const DEFAULT_LISTEN: &'static str = "127.0.0.1:6280";
    /// The valid values of [`Settings::max_result_tokens`].
    pub const RESULT_BOUNDS: &'static str =
        "a whole number of tokens from 250 to 10000000, or 0 for no bound";

    /// Returns whether this is a valid value of [`Settings::max_result_tokens`]. A smaller bound would leave no room beside
    /// the note of a preview.
    #[must_use]
    pub fn is_result_bound(tokens: usize) -> bool {
        matches!(tokens, 0 | 250..=10_000_000)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Self::DEFAULT_LISTEN.to_owned(),
            naming: NamingPolicy::default(),
            max_name_len: naming::MAX_LEN - naming::CLIENT_PREFIX.len(),
            start: StartPolicy::default(),
            tools: ToolMode::default(),
            listed_tools: BTreeSet::new(),
            search_above: 10_000,
            search_model: None,
            embeddings: None,
            search_past_calls: false,
            code: false,
            max_result_tokens: 0,
            compact_results: false,
            results: ResultSettings::default(),
            pinning: Pinning::default(),
            allowed_origins: BTreeSet::new(),
            allowed_hosts: BTreeSet::new(),
            data_dir: None,
            database_url: None,
            require_key: false,
            require_valid_entries: false,
            upgrade_overlap: true,
            public_url: None,
            client_metadata_url: None,
            tls: None,
            trusted_proxies: Vec::new(),
            oidc: BTreeMap::new(),
            logins: BTreeMap::new(),
            extensions: BTreeMap::from([(
                "io.modelcontextprotocol/ui".to_owned(),
                r#"{"mimeTypes":["text/html;profile=mcp-app"]}"#.to_owned(),
            )]),
            breaker: Breaker::default(),
            defaults: Defaults::default(),
            host_env: Arc::default(),
            limits: Limits::default(),
            audit: Audit::default(),
            backup: BackupSettings::default(),
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
    /// The default user of servers, and the default group of their volumes.
    pub const USER: u32 = 65_532;
    /// The user of the inspection container in a pod. Its id is above the range for servers, so no server can kill the
    /// container's processes.
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
            errors: true,
            retention: Some(Duration::from_secs(90 * 24 * 60 * 60)),
        }
    }
}

impl Default for ResultSettings {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(60 * 60),
            max_bytes: 64 * 1024 * 1024,
            max_total_bytes: 1024 * 1024 * 1024,
        }
    }
}

impl Default for BackupSettings {
    fn default() -> Self {
        Self {
            folder: None,
            every: Duration::from_secs(24 * 60 * 60),
            keep: 7,
            volumes: false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_a_gateway_has_an_origin_and_perhaps_a_prefix() {
        for (url, origin, prefix) in [
            ("https://a.example", "https://a.example", ""),
            ("http://[::1]:8080/x/y", "http://[::1]:8080", "/x/y"),
            ("", "", ""),
        ] {
            assert_eq!(origin_and_prefix(url), (origin, prefix));
        }
    }
}
