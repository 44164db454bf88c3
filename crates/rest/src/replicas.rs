//! Routes of replicas and their leases.

use api::{Lease, Replica, Replicas};
use axum::{Json, extract::State};

use super::{AppState, Problem};

pub(super) async fn list(State(rest): State<AppState>) -> Result<Json<Replicas>, Problem> {
    let store = rest.projects.store();
    let (rows, leases) = tokio::try_join!(store.replica_list(), store.lease_list())?;
    let own = rest.replica.as_ref().map(|replica| replica.id());
    let to_api = |row: store::ReplicaRow| Replica {
        is_self: own.as_ref() == Some(&row.id),
        leases: leases
            .iter()
            .filter(|lease| lease.holder == row.id)
            .map(|lease| Lease {
                name: lease.name.clone(),
                fence: lease.fence,
                since: lease.since,
            })
            .collect(),
        id: row.id,
        name: row.name,
        version: row.version,
        address: row.address,
        started_at: row.started_at,
        seen_at: row.seen_at,
        expires_at: row.expires_at,
    };
    Ok(Json(Replicas {
        replicas: rows.into_iter().map(to_api).collect(),
    }))
}
