//! One configured server: the task that keeps it connected, and what callers need of it.
//!
//! The task starts or reaches the server, fetches its catalog, and serves what comes from it outside of
//! calls. When the connection ends it tries again, with exponential backoff and jitter; calls meanwhile fail
//! at once with the reason (G05, P07).
//!
//! A *lazy* server has no task before somebody wants it (P10), and none any more once it was idle for long.
//! A project's own server that failed to connect some times in a row is left alone for a while (P12): then the
//! next caller finds out whether it is back. Deliberately absent: the full restart ladder and its policies.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use mcp::{
    Era, Frame, RpcError,
    chain::Blocked,
    client::{Ambient, CallerId, Event},
    protocol::method,
};
use model::{NativeName, Pinning, ServerKey, ServerName, ServerSpec, Sharing, StartPolicy};
use runtime::{Repeats, process::Handle};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use crate::hosted::{Crash, Load, Order, Status};
pub use crate::launch::Connection;
use crate::{
    catalog::{Catalog, Item, ListKind, fetch_list},
    hosted::Hosted,
    launch::StartError,
    memory::{Remembered, config_digest},
    pinned::{KeptBack, Pinned, write_down},
    questions::AskedNow,
    queue::{Permit, Place, Queue, Sending},
    refresh::Refresh,
    remember::{News, Pins},
    sessions::SessionInstances,
    shared::Shared,
    subscriptions::Upstream,
    timers::Timers,
    uri,
    view::Scope,
};

/// First and longest wait between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// A connection that held this long starts the backoff anew.
const STABLE: Duration = Duration::from_secs(60);
/// A connection that ended before that is no reason to try again at once.
const BRIEF: Duration = Duration::from_secs(1);
/// Failures to connect in a row after which a project's own server is left alone, and for how long.
const BREAKER: (u32, Duration) = (3, Duration::from_secs(60));
/// How long an introduction may wait for what a server says of itself that is being started for the first time.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How long the first list of all may wait for a server that is being started for the first time.
pub const FIRST_START: Duration = Duration::from_secs(10);

/// Where a server is.
#[derive(Clone)]
pub enum State {
    /// Nobody needs it yet, or any more.
    Idle,
    Starting,
    Ready(Arc<Connection>),
    /// Not connected; tried again at `retry_at`, if that is known. `left_alone`: it failed so often that calls are
    /// what tries it then.
    Down {
        reason: Arc<str>,
        retry_at: Option<Instant>,
        left_alone: bool,
    },
    /// Switched off, removed, or the product stops.
    Stopped,
}

impl State {
    /// The word that operators see.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Ready(_) => "running",
            Self::Down {
                left_alone: true, ..
            } => "unavailable",
            Self::Down { .. } => "down",
            Self::Stopped => "stopped",
        }
    }
}

/// A configured server.
pub struct Server {
    pub spec: ServerSpec,
    key: ServerKey,
    /// What its exposed URIs begin with, where it is known by its name.
    uri_prefix: String,
    /// The same where servers of several projects stand beside each other.
    qualified_uri_prefix: String,
    shared: Weak<Shared>,
    life: Mutex<Life>,
    /// Failures to connect in a row.
    failures: AtomicU32,
    was_up: AtomicBool,
    wanted_at: OnceLock<Instant>,
    /// [`Server::rest`]
    resting: Notify,
    pub(crate) disabled_tools: ArcSwap<BTreeSet<NativeName>>,
    state: watch::Sender<State>,
    catalog: ArcSwap<Catalog>,
    pub(crate) pinned: Pinned,
    /// Lists that the server says have changed.
    refresh: Refresh,
    /// Whether the first start has come to an end, good or bad.
    settled: AtomicBool,
    queue: Queue,
    /// Whom it is asking something.
    pub(crate) asked_now: AskedNow,
    pub(crate) over: CancellationToken,
    gone: CancellationToken,
    pub(crate) upstream: Upstream,
    pub(crate) instances: SessionInstances,
    pub(crate) timers: Timers,
    /// Where it is hosted, what is known of that.
    pub(crate) hosted: Option<Hosted>,
    last: Mutex<Option<Handle>>,
    stderr_of_failure: Mutex<Option<String>>,
    pub(crate) blocked: Mutex<Option<Blocked>>,
    pub stats: Stats,
    /// What its calls would fill the log with.
    pub(crate) repeats: Repeats,
}

/// Whether a server has a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Resting,
    Running,
    Over,
}

