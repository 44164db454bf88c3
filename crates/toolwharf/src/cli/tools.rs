//! `tools ls` and `tools call`.

use serde_json::Value;

use super::{Context, Output, Reach, call, http, print};
use crate::rest::{Tool, Tools};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools of all servers.
    Ls(ListArgs),
    /// Call a tool, as a client does.
    Call(call::Args),
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
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let asked: Vec<String> = [
        args.project
            .map(|id| format!("project={}", http::escaped(id.as_str()))),
        args.server
            .map(|name| format!("server={}", http::escaped(name.as_str()))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let path = format!("{}?{}", http::path(&["tools"]), asked.join("&"));
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&path).await?);
    }
    let tools: Tools = api.get(&path).await?;
    if tools.tools.is_empty() {
        eprintln!("no server offers a tool right now; `toolwharf ls` shows how they are");
    }
    let cells: Vec<[String; 4]> = tools.tools.iter().map(cells).collect();
    print::data(&print::table(
        ["NAME", "SERVER/TOOL", "STATE", "DESCRIPTION"],
        &cells,
    ))
}

fn cells(tool: &Tool) -> [String; 4] {
    let state = match (tool.enabled, &tool.name) {
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
