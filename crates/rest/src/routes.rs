//! All routes, in one table per noun. Access rules, documentation and tests are generated from these tables.

mod projects;
mod records;
mod registry;
mod servers;

use std::str::FromStr as _;

use axum::{
    extract::{DefaultBodyLimit, Request, State},
    routing::{MethodFilter, MethodRouter, on},
};
use http::Method;

use self::{projects::PROJECTS, records::RECORDS, registry::REGISTRY_SERVERS, servers::SERVERS};
use super::{
    AppState, browser, clients, doctor, replicas,
    route::{ADMIN, Kind, PAGED, Parameter, Route, handled_by, parameter},
    secrets, status,
};

/// Maximum size of a server entry.
const MAX_ENTRY_BYTES: usize = 256 << 10;

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
        handled_by!(super::index),
    )
    .answers::<super::Index>(),
    Route::new(
        "getStatus",
        "GET /api/v1/status",
        ADMIN,
        "Show the state of the gateway",
        handled_by!(status::show),
    )
    .answers::<api::Status>(),
    Route::new(
        "getSettings",
        "GET /api/v1/settings",
        ADMIN,
        "Show the settings",
        handled_by!(status::settings),
    )
    .about("Each setting has its value and the source of the value. Errors in the configuration files are listed.")
    .answers::<api::Settings>(),
    Route::new(
        "examine",
        "GET /api/v1/doctor",
        ADMIN,
        "Check the installation",
        handled_by!(doctor::examine),
    )
    .about("Returns the findings of `toolwharf doctor` on the gateway's machine.")
    .answers::<api::Report>(),
    Route::new(
        "listReplicas",
        "GET /api/v1/replicas",
        ADMIN,
        "List the gateways that share the database",
        handled_by!(replicas::list),
    )
    .about("Each gateway is listed with its leases. The list is empty with SQLite.")
    .answers::<api::Replicas>(),
    Route::new(
        "rotateMasterKey",
        "POST /api/v1/master-key/rotate",
        ADMIN,
        "Re-encrypt all secrets with a new master key",
        handled_by!(secrets::rotate),
    )
    .answers::<api::MasterKey>(),
    Route::new(
        "listConfigurationSecrets",
        "GET /api/v1/secrets",
        ADMIN,
        "List the secrets of the configuration file, without their values",
        handled_by!(secrets::list_of_file),
    )
    .about("They are the values for `${NAME}` in its servers. A variable in the environment of the gateway takes precedence.")
    .asks(PAGED)
    .answers::<api::Secrets>(),
    Route::new(
        "putConfigurationSecret",
        "PUT /api/v1/secrets/{name}",
        ADMIN,
        "Set a secret of the configuration file",
        handled_by!(secrets::save_of_file),
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
        handled_by!(secrets::remove_of_file),
    )
    .about("Servers that need it are blocked."),
    Route::new(
        "makeBrowserLink",
        "POST /api/v1/browser-links",
        ADMIN,
        "Create a single-use link that signs a browser in",
        handled_by!(browser::link),
    )
    .answers::<api::BrowserLink>(),
    Route::new(
        "listClients",
        "GET /api/v1/clients",
        ADMIN,
        "List the clients on the gateway's machine",
        handled_by!(clients::list),
    )
    .about(OF_CLIENTS)
    .answers::<api::Clients>(),
    Route::new(
        "connectClient",
        "POST /api/v1/clients/{client}/connect",
        ADMIN,
        "Connect a client",
        handled_by!(clients::connect),
    )
    .about("Adds an entry for Toolwharf to the client's file, with a separate key. The previous text is saved, and disconnecting restores it.")
    .takes::<api::ConnectRequest>()
    .answers::<api::Connected>(),
    Route::new(
        "disconnectClient",
        "POST /api/v1/clients/{client}/disconnect",
        ADMIN,
        "Disconnect a client",
        handled_by!(clients::disconnect),
    )
    .about("Restores the client's file and revokes its key.")
    .answers::<api::Disconnected>(),
];

const OF_CLIENTS: &str = "Lists the clients of the user that runs the gateway. A gateway that other machines can reach returns 409.";

/// The route's handler, with a limit for the request body.
///
/// # Panics
/// If a route names a method that HTTP does not have. Every route is built at the start of the gateway and in tests.
pub(super) fn handler(route: &Route) -> MethodRouter<AppState> {
    let serve = route.serve;
    let method = Method::from_str(route.method()).expect("a method of HTTP");
    let method = MethodFilter::try_from(method).expect("a method that axum routes");
    on(
        method,
        move |State(rest): State<AppState>, request: Request| serve(request, rest),
    )
    .layer(DefaultBodyLimit::max(route.max_body))
}
