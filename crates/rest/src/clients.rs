//! Routes of MCP clients on this machine: list, connect and disconnect.

use api::{Client, ConnectRequest, Connected, Disconnected};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
};
use config::Sources;
use model::ProjectId;

use super::{AppState, Problem, Rest, input};
use backend::{
    clients::{
        self, Clients, Wish,
        keys::{Stored, StoredError},
    },
    loop_detection::LoopDetection,
    server_files,
};

const SERVES_OTHER_MACHINES: &str =
    "this gateway also serves other machines: run `toolwharf connect` on the client's machine";

pub(super) async fn list(State(rest): State<AppState>) -> Result<Json<api::Clients>, Problem> {
    let clients = rest.clients()?.clone();
    let all = rest.live.read(move |sources, myself| {
        let all = clients.installed().into_iter();
        let to_api = |seen: clients::Seen| {
            let diff = clients.diff_of(&seen, (sources, myself));
            seen.to_api(diff)
        };
        all.map(to_api).collect::<Vec<Client>>()
    });
    Ok(Json(api::Clients { clients: all.await }))
}

pub(super) async fn connect(
    State(rest): State<AppState>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Connected>, Problem> {
    let clients = rest.clients()?.clone();
    let client = Clients::find(&name)?;
    let asked: ConnectRequest = input::object(body)?;
    let wish = Wish {
        project: match &asked.project {
            Some(id) => Some(ProjectId::parse(id).map_err(|_| Problem::no_project(id))?),
            None => None,
        },
        http: asked.http,
        take: asked.take,
    };
    let _turn = rest.turn().await?;
    let (plan, mut connected) = {
        let clients = clients.clone();
        let planned = rest.live.read(move |sources, myself| {
            let plan = clients.plan(client, &wish, (sources, myself))?;
            let diff = clients.diff(&plan)?;
            let connected = plan.to_api(diff);
            Ok::<_, clients::Error>((plan, connected))
        });
        planned.await?
    };
    if asked.dry_run {
        return Ok(Json(connected));
    }
    if !plan.moving.is_empty() {
        let moving = plan.moving.clone();
        let import = move |sources: &Sources, myself: &LoopDetection| {
            server_files::import_all(sources, myself, &moving).map(drop)
        };
        if let Err(errors) = rest.live.change(import).await?.1 {
            connected.warnings.push(errors.to_string());
        }
    }
    let keys = Stored {
        store: rest.projects.store(),
    };
    let written = clients.connect(plan, &keys).await;
    rest.keys_changed().await;
    written?;
    Ok(Json(connected))
}

pub(super) async fn disconnect(
    State(rest): State<AppState>,
    Path(name): Path<String>,
) -> Result<Json<Disconnected>, Problem> {
    let clients = rest.clients()?.clone();
    let client = Clients::find(&name)?;
    let _turn = rest.turn().await?;
    let undo = {
        let clients = clients.clone();
        let undo = rest.live.read(move |_, _| clients.undo(client));
        undo.await?
    };
    let keys = Stored {
        store: rest.projects.store(),
    };
    let disconnected = clients.disconnect(&undo, &keys).await;
    rest.keys_changed().await;
    disconnected?;
    let take_out = move |sources: &Sources, _: &LoopDetection| {
        let removed = clients.take_out(&undo, sources)?;
        Ok::<_, clients::Error>(undo.to_api(removed))
    };
    Ok(Json(rest.live.change(take_out).await?.0))
}

impl Rest {
    /// # Errors
    /// 409 if callers other than the user of this machine can reach the gateway.
    fn clients(&self) -> Result<&Clients, Problem> {
        let clients = self.clients.as_ref();
        clients.ok_or_else(|| Problem::new(409, SERVES_OTHER_MACHINES))
    }
}

impl From<StoredError> for Problem {
    fn from(error: StoredError) -> Self {
        match error {
            StoredError::Clients(error) => error.into(),
            StoredError::Store(error) => error.into(),
        }
    }
}

impl From<clients::Error> for Problem {
    fn from(error: clients::Error) -> Self {
        use clients::Error;
        let status = match error {
            Error::Servers(error) => return error.into(),
            Error::Unknown(_) => 404,
            Error::CommandsOnly(_) | Error::MovedIntoProject => 422,
            Error::Data { .. } => 500,
            Error::NotInstalled { .. }
            | Error::NoHome(_)
            | Error::NotConnected(_)
            | Error::NoAddress
            | Error::File { .. } => 409,
        };
        Self::new(status, error.to_string())
    }
}
