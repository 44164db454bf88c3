//! Call statistics over time.
//!
//! Calls are counted per time span. Counts of spans that can no longer change are cached, so a chart over a million
//! calls reads only the newest calls. Durations are grouped into classes, each 19 % longer than the previous one. A
//! percentile is the middle of a class.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api::{CallBucket, CallFigures, CallStatistics, CallsOfServer, CallsOfTool};
use axum::{Json, extract::State};
use model::ProjectId;
use parking_lot::Mutex;
use serde::Deserialize;
use store::{CallCount, CallStatus, Store, Time};
use tokio::sync::Semaphore;

use super::{AppState, Problem, access::Within, input::Asked};

/// The bucket widths of a chart, in seconds: from one minute to one week.
const BUCKET_WIDTHS_SECS: [i64; 13] = [
    60, 120, 300, 600, 900, 1800, HOUR, 7200, 10_800, 21_600, 43_200, 86_400, 604_800,
];
/// The longest span that is counted in one query.
const HOUR: i64 = 3600;
/// Seconds after which the counts of a span no longer change. No call lasts longer than an hour.
const SETTLED_AFTER_SECS: i64 = 2 * HOUR;
const DEFAULT_BUCKETS: u32 = 60;
const MAX_BUCKETS: u32 = 200;
/// Maximum number of cached counts over all spans. They take some tens of megabytes.
const MAX_CACHED_COUNTS: usize = 100_000;
/// Maximum number of tools in a response.
const MAX_TOOLS: usize = 1_000;
/// Maximum number of requests that count at the same time. Others wait.
const MAX_CONCURRENT_COUNTS: usize = 2;

/// Cached statistics.
pub(super) struct Statistics {
    known: Mutex<Known>,
    turns: Semaphore,
}

#[derive(Default)]
struct Known {
    spans: HashMap<Span, Arc<Vec<Count>>>,
    counts: usize,
}

/// A time span, how its calls are filtered, and whether they are counted by tool.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Span {
    tool: Option<String>,
    caller: Option<String>,
    by_tool: bool,
    width: i64,
    /// Seconds since 1970, a multiple of the width.
    start: i64,
}

/// Calls of one server with one outcome.
struct Count {
    project: Option<String>,
    server: String,
    /// Empty unless calls are counted by tool.
    tool: String,
    status: CallStatus,
    calls: u64,
    /// Number of calls in each class of durations.
    classes: BTreeMap<u8, u64>,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            turns: Semaphore::new(MAX_CONCURRENT_COUNTS),
        }
    }
}

impl Statistics {
    async fn counts(&self, store: &Store, span: Span, now: i64) -> store::Result<Arc<Vec<Count>>> {
        if let Some(counts) = self.known.lock().spans.get(&span) {
            return Ok(counts.clone());
        }
        let (since, until) = (time(span.start), time(span.start + span.width));
        let rows = store
            .calls_count(
                span.tool.as_deref(),
                span.caller.as_deref(),
                span.by_tool,
                (since, until),
            )
            .await?;
        let counts = Arc::new(grouped(rows));
        if span.start + span.width + SETTLED_AFTER_SECS <= now {
            let mut known = self.known.lock();
            if known.counts > MAX_CACHED_COUNTS {
                *known = Known::default();
            }
            known.counts += counts.len() + 1;
            known.spans.insert(span, counts.clone());
        }
        Ok(counts)
    }
}

fn time(seconds: i64) -> Time {
    Time::from_timestamp(seconds, 0).unwrap_or_default()
}

/// Returns the class of a duration from its number of digits and its first two digits.
fn class(digits: i32, leading: &str) -> Option<u8> {
    let leading: f64 = leading.parse().ok()?;
    let middle = match digits {
        1 => leading.max(1.0),
        digits => (leading + 0.5) * 10f64.powi(digits - 2),
    };
    // A duration has at most 19 digits, so the result is less than 256.
    Some((middle.log2() * 4.0).round() as u8)
}

fn grouped(rows: Vec<CallCount>) -> Vec<Count> {
    let mut counts: HashMap<_, Count> = HashMap::new();
    for row in rows {
        let calls = u64::try_from(row.count).unwrap_or(0);
        let kind = (
            row.project_id.clone(),
            row.server.clone(),
            row.tool_name.clone(),
            row.status,
        );
        let count = counts.entry(kind).or_insert_with(|| Count {
            project: row.project_id,
            server: row.server,
            tool: row.tool_name,
            status: row.status,
            calls: 0,
            classes: BTreeMap::new(),
        });
        count.calls += calls;
        if let Some(class) = class(row.digits, &row.first_two) {
            *count.classes.entry(class).or_default() += calls;
        }
    }
    counts.into_values().collect()
}

/// The sum of several counts.
#[derive(Default)]
struct Sum {
    calls: u64,
    errors: u64,
    classes: BTreeMap<u8, u64>,
}

impl Sum {
    fn add(&mut self, count: &Count) {
        self.calls += count.calls;
        if count.status.is_failure() {
            self.errors += count.calls;
        }
        for (class, calls) in &count.classes {
            *self.classes.entry(*class).or_default() += calls;
        }
    }

    /// Returns the duration that this fraction of the calls did not exceed, in microseconds.
    fn percentile(&self, part: f64) -> Option<u64> {
        let all: u64 = self.classes.values().sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let class = self.classes.iter().find(|(_, calls)| {
            seen += **calls;
            seen >= wanted
        });
        class.map(|(class, _)| (f64::from(*class) / 4.0).exp2().round() as u64)
    }

