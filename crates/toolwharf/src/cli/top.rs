//! `tools top`: the calls, errors and durations of each tool, from the call records.

use std::cmp::Reverse;

use api::{CallStatistics, CallsOfTool};
use model::ProjectId;
use serde_json::json;

use super::{
    Context,
    calls::moment,
    http::{path, query},
    names, print, values,
};

/// The maximum number of buckets of the API. Many small buckets cover the requested time most precisely.
const BUCKETS: &str = "200";
/// Index of the project column.
const PROJECT_COLUMN: usize = 2;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Only calls in this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Only tools of this server.
    #[arg(long, value_parser = values::name, add = names::servers())]
    server: Option<String>,
    /// Only calls that began at or after this time: 30m or 7d ago, or 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", default_value = "24h", allow_hyphen_values = true, value_parser = moment)]
    since: String,
    /// The column to sort by, largest first.
    #[arg(long, value_enum, default_value_t = Sort::P95)]
    sort: Sort,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Sort {
    Calls,
    Errors,
    P50,
    P95,
}

impl Sort {
    fn value(self, tool: &CallsOfTool) -> u64 {
        let figures = &tool.figures;
        match self {
            Self::Calls => figures.calls,
            Self::Errors => figures.errors,
            Self::P50 => figures.p50_us.unwrap_or_default(),
            Self::P95 => figures.p95_us.unwrap_or_default(),
        }
    }
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let filter = [
        ("by_tool", Some("true")),
        ("buckets", Some(BUCKETS)),
        ("since", Some(args.since.as_str())),
        ("server", args.server.as_deref()),
        ("project", args.project.as_ref().map(ProjectId::as_str)),
    ];
    let path = path(&["calls", "statistics"]) + &query(&filter);
    let mut tools = api.get::<CallStatistics>(&path).await?.tools;
    tools.sort_by_key(|tool| Reverse(args.sort.value(tool)));
    if tools.is_empty() {
        eprintln!("no calls found since {}", args.since);
    }
    context.print(&json!({ "tools": tools }), || table(&tools))
}

fn table(tools: &[CallsOfTool]) -> String {
    let mut head = vec!["TOOL", "SERVER", "PROJECT", "CALLS", "ERRORS", "P50", "P95"];
    let mut rows: Vec<Vec<String>> = tools.iter().map(cells).collect();
    if tools.iter().all(|tool| tool.project.is_none()) {
        head.remove(PROJECT_COLUMN);
        for row in &mut rows {
            row.remove(PROJECT_COLUMN);
        }
    }
    print::table(head, &rows)
}

fn cells(tool: &CallsOfTool) -> Vec<String> {
    let figures = &tool.figures;
    let took = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), print::micros);
    vec![
        tool.tool.clone(),
        tool.server.clone(),
        tool.project.clone().unwrap_or_else(|| "-".to_owned()),
        figures.calls.to_string(),
        figures.errors.to_string(),
        took(figures.p50_us),
        took(figures.p95_us),
    ]
}
