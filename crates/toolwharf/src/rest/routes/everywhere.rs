//! Chats, runs, tools, calls and keys of the whole installation, in projects and outside of them.

use axum::routing::{delete, get, post};

use super::DECLARED;
use crate::rest::{
    calls, chat, keys,
    route::{ADMIN, AFTER, CHAT_EVENTS, Kind, LIMIT, PAGED, Parameter, Route, parameter},
    runs, tools,
};

const OF_ALL_RUNS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("project", Kind::Project, "Only of this project"),
    parameter("status", Kind::Text, "Only with this outcome"),
    parameter("conversation", Kind::Text, "Only of this conversation"),
];

const OF_ALL_TOOLS: &[Parameter] = &[
    parameter("project", Kind::Project, "As this project sees them"),
    parameter("server", Kind::Server, "Only of this server"),
    DECLARED,
];

const OF_ALL_CALLS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("project", Kind::Project, "Only of this project"),
    parameter("server", Kind::Text, "Only of this server"),
    parameter(
        "tool",
        Kind::Text,
        "Only of this tool, by the server's name of it",
    ),
    parameter("status", Kind::Status, "Only with this outcome"),
    parameter("caller", Kind::Text, "Only by this caller"),
    parameter("run", Kind::Text, "Only of this run of an agent"),
    parameter(
        "since",
        Kind::Time,
        "Only calls that began at this time or later",
    ),
    parameter(
        "until",
        Kind::Time,
        "Only calls that began before this time",
    ),
];

pub(super) const EVERYWHERE: &[Route] = &[
    Route::new(
        "chat",
        "POST",
        "/api/v1/chat",
        ADMIN,
        "Chat with the agent of all servers",
        || post(chat::chat),
    )
    .about("The answer is an event stream. Without `conversation` a new one begins.")
    .takes::<api::ChatRequest>()
    .answers_text(CHAT_EVENTS),
    Route::new(
        "listConversations",
        "GET",
        "/api/v1/conversations",
        ADMIN,
        "List all conversations with agents, newest first",
        || get(chat::list),
    )
    .asks(PAGED)
    .answers::<api::Conversations>(),
    Route::new(
        "getConversation",
        "GET",
        "/api/v1/conversations/{conversation}",
        ADMIN,
        "Show a conversation of no project",
        || get(chat::show),
    )
    .answers::<api::WholeConversation>(),
    Route::new(
        "deleteConversation",
        "DELETE",
        "/api/v1/conversations/{conversation}",
        ADMIN,
        "Delete a conversation of no project",
        || delete(chat::remove),
    ),
    Route::new(
        "listRuns",
        "GET",
        "/api/v1/runs",
        ADMIN,
        "List the runs of agents, newest first",
        || get(runs::list_all),
    )
    .asks(OF_ALL_RUNS)
    .answers::<api::Runs>(),
    Route::new(
        "getRun",
        "GET",
        "/api/v1/runs/{run}",
        ADMIN,
        "Show one run with its calls",
        || get(runs::show_any),
    )
    .answers::<api::WholeRun>(),
    Route::new(
        "listTools",
        "GET",
        "/api/v1/tools",
        ADMIN,
        "List the tools",
        || get(tools::list),
    )
    .asks(OF_ALL_TOOLS)
    .answers::<tools::Offered>(),
    Route::new(
        "listCalls",
        "GET",
        "/api/v1/calls",
        ADMIN,
        "List the calls of tools, newest first",
        || get(calls::list_all),
    )
    .asks(OF_ALL_CALLS)
    .answers::<api::Calls>(),
    Route::new(
        "getCall",
        "GET",
        "/api/v1/calls/{call}",
        ADMIN,
        "Show one call",
        || get(calls::show_any),
    )
    .answers::<api::WholeCall>(),
    Route::new(
        "listKeys",
        "GET",
        "/api/v1/keys",
        ADMIN,
        "List all keys",
        || get(keys::list_all),
    )
    .asks(PAGED)
    .answers::<api::Keys>(),
    Route::new(
        "createKey",
        "POST",
        "/api/v1/keys",
        ADMIN,
        "Make an administrator's key",
        || post(keys::make_admin),
    )
    .takes::<keys::WantedAdminKey>()
    .creates()
    .answers::<api::MadeKey>(),
    Route::new(
        "revokeKey",
        "DELETE",
        "/api/v1/keys/{key}",
        ADMIN,
        "Revoke a key",
        || delete(keys::revoke_any),
    ),
];
