//! Tools: what there is over all servers, and switching single ones.

use std::collections::{BTreeSet, HashMap};

use axum::{
    Json,
    extract::{Path, Query, State},
};
use engine::{Scope, catalog::ListKind, server::Server};
use mcp::json::Object;
use model::{NativeName, ProjectId, ServerName};
use serde::{Deserialize, Serialize};

use super::{
    Problem, Saved, Shared,
    servers::{disabled, server_name, whole},
};
use crate::{config::Sources, registry};

/// Longest description that is told, in characters.
const DESCRIPTION_CHARS: usize = 1_000;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tools {
    pub(crate) tools: Vec<Tool>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tool {
    /// As clients see it; none if they do not.
    pub(crate) name: Option<String>,
    pub(crate) server: String,
    /// As the server calls it.
    pub(crate) native: String,
    pub(crate) description: String,
    pub(crate) enabled: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    project: Option<ProjectId>,
    server: Option<ServerName>,
}

pub(super) async fn list(
    State(rest): State<Shared>,
    query: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Tools>, Problem> {
    let Query(asked) = query.map_err(|rejection| Problem::new(400, rejection.body_text()))?;
    if let Some(server) = &asked.server {
        rest.server(server.as_str())?;
    }
    let scope = Scope {
        project: asked.project,
        server: None,
    };
    // As for clients: the first list of all waits for servers that are only just being started.
    let Some(view) = rest.gateway.settled(&scope).await else {
        let project = scope.project.as_ref().map_or("", ProjectId::as_str);
        return Err(Problem::new(
            404,
            format!("there is no project `{project}`"),
        ));
    };
    let mut tools = Vec::new();
    let exposed: HashMap<(&str, &str), &str> = view
        .names(ListKind::Tools)
        .map(|(exposed, server, native, _)| ((server.as_str(), native), exposed))
        .collect();
    let wanted = |server: &&std::sync::Arc<Server>| {
        let only = asked.server.as_ref();
        only.is_none_or(|only| only == server.name())
    };
    for server in view.servers.iter().filter(wanted) {
        let off: BTreeSet<String> = disabled(server);
        let mut seen = BTreeSet::new();
        for item in server.catalog().list(ListKind::Tools).iter() {
            // A server that lists a name twice offers it once.
            if !seen.insert(item.native.clone()) {
                continue;
            }
            let name = exposed.get(&(server.name().as_str(), &*item.native));
            let description = Object::of(&item.raw)
                .and_then(|tool| tool.string("description"))
                .unwrap_or_default();
            tools.push(Tool {
                name: name.map(|name| (*name).to_owned()),
                server: server.name().to_string(),
                native: item.native.to_string(),
                description: description.chars().take(DESCRIPTION_CHARS).collect(),
                enabled: name.is_some() || !off.contains(&*item.native),
            });
        }
    }
    Ok(Json(Tools { tools }))
}

pub(super) async fn enable(
    rest: State<Shared>,
    path: Path<(String, String)>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, path, true).await
}

pub(super) async fn disable(
    rest: State<Shared>,
    path: Path<(String, String)>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, path, false).await
}

async fn switch(
    State(rest): State<Shared>,
    Path((name, tool)): Path<(String, String)>,
    enabled: bool,
) -> Result<Json<Saved>, Problem> {
    let name = server_name(&name)?;
    let tool = NativeName::new(tool);
    // A slip of the pen would otherwise look as if it had worked. A server that has offered nothing yet may
    // have any tool.
    if let Ok(server) = rest.server(name.as_str()) {
        let catalog = server.catalog();
        let mut known = catalog
            .list(ListKind::Tools)
            .iter()
            .map(|item| &*item.native);
        let is_off = server.disabled_tools().contains(&tool);
        if catalog.info.is_some() && !is_off && !known.any(|known| known == tool.as_str()) {
            let shown: String = tool.as_str().chars().take(100).collect();
            return Err(Problem::new(
                404,
                format!(
                    "server `{name}` has no tool `{shown}`; `toolwharf tools ls` shows what it has"
                ),
            ));
        }
    }
    let (wanted, which) = (name.clone(), tool.clone());
    let change =
        move |sources: &Sources| registry::set_tool_enabled(sources, &wanted, &which, enabled);
    let (file, warnings) = rest.edit(change).await?;
    // Where the file is not in force for another reason, this still is.
    rest.gateway.set_tool_enabled(&name, &tool, enabled);
    Ok(Json(Saved {
        file: whole(file),
        created: false,
        warnings,
        server: None,
    }))
}
