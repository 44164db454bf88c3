//! Servers of the configuration file, and their tools.

use axum::{
    extract::DefaultBodyLimit,
    routing::{delete, get, post, put},
};

use super::{ENTRY_BYTES, JSON, OF_LOGS};
use crate::rest::{
    approvals, logs,
    route::{ADMIN, PAGED, Route},
    servers, tools,
};

/// Largest file to import, in bytes: as large as a configuration file may be, as a JSON string.
const IMPORT_BYTES: usize = 16 << 20;

pub(super) const SERVERS: &[Route] = &[
    Route::new(
        "GET",
        "/api/v1/servers",
        ADMIN,
        "List the configuration file's servers and how they are",
        || get(servers::list),
    )
    .answers::<servers::Servers>(),
    Route::new(
        "POST",
        "/api/v1/import",
        ADMIN,
        "Add the servers of another file",
        || post(servers::import).layer(DefaultBodyLimit::max(IMPORT_BYTES)),
    )
    .takes::<servers::Import>()
    .answers::<servers::Imported>(),
    Route::new(
        "GET",
        "/api/v1/servers/{name}",
        ADMIN,
        "Show one server",
        || get(servers::show),
    )
    .answers::<servers::Detail>(),
    Route::new(
        "PUT",
        "/api/v1/servers/{name}",
        ADMIN,
        "Add or replace a server; its entry as in mcp.json",
        || put(servers::save).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_object(JSON)
    .creates()
    .answers::<servers::Saved>(),
    Route::new(
        "DELETE",
        "/api/v1/servers/{name}",
        ADMIN,
        "Remove a server",
        || delete(servers::remove),
    )
    .answers::<servers::Saved>(),
    Route::new(
        "POST",
        "/api/v1/servers/{name}/enable",
        ADMIN,
        "Switch a server on",
        || post(servers::enable),
    )
    .answers::<servers::Saved>(),
    Route::new(
        "POST",
        "/api/v1/servers/{name}/disable",
        ADMIN,
        "Switch a server off",
        || post(servers::disable),
    )
    .answers::<servers::Saved>(),
    Route::new(
        "GET",
        "/api/v1/servers/{name}/logs",
        ADMIN,
        "What a server writes to stderr",
        || get(logs::read),
    )
    .asks(OF_LOGS)
    .answers_text(),
    Route::new(
        "POST",
        "/api/v1/servers/{server}/tools/{tool}/enable",
        ADMIN,
        "Switch a tool on",
        || post(tools::enable),
    )
    .answers::<servers::Saved>(),
    Route::new(
        "POST",
        "/api/v1/servers/{server}/tools/{tool}/disable",
        ADMIN,
        "Switch a tool off",
        || post(tools::disable),
    )
    .answers::<servers::Saved>(),
    Route::new(
        "POST",
        "/api/v1/servers/{server}/tools/{tool}/approve",
        ADMIN,
        "Agree to a tool's changed definition",
        || post(approvals::approve),
    )
    .takes::<approvals::Approval>(),
    Route::new(
        "POST",
        "/api/v1/servers/{name}/approve",
        ADMIN,
        "Agree to the changed definitions of several tools",
        || post(approvals::approve_all),
    )
    .takes::<approvals::Approvals>(),
    Route::new(
        "GET",
        "/api/v1/servers/{name}/changes",
        ADMIN,
        "List the changes of tools' definitions that were agreed to, newest first",
        || get(approvals::changes),
    )
    .asks(PAGED)
    .answers::<approvals::Changes>(),
];
