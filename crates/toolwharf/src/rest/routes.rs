//! [`ROUTES`]: the one list of what there is. Who may use it, its documentation and its tests follow from it.

use axum::{
    extract::DefaultBodyLimit,
    routing::{MethodRouter, delete, get, post, put},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Shared, access::Need, approvals, bridge, calls, chat, hosted, keys, logs, openapi,
    openapi::Schemas, owned, products, projects, runs, secrets, servers, status, tools,
};
use crate::auth::Role;

/// Largest entry of a server, in bytes.
const ENTRY_BYTES: usize = 256 << 10;
/// Largest file to import, in bytes: as large as a configuration file may be, as a JSON string.
const IMPORT_BYTES: usize = 16 << 20;
/// Largest other body, in bytes.
const BODY_BYTES: usize = 2 << 20;

/// One operation.
#[derive(Serialize)]
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    #[serde(rename = "role")]
    pub(super) need: Need,
    pub(super) summary: &'static str,
    #[serde(skip)]
    pub(super) serve: fn() -> MethodRouter<Shared>,
    #[serde(skip)]
    pub(super) body: Option<Body>,
    #[serde(skip)]
    pub(super) answer: Answer,
    /// May make what was not there: 201.
    #[serde(skip)]
    pub(super) creates: bool,
    /// Answers with a tag, and takes conditions about it.
    #[serde(skip)]
    pub(super) tagged: bool,
    #[serde(skip)]
    pub(super) query: &'static [Parameter],
}

type SchemaOf = fn(&mut Schemas) -> Value;

#[derive(Clone, Copy)]
pub(super) enum Body {
    Json(SchemaOf),
    /// A server's entry, or a product's manifest: anything that is an object.
    Object(&'static [&'static str]),
}

#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// 204
    Nothing,
    Json(SchemaOf),
    /// Text, or a stream of events.
    Text,
}

/// Something behind the `?`.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Text,
    Server,
    Number,
    Lines,
    Boolean,
    Time,
    Status,
    Format,
    Project,
}

const fn parameter(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter { name, about, kind }
}

const LIMIT: Parameter = parameter(
    "limit",
    Kind::Number,
    "The most rows, 1 to 1000; 100 without it",
);
const AFTER: Parameter = parameter("after", Kind::Text, "`next` of the page before");
const PAGED: &[Parameter] = &[LIMIT, AFTER];
const OF_CALLS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("server", Kind::Text, "Only of this server"),
    parameter(
        "tool",
        Kind::Text,
        "Only of this tool, by its server's name for it",
    ),
    parameter("status", Kind::Status, "Only with this outcome"),
    parameter("caller", Kind::Text, "Only by this caller"),
    parameter("run", Kind::Text, "Only of this run of an agent"),
    parameter("since", Kind::Time, "Only begun at this time or later"),
    parameter("until", Kind::Time, "Only begun before this time"),
];
const OF_ALL_CALLS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("project", Kind::Project, "Only of this project"),
    parameter("server", Kind::Text, "Only of this server"),
    parameter(
        "tool",
        Kind::Text,
        "Only of this tool, by its server's name for it",
    ),
    parameter("status", Kind::Status, "Only with this outcome"),
    parameter("caller", Kind::Text, "Only by this caller"),
    parameter("run", Kind::Text, "Only of this run of an agent"),
    parameter("since", Kind::Time, "Only begun at this time or later"),
    parameter("until", Kind::Time, "Only begun before this time"),
];
const OF_RUNS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("status", Kind::Text, "Only with this outcome"),
    parameter("conversation", Kind::Text, "Only of this conversation"),
];
const OF_ALL_RUNS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("project", Kind::Project, "Only of this project"),
    parameter("status", Kind::Text, "Only with this outcome"),
    parameter("conversation", Kind::Text, "Only of this conversation"),
];
const DECLARED: Parameter = parameter(
    "format",
    Kind::Format,
    "Declarations instead, as this kind of model or development kit takes them, of what clients see",
);
const OF_TOOLS: &[Parameter] = &[
    parameter("server", Kind::Server, "Only of this server"),
    DECLARED,
];
const OF_ALL_TOOLS: &[Parameter] = &[
    parameter("project", Kind::Project, "As this project sees them"),
    parameter("server", Kind::Server, "Only of this server"),
    DECLARED,
];
const OF_LOGS: &[Parameter] = &[
    parameter("tail", Kind::Lines, "The last lines, 200 without it"),
    parameter("follow", Kind::Boolean, "Goes on, as an event stream"),
];

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

