//! The REST API under `/api/v1`, which the command line and the console use.
//!
//! Invariants:
//! - Every route needs a key, including unknown routes. The page `/docs` is not part of the API.
//! - Every error is a problem detail (RFC 9457).
//! - No response contains the value of a secret. Only callers that may change a server see its entry.
//! - [`routes`] is the only list of routes.
//! - Configuration changes are made one at a time, so that a precondition (`If-Match`) still holds when the change is
//!   made. This does not exclude other processes on the same database.

mod access;
pub mod agents;
mod answer;
mod approvals;
mod attention;
pub(crate) mod bridge;
mod browser;
mod callers;
mod calls;
mod chat;
mod clients;
pub mod console;
mod docs;
mod doctor;
mod events;
mod input;
mod keys;
mod logins;
mod logs;
mod manifest;
mod openapi;
mod products;
mod projects;
mod registry;
mod replicas;
mod returns;
mod route;
mod routes;
mod runs;
mod schemas;
mod secrets;
mod servers;
mod statistics;
mod status;
mod tools;
mod update;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Json, Router, middleware};
use bytes::Bytes;
use engine::Gateway;
use http::Request;
use mcp::backlog::Account;
use serde::Serialize;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use utoipa::ToSchema;

use self::route::Route;
pub use self::{
    answer::Problem,
    logs::NOTICE,
    schemas::bodies as body_schemas,
    servers::{configured, imported},
};
use crate::agents::Agents;
use auth::{Keys, Principal};
use backend::{
    backup::schedule::Latest, clients::Clients, hosting::Hosting, logins::Logins,
    projects::Projects, reload::Live, replica::Replica,
};
use gateway::{Answered, Body, HttpGateway, Routes, Upload};
use install::Catalogue;

/// Maximum number of concurrent log and event streams.
const MAX_FOLLOWERS: usize = 64;

/// Longest wait for another configuration change. With a slow database, each change can take several seconds.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that handlers share.
pub struct Rest {
    front: Arc<HttpGateway>,
    gateway: Gateway,
    live: Arc<Live>,
    projects: Arc<Projects>,
    hosting: Arc<Hosting>,
    agents: Arc<Agents>,
    keys: Arc<Keys>,
    logins: Arc<Logins>,
    catalogue: Catalogue,
    /// MCP clients of the user that runs the gateway. `None` if other users can reach the gateway.
    clients: Option<Clients>,
    /// Held while the configuration of projects is changed.
    edits: Mutex<()>,
    replica: Option<Arc<Replica>>,
    /// The outcomes of scheduled backups.
    backups: Arc<Latest>,
    /// Ends streams when the gateway stops.
    over: CancellationToken,
    followers: Arc<Semaphore>,
    statistics: statistics::Statistics,
    /// Held while `toolwharf doctor` runs.
    examining: Semaphore,
}

impl Rest {
    #[expect(clippy::too_many_arguments, reason = "the state that handlers share")]
    pub fn new(
        front: Arc<HttpGateway>,
        live: Arc<Live>,
        hosting: Arc<Hosting>,
        agents: Arc<Agents>,
        keys: Arc<Keys>,
        logins: Arc<Logins>,
        catalogue: Catalogue,
        clients: Option<Clients>,
        replica: Option<Arc<Replica>>,
        backups: Arc<Latest>,
        over: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            gateway: front.gateway().clone(),
            front,
            live,
            projects: agents.projects().clone(),
            hosting,
            agents,
            keys,
            logins,
            catalogue,
            clients,
            edits: Mutex::default(),
            replica,
            backups,
            over,
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
            statistics: statistics::Statistics::default(),
            examining: Semaphore::new(1),
        })
    }
}

type AppState = Arc<Rest>;

impl Rest {
    /// Reserves a place for a log or event stream. Each stream polls repeatedly, so their number is limited.
    fn follower(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.followers.clone().try_acquire_owned();
        let many =
            format!("all {MAX_FOLLOWERS} log and event streams are in use: close one, or wait");
        place.map_err(|_| Problem::new(503, many))
    }

    /// Waits until other changes to the configuration of projects are done.
    async fn turn(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.edits.lock()).await;
        turn.map_err(|_| {
            let limit = TURN_TIMEOUT.as_secs();
            let why = format!("other changes to projects took more than {limit} s; try again");
            Problem::new(503, why)
        })
    }
}

#[derive(Serialize, ToSchema)]
struct Index {
    version: &'static str,
    routes: Vec<BTreeMap<&'static str, &'static str>>,
}

fn listed(route: &Route) -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("method", route.method()),
        ("path", route.path()),
        ("role", access::word(route.need.role())),
        ("summary", route.summary),
    ])
}

async fn index() -> Json<Index> {
    Json(Index {
        version: env!("CARGO_PKG_VERSION"),
        routes: routes::all().map(listed).collect(),
    })
}

/// The API, and all other routes except MCP.
pub struct Site {
    rest: AppState,
    router: Router,
}

impl Site {
    /// `more` are the routes outside the API.
    pub fn new(rest: AppState, more: Router) -> Arc<Self> {
        let router = router(rest.clone()).merge(more);
        Arc::new(Self { rest, router })
    }
}

impl Routes for Site {
    fn answer(&self, request: Request<Upload>, account: &Arc<Account>) -> Answered {
        if let Some(id) = bridge::called(&request) {
            let (rest, account) = (self.rest.clone(), account.clone());
            return Box::pin(bridge::answer(rest, id, account, request));
        }
        let answer = self
            .router
            .clone()
            .oneshot(request.map(axum::body::Body::new));
        Box::pin(async move {
            match answer.await {
                Ok(response) => response.map(Body::Other),
            }
        })
    }

    fn answer_replica(
        &self,
        who: Arc<Principal>,
        request: Request<Bytes>,
        account: &Arc<Account>,
    ) -> Answered {
        Box::pin(returns::answer(
            self.rest.clone(),
            who,
            request,
            account.clone(),
        ))
    }
}

fn router(rest: AppState) -> Router {
    let unknown = async || Problem::new(404, "unknown route; `GET /api/v1` lists the routes");
    let not_allowed = async || {
        Problem::new(
            405,
            "the route does not support this method; `GET /api/v1` lists the routes",
        )
    };
    let mut routes = Router::new();
    for route in routes::all() {
        let state = (rest.clone(), route.need);
        let admit = middleware::from_fn_with_state(state, access::admit);
        routes = routes.route(route.path(), routes::handler(route).route_layer(admit));
    }
    routes
        .route("/api/{*rest}", axum::routing::any(unknown))
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(
            rest.clone(),
            access::identify,
        ))
        .merge(docs::router(rest.front.guard().prefix()))
        .with_state(rest)
}
