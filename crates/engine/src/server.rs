//! One configured server: its spec, its state, and the operations that callers need.
//!
//! Each server is driven by its own loop ([`crate::life::supervisor`]). The loop of a *lazy* server runs only while the
//! server is wanted (P10). Its catalog is maintained by [`crate::life::notifications`]. Deliberately absent: when it is
//! started and stopped ([`lifecycle`]).

pub(crate) mod advice;
pub(crate) mod callers;
pub(crate) mod commands;
pub(crate) mod connection;
mod for_callers;
pub(crate) mod gate;
pub(crate) mod launch;
pub(crate) mod logins;
pub(crate) mod pace;
pub(crate) mod patience;
pub(crate) mod place;
mod problems;
pub(crate) mod progress;
pub(crate) mod questions;
pub(crate) mod queue;
pub(crate) mod refresh;
pub(crate) mod runtimes;
pub(crate) mod sessions;
pub(crate) mod status;
pub(crate) mod subscriptions;
pub(crate) mod timers;
pub(crate) mod unavailable;

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use catalog::{Catalog, KeptBack, Pinned, Remembered, config_digest, remember::Pins};
use mcp::{
    Era,
    chain::Blocked,
    client::{CallerId, ServerInfo, SignIn},
};
use model::{CallerValues, Hidden, ServerKey, ServerName, ServerSpec, Sharing, ToolChoice};
use parking_lot::Mutex;
use runtime::{Fence, Repeats, Tail, process::Handle};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    scope::Scope,
    server::{
        callers::{Callers, ServerId, needs},
        commands::{Command, Inbox},
        connection::Connection,
        pace::Pace,
        progress::Progress,
        questions::AskedNow,
        queue::{Permit, Place, Queue, Sending},
        refresh::Refresh,
        sessions::SessionInstances,
        status::{Begin, Known, Left, Load, Status},
        subscriptions::Upstream,
        timers::Timers,
        unavailable::Unavailable,
    },
    uri,
};
use lifecycle::Phase;

/// Time that `initialize` may wait for the handshake of a server in its first start.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Access tokens remembered for redaction.
const MAX_HIDDEN: usize = 64;

/// The state of a server, as its callers see it.
#[derive(Clone)]
pub enum State {
    /// Not needed at the moment.
    Idle,
    Starting,
    Ready(Arc<Connection>),
    /// Not connected. The next attempt is at `retry_at`, if that is known.
    Down {
        reason: Arc<str>,
        retry_at: Option<Instant>,
    },
    /// Disabled, removed, stopped by a user, or the gateway is stopping.
    Stopped,
}

impl State {
    /// The word shown to callers if no reason is known.
    fn word(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Ready(_) => "running",
            Self::Down { .. } => "down",
            Self::Stopped => "stopped",
        }
    }
}

/// A configured server.
pub struct Server {
    pub spec: ServerSpec,
    id: ServerId,
    /// Its servers for callers with header values. Empty for such a server itself.
    pub(crate) callers: Callers<Self>,
    /// The spec with the defaults of its callers' headers, if it takes any.
    with_defaults: Option<Box<ServerSpec>>,
    /// Why a caller without header values cannot be served, if it cannot.
    pub(crate) needs: Option<Arc<str>>,
    /// The prefix of the server's exposed URIs in scopes that use its plain name.
    uri_prefix: String,
    /// The prefix of the server's exposed URIs in scopes with servers of several projects.
    qualified_uri_prefix: String,
    /// [`Server::want`]
    pub(crate) wanted: Notify,
    /// How the server begins. Unset: the server starts when it is first wanted.
    pub(crate) begin: OnceLock<Begin>,
    /// The previous declaration of the same server. That declaration must have stopped before this one starts.
    pub(crate) before: Mutex<Option<Weak<Server>>>,
    pub(crate) inbox: Inbox,
    pub(crate) known: Known,
    pub(crate) was_up: AtomicBool,
    wanted_at: OnceLock<Instant>,
    progress: Progress,
    /// [`Server::rest`]
    pub(crate) resting: Notify,
    /// Shared with its servers for callers.
    pub(crate) tool_choice: Arc<ArcSwap<ToolChoice>>,
    pub(crate) state: watch::Sender<State>,
    pub(crate) catalog: ArcSwap<Catalog>,
    pub(crate) pinned: Pinned,
    /// Lists that the server reported as changed.
    pub(crate) refresh: Refresh,
    /// Set once the first start has ended, successfully or not.
    pub(crate) settled: AtomicBool,
    pub(crate) queue: Queue,
    /// Delays errors for calls that find the queue full.
    pub(crate) pace: Pace,
    /// The callers to which the server has open requests.
    pub(crate) asked_now: Arc<AskedNow>,
    pub(crate) over: CancellationToken,
    pub(crate) gone: CancellationToken,
    pub(crate) upstream: Upstream,
    /// Resources that legacy clients watch in the second conversation.
    pub(crate) watched_in_second: Upstream,
    pub(crate) instances: SessionInstances,
    pub(crate) timers: Timers,
    /// The connection of the current life.
    pub(crate) live: Mutex<Option<Arc<Connection>>>,
    pub(crate) last: Mutex<Option<Handle>>,
    /// The fencing token of the current life's instances.
    pub(crate) fence: Mutex<Option<Fence>>,
    pub(crate) stderr_of_failure: Mutex<Option<Tail>>,
    pub(crate) blocked: Mutex<Option<Blocked>>,
    /// Set if a user has to sign in before the server lists anything.
    pub(crate) needs_login: Mutex<Option<SignIn>>,
    pub stats: Arc<Stats>,
    /// The counts of the declared server, for a server of callers with header values.
    stats_of_all: Option<Arc<Stats>>,
    /// True if each caller signs in separately and gets a separate instance. The shared instance uses one user's
    /// sign-in and serves the lists that all callers see.
    pub(crate) is_personal: bool,
    /// Access tokens that recently were in the environment of its instances.
    issued: Mutex<VecDeque<Hidden>>,
    /// Limits repeated log lines about the server's calls.
    pub(crate) repeats: Repeats,
}

