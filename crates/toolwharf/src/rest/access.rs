//! Who may do what: the key first, then the role that the route needs.
//!
//! Invariants: nothing else of a request is looked at before its key is. For the key of a project all other
//! projects do not exist, in the same words as those that do not. The same holds for servers that are not the project's
//! own.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{FromRequestParts, Query, RawPathParams, Request, State},
    http::request::Parts,
    middleware::Next,
    response::{IntoResponse, Response},
};
use model::ProjectId;
use serde::Deserialize;

use super::{AppState, Problem, Rest, input};
use crate::{
    auth::{Principal, Role},
    gateway,
};

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Of no project, or of all of them.
    Administrator,
    /// That role in the project of the path.
    Project(Role),
    /// The same, but the project need not exist.
    NewProject,
    /// That role in the project that owns the server of the path.
    Server(Role),
    /// That role in the project that `?project=` names, or else in that of the key.
    Within(Role),
}

impl Need {
    pub(super) fn role(self) -> Role {
        match self {
            Self::Administrator | Self::NewProject => Role::Admin,
            Self::Project(role) | Self::Server(role) | Self::Within(role) => role,
        }
    }
}

/// Who asks.
pub(super) type Who = Extension<Arc<Principal>>;

/// The project of the path.
#[derive(Clone)]
pub(super) struct Project(pub(super) ProjectId);

impl<S: Sync> FromRequestParts<S> for Project {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        admitted(parts, "project")
    }
}

/// The project that `?project=` names, or else that of the key; `None`: none, and it is an administrator who asks.
#[derive(Clone)]
pub(super) struct Within(pub(super) Option<ProjectId>);

impl<S: Sync> FromRequestParts<S> for Within {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        admitted(parts, "scope")
    }
}

#[derive(Deserialize)]
struct Asked {
    project: Option<String>,
}

/// What [`admit`] found in the path.
pub(super) fn admitted<T: Clone + Send + Sync + 'static>(
    parts: &Parts,
    what: &str,
) -> Result<T, Problem> {
    let found = parts.extensions.get::<T>();
    // A route that is asked for it names it: the table's test sees to that.
    found
        .cloned()
        .ok_or_else(|| Problem::new(500, format!("this route has no {what}")))
}

/// Nothing is looked at before the key is.
pub(super) async fn identify(
    State(rest): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    match rest.front.guard().key(gateway::Asked::of(&request)).await {
        Ok(who) => {
            request.extensions_mut().insert(who.clone());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(who);
            response
        }
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

/// Whether they may use the route.
pub(super) async fn admit(
    State((rest, need)): State<(AppState, Need)>,
    Extension(who): Who,
    params: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let params = params.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    let named = |what: &str| params.iter().find(|(key, _)| *key == what);
    let role = need.role();
    if let Need::Server(_) | Need::Within(_) = need {
        let Asked { project } = input::query(Query::try_from_uri(request.uri()))?;
        let project = match project {
            Some(id) => Some(rest.project(&who, &id).await?),
            None => who.project()?.cloned(),
        };
        match (need, named("id")) {
            (Need::Server(_), Some((_, id))) => {
                let target = rest.find(project.as_ref(), id).await?;
                permit(&who, role, target.key.owner.as_ref())?;
                request.extensions_mut().insert(target);
            }
            _ => permit(&who, role, project.as_ref())?,
        }
        request.extensions_mut().insert(Within(project));
        return Ok(next.run(request).await);
    }
    let Some((_, named)) = named("project") else {
        permit(&who, role, None)?;
        return Ok(next.run(request).await);
    };
    let project = match ProjectId::parse(named) {
        Ok(project) => project,
        // Whoever may make one is told why it cannot be.
        Err(error) if need == Need::NewProject && who.may(role, None) => {
            return Err(Problem::new(400, error.to_string()));
        }
        Err(_) => return Err(Problem::no_project(named)),
    };
    if !who.reaches(Some(&project)) {
        return Err(Problem::no_project(named));
    }
    permit(&who, role, Some(&project))?;
    if need != Need::NewProject {
        rest.projects.store().project_get(&project).await?;
    }
    request.extensions_mut().insert(Project(project));
    Ok(next.run(request).await)
}

impl Rest {
    /// A project that is there, and that exists for `who`.
    async fn project(&self, who: &Principal, id: &str) -> Result<ProjectId, Problem> {
        let project = ProjectId::parse(id).ok();
        let Some(project) = project.filter(|project| who.reaches(Some(project))) else {
            return Err(Problem::no_project(id));
        };
        self.projects.store().project_get(&project).await?;
        Ok(project)
    }
}

/// Whether somebody may do what takes that role in a project, or outside of projects.
pub(super) fn permit(
    who: &Principal,
    role: Role,
    project: Option<&ProjectId>,
) -> Result<(), Problem> {
    if who.may(role, project) {
        return Ok(());
    }
    Err(Problem::forbidden(match role {
        Role::Admin => "this needs an administrator's key".to_owned(),
        _ => format!("this needs a key with the role `{}` or more", word(role)),
    }))
}

pub(super) fn word(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Call => "call",
        Role::Manage => "manage",
        Role::Admin => "admin",
    }
}