/// Counts since the product started.
#[derive(Default)]
pub struct Stats {
    pub calls: AtomicU64,
    pub errors: AtomicU64,
    pub starts: AtomicU64,
    /// Requests that were turned away at once: the server was busy, down or stopped.
    pub refused: AtomicU64,
}

/// Why a caller gets no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unavailable {
    #[error("server `{server}` is unavailable: {reason}{}", retry_text(.retry_ms))]
    Down {
        server: ServerName,
        reason: Arc<str>,
        retry_ms: Option<u64>,
    },
    #[error(
        "server `{server}` is busy: {waiting} calls wait already (raise `maxConcurrency` or try again)"
    )]
    Busy { server: ServerName, waiting: usize },
    #[error("server `{server}` had no place for the call within {ms} ms: {}", in_the_way(*.in_flight, *.asked, *.turns))]
    Queued {
        server: ServerName,
        ms: u64,
        in_flight: usize,
        /// How many questions of the server wait for their clients' answers.
        asked: usize,
        turns: bool,
    },
    #[error("server `{server}` did not become ready within {ms} ms")]
    Timeout { server: ServerName, ms: u64 },
}

fn retry_text(retry_ms: &Option<u64>) -> String {
    retry_ms
        .map(|ms| format!("; next attempt in {ms} ms"))
        .unwrap_or_default()
}

/// What a call waits for in line.
fn in_the_way(in_flight: usize, asked: usize, turns: bool) -> String {
    let calls = match in_flight {
        1 => "1 call is in flight".to_owned(),
        count => format!("{count} calls are in flight"),
    };
    let asked = match asked {
        0 => String::new(),
        1 => ", and a question of the server waits for its client's answer".to_owned(),
        count => format!(", and {count} questions of the server wait for their clients' answers"),
    };
    let why = if turns {
        "it gets the calls of one session at a time, because it asks clients in mid-call"
    } else {
        "raise `maxConcurrency` or try again"
    };
    format!("{calls}{asked} ({why})")
}

impl Unavailable {
    /// What tells it from others in the log: without what changes from call to call.
    pub(crate) fn cause(&self) -> &str {
        match self {
            Self::Down { reason, .. } => reason,
            Self::Busy { .. } | Self::Queued { .. } => "busy",
            Self::Timeout { .. } => "not ready",
        }
    }

    /// The JSON-RPC error for the caller.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let (reason, server, retry) = match self {
            Self::Down {
                server, retry_ms, ..
            } => ("server_unavailable", server, *retry_ms),
            Self::Busy { server, .. } | Self::Queued { server, .. } => {
                ("server_busy", server, Some(1000))
            }
            Self::Timeout { server, .. } => ("server_not_ready", server, None),
        };
        let retry = retry
            .map(|ms| format!(",\"retryAfterMs\":{ms}"))
            .unwrap_or_default();
        let server = mcp::json::quote(server.as_str());
        let data = format!("{{\"reason\":\"{reason}\",\"server\":{server}{retry}}}");
        RpcError::internal(self.to_string()).with_data(data.into_bytes())
    }
}

impl Server {
    pub(crate) fn new(spec: ServerSpec, remembered: Remembered, shared: &Arc<Shared>) -> Arc<Self> {
        let limit = usize::try_from(spec.max_concurrency_or_default()).unwrap_or(1);
        // Whoever sets a limit knows how many calls the server can tell apart.
        let takes_turns = spec.max_concurrency.is_none()
            && spec.sharing == Sharing::Shared
            && (remembered.catalog.as_ref()).is_some_and(|catalog| catalog.takes_turns);
        let key = spec.key();
        Arc::new(Self {
            uri_prefix: uri::prefix(&key.name),
            qualified_uri_prefix: uri::prefix(&key.qualified()),
            key,
            shared: Arc::downgrade(shared),
            life: Mutex::new(Life::Resting),
            failures: AtomicU32::new(0),
            was_up: AtomicBool::new(false),
            wanted_at: OnceLock::new(),
            resting: Notify::new(),
            disabled_tools: ArcSwap::from_pointee(spec.disabled_tools.clone()),
            state: watch::Sender::new(State::Idle),
            // Of what is known nobody needs to wait for news.
            settled: AtomicBool::new(remembered.catalog.is_some()),
            catalog: ArcSwap::from_pointee(remembered.catalog.unwrap_or_default()),
            pinned: Pinned::new(remembered.pins, config_digest(&spec)),
            refresh: Refresh::default(),
            queue: Queue::new(limit, shared.limits().queue_len, takes_turns),
            asked_now: AskedNow::default(),
            over: CancellationToken::new(),
            gone: CancellationToken::new(),
            upstream: Upstream::default(),
            instances: SessionInstances::default(),
            timers: Timers::new(limit),
            hosted: spec.hosting().map(|_| Hosted::new()),
            last: Mutex::default(),
            stderr_of_failure: Mutex::default(),
            blocked: Mutex::default(),
            stats: Stats::default(),
            repeats: Repeats::default(),
            spec,
        })
    }

