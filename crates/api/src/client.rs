//! MCP clients installed on the gateway's machine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Unusable, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Clients {
    pub clients: Vec<Client>,
}

/// An MCP client installed for the user that runs the gateway.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// The name that `toolwharf connect` takes.
    pub name: String,
    /// The product name, as its vendor writes it.
    pub title: String,
    /// The file that lists the client's servers.
    pub file: String,
    /// `connected`, `not_connected`, `removed` (the entry was deleted from the file), `by_hand` (an entry named
    /// `toolwharf` that the gateway did not write) or `unusable`.
    #[schema(schema_with = schema::client_state)]
    pub state: String,
    /// Why the client is unusable, where the fault is, and how to fix it.
    pub problem: Option<String>,
    /// The project that the client is connected to. `null` if it sees all servers.
    pub project: Option<String>,
    /// The client's other servers, which can be moved to Toolwharf.
    pub servers: Vec<String>,
    /// The change to the file if the client were connected, as a unified diff without secrets. `null` if nothing would
    /// change.
    pub diff: Option<String>,
}

/// How to connect a client.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectRequest {
    /// The project whose servers the client sees. If it is missing, the client sees all servers.
    #[serde(default)]
    pub project: Option<String>,
    /// Write the gateway's URL and a key to the file instead of a command.
    #[serde(default)]
    pub http: bool,
    /// Move the client's own servers to Toolwharf.
    #[serde(default, rename = "move")]
    pub take: bool,
    /// Show the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of connecting a client, or the planned changes of a dry run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Connected {
    pub name: String,
    pub file: String,
    /// The change to the file, as a unified diff without secrets. Empty if the client was already connected in this
    /// way.
    pub diff: String,
    /// Servers that were moved from the client's file to Toolwharf.
    pub moved: Vec<String>,
    /// Servers that could not be moved.
    pub staying: Vec<Unusable>,
    /// Possible mistakes in an entry or a file. They do not prevent the change.
    pub warnings: Vec<String>,
}

/// The result of disconnecting a client, or the planned changes of a dry run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Disconnected {
    pub name: String,
    pub file: String,
    /// `whole`: the file was restored byte for byte. `entry`: the file had been edited since, so only the entry was
    /// removed. `nothing`: there was nothing to restore.
    #[schema(schema_with = schema::restored)]
    pub restored: String,
    /// Servers that were moved back to the client's file.
    pub put_back: Vec<String>,
    /// Servers that were removed from Toolwharf.
    pub removed: Vec<String>,
}
