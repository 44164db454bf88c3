//! Registry entries and their installation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Enforced, Server, Wrong, schema};

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RegistryServers {
    pub servers: Vec<RegistryEntry>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
    /// Registries that did not respond, and entries that cannot be used.
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
    /// The registry's name or URL.
    pub registry: String,
    /// The places where the server can run: `npm`, `pypi`, `oci`, `mcpb` and `nuget` on this host, `remote` elsewhere.
    pub runs: Vec<String>,
}

/// A server that a registry lists, with its installation options.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RegistryServer {
    #[serde(flatten)]
    pub entry: RegistryEntry,
    pub website: Option<String>,
    pub repository: Option<String>,
    /// The date on which the source of an entry of the built-in catalogue was checked, such as `2026-11-28`.
    #[serde(default)]
    pub checked: Option<String>,
    /// A digest of the entry as shown. If an installation request includes it, no other version of the entry is
    /// installed.
    pub digest: String,
    /// The installation options, the preferred one first.
    pub options: Vec<InstallOption>,
}

/// One way to install a server.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstallOption {
    /// The option's id, unique within the entry.
    pub id: String,
    /// `npm`, `pypi`, `oci`, `mcpb`, `nuget` or `remote`.
    pub kind: String,
    /// The package, image or URL.
    pub target: String,
    /// The version to install. `null`: the newest version, which is then pinned.
    pub version: Option<String>,
    /// Why this option cannot be used, with locations in the registry's entry.
    pub refused: Vec<Wrong>,
    /// The input values, as a JSON Schema for `values`. Secrets have the format `password`, paths of the host `path`.
    #[schema(value_type = Object)]
    pub inputs: Value,
    /// `true` if the server runs in a sandbox on this host.
    pub sandbox: bool,
    /// The hosts that the sandbox can reach: `none`, `open`, or `{"allow": [HOST, …]}`, an allow-list from the entry.
    #[schema(schema_with = schema::any)]
    pub network: Value,
    /// Paths in the sandbox with persistent files.
    pub volumes: Vec<String>,
    pub notices: Vec<String>,
    /// Names of secret inputs that are set already, as variables of the gateway or as secrets of the configuration file.
    /// An installation without a project uses these values unless others are given. Only for administrators.
    #[serde(default)]
    pub set: Vec<String>,
}

/// A server to install, with its input values.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InstallRequest {
    /// The `id` of an option. The default is the first option that can be installed.
    pub option: Option<String>,
    /// The `digest` of the entry as shown.
    pub digest: Option<String>,
    /// The name for the server in Toolwharf.
    pub name: Option<String>,
    /// The input values that `inputs` of the option describes.
    #[schema(value_type = Object)]
    pub values: BTreeMap<String, Value>,
    /// Names of the inputs whose paths the server may write to. Other paths are mounted read-only.
    pub writable: Vec<String>,
}

/// A server that was installed and tried, but not yet enabled.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Installed {
    pub server: Server,
    /// The tools that the server listed in the trial.
    pub tools: Vec<TriedTool>,
    /// Why the tools could not be listed: the server needs a sign-in first.
    pub unseen: Option<String>,
    /// The sandbox provider of the trial.
    pub provider: Option<String>,
    /// The limits of the sandbox, and whether they are enforced.
    pub enforced: Vec<Enforced>,
    /// The hosts that the sandbox can reach: `none`, `open`, or `{"allow": [HOST, …]}`.
    #[schema(schema_with = schema::any)]
    pub network: Value,
    pub volumes: Vec<String>,
    /// Files and folders of the host in the sandbox, as `HOST:PATH:ro` or `HOST:PATH:rw`.
    pub mounts: Vec<String>,
    /// Names of the secrets that were set, of the project or of the configuration file.
    pub secrets: Vec<String>,
    pub notices: Vec<String>,
}

/// A tool, as listed in the trial.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TriedTool {
    pub name: String,
    pub title: Option<String>,
    pub description: String,
    /// The server's hints about the tool, such as `readOnlyHint` and `destructiveHint`.
    #[schema(schema_with = schema::optional_object)]
    pub annotations: Option<Value>,
    #[schema(schema_with = schema::any)]
    pub input_schema: Value,
}
