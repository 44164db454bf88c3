//! `calls`: records of tool calls.

use api::{Call, Key, WholeCall};
use model::ProjectId;
use serde::Serialize;
use serde_json::json;
use store::Time;

use super::{
    Context,
    http::{of_project, path},
    names,
    pages::{self, Lines},
    print,
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
    Ls(ListArgs),
    /// Show one call.
    Get(Named),
}

#[derive(clap::Args, Serialize)]
pub(super) struct ListArgs {
    /// Only calls in this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only calls of this server.
    #[arg(long)]
    server: Option<String>,
    /// Only calls of this tool, by its native name.
    #[arg(long)]
    tool: Option<String>,
    /// Only calls with this outcome: open, ok, tool_error, error, timeout, cancelled or unknown.
    #[arg(long)]
    status: Option<String>,
    /// Only calls by this caller, as `key:ID`.
    #[arg(long)]
    caller: Option<String>,
    /// Only calls that began at or after this time: 30m or 7d ago, or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<String>,
    /// Only calls that began before this time, in the same format.
    #[arg(long, value_name = "TIME", value_parser = moment)]
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
    let api = context.gateway().await?;
    let listed = pages::list(&api, &path(&["calls"]), &args, &args.lines).await?;
    // Only callers that may manage keys can list the keys. All others see key ids instead of names.
    let filter = json!({ "project": args.project });
    let keys = pages::all::<Key>(&api, &path(&["keys"]), &filter).await;
    let keys = keys.map(|keys| keys.rows).unwrap_or_default();
    listed.print(context, "no calls found", HEAD, |call: &Call| {
        let mut cells = cells(call);
        let id = call.caller.strip_prefix("key:");
        let key = keys.iter().find(|key| Some(key.id.as_str()) == id);
        // Names are shown only for keys of connected clients, because Toolwharf chose those names.
        if let Some(key) = key.filter(|key| key.name.starts_with("client:")) {
            cells[3].clone_from(&key.name);
        }
        cells
    })
}

pub(super) fn table(calls: &[Call]) -> String {
    print::table(HEAD, calls.iter().map(cells))
}

/// Parses a duration before now, or a time as in the API.
fn moment(text: &str) -> Result<String, &'static str> {
    let time = match print::parse_duration(text) {
        Some(before) => Ok(store::now() - before),
        None => serde_json::from_value::<Time>(text.into()),
    };
    let time =
        time.map_err(|_| "expected a duration (30m, 12h or 7d) or a time (2026-01-31T12:00:00Z)")?;
    Ok(time.to_rfc3339())
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
        ("caller", call.caller.clone()),
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
