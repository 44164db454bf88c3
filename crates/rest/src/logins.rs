//! Routes of sign-ins to servers.

use std::sync::Arc;

use api::{Login, LoginBegun, LoginRedirect, LoginRequest, LoginWay, Logins};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use engine::server::Server;
use model::{LoginMode, ProjectId};

use super::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    input,
};
use auth::{Principal, Role};
use backend::logins::{Standing, Way};

pub(super) async fn list(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
) -> Result<Json<Logins>, Problem> {
    let fleet = rest.gateway.fleet();
    let mut logins = Vec::new();
    for server in fleet
        .all()
        .filter(|server| server.spec.is_in_project(project.as_ref()))
    {
        let is_theirs =
            server.spec.owner.is_none() || server.spec.owner == project || project.is_none();
        if is_theirs && let Some(standing) = rest.logins.standing(&server.spec, &who.id).await? {
            logins.push(to_api(server, standing));
        }
    }
    Ok(Json(Logins { logins }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<Json<Login>, Problem> {
    let server = rest.to_sign_in(project.as_ref(), &id).await?;
    let standing = rest.logins.standing(&server.spec, &who.id).await?;
    let nobody = || {
        let what = format!(
            "server `{}` needs no sign-in: it has neither a `url` nor `${{login:…}}` in its `env`, or its entry contains `\"login\": \"none\"`",
            server.name()
        );
        Problem::new(404, what)
    };
    Ok(Json(to_api(&server, standing.ok_or_else(nobody)?)))
}

pub(super) async fn begin(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<LoginBegun>, Problem> {
    let server = rest.to_sign_in(project.as_ref(), &id).await?;
    permitted(&rest, &who, &server)?;
    let asked: LoginRequest = input::object(body)?;
    let way = match asked.way {
        LoginWay::Browser => Way::Browser,
        LoginWay::Paste => Way::Paste,
        LoginWay::Device => Way::Device,
    };
    let begun = rest.logins.begin(&server.spec, &who.id, way).await?;
    Ok(Json(begun))
}

pub(super) async fn finish(
    State(rest): State<AppState>,
    Extension(who): Who,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let LoginRedirect { redirect } = input::object(body)?;
    let finished = rest.logins.finish(&who.id, &redirect, &rest.projects);
    finished.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn end(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let server = rest.to_sign_in(project.as_ref(), &id).await?;
    permitted(&rest, &who, &server)?;
    rest.logins.end(&server.spec, &who.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks the role for a shared sign-in: the caller must be allowed to change the server.
fn permitted(rest: &Rest, who: &Principal, server: &Server) -> Result<(), Problem> {
    if rest.logins.mode(&server.spec) != LoginMode::Shared {
        return Ok(());
    }
    let owner = server.spec.owner.as_ref();
    permit(
        who,
        if owner.is_some() {
            Role::Manage
        } else {
            Role::Admin
        },
        owner,
    )
}

fn to_api(server: &Server, standing: Standing) -> Login {
    let row = standing.row;
    let reason = row.as_ref().and_then(|row| row.needs_login.clone());
    let state = match (&row, &reason) {
        (None, _) => "absent",
        (Some(_), Some(_)) => "needs_login",
        (Some(_), None) => "signed_in",
    };
    let mode = match standing.mode {
        LoginMode::User => "user",
        LoginMode::Shared | LoginMode::None => "shared",
    };
    Login {
        server: server.name().to_string(),
        project: server.spec.owner.as_ref().map(ToString::to_string),
        mode: mode.to_owned(),
        state: state.to_owned(),
        reason,
        expires_at: row.as_ref().and_then(|row| row.expires_at),
        updated_at: row.as_ref().map(|row| row.updated_at),
        issuer: row.map(|row| row.issuer),
        scopes: standing.scopes,
    }
}

impl Rest {
    /// Returns a server that callers of the project see: the project's own, or one of the configuration file.
    async fn to_sign_in(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<Arc<Server>, Problem> {
        match (self.find(project, id).await, project) {
            (Ok(target), _) => self.enabled(&target).await,
            (Err(problem), Some(project)) if problem.status == 404 => {
                let name = input::server_name(id)?;
                self.seen(project, &name).await.map_err(|_| problem)
            }
            (Err(problem), _) => Err(problem),
        }
    }
}

impl From<oauth::Error> for Problem {
    fn from(error: oauth::Error) -> Self {
        let status = match error.code {
            oauth::Code::Unreachable => 502,
            oauth::Code::WrongRedirect => 400,
            _ => 409,
        };
        Self::new(status, error.to_string())
    }
}
