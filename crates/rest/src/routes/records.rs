//! Routes of chats, runs, tools, calls and keys, for one project or the whole gateway.

use super::DECLARED;
use crate::{
    access::Need,
    attention, calls, chat, events, keys,
    route::{AFTER, CHAT_EVENTS, Kind, LIMIT, PAGED, Parameter, Route, handled_by, parameter},
    runs, statistics, tools,
};
use auth::Role;

const READ: Need = Need::Within(Role::Read);
const CALL: Need = Need::Within(Role::Call);
const MANAGE: Need = Need::Within(Role::Manage);

const OF_RUNS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("status", Kind::Text, "Only with this outcome"),
    parameter("conversation", Kind::Text, "Only this conversation"),
];

const OF_TOOLS: &[Parameter] = &[
    parameter("server", Kind::Server, "Only this server"),
    DECLARED,
    parameter(
        "wait",
        Kind::Boolean,
        "`true` waits for servers that start for the first time, at most 20 s; `false` leaves them out (default true)",
    ),
];

const OF_TOOL_SEARCHES: &[Parameter] = &[
    parameter(
        "query",
        Kind::Text,
        "The task in a few words, or the name of a tool. Without it, no tools are found",
    ),
    parameter("server", Kind::Server, "Only tools of this server"),
    parameter(
        "limit",
        Kind::Number,
        "The number of tools, 1 to 1000 (default 10)",
    ),
];

const SERVER: Parameter = parameter("server", Kind::Text, "Only this server");
const TOOL: Parameter = parameter("tool", Kind::Text, "Only this tool, by its native name");
const STATUS: Parameter = parameter("status", Kind::Status, "Only with this outcome");
const CALLER: Parameter = parameter("caller", Kind::Text, "Only by this caller");

const OF_CALLS: &[Parameter] = &[
    LIMIT,
    AFTER,
    SERVER,
    TOOL,
    STATUS,
    CALLER,
    parameter("run", Kind::Text, "Only this agent run"),
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

const OF_STATISTICS: &[Parameter] = &[
    SERVER,
    TOOL,
    STATUS,
    CALLER,
    parameter(
        "since",
        Kind::Time,
        "The beginning (default: one hour before the end); the first bucket contains this time",
    ),
    parameter("until", Kind::Time, "The end (default: now)"),
    parameter(
        "buckets",
        Kind::Number,
        "The maximum number of buckets, 1 to 200 (default 60)",
    ),
    parameter(
        "by_tool",
        Kind::Boolean,
        "`true` also returns figures for each tool (default false)",
    ),
];

pub(super) const RECORDS: &[Route] = &[
    Route::new(
        "chat",
        "POST /api/v1/chat",
        CALL,
        "Chat with the agent",
        handled_by!(chat::chat),
    )
    .about("The response is an event stream. Without `conversation`, a new conversation begins.")
    .takes::<api::ChatRequest>()
    .answers_text(CHAT_EVENTS),
    Route::new(
        "listConversations",
        "GET /api/v1/conversations",
        CALL,
        "List the conversations with agents, newest first",
        handled_by!(chat::list),
    )
    .asks(PAGED)
    .answers::<api::Conversations>(),
    Route::new(
        "getConversation",
        "GET /api/v1/conversations/{conversation}",
        CALL,
        "Show a conversation",
        handled_by!(chat::show),
    )
    .answers::<api::WholeConversation>(),
    Route::new(
        "deleteConversation",
        "DELETE /api/v1/conversations/{conversation}",
        CALL,
        "Delete a conversation",
        handled_by!(chat::remove),
    ),
    Route::new(
        "answerQuestions",
        "POST /api/v1/conversations/{conversation}/answers",
        CALL,
        "Answer a server that asks for input during a turn",
        handled_by!(chat::answer),
    )
    .about("The event `questions` of the turn contains the questions.")
    .takes::<api::ChatAnswers>(),
    Route::new(
        "listRuns",
        "GET /api/v1/runs",
        READ,
        "List the agent runs, newest first",
        handled_by!(runs::list),
    )
    .asks(OF_RUNS)
    .answers::<api::Runs>(),
    Route::new(
        "getRun",
        "GET /api/v1/runs/{run}",
        READ,
        "Show a run with its calls",
        handled_by!(runs::show),
    )
    .answers::<api::WholeRun>(),
    Route::new(
        "listTools",
        "GET /api/v1/tools",
        READ,
        "List the tools",
        handled_by!(tools::list),
    )
    .asks(OF_TOOLS)
    .answers::<tools::Offered>(),
    Route::new(
        "searchTools",
        "GET /api/v1/tools/search",
        READ,
        "Search tools by a task",
        handled_by!(tools::search),
    )
    .about(
        "Finds the tools that `search_tools` would find for a model in search mode, with the reasons, and the tokens that the lists \
         of tools take.",
    )
    .asks(OF_TOOL_SEARCHES)
    .answers::<api::FoundTools>(),
    Route::new(
        "getAttention",
        "GET /api/v1/attention",
        READ,
        "Show the servers and tools that need a person",
        handled_by!(attention::show),
    )
    .about(
        "Counts the tools that wait for approval, the servers that are blocked or have failed, and the servers that need a \
         sign-in. For each of them, the response names the server. A sign-in that only one caller uses is shown to this caller.",
    )
    .answers::<api::Attention>(),
    Route::new(
        "followEvents",
        "GET /api/v1/events",
        READ,
        "Follow events",
        handled_by!(events::follow),
    )
    .about(
        "An event stream about servers (`server`: at first all servers, then each one that changes; `server_removed`), their \
         tools (`tools`), the servers and tools that need a person (`attention`), and calls that begin or end (`call`, `calls_skipped`).",
    )
    .answers_text(&[("text/event-stream", "HappeningEvents")]),
    Route::new(
        "listCalls",
        "GET /api/v1/calls",
        READ,
        "List the tool calls, newest first",
        handled_by!(calls::list),
    )
    .asks(OF_CALLS)
    .answers::<api::Calls>(),
    Route::new(
        "getCallStatistics",
        "GET /api/v1/calls/statistics",
        READ,
        "Count calls over time",
        handled_by!(statistics::show),
    )
    .about("Returns the number of calls and of errors, and the duration of the calls.")
    .asks(OF_STATISTICS)
    .answers::<api::CallStatistics>(),
    Route::new(
        "getCall",
        "GET /api/v1/calls/{call}",
        READ,
        "Show a call",
        handled_by!(calls::show),
    )
    .answers::<api::WholeCall>(),
    Route::new(
        "listKeys",
        "GET /api/v1/keys",
        MANAGE,
        "List the keys",
        handled_by!(keys::list),
    )
    .asks(PAGED)
    .answers::<api::Keys>(),
    Route::new(
        "createKey",
        "POST /api/v1/keys",
        MANAGE,
        "Create a key",
        handled_by!(keys::make),
    )
    .takes::<keys::WantedKey>()
    .creates()
    .answers::<api::MadeKey>(),
    Route::new(
        "revokeKey",
        "DELETE /api/v1/keys/{key}",
        MANAGE,
        "Revoke a key",
        handled_by!(keys::revoke),
    ),
];