    #[must_use]
    pub fn key(&self) -> &ServerKey {
        &self.key
    }

    /// What it is called, and what its URIs begin with, where a caller of the scope sees it.
    pub(crate) fn label(&self, scope: &Scope) -> (ServerName, &str) {
        if scope.project.is_none() {
            (self.key.qualified(), &self.qualified_uri_prefix)
        } else {
            (self.spec.name.clone(), &self.uri_prefix)
        }
    }

    pub(crate) fn uri_prefix(&self, scope: &Scope) -> &str {
        if scope.project.is_none() {
            &self.qualified_uri_prefix
        } else {
            &self.uri_prefix
        }
    }

    #[must_use]
    pub fn name(&self) -> &ServerName {
        &self.spec.name
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// How its tools were defined when they were agreed to.
    #[must_use]
    pub fn pins(&self) -> Arc<Pins> {
        self.pinned.pins()
    }

    /// Why a tool is kept back where definitions are quarantined, if it is.
    pub(crate) fn keeps_back(&self, tool: &str) -> Option<KeptBack> {
        self.pinned.keeps_back(tool)
    }

    /// Those of its tools that are kept back.
    #[must_use]
    pub fn kept_back(&self) -> Vec<(NativeName, KeptBack)> {
        let pinning = self
            .shared
            .upgrade()
            .map(|shared| shared.fleet().settings.pinning);
        if pinning != Some(Pinning::Quarantine) {
            return Vec::new();
        }
        let catalog = self.catalog();
        let tools = catalog.list(ListKind::Tools).iter();
        let kept = tools.filter_map(|item| {
            let why = self.keeps_back(&item.native)?;
            Some((NativeName::new(item.native.clone()), why))
        });
        kept.collect()
    }

    /// The tools that are switched off, by the server's own names of them.
    #[must_use]
    pub fn disabled_tools(&self) -> Arc<BTreeSet<NativeName>> {
        self.disabled_tools.load_full()
    }

    /// Calls in flight, and calls that wait.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.queue.in_flight(), self.queue.waiting())
    }

