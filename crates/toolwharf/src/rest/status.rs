//! How the gateway is, at a glance.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Shared;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) database: Database,
    /// How many servers are in each state, those of projects that are in use included.
    pub(crate) servers: BTreeMap<String, usize>,
    /// The servers that tools are kept back of, those of projects that are in use included.
    #[serde(default)]
    pub(crate) kept_back: Vec<KeptBack>,
    pub(crate) audit: Audit,
}

/// How many tools of a server are kept back, for their definitions changed or cannot be remembered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeptBack {
    /// The project whose own server it is.
    pub(crate) project: Option<String>,
    pub(crate) server: String,
    pub(crate) tools: usize,
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
    let mut kept_back = Vec::new();
    let fleet = rest.gateway.fleet();
    for server in fleet.all() {
        let word = match server.spec.enabled {
            true => server.status().phase.word(),
            false => "disabled",
        };
        *servers.entry(word.to_owned()).or_default() += 1;
        let tools = fleet.kept_back(server).len();
        if tools > 0 {
            kept_back.push(KeptBack {
                project: server.spec.owner.as_ref().map(ToString::to_string),
                server: server.name().to_string(),
                tools,
            });
        }
    }
    Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        database: Database {
            kind: store.kind().to_owned(),
            answers: reason.is_none(),
            reason,
        },
        servers,
        kept_back,
        audit: Audit {
            enabled: rest.gateway.settings().audit.enabled,
        },
    })
}
