//! Routes for the state and the settings of the gateway.

use std::collections::BTreeMap;

use api::{
    Audit, BackupOutcome, Backups, Certificate, Database, KeptBack, SavedTokens, Settings, Status,
};
use axum::{Json, extract::State};

use super::AppState;

pub(super) async fn settings(State(rest): State<AppState>) -> Json<Settings> {
    Json(rest.live.settings().await)
}

pub(super) async fn show(State(rest): State<AppState>) -> Json<Status> {
    let store = rest.projects.store();
    let reason = store.ping().await.err().map(|error| error.to_string());
    let mut servers = BTreeMap::new();
    let mut kept_back = Vec::new();
    let fleet = rest.gateway.fleet();
    for server in fleet.all() {
        let word = match server.spec.enabled {
            true => server.status().word(),
            false => "disabled",
        };
        *servers.entry(word.to_owned()).or_default() += 1;
        let tools = fleet.awaiting_approval(server);
        if tools > 0 {
            kept_back.push(KeptBack {
                project: server.spec.owner.as_ref().map(ToString::to_string),
                server: server.name().to_string(),
                tools,
            });
        }
    }
    let saved = rest.gateway.saved_tokens();
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
        saved_tokens: SavedTokens {
            last_day: saved.last_day,
            since_start: saved.since_start,
        },
        backups: rest.backups.get().map(backups),
        certificate: rest.front.tls().map(|tls| Certificate {
            file: tls.file().display().to_string(),
            sha256: tls.digest(),
            failing: tls.failure(),
        }),
    })
}

fn backups(last: store::Backups) -> Backups {
    let outcome = |row: store::BackupRow| BackupOutcome {
        at: row.at,
        host: row.host,
        place: row.place,
        bytes: row.bytes,
        reason: row.reason,
    };
    Backups {
        failing: last.failing().is_some(),
        succeeded: last.succeeded.map(outcome),
        failed: last.failed.map(outcome),
    }
}
