//! Servers: their declaration and their state.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Servers {
    pub servers: Vec<Server>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// A server, from any place of declaration.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Server {
    /// The name of a server of the configuration file. For other servers, an id that is never reused.
    pub id: String,
    pub name: String,
    /// The key in the configuration file, if it cannot be a `name`. Otherwise the entry's display name, if it has one.
    pub label: Option<String>,
    /// The project that owns it.
    pub project: Option<String>,
    /// The place of declaration: `file` (the configuration file), `project`, or `registered`
    /// (`POST /api/v1/mcp/servers`).
    pub declared: String,
    /// The file that was changed. Only in the response to a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The product that brought the server.
    pub product: Option<String>,
    /// `project`: a project key declared the server, so its URL may only lead to the public internet.
    pub registered_by: Option<String>,
    pub description: String,
    pub container_type: Option<String>,
    pub enabled: bool,

    /// `stdio`, `http` or `sse`.
    pub transport: String,
    /// The command with its package, module or script and without its other arguments (`npx @scope/server`), the URL
    /// without secrets, or the image.
    pub target: String,
    pub image: Option<String>,
    /// The command without its arguments.
    pub command: Option<String>,
    /// The number of arguments. The arguments are not shown because they may contain secrets.
    pub arguments: usize,
    /// Only the names. Values may be secrets.
    pub environment: Vec<String>,
    /// Only the names. Values may be secrets.
    pub headers: Vec<String>,
    /// `true` if the gateway launches the server and talks to it over standard input and output.
    pub stdio_bridge: bool,
    /// The entry as it was sent, with `${VAR}` not expanded and `•••` in place of secrets. Only for keys that may
    /// change the server, and not for servers of the configuration file.
    #[schema(schema_with = schema::optional_object)]
    pub config: Option<Value>,
    /// `always`, `on-failure`, `unless-stopped` or `no`. `null`: not set, which means `always`.
    pub restart_policy: Option<String>,
    pub max_concurrency: u32,
    pub call_timeout_ms: u64,
    pub start_timeout_ms: u64,
    /// `shared`: clients share a connection. `session`: each client session has its own.
    pub sharing: String,
    /// The projects that see the server. Empty: all projects.
    pub projects: Vec<String>,
    /// The tools that are offered, by their native names. `null`: all.
    pub enabled_tools: Option<Vec<String>>,
    /// Tools that are not offered, even if they are in `enabled_tools`.
    pub disabled_tools: Vec<String>,

    /// The sandbox provider of the running or most recent instance. Before the first start: the requested provider, or
    /// `any`. `null`: the server has no sandbox.
    pub sandbox: Option<String>,
    pub resource_limits: Option<Limits>,
    pub volumes: Vec<String>,
    pub ports: Vec<Port>,
    /// The hosts that the sandbox can reach: `none`, `open`, or `{"allow": [HOST, …]}`.
    #[schema(schema_with = schema::any)]
    pub network: Value,

    /// `running`, `starting`, `idle`, `backoff` (will be retried automatically), `unavailable` (circuit breaker open after
    /// repeated failures), `blocked` (waiting does not help), `unresponsive`, `restarting`, `stopping`, `stopped`,
    /// `failed`, `unknown`, `disabled` or `unusable`. `not running` without a running gateway.
    pub status: String,
    /// The value of the column `status` of `kb.agent_workspaces`, which other programs read: `registered` (not started
    /// yet), `starting`, `ready`, `unresponsive`, `stopping`, `backoff`, `blocked`, `idle`, `stopped`, `exited`, `failed`
    /// or `unknown`. For servers that are not registered, and so have no row there, the value that it would have.
    pub state: String,
    /// Why the server is not available.
    pub reason: Option<String>,
    /// The variables that its entry needs and that are not set. A secret with this name provides the value. It belongs to
    /// the project that owns the server, or otherwise to the configuration file.
    pub unset: Vec<String>,
    /// Milliseconds until the next attempt, if one is due.
    pub next_attempt_ms: Option<u64>,
    pub pid: Option<u32>,
    pub uptime_seconds: Option<u64>,
    /// Number of starts since the gateway started.
    pub starts: u64,
    /// Number of automatic restarts since a user or the gateway last started the server.
    pub restart_count: u64,
    pub last_crash: Option<Crash>,
    /// Health warnings since the gateway started.
    pub warnings: u64,
    /// The provider of the running or most recent instance.
    pub provider: Option<String>,
    /// Why this provider was chosen.
    pub provider_reason: Option<String>,
    /// The guarantees of the sandbox, and whether each is enforced.
    pub enforced: Vec<Enforced>,
    /// All files that the sandbox makes visible, as folders with exceptions. Absent in lists and events, and if the
    /// provider cannot list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<VisibleFile>,
    /// Paths of the host that the entry mentions but the sandbox does not make visible. `"sandbox": {"show": […]}`
    /// makes them visible.
    pub files_missing: Vec<String>,
    pub usage: Option<Usage>,
    /// `legacy` or `modern`, once known.
    pub era: Option<String>,
    pub protocol_version: Option<String>,
    /// `true` if calls of only one client session run at a time, because the server asks clients for input during
    /// calls.
    pub one_session_at_a_time: bool,
    pub in_flight: usize,
    pub waiting: usize,
    /// Tool calls since the gateway started, as in the call records. Refused calls are not included.
    pub calls: u64,
    /// Tool calls that failed, including those whose tool reported an error (`isError`).
    pub errors: u64,
    /// The fraction of calls that failed, from 0 to 1.
    pub error_rate: f64,
    /// Requests other than tool calls, such as reading a resource.
    pub requests: u64,
    /// Requests that were refused at once because the server was busy, down or stopped.
    pub refused: u64,
    /// The end of a temporary recording of arguments and results. `null`: the settings determine what is recorded.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub bodies_recorded_until: Option<Time>,
    /// The number of tools, including disabled ones.
    pub tools: usize,
    /// The number of tools that clients do not see because their definitions changed or cannot be stored.
    pub kept_back: usize,
    /// What does not work although the server is connected: lists that cannot be fetched, and definitions that are left
    /// out because clients would reject the whole list.
    pub problems: Vec<String>,
    /// Definitions that are offered in a repaired form, and why a server has no tools.
    pub remarks: Vec<String>,

    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Time>,
    /// Remarks about a change. Only in the response to the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// Records the arguments and results of a server's calls for a while, even with `bodies = "digests"`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordingRequest {
    /// For how long, from now on.
    #[schema(minimum = 60, maximum = 86400)]
    pub seconds: u32,
}

