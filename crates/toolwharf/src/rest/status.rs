//! How the gateway is, at a glance.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Row, Shared};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) database: Database,
    /// How many servers are in each state, those of projects that are in use included.
    pub(crate) servers: BTreeMap<String, usize>,
    pub(crate) audit: Audit,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Database {
    /// `sqlite` or `postgres`.
    pub(crate) kind: String,
    pub(crate) answers: bool,
    /// Why it does not.
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Audit {
    /// Whether calls are recorded.
    pub(crate) enabled: bool,
}

pub(super) async fn show(State(rest): State<Shared>) -> Json<Status> {
    let store = rest.projects.store();
    let reason = store.ping().await.err().map(|error| error.to_string());
    let mut servers = BTreeMap::new();
    for server in rest.gateway.fleet().all() {
        *servers.entry(Row::of(server).state).or_default() += 1;
    }
    Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        database: Database {
            kind: store.kind().to_owned(),
            answers: reason.is_none(),
            reason,
        },
        servers,
        audit: Audit {
            enabled: rest.gateway.settings().audit.enabled,
        },
    })
}
