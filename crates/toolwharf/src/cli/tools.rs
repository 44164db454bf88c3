//! `tools`: lists and shows tools. The other commands are in [`call`], [`top`], [`approvals`] and
//! [`tool_settings`].

use crate::cli::reach::all_servers;
use crate::cli::tool_lookup::find;
use crate::cli::tool_lookup::{of, schema};
use std::collections::BTreeMap;

use api::{FoundBy, FoundTool, FoundTools, ListTokens, Tool, Tools};
use model::{ProjectId, ServerName};
use serde_json::Value;

use super::{
    Context, Output, approvals, call,
    http::{self, Api},
    names, print,
    servers::said_name,
    shown, tool_settings, top,
};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the tools of all servers.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Search tools by a task, as models do in search mode.
    Search(SearchArgs),
    /// Show a tool with its schema.
    #[command(aliases = ["show", "status"])]
    Get(GetArgs),
    /// Show the calls, errors and durations of each tool, slowest first.
    Top(top::Args),
    /// Call a tool as a client does.
    Call(call::Args),
    /// Show changed tool definitions of a server, and approve them.
    Approve(approvals::ApproveArgs),
    /// List approved changes of tool definitions, newest first.
    Changes(approvals::ChangesArgs),
    /// Change the name of a tool in a project.
    Rename(tool_settings::SayArgs),
    /// Change the description of a tool in a project.
    Describe(tool_settings::SayArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// List the tools as this project sees them.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only tools of this server.
    #[arg(long)]
    server: Option<ServerName>,
}

#[derive(clap::Args)]
pub(super) struct SearchArgs {
    /// The task in a few words, or the name of a tool.
    #[arg(required = true)]
    query: Vec<String>,
    /// Search the tools that this project sees.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only tools of this server.
    #[arg(long)]
    server: Option<ServerName>,
    /// The number of tools to show.
    #[arg(long, default_value_t = 10)]
    limit: u32,
}

#[derive(clap::Args)]
pub(super) struct GetArgs {
    /// The tool as `tools ls` shows it: its name, or SERVER/TOOL.
    #[arg(add = names::tools())]
    name: String,
    /// Show the tool as this project sees it.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Search(args) => search(context, args).await,
        Command::Get(args) => show(context, args).await,
        Command::Top(args) => top::run(context, args).await,
        Command::Call(args) => call::run(context, args).await,
        Command::Approve(args) => approvals::approve(context, args).await,
        Command::Changes(args) => approvals::changes(context, args).await,
        Command::Rename(args) => tool_settings::rename(context, args).await,
        Command::Describe(args) => tool_settings::describe(context, args).await,
    }
}

async fn show(context: &Context, args: GetArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let project = args.project.as_ref();
    let tool = find(&api, project, &args.name).await?;
    let schema = match tool.exposed() {
        Some(exposed) => schema(&api, project, exposed).await?,
        None => None,
    };
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
        let of_project = |option: &str| match &args.project {
            Some(project) => format!("{option} --project {project}"),
            None => option.to_owned(),
        };
        match &args.server {
            Some(server) => eprintln!(
                "server `{server}` currently offers no tools; `{}` shows its state",
                of_project(&format!("toolwharf get {server}"))
            ),
            None => eprintln!(
                "no server currently offers any tools; `{}` shows the state of the servers",
                of_project("toolwharf ls")
            ),
        }
    }
    say_kept_back(&tools.tools);
    say_problems(&api, &args).await?;
    let head = ["NAME", "SERVER/TOOL", "STATE", "DESCRIPTION"];
    print::data(&print::table(head, tools.tools.iter().map(cells)))
}

async fn search(context: &Context, args: SearchArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let (query, limit) = (args.query.join(" "), args.limit.to_string());
    let asked = [
        ("query", Some(query.as_str())),
        ("project", args.project.as_ref().map(ProjectId::as_str)),
        ("server", args.server.as_ref().map(ServerName::as_str)),
        ("limit", Some(limit.as_str())),
    ];
    let path = http::path(&["tools", "search"]) + &http::query(&asked);
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&path).await?);
    }
    let FoundTools { tools, tokens } = api.get(&path).await?;
    let ListTokens {
        all,
        search,
        is_search,
    } = tokens;
    let now = match is_search {
        true => "clients get the latter",
        false => "clients get the former; `tools` in toolwharf.toml changes that",
    };
    eprintln!("The list of all tools has about {all} tokens, in search mode {search}: {now}.");
    if tools.is_empty() {
        eprintln!("No tool fits `{}`.", print::printable(&query));
    }
    let cells = |tool: &FoundTool| {
        [
            tool.name.clone(),
            format!("{:.1}", tool.score),
            reasons(tool),
            print::short(&tool.signature, 120),
        ]
    };
    let head = ["NAME", "SCORE", "BECAUSE OF", "FOR A MODEL"];
    print::data(&print::table(head, tools.iter().map(cells)))
}

/// Why a tool was found: a match of names, or the parts of its definition, the most important first.
fn reasons(tool: &FoundTool) -> String {
    let named = match tool.why {
        FoundBy::Name => "its name",
        FoundBy::Spelling => "its name, spelled differently",
        FoundBy::Prefix => "the beginning of its name",
        FoundBy::Typo => "a similar name",
        FoundBy::Relevance => "",
    };
    if !named.is_empty() {
        return named.to_owned();
    }
    let scores = &tool.scores;
    let mut parts = [
        ("name", scores.name),
        ("description", scores.description),
        ("parameters", scores.parameters + scores.parameter_text),
        ("server", scores.server),
        ("earlier searches", scores.past),
    ];
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let parts = parts.iter().filter(|(_, score)| *score >= 0.05);
    let parts: Vec<_> = parts
        .map(|(part, score)| format!("{part} {score:.1}"))
        .collect();
    parts.join(", ")
}

/// Prints why tools may be missing from the list.
async fn say_problems(api: &Api, args: &ListArgs) -> anyhow::Result<()> {
    let servers = all_servers(api, args.project.as_ref()).await?;
    let wanted = |server: &&api::Server| {
        let only = args.server.as_ref();
        only.is_none_or(|name| name.as_str() == server.name)
    };
    for server in servers.iter().filter(wanted) {
        for problem in &server.problems {
            eprintln!(
                "server {}: {}",
                said_name(server),
                print::printable(problem)
            );
        }
    }
    Ok(())
}

/// Prints, for each server, the number of tools that are kept back, or that changed and are offered anyway.
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
            eprintln!(
                "{what}: the database cannot store the definition; `toolwharf --output json tools ls` shows the reason"
            );
        } else {
            eprintln!(
                "{what}: `toolwharf tools approve {server}{project}` shows how the definition changed"
            );
        }
    }
}

fn cells(tool: &Tool) -> [String; 4] {
    let state = match (tool.enabled, tool.offered) {
        _ if tool.quarantine.is_some() => "changed",
        _ if tool.kept_back.is_some() => "kept back",
        (false, _) => "disabled",
        (true, true) => "enabled",
        (true, false) => "hidden",
    };
    [
        tool.exposed().unwrap_or("-").to_owned(),
        format!("{}/{}", tool.server, tool.native),
        state.to_owned(),
        print::short(&tool.description, 80),
    ]
}
