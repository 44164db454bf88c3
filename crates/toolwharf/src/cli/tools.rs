//! `tools`: listing tools; the other verbs are in [`call`] and [`tool_settings`].

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Context, Output, Reach, approvals, call, http, print, shown, tool_settings};
use crate::rest::{Tool, Tools};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools of all servers.
    Ls(ListArgs),
    /// Call a tool, as a client does.
    Call(call::Args),
    /// Show how the definition of a tool, or of all tools of a server, changed, and agree to it.
    Approve(approvals::ApproveArgs),
    /// List the changes of definitions that were agreed to, newest first.
    Changes(approvals::ChangesArgs),
    /// Give a tool another name in a project.
    Rename(tool_settings::SayArgs),
    /// Give a tool another description in a project.
    Describe(tool_settings::SayArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// As this project sees them.
    #[arg(long)]
    project: Option<model::ProjectId>,
    /// Only those of this server.
    #[arg(long)]
    server: Option<model::ServerName>,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Call(args) => call::run(context, args).await,
        Command::Approve(args) => approvals::approve(context, args).await,
        Command::Changes(args) => approvals::changes(context, args).await,
        Command::Rename(args) => tool_settings::rename(context, args).await,
        Command::Describe(args) => tool_settings::describe(context, args).await,
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let segments = match &args.project {
        Some(project) => vec!["projects", project.as_str(), "tools"],
        None => vec!["tools"],
    };
    let mut path = http::path(&segments);
    if let Some(server) = &args.server {
        path.push_str(&format!("?server={}", http::escaped(server.as_str())));
    }
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
