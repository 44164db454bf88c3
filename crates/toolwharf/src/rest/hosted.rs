//! Hosted servers: registering them, how they are, and what they are told to do (H01 to H20).
//!
//! Names of members are as in a registration, with underscores. Invariant: no answer holds the value of a variable
//! or an argument.

mod told;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{
        Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use engine::{Order, server::Server};
use futures_util::{StreamExt as _, stream};
use model::ServerName;
use serde::Deserialize;
use serde_json::Value;
use store::WorkspaceRow;

pub(crate) use self::told::{Enforced, Events, Happened, HostedServer, HostedServers};
use super::{
    Problem, Rest, Shared,
    access::{Registration, Who, permit},
    input::{self, Conditions, etag},
    owned::unfit,
};
use crate::{
    auth::{Principal, Role},
    hosting::{self, Entry, Error},
};

/// How long registering waits until the server is up or has failed to come up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Servers whose use of resources is looked at at a time.
const LOOKS: usize = 32;

/// How long a runtime may take to say what an instance uses.
const COUNTING: Duration = Duration::from_secs(2);

/// What is asked for when one is deleted.
#[derive(Debug, Deserialize)]
pub(super) struct Deleting {
    #[serde(default)]
    volumes: bool,
}

/// What is asked for when one is registered.
#[derive(Debug, Deserialize)]
pub(super) struct Registering {
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Unfit(wrong) => unfit("the server cannot be hosted so", wrong),
            Error::Taken(_) => Self::field(409, "/name", error.to_string()),
            Error::NoProject(_) => Self::field(422, "/project", error.to_string()),
            Error::Store(error) => error.into(),
            Error::Volumes(_) => Self::new(502, error.to_string()),
        }
    }
}

impl Rest {
    /// The row of a server that `who` reaches, by its id or by a name that only one of these has.
    ///
    /// # Errors
    /// 404 for servers that do not exist for `who`, 403 if the role in the server's project is too low, 409 for a name
    /// that several have.
    pub(super) async fn workspace(
        &self,
        who: &Principal,
        role: Role,
        id: &str,
    ) -> Result<WorkspaceRow, Problem> {
        let row = self.reached(who, id).await?;
        permit(who, role, hosting::owner(&row).as_ref())?;
        Ok(row)
    }

