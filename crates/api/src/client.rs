//! Clients of the machine that the gateway runs on.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Unusable, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Clients {
    pub clients: Vec<Client>,
}

/// A client that is installed for the gateway's user.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// As `connect` takes it.
    pub name: String,
    /// As its makers write it.
    pub title: String,
    /// The file with its servers.
    pub file: String,
    /// `connected`, `not_connected`, `removed` (somebody took the entry out of the file), `by_hand` (an entry `toolwharf` that was not
    /// made here) or `unusable`.
    #[schema(schema_with = schema::client_state)]
    pub state: String,
    /// Why it is unusable, with the place and the way out.
    pub problem: Option<String>,
    /// The project that it is connected to; none: it sees everything.
    pub project: Option<String>,
    /// Its other servers, which can be moved.
    pub servers: Vec<String>,
    /// The change that connecting it would make to the file, as a unified diff without secrets; none if nothing would change.
    pub diff: Option<String>,
}

/// How a client is to be connected.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectRequest {
    /// The project whose servers it sees; by default it sees everything.
    #[serde(default)]
    pub project: Option<String>,
    /// Writes the gateway's address and a key into the file, and not a command.
    #[serde(default)]
    pub http: bool,
    /// Moves the client's own servers into Toolwharf.
    #[serde(default, rename = "move")]
    pub take: bool,
    /// Only shows what would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// The steps of connecting a client, done or planned.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Connected {
    pub name: String,
    /// The file that was changed.
    pub file: String,
    /// The change, as a unified diff without secrets; empty if it was connected in this way already.
    pub diff: String,
    /// The client's servers that are in Toolwharf now, and no longer in the file.
    pub moved: Vec<String>,
    /// Its servers that were to be moved, and stay.
    pub staying: Vec<Unusable>,
    /// Doubts about an entry or a file that do not stop it.
    pub warnings: Vec<String>,
}

/// The steps of disconnecting a client, done or planned.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Disconnected {
    pub name: String,
    /// The file that was changed.
    pub file: String,
    /// `whole`: the file is as it was before, to the byte; `entry`: it was changed meanwhile, so only the entry was taken out; `nothing`:
    /// there was nothing to give back.
    #[schema(schema_with = schema::restored)]
    pub restored: String,
    /// Servers that are in the client's file again.
    pub put_back: Vec<String>,
    /// Servers that are no longer in Toolwharf.
    pub removed: Vec<String>,
}
