//! Looks up tools by name.

use anyhow::bail;
use api::{Tool, Tools};
use config::nearest;
use model::{ProjectId, ServerName};

use super::http;

/// Returns the API path of the tools that a project sees, or of all tools, filtered by `server`.
pub(super) fn of(
    project: Option<&ProjectId>,
    server: Option<&ServerName>,
    format: Option<&str>,
) -> String {
    let query = [
        ("project", project.map(ProjectId::as_str)),
        ("server", server.map(ServerName::as_str)),
        ("format", format),
    ];
    http::path(&["tools"]) + &http::query(&query)
}

/// Returns the tools of a server that the project owns or sees. Without a project, those of a server that no project
/// owns.
pub(super) async fn of_server(
    api: &http::Api,
    project: Option<&ProjectId>,
    server: &ServerName,
) -> anyhow::Result<Vec<Tool>> {
    let Tools { mut tools } = api.get(&of(project, Some(server), None)).await?;
    tools.retain(|tool| project.is_some() || tool.project.is_none());
    Ok(tools)
}

/// Finds a tool as `tools ls` shows it: by its exposed name, or as SERVER/TOOL.
///
/// # Errors
/// If no tool has this name. The message suggests a similar name.
pub(super) async fn find(
    api: &http::Api,
    project: Option<&ProjectId>,
    name: &str,
) -> anyhow::Result<Tool> {
    let Tools { mut tools } = api.get(&of(project, None, None)).await?;
    let own = |tool: &Tool| format!("{}/{}", tool.server, tool.native);
    let exposed = tools.iter().position(|tool| tool.exposed() == Some(name));
    let at = exposed.or_else(|| tools.iter().position(|tool| own(tool) == name));
    if let Some(at) = at {
        return Ok(tools.swap_remove(at));
    }
    let names: Vec<String> = tools
        .iter()
        .flat_map(|tool| {
            tool.exposed()
                .map(str::to_owned)
                .into_iter()
                .chain([own(tool)])
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match nearest(name, &names) {
        Some(near) => bail!("there is no tool `{name}`; did you mean `{near}`?"),
        None => bail!("there is no tool `{name}`; `toolwharf tools ls` lists the tools"),
    }
}