    fn to_api(&self) -> CallFigures {
        CallFigures {
            calls: self.calls,
            errors: self.errors,
            p50_us: self.percentile(0.5),
            p95_us: self.percentile(0.95),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct QueryParams {
    server: Option<String>,
    tool: Option<String>,
    status: Option<CallStatus>,
    caller: Option<String>,
    since: Option<Time>,
    until: Option<Time>,
    buckets: Option<u32>,
    #[serde(default)]
    by_tool: bool,
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Within(project): Within,
    Asked(mut params): Asked<QueryParams>,
) -> Result<Json<CallStatistics>, Problem> {
    params.caller = rest.caller_id(project.as_ref(), params.caller).await?;
    let now = store::now().timestamp();
    // The default end is after the current second, so that calls that began in it are included.
    let until = params.until.map_or(now + 1, |until| until.timestamp());
    let since = params.since.map_or(until - HOUR, |since| since.timestamp());
    let most = params.buckets.unwrap_or(DEFAULT_BUCKETS);
    if !(1..=MAX_BUCKETS).contains(&most) {
        let must = format!("must be a whole number from 1 to {MAX_BUCKETS}");
        return Err(Problem::field(400, "/buckets", must));
    }
    if since >= until {
        return Err(Problem::field(400, "/since", "must be before `until`"));
    }
    let first = |width: i64| since.div_euclid(width);
    let after = |width: i64| (until - 1).div_euclid(width) + 1;
    let fits = |width: &i64| after(*width) - first(*width) <= i64::from(most);
    let Some(width) = BUCKET_WIDTHS_SECS.into_iter().find(fits) else {
        let why = format!(
            "must be larger: {most} buckets of one week do not cover the time from `since` to `until`"
        );
        return Err(Problem::field(400, "/buckets", why));
    };
    let store = rest.projects.store();
    let _turn = rest.statistics.turns.acquire().await;
    let oldest = store
        .calls_oldest()
        .await?
        .unwrap_or_else(|| store::id_at(time(now)));
    let mut all = Sum::default();
    let mut servers: BTreeMap<(Option<String>, String), Sum> = BTreeMap::new();
    let mut tools: BTreeMap<(Option<String>, String, String), Sum> = BTreeMap::new();
    let mut buckets = Vec::new();
    for start in (first(width)..after(width)).map(|place| place * width) {
        let mut bucket = Sum::default();
        let step = width.min(HOUR);
        let mut at = start;
        while at < start + width {
            let span = Span {
                tool: params.tool.clone(),
                caller: params.caller.clone(),
                by_tool: params.by_tool,
                width: step,
                start: at,
            };
            at += step;
            if oldest >= store::id_at(time(at)) || span.start > now {
                continue;
            }
            let counts = rest.statistics.counts(store, span, now).await?;
            for count in counts
                .iter()
                .filter(|count| params.wants(project.as_ref(), count))
            {
                bucket.add(count);
                all.add(count);
                let server = (count.project.clone(), count.server.clone());
                if params.by_tool {
                    let (project, server) = server.clone();
                    let tool = (project, server, count.tool.clone());
                    tools.entry(tool).or_default().add(count);
                }
                servers.entry(server).or_default().add(count);
            }
        }
        buckets.push(CallBucket {
            start: time(start),
            figures: bucket.to_api(),
        });
    }
    let servers = servers
        .into_iter()
        .map(|((project, server), sum)| CallsOfServer {
            project,
            server,
            figures: sum.to_api(),
        });
    let mut servers: Vec<CallsOfServer> = servers.collect();
    servers.sort_by_key(|server| Reverse(server.figures.calls));
    let tools = tools
        .into_iter()
        .map(|((project, server, tool), sum)| CallsOfTool {
            project,
            server,
            tool,
            figures: sum.to_api(),
        });
    let mut tools: Vec<CallsOfTool> = tools.collect();
    tools.sort_by_key(|tool| Reverse(tool.figures.calls));
    tools.truncate(MAX_TOOLS);
    Ok(Json(CallStatistics {
        all: all.to_api(),
        bucket_seconds: width.unsigned_abs(),
        buckets,
        servers,
        tools,
    }))
}

impl QueryParams {
    /// Returns whether the count matches the filter. The database has already filtered by tool and caller.
    fn wants(&self, project: Option<&ProjectId>, count: &Count) -> bool {
        self.status.is_none_or(|status| status == count.status)
            && self
                .server
                .as_ref()
                .is_none_or(|server| *server == count.server)
            && project.is_none_or(|project| count.project.as_deref() == Some(project.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_true_to_a_tenth() {
        for exact in [1_u64, 3, 9, 10, 47, 999, 12_345, 7_200_000_000] {
            let text = exact.to_string();
            let digits = text.len() as i32;
            let class = class(digits, &text[..text.len().min(2)]).unwrap();
            let mut sum = Sum::default();
            sum.classes.insert(class, 5);
            let estimate = sum.percentile(0.95).unwrap();
            let off = estimate.abs_diff(exact) as f64 / exact as f64;
            assert!(off < 0.15, "{exact}: {estimate}");
        }
        assert_eq!(class(0, ""), None);
        assert!(class(19, "99").is_some());
    }

    #[test]
    fn percentiles_are_of_all_calls() {
        let sum = Sum {
            classes: BTreeMap::from([(40, 90), (60, 9), (80, 1)]),
            ..Sum::default()
        };
        let at = |part| sum.percentile(part).unwrap();
        assert_eq!((at(0.5), at(0.95), at(1.0)), (1 << 10, 1 << 15, 1 << 20));
        assert_eq!(Sum::default().percentile(0.5), None);
    }
}