const ADMIN: Need = Need::Administrator;
const READ: Need = Need::Project(Role::Read);
const CALL: Need = Need::Project(Role::Call);
const MANAGE: Need = Need::Project(Role::Manage);
/// In a project, but not for its own keys.
const OWNER: Need = Need::Project(Role::Admin);

impl Route {
    const fn new(
        method: &'static str,
        path: &'static str,
        need: Need,
        summary: &'static str,
        serve: fn() -> MethodRouter<Shared>,
    ) -> Self {
        Self {
            method,
            path,
            need,
            summary,
            serve,
            body: None,
            answer: Answer::Nothing,
            creates: false,
            tagged: false,
            query: &[],
        }
    }

    const fn takes<T: ToSchema>(mut self) -> Self {
        self.body = Some(Body::Json(openapi::reference::<T>));
        self
    }

    const fn takes_object(mut self, kinds: &'static [&'static str]) -> Self {
        self.body = Some(Body::Object(kinds));
        self
    }

    const fn answers<T: ToSchema>(mut self) -> Self {
        self.answer = Answer::Json(openapi::reference::<T>);
        self
    }

    const fn answers_text(mut self) -> Self {
        self.answer = Answer::Text;
        self
    }

    const fn creates(mut self) -> Self {
        self.creates = true;
        self
    }

    const fn tagged(mut self) -> Self {
        self.tagged = true;
        self
    }

    const fn asks(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;
        self
    }
}

const JSON: &[&str] = &["application/json"];
const MANIFEST: &[&str] = &["application/json", "application/yaml"];

