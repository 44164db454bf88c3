//! Looks up tools by name.

use api::{Tool, Tools};
use config::nearest;
use model::{ProjectId, ServerName};
use serde_json::Value;

use super::{http, reach::all_servers};

/// Maximum number of servers that an error lists.
const MAX_LISTED: usize = 8;

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

/// Returns the input schema of a tool, by its exposed name. It is taken from the declarations for models, which match
/// what clients see.
pub(super) async fn schema(
    api: &http::Api,
    project: Option<&ProjectId>,
    exposed: &str,
) -> anyhow::Result<Option<Value>> {
    let declared: Value = api.get(&of(project, None, Some("anthropic"))).await?;
    let declared = declared["declarations"].as_array().into_iter().flatten();
    let mut named = declared.filter(|one| one["name"].as_str() == Some(exposed));
    Ok(named.next().map(|one| one["input_schema"].clone()))
}

/// Finds a tool as `tools ls` shows it: by its exposed name, or as SERVER/TOOL.
///
/// # Errors
/// If no tool has this name. The message suggests a similar name, and names the servers that are not running.
pub(super) async fn find(
    api: &http::Api,
    project: Option<&ProjectId>,
    name: &str,
) -> anyhow::Result<Tool> {
    let Tools { mut tools } = api.get(&of(project, None, None)).await?;
    let exposed = tools.iter().position(|tool| tool.exposed() == Some(name));
    let at = exposed.or_else(|| tools.iter().position(|tool| own(tool) == name));
    match at {
        Some(at) => Ok(tools.swap_remove(at)),
        None => Err(anyhow::anyhow!(
            "{}",
            unknown(api, project, &tools, name).await
        )),
    }
}

/// Explains that this tool does not exist. Returns `None` if it exists. With a server, the name is a native name.
pub(super) async fn absent(
    api: &http::Api,
    project: Option<&ProjectId>,
    server: Option<&ServerName>,
    name: &str,
) -> Option<String> {
    let Some(server) = server else {
        let error = find(api, project, name).await.err()?;
        return Some(error.to_string());
    };
    let tools = of_server(api, project, server).await.ok()?;
    if tools.iter().any(|tool| tool.native == name) {
        return None;
    }
    let names: Vec<&str> = tools.iter().map(|tool| tool.native.as_str()).collect();
    Some(match nearest(name, &names) {
        Some(near) => format!("server `{server}` has no tool `{name}`; did you mean `{near}`?"),
        None => format!(
            "server `{server}` has no tool `{name}`; `toolwharf tools ls --server {server}` lists its tools"
        ),
    })
}

fn own(tool: &Tool) -> String {
    format!("{}/{}", tool.server, tool.native)
}

async fn unknown(
    api: &http::Api,
    project: Option<&ProjectId>,
    tools: &[Tool],
    name: &str,
) -> String {
    let hidden = tools.iter().find(|tool| {
        let has_name = tool.name == name || tool.native == name || own(tool) == name;
        has_name && tool.exposed().is_none()
    });
    if let Some(tool) = hidden {
        let tool = own(tool);
        return format!(
            "clients do not see the tool `{tool}`; `toolwharf tools get {tool}` shows its state"
        );
    }
    let names = tools.iter().flat_map(|tool| {
        let exposed = tool.exposed().map(str::to_owned);
        exposed.into_iter().chain([own(tool)])
    });
    let names: Vec<String> = names.collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut text = match nearest(name, &names) {
        Some(near) => format!("there is no tool `{name}`; did you mean `{near}`?"),
        None => format!("there is no tool `{name}`; `toolwharf tools ls` lists the tools"),
    };
    if let Some(down) = down(api, project, name).await {
        // The text may end with a question.
        if !text.ends_with('?') {
            text.push('.');
        }
        text.push(' ');
        text.push_str(&down);
    }
    text
}

/// Returns a sentence about the servers whose tools are not known because they are not running. If the tool's name
/// begins with the name of one of them, or of a disabled server, the sentence is about this one only.
async fn down(api: &http::Api, project: Option<&ProjectId>, tool: &str) -> Option<String> {
    let servers = all_servers(api, project).await.ok()?;
    let (disabled, servers): (Vec<_>, Vec<_>) = servers
        .into_iter()
        .partition(|server| server.status == "disabled");
    let down = servers.into_iter().filter(|server| match &*server.status {
        "running" | "elsewhere" => false,
        "idle" => server.tools == 0,
        _ => true,
    });
    let down: Vec<api::Server> = down.collect();
    let is_its = |server: &&api::Server| {
        let rest = tool.strip_prefix(server.name.as_str());
        rest.is_some_and(|rest| rest.starts_with(['/', '_']))
    };
    if let Some(server) = down.iter().chain(&disabled).find(is_its) {
        let (name, status) = (&server.name, &server.status);
        return Some(format!(
            "Server `{name}` is not running ({status}); `toolwharf get {name}` shows why"
        ));
    }
    let shown = down.iter().take(MAX_LISTED);
    let mut listed: Vec<String> = shown
        .map(|server| format!("`{}` ({})", server.name, server.status))
        .collect();
    if down.len() > MAX_LISTED {
        listed.push(format!("and {} more", down.len() - MAX_LISTED));
    }
    let servers = if down.len() == 1 {
        "This server is"
    } else {
        "These servers are"
    };
    (!listed.is_empty()).then(|| {
        format!(
            "{servers} not running, so the tools may be missing from the list: {}",
            listed.join(", ")
        )
    })
}
