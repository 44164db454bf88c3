//! Access control: first the key, then the role that the route needs.
//!
//! Invariants: the key is checked before any other part of a request. For a project key, other projects do not exist:
//! the errors are the same as for missing projects. The same applies to servers that do not belong to the project.

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
use auth::{Principal, Role};

/// The access that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// An administrator's key.
    Administrator,
    /// The role in the project of the path.
    Project(Role),
    /// Like `Project(Role::Admin)`, but the project need not exist.
    NewProject,
    /// The role in the project that owns the server of the path.
    Server(Role),
    /// The role in the project that `?project=` names, or by default in the key's project.
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

/// The caller.
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

/// The project that `?project=` names, or by default the key's project. `None` only for an administrator.
#[derive(Clone)]
pub(super) struct Within(pub(super) Option<ProjectId>);

impl<S: Sync> FromRequestParts<S> for Within {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        admitted(parts, "scope")
    }
}

#[derive(Deserialize)]
struct QueryParams {
    project: Option<String>,
}

/// Returns the value that [`admit`] found for the request, such as its project.
pub(super) fn admitted<T: Clone + Send + Sync + 'static>(
    parts: &Parts,
    what: &str,
) -> Result<T, Problem> {
    let found = parts.extensions.get::<T>();
    // Every route with this extractor has the parameter. A test of the route table ensures it.
    found
        .cloned()
        .ok_or_else(|| Problem::new(500, format!("this route has no {what}")))
}

/// Authenticates the caller before any other check.
pub(super) async fn identify(
    State(rest): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    match rest
        .front
        .guard()
        .key(gateway::RequestInfo::of(&request))
        .await
    {
        Ok(who) => {
            request.extensions_mut().insert(who.clone());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(who);
            response
        }
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

/// Checks whether the caller may use the route.
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
        let QueryParams { project } = input::query(Query::try_from_uri(request.uri()))?;
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
        // Only callers that may create projects see why the id is invalid.
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
    /// Returns a project that exists and that `who` can access.
    pub(super) async fn project(&self, who: &Principal, id: &str) -> Result<ProjectId, Problem> {
        let project = ProjectId::parse(id).ok();
        let Some(project) = project.filter(|project| who.reaches(Some(project))) else {
            return Err(Problem::no_project(id));
        };
        self.projects.store().project_get(&project).await?;
        Ok(project)
    }
}

/// Checks that the caller has the role in a project, or outside of projects.
pub(super) fn permit(
    who: &Principal,
    role: Role,
    project: Option<&ProjectId>,
) -> Result<(), Problem> {
    if who.may(role, project) {
        return Ok(());
    }
    Err(Problem::forbidden(match role {
        Role::Admin => "this request needs an administrator's key".to_owned(),
        _ => format!(
            "this request needs a key with the role `{}` or higher",
            word(role)
        ),
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
