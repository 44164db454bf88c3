//! `approvals ls`, `tools approve` and `tools changes`.

use std::collections::BTreeMap;

use anyhow::bail;
use api::{Attention, Change, NeedKind, Tool, Tools};
use model::{NativeName, ProjectId, ServerName, ToolRef};
use serde_json::json;

use super::{
    Context, Output, Usage,
    http::{of_project, path},
    names, pages, print,
    prompt::agreed,
    shown, tool_lookup,
};
use crate::cli::http::of_server;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools that are kept back until their definitions are approved.
    #[command(alias = "list")]
    Ls(ListArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only tools of servers that this project owns.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct ApproveArgs {
    /// A server, for all its changed tools, or one tool as SERVER/TOOL, by its native name.
    #[arg(value_name = "SERVER[/TOOL]")]
    name: String,
    /// The project that owns the server. Required for a server of a project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

#[derive(clap::Args)]
pub(super) struct ChangesArgs {
    /// A server, or one of its tools as SERVER/TOOL, by its native name.
    #[arg(value_name = "SERVER[/TOOL]")]
    name: String,
    /// The project that owns the server. Required for a server of a project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let needed = path(&["attention"]) + &of_project(args.project.as_ref());
    let needed: Attention = api.get(&needed).await?;
    let mut waiting: Vec<Tool> = Vec::new();
    for need in &needed.needs {
        if need.what == NeedKind::Approval {
            let tools: Tools = api.get(&of_server(&need.id, &["tools"])).await?;
            let kept_back = tools.tools.into_iter();
            waiting.extend(kept_back.filter(|tool| tool.kept_back.is_some()));
        }
    }
    if context.output == Output::Json {
        return print::json(&json!({ "tools": waiting }));
    }
    let Some(first) = waiting.first() else {
        eprintln!("no tool waits for approval");
        return Ok(());
    };
    let rows = waiting.iter().map(|tool| {
        [
            tool.server.clone(),
            tool.project.clone().unwrap_or_else(|| "-".to_owned()),
            print::short(&tool.native, 60),
            print::short(tool.kept_back.as_deref().unwrap_or_default(), 120),
        ]
    });
    print::data(&print::table(["SERVER", "PROJECT", "TOOL", "WHY"], rows))?;
    let of = match &first.project {
        Some(project) => format!(" --project {project}"),
        None => String::new(),
    };
    let server = print::printable(&first.server);
    eprintln!("`toolwharf tools approve {server}{of}` shows the changes and approves them");
    Ok(())
}

/// Parses a server name, with or without a tool.
fn parsed(name: &str) -> Result<(ServerName, Option<NativeName>), Usage> {
    let wrong = |error| Usage(format!("`{name}`: {error}; write SERVER or SERVER/TOOL"));
    if name.contains('/') {
        let tool = ToolRef::parse(name).map_err(wrong)?;
        return Ok((tool.server, Some(tool.tool)));
    }
    Ok((ServerName::parse(name).map_err(wrong)?, None))
}

pub(super) async fn approve(context: &Context, args: ApproveArgs) -> anyhow::Result<()> {
    let (server, tool) = parsed(&args.name)?;
    let api = context.gateway().await?;
    let mut found = tool_lookup::of_server(&api, args.project.as_ref(), &server).await?;
    if let Some(tool) = &tool {
        found.retain(|found| found.native == tool.as_str());
        if found.is_empty() {
            bail!(
                "there is no tool `{}`; `toolwharf tools ls` lists the tools",
                args.name
            );
        }
    }
    found.retain(|found| found.quarantine.is_some());
    let name = print::printable(&args.name);
    if found.is_empty() {
        match tool {
            Some(_) => eprintln!("nothing to approve: the definition of `{name}` has not changed"),
            None => eprintln!("nothing to approve: no tool definition of `{name}` has changed"),
        }
        return Ok(());
    }
    if context.output == Output::Json {
        print::json(&found)?;
    } else {
        for tool in &found {
            show(tool, found.len() > 1)?;
        }
    }
    let question = match found.len() {
        1 => format!(
            "Approve this definition of `{}/{}`?",
            server, found[0].native
        ),
        count => format!("Approve these {count} definitions of `{server}`?"),
    };
    agreed(&print::printable(&question), args.yes)?;
    let digests: BTreeMap<&str, &str> = found
        .iter()
        .filter_map(|tool| {
            Some((
                tool.native.as_str(),
                tool.quarantine.as_ref()?.digest.as_str(),
            ))
        })
        .collect();
    // If the project does not own the server, an administrator approves its definitions for all projects.
    let owner = args.project.filter(|_| found[0].project.is_some());
    let of_server = of_server(server.as_str(), &["approve"]) + &of_project(owner.as_ref());
    api.post::<()>(&of_server, &json!({ "tools": digests }))
        .await?;
    match found.len() {
        1 => eprintln!(
            "approved the definition of `{server}/{}`",
            print::printable(&found[0].native)
        ),
        count => eprintln!(
            "approved the definitions of {} of `{server}`",
            shown::tools(count)
        ),
    }
    Ok(())
}

fn show(tool: &Tool, named: bool) -> anyhow::Result<()> {
    let diff = tool
        .quarantine
        .as_ref()
        .and_then(|waiting| waiting.diff.as_deref());
    let diff =
        diff.unwrap_or("(the change cannot be shown because the database is not available)\n");
    if named {
        return print::foreign(&format!("{}/{}\n{diff}\n", tool.server, tool.native));
    }
    print::foreign(diff)
}

pub(super) async fn changes(context: &Context, args: ChangesArgs) -> anyhow::Result<()> {
    let (server, tool) = parsed(&args.name)?;
    let api = context.gateway().await?;
    let filter = json!({ "project": args.project });
    let of_server = of_server(server.as_str(), &["changes"]);
    let mut changes: Vec<Change> = pages::all(&api, &of_server, &filter).await?.rows;
    if let Some(tool) = tool {
        changes.retain(|change| change.tool == tool.as_str());
    }
    if context.output == Output::Json {
        return print::json(&changes);
    }
    if changes.is_empty() {
        eprintln!(
            "no definition of `{}` has changed since it was first seen",
            print::printable(&args.name)
        );
    }
    for change in changes {
        let why = match (change.cause.as_str(), &change.caller_name) {
            ("configuration", _) => "changed with the server's configuration".to_owned(),
            (_, Some(name)) => format!("approved by {name}"),
            (_, None) => "approved".to_owned(),
        };
        let at = print::time(change.at);
        print::foreign(&format!(
            "{at} {server}/{}: {why}\n{}\n",
            change.tool, change.diff
        ))?;
    }
    Ok(())
}
