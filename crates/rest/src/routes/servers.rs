//! Routes of servers and their tools.

use engine::Command;

use super::{JSON, MAX_ENTRY_BYTES};
use crate::{
    access::Need,
    approvals, bridge, logins, logs,
    route::{ADMIN, AFTER, Kind, PAGED, Parameter, Route, handled_by, parameter},
    servers, tools, update,
};
use auth::Role;

/// Maximum size of an import. A configuration file of the maximum size fits even as a JSON string.
const MAX_IMPORT_BYTES: usize = 16 << 20;

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
    "`true` waits until the server runs or has failed, at most 30 s (default true)",
)];

const REMOVED: &[Parameter] = &[parameter(
    "volumes",
    Kind::Boolean,
    "`true` also removes the volumes of a registered server (default false)",
)];

const TRIED: &[Parameter] = &[parameter(
    "dry_run",
    Kind::Boolean,
    "`true` checks the entry without saving it (default false)",
)];

const OF_LOGS: &[Parameter] = &[
    parameter(
        "tail",
        Kind::Lines,
        "The number of lines from the end of the log (default 200)",
    ),
    parameter(
        "follow",
        Kind::Boolean,
        "`true` follows the log as an event stream (default false)",
    ),
    parameter(
        "timestamps",
        Kind::Boolean,
        "`true` puts the time at which it arrived in front of each line, in RFC 3339 with milliseconds (default false)",
    ),
];

