//! Servers, wherever they are declared, and their tools.

use axum::{
    extract::DefaultBodyLimit,
    routing::{delete, get, post, put},
};

use super::{ENTRY_BYTES, JSON};
use crate::{
    auth::Role,
    rest::{
        access::Need,
        approvals, bridge, logs,
        route::{ADMIN, AFTER, Kind, LIMIT, Parameter, Route, parameter},
        servers, tools, update,
    },
};

/// Largest file to import, in bytes: as large as a configuration file may be, as a JSON string.
const IMPORT_BYTES: usize = 16 << 20;

const READ: Need = Need::Server(Role::Read);
const CALL: Need = Need::Server(Role::Call);
const MANAGE: Need = Need::Server(Role::Manage);

const PROJECT: Parameter = parameter(
    "project",
    Kind::Project,
    "Of this project; a key of a project means its own without it",
);
const OF_SERVER: &[Parameter] = &[PROJECT];

const LISTED: &[Parameter] = &[
    PROJECT,
    parameter(
        "limit",
        Kind::Number,
        "The most rows, 1 to 1000; 1000 without it",
    ),
    AFTER,
];

const REGISTERED: &[Parameter] = &[parameter(
    "wait",
    Kind::Boolean,
    "Whether to wait until it is up or has failed, at most 30 s; true without it",
)];

const REMOVED: &[Parameter] = &[
    PROJECT,
    parameter(
        "volumes",
        Kind::Boolean,
        "Whether the volumes of a registered server are removed, too",
    ),
];

const OF_LOGS: &[Parameter] = &[
    PROJECT,
    parameter("tail", Kind::Lines, "The last lines, 200 without it"),
    parameter("follow", Kind::Boolean, "Goes on, as an event stream"),
];

const PAGED: &[Parameter] = &[PROJECT, LIMIT, AFTER];

pub(super) const SERVERS: &[Route] = &[
    Route::new(
        "listServers",
        "GET",
        "/api/v1/mcp/servers",
        Need::Within(Role::Read),
        "List the servers and how they are",
        || get(servers::list),
    )
    .asks(LISTED)
    .answers::<api::Servers>(),
    Route::new(
        "registerServer",
        "POST",
        "/api/v1/mcp/servers",
        ADMIN,
        "Register a server, to be hosted in a sandbox, and start it",
        || post(servers::register).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_written("Registration", JSON)
    .asks(REGISTERED)
    .creates()
    .answers::<api::Server>(),
    Route::new(
        "getServer",
        "GET",
        "/api/v1/mcp/servers/{id}",
        READ,
        "Show a server, by its id or name",
        || get(servers::show),
    )
    .asks(OF_SERVER)
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "putServer",
        "PUT",
        "/api/v1/mcp/servers/{id}",
        Need::Within(Role::Manage),
        "Replace a server, or add one to the configuration file or a project; its entry as in mcp.json",
        || put(servers::save).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .asks(OF_SERVER)
    .takes_written("ServerEntry", JSON)
    .creates()
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "deleteServer",
        "DELETE",
        "/api/v1/mcp/servers/{id}",
        MANAGE,
        "Stop a server and remove it",
        || delete(servers::remove),
    )
    .asks(REMOVED)
    .tagged()
    .may_answer::<api::Removed>(),
    Route::new(
        "enableServer",
        "POST",
        "/api/v1/mcp/servers/{id}/enable",
        MANAGE,
        "Switch a server on",
        || post(servers::enable),
    )
    .asks(OF_SERVER)
    .answers::<api::Server>(),
    Route::new(
        "disableServer",
        "POST",
        "/api/v1/mcp/servers/{id}/disable",
        MANAGE,
        "Switch a server off",
        || post(servers::disable),
    )
    .asks(OF_SERVER)
    .answers::<api::Server>(),
    Route::new(
        "startServer",
        "POST",
        "/api/v1/mcp/servers/{id}/start",
        MANAGE,
        "Start a server",
        || post(servers::start),
    )
    .asks(OF_SERVER)
    .answers::<api::Server>(),
    Route::new(
        "stopServer",
        "POST",
        "/api/v1/mcp/servers/{id}/stop",
        MANAGE,
        "Stop a server until it is started again",
        || post(servers::stop),
    )
    .asks(OF_SERVER)
    .answers::<api::Server>(),
    Route::new(
        "restartServer",
        "POST",
        "/api/v1/mcp/servers/{id}/restart",
        MANAGE,
        "Stop a server and start it anew",
        || post(servers::restart),
    )
    .asks(OF_SERVER)
    .answers::<api::Server>(),
    Route::new(
        "callServer",
        "POST",
        "/api/v1/mcp/servers/{id}/call",
        CALL,
        "Send a server one request; as an event stream if that is accepted",
        || post(bridge::routed),
    )
    .asks(OF_SERVER)
    .takes::<bridge::CallRequest>()
    .answers::<bridge::CallResult>(),
    Route::new(
        "updateServer",
        "POST",
        "/api/v1/mcp/servers/{id}/update",
        Need::Server(Role::Admin),
        "Show the newest version of a server's package, or move the server on to one that was shown",
        || post(update::update),
    )
    .asks(OF_SERVER)
    .takes::<update::UpdateRequest>()
    .answers::<update::Update>(),
    Route::new(
        "getServerLogs",
        "GET",
        "/api/v1/mcp/servers/{id}/logs",
        MANAGE,
        "What a server writes to stderr",
        || get(logs::read),
    )
    .asks(OF_LOGS)
    .answers_text(&[("text/plain", "Log"), ("text/event-stream", "LogEvents")]),
    Route::new(
        "listServerEvents",
        "GET",
        "/api/v1/mcp/servers/{id}/events",
        READ,
        "What happened to a server, newest first",
        || get(servers::events),
    )
    .asks(PAGED)
    .answers::<api::Events>(),
    Route::new(
        "listServerTools",
        "GET",
        "/api/v1/mcp/servers/{id}/tools",
        READ,
        "List the tools of a server",
        || get(tools::list_of_server),
    )
    .asks(OF_SERVER)
    .answers::<tools::Tools>(),
    Route::new(
        "putServerTool",
        "PUT",
        "/api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Switch, rename or re-describe a tool for a project, or switch it for all",
        || put(tools::set),
    )
    .asks(OF_SERVER)
    .takes::<tools::Setting>()
    .answers::<tools::Set>(),
    Route::new(
        "deleteServerTool",
        "DELETE",
        "/api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Have a tool as its server says",
        || delete(tools::unset),
    )
    .asks(OF_SERVER),
    Route::new(
        "approveServerTools",
        "POST",
        "/api/v1/mcp/servers/{id}/approve",
        Need::Within(Role::Manage),
        "Agree to the changed definitions of tools",
        || post(approvals::approve),
    )
    .asks(OF_SERVER)
    .takes::<approvals::Approvals>(),
    Route::new(
        "listServerToolChanges",
        "GET",
        "/api/v1/mcp/servers/{id}/changes",
        Need::Within(Role::Read),
        "List the changes of tools' definitions that were agreed to, newest first",
        || get(approvals::changes),
    )
    .asks(PAGED)
    .answers::<approvals::Changes>(),
    Route::new(
        "importServers",
        "POST",
        "/api/v1/import",
        ADMIN,
        "Add the servers of another file to the configuration file",
        || post(servers::import).layer(DefaultBodyLimit::max(IMPORT_BYTES)),
    )
    .takes::<api::Import>()
    .answers::<api::Imported>(),
];
