//! The project and server that a request addresses, and whether its caller may use them.

use crate::guard::{PROJECT_ID, TOOLS};
use engine::{Scope, view::PROJECT_KEY};
use http::{HeaderMap, StatusCode};
use mcp::{Frame, json};
use model::{ProjectId, ServerName, ToolMode, UnknownWord};
use percent_encoding::percent_decode_str;

use super::{HttpGateway, reply::refusal};
use crate::guard::Refusal;
use auth::Principal;

impl HttpGateway {
    /// Resolves the scope that a request addresses. A scope outside the principal's permissions gets the same error as
    /// a nonexistent one.
    pub(crate) async fn admit(
        &self,
        principal: &Principal,
        mut scope: Scope,
    ) -> Result<Scope, Refusal> {
        if scope.project.is_none() {
            let own = principal.project().map_err(|ambiguous| {
                let what = format!("{ambiguous} as `/mcp/PROJECT` or in the header X-Project-Id");
                refusal(StatusCode::BAD_REQUEST, &what)
            })?;
            scope.project = own.cloned();
        } else if !principal.reaches(scope.project.as_ref()) {
            return Err(no_scope(&scope));
        }
        match self.projects.admit(&scope).await {
            Ok(()) => Ok(scope),
            Err(error) => {
                let what = format!("the project cannot be looked up: {error}");
                Err(refusal(StatusCode::SERVICE_UNAVAILABLE, &what))
            }
        }
    }

    /// The scope of one request, which may name a project in its `_meta` (G08), with the values of the headers that are
    /// passed on to servers.
    pub(crate) async fn rescoped(
        &self,
        principal: &Principal,
        scope: Scope,
        frame: &Frame,
        headers: &HeaderMap,
    ) -> Result<Scope, Refusal> {
        let Some(named) = named_project(frame)? else {
            return self.with_values(principal, scope, headers);
        };
        if scope.project.as_ref().is_some_and(|other| *other != named) {
            let what = "the project in the request's `_meta` differs from that of its path, header, key or session";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        }
        let project = Some(named);
        let scope = Scope { project, ..scope };
        let scope = Box::pin(self.admit(principal, scope)).await?;
        match self.gateway.view(&scope) {
            Some(_) => self.with_values(principal, scope, headers),
            None => Err(no_scope(&scope)),
        }
    }

    /// The scope, with the values of the headers that are passed on to its servers, and the tools that it lists: those
    /// that the headers ask for, otherwise those of the key.
    pub(crate) fn with_values(
        &self,
        principal: &Principal,
        mut scope: Scope,
        headers: &HeaderMap,
    ) -> Result<Scope, Refusal> {
        scope.tools = tool_mode(headers)?.or(principal.tools);
        let scope = self.gateway.with_values(scope, headers);
        scope.map_err(|invalid| refusal(StatusCode::BAD_REQUEST, &invalid.to_string()))
    }
}

/// The scope that the path and the project header address.
pub(crate) fn scope(path: &str, headers: &HeaderMap) -> Result<Scope, Refusal> {
    let not_found = || {
        refusal(
            StatusCode::NOT_FOUND,
            "MCP is at /mcp, /mcp/{project} and /mcp/{project}/{server}",
        )
    };
    let mut parts = path.trim_end_matches('/').split('/').skip(2);
    let (project, server) = (parts.next(), parts.next());
    if parts.next().is_some() {
        return Err(not_found());
    }
    let header = headers
        .get(PROJECT_ID)
        .map(|value| value.to_str().unwrap_or_default());
    let project = match (project.filter(|project| *project != "-"), header) {
        (Some(path), Some(header)) if path != header => {
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "the path and the header X-Project-Id name different projects: send only one of them, or the same project in both",
            ));
        }
        (path, header) => path.or(header),
    };
    let project = project
        .map(ProjectId::parse)
        .transpose()
        .map_err(|_| not_found())?;
    let server = server
        .map(|name| percent_decode_str(name).decode_utf8_lossy())
        .map(|name| ServerName::parse(&name))
        .transpose()
        .map_err(|_| not_found())?;
    Ok(Scope {
        project,
        server,
        ..Scope::default()
    })
}

/// The tools that the client wants lists to contain.
fn tool_mode(headers: &HeaderMap) -> Result<Option<ToolMode>, Refusal> {
    let Some(value) = headers.get(TOOLS) else {
        return Ok(None);
    };
    let word = value.to_str().unwrap_or_default();
    word.parse().map(Some).map_err(|unknown: UnknownWord| {
        let what = format!("header X-Toolwharf-Tools {unknown}");
        refusal(StatusCode::BAD_REQUEST, &what)
    })
}

/// The project that a request names in its `_meta`.
fn named_project(frame: &Frame) -> Result<Option<ProjectId>, Refusal> {
    let Some(meta) = frame.meta() else {
        return Ok(None);
    };
    let mut project = None;
    for span in meta
        .find_all([PROJECT_KEY, "projectId"])
        .into_iter()
        .flatten()
    {
        let id = json::as_string(&frame.text()[span]).and_then(|id| ProjectId::parse(&id).ok());
        let Some(id) = id else {
            let what = "the project id in `_meta` is invalid: use letters, digits, `_` and `-`, at most 64 characters";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        };
        if project.is_some_and(|other| other != id) {
            let what = "the request's `_meta` names two projects";
            return Err(refusal(StatusCode::BAD_REQUEST, what));
        }
        project = Some(id);
    }
    Ok(project)
}

pub(super) fn no_scope(scope: &Scope) -> Refusal {
    refusal(StatusCode::NOT_FOUND, &scope.missing())
}
