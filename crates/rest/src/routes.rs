//! All routes, in one table per noun. Access rules, documentation and tests are generated from these tables.

mod projects;
mod records;
mod registry;
mod servers;

use axum::{
    extract::DefaultBodyLimit,
    routing::{MethodRouter, delete, get, post, put},
};

use self::{projects::PROJECTS, records::RECORDS, registry::REGISTRY_SERVERS, servers::SERVERS};
use super::{
    AppState, browser, clients, doctor, replicas,
    route::{ADMIN, Kind, PAGED, Parameter, Route, parameter},
    secrets, status,
};

/// Maximum size of a server entry.
const MAX_ENTRY_BYTES: usize = 256 << 10;

/// Maximum size of other request bodies.
const MAX_BODY_BYTES: usize = 2 << 20;

const DECLARED: Parameter = parameter(
    "format",
    Kind::Format,
    "Returns tool declarations for this model API or development kit instead",
);

pub(super) const JSON: &[&str] = &["application/json"];

/// All routes, in the order of the documentation.
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
    .about("Each setting has its value and the source of the value. Errors in the configuration files are listed.")
    .answers::<api::Settings>(),
    Route::new(
        "examine",
        "GET /api/v1/doctor",
        ADMIN,
        "Check the installation",
        || get(doctor::examine),
    )
    .about("Returns the findings of `toolwharf doctor` on the gateway's machine.")
    .answers::<api::Report>(),
    Route::new(
        "listReplicas",
        "GET /api/v1/replicas",
        ADMIN,
        "List the gateways that share the database",
        || get(replicas::list),
    )
    .about("Each gateway is listed with its leases. The list is empty with SQLite.")
    .answers::<api::Replicas>(),
    Route::new(
        "rotateMasterKey",
        "POST /api/v1/master-key/rotate",
        ADMIN,
        "Re-encrypt all secrets with a new master key",
        || post(secrets::rotate),
    )
    .answers::<api::MasterKey>(),
    Route::new(
        "listConfigurationSecrets",
        "GET /api/v1/secrets",
        ADMIN,
        "List the secrets of the configuration file, without their values",
        || get(secrets::list_of_file),
    )
    .about("They are the values for `${NAME}` in its servers. A variable in the environment of the gateway takes precedence.")
    .asks(PAGED)
    .answers::<api::Secrets>(),
    Route::new(
        "putConfigurationSecret",
        "PUT /api/v1/secrets/{name}",
        ADMIN,
        "Set a secret of the configuration file",
        || put(secrets::save_of_file),
    )
    .about("It is used at once: servers whose entries contain `${NAME}` start, or restart if the value changed.")
    .takes::<api::SecretValue>()
    .creates()
    .answers::<api::Secret>(),
    Route::new(
        "deleteConfigurationSecret",
        "DELETE /api/v1/secrets/{name}",
        ADMIN,
        "Remove a secret of the configuration file",
        || delete(secrets::remove_of_file),
    )
    .about("Servers that need it are blocked."),
    Route::new(
        "makeBrowserLink",
        "POST /api/v1/browser-links",
        ADMIN,
        "Create a single-use link that signs a browser in",
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
    .about("Adds an entry for Toolwharf to the client's file, with a separate key. The previous text is saved, and disconnecting restores it.")
    .takes::<api::ConnectRequest>()
    .answers::<api::Connected>(),
    Route::new(
        "disconnectClient",
        "POST /api/v1/clients/{client}/disconnect",
        ADMIN,
        "Disconnect a client",
        || post(clients::disconnect),
    )
    .about("Restores the client's file and revokes its key.")
    .answers::<api::Disconnected>(),
];

const OF_CLIENTS: &str = "Lists the clients of the user that runs the gateway. A gateway that other machines can reach returns 409.";

/// The route's handler, with a limit for the request body.
pub(super) fn handler(route: &Route) -> MethodRouter<AppState> {
    // If the handler has a limit too, the inner one applies.
    (route.serve)().layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}
