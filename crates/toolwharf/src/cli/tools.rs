//! `tools`: listing tools; the other verbs are in [`call`] and [`tool_settings`].

use std::collections::BTreeMap;

use anyhow::bail;
use api::{Tool, Tools};
use config::nearest;
use model::{ProjectId, ServerName};
use serde_json::Value;

use super::{Context, Output, approvals, call, http, names, print, shown, tool_settings};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools of all servers.
    Ls(ListArgs),
    /// Show one tool with its schema.
    Get(GetArgs),
    /// Call a tool as a client does.
    Call(call::Args),
    /// Show changed definitions of a server's tools, and approve them.
    Approve(approvals::ApproveArgs),
    /// List changes of definitions that were approved, newest first.
    Changes(approvals::ChangesArgs),
    /// Give a tool another name in a project.
    Rename(tool_settings::SayArgs),
    /// Give a tool another description in a project.
    Describe(tool_settings::SayArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// As this project sees them.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only those of this server.
    #[arg(long)]
    server: Option<ServerName>,
}

#[derive(clap::Args)]
pub(super) struct GetArgs {
    /// As `tools ls` shows it: its name, or SERVER/TOOL.
    #[arg(add = names::tools())]
    name: String,
    /// As this project sees it.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Get(args) => show(context, args).await,
        Command::Call(args) => call::run(context, args).await,
        Command::Approve(args) => approvals::approve(context, args).await,
        Command::Changes(args) => approvals::changes(context, args).await,
        Command::Rename(args) => tool_settings::rename(context, args).await,
        Command::Describe(args) => tool_settings::describe(context, args).await,
    }
}

/// The tools that a project sees, or all there are; only those of `server`, if one is named.
fn of(project: Option<&ProjectId>, server: Option<&ServerName>, format: Option<&str>) -> String {
    let query = [
        ("project", project.map(ProjectId::as_str)),
        ("server", server.map(ServerName::as_str)),
        ("format", format),
    ];
    http::path(&["tools"]) + &http::query(&query)
}

/// The tools of a server: of the project's, or of one that it is lent; without a project, of one of no project.
pub(super) async fn of_server(
    api: &http::Api,
    project: Option<&ProjectId>,
    server: &ServerName,
) -> anyhow::Result<Vec<Tool>> {
    let Tools { mut tools } = api.get(&of(project, Some(server), None)).await?;
    tools.retain(|tool| project.is_some() || tool.project.is_none());
    Ok(tools)
}

/// The tool of that name, as `tools ls` shows it: what clients call it, or SERVER/TOOL.
///
/// # Errors
/// There is none, and which one may be meant.
pub(super) async fn find(
    api: &http::Api,
    project: Option<&ProjectId>,
    name: &str,
) -> anyhow::Result<Tool> {
    let Tools { mut tools } = api.get(&of(project, None, None)).await?;
    let own = |tool: &Tool| format!("{}/{}", tool.server, tool.native);
    let exposed = tools
        .iter()
        .position(|tool| tool.name.as_deref() == Some(name));
    let at = exposed.or_else(|| tools.iter().position(|tool| own(tool) == name));
    if let Some(at) = at {
        return Ok(tools.swap_remove(at));
    }
    let names: Vec<String> = tools
        .iter()
        .flat_map(|tool| tool.name.clone().into_iter().chain([own(tool)]))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match nearest(name, &names) {
        Some(near) => bail!("there is no tool `{name}`; did you mean `{near}`?"),
        None => bail!("there is no tool `{name}`; `toolwharf tools ls` shows which there are"),
    }
}

async fn show(context: &Context, args: GetArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let project = args.project.as_ref();
    let tool = find(&api, project, &args.name).await?;
    // As models are told it, which is as clients see it.
    let declared: Value = api.get(&of(project, None, Some("anthropic"))).await?;
    let declared = declared["declarations"].as_array().into_iter().flatten();
    let mut named = declared.filter(|one| one["name"].as_str() == tool.name.as_deref());
    let schema = named.next().map(|one| one["input_schema"].clone());
    if context.output == Output::Json {
        let mut all = serde_json::to_value(&tool)?;
        all["input_schema"] = schema.unwrap_or_default();
        return print::json(&all);
    }
    let [name, own, state, _] = cells(&tool);
    let fields = [
        ("name", name),
        ("server/tool", own),
        ("state", state),
        ("description", tool.description),
    ];
    print::data(&print::fields(&fields))?;
    match schema {
        Some(schema) => print::foreign(&(serde_json::to_string_pretty(&schema)? + "\n")),
        None => Ok(()),
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let path = of(args.project.as_ref(), args.server.as_ref(), None);
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&path).await?);
    }
    let tools: Tools = api.get(&path).await?;
    if tools.tools.is_empty() {
        eprintln!("no server offers a tool right now; `toolwharf ls` shows how they are");
    }
    let cells: Vec<[String; 4]> = tools.tools.iter().map(cells).collect();
    say_kept_back(&tools.tools);
    print::data(&print::table(
        ["NAME", "SERVER/TOOL", "STATE", "DESCRIPTION"],
        &cells,
    ))
}

/// Says of each server how many of its tools are kept back, or changed and are offered all the same.
fn say_kept_back(tools: &[Tool]) {
    let mut of: BTreeMap<(Option<&str>, &str), (usize, usize)> = BTreeMap::new();
    for tool in tools {
        let (kept, changed) = of
            .entry((tool.project.as_deref(), &tool.server))
            .or_default();
        *kept += usize::from(tool.kept_back.is_some());
        *changed += usize::from(tool.quarantine.is_some());
    }
    for ((project, server), (kept, changed)) in of {
        let what = match (kept, changed) {
            (0, 0) => continue,
            (0, changed) => format!("{} of `{server}` changed", shown::tools(changed)),
            (kept, _) => format!("{} of `{server}` kept back", shown::tools(kept)),
        };
        let project = project.map_or_else(String::new, |project| format!(" --project {project}"));
        let what = print::printable(&what);
        if changed == 0 {
            eprintln!("{what}: the definition cannot be remembered");
        } else {
            eprintln!(
                "{what}: `toolwharf tools approve {server}{project}` shows how the definition changed"
            );
        }
    }
}

fn cells(tool: &Tool) -> [String; 4] {
    let state = match (tool.enabled, &tool.name) {
        _ if tool.quarantine.is_some() => "changed",
        _ if tool.kept_back.is_some() => "kept back",
        (false, _) => "disabled",
        (true, Some(_)) => "enabled",
        (true, None) => "hidden",
    };
    [
        tool.name.clone().unwrap_or_else(|| "-".to_owned()),
        format!("{}/{}", tool.server, tool.native),
        state.to_owned(),
        print::short(&tool.description, 80),
    ]
}
