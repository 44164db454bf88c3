//! Hosted servers.

use axum::{
    extract::DefaultBodyLimit,
    routing::{delete, get, post, put},
};

use super::{ENTRY_BYTES, JSON, OF_LOGS};
use crate::{
    auth::Role,
    rest::{
        access::Need,
        bridge, hosted, logs,
        route::{ADMIN, Kind, PAGED, Parameter, Route, parameter},
    },
};

const READ: Need = Need::Hosted(Role::Read);
const CALL: Need = Need::Hosted(Role::Call);
const MANAGE: Need = Need::Hosted(Role::Manage);
/// For no key of the project that owns the server.
const OWNER: Need = Need::Hosted(Role::Admin);

const OF_REGISTERING: &[Parameter] = &[parameter(
    "wait",
    Kind::Boolean,
    "Whether to wait until it is up or has failed, at most 30 s; true without it",
)];

const OF_DELETING: &[Parameter] = &[parameter(
    "volumes",
    Kind::Boolean,
    "Whether its volumes are removed, too",
)];

pub(super) const HOSTED: &[Route] = &[
    Route::new(
        "GET",
        "/api/v1/mcp/servers",
        READ,
        "List the hosted servers and how they are",
        || get(hosted::list),
    )
    .answers::<hosted::HostedServers>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers",
        ADMIN,
        "Register a server to be hosted, and start it",
        || post(hosted::register).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_object(JSON)
    .asks(OF_REGISTERING)
    .creates()
    .answers::<hosted::HostedServer>(),
    Route::new(
        "GET",
        "/api/v1/mcp/servers/{id}",
        READ,
        "Show one hosted server, by its id or name",
        || get(hosted::show),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "PUT",
        "/api/v1/mcp/servers/{id}",
        OWNER,
        "Replace a registration; the server is started anew",
        || put(hosted::update).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_object(JSON)
    .answers::<hosted::HostedServer>(),
    Route::new(
        "DELETE",
        "/api/v1/mcp/servers/{id}",
        OWNER,
        "Stop a hosted server and forget it",
        || delete(hosted::remove),
    )
    .asks(OF_DELETING),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/call",
        CALL,
        "Send a hosted server one request; as an event stream if that is accepted",
        || post(bridge::routed),
    )
    .takes::<bridge::CallRequest>()
    .answers::<bridge::CallResult>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/restart",
        MANAGE,
        "Stop a hosted server and start it anew",
        || post(hosted::restart),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/start",
        MANAGE,
        "Start a hosted server",
        || post(hosted::start),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/stop",
        MANAGE,
        "Stop a hosted server",
        || post(hosted::stop),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "GET",
        "/api/v1/mcp/servers/{id}/logs",
        MANAGE,
        "What a hosted server writes to stderr",
        || get(logs::read_hosted),
    )
    .asks(OF_LOGS)
    .answers_text(),
    Route::new(
        "GET",
        "/api/v1/mcp/servers/{id}/events",
        READ,
        "What happened to a hosted server, newest first",
        || get(hosted::events),
    )
    .asks(PAGED)
    .answers::<hosted::Events>(),
];