/// Counts since the gateway started.
#[derive(Default)]
pub struct Stats {
    /// Tool calls, without those in `refused`. If calls are recorded, each has a record.
    pub calls: AtomicU64,
    /// Tool calls that failed, including those whose tool reported an error.
    pub errors: AtomicU64,
    /// Requests other than tool calls, such as reading a resource.
    pub requests: AtomicU64,
    pub starts: AtomicU64,
    /// Requests rejected immediately because the server was busy, down or stopped.
    pub refused: AtomicU64,
}

impl Stats {
    /// The number of requests that the server got from clients, tool calls included.
    pub(crate) fn used(&self) -> u64 {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        count(&self.calls) + count(&self.requests)
    }
}

impl Server {
    /// At most `queue_len` calls wait in line.
    pub(crate) fn new(
        spec: ServerSpec,
        remembered: Remembered,
        queue_len: usize,
        is_personal: bool,
        progress: Progress,
    ) -> Arc<Self> {
        Arc::new(Self::of(
            spec,
            remembered,
            queue_len,
            is_personal,
            progress,
            None,
        ))
    }

    /// `declared`: the declared server, and the header values of the callers, for a server of such callers.
    fn of(
        spec: ServerSpec,
        remembered: Remembered,
        queue_len: usize,
        is_personal: bool,
        progress: Progress,
        declared: Option<(&Self, CallerValues)>,
    ) -> Self {
        let limit = usize::try_from(spec.max_concurrency_or_default()).unwrap_or(1);
        // No turns if the user set `maxConcurrency`, which says how many calls the server can tell apart.
        let takes_turns = spec.max_concurrency.is_none()
            && spec.sharing == Sharing::Shared
            && (remembered.catalog.as_ref()).is_some_and(|catalog| catalog.takes_turns);
        let key = spec.key();
        let (declared, values) = declared.unzip();
        let takes_values = declared.is_none() && !spec.passed_on().is_empty();
        let needs = needs(&spec).filter(|_| takes_values);
        let with_defaults = || Box::new(spec.filled_for(&CallerValues::default()));
        let known = Known::default();
        known.status().reason.clone_from(&needs);
        let tool_choice = declared.map(|declared| declared.tool_choice.clone());
        let over = declared.map(|declared| declared.over.child_token());
        Self {
            uri_prefix: uri::prefix(&key.name),
            qualified_uri_prefix: uri::prefix(&key.qualified()),
            id: ServerId {
                key,
                values: values.unwrap_or_default(),
            },
            callers: Callers::default(),
            with_defaults: takes_values.then(with_defaults),
            wanted: Notify::new(),
            begin: OnceLock::new(),
            before: Mutex::default(),
            inbox: Inbox::default(),
            known,
            was_up: AtomicBool::new(false),
            wanted_at: OnceLock::new(),
            progress,
            resting: Notify::new(),
            tool_choice: tool_choice
                .unwrap_or_else(|| Arc::new(ArcSwap::from_pointee(spec.tools.clone()))),
            state: watch::Sender::new(State::Idle),
            // No list has to wait for a server whose catalog is remembered, or that is not started.
            settled: AtomicBool::new(remembered.catalog.is_some() || needs.is_some()),
            needs,
            catalog: ArcSwap::from_pointee(remembered.catalog.unwrap_or_default()),
            pinned: Pinned::new(remembered.pins, config_digest(&spec)),
            refresh: Refresh::default(),
            queue: Queue::new(limit, queue_len, takes_turns),
            pace: Pace::default(),
            asked_now: Arc::default(),
            over: over.unwrap_or_default(),
            gone: CancellationToken::new(),
            upstream: Upstream::default(),
            watched_in_second: Upstream::default(),
            instances: SessionInstances::default(),
            timers: Timers::new(limit),
            live: Mutex::default(),
            last: Mutex::default(),
            fence: Mutex::default(),
            stderr_of_failure: Mutex::default(),
            blocked: Mutex::default(),
            needs_login: Mutex::default(),
            stats: Arc::default(),
            stats_of_all: declared.map(|declared| declared.stats.clone()),
            issued: Mutex::default(),
            repeats: Repeats::default(),
            is_personal,
            spec,
        }
    }

