//! The one list of what there is, a table for each noun. Who may use it, its documentation and its tests follow from it.

mod projects;
mod records;
mod registry;
mod servers;

use axum::{
    extract::DefaultBodyLimit,
    routing::{MethodRouter, get, post},
};

use self::{projects::PROJECTS, records::RECORDS, registry::REGISTRY_SERVERS, servers::SERVERS};
use super::{
    AppState, browser, clients, doctor, replicas,
    route::{ADMIN, Kind, Parameter, Route, parameter},
    secrets, status,
};

/// Largest entry of a server, in bytes.
const ENTRY_BYTES: usize = 256 << 10;

/// Largest other body, in bytes.
const BODY_BYTES: usize = 2 << 20;

const DECLARED: Parameter = parameter(
    "format",
    Kind::Format,
    "Answers with declarations for this kind of model or development kit instead",
);

pub(super) const JSON: &[&str] = &["application/json"];

/// All of them, in the order in which they are documented.
pub(super) fn all() -> impl Iterator<Item = &'static Route> {
    [GATEWAY, SERVERS, REGISTRY_SERVERS, RECORDS, PROJECTS]
        .into_iter()
        .flatten()
}

/// The gateway itself.
const GATEWAY: &[Route] = &[
    Route::new(
        "listRoutes",
        "GET /api/v1",
        ADMIN,
        "List these routes",
        || get(super::index),
    )
    .answers::<super::Index>(),
    Route::new(
        "getStatus",
        "GET /api/v1/status",
        ADMIN,
        "Show the state of the gateway",
        || get(status::show),
    )
    .answers::<api::Status>(),
    Route::new(
        "getSettings",
        "GET /api/v1/settings",
        ADMIN,
        "Show the settings",
        || get(status::settings),
    )
    .about("Each with its value and where that is from, and what is wrong with the files.")
    .answers::<api::Settings>(),
    Route::new(
        "examine",
        "GET /api/v1/doctor",
        ADMIN,
        "Find what is wrong",
        || get(doctor::examine),
    )
    .about("What `toolwharf doctor` finds on the gateway's machine.")
    .answers::<api::Report>(),
    Route::new(
        "listReplicas",
        "GET /api/v1/replicas",
        ADMIN,
        "List the gateways that share the database",
        || get(replicas::list),
    )
    .about("With what each of them holds. The list is empty if the database is a file.")
    .answers::<api::Replicas>(),
    Route::new(
        "rotateMasterKey",
        "POST /api/v1/master-key/rotate",
        ADMIN,
        "Seal all secrets with a new master key",
        || post(secrets::rotate),
    )
    .answers::<api::MasterKey>(),
    Route::new(
        "makeBrowserLink",
        "POST /api/v1/browser-links",
        ADMIN,
        "Make a link that signs a browser in, once",
        || post(browser::link),
    )
    .answers::<api::BrowserLink>(),
    Route::new(
        "listClients",
        "GET /api/v1/clients",
        ADMIN,
        "List the clients on the gateway's machine",
        || get(clients::list),
    )
    .about(OF_CLIENTS)
    .answers::<api::Clients>(),
    Route::new(
        "connectClient",
        "POST /api/v1/clients/{client}/connect",
        ADMIN,
        "Connect a client",
        || post(clients::connect),
    )
    .about("Writes an entry for Toolwharf into the client's own file, with a key of its own. The text before is kept.")
    .takes::<api::ConnectRequest>()
    .answers::<api::Connected>(),
    Route::new(
        "disconnectClient",
        "POST /api/v1/clients/{client}/disconnect",
        ADMIN,
        "Disconnect a client",
        || post(clients::disconnect),
    )
    .about("Gives the client back the file that it had, and revokes its key.")
    .answers::<api::Disconnected>(),
];

const OF_CLIENTS: &str = "Those whose files belong to the user who runs the gateway. A gateway that others can reach answers 409.";

/// The route's handler with the limit of its body.
pub(super) fn handler(route: &Route) -> MethodRouter<AppState> {
    // The inner of two limits counts.
    (route.serve)().layer(DefaultBodyLimit::max(BODY_BYTES))
}
