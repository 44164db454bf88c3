//! Servers: what each is declared to be, and how it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Servers {
    pub servers: Vec<Server>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A server, wherever it is declared.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Server {
    /// Of a server of the configuration file its name; of others an id that is never given again.
    pub id: String,
    pub name: String,
    /// The project that owns it.
    pub project: Option<String>,
    /// Where it is declared: `file` (the configuration file), `project`, or `registered` (`POST /api/v1/mcp/servers`).
    pub declared: String,
    /// The file that was changed, in the answer to a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The product that brought it.
    pub product: Option<String>,
    /// `project`: a key of the project declared it, so that its URL may only lead to the public internet.
    pub registered_by: Option<String>,
    pub description: String,
    pub container_type: Option<String>,
    pub enabled: bool,

    /// `stdio`, `http` or `sse`.
    pub transport: String,
    /// The command without its arguments, the URL without secrets, or the image.
    pub target: String,
    pub image: Option<String>,
    /// The command without its arguments.
    pub command: Option<String>,
    /// How many there are: they may hold secrets.
    pub arguments: usize,
    /// Only the names: values may be secrets.
    pub environment: Vec<String>,
    /// Only the names: values may be secrets.
    pub headers: Vec<String>,
    /// It is launched, and spoken to over its standard streams.
    pub stdio_bridge: bool,
    /// The entry as it was given, `${VAR}` unfilled and with `•••` in the place of secrets. Only for keys that may change it, and
    /// none of the configuration file's.
    #[schema(schema_with = schema::optional_object)]
    pub config: Option<Value>,
    /// `always`, `on-failure`, `unless-stopped` or `no`; `null`: as is usual for its kind.
    pub restart_policy: Option<String>,
    pub max_concurrency: u32,
    pub call_timeout_ms: u64,
    pub start_timeout_ms: u64,
    /// `shared`: clients share a connection; `session`: each client session has its own.
    pub sharing: String,
    /// The projects that see it; empty: all.
    pub projects: Vec<String>,
    pub disabled_tools: Vec<String>,

    /// The provider of its sandbox: of the instance that runs or ran last; before the first start, the one that it asks
    /// for, or `any`. `null`: nothing confines it.
    pub sandbox: Option<String>,
    pub resource_limits: Option<Limits>,
    pub volumes: Vec<String>,
    pub ports: Vec<Port>,
    /// What a sandbox reaches: `none`, `open`, or `{"allow": [HOST, …]}`.
    #[schema(schema_with = schema::any)]
    pub network: Value,

    /// `running`, `starting`, `idle`, `backoff` (tried again by itself), `unavailable` (left alone after failures), `blocked` (waiting alone does not help), `unresponsive`, `restarting`, `stopping`, `stopped`, `failed`, `unknown`, `disabled`, `unusable`; `not running` where no gateway does.
    pub status: String,
    /// Why it is not up.
    pub reason: Option<String>,
    /// Until the next attempt, if one is due.
    pub next_attempt_ms: Option<u64>,
    pub pid: Option<u32>,
    pub uptime_seconds: Option<u64>,
    /// How often it was started since the gateway started.
    pub starts: u64,
    /// How often it was started by itself since it was last started by hand or by the gateway.
    pub restart_count: u64,
    pub last_crash: Option<Crash>,
    /// Health warnings since the gateway started.
    pub warnings: u64,
    /// The provider of the instance that runs, or ran last.
    pub provider: Option<String>,
    /// Why it is this provider.
    pub provider_reason: Option<String>,
    /// What of its sandbox holds, and what does not.
    pub enforced: Vec<Enforced>,
    /// Every file that its sandbox shows it, as folders with exceptions. Absent in lists and events, and where the provider cannot
    /// list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<VisibleFile>,
    /// Paths of the host that its entry mentions and that its sandbox does not show. `"sandbox": {"show": […]}` shows them.
    pub files_missing: Vec<String>,
    pub usage: Option<Usage>,
    /// `legacy` or `modern`, once it is known.
    pub era: Option<String>,
    pub protocol_version: Option<String>,
    /// Only calls of one client session are in flight at a time: it asks clients things in mid-call.
    pub one_session_at_a_time: bool,
    pub in_flight: usize,
    pub waiting: usize,
    pub calls: u64,
    pub errors: u64,
    /// Of all calls, those that ended in an error; 0 to 1.
    pub error_rate: f64,
    /// Tools that it offers, disabled ones included.
    pub tools: usize,
    /// Tools that are kept back: their definitions changed, or cannot be remembered.
    pub kept_back: usize,

    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub updated_at: Option<Time>,
    /// What else there is to say of a change, in the answer to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// A file that a server sees, or a folder with everything in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VisibleFile {
    /// Inside of the sandbox.
    pub path: String,
    /// `read`, or `write` for both.
    pub access: FileAccess,
    /// Where it is on the host. Absent: it is the sandbox's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Paths below `path` that are not visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// What a server may do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    Read,
    Write,
}

/// Whether one promise of a sandbox holds for the instance.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Enforced {
    pub what: String,
    pub holds: bool,
    pub how: String,
}

/// An end of a server that should not have been.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Crash {
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    pub cause: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub out_of_memory: bool,
    /// It was killed for asking for more processes than its limit, again and again.
    pub fork_bomb: bool,
    /// The last lines of its stderr.
    pub stderr: String,
}

/// What a server uses at the moment.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Cores, since it was last asked for.
    pub cpu: Option<f64>,
    pub cpu_seconds: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub memory_peak: u64,
    pub pids: u32,
}

/// What a server may use.
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

/// A port that a server listens on inside of its sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Port {
    pub port: u16,
    /// Where it is reached on this host.
    pub address: Option<String>,
    /// Why that address should be another one, and how to change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// What became of a server of the configuration file that was removed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// The file that it stood in.
    pub file: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Events {
    pub events: Vec<Event>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// Something that happened to a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub id: String,
    pub kind: String,
    #[schema(value_type = Object)]
    pub detail: Value,
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
}

/// Servers of another file that are to be added.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Import {
    /// Where the text is from, for messages.
    #[serde(default)]
    pub from: String,
    pub text: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    pub file: String,
    pub added: Vec<String>,
    /// There already, and the same.
    pub unchanged: Vec<String>,
    /// There already, and different: left as they are.
    pub clashes: Vec<String>,
    pub refused: Vec<Unusable>,
    /// Not for here: Toolwharf itself, say.
    #[serde(default)]
    pub skipped: Vec<Unusable>,
    /// Those that were added switched off, and what they lack.
    #[serde(default)]
    pub off: Vec<Unusable>,
    /// What of those that were added is not taken over, or means something else here.
    #[serde(default)]
    pub notes: Vec<Unusable>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What there is to say about a server of an import.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Unusable {
    pub name: String,
    pub why: String,
}

/// A server's entry as it is kept, with `•••` in the place of secrets. A masked value that is sent back is kept if it is for the same
/// server and the same field.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeclaredEntry {
    /// `file`, `project` or `registered`: where it is declared.
    pub declared: String,
    /// The configuration file that it stands in.
    pub file: Option<String>,
    #[schema(value_type = Object)]
    pub entry: Value,
}

/// What another entry changes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EntryChange {
    /// Whether it is saved; a trial saves nothing.
    pub saved: bool,
    /// From the entry before to this one, without secrets; empty if nothing changes.
    pub diff: String,
    /// What is doubtful but works, and what keeps the file from being in force.
    pub notices: Vec<String>,
}
