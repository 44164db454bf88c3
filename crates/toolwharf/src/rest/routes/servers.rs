//! Servers, wherever they are declared, and their tools.

use axum::{
    extract::DefaultBodyLimit,
    routing::{delete, get, post, put},
};

use engine::Order;

use super::{ENTRY_BYTES, JSON};
use crate::{
    auth::Role,
    rest::{
        access::Need,
        approvals, bridge, logins, logs,
        route::{ADMIN, AFTER, Kind, PAGED, Parameter, Route, parameter},
        servers, tools, update,
    },
};

/// Largest file to import, in bytes: as large as a configuration file may be, as a JSON string.
const IMPORT_BYTES: usize = 16 << 20;

const READ: Need = Need::Server(Role::Read);
const CALL: Need = Need::Server(Role::Call);
const MANAGE: Need = Need::Server(Role::Manage);

const LISTED: &[Parameter] = &[
    parameter(
        "limit",
        Kind::Number,
        "The number of rows, 1 to 1000 (default 1000)",
    ),
    AFTER,
];

const REGISTERED: &[Parameter] = &[parameter(
    "wait",
    Kind::Boolean,
    "Whether to wait until the server is up or has failed, at most 30 s (default true)",
)];

const REMOVED: &[Parameter] = &[parameter(
    "volumes",
    Kind::Boolean,
    "Whether the volumes of a registered server are removed, too (default false)",
)];

const TRIED: &[Parameter] = &[parameter(
    "dry_run",
    Kind::Boolean,
    "Whether the entry is only checked, and nothing is saved (default false)",
)];

const OF_LOGS: &[Parameter] = &[
    parameter(
        "tail",
        Kind::Lines,
        "The number of last lines (default 200)",
    ),
    parameter(
        "follow",
        Kind::Boolean,
        "Whether to follow the log as an event stream (default false)",
    ),
];