    async fn reached(&self, who: &Principal, id: &str) -> Result<WorkspaceRow, Problem> {
        let missing = || {
            let shown: String = id.chars().take(100).collect();
            Problem::new(404, format!("there is no hosted server `{shown}`"))
        };
        let own = who.project.as_ref();
        match self.hosting.store().workspace_get(own, id).await {
            Ok(row) => return Ok(row),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let Ok(name) = ServerName::parse(id) else {
            return Err(missing());
        };
        let mut named = self.hosting.rows_of(who).await?;
        named.retain(|row| row.name == name);
        match named.len() {
            0 => Err(missing()),
            1 => Ok(named.remove(0)),
            _ => {
                let ids: Vec<String> = named.into_iter().map(|row| row.id).collect();
                let ids = ids.join(", ");
                Err(Problem::new(
                    409,
                    format!(
                        "several projects have a hosted server `{name}`: say which by its id: {ids}"
                    ),
                ))
            }
        }
    }

    /// One that is hosted, and not switched off.
    pub(super) fn enabled(&self, row: &WorkspaceRow) -> Result<Arc<Server>, Problem> {
        match self.hosting.server(&row.id) {
            Some(server) if server.spec.enabled => Ok(server),
            Some(_) => {
                let way_out = "register it with `\"enabled\": true`";
                let why = format!("server `{}` is not enabled: {way_out}", row.name);
                Err(Problem::new(409, why))
            }
            None => Err(Problem::new(
                409,
                format!(
                    "server `{}` cannot be hosted as it is registered; see the log",
                    row.name
                ),
            )),
        }
    }

    /// The same for a call, which must not wait for the database: what the gateway hosts is what the rows say.
    pub(super) async fn callable(&self, who: &Principal, id: &str) -> Result<Arc<Server>, Problem> {
        match self.hosting.find(who, id) {
            Some(server) if server.spec.enabled => {
                permit(who, Role::Call, server.spec.owner.as_ref())?;
                Ok(server)
            }
            // Why not, the rows know. Rare, and boxed: what answers a call is moved into its connection.
            _ => self.enabled(&Box::pin(self.workspace(who, Role::Call, id)).await?),
        }
    }

    async fn told(&self, row: &WorkspaceRow) -> HostedServer {
        let server = self.hosting.server(&row.id);
        let load = match &server {
            Some(server) => tokio::time::timeout(COUNTING, server.usage())
                .await
                .ok()
                .flatten(),
            None => None,
        };
        HostedServer::of(row, server.as_deref(), load)
    }

    /// Waits until a server is up or has failed to come up.
    async fn settled(&self, id: &str) {
        if let Some(server) = self.hosting.server(id).filter(|server| server.spec.enabled) {
            let _ = tokio::time::timeout(PATIENCE, server.up()).await;
        }
    }
}

fn tag(row: &WorkspaceRow) -> String {
    etag(&row.config)
}

pub(super) async fn list(
    State(rest): State<Shared>,
    Extension(who): Who,
) -> Result<Json<HostedServers>, Problem> {
    let rows = rest.hosting.rows_of(&who).await?;
    // Each is a look at files of the kernel on a thread of its own, or a question to a daemon.
    let told = rows.into_iter().map(|row| {
        let rest = rest.clone();
        async move { rest.told(&row).await }
    });
    let servers = stream::iter(told).buffered(LOOKS).collect().await;
    Ok(Json(HostedServers { servers }))
}

pub(super) async fn register(
    State(rest): State<Shared>,
    query: Result<Query<Registering>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Query(asked) = query.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    let entry = Entry::read(input::json(body)?).map_err(Error::Unfit)?;
    let row = rest.hosting.register(entry).await?;
    if asked.wait {
        rest.settled(&row.id).await;
        let server = rest.hosting.server(&row.id);
        if let Some(refused) = server.and_then(|server| server.status().refused) {
            rest.hosting.withdraw(&row.id).await?;
            let why = refused.why.to_string();
            return Err(Problem::field(422, refused.pointer, why));
        }
    }
    let told = rest.told(&row).await;
    let headers = [
        (header::LOCATION, format!("/api/v1/mcp/servers/{}", row.id)),
        (header::ETAG, tag(&row)),
    ];
    Ok((StatusCode::CREATED, headers, Json(told)).into_response())
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Registration(row): Registration,
) -> Result<Response, Problem> {
    let told = rest.told(&row).await;
    // What is told changes all the time; the tag is of the registration.
    let headers = [
        (header::ETAG, tag(&row)),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((headers, Json(told)).into_response())
}

pub(super) async fn update(
    State(rest): State<Shared>,
    Registration(row): Registration,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let mut body: Value = input::json(body)?;
    if let Value::Object(members) = &mut body {
        // What its path says need not be said again.
        let name = || row.name.as_str().into();
        members.entry("name").or_insert_with(name);
        let project = || row.project_id.clone().into();
        members.entry("project").or_insert_with(project);
    }
    let entry = Entry::read(body).map_err(Error::Unfit)?;
    Conditions::of(&headers).permit(Some(&tag(&row)))?;
    let row = rest.hosting.update(&row.id, entry).await?;
    rest.settled(&row.id).await;
    let told = rest.told(&row).await;
    Ok(([(header::ETAG, tag(&row))], Json(told)).into_response())
}

pub(super) async fn remove(
    State(rest): State<Shared>,
    Registration(row): Registration,
    query: Result<Query<Deleting>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    let Query(asked) = query.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    rest.hosting.delete(&row.id, asked.volumes).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn start(
    rest: State<Shared>,
    row: Registration,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, row, Order::Start).await
}

pub(super) async fn stop(
    rest: State<Shared>,
    row: Registration,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, row, Order::Stop).await
}

pub(super) async fn restart(
    rest: State<Shared>,
    row: Registration,
) -> Result<Json<HostedServer>, Problem> {
    order(rest, row, Order::Restart).await
}

async fn order(
    State(rest): State<Shared>,
    Registration(row): Registration,
    order: Order,
) -> Result<Json<HostedServer>, Problem> {
    let server = rest.enabled(&row)?;
    let obeyed = tokio::time::timeout(PATIENCE, server.obey(order)).await;
    match obeyed {
        Ok(true) => Ok(Json(rest.told(&row).await)),
        Ok(false) => Err(Problem::new(
            503,
            format!(
                "server `{}` has too many orders to follow already",
                row.name
            ),
        )),
        // It goes on.
        Err(_) => Ok(Json(rest.told(&row).await)),
    }
}

pub(super) async fn events(
    State(rest): State<Shared>,
    Registration(row): Registration,
    page: input::Page,
) -> Result<Json<Events>, Problem> {
    let rows = rest
        .hosting
        .store()
        .event_list(None, Some(&row.id), page.asked())
        .await?;
    let next = page.next(&rows, |row| row.id.clone());
    let events = rows.into_iter().map(|row| Happened {
        id: row.id,
        kind: row.kind,
        detail: row.detail,
        at: row.at,
    });
    Ok(Json(Events {
        events: events.collect(),
        next,
    }))
}