pub(super) const SERVERS: &[Route] = &[
    Route::new(
        "listServers",
        "GET /api/v1/mcp/servers",
        Need::Within(Role::Read),
        "List the servers and their states",
        handled_by!(servers::list),
    )
    .asks(LISTED)
    .answers::<api::Servers>(),
    Route::new(
        "registerServer",
        "POST /api/v1/mcp/servers",
        ADMIN,
        "Register a server",
        handled_by!(servers::register),
    )
    .of_at_most(MAX_ENTRY_BYTES)
    .about("The server is started in a sandbox. The response is sent when it runs or has failed, after at most 30 seconds.")
    .takes_written("Registration", JSON)
    .asks(REGISTERED)
    .creates()
    .answers::<api::Server>(),
    Route::new(
        "getServer",
        "GET /api/v1/mcp/servers/{id}",
        READ,
        "Show a server",
        handled_by!(servers::show),
    )
    .about("Returns the declaration and the state.")
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "putServer",
        "PUT /api/v1/mcp/servers/{id}",
        Need::Within(Role::Manage),
        "Add or replace a server",
        handled_by!(servers::save),
    )
    .of_at_most(MAX_ENTRY_BYTES)
    .about("An existing server is replaced where it is declared. A new one is added to the given project, or to the configuration file if no project is given.")
    .takes_written("ServerEntry", JSON)
    .creates()
    .tagged()
    .answers::<api::Server>(),
    Route::new(
        "deleteServer",
        "DELETE /api/v1/mcp/servers/{id}",
        MANAGE,
        "Stop a server and remove it",
        handled_by!(servers::remove),
    )
    .asks(REMOVED)
    .tagged()
    .may_answer::<api::Removed>(),
    Route::new(
        "getServerEntry",
        "GET /api/v1/mcp/servers/{id}/entry",
        MANAGE,
        "Show a server's entry",
        handled_by!(servers::show_entry),
    )
    .about("The stored entry, without the values of variables, headers and secrets. For servers of the configuration file and registered servers, only an administrator's key is accepted.")
    .tagged()
    .answers::<api::DeclaredEntry>(),
    Route::new(
        "putServerEntry",
        "PUT /api/v1/mcp/servers/{id}/entry",
        MANAGE,
        "Change a server's entry",
        handled_by!(servers::save_entry),
    )
    .of_at_most(MAX_ENTRY_BYTES)
    .about("Replaces the stored entry. A masked value (`•••`) that is sent back keeps the secret if the server and the field are the same. In the configuration file, unchanged parts and comments stay as they are, and a copy of the previous file is kept next to it.")
    .takes_written("ServerEntry", JSON)
    .asks(TRIED)
    .tagged()
    .answers::<api::EntryChange>(),
    Route::new(
        "getServerConfinement",
        "GET /api/v1/mcp/servers/{id}/confinement",
        MANAGE,
        "Show what a server would lose in a sandbox",
        handled_by!(servers::confinement),
    )
    .about("For a server that runs without a sandbox. To put it in one, add `\"sandbox\": true` to its entry, and the keys of each loss that you want to keep. For servers of the configuration file and registered servers, only an administrator's key is accepted.")
    .answers::<api::Confinement>(),
    Route::new(
        "enableServer",
        "POST /api/v1/mcp/servers/{id}/enable",
        MANAGE,
        "Enable a server",
        handled_by!(|rest, who, target| servers::switch(rest, who, target, true)),
    )
    .about("The server stays enabled when the gateway restarts.")
    .answers::<api::Server>(),
    Route::new(
        "disableServer",
        "POST /api/v1/mcp/servers/{id}/disable",
        MANAGE,
        "Disable a server",
        handled_by!(|rest, who, target| servers::switch(rest, who, target, false)),
    )
    .about("The server stays disabled when the gateway restarts.")
    .answers::<api::Server>(),
    Route::new(
        "startServer",
        "POST /api/v1/mcp/servers/{id}/start",
        MANAGE,
        "Start a server",
        handled_by!(|rest, who, target| servers::order(rest, who, target, Command::Start)),
    )
    .about("The response is sent when the server runs or has failed.")
    .answers::<api::Server>(),
    Route::new(
        "stopServer",
        "POST /api/v1/mcp/servers/{id}/stop",
        MANAGE,
        "Stop a server",
        handled_by!(|rest, who, target| servers::order(rest, who, target, Command::Stop)),
    )
    .about("The server stays stopped until it is started again.")
    .answers::<api::Server>(),
    Route::new(
        "restartServer",
        "POST /api/v1/mcp/servers/{id}/restart",
        MANAGE,
        "Restart a server",
        handled_by!(|rest, who, target| servers::order(rest, who, target, Command::Restart)),
    )
    .about("The old process exits before the new one starts.")
    .answers::<api::Server>(),
    Route::new(
        "callServer",
        "POST /api/v1/mcp/servers/{id}/call",
        CALL,
        "Send one request to a server",
        handled_by!(bridge::routed),
    )
    .about("With `Accept: text/event-stream`, the response is an event stream: `message` for progress and log messages, then one `result` or `error`.")
    .takes::<bridge::CallRequest>()
    .answers_or::<api::CallResult>(&[("text/event-stream", "CallEvents")]),
    Route::new(
        "recordServer",
        "PUT /api/v1/mcp/servers/{id}/recording",
        MANAGE,
        "Record the bodies of a server's calls for a while",
        handled_by!(servers::recording::begin),
    )
    .about("Arguments and results of calls are recorded, without secrets, even if the settings record only digests.")
    .takes::<api::RecordingRequest>()
    .answers::<api::Server>(),
    Route::new(
        "stopRecordingServer",
        "DELETE /api/v1/mcp/servers/{id}/recording",
        MANAGE,
        "End a recording before its time",
        handled_by!(servers::recording::end),
    )
    .about("The settings determine again what is recorded of the server's calls."),
    Route::new(
        "updateServer",
        "POST /api/v1/mcp/servers/{id}/update",
        Need::Server(Role::Admin),
        "Update a server's package",
        handled_by!(update::update),
    )
    .about("With `check`, only shows the newest version and its changes. Otherwise, updates the server to a version that was shown.")
    .takes::<api::UpdateRequest>()
    .answers::<api::Update>(),
    Route::new(
        "listLogins",
        "GET /api/v1/logins",
        Need::Within(Role::Read),
        "List the sign-ins to servers",
        handled_by!(logins::list),
    )
    .about("Includes the caller's sign-ins and the shared ones.")
    .answers::<api::Logins>(),
    Route::new(
        "getServerLogin",
        "GET /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Read),
        "Show the sign-in to a server",
        handled_by!(logins::show),
    )
    .about("Returns the caller's sign-in, or the shared one.")
    .answers::<api::Login>(),
    Route::new(
        "beginServerLogin",
        "POST /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Call),
        "Start a sign-in to a server",
        handled_by!(logins::begin),
    )
    .about("A shared sign-in needs the role `manage`, or an administrator's key if the server is in the configuration file.")
    .takes::<api::LoginRequest>()
    .answers::<api::LoginBegun>(),
    Route::new(
        "finishServerLogin",
        "POST /api/v1/mcp/servers/{id}/login/finish",
        Need::Within(Role::Call),
        "Finish a sign-in with its redirect",
        handled_by!(logins::finish),
    )
    .takes::<api::LoginRedirect>(),
    Route::new(
        "endServerLogin",
        "DELETE /api/v1/mcp/servers/{id}/login",
        Need::Within(Role::Call),
        "Sign out of a server",
        handled_by!(logins::end),
    )
    .about("The tokens are revoked at the issuer if it supports that."),
    Route::new(
        "getServerLogs",
        "GET /api/v1/mcp/servers/{id}/logs",
        MANAGE,
        "Show a server's logs",
        handled_by!(logs::read),
    )
    .about("Returns the lines that the server wrote to standard error.")
    .asks(OF_LOGS)
    .answers_text(&[("text/plain", "Log"), ("text/event-stream", "LogEvents")]),
    Route::new(
        "listServerEvents",
        "GET /api/v1/mcp/servers/{id}/events",
        READ,
        "List a server's events",
        handled_by!(servers::events),
    )
    .about("Newest first.")
    .asks(PAGED)
    .answers::<api::Events>(),
    Route::new(
        "listServerTools",
        "GET /api/v1/mcp/servers/{id}/tools",
        READ,
        "List the tools of a server",
        handled_by!(tools::list_of_server),
    )
    .answers::<api::Tools>(),
    Route::new(
        "putServerTool",
        "PUT /api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Change the settings of a tool",
        handled_by!(tools::set),
    )
    .about("With a project: enables, disables, renames or describes the tool in that project. Without one: enables or disables it in all projects.")
    .takes::<api::Setting>()
    .answers::<api::Set>(),
    Route::new(
        "deleteServerTool",
        "DELETE /api/v1/mcp/servers/{id}/tools/{tool}",
        Need::Within(Role::Manage),
        "Remove the settings of a tool",
        handled_by!(tools::unset),
    )
    .about("The tool is offered again as the server defines it.")
    ,
    Route::new(
        "approveServerTools",
        "POST /api/v1/mcp/servers/{id}/approve",
        Need::Within(Role::Manage),
        "Approve changed tool definitions",
        handled_by!(approvals::approve),
    )
    .takes::<api::Approvals>(),
    Route::new(
        "listServerToolChanges",
        "GET /api/v1/mcp/servers/{id}/changes",
        Need::Within(Role::Read),
        "List changed tool definitions",
        handled_by!(approvals::changes),
    )
    .about("Returns replaced definitions, newest first.")
    .asks(PAGED)
    .answers::<api::Changes>(),
    Route::new(
        "importServers",
        "POST /api/v1/import",
        ADMIN,
        "Import servers into the configuration file",
        handled_by!(servers::import),
    )
    .of_at_most(MAX_IMPORT_BYTES)
    .takes::<api::Import>()
    .answers::<api::Imported>(),
];