    /// Counts an event, for this server and the declared one.
    pub(crate) fn count(&self, of: impl Fn(&Stats) -> &AtomicU64) {
        for stats in std::iter::once(&self.stats).chain(&self.stats_of_all) {
            of(stats).fetch_add(1, Ordering::Relaxed);
        }
    }

    #[must_use]
    pub fn key(&self) -> &ServerKey {
        &self.id.key
    }

    pub(crate) fn id(&self) -> &ServerId {
        &self.id
    }

    /// The server's name and URI prefix in this scope.
    pub(crate) fn label(&self, scope: &Scope) -> (ServerName, &str) {
        if scope.project.is_none() {
            (self.id.key.qualified(), &self.qualified_uri_prefix)
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

    /// The approved definitions of the server's tools.
    #[must_use]
    pub fn pins(&self) -> Arc<Pins> {
        self.pinned.pins()
    }

    /// Why a tool is kept back under the quarantine policy, or `None`.
    pub(crate) fn keeps_back(&self, tool: &str) -> Option<KeptBack> {
        self.pinned.keeps_back(tool)
    }

    /// The choice of the tools that are offered.
    #[must_use]
    pub fn tool_choice(&self) -> Arc<ToolChoice> {
        self.tool_choice.load_full()
    }

    /// Numbers of calls in flight and of waiting calls.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.queue.in_flight(), self.queue.waiting())
    }

    /// The current process, or the last one, whose stderr remains available.
    #[must_use]
    pub fn process(&self) -> Option<Handle> {
        self.last.lock().clone()
    }

    /// The end of the server's stderr.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr().text()
    }

    /// Like [`Server::stderr_tail`], with the times of the lines.
    #[must_use]
    pub fn stderr(&self) -> Tail {
        let failed = self.stderr_of_failure.lock().clone();
        failed
            .or_else(|| self.process().map(|handle| handle.stderr()))
            .unwrap_or_default()
    }