/// A visible file, or a folder with all its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VisibleFile {
    /// The path inside the sandbox.
    pub path: String,
    /// `read`, or `write` for reading and writing.
    pub access: FileAccess,
    /// The path on the host. Absent if the file belongs to the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Hidden paths below `path`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// The access of a server to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    Read,
    Write,
}

/// One guarantee of the sandbox, and whether it is enforced for the instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Enforced {
    pub what: String,
    pub holds: bool,
    pub how: String,
}

/// An unexpected exit of a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Crash {
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    pub cause: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub out_of_memory: bool,
    /// `true` if the server was killed because it repeatedly tried to exceed its process limit.
    pub fork_bomb: bool,
    /// The last lines of standard error.
    pub stderr: String,
}

/// The current resource usage of a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// CPU usage in cores, averaged since the previous request.
    pub cpu: Option<f64>,
    pub cpu_seconds: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub memory_peak: u64,
    pub pids: u32,
}

/// The resource limits of a server.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub disk: u64,
    pub pids: u32,
}

/// A port that the server listens on inside its sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Port {
    pub port: u16,
    /// The address on this host that leads to the port.
    pub address: Option<String>,
    /// Why a different address is advisable, and how to change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// The result of removing a server from the configuration file.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// The file that listed the server.
    pub file: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Events {
    pub events: Vec<Event>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// An event in the life of a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub id: String,
    pub kind: String,
    #[schema(value_type = Object)]
    pub detail: Value,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}

/// A configuration file whose servers are to be added.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Import {
    /// The source of the text, for messages.
    #[serde(default)]
    pub from: String,
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    pub file: String,
    pub added: Vec<String>,
    /// Servers that already exist with the same entry.
    pub unchanged: Vec<String>,
    /// Servers that already exist with a different entry, which is kept.
    pub clashes: Vec<String>,
    pub refused: Vec<Unusable>,
    /// Entries that were left out, such as an entry for Toolwharf itself.
    #[serde(default)]
    pub skipped: Vec<Unusable>,
    /// Servers that were added but disabled, with what they lack.
    #[serde(default)]
    pub off: Vec<Unusable>,
    /// Keys of added servers that were dropped or have a different meaning in Toolwharf.
    #[serde(default)]
    pub notes: Vec<Unusable>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A remark about one imported server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Unusable {
    pub name: String,
    pub why: String,
    /// The variables that are not set, if the server lacks nothing else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
}

/// A server's entry as it is stored, with `•••` in place of secrets. A masked value that is sent back keeps the secret
/// if the server and the field are the same.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeclaredEntry {
    /// The place of declaration: `file`, `project` or `registered`.
    pub declared: String,
    /// The configuration file that contains the entry.
    pub file: Option<String>,
    #[schema(value_type = Object)]
    pub entry: Value,
}

/// The effect of a new entry.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EntryChange {
    /// `true` if the entry was saved. A dry run saves nothing.
    pub saved: bool,
    /// A diff from the old entry to the new one, without secrets. Empty if nothing changes.
    pub diff: String,
    /// Possible mistakes in the entry, and errors that prevent the file from taking effect.
    pub notices: Vec<String>,
}

/// The effect of a sandbox on a server that has none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Confinement {
    /// Empty if the server has a sandbox already, or is not a command.
    pub losses: Vec<Loss>,
    /// Why the server would not start in a sandbox.
    pub refused: Vec<String>,
    /// The files that the server would see. Empty for a package, which the sandbox shows when it is installed.
    pub files: Vec<VisibleFile>,
    /// Paths of the host that the entry mentions but the sandbox would not show.
    pub files_missing: Vec<String>,
}

/// Something that a server could not use in a sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Loss {
    pub what: String,
    /// The keys of the entry that restore it, or another way out.
    pub remedy: Option<String>,
    /// Keys of an entry that restore it: adding them to the entry keeps what would be lost.
    #[schema(schema_with = schema::optional_object)]
    pub keep: Option<Value>,
}
