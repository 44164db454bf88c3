//! `calls`: records of tool calls.

use api::{Call, WholeCall};
use model::ProjectId;
use serde::Serialize;
use store::Time;

use super::{
    Context, Usage,
    http::{of_project, path},
    names,
    pages::{self, Lines},
    print, values,
};
use crate::cli::names::Named;

const HEAD: [&str; 8] = [
    "BEGUN",
    "ID",
    "PROJECT",
    "CALLER",
    "SERVER/TOOL",
    "STATUS",
    "TOOK",
    "NOTE",
];

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List calls, newest first.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show one call.
    #[command(aliases = ["show", "status"])]
    Get(Named),
}

#[derive(clap::Args, Serialize)]
pub(super) struct ListArgs {
    /// Only calls in this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only calls of this server.
    #[arg(long, value_parser = values::name)]
    server: Option<String>,
    /// Only calls of this tool, by its native name.
    #[arg(long, value_parser = values::name)]
    tool: Option<String>,
    /// Only calls with this outcome: open, ok, tool_error, error, timeout, cancelled or unknown.
    #[arg(long, hide_possible_values = true, value_parser = values::call_outcomes())]
    status: Option<String>,
    /// Only calls by this caller: the name of a key, or the id of a caller, such as `key:ID`.
    #[arg(long, value_parser = values::name)]
    caller: Option<String>,
    /// Only calls that began at or after this time: 30m or 7d ago, or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    since: Option<String>,
    /// Only calls that began before this time, in the same format.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    until: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    lines: Lines,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Get(args) => show(context, args).await,
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    if let (Some(since), Some(until)) = (&args.since, &args.until)
        && parsed(since) >= parsed(until)
    {
        return Err(Usage(format!(
            "no call can match: --since {since} is not before --until {until}; swap the two times"
        ))
        .into());
    }
    let api = context.gateway().await?;
    let listed = pages::list(&api, &path(&["calls"]), &args, &args.lines).await?;
    listed.print(context, "no calls found", HEAD, cells)
}

pub(super) fn table(calls: &[Call]) -> String {
    print::table(HEAD, calls.iter().map(cells))
}

/// Parses a duration before now, or a time as in the API.
pub(super) fn moment(text: &str) -> Result<String, &'static str> {
    let time = match print::parse_duration(text) {
        Some(before) => Ok(store::now() - before),
        None => serde_json::from_value::<Time>(text.into()),
    };
    let time =
        time.map_err(|_| "expected a duration (30m, 12h or 7d) or a time (2026-01-31T12:00:00Z)")?;
    Ok(time.to_rfc3339())
}

/// Parses what [`moment`] returns.
fn parsed(text: &str) -> Option<Time> {
    serde_json::from_value(text.into()).ok()
}

/// Returns the name of the caller. A gateway of an earlier version gives only the id.
fn caller(call: &Call) -> &str {
    match call.caller_name.as_str() {
        "" => &call.caller,
        name => name,
    }
}

fn took(call: &Call) -> String {
    let us = call.duration_us.and_then(|us| u64::try_from(us).ok());
    us.map(print::micros).unwrap_or_default()
}

fn cells(call: &Call) -> [String; 8] {
    [
        print::time(call.started_at),
        call.id.clone(),
        call.project.clone().unwrap_or_default(),
        print::short(caller(call), 40),
        format!("{}/{}", call.server, call.tool),
        call.status.clone(),
        took(call),
        print::short(call.error.as_deref().unwrap_or_default(), 80),
    ]
}

async fn show(context: &Context, args: Named) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_call = path(&["calls", &args.id]) + &of_project(args.project.as_ref());
    let Some(whole) = context.shown::<WholeCall>(&api, &of_call).await? else {
        return Ok(());
    };
    let call = whole.call;
    print::data(&print::fields(&[
        ("id", call.id.clone()),
        ("begun", print::time(call.started_at)),
        ("took", took(&call)),
        ("status", call.status.clone()),
        ("error", call.error.clone().unwrap_or_default()),
        ("project", call.project.clone().unwrap_or_default()),
        ("caller", caller(&call).to_owned()),
        ("server", call.server.clone()),
        ("tool", call.tool.clone()),
        (
            "arguments",
            whole.arguments.unwrap_or(call.arguments_digest),
        ),
        ("replay of", whole.replay_of.unwrap_or_default()),
        (
            "result",
            whole.result.or(call.result_digest).unwrap_or_default(),
        ),
    ]))
}