    /// Returns whether lists no longer need to wait for the server's catalog.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
            || self
                .first_deadline()
                .is_some_and(|until| Instant::now() >= until)
    }

    /// Until when lists wait for its first start, once that has begun.
    fn first_deadline(&self) -> Option<Instant> {
        let begin = self.wanted_at.get()?;
        Some(self.progress.deadline(*begin))
    }

    /// Returns whether the server is in its first start, so that its catalog is still unknown.
    pub(crate) fn is_in_first_start(&self) -> bool {
        self.wanted_at.get().is_some() && !self.is_settled()
    }

    /// Returns whether the server offers a remembered catalog because it is not connected.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !matches!(*self.state.borrow(), State::Ready(_)) && self.catalog.load().info.is_some()
    }

    /// Returns whether the server has been connected since the gateway started.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.was_up.load(Ordering::Relaxed)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Returns whether the gateway that ran the server was lost just now, so that another one may take it over.
    pub(crate) fn is_moving(&self) -> bool {
        let until = self.known.status().moves_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether another gateway of the installation runs the server.
    pub fn is_elsewhere(&self) -> bool {
        self.known.status().elsewhere
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(*self.state.borrow(), State::Idle)
    }

    /// Starts the server, unless that has happened already.
    pub fn want(&self) {
        if self.is_now_wanted() {
            self.wanted.notify_one();
        }
    }

    /// Marks the server as starting if it is idle. Returns whether it was idle.
    pub(crate) fn is_now_wanted(&self) -> bool {
        let begins = |state: &mut State| {
            let begins = matches!(state, State::Idle) && self.spec.enabled && self.needs.is_none();
            if begins {
                *state = State::Starting;
            }
            begins
        };
        if !self.state.send_if_modified(begins) {
            return false;
        }
        let _ = self.wanted_at.set(Instant::now());
        if matches!(self.begin.get(), None | Some(Begin::New)) {
            let mut status = self.known.status();
            status.phase = Phase::Starting { patient: true };
            status.saved = "starting";
        }
        true
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Marks the first start as ended.
    pub(crate) fn mark_settled(&self) {
        let was_settled = self.settled.swap(true, Ordering::AcqRel);
        if !was_settled && matches!(self.state(), State::Ready(_)) {
            self.progress.note();
        }
    }

    /// Marks the first start as ended. Also wakes the tasks that wait for this, since setting the mark does not change
    /// the watched state.
    pub(crate) fn settle(&self) {
        self.mark_settled();
        self.state.send_modify(|_| {});
    }

    /// The server's description of itself to clients of this era.
    pub(crate) fn info(&self, era: Era) -> Option<ServerInfo> {
        let info = self.catalog.load().info.clone()?;
        let second = match &*self.state.borrow() {
            State::Ready(first) if era == Era::Legacy && info.era == Era::Modern => {
                first.second.get()
            }
            _ => None,
        };
        Some(second.map_or(info, |second| second.client.info().clone()))
    }

    /// Returns whether this is a legacy conversation with a server whose catalog is of the modern era.
    pub(crate) fn is_second(&self, connection: &Connection) -> bool {
        connection.client.info().era == Era::Legacy && self.era() == Some(Era::Modern)
    }

    /// The era of the server's catalog, if that is known.
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.catalog.load().info.as_ref().map(|info| info.era)
    }

    /// Asks a lazy server to close its connection soon if it is unused now. Its tools stay on offer. Has no effect on
    /// other servers or on one that is not connected.
    pub fn release_idle(&self) {
        self.resting.notify_waiters();
    }

    /// Waits for the end of the first start, for as long as [`Progress::deadline`] says.
    pub(crate) async fn first_settled(&self) {
        let mut state = self.state.subscribe();
        while !self.is_settled() {
            self.want();
            let deadline = self.first_deadline().unwrap_or_else(Instant::now);
            let settled = state.wait_for(|_| self.settled.load(Ordering::Acquire));
            let settled = tokio::time::timeout_at(deadline, settled).await;
            // A disabled server never starts.
            if settled.is_ok() || self.wanted_at.get().is_none() {
                return;
            }
        }
    }

    /// Waits for the handshake of a server in its first start, at most until [`FIRST_ANSWER`] after that began.
    pub(crate) async fn first_answered(&self) {
        let Some(wanted_at) = self.wanted_at.get() else {
            return;
        };
        let has_answered = || self.catalog.load().info.is_some() || self.is_settled();
        let mut state = self.state.subscribe();
        let answered = state.wait_for(|_| has_answered());
        let _ = tokio::time::timeout_at(*wanted_at + FIRST_ANSWER, answered).await;
    }

    /// Starts the server if needed, and waits until it is up or has failed to start.
    ///
    /// # Errors
    /// Why the server is down.
    pub async fn up(&self) -> Result<(), Arc<str>> {
        if let Some(needs) = self.unmet() {
            return Err(needs);
        }
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

    /// Delays the server's start until `before`, a server with the same name, is gone.
    pub(crate) fn waits_for(&self, before: &Arc<Self>) {
        let mut waiting = self.before.lock();
        *waiting = Some(Arc::downgrade(before));
    }

    /// Makes this server the successor of its previous declaration.
    pub(crate) fn comes_after(&self, before: &Arc<Self>) {
        let rested = matches!(before.status().phase, Phase::Stopped | Phase::Failed);
        let _ = self.begin.set(match rested && before.spec.enabled {
            true => Begin::Resting,
            false => Begin::New,
        });
        self.known.status().last_crash = before.status().last_crash;
        if self.spec.unusable.is_some() {
            self.known.status().trouble = before.status().trouble;
        }
        self.waits_for(before);
    }

    /// Sets the state in which an earlier run of the gateway left the server. Call this before the server's loop
    /// begins.
    pub(crate) fn was_left(&self, left: Left) {
        if self.begin.set(Begin::Left(left.last)).is_ok() {
            self.known.status().last_crash = left.crash;
        }
    }

    /// Carries out an order. Returns once the requested state is reached or has failed. Returns `false` if the server
    /// is disabled or stopped, or if too many orders are waiting.
    ///
    /// # Cancel safety
    /// The order is carried out even if the future is dropped.
    pub async fn command(&self, order: Command) -> bool {
        let (done, followed) = oneshot::channel();
        if !self.spec.enabled || !self.inbox.push((order, done)) {
            return false;
        }
        if matches!(order, Command::Stop | Command::Restart) {
            // The next request of such a caller starts another one.
            self.callers.take().iter().for_each(|own| own.stop());
        }
        followed.await.is_ok()
    }

    /// Stops the instances of a user who has signed in or out (`None`: all instances with an owner). The next call
    /// starts one with the current sign-in.
    pub async fn part_with(&self, principal: Option<&Arc<str>>, grace: Duration) {
        let own = self.callers.all();
        for server in std::iter::once(self).chain(own.iter().map(|own| &**own)) {
            match principal {
                Some(principal) => server.instances.close_of(principal, grace).await,
                None => server.instances.close_all(grace).await,
            }
        }
    }

    /// Waits until no call is in flight, for at most `patience`.
    pub async fn idle(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.queue.idle()).await;
    }

    /// Removes the server's secrets from the text, including access tokens.
    pub(crate) fn redact(&self, text: &str) -> String {
        let issued: Vec<Hidden> = self.issued.lock().iter().cloned().collect();
        self.spec.redact_also(text, &issued)
    }

    /// Adds an instance's access token to the secrets that are redacted.
    pub(crate) fn hide_token(&self, connection: &Connection) {
        let Some(issued) = &connection.issued else {
            return;
        };
        let mut hidden = self.issued.lock();
        if !hidden.contains(&issued.token) {
            hidden.truncate(MAX_HIDDEN - 1);
            hidden.push_front(issued.token.clone());
        }
    }

    #[must_use]
    pub fn status(&self) -> Status {
        self.known.status().clone()
    }

    /// Current resource usage of the server's instance. `None` if it does not run or cannot be measured.
    pub async fn usage(&self) -> Option<Load> {
        let State::Ready(connection) = self.state() else {
            return None;
        };
        let handle = connection.handle.as_ref()?;
        let usage = handle.usage().await?;
        let now = Instant::now();
        let per = |used: f64, time: f64| (time > 0.05).then(|| used / time);
        let before = self.known.measured.lock().replace((now, usage));
        let since_last = before.and_then(|(at, before)| {
            let used = usage.cpu.checked_sub(before.cpu)?;
            per(used.as_secs_f64(), now.duration_since(at).as_secs_f64())
        });
        // The first time, the average since the start.
        let cores = since_last.or_else(|| {
            let age = handle.started_at().elapsed().ok()?;
            per(usage.cpu.as_secs_f64(), age.as_secs_f64())
        });
        Some(Load { usage, cores })
    }

    fn unavailable(&self, state: &State) -> Unavailable {
        let (reason, retry_ms): (Arc<str>, _) = match state {
            State::Down { reason, retry_at } => {
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
            needs_login: self.status().needs_login,
        }
    }

    /// Why callers get no connection now.
    pub(crate) fn unavailable_now(&self) -> Unavailable {
        self.unavailable(&self.state.borrow())
    }

    /// The shared connection. Returns at once if the server is up or down. While it is starting, waits until
    /// `deadline`.
    pub(crate) async fn connection(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Unavailable> {
        if let State::Ready(connection) = &*self.state.borrow() {
            return Ok(connection.clone());
        }
        if let Some(needs) = self.unmet() {
            return Err(self.down(needs));
        }
        let mut state = self.state.subscribe();
        self.want();
        let ready = state.wait_for(|state| !matches!(state, State::Idle | State::Starting));
        // Boxed, so that the future of a call that does not wait stays small.
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

    /// Waits for the connection that replaces `old`, whose session the server has forgotten.
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

    /// Why no call can reach the server now, if that is known without waiting.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        match &*self.state.borrow() {
            // Each caller signs in separately, so this caller may have a sign-in.
            State::Down { .. } if self.is_personal && self.status().needs_login => None,
            state @ (State::Down { .. } | State::Stopped) => Some(self.unavailable(state)),
            State::Idle => self.needs.clone().map(|needs| self.down(needs)),
            _ => None,
        }
    }

    /// Takes a place among the calls in flight or, if all are taken, in the waiting line. Does not wait.
    ///
    /// # Errors
    /// [`Unavailable::Busy`]: the line is full.
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

    /// Returns whether only calls of one session are in flight at a time.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.queue.takes_turns()
    }

    /// Stops the server permanently; [`Server::stopped`] waits for the end.
    pub(crate) fn stop(&self) {
        self.over.cancel();
    }

    /// Waits until the server has stopped permanently.
    pub async fn stopped(&self) {
        self.gone.cancelled().await;
    }
}
