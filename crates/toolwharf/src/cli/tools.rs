//! `tools`: listing tools; the other verbs are in [`call`] and [`tool_settings`].

use serde_json::Value;

use super::{Context, Output, Reach, call, http, print, tool_settings};
use crate::rest::{Tool, Tools};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools of all servers.
    Ls(ListArgs),
    /// Call a tool, as a client does.
    Call(call::Args),
    /// Show how a tool's definition changed, and agree to it.
    Approve(tool_settings::ApproveArgs),
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
        Command::Approve(args) => tool_settings::approve(context, args).await,
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
    if let Some(tool) = tools.tools.iter().find(|tool| tool.quarantine.is_some()) {
        let name = print::printable(&format!("{}/{}", tool.server, tool.native));
        let project = match &tool.project {
            Some(project) => format!(" --project {project}"),
            None => String::new(),
        };
        eprintln!("some definitions changed: `toolwharf tools approve {name}{project}` shows how");
    }
    print::data(&print::table(
        ["NAME", "SERVER/TOOL", "STATE", "DESCRIPTION"],
        &cells,
    ))
}

fn cells(tool: &Tool) -> [String; 4] {
    let state = match (tool.enabled, &tool.name) {
        _ if tool.quarantine.is_some() => "changed",
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
