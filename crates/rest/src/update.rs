//! Updates of server packages. A version is first shown, and only the version that was shown can be installed.

use std::{collections::BTreeMap, sync::Arc};

use api::{ChangedTool, Update, UpdateRequest};
use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use catalog::{Item, ListKind, remember::definition_digest};
use engine::{Candidate, Gateway, UpdateError, server::Server};
use sha2::{Digest as _, Sha256};

use super::{AppState, Problem, approvals::difference, input, servers::Target};

pub(super) async fn update(
    State(rest): State<AppState>,
    target: Target,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Update>, Problem> {
    let server = rest.enabled(&target).await?;
    let asked: UpdateRequest = input::object(body)?;
    Ok(Json(run(&rest.gateway, &server, asked).await?))
}

/// Shows the newest version of a server's package, or updates the server to a version that was shown.
async fn run(
    gateway: &Gateway,
    server: &Arc<Server>,
    asked: UpdateRequest,
) -> Result<Update, Problem> {
    if asked.check {
        return Ok(shown(server, &gateway.newest(server).await?));
    }
    let (Some(version), Some(digest)) = (asked.version, asked.digest) else {
        let why = "an update needs the `version` and `digest` of a check: `{\"check\": true}` returns them";
        return Err(Problem::new(422, why));
    };
    let candidate = gateway.version(server, version).await?;
    let mut update = shown(server, &candidate);
    if update.digest != digest {
        let why = "the version or its tool definitions differ from those of the check: check again";
        return Err(Problem::new(409, why));
    }
    gateway.update(server, &candidate).await?;
    update.updated = true;
    Ok(update)
}

fn shown(server: &Server, candidate: &Candidate) -> Update {
    let catalog = server.catalog();
    let old = by_name(catalog.list(ListKind::Tools));
    let (tools, unseen) = match &candidate.tools {
        Some(Ok(tools)) => (Some(by_name(tools)), None),
        Some(Err(why)) => (None, Some(why.to_string())),
        None => (None, None),
    };
    let mut hash = Sha256::new();
    hash.update(&candidate.version);
    let (mut added, mut removed, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for (name, item) in tools.iter().flatten() {
        let digest = definition_digest(&item.raw);
        hash.update(&digest);
        match old.get(name) {
            None => added.push((*name).to_owned()),
            Some(old) if definition_digest(&old.raw) != digest => {
                let text = |item: &Item| String::from_utf8_lossy(&item.raw).into_owned();
                let diff = difference(&text(old), &text(item));
                changed.push(ChangedTool {
                    tool: (*name).to_owned(),
                    diff,
                });
            }
            Some(_) => {}
        }
    }
    if let Some(tools) = &tools {
        let gone = old.keys().filter(|name| !tools.contains_key(*name));
        removed.extend(gone.map(|name| (*name).to_owned()));
    }
    let package = &candidate.package;
    let peers = candidate.peers.iter();
    Update {
        server: server.name().to_string(),
        package: package.name.clone(),
        registry: package.registry.to_owned(),
        from: package.pinned.clone(),
        to: candidate.version.clone(),
        updated: false,
        added,
        removed,
        changed,
        unseen,
        digest: hex::encode(hash.finalize()),
        shared_with: peers.map(|peer| peer.key().to_string()).collect(),
    }
}

fn by_name(items: &[Item]) -> BTreeMap<&str, &Item> {
    items.iter().map(|item| (&*item.native, item)).collect()
}

impl From<UpdateError> for Problem {
    fn from(error: UpdateError) -> Self {
        use runtime::Error;
        match error {
            UpdateError::NotPinned(_) => Self::new(409, error.to_string()),
            UpdateError::Store(error) => error.into(),
            UpdateError::Package(Error::Refused { why, .. }) => Self::new(422, why),
            UpdateError::Package(Error::Timeout { .. }) => Self::new(504, error.to_string()),
            // The usual cause is an error of the package registry.
            UpdateError::Package(_) => Self::new(502, error.to_string()),
        }
    }
}
