//! The API under `/api/v1`: what the command line and the console work with.
//!
//! Invariants: every route needs a key, unknown ones included (the page `/docs` is none of them); every
//! error is a problem detail (RFC 9457); no answer holds the value of a secret, and only those who may change a server
//! are told its entry. [`routes`] is the one list of what there is. Changes of configuration are made one at a time, so
//! that a condition (`If-Match`) still holds when the change is made; other processes on the same database are not held
//! off. Deliberately absent: anything that has no use yet.

mod access;
mod answer;
mod approvals;
pub(crate) mod bridge;
mod browser;
mod calls;
mod chat;
mod clients;
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
pub(crate) use self::{
    answer::Problem,
    logs::NOTICE,
    schemas::bodies as body_schemas,
    servers::{configured, imported},
};
use crate::{
    agents::Agents,
    auth::{Keys, Principal},
    clients::Clients,
    gateway::{Answered, Body, Front, Routes, Upload},
    hosting::Hosting,
    install::Catalogue,
    live::Live,
    logins::Logins,
    projects::Projects,
    replica::Replica,
};

/// Those who follow logs and events at a time.
const FOLLOWERS: usize = 64;

/// Longest wait for a turn: a database that is slow can make each change take some seconds.
const TURN: Duration = Duration::from_secs(10);

/// What the handlers share.
pub(crate) struct Rest {
    front: Arc<Front>,
    gateway: Gateway,
    live: Arc<Live>,
    projects: Arc<Projects>,
    hosting: Arc<Hosting>,
    agents: Arc<Agents>,
    keys: Arc<Keys>,
    logins: Arc<Logins>,
    catalogue: Catalogue,
    /// Those of the gateway's own user; `None` where others may ask.
    clients: Option<Clients>,
    /// Whoever holds it may change what is configured of projects.
    edits: Mutex<()>,
    replica: Option<Arc<Replica>>,
    /// Ends streams when the product stops.
    over: CancellationToken,
    followers: Arc<Semaphore>,
    statistics: statistics::Statistics,
    /// Held while the installation is examined.
    examining: Semaphore,
}

impl Rest {
    #[expect(clippy::too_many_arguments, reason = "all that handlers share")]
    pub(crate) fn new(
        front: Arc<Front>,
        live: Arc<Live>,
        hosting: Arc<Hosting>,
        agents: Arc<Agents>,
        keys: Arc<Keys>,
        logins: Arc<Logins>,
        catalogue: Catalogue,
        clients: Option<Clients>,
        replica: Option<Arc<Replica>>,
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
            over,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            statistics: statistics::Statistics::default(),
            examining: Semaphore::new(1),
        })
    }
}

type AppState = Arc<Rest>;

impl Rest {
    /// A place among those who follow logs or events, each of which looks again and again.
    fn follower(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.followers.clone().try_acquire_owned();
        let many = "too many follow events or logs already; try again later";
        place.map_err(|_| Problem::new(503, many))
    }

    /// Waits for a turn to change what is configured of projects.
    async fn turn(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        let turn = tokio::time::timeout(TURN, self.edits.lock()).await;
        turn.map_err(|_| {
            Problem::new(
                503,
                "others have been changing projects for too long; try again",
            )
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

/// The API with what else is served beside MCP.
pub(crate) struct Site {
    rest: AppState,
    router: Router,
}

impl Site {
    /// `more` are routes beside those of the API.
    pub(crate) fn new(rest: AppState, more: Router) -> Arc<Self> {
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
    let unknown = async || Problem::new(404, "there is no such route; see GET /api/v1");
    let not_allowed = async || Problem::new(405, "the route has other methods; see GET /api/v1");
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
        .merge(docs::router())
        .with_state(rest)
}
