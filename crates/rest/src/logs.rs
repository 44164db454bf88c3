//! Server logs (standard error): the last lines as text, or as an event stream with all later lines.
//!
//! A stream refers to the server's declaration. It continues when the process is replaced or the server is
//! reconfigured.

use std::{collections::VecDeque, time::Duration};

use axum::{
    body::Bytes,
    extract::{Query, State, rejection::QueryRejection},
    http::header,
    response::{IntoResponse, Response},
};
use engine::server::State as Connected;
use lifecycle::Phase;
use mcp::sse;
use runtime::process::{Line, Lines, Tail};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use super::{AppState, Problem, answer::event_stream, input, servers::Target};

/// Default number of lines.
const DEFAULT_TAIL_LINES: usize = 200;
/// Interval between checks of a server without a process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The type of events that come from the gateway, not from the server.
pub const NOTICE: &str = "notice";

#[derive(Debug, Deserialize)]
pub(super) struct QueryParams {
    tail: Option<usize>,
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    timestamps: bool,
}

pub(super) async fn read(
    State(rest): State<AppState>,
    target: Target,
    query: Result<Query<QueryParams>, QueryRejection>,
) -> Result<Response, Problem> {
    rest.taken_in(&target).await?;
    let asked = input::query(query)?;
    let tail = asked.tail.unwrap_or(DEFAULT_TAIL_LINES);
    if !asked.follow {
        let server = target.live(&rest.gateway.fleet());
        let log = server.map(|server| server.stderr()).unwrap_or_default();
        let mut text = String::new();
        for line in last(&log, tail) {
            text.push_str(&written(line, asked.timestamps));
            text.push('\n');
        }
        let kind = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
        return Ok(([kind], text).into_response());
    }
    let place = rest.follower()?;
    let following = Following {
        ready: VecDeque::new(),
        target,
        tail,
        timestamps: asked.timestamps,
        lines: None,
        process: None,
        starts: 0,
        gone: false,
        rest,
        _place: place,
    };
    let events = futures_util::stream::unfold(following, async |mut following| {
        let event = following.next().await?;
        Some((event, following))
    });
    Ok(event_stream(events))
}

fn last(log: &Tail, count: usize) -> &[Line] {
    &log.0[log.0.len().saturating_sub(count)..]
}

/// Returns a line, with its time in front (RFC 3339, UTC, in milliseconds) if `timestamps` is set.
fn written(line: &Line, timestamps: bool) -> String {
    match timestamps {
        true => stamped(i64::try_from(line.at_ms).unwrap_or_default(), &line.text),
        false => line.text.to_string(),
    }
}

fn stamped(at_ms: i64, text: &str) -> String {
    let at = api::Time::from_timestamp_millis(at_ms).unwrap_or_default();
    format!("{} {text}", at.format("%Y-%m-%dT%H:%M:%S%.3fZ"))
}

/// The state of one stream. Contains no handle, which would keep the process alive.
struct Following {
    /// Events that are not sent yet. Contains at most one whole log of a server.
    ready: VecDeque<Bytes>,
    target: Target,
    /// Number of past lines to send. No limit for later lines.
    tail: usize,
    timestamps: bool,
    lines: Option<Lines>,
    /// The process that wrote the lines: its id and start time.
    process: Option<(Option<u32>, std::time::SystemTime)>,
    /// Number of starts of the server that were reported.
    starts: u64,
    gone: bool,
    rest: AppState,
    _place: OwnedSemaphorePermit,
}

impl Following {
    /// Returns the next event. `None` when the gateway stops.
    async fn next(&mut self) -> Option<Bytes> {
        let over = self.rest.over.clone();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            tokio::select! {
                () = over.cancelled() => return None,
                () = self.more() => {}
            }
        }
    }

    /// Waits for a new line or a change of the process. Cancel safe.
    async fn more(&mut self) {
        match &mut self.lines {
            Some(lines) => match lines.next().await {
                Some(Ok(line)) => self.say(&line),
                Some(Err(missed)) => self.notice(&format!(
                    "{} lines were skipped, because they were read too slowly",
                    missed.0
                )),
                None => {
                    self.lines = None;
                    self.notice("the process has ended");
                }
            },
            None => {
                if self.process.is_some() || self.starts > 0 || self.gone {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                self.look();
                if self.lines.is_none() && self.ready.is_empty() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Checks for a new process or a failed start.
    fn look(&mut self) {
        let Some(server) = self.target.live(&self.rest.gateway.fleet()) else {
            if !std::mem::replace(&mut self.gone, true) {
                self.notice("the server was removed from the configuration");
            }
            return;
        };
        self.gone = false;
        let starts = server
            .stats
            .starts
            .load(std::sync::atomic::Ordering::Relaxed);
        // The counter restarts when the server is reconfigured.
        if starts < self.starts {
            self.starts = 0;
        }
        let process = server.process();
        let id = process
            .as_ref()
            .map(|handle| (handle.pid(), handle.started_at()));
        if let Some(handle) = process
            && id != self.process
        {
            if self.process.is_some() {
                let process = handle.pid().map(|pid| format!(", process {pid}"));
                self.notice(&format!("restarted{}", process.unwrap_or_default()));
            }
            self.process = id;
            self.starts = starts;
            let (past, lines) = handle.follow_stderr();
            self.tell(&past);
            self.lines = Some(lines);
        } else if starts > self.starts
            // During a start, the reason and the log are those of the start before.
            && !matches!(server.status().phase, Phase::Starting { .. })
            && let Connected::Down { reason, .. } = server.state()
        {
            self.starts = starts;
            let past = server.stderr();
            self.tell(&past);
            self.notice(&format!("not running: {reason}"));
        }
    }

    fn tell(&mut self, past: &Tail) {
        for line in last(past, self.tail) {
            self.say(line);
        }
        self.tail = usize::MAX;
    }

    fn say(&mut self, line: &Line) {
        let data = written(line, self.timestamps).into();
        self.ready.push_back(sse::encode(None, None, &data));
    }

    fn notice(&mut self, what: &str) {
        let now = std::time::SystemTime::now();
        let text = match self.timestamps {
            true => stamped(api::Time::from(now).timestamp_millis(), what),
            false => what.to_owned(),
        };
        let event = sse::encode(Some(NOTICE), None, &text.into());
        self.ready.push_back(event);
    }
}
