//! An event stream about servers, their tools, calls and replicas.
//!
//! Each stream polls the gateway's memory twice a second and sends the differences to what it sent before. So events
//! cost nothing while no stream is open. A slow reader misses intermediate states but always gets the latest one.
//!
//! | event | data |
//! | --- | --- |
//! | `server` | an [`api::Server`]: first every server, then each one that changes |
//! | `server_removed` | `{"id"}` |
//! | `tools` | `{"id"}`: the server's tools changed, or the set of those that are kept back |
//! | `attention` | an [`api::Attention`]: the servers and tools that need a person, at first and after each change |
//! | `call` | an [`api::Call`] that began or ended |
//! | `calls_skipped` | `{}`: there were too many calls to send each one |
//! | `replicas` | `{}`, for administrators: a replica joined or left, or a lease changed its holder |

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use api::Attention;
use axum::{
    Extension,
    body::Bytes,
    extract::{Request, State},
    response::Response,
};
use catalog::{Catalog, remember::Pins};
use engine::{Fleet, server::Server};
use futures_util::{StreamExt as _, stream};
use mcp::sse;
use model::{ProjectId, ToolChoice};
use serde::Serialize;
use serde_json::json;
use store::{CallFilter, CallRow, Page, Time};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    AppState, Problem,
    access::{Who, Within},
    answer::event_stream,
    servers::{MAX_USAGE_READS, Source, Target},
};
use auth::{Principal, Role};
use gateway::RequestInfo;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between reads of the declared servers while the gateway shows no sign of a change.
const DECLARED_READ_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of calls per poll.
const MAX_CALLS_PER_POLL: u32 = 50;

pub(super) async fn follow(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    request: Request,
) -> Result<Response, Problem> {
    let place = rest.follower()?;
    let following = Following {
        ready: VecDeque::new(),
        asked: request.map(|_| ()),
        who,
        project,
        fleet: None,
        read_at: Instant::now(),
        targets: Vec::new(),
        told: HashMap::new(),
        attention: None,
        count: 0,
        calls: None,
        turns: None,
        rest,
        _place: place,
    };
    let events = stream::unfold(following, async |mut following| {
        let event = following.next().await?;
        Some((event, following))
    });
    Ok(event_stream(events))
}

/// The parts of a server's state that show whether it changed.
struct Pulse {
    state: Option<Live>,
    updated: Option<Time>,
}

struct Live {
    server: Arc<Server>,
    word: &'static str,
    since: SystemTime,
    next_attempt: Option<Instant>,
    counts: [u64; 9],
    offer: Offer,
}

/// The tools of a server. They are compared by identity, because each part is replaced when it changes.
struct Offer {
    catalog: Arc<Catalog>,
    pins: Arc<Pins>,
    choice: Arc<ToolChoice>,
}

impl Pulse {
    fn of(target: &Target, fleet: &Fleet) -> Self {
        let updated = match &target.home {
            Source::File => None,
            Source::Project(row) => Some(row.updated_at),
            Source::Registered(row) => Some(row.updated_at),
        };
        let state = target.live(fleet).map(Live::of);
        Self { state, updated }
    }

    fn same(&self, other: &Self) -> bool {
        self.updated == other.updated
            && match (&self.state, &other.state) {
                (None, None) => true,
                (Some(one), Some(other)) => one.same(other),
                _ => false,
            }
    }

    fn same_offer(&self, other: &Self) -> bool {
        match (&self.state, &other.state) {
            (Some(one), Some(other)) => one.offer.same(&other.offer),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Returns whether the server needs the same of people. Calls make no difference.
    fn same_needs(&self, other: &Self) -> bool {
        self.updated == other.updated
            && match (&self.state, &other.state) {
                (None, None) => true,
                (Some(one), Some(other)) => {
                    one.word == other.word
                        && one.since == other.since
                        && one.next_attempt == other.next_attempt
                        && one.offer.same(&other.offer)
                }
                _ => false,
            }
    }

    /// Returns the number of finished calls and calls in flight.
    fn calls(&self) -> u64 {
        self.state
            .as_ref()
            .map_or(0, |live| live.counts[0] + live.counts[1])
    }
}

impl Live {
    fn of(server: Arc<Server>) -> Self {
        let status = server.status();
        let (in_flight, waiting) = server.load();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let stats = &server.stats;
        Self {
            word: status.word(),
            since: status.since,
            next_attempt: status.next_attempt,
            counts: [
                count(&stats.calls),
                in_flight as u64,
                waiting as u64,
                count(&stats.errors),
                count(&stats.requests),
                count(&stats.refused),
                count(&stats.starts),
                status.restarts,
                status.warnings,
            ],
            offer: Offer {
                catalog: server.catalog(),
                pins: server.pins(),
                choice: server.tool_choice(),
            },
            server,
        }
    }

    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server)
            && self.word == other.word
            && self.since == other.since
            && self.next_attempt == other.next_attempt
            && self.counts == other.counts
            && self.offer.same(&other.offer)
    }
}

impl Offer {
    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.catalog, &other.catalog)
            && Arc::ptr_eq(&self.pins, &other.pins)
            && Arc::ptr_eq(&self.choice, &other.choice)
    }
}

/// The state of one stream.
struct Following {
    /// Events of the last poll that are not sent yet.
    ready: VecDeque<Bytes>,
    /// The request, with which the caller is authenticated again at each poll.
    asked: Request<()>,
    who: Arc<Principal>,
    project: Option<ProjectId>,
    /// The servers at the last poll.
    fleet: Option<Arc<Fleet>>,
    read_at: Instant,
    targets: Vec<Target>,
    told: HashMap<String, Pulse>,
    /// The needs that were last sent.
    attention: Option<Attention>,
    /// The number of calls to all servers, at the last poll.
    count: u64,
    /// The newest calls, each with the status that was last sent. `None` before the first poll.
    calls: Option<HashMap<String, String>>,
    /// The version of the replicas and leases that was last sent.
    turns: Option<u64>,
    rest: AppState,
    _place: OwnedSemaphorePermit,
}