    /// The process, or the last one there was: its stderr outlives it.
    #[must_use]
    pub fn process(&self) -> Option<Handle> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The end of the server's stderr.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        let failed = self
            .stderr_of_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        failed
            .or_else(|| self.process().map(|handle| handle.stderr_tail()))
            .unwrap_or_default()
    }

    /// Whether nobody needs to wait for its catalog any more.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
            || self
                .wanted_at
                .get()
                .is_some_and(|at| at.elapsed() >= FIRST_START)
    }

    /// Whether it is being started for the first time, and nobody knows what it offers.
    pub(crate) fn is_in_first_start(&self) -> bool {
        self.wanted_at.get().is_some() && !self.is_settled()
    }

    /// Whether what is offered of it is what is remembered: it is not connected.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !matches!(*self.state.borrow(), State::Ready(_)) && self.catalog.load().info.is_some()
    }

    /// Whether it was connected since the product started, however it is now.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.was_up.load(Ordering::Relaxed)
    }

    /// Failures to connect in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Follows its state.
    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(*self.state.borrow(), State::Idle)
    }

    fn is_lazy(&self, shared: &Shared) -> bool {
        self.hosted.is_none()
            && (self.spec.owner.is_some() || shared.start_policy() == StartPolicy::Lazy)
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it, unless it is lazy or switched off.
    pub(crate) fn begin(self: &Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        if self.spec.enabled && !self.is_lazy(&shared) {
            self.want();
        }
    }

    /// Starts it if nobody has.
    pub fn want(self: &Arc<Self>) {
        if !self.is_idle() || !self.spec.enabled {
            return;
        }
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        {
            let mut life = self.life();
            if *life != Life::Resting || self.over.is_cancelled() {
                return;
            }
            *life = Life::Running;
        }
        let _ = self.wanted_at.set(Instant::now());
        self.state.send_replace(State::Starting);
        if self.hosted.is_some() {
            shared.spawn(self.clone().host(shared.clone()));
        } else {
            shared.spawn(self.clone().run(shared.clone()));
        }
    }

    /// Has the connection of a lazy server given up, soon, if nobody uses it now; what it offered stays offered. Others
    /// go on, and so does one that is not connected.
    pub fn rest(&self) {
        self.resting.notify_waiters();
    }

    /// Waits until the first start has come to an end; at most [`FIRST_START`] after it began.
    pub(crate) async fn first_settled(self: &Arc<Self>) {
        if self.is_settled() {
            return;
        }
        let mut state = self.state.subscribe();
        self.want();
        let deadline = self.wanted_at.get().map_or_else(Instant::now, |at| *at) + FIRST_START;
        let settled = state.wait_for(|_| self.settled.load(Ordering::Acquire));
        let _ = tokio::time::timeout_at(deadline, settled).await;
    }

    /// Waits until it has answered its handshake, if it is in its first start; at most [`FIRST_ANSWER`] after that began.
    pub(crate) async fn first_answered(&self) {
        let Some(wanted_at) = self.wanted_at.get() else {
            return;
        };
        let has_answered = || self.catalog.load().info.is_some() || self.is_settled();
        let mut state = self.state.subscribe();
        let answered = state.wait_for(|_| has_answered());
        let _ = tokio::time::timeout_at(*wanted_at + FIRST_ANSWER, answered).await;
    }

    /// Starts it if nobody has, and waits until it is up, or has failed to come up.
    ///
    /// # Errors
    /// Why it did not.
    pub async fn up(self: &Arc<Self>) -> Result<(), Arc<str>> {
        let mut state = self.state.subscribe();
        self.want();
        let state = state
            .wait_for(|state| !matches!(state, State::Idle | State::Starting))
            .await;
        match state.as_deref() {
            Ok(State::Down { reason, .. }) => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    fn unavailable(&self, state: &State) -> Unavailable {
        let (reason, retry_ms): (Arc<str>, _) = match state {
            State::Down {
                reason, retry_at, ..
            } => {
                let wait = retry_at.map(|at| at.saturating_duration_since(Instant::now()));
                let wait = wait.and_then(|wait| u64::try_from(wait.as_millis()).ok());
                (reason.clone(), wait)
            }
            other => (other.word().into(), None),
        };
        Unavailable::Down {
            server: self.name().clone(),
            reason,
            retry_ms,
        }
    }

    /// The shared connection: at once if it is up or down, within `deadline` while it is starting.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Unavailable> {
        if let State::Ready(connection) = &*self.state.borrow() {
            return Ok(connection.clone());
        }
        let mut state = self.state.subscribe();
        self.want();
        let ready = state.wait_for(|state| !matches!(state, State::Idle | State::Starting));
        // Waits are boxed: a call that need not wait does not carry their room.
        match Box::pin(tokio::time::timeout_at(deadline, ready)).await {
            Ok(Ok(state)) => match &*state {
                State::Ready(connection) => Ok(connection.clone()),
                other => Err(self.unavailable(other)),
            },
            Ok(Err(_)) => Err(self.unavailable(&State::Stopped)),
            Err(_) => Err(Unavailable::Timeout {
                server: self.name().clone(),
                ms: u64::try_from(self.spec.call_timeout.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }

    /// The connection that takes the place of `old`, which the server has forgotten.
    pub(crate) async fn reconnected(
        &self,
        old: &Arc<Connection>,
        deadline: Instant,
    ) -> Option<Arc<Connection>> {
        let mut state = self.state.subscribe();
        let fresh = |state: &State| matches!(state, State::Ready(new) if !Arc::ptr_eq(new, old));
        let state = tokio::time::timeout_at(deadline, state.wait_for(fresh))
            .await
            .ok()?
            .ok()?;
        match &*state {
            State::Ready(connection) => Some(connection.clone()),
            _ => None,
        }
    }

    /// The reason at once, if it is known that no call can reach the server now.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        match &*self.state.borrow() {
            state @ (State::Down { .. } | State::Stopped) => Some(self.unavailable(state)),
            _ => None,
        }
    }

    /// A place among the calls in flight, or in line for one, at once.
    ///
    /// # Errors
    /// [`Unavailable::Busy`]: too many are in line already.
    pub(crate) fn line_up(
        &self,
        caller: CallerId,
        sending: Sending,
    ) -> Result<Place<'_>, Unavailable> {
        self.queue
            .line_up(caller, sending)
            .map_err(|waiting| Unavailable::Busy {
                server: self.name().clone(),
                waiting,
            })
    }

    /// Waits in line until it is this call's turn (G14).
    pub(crate) async fn turn(
        &self,
        place: Place<'_>,
        deadline: Instant,
    ) -> Result<Permit, Unavailable> {
        let permit = self.queue.turn(place, deadline).await;
        permit.ok_or_else(|| Unavailable::Queued {
            server: self.name().clone(),
            ms: u64::try_from(self.spec.call_timeout.as_millis()).unwrap_or(u64::MAX),
            in_flight: self.queue.in_flight(),
            asked: self.asked_now.count(),
            turns: self.queue.takes_turns(),
        })
    }

    /// Whether only calls of one session are in flight at a time.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.queue.takes_turns()
    }

    /// Ends it; [`Server::stopped`] tells when all is gone.
    pub(crate) fn stop(&self) {
        self.over.cancel();
        let mut life = self.life();
        if *life == Life::Resting {
            *life = Life::Over;
            self.state.send_replace(State::Stopped);
            self.gone.cancel();
        }
    }

    /// Waits until it has been stopped for good.
    pub async fn stopped(&self) {
        self.gone.cancelled().await;
    }

    /// Keeps the server connected until it is stopped, idle for long, or failed too often.
    async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let lazy = self.is_lazy(&shared);
        let mut attempts = 0u32;
        while !self.over.is_cancelled() {
            // Not `Starting` again on a later attempt: calls fail at once until it is back.
            let lived = tokio::select! {
                biased;
                () = self.over.cancelled() => break,
                () = self.unused(&shared), if lazy => None,
                lived = self.live(&shared) => Some(lived),
            };
            let Some((reason, held)) = lived else {
                self.disconnect(&shared).await;
                if self.pause() {
                    shared.publish_of(&self, &[]);
                    return;
                }
                continue;
            };
            if let Some(blocked) = self.take_blocked() {
                self.stay_away(&shared, &blocked).await;
                continue;
            }
            let held = held.unwrap_or_default();
            if held >= STABLE {
                attempts = 0;
            }
            let failures = self.failures.load(Ordering::Relaxed);
            let left_alone = self.spec.owner.is_some() && failures >= BREAKER.0;
            // What worked a moment ago is tried again at once.
            let wait = if left_alone {
                BREAKER.1
            } else if attempts == 0 && held >= BRIEF {
                Duration::ZERO
            } else {
                backoff(attempts)
            };
            attempts = attempts.saturating_add(1);
            tracing::warn!(server = %self.key, retry_ms = wait.as_millis(), "not connected: {reason}");
            let reason = if left_alone {
                format!("{reason} ({failures} attempts in a row failed)").into()
            } else {
                reason
            };
            self.state.send_replace(State::Down {
                reason,
                retry_at: Some(Instant::now() + wait),
                left_alone,
            });
            self.settle();
            shared.publish_of(&self, &ListKind::ALL);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.over.cancelled() => {}
            }
            if left_alone && self.pause() {
                return;
            }
        }
        *self.life() = Life::Over;
        self.end(&shared).await;
    }

    /// Gives up a connection that nobody uses; what it offered stays offered. Who comes meanwhile waits.
    async fn disconnect(&self, shared: &Shared) {
        tracing::info!(server = %self.key, "not used for a while: disconnected");
        if let State::Ready(connection) = self.state.send_replace(State::Starting) {
            connection.close(shared.launcher.stop_grace).await;
        }
    }

    /// Goes without a task until somebody wants the server; `false` if it is to go on, because it is to stop
    /// or somebody waits for it already. Who waits subscribes before looking at the state: nobody is missed.
    fn pause(&self) -> bool {
        let mut life = self.life();
        if self.over.is_cancelled() {
            return false;
        }
        self.state.send_replace(State::Idle);
        if self.state.receiver_count() > 0 {
            self.state.send_replace(State::Starting);
            return false;
        }
        *life = Life::Resting;
        true
    }

    async fn end(&self, shared: &Shared) {
        let last = self.state.send_replace(State::Stopped);
        self.settle();
        self.instances.close_all(shared.launcher.stop_grace).await;
        if let State::Ready(connection) = last {
            connection.close(shared.launcher.stop_grace).await;
        }
        // A connection that was about to be made, or to be cleared away, when the stop came.
        if let Some(process) = self.process() {
            process.stop(shared.launcher.stop_grace).await;
        }
        self.gone.cancel();
    }

    /// The first start has come to an end. Wakes who waits for that, for it is no part of the state.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.state.send_modify(|_| {});
    }

    /// Returns once nobody has used the server for as long as the settings say, or nobody uses it and it is told to
    /// rest.
    async fn unused(&self, shared: &Shared) {
        let mut calls = u64::MAX;
        loop {
            let told = tokio::select! {
                () = tokio::time::sleep(shared.limits().server_idle) => false,
                () = self.resting.notified() => true,
            };
            let seen = self.stats.calls.load(Ordering::Relaxed);
            let (in_flight, waiting) = self.load();
            let quiet = in_flight + waiting == 0 && !self.upstream.is_watching();
            if quiet && (told || seen == calls) && matches!(*self.state.borrow(), State::Ready(_)) {
                return;
            }
            calls = seen;
        }
    }

    /// One life of the connection: why it ended, and how long it held if it came to be.
    async fn live(self: &Arc<Self>, shared: &Arc<Shared>) -> (Arc<str>, Option<Duration>) {
        let launched = Instant::now();
        let (connection, ambient) = match self.connect(shared).await {
            Ok(connected) => connected,
            Err(error) => return (error.reason, None),
        };
        let connected = Instant::now();
        let why = self.converse(shared, &connection, ambient, launched).await;
        let why: Arc<str> = self.spec.redact(&why).into();
        // From here on callers get the reason, while what is left of the instance is cleared away.
        self.state.send_replace(State::Down {
            reason: why.clone(),
            retry_at: Some(Instant::now() + BACKOFF.0),
            left_alone: false,
        });
        connection.close(shared.launcher.stop_grace).await;
        let why = match connection.handle.as_ref().and_then(Handle::exit_status) {
            Some(exit) => format!("the process ended with {exit}").into(),
            None => why,
        };
        (why, Some(connected.elapsed()))
    }

    /// Makes a connection, and notes what came of it.
    pub(crate) async fn connect(
        &self,
        shared: &Shared,
    ) -> Result<(Arc<Connection>, Ambient), StartError> {
        self.stats.starts.fetch_add(1, Ordering::Relaxed);
        let capabilities = shared.shared_capabilities();
        let connected = shared.launcher.connect(&self.spec, &capabilities).await;
        let mut kept = self
            .stderr_of_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (connection, ambient) = match connected {
            Ok((connection, ambient)) => (Arc::new(connection), ambient),
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                if let Some(stderr) = &error.stderr {
                    let stderr = self.spec.redact(stderr);
                    let tail: String = stderr.lines().rev().take(5).collect::<Vec<_>>().join(" ⏎ ");
                    tracing::warn!(server = %self.key, "its stderr ends (last line first): {tail}");
                }
                kept.clone_from(&error.stderr);
                if let Some(blocked) = &error.blocked {
                    self.block(blocked.clone());
                }
                return Err(error);
            }
        };
        self.failures.store(0, Ordering::Relaxed);
        self.was_up.store(true, Ordering::Relaxed);
        if connection.handle.is_some() {
            *kept = None;
            self.last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(&connection.handle);
        }
        Ok((connection, ambient))
    }

    /// Takes stock of a connection that was just made, and serves what comes from it until it ends; says why it did.
    pub(crate) async fn converse(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        ambient: Ambient,
        launched: Instant,
    ) -> Arc<str> {
        let working = async {
            self.take_stock(shared, connection, launched).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            why = self.serve(shared, connection, ambient) => why,
            () = working => "unreachable: it pends".into(),
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Nobody has to wait for its first start any more, whatever came of it.
    pub(crate) fn settle_and_publish(&self, shared: &Shared) {
        self.settle();
        shared.publish_of(self, &ListKind::ALL);
    }

    /// The last thing that the task of a hosted server does.
    pub(crate) async fn hosting_is_over(&self, shared: &Shared) {
        *self.life() = Life::Over;
        self.end(shared).await;
    }

    /// Learns what a server that was just connected offers, and makes it known.
    ///
    /// One that was there before takes calls at once, under the names that are known of it; what it does not
    /// list now stays as it was, and is asked for again.
    async fn take_stock(
        &self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        launched: Instant,
    ) {
        let info = connection.client.info();
        let returns = self.change(|catalog| catalog.info.replace(info.clone()).is_some());
        if returns {
            self.state.send_replace(State::Ready(connection.clone()));
        } else {
            // Wakes whoever waits for what it says of itself.
            self.state.send_modify(|_| {});
        }
        let mut missing = self.fetch(shared, connection, &ListKind::ALL).await;
        if self.is_blocked() {
            return;
        }
        tracing::info!(
            server = %self.key,
            version = %info.version,
            tools = self.catalog().list(ListKind::Tools).len(),
            ms = u64::try_from(launched.elapsed().as_millis()).unwrap_or(u64::MAX),
            "connected"
        );
        if !returns {
            self.state.send_replace(State::Ready(connection.clone()));
        }
        connection.is_known.store(true, Ordering::Relaxed);
        self.settled.store(true, Ordering::Release);
        shared.publish_of(self, &ListKind::ALL);
        self.settle();
        self.keep(shared);
        let mut attempts = 0u32;
        while !missing.is_empty() {
            tokio::time::sleep(backoff(attempts.saturating_add(4))).await;
            attempts = attempts.saturating_add(1);
            let asked = std::mem::take(&mut missing);
            missing = self.fetch(shared, connection, &asked).await;
            if missing.len() < asked.len() {
                shared.publish_of(self, &asked);
                self.keep(shared);
            }
        }
    }

    /// Asks for these lists, one after the other; gives those that could not be had.
    ///
    /// One bad list hides no other, and leaves what is known of it.
    async fn fetch(
        &self,
        shared: &Arc<Shared>,
        connection: &Connection,
        kinds: &[ListKind],
    ) -> Vec<ListKind> {
        let mut missing = Vec::new();
        for kind in kinds {
            if !connection.client.info().has(kind.capability()) {
                self.change(|catalog| catalog.set(*kind, Vec::new()));
                continue;
            }
            match fetch_list(&connection.client, *kind, self.name().as_str()).await {
                Ok((items, behind)) => {
                    if *kind == ListKind::Tools {
                        if !self.look_behind(shared, connection, behind) {
                            connection.client.close(shared.launcher.stop_grace).await;
                            return missing;
                        }
                        self.compare(shared, &items);
                    }
                    self.change(|catalog| catalog.set(*kind, items));
                }
                Err(error) => {
                    tracing::warn!(server = %self.key, "{} failed: {error}", kind.method());
                    missing.push(*kind);
                }
            }
        }
        missing
    }

    /// Has the catalog remembered for the next start, without tools that cannot be.
    fn keep(&self, shared: &Arc<Shared>) {
        let mut catalog = self.catalog();
        let is_unkept =
            |item: &Item| matches!(self.keeps_back(&item.native), Some(KeptBack::Unkept(_)));
        let tools = catalog.list(ListKind::Tools).clone();
        if tools.iter().any(is_unkept) {
            let kept = tools.iter().filter(|item| !is_unkept(item)).cloned();
            Arc::make_mut(&mut catalog).set(ListKind::Tools, kept.collect());
        }
        let digest = self.pinned.config().to_string();
        if shared.memory.catalog(&self.key, digest, catalog) {
            self.write_down(shared);
        }
    }

    fn write_down(&self, shared: &Arc<Shared>) {
        shared.spawn_writer(write_down(shared.clone(), self.key.clone()));
    }

    /// Notes how tools are defined, and whether that is how they were.
    fn compare(&self, shared: &Arc<Shared>, tools: &[Item]) {
        // Its successor may have another configuration: nothing is agreed to on the successor's behalf.
        if self.over.is_cancelled() {
            return;
        }
        let policy = shared.fleet().settings.pinning;
        let seen = self.pinned.compare(tools, policy);
        if seen.is_empty() {
            return;
        }
        for seen in &seen {
            let (key, tool) = (&self.key, seen.tool.as_str());
            match seen.news {
                News::Tool | News::Same => {}
                News::Configured => {
                    tracing::info!(server = %key, tool, "the definition of the tool has changed with the server's configuration, and is agreed to with it");
                }
                News::Words if policy == Pinning::Quarantine => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed: kept back until it is approved");
                }
                News::Words => {
                    tracing::warn!(server = %key, tool, "the definition of the tool has changed: offered all the same");
                }
            }
        }
        if shared.memory.pins(&self.key, seen) {
            self.write_down(shared);
        }
    }

    /// Puts a changed catalog in the place of the old one. Only the task of [`Server::run`] does.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Catalog) -> T) -> T {
        let mut catalog = Catalog::clone(&self.catalog.load());
        let outcome = change(&mut catalog);
        self.catalog.store(Arc::new(catalog));
        outcome
    }

    /// Handles what comes outside of calls until the connection ends; says why it did.
    async fn serve(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        mut ambient: Ambient,
    ) -> Arc<str> {
        let closed = connection.client.closed();
        let subscriptions = self.upstream.run(self, shared, connection);
        let events = async {
            while let Some(event) = ambient.recv().await {
                self.ambient(shared, connection, event).await;
            }
            std::future::pending::<()>().await
        };
        let refreshing = async {
            loop {
                let kinds = self.refresh.next().await;
                self.fetch(shared, connection, &kinds).await;
                shared.publish_of(self, &kinds);
                self.keep(shared);
            }
        };
        tokio::select! {
            why = closed => why,
            () = refreshing => "unreachable: it goes on for ever".into(),
            () = subscriptions => "subscriptions ended".into(),
            () = events => "events ended".into(),
        }
    }

    pub(crate) async fn ambient(
        &self,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        event: Event,
    ) {
        match event {
            Event::Request(request) => {
                // Nobody in particular is calling: a shared server has no client of its own (`sharing`).
                let answer = if request.method() == method::ROOTS_LIST {
                    Frame::result(request.id(), b"{\"roots\":[]}")
                } else {
                    refused(
                        &request,
                        "needs the one session with calls in flight that it belongs to",
                    )
                };
                let _ = connection.client.send(&answer).await;
            }
            // What a server wants to know at its start has to do with no call (server-filesystem asks for roots).
            Event::Unclear(request)
                if request.method() == method::ROOTS_LIST
                    && !connection.is_known.load(Ordering::Relaxed) =>
            {
                let answer = Frame::result(request.id(), b"{\"roots\":[]}");
                let _ = connection.client.send(&answer).await;
            }
            Event::Unclear(request) => {
                let turns = self.take_turns(shared);
                let mut why = "could belong to calls of several sessions".to_owned();
                if turns {
                    why.push_str(
                        " (from now on the server gets the calls of one at a time: call again)",
                    );
                }
                let answer = refused(&request, &why);
                let _ = connection.client.send(&answer).await;
            }
            Event::Notification(frame) => self.notified(shared, &frame),
            Event::Response(_) => {}
        }
    }

    /// Has calls of one session at a time go to the server from now on, unless its limit was set by hand: it asks its
    /// clients things, and does not say in which call. Whether that is so.
    fn take_turns(&self, shared: &Arc<Shared>) -> bool {
        // Where sessions have instances of their own, whoever uses the common one has no session to be asked.
        if self.spec.max_concurrency.is_some() || self.spec.sharing == Sharing::Session {
            return false;
        }
        if self.queue.take_turns() {
            tracing::warn!(
                server = %self.key,
                "it asked a client something while calls of several sessions were in flight: from now on it gets the calls \
                 of one session at a time; \"sharing\": \"session\" gives each session an instance of its own"
            );
            self.change(|catalog| catalog.takes_turns = true);
            self.keep(shared);
        }
        true
    }

    /// A notification that belongs to no call.
    pub(crate) fn notified(&self, shared: &Shared, frame: &Frame) {
        match frame.method() {
            method::TOOLS_CHANGED => self.refresh.of(&[ListKind::Tools]),
            method::PROMPTS_CHANGED => self.refresh.of(&[ListKind::Prompts]),
            method::RESOURCES_CHANGED => {
                self.refresh.of(&[ListKind::Resources, ListKind::Templates]);
            }
            method::RESOURCE_UPDATED => {
                if let Some(native) = frame.object().and_then(|params| params.string("uri")) {
                    shared.hub.resource_updated(self, &native, frame);
                }
            }
            // A task is its owner's alone.
            mcp::tasks::STATUS => crate::tasks::status(shared, self, frame),
            mcp::tasks::STATUS_MODERN => {}
            method::MESSAGE => shared
                .hub
                .log_message(frame, |scope| shared.fleet().sees(scope, self)),
            _ => shared
                .hub
                .broadcast(frame, |scope| shared.fleet().sees(scope, self)),
        }
    }

    /// Whether the connection is one of today's era.
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.catalog.load().info.as_ref().map(|info| info.era)
    }
}

fn backoff(attempts: u32) -> Duration {
    let longest = BACKOFF
        .0
        .saturating_mul(1u32.checked_shl(attempts).unwrap_or(u32::MAX))
        .min(BACKOFF.1);
    // Half fixed, half random: many servers that fell together do not come back together.
    longest.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// The answer to a question that nobody can be asked.
fn refused(question: &Frame, why: &str) -> Frame {
    let what = format!(
        "{} {why}: configure the server with \"maxConcurrency\": 1 or \"sharing\": \"session\"",
        question.method()
    );
    let error = RpcError::new(mcp::error::METHOD_NOT_FOUND, what);
    Frame::error(question.id(), &error)
}
