//! `runs`: records of agent runs.

use api::{Run, WholeRun};
use model::ProjectId;
use serde::Serialize;

use super::{
    Context, calls,
    http::{of_project, path},
    names,
    pages::{self, Lines},
    print, values,
};
use crate::cli::names::Named;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List runs, newest first.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show a run with its calls.
    #[command(aliases = ["show", "status"])]
    Get(Named),
}

#[derive(clap::Args, Serialize)]
pub(super) struct ListArgs {
    /// Only runs in this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only runs with this outcome: running, done, failed, cancelled or interrupted.
    #[arg(long, hide_possible_values = true, value_parser = values::run_outcomes())]
    status: Option<String>,
    /// Only runs of this conversation.
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
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
    let head = [
        "BEGUN", "ID", "PROJECT", "CALLER", "MODEL", "STATUS", "TOOK", "TOKENS", "NOTE",
    ];
    let listed = pages::list(&api, &path(&["runs"]), &args, &args.lines).await?;
    listed.print(context, "no runs found", head, cells)
}

fn cells(run: &Run) -> [String; 9] {
    [
        print::time(run.started_at),
        run.id.clone(),
        run.project.clone().unwrap_or_default(),
        print::short(run.caller_name.as_deref().unwrap_or_default(), 40),
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

async fn show(context: &Context, args: Named) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_run = path(&["runs", &args.id]) + &of_project(args.project.as_ref());
    let Some(WholeRun { run, calls }) = context.shown(&api, &of_run).await? else {
        return Ok(());
    };
    let mut fields = vec![
        ("id", run.id.clone()),
        ("begun", print::time(run.started_at)),
        ("took", took(&run)),
        ("status", run.status.clone()),
        ("error", run.error.clone().unwrap_or_default()),
        ("project", run.project.clone().unwrap_or_default()),
        ("caller", run.caller_name.clone().unwrap_or_default()),
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