impl Following {
    /// Returns the next event. `None` when the gateway stops or the caller's key has become invalid.
    async fn next(&mut self) -> Option<Bytes> {
        let over = self.rest.over.clone();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // The first poll has no delay.
            if self.fleet.is_some() {
                tokio::select! {
                    () = over.cancelled() => return None,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
            // The key may have been revoked.
            let guard = self.rest.front.guard();
            guard.key(RequestInfo::of(&self.asked)).await.ok()?;
            // If the database is not available, the next poll tries again.
            if let Err(problem) = self.look().await {
                tracing::debug!(error = %problem.detail, "cannot read events");
                self.fleet.get_or_insert_with(|| self.rest.gateway.fleet());
            }
        }
    }

    async fn look(&mut self) -> Result<(), Problem> {
        let fleet = self.rest.gateway.fleet();
        let changed = self
            .fleet
            .as_ref()
            .is_none_or(|last| !Arc::ptr_eq(last, &fleet));
        let mut may_need = self.attention.is_none();
        if changed || self.read_at.elapsed() >= DECLARED_READ_INTERVAL {
            may_need = true;
            self.targets = self.rest.all(self.project.as_ref()).await?;
            self.read_at = Instant::now();
            self.fleet = Some(fleet.clone());
            let there: HashSet<String> = self.targets.iter().map(Target::id).collect();
            let gone: Vec<String> = self
                .told
                .keys()
                .filter(|id| !there.contains(*id))
                .cloned()
                .collect();
            for id in gone {
                self.told.remove(&id);
                self.tell("server_removed", &json!({ "id": id }));
            }
        }
        let mut calls = 0;
        let mut different = Vec::new();
        for target in &self.targets {
            let pulse = Pulse::of(target, &fleet);
            calls += pulse.calls();
            let known = self.told.get(&target.id());
            if known.is_none_or(|known| !known.same(&pulse)) {
                may_need |= known.is_none_or(|known| !known.same_needs(&pulse));
                let offers_else = known.is_some_and(|known| !known.same_offer(&pulse));
                different.push((target.clone(), (pulse, offers_else)));
            }
        }
        self.tell_servers(different).await?;
        if may_need {
            self.tell_attention().await?;
        }
        if calls != self.count || self.calls.is_none() {
            self.tell_calls().await?;
            self.count = calls;
        }
        self.tell_replicas();
        Ok(())
    }

    async fn tell_attention(&mut self) -> Result<(), Problem> {
        let now = self
            .rest
            .attention(&self.who, self.project.as_ref(), &self.targets)
            .await?;
        if self.attention.as_ref() != Some(&now) {
            self.tell("attention", &now);
            self.attention = Some(now);
        }
        Ok(())
    }

    fn tell_replicas(&mut self) {
        if !self.who.may(Role::Admin, None) {
            return;
        }
        let turns = self.rest.replica.as_ref().map(|replica| replica.turns());
        if turns != self.turns {
            self.turns = turns;
            self.tell("replicas", &json!({}));
        }
    }

    async fn tell_servers(
        &mut self,
        different: Vec<(Target, (Pulse, bool))>,
    ) -> Result<(), Problem> {
        if different.is_empty() {
            return Ok(());
        }
        let (targets, seen): (Vec<Target>, Vec<(Pulse, bool)>) = different.into_iter().unzip();
        let products = Arc::new(self.rest.products(targets.iter()).await?);
        let told = targets.into_iter().map(|target| {
            let (rest, who, products) = (self.rest.clone(), self.who.clone(), products.clone());
            async move { rest.told_with(&who, &target, &products).await }
        });
        let told: Vec<api::Server> = stream::iter(told).buffered(MAX_USAGE_READS).collect().await;
        for (server, (pulse, offers_else)) in told.into_iter().zip(seen) {
            self.tell("server", &server);
            if offers_else {
                self.tell("tools", &json!({ "id": server.id }));
            }
            self.told.insert(server.id, pulse);
        }
        Ok(())
    }

    async fn tell_calls(&mut self) -> Result<(), Problem> {
        let filter = CallFilter {
            project: self.project.clone(),
            ..CallFilter::default()
        };
        let page = Page {
            limit: Some(MAX_CALLS_PER_POLL),
            after: None,
        };
        let rows = self
            .rest
            .projects
            .store()
            .calls_list(&filter, &page)
            .await?;
        let known = self.calls.take();
        let now = rows
            .iter()
            .map(|row| (row.id.clone(), row.status.as_str().to_owned()));
        self.calls = Some(now.collect());
        let Some(known) = known else {
            return Ok(());
        };
        if rows.len() == MAX_CALLS_PER_POLL as usize
            && !rows.iter().any(|row| known.contains_key(&row.id))
        {
            self.tell("calls_skipped", &json!({}));
        }
        let is_new = |row: &CallRow| {
            known
                .get(&row.id)
                .is_none_or(|status| status != row.status.as_str())
        };
        let new: Vec<CallRow> = rows.into_iter().rev().filter(is_new).collect();
        for call in self.rest.named_calls(&self.who, new).await? {
            self.tell("call", &call);
        }
        Ok(())
    }

    fn tell(&mut self, event: &str, data: &impl Serialize) {
        // All of these types can be serialized as JSON.
        let data = serde_json::to_vec(data).unwrap_or_default();
        self.ready
            .push_back(sse::encode(Some(event), None, &data.into()));
    }
}
