//! `runs`: the turns of agents, what they took and how they ended.

use model::ProjectId;
use serde_json::Value;

use super::{Context, Output, Reach, calls, http, print};
use crate::rest::{Run, Runs, WholeRun};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List runs, newest first.
    Ls(ListArgs),
    /// Show one run with its calls.
    Get(NameArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only of this project.
    #[arg(long)]
    project: Option<ProjectId>,
    /// Only with this outcome: running, done, failed, cancelled or interrupted.
    #[arg(long)]
    status: Option<String>,
    /// Only of this conversation.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// How many.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    lines: u32,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// As `runs ls` shows it.
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
        Some(project) => vec!["projects", project.as_str(), "runs"],
        None => vec!["runs"],
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let mut query = format!("limit={}", args.lines);
    for (key, value) in [
        ("status", &args.status),
        ("conversation", &args.conversation),
    ] {
        if let Some(value) = value {
            query.push_str(&format!("&{key}={}", http::escaped(value)));
        }
    }
    let api = args.reach.gateway(context).await?;
    let of_runs = http::path(&segments(args.project.as_ref()));
    let page: Runs = api.get(&format!("{of_runs}?{query}")).await?;
    if context.output == Output::Json {
        return print::json(&page.runs);
    }
    if page.runs.is_empty() {
        eprintln!("there are no such runs");
    }
    if page.next.is_some() {
        eprintln!("there are older ones; --lines shows up to 1000");
    }
    let cells: Vec<[String; 8]> = page.runs.iter().map(cells).collect();
    let head = [
        "BEGUN", "ID", "PROJECT", "MODEL", "STATUS", "TOOK", "TOKENS", "NOTE",
    ];
    print::data(&print::table(head, &cells))
}

fn cells(run: &Run) -> [String; 8] {
    [
        print::time(run.started_at),
        run.id.clone(),
        run.project.clone().unwrap_or_default(),
        print::short(&run.model, 40),
        run.status.clone(),
        took(run),
        (run.input_tokens.saturating_add(run.output_tokens)).to_string(),
        print::short(run.error.as_deref().unwrap_or_default(), 80),
    ]
}

fn took(run: &Run) -> String {
    let took = run.finished_at.map(|end| end - run.started_at);
    took.map_or_else(String::new, |took| {
        format!("{:.1} s", took.num_milliseconds() as f64 / 1000.0)
    })
}

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let mut segments = segments(args.project.as_ref());
    segments.push(&args.id);
    let of_run = http::path(&segments);
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&of_run).await?);
    }
    let WholeRun { run, calls } = api.get(&of_run).await?;
    let mut fields = vec![
        ("id", run.id.clone()),
        ("begun", print::time(run.started_at)),
        ("took", took(&run)),
        ("status", run.status.clone()),
        ("error", run.error.clone().unwrap_or_default()),
        ("project", run.project.clone().unwrap_or_default()),
        ("conversation", run.conversation.clone().unwrap_or_default()),
        ("model", run.model.clone()),
        ("requests", run.turns.to_string()),
        (
            "tokens",
            format!("{} in, {} out", run.input_tokens, run.output_tokens),
        ),
    ];
    if run.cost_micros > 0 {
        fields.push(("cost", format!("{:.4}", run.cost_micros as f64 / 1e6)));
    }
    print::data(&print::fields(&fields))?;
    if calls.is_empty() {
        return Ok(());
    }
    print::data("\n")?;
    print::data(&calls::table(&calls))
}