pub(super) const ROUTES: &[Route] = &[
    Route::new("GET", "/api/v1", ADMIN, "List these routes", || {
        get(super::index)
    })
    .answers::<super::Index>(),
    Route::new(
        "GET",
        "/api/v1/status",
        ADMIN,
        "How the gateway is, at a glance",
        || get(status::show),
    )
    .answers::<status::Status>(),
    Route::new(
        "POST",
        "/api/v1/master-key/rotate",
        ADMIN,
        "Seal all secrets with a new master key",
        || post(secrets::rotate),
    )
    .answers::<secrets::MasterKey>(),
    // Hosted servers.
    Route::new(
        "GET",
        "/api/v1/mcp/servers",
        ADMIN,
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
        ADMIN,
        "Show one hosted server, by its id or name",
        || get(hosted::show),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "PUT",
        "/api/v1/mcp/servers/{id}",
        ADMIN,
        "Replace a registration; the server is started anew",
        || put(hosted::update).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_object(JSON)
    .answers::<hosted::HostedServer>(),
    Route::new(
        "DELETE",
        "/api/v1/mcp/servers/{id}",
        ADMIN,
        "Stop a hosted server and forget it",
        || delete(hosted::remove),
    )
    .asks(OF_DELETING),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/call",
        ADMIN,
        "Send a hosted server one request; as an event stream if that is accepted",
        || post(bridge::routed),
    )
    .takes::<bridge::CallRequest>()
    .answers::<bridge::CallResult>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/restart",
        ADMIN,
        "Stop a hosted server and start it anew",
        || post(hosted::restart),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/start",
        ADMIN,
        "Start a hosted server",
        || post(hosted::start),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "POST",
        "/api/v1/mcp/servers/{id}/stop",
        ADMIN,
        "Stop a hosted server",
        || post(hosted::stop),
    )
    .answers::<hosted::HostedServer>(),
    Route::new(
        "GET",
        "/api/v1/mcp/servers/{id}/logs",
        ADMIN,
        "What a hosted server writes to stderr",
        || get(logs::read_hosted),
    )
    .asks(OF_LOGS)
    .answers_text(),
    Route::new(
        "GET",
        "/api/v1/mcp/servers/{id}/events",
        ADMIN,
        "What happened to a hosted server, newest first",
        || get(hosted::events),
    )
    .asks(PAGED)
    .answers::<hosted::Events>(),
    // The servers of the configuration file.
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
    Route::new(
        "POST",
        "/api/v1/chat",
        ADMIN,
        "Say something to the agent that has all servers; what comes of it is an event stream",
        || post(chat::chat),
    )
    .takes::<chat::ChatRequest>()
    .answers_text(),
    Route::new(
        "GET",
        "/api/v1/conversations",
        ADMIN,
        "List all conversations with agents, newest first",
        || get(chat::list),
    )
    .asks(PAGED)
    .answers::<chat::Conversations>(),
    Route::new(
        "GET",
        "/api/v1/conversations/{conversation}",
        ADMIN,
        "A conversation of no project, with all that was said",
        || get(chat::show),
    )
    .answers::<chat::WholeConversation>(),
    Route::new(
        "DELETE",
        "/api/v1/conversations/{conversation}",
        ADMIN,
        "Forget a conversation of no project",
        || delete(chat::remove),
    ),
    Route::new(
        "GET",
        "/api/v1/runs",
        ADMIN,
        "List the runs of agents, newest first",
        || get(runs::list_all),
    )
    .asks(OF_ALL_RUNS)
    .answers::<runs::Runs>(),
    Route::new(
        "GET",
        "/api/v1/runs/{run}",
        ADMIN,
        "Show one run with its calls",
        || get(runs::show_any),
    )
    .answers::<runs::WholeRun>(),
    Route::new("GET", "/api/v1/tools", ADMIN, "List the tools", || {
        get(tools::list)
    })
    .asks(OF_ALL_TOOLS)
    .answers::<tools::Offered>(),
    Route::new(
        "GET",
        "/api/v1/calls",
        ADMIN,
        "List the calls of tools, newest first",
        || get(calls::list_all),
    )
    .asks(OF_ALL_CALLS)
    .answers::<calls::Calls>(),
    Route::new(
        "GET",
        "/api/v1/calls/{call}",
        ADMIN,
        "Show one call",
        || get(calls::show_any),
    )
    .answers::<calls::WholeCall>(),
    Route::new("GET", "/api/v1/keys", ADMIN, "List all keys", || {
        get(keys::list_all)
    })
    .asks(PAGED)
    .answers::<keys::Keys>(),
    Route::new(
        "POST",
        "/api/v1/keys",
        ADMIN,
        "Make an administrator's key",
        || post(keys::make_admin),
    )
    .takes::<keys::WantedAdminKey>()
    .creates()
    .answers::<keys::MadeKey>(),
    Route::new(
        "DELETE",
        "/api/v1/keys/{key}",
        ADMIN,
        "Revoke a key",
        || delete(keys::revoke_any),
    ),
    // Projects.
    Route::new(
        "GET",
        "/api/v1/projects",
        ADMIN,
        "List the projects",
        || get(projects::list),
    )
    .asks(PAGED)
    .answers::<projects::Projects>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}",
        READ,
        "Show a project",
        || get(projects::show),
    )
    .tagged()
    .answers::<projects::Project>(),
    Route::new(
        "PUT",
        "/api/v1/projects/{project}",
        Need::NewProject,
        "Add or change a project",
        || put(projects::save),
    )
    .takes::<projects::ProjectConfig>()
    .creates()
    .tagged()
    .answers::<projects::Project>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}",
        OWNER,
        "Remove a project and all that is its own",
        || delete(projects::remove),
    )
    .tagged(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/servers",
        READ,
        "List the project's servers and how they are",
        || get(owned::list),
    )
    .asks(PAGED)
    .answers::<owned::OwnedServers>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/servers/{name}",
        READ,
        "Show one server",
        || get(owned::show),
    )
    .tagged()
    .answers::<owned::OwnedServer>(),
    Route::new(
        "PUT",
        "/api/v1/projects/{project}/servers/{name}",
        MANAGE,
        "Add or replace a server; its entry as in mcp.json, besides `description` and `enabled`",
        || put(owned::save).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    )
    .takes_object(JSON)
    .creates()
    .tagged()
    .answers::<owned::OwnedServer>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/servers/{name}",
        MANAGE,
        "Remove a server",
        || delete(owned::remove),
    )
    .tagged(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/servers/{name}/enable",
        MANAGE,
        "Switch a server on",
        || post(owned::enable),
    )
    .answers::<owned::OwnedServer>(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/servers/{name}/disable",
        MANAGE,
        "Switch a server off",
        || post(owned::disable),
    )
    .answers::<owned::OwnedServer>(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/servers/{name}/restart",
        MANAGE,
        "Start a server anew",
        || post(owned::restart),
    )
    .answers::<owned::OwnedServer>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/tools",
        READ,
        "List the tools that the project sees",
        || get(tools::list_of),
    )
    .asks(OF_TOOLS)
    .answers::<tools::Offered>(),
    Route::new(
        "PUT",
        "/api/v1/projects/{project}/servers/{server}/tools/{tool}/setting",
        MANAGE,
        "Switch, rename or re-describe a tool for the project",
        || put(tools::set),
    )
    .takes::<tools::Setting>()
    .answers::<tools::Setting>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/servers/{server}/tools/{tool}/setting",
        MANAGE,
        "Have a tool as its server says",
        || delete(tools::unset),
    ),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/servers/{server}/tools/{tool}/approve",
        MANAGE,
        "Agree to a tool's changed definition",
        || post(approvals::approve_of),
    )
    .takes::<approvals::Approval>(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/servers/{name}/approve",
        MANAGE,
        "Agree to the changed definitions of several tools",
        || post(approvals::approve_all_of),
    )
    .takes::<approvals::Approvals>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/servers/{name}/changes",
        READ,
        "List the changes of tools' definitions that were agreed to, newest first",
        || get(approvals::changes_of),
    )
    .asks(PAGED)
    .answers::<approvals::Changes>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/secrets",
        READ,
        "List the secrets, without their values",
        || get(secrets::list),
    )
    .asks(PAGED)
    .answers::<secrets::Secrets>(),
    Route::new(
        "PUT",
        "/api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Set a secret",
        || put(secrets::save),
    )
    .takes::<secrets::SecretValue>()
    .creates()
    .answers::<secrets::Secret>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Remove a secret",
        || delete(secrets::remove),
    ),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/products",
        READ,
        "List the products",
        || get(products::list),
    )
    .asks(PAGED)
    .answers::<products::Products>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/products/{name}",
        READ,
        "Show one product",
        || get(products::show),
    )
    .tagged()
    .answers::<products::WholeProduct>(),
    Route::new(
        "PUT",
        "/api/v1/projects/{project}/products/{name}",
        OWNER,
        "Install or update a product",
        || put(products::save),
    )
    .takes_object(MANIFEST)
    .creates()
    .tagged()
    .answers::<products::InstalledProduct>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/products/{name}",
        OWNER,
        "Remove a product with its servers",
        || delete(products::remove),
    )
    .tagged(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/chat",
        CALL,
        "Say something to the agent of the project; what comes of it is an event stream",
        || post(chat::chat_in_project),
    )
    .takes::<chat::ChatRequest>()
    .answers_text(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/conversations",
        CALL,
        "List the project's conversations, newest first",
        || get(chat::list_in_project),
    )
    .asks(PAGED)
    .answers::<chat::Conversations>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/conversations/{conversation}",
        CALL,
        "A conversation of the project, with all that was said",
        || get(chat::show_in_project),
    )
    .answers::<chat::WholeConversation>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/conversations/{conversation}",
        CALL,
        "Forget a conversation of the project",
        || delete(chat::remove_in_project),
    ),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/runs",
        READ,
        "List the runs of the project's agent, newest first",
        || get(runs::list),
    )
    .asks(OF_RUNS)
    .answers::<runs::Runs>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/runs/{run}",
        READ,
        "Show one run with its calls",
        || get(runs::show),
    )
    .answers::<runs::WholeRun>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/calls",
        READ,
        "List the calls of tools, newest first",
        || get(calls::list),
    )
    .asks(OF_CALLS)
    .answers::<calls::Calls>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/calls/{call}",
        READ,
        "Show one call",
        || get(calls::show),
    )
    .answers::<calls::WholeCall>(),
    Route::new(
        "GET",
        "/api/v1/projects/{project}/keys",
        MANAGE,
        "List the project's keys",
        || get(keys::list),
    )
    .asks(PAGED)
    .answers::<keys::Keys>(),
    Route::new(
        "POST",
        "/api/v1/projects/{project}/keys",
        MANAGE,
        "Make a key of the project",
        || post(keys::make),
    )
    .takes::<keys::WantedKey>()
    .creates()
    .answers::<keys::MadeKey>(),
    Route::new(
        "DELETE",
        "/api/v1/projects/{project}/keys/{key}",
        MANAGE,
        "Revoke a key of the project",
        || delete(keys::revoke),
    ),
];

/// The route's handler with the limit of its body.
pub(super) fn handler(route: &Route) -> MethodRouter<Shared> {
    // The inner of two limits counts.
    (route.serve)().layer(DefaultBodyLimit::max(BODY_BYTES))
}
