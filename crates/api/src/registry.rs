//! Servers that registries list, and how one is installed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Enforced, Server, Wrong, schema};

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RegistryServers {
    pub servers: Vec<RegistryEntry>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
    /// Registries that did not answer, and entries that cannot be used.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// A server that a registry lists.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RegistryEntry {
    pub name: String,
    pub title: Option<String>,
    pub description: String,
    pub version: String,
    /// The name of the registry, or its URL.
    pub registry: String,
    /// Where it runs: some of `npm`, `pypi`, `oci`, `mcpb`, `nuget` (here) and `remote` (elsewhere).
    pub runs: Vec<String>,
}

/// A server that a registry lists, and what it takes to install it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RegistryServer {
    #[serde(flatten)]
    pub entry: RegistryEntry,
    pub website: Option<String>,
    pub repository: Option<String>,
    /// Of the entry as it is shown here. An installation that names it installs nothing else.
    pub digest: String,
    /// The ways in which it can be installed, the preferred one first.
    pub options: Vec<InstallOption>,
}

/// One way in which a server can be installed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstallOption {
    /// Names it among the others.
    pub id: String,
    /// `npm`, `pypi`, `oci`, `mcpb`, `nuget` or `remote`.
    pub kind: String,
    /// The package, the image or the URL.
    pub target: String,
    /// The version that is installed; none: the newest one, which is pinned then.
    pub version: Option<String>,
    /// Why it cannot be installed in this way, each with its place in the registry's entry.
    pub refused: Vec<Wrong>,
    /// The values that it needs, as a JSON Schema of `values`. Secrets have the format `password`, paths of the host `path`.
    #[schema(value_type = Object)]
    pub inputs: Value,
    /// Whether it runs in a sandbox on this host.
    pub sandbox: bool,
    /// The hosts that its sandbox reaches: `none`, `open`, or `{"allow": [HOST, …]}`, the hosts that the entry permits.
    #[schema(schema_with = schema::any)]
    pub network: Value,
    /// Paths in its sandbox whose files are kept.
    pub volumes: Vec<String>,
    pub notices: Vec<String>,
}

/// A server to install, with its values.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InstallRequest {
    /// The `id` of one of the options; without it the first one that can be installed.
    pub option: Option<String>,
    /// The `digest` of the entry that was shown.
    pub digest: Option<String>,
    /// The server's name here.
    pub name: Option<String>,
    /// As `inputs` of the option describes them.
    #[schema(value_type = Object)]
    pub values: BTreeMap<String, Value>,
    /// Names of those inputs whose paths the server may write to. Other paths are mounted read-only.
    pub writable: Vec<String>,
}

/// A server that was installed and tried, and is not enabled yet.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Installed {
    pub server: Server,
    /// The tools that it listed in the trial.
    pub tools: Vec<TriedTool>,
    /// Why its tools could not be listed yet: somebody has to sign in to it first.
    pub unseen: Option<String>,
    /// The provider of the sandbox that it was tried in.
    pub provider: Option<String>,
    /// Limits that the sandbox enforces, and those that it cannot.
    pub enforced: Vec<Enforced>,
    /// The hosts that its sandbox reaches: `none`, `open`, or `{"allow": [HOST, …]}`.
    #[schema(schema_with = schema::any)]
    pub network: Value,
    pub volumes: Vec<String>,
    /// Folders and files of the host that it sees, as `HOST:PATH:ro` or `HOST:PATH:rw`.
    pub mounts: Vec<String>,
    /// Names of the project's secrets that were set.
    pub secrets: Vec<String>,
    pub notices: Vec<String>,
}

/// A tool as the trial listed it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TriedTool {
    pub name: String,
    pub title: Option<String>,
    pub description: String,
    /// The server's own hints about it: `readOnlyHint`, `destructiveHint` and the like.
    #[schema(schema_with = schema::optional_object)]
    pub annotations: Option<Value>,
    #[schema(schema_with = schema::any)]
    pub input_schema: Value,
}
