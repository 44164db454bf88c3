//! One stream of events about servers, their tools and calls.
//!
//! A stream looks at what the gateway has in memory, twice a second, and tells what differs from what it told. So what
//! nobody follows costs nothing, and who reads slowly misses what was in between, but never the last state.
//!
//! | event | data |
//! | --- | --- |
//! | `server` | a [`api::Server`]: at first every one, later one that changed |
//! | `server_removed` | `{"id"}` |
//! | `tools` | `{"id"}`: what this server offers changed, or what is kept back of it |
//! | `call` | an [`api::Call`] that began or ended |
//! | `calls_skipped` | `{}`: there were more than can be told one by one |
//! | `replicas` | `{}`, to administrators: a replica came or went, or a lease has another holder |

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use axum::{
    Extension,
    body::Bytes,
    extract::{Request, State},
    response::Response,
};
use engine::{Fleet, catalog::Catalog, remember::Pins, server::Server};
use futures_util::{StreamExt as _, stream};
use mcp::sse;
use model::{NativeName, ProjectId};
use serde::Serialize;
use serde_json::json;
use store::{CallFilter, Page, Time};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    AppState, Problem,
    access::{Who, Within},
    answer::event_stream,
    calls,
    servers::{Home, LOOKS, Target},
};
use crate::{
    auth::{Principal, Role},
    gateway::Asked,
};

/// How often a stream looks.
const LOOK: Duration = Duration::from_millis(500);
/// How often it reads which servers are declared, if the gateway shows no sign of a change.
const DECLARED: Duration = Duration::from_secs(5);
/// Calls that are told of at a time.
const CALLS: u32 = 50;

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

/// The parts of a server that tell whether it changed.
struct Pulse {
    state: Option<Live>,
    updated: Option<Time>,
}

struct Live {
    server: Arc<Server>,
    word: &'static str,
    since: SystemTime,
    next_attempt: Option<Instant>,
    counts: [u64; 7],
    offer: Offer,
}

/// The tools that it offers; compared by identity, since all of these are replaced when they change.
struct Offer {
    catalog: Arc<Catalog>,
    pins: Arc<Pins>,
    disabled: Arc<std::collections::BTreeSet<NativeName>>,
}

impl Pulse {
    fn of(target: &Target, fleet: &Fleet) -> Self {
        let updated = match &target.home {
            Home::File => None,
            Home::Project(row) => Some(row.updated_at),
            Home::Registered(row) => Some(row.updated_at),
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

    /// Calls that it had, and those in flight.
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
                count(&stats.starts),
                status.restarts,
                status.warnings,
            ],
            offer: Offer {
                catalog: server.catalog(),
                pins: server.pins(),
                disabled: server.disabled_tools(),
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
            && Arc::ptr_eq(&self.disabled, &other.disabled)
    }
}

/// One who follows.
struct Following {
    /// Not sent yet: what one look found.
    ready: VecDeque<Bytes>,
    /// By which the caller is known again at each look.
    asked: Request<()>,
    who: Arc<Principal>,
    project: Option<ProjectId>,
    /// Of the last look.
    fleet: Option<Arc<Fleet>>,
    read_at: Instant,
    targets: Vec<Target>,
    told: HashMap<String, Pulse>,
    /// Of calls, over all servers.
    count: u64,
    /// The newest calls with their outcomes, as they were told; `None` before the first look.
    calls: Option<HashMap<String, String>>,
    /// Of replicas and their leases, as they were told.
    turns: Option<u64>,
    rest: AppState,
    _place: OwnedSemaphorePermit,
}

impl Following {
    /// The next event; `None` when the product stops, or the caller is not known any more.
    async fn next(&mut self) -> Option<Bytes> {
        let over = self.rest.over.clone();
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // The first look is made at once.
            if self.fleet.is_some() {
                tokio::select! {
                    () = over.cancelled() => return None,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            // A key may have been taken back.
            let guard = self.rest.front.guard();
            guard.key(Asked::of(&self.asked)).await.ok()?;
            // A database that is away is looked at again.
            if let Err(problem) = self.look().await {
                tracing::debug!(error = %problem.detail, "events cannot be read");
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
        if changed || self.read_at.elapsed() >= DECLARED {
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
                let offers_else = known.is_some_and(|known| !known.same_offer(&pulse));
                different.push((target.clone(), (pulse, offers_else)));
            }
        }
        self.tell_servers(different).await?;
        if calls != self.count || self.calls.is_none() {
            self.tell_calls().await?;
            self.count = calls;
        }
        self.tell_replicas();
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
        let told: Vec<api::Server> = stream::iter(told).buffered(LOOKS).collect().await;
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
            limit: Some(CALLS),
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
        if rows.len() == CALLS as usize && !rows.iter().any(|row| known.contains_key(&row.id)) {
            self.tell("calls_skipped", &json!({}));
        }
        for row in rows.into_iter().rev() {
            if known
                .get(&row.id)
                .is_none_or(|status| status != row.status.as_str())
            {
                self.tell("call", &calls::told(row));
            }
        }
        Ok(())
    }

    fn tell(&mut self, event: &str, data: &impl Serialize) {
        // Each of these can be written as JSON.
        let data = serde_json::to_vec(data).unwrap_or_default();
        self.ready
            .push_back(sse::encode(Some(event), None, &data.into()));
    }
}