pub(super) const SERVERS: &[Route] = &[
    Route::new(
        "listServers",
        "GET /api/v1/mcp/servers",
        Need::Within(Role::Read),
        "List the servers and their states",
        || get(servers::list),
    )
    .asks(LISTED)
    .answers::<api::Servers>(),
    Route::new(
        "registerServer",
        "POST /api/v1/mcp/servers",
        ADMIN,
        "Register a server",
        || post(servers::register).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .about("The server is started in a sandbox. The answer waits until it is up or has failed, at most 30 seconds.")
    .takes_written("Registration", JSON)
    .asks(REGISTERED)
    .creates()
    .answers::<api::Server>(),
    Route::new(
        "getServer",
        "GET /api/v1/mcp/servers/{id}",
        READ,
        "Show a server",
        || get(servers::show),
    )
    .about("What it is declared to be, and its state.")
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "putServer",
        "PUT /api/v1/mcp/servers/{id}",
        Need::Within(Role::Manage),
        "Add or replace a server",
        || put(servers::save).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .about("Replaces a server where it is declared. A new one is added to the project that is named, or else to the configuration file.")
    .takes_written("ServerEntry", JSON)
    .creates()
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "deleteServer",
        "DELETE /api/v1/mcp/servers/{id}",
        MANAGE,
        "Stop a server and remove it",
        || delete(servers::remove),
    )
    .asks(REMOVED)
    .tagged()
    .may_answer::<api::Removed>(),
    Route::new(
        "getServerEntry",
        "GET /api/v1/mcp/servers/{id}/entry",
        MANAGE,
        "Show a server's entry",
        || get(servers::show_entry),
    )
    .about("As it is kept, without the values of variables, headers and secrets. Those of the configuration file and of registrations take an administrator's key.")
    .tagged()
    .answers::<api::DeclaredEntry>(),
    Route::new(
        "putServerEntry",
        "PUT /api/v1/mcp/servers/{id}/entry",
        MANAGE,
        "Change a server's entry",
        || put(servers::save_entry).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .about("Where it is kept. A value that was shown as `•••` and is sent back so is kept, if it is for the same server and the same field. In the configuration file what does not change stays as it is written, with its comments, and a copy of the file is kept beside it.")
    .takes_written("ServerEntry", JSON)
    .asks(TRIED)
    .tagged()
    .answers::<api::EntryChange>(),
    Route::new(
        "enableServer",
        "POST /api/v1/mcp/servers/{id}/enable",
        MANAGE,
        "Enable a server",
        || post(|rest, who, target| servers::switch(rest, who, target, true)),
    )
    .about("It stays enabled over restarts of the gateway.")
    .answers::<api::Server>(),
    Route::new(
        "disableServer",
        "POST /api/v1/mcp/servers/{id}/disable",
        MANAGE,
        "Disable a server",
        || post(|rest, who, target| servers::switch(rest, who, target, false)),
    )
    .about("It stays disabled over restarts of the gateway.")
    .answers::<api::Server>(),
    Route::new(
        "startServer",
        "POST /api/v1/mcp/servers/{id}/start",
        MANAGE,
        "Start a server",
        || post(|rest, who, target| servers::order(rest, who, target, Order::Start)),
    )
    .about("The answer waits until the server is up or has failed.")
    .answers::<api::Server>(),
    Route::new(
        "stopServer",
        "POST /api/v1/mcp/servers/{id}/stop",
        MANAGE,
        "Stop a server",
        || post(|rest, who, target| servers::order(rest, who, target, Order::Stop)),
    )
    .about("It stays stopped until it is started again.")
    .answers::<api::Server>(),
    Route::new(
        "restartServer",
        "POST /api/v1/mcp/servers/{id}/restart",
        MANAGE,
        "Restart a server",
        || post(|rest, who, target| servers::order(rest, who, target, Order::Restart)),
    )
    .about("The old process ends before the new one starts.")
    .answers::<api::Server>(),
    Route::new(
        "callServer",
        "POST /api/v1/mcp/servers/{id}/call",
        CALL,
        "Send one request to a server",
        || post(bridge::routed),
    )
    .about("With `Accept: text/event-stream` the answer is an event stream: `message` for progress and log messages, then one `result` or `error`.")
    .takes::<bridge::CallRequest>()
    .answers_or::<api::CallResult>(&[("text/event-stream", "CallEvents")]),
    Route::new(
        "updateServer",
        "POST /api/v1/mcp/servers/{id}/update",
        Need::Server(Role::Admin),
        "Update a server's package",
        || post(update::update),
    )
    .about("With `check` it only shows the newest version and what changes with it. Otherwise it moves the server on to a version that was shown.")
    .takes::<api::UpdateRequest>()
    .answers::<api::Update>(),
    Route::new(
        "listLogins",
        "GET /api/v1/logins",
        Need::Within(Role::Read),
        "List the sign-ins to servers",
        || get(logins::list),
    )
    .about("The caller's own, and those that all callers share.")
    .answers::<api::Logins>(),
    Route::new(
        "getServerLogin",
        "GET /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Read),
        "Show the sign-in to a server",
        || get(logins::show),
    )
    .about("The caller's own, or the one that all callers share.")
    .answers::<api::Login>(),
    Route::new(
        "beginServerLogin",
        "POST /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Call),
        "Begin to sign in to a server",
        || post(logins::begin),
    )
    .about("One that all callers share takes the role that changes the server.")
    .takes::<api::LoginRequest>()
    .answers::<api::LoginBegun>(),
    Route::new(
        "finishServerLogin",
        "POST /api/v1/mcp/servers/{id}/login/finish",
        Need::Within(Role::Call),
        "Bring the redirect of a sign-in",
        || post(logins::finish),
    )
    .takes::<api::LoginRedirect>(),
    Route::new(
        "endServerLogin",
        "DELETE /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Call),
        "Sign out of a server",
        || delete(logins::end),
    )
    .about("The issuer is told to take its tokens back, if it can be."),
    Route::new(
        "getServerLogs",
        "GET /api/v1/mcp/servers/{id}/logs",
        MANAGE,
        "Show a server's logs",
        || get(logs::read),
    )
    .about("The lines that the server wrote to standard error.")
    .asks(OF_LOGS)
    .answers_text(&[("text/plain", "Log"), ("text/event-stream", "LogEvents")]),
    Route::new(
        "listServerEvents",
        "GET /api/v1/mcp/servers/{id}/events",
        READ,
        "List a server's events",
        || get(servers::events),
    )
    .about("Newest first.")
    .asks(PAGED)
    .answers::<api::Events>(),
    Route::new(
        "listServerTools",
        "GET /api/v1/mcp/servers/{id}/tools",
        READ,
        "List the tools of a server",
        || get(tools::list_of_server),
    )
    .answers::<api::Tools>(),
    Route::new(
        "putServerTool",
        "PUT /api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Change the settings of a tool",
        || put(tools::set),
    )
    .about("With a project: enables, disables, renames or describes the tool for that project. Without one: enables or disables it for all.")
    .takes::<api::Setting>()
    .answers::<api::Set>(),
    Route::new(
        "deleteServerTool",
        "DELETE /api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Remove the settings of a tool",
        || delete(tools::unset),
    )
    .about("It is offered again as its server defines it.")
    ,
    Route::new(
        "approveServerTools",
        "POST /api/v1/mcp/servers/{id}/approve",
        Need::Within(Role::Manage),
        "Approve changed definitions of tools",
        || post(approvals::approve),
    )
    .takes::<api::Approvals>(),
    Route::new(
        "listServerToolChanges",
        "GET /api/v1/mcp/servers/{id}/changes",
        Need::Within(Role::Read),
        "List changed definitions of tools",
        || get(approvals::changes),
    )
    .about("Definitions that took the place of others, newest first.")
    .asks(PAGED)
    .answers::<api::Changes>(),
    Route::new(
        "importServers",
        "POST /api/v1/import",
        ADMIN,
        "Import servers into the configuration file",
        || post(servers::import).layer(DefaultBodyLimit::max(IMPORT_BYTES)),
    )
    .takes::<api::Import>()
    .answers::<api::Imported>(),
];
