//! Projects, and what is their own.

use axum::routing::{delete, get, post, put};

use super::DECLARED;
use crate::rest::{
    access::Need,
    calls, chat, keys, products, projects,
    route::{
        ADMIN, AFTER, CALL, CHAT_EVENTS, Kind, LIMIT, MANAGE, OWNER, PAGED, Parameter, READ, Route,
        parameter,
    },
    runs, secrets, tools,
};

const MANIFEST: &[&str] = &["application/json", "application/yaml"];

const OF_RUNS: &[Parameter] = &[
    LIMIT,
    AFTER,
    parameter("status", Kind::Text, "Only with this outcome"),
    parameter("conversation", Kind::Text, "Only of this conversation"),
];

const OF_CALLS: &[Parameter] = &[
    LIMIT,
    AFTER,
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

const OF_TOOLS: &[Parameter] = &[
    parameter("server", Kind::Server, "Only of this server"),
    DECLARED,
];

pub(super) const PROJECTS: &[Route] = &[
    Route::new(
        "listProjects",
        "GET",
        "/api/v1/projects",
        ADMIN,
        "List the projects",
        || get(projects::list),
    )
    .asks(PAGED)
    .answers::<api::Projects>(),
    Route::new(
        "getProject",
        "GET",
        "/api/v1/projects/{project}",
        READ,
        "Show a project",
        || get(projects::show),
    )
    .tagged()
    .answers::<api::Project>(),
    Route::new(
        "putProject",
        "PUT",
        "/api/v1/projects/{project}",
        Need::NewProject,
        "Add or change a project",
        || put(projects::save),
    )
    .takes::<api::ProjectConfig>()
    .creates()
    .tagged()
    .answers::<api::Project>(),
    Route::new(
        "deleteProject",
        "DELETE",
        "/api/v1/projects/{project}",
        OWNER,
        "Delete a project",
        || delete(projects::remove),
    )
    .about("Its servers, secrets, products and keys are deleted with it.")
    .tagged(),
    Route::new(
        "listProjectTools",
        "GET",
        "/api/v1/projects/{project}/tools",
        READ,
        "List the tools that the project sees",
        || get(tools::list_of),
    )
    .asks(OF_TOOLS)
    .answers::<tools::Offered>(),
    Route::new(
        "listSecrets",
        "GET",
        "/api/v1/projects/{project}/secrets",
        READ,
        "List the secrets, without their values",
        || get(secrets::list),
    )
    .asks(PAGED)
    .answers::<api::Secrets>(),
    Route::new(
        "putSecret",
        "PUT",
        "/api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Set a secret",
        || put(secrets::save),
    )
    .takes::<api::SecretValue>()
    .creates()
    .answers::<api::Secret>(),
    Route::new(
        "deleteSecret",
        "DELETE",
        "/api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Remove a secret",
        || delete(secrets::remove),
    ),
    Route::new(
        "listProducts",
        "GET",
        "/api/v1/projects/{project}/products",
        READ,
        "List the products",
        || get(products::list),
    )
    .asks(PAGED)
    .answers::<api::Products>(),
    Route::new(
        "getProduct",
        "GET",
        "/api/v1/projects/{project}/products/{name}",
        READ,
        "Show one product",
        || get(products::show),
    )
    .tagged()
    .answers::<api::WholeProduct>(),
    Route::new(
        "putProduct",
        "PUT",
        "/api/v1/projects/{project}/products/{name}",
        OWNER,
        "Install or update a product",
        || put(products::save),
    )
    .takes_written("ProductManifest", MANIFEST)
    .creates()
    .tagged()
    .answers::<api::InstalledProduct>(),
    Route::new(
        "deleteProduct",
        "DELETE",
        "/api/v1/projects/{project}/products/{name}",
        OWNER,
        "Remove a product with its servers",
        || delete(products::remove),
    )
    .tagged(),
    Route::new(
        "chatInProject",
        "POST",
        "/api/v1/projects/{project}/chat",
        CALL,
        "Chat with the agent of the project",
        || post(chat::chat_in_project),
    )
    .about("The answer is an event stream. Without `conversation` a new one begins.")
    .takes::<api::ChatRequest>()
    .answers_text(CHAT_EVENTS),
    Route::new(
        "listProjectConversations",
        "GET",
        "/api/v1/projects/{project}/conversations",
        CALL,
        "List the project's conversations, newest first",
        || get(chat::list_in_project),
    )
    .asks(PAGED)
    .answers::<api::Conversations>(),
    Route::new(
        "getProjectConversation",
        "GET",
        "/api/v1/projects/{project}/conversations/{conversation}",
        CALL,
        "Show a conversation of the project",
        || get(chat::show_in_project),
    )
    .answers::<api::WholeConversation>(),
    Route::new(
        "deleteProjectConversation",
        "DELETE",
        "/api/v1/projects/{project}/conversations/{conversation}",
        CALL,
        "Delete a conversation of the project",
        || delete(chat::remove_in_project),
    ),
    Route::new(
        "listProjectRuns",
        "GET",
        "/api/v1/projects/{project}/runs",
        READ,
        "List the runs of the project's agent, newest first",
        || get(runs::list),
    )
    .asks(OF_RUNS)
    .answers::<api::Runs>(),
    Route::new(
        "getProjectRun",
        "GET",
        "/api/v1/projects/{project}/runs/{run}",
        READ,
        "Show one run with its calls",
        || get(runs::show),
    )
    .answers::<api::WholeRun>(),
    Route::new(
        "listProjectCalls",
        "GET",
        "/api/v1/projects/{project}/calls",
        READ,
        "List the calls of tools, newest first",
        || get(calls::list),
    )
    .asks(OF_CALLS)
    .answers::<api::Calls>(),
    Route::new(
        "getProjectCall",
        "GET",
        "/api/v1/projects/{project}/calls/{call}",
        READ,
        "Show one call",
        || get(calls::show),
    )
    .answers::<api::WholeCall>(),
    Route::new(
        "listProjectKeys",
        "GET",
        "/api/v1/projects/{project}/keys",
        MANAGE,
        "List the project's keys",
        || get(keys::list),
    )
    .asks(PAGED)
    .answers::<api::Keys>(),
    Route::new(
        "createProjectKey",
        "POST",
        "/api/v1/projects/{project}/keys",
        MANAGE,
        "Make a key of the project",
        || post(keys::make),
    )
    .takes::<keys::WantedKey>()
    .creates()
    .answers::<api::MadeKey>(),
    Route::new(
        "revokeProjectKey",
        "DELETE",
        "/api/v1/projects/{project}/keys/{key}",
        MANAGE,
        "Revoke a key of the project",
        || delete(keys::revoke),
    ),
];
