//! `calls`: who called what, and what became of it.

use model::ProjectId;
use serde_json::Value;
use store::Time;

use super::{Context, Output, Reach, Usage, http, print};
use crate::rest::{Call, Calls, WholeCall};

/// Calls of one page.
const PAGE: usize = 500;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List calls, newest first.
    Ls(ListArgs),
    /// Show one call.
    Get(NameArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only of this project.
    #[arg(long)]
    project: Option<ProjectId>,
    /// Only of this server.
    #[arg(long)]
    server: Option<String>,
    /// Only of this tool, by its server's name for it.
    #[arg(long)]
    tool: Option<String>,
    /// Only with this outcome: open, ok, tool_error, error, timeout, cancelled or unknown.
    #[arg(long)]
    status: Option<String>,
    /// Only by this caller, as `key:ID`.
    #[arg(long)]
    caller: Option<String>,
    /// Only begun since: a time before now such as 30m or 7d, or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only begun before, written in the same way.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// How many.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 50)]
    lines: usize,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// As `calls ls` shows it.
    id: String,
    /// The project that it is of; only an administrator can do without.
    #[arg(long)]
    project: Option<ProjectId>,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Get(args) => show(context, args).await,
    }
}

fn segments(project: Option<&ProjectId>) -> Vec<&str> {
    match project {
        Some(project) => vec!["projects", project.as_str(), "calls"],
        None => vec!["calls"],
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let mut query = Vec::new();
    let mut ask = |key: &str, value: Option<&str>| {
        if let Some(value) = value {
            query.push(format!("{key}={}", http::escaped(value)));
        }
    };
    ask("server", args.server.as_deref());
    ask("tool", args.tool.as_deref());
    ask("status", args.status.as_deref());
    ask("caller", args.caller.as_deref());
    for (key, text) in [("since", &args.since), ("until", &args.until)] {
        let time = text.as_deref().map(moment).transpose()?;
        ask(key, time.as_deref());
    }
    let api = args.reach.gateway(context).await?;
    let of_calls = http::path(&segments(args.project.as_ref()));
    let mut calls: Vec<Call> = Vec::new();
    let mut after: Option<String> = None;
    while calls.len() < args.lines {
        let mut asked = query.clone();
        asked.push(format!("limit={}", (args.lines - calls.len()).min(PAGE)));
        if let Some(after) = &after {
            asked.push(format!("after={}", http::escaped(after)));
        }
        let page: Calls = api.get(&format!("{of_calls}?{}", asked.join("&"))).await?;
        calls.extend(page.calls);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if context.output == Output::Json {
        return print::json(&calls);
    }
    if calls.is_empty() {
        eprintln!("there are no such calls");
    }
    print::data(&table(&calls))
}

/// Calls, a line for each.
pub(super) fn table(calls: &[Call]) -> String {
    let cells: Vec<[String; 8]> = calls.iter().map(cells).collect();
    let head = [
        "BEGUN",
        "ID",
        "PROJECT",
        "CALLER",
        "SERVER/TOOL",
        "STATUS",
        "TOOK",
        "NOTE",
    ];
    print::table(head, &cells)
}

/// A time before now, or one as the API has it.
fn moment(text: &str) -> Result<String, Usage> {
    if let Some(before) = print::parse_duration(text) {
        return Ok(rfc3339(store::now() - before));
    }
    let parsed: Result<Time, _> = serde_json::from_value(text.into());
    parsed.map(rfc3339).map_err(|_| {
        Usage(format!(
            "`{text}` is no time: write 30m, 12h or 7d, or 2026-01-31T12:00:00Z"
        ))
    })
}

fn rfc3339(time: Time) -> String {
    time.to_rfc3339()
}

fn status(call: &Call) -> String {
    let word = serde_json::to_value(call.status).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}

fn took(call: &Call) -> String {
    match call.duration_us {
        Some(us) if us < 10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        Some(us) => format!("{} ms", us / 1_000),
        None => String::new(),
    }
}

fn cells(call: &Call) -> [String; 8] {
    [
        print::time(call.started_at),
        call.id.clone(),
        call.project.clone().unwrap_or_default(),
        call.caller.clone(),
        format!("{}/{}", call.server, call.tool),
        status(call),
        took(call),
        print::short(call.error.as_deref().unwrap_or_default(), 80),
    ]
}

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let mut segments = segments(args.project.as_ref());
    segments.push(&args.id);
    let of_call = http::path(&segments);
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&of_call).await?);
    }
    let WholeCall {
        call,
        arguments,
        result,
    } = api.get(&of_call).await?;
    let fields = print::fields(&[
        ("id", call.id.clone()),
        ("begun", print::time(call.started_at)),
        ("took", took(&call)),
        ("status", status(&call)),
        ("error", call.error.clone().unwrap_or_default()),
        ("project", call.project.clone().unwrap_or_default()),
        ("caller", call.caller.clone()),
        ("server", call.server.clone()),
        ("tool", call.tool.clone()),
        (
            "arguments",
            arguments.unwrap_or_else(|| call.arguments_digest.clone()),
        ),
        ("result", result.or(call.result_digest).unwrap_or_default()),
    ]);
    print::data(&fields)
}
