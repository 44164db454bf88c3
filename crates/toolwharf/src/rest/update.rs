//! Moving servers on to newer versions of their packages. It is shown first; what is agreed to is what was shown.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
};
use engine::{
    Candidate, Gateway, UpdateError,
    catalog::{Item, ListKind},
    remember::definition_digest,
    server::Server,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::{Problem, Shared, approvals::difference, input, servers::Target};

/// What is wanted: a look at the newest version, or a change to one that was shown.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpdateRequest {
    /// Only shows what would change.
    pub(crate) check: bool,
    /// `to` of what was shown. Needed unless it is only checked.
    pub(crate) version: Option<String>,
    /// `digest` of what was shown. Needed unless it is only checked.
    pub(crate) digest: Option<String>,
}

/// A version of a server's package, and what changes with it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Update {
    pub(crate) server: String,
    pub(crate) package: String,
    /// `npm` or `pypi`.
    pub(crate) registry: String,
    /// The version that is started now; none if none is installed yet.
    pub(crate) from: Option<String>,
    /// The newest version that the server's command line allows.
    pub(crate) to: String,
    /// Whether the server is started from that version from now on.
    pub(crate) updated: bool,
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) changed: Vec<ChangedTool>,
    /// Why its tools could not be looked at: then their changes are not agreed to. It is started for that without a network.
    pub(crate) unseen: Option<String>,
    /// Of the version and the definitions that are shown here.
    pub(crate) digest: String,
    /// Other servers that are started from the same package. They move with this one.
    pub(crate) shared_with: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ChangedTool {
    /// As the server calls it.
    pub(crate) tool: String,
    /// From the definition before to the one after.
    pub(crate) diff: String,
}

pub(super) async fn update(
    State(rest): State<Shared>,
    target: Target,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Update>, Problem> {
    let server = rest.enabled(&target).await?;
    let asked: UpdateRequest = input::object(body)?;
    Ok(Json(run(&rest.gateway, &server, asked).await?))
}

/// Looks at the newest version of a server's package, or moves the server on to one that was shown.
async fn run(
    gateway: &Gateway,
    server: &Arc<Server>,
    asked: UpdateRequest,
) -> Result<Update, Problem> {
    if asked.check {
        return Ok(shown(server, &gateway.newest(server).await?));
    }
    let (Some(version), Some(digest)) = (asked.version, asked.digest) else {
        let why = "an update needs `version` and `digest` of what was shown; `{\"check\": true}` shows it";
        return Err(Problem::new(422, why));
    };
    let candidate = gateway.version(server, version).await?;
    let mut update = shown(server, &candidate);
    if update.digest != digest {
        let why = "its tools are not defined as they were shown, or nobody was shown this version; check again";
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
            // The registry, as a rule.
            UpdateError::Package(_) => Self::new(502, error.to_string()),
        }
    }
}
