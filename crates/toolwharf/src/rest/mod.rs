//! The administrator's API under `/api/v1`: what the command line and the console work with.
//!
//! Invariants: every route needs the administrator's token, unknown ones included; every error is a problem
//! detail (RFC 9457); no answer holds a value of `env` or `headers`, an argument or a user part of a URL.
//! [`ROUTES`] is the one list of what there is. Deliberately absent: anything that has no use yet.

mod answer;
mod logs;
mod servers;
mod tools;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post, put},
};
use engine::Gateway;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    answer::Problem,
    logs::NOTICE,
    servers::{Detail, Imported, Row, Saved, Servers},
    tools::{Tool, Tools},
};
use crate::{auth::Role, gateway::Front, live::Live};

/// Largest entry of a server, in bytes.
const ENTRY_BYTES: usize = 256 << 10;
/// Largest file to import, in bytes: as large as a configuration file may be, as a JSON string.
const IMPORT_BYTES: usize = 16 << 20;
/// Those who follow logs at a time.
const FOLLOWERS: usize = 64;

/// What the handlers share.
pub(crate) struct Rest {
    front: Arc<Front>,
    gateway: Gateway,
    live: Arc<Live>,
    /// Ends streams when the product stops.
    over: CancellationToken,
    followers: Arc<Semaphore>,
}

impl Rest {
    pub(crate) fn new(
        front: Arc<Front>,
        gateway: Gateway,
        live: Arc<Live>,
        over: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            front,
            gateway,
            live,
            over,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        })
    }
}

type Shared = Arc<Rest>;

/// One operation.
#[derive(Serialize)]
struct Route {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    #[serde(skip)]
    serve: fn() -> MethodRouter<Shared>,
}

const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/api/v1",
        summary: "List these routes",
        serve: || get(index),
    },
    Route {
        method: "GET",
        path: "/api/v1/servers",
        summary: "List the servers and how they are",
        serve: || get(servers::list),
    },
    Route {
        method: "POST",
        path: "/api/v1/import",
        summary: "Add the servers of another file",
        serve: || post(servers::import).layer(DefaultBodyLimit::max(IMPORT_BYTES)),
    },
    Route {
        method: "GET",
        path: "/api/v1/servers/{name}",
        summary: "Show one server",
        serve: || get(servers::show),
    },
    Route {
        method: "PUT",
        path: "/api/v1/servers/{name}",
        summary: "Add or replace a server; its entry as in mcp.json",
        serve: || put(servers::save).layer(DefaultBodyLimit::max(ENTRY_BYTES)),
    },
    Route {
        method: "DELETE",
        path: "/api/v1/servers/{name}",
        summary: "Remove a server",
        serve: || axum::routing::delete(servers::remove),
    },
    Route {
        method: "POST",
        path: "/api/v1/servers/{name}/enable",
        summary: "Switch a server on",
        serve: || post(servers::enable),
    },
    Route {
        method: "POST",
        path: "/api/v1/servers/{name}/disable",
        summary: "Switch a server off",
        serve: || post(servers::disable),
    },
    Route {
        method: "GET",
        path: "/api/v1/servers/{name}/logs",
        summary: "What a server writes to stderr; ?tail=N, ?follow=true",
        serve: || get(logs::read),
    },
    Route {
        method: "POST",
        path: "/api/v1/servers/{name}/tools/{tool}/enable",
        summary: "Switch a tool on",
        serve: || post(tools::enable),
    },
    Route {
        method: "POST",
        path: "/api/v1/servers/{name}/tools/{tool}/disable",
        summary: "Switch a tool off",
        serve: || post(tools::disable),
    },
    Route {
        method: "GET",
        path: "/api/v1/tools",
        summary: "List the tools; ?project=ID, ?server=NAME",
        serve: || get(tools::list),
    },
];

#[derive(Serialize)]
struct Index {
    version: &'static str,
    routes: &'static [Route],
}

async fn index() -> Json<Index> {
    Json(Index {
        version: env!("CARGO_PKG_VERSION"),
        routes: ROUTES,
    })
}

pub(crate) fn router(rest: Shared) -> Router {
    let unknown = async || Problem::new(404, "there is no such route; see GET /api/v1");
    let not_allowed = async || Problem::new(405, "the route has other methods; see GET /api/v1");
    let mut routes = Router::new();
    for route in ROUTES {
        routes = routes.route(route.path, (route.serve)());
    }
    routes
        .route("/api/{*rest}", axum::routing::any(unknown))
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(rest.clone(), administrator))
        .with_state(rest)
}

/// Nothing is looked at before the key is.
async fn administrator(State(rest): State<Shared>, request: Request, next: Next) -> Response {
    match rest.front.guard().key(request.headers()) {
        Ok(who) if who.may(Role::Admin, None) => next.run(request).await,
        Ok(_) => Problem::new(403, "this needs an administrator's key").into_response(),
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}
