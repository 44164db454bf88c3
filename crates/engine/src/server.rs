//! One configured server: what it is, where it is, and what callers need of it.
//!
//! It is driven by a loop of its own ([`crate::drive`]), which a *lazy* server has only while somebody wants it (P10).
//! What it offers is in its catalog, which [`crate::stock`] keeps. Deliberately absent: when it is started and stopped
//! ([`crate::lifecycle`]).

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use mcp::{Era, chain::Blocked, client::CallerId};
use model::{Hidden, NativeName, ServerKey, ServerName, ServerSpec, Sharing};
use parking_lot::Mutex;
use runtime::{Fence, Repeats, process::Handle};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::Catalog,
    connection::Connection,
    lifecycle::Phase,
    memory::{Remembered, config_digest},
    orders::{Inbox, Order},
    pinned::{KeptBack, Pinned},
    questions::AskedNow,
    queue::{Permit, Place, Queue, Sending},
    refresh::Refresh,
    remember::Pins,
    scope::Scope,
    sessions::OwnInstances,
    status::{Begin, Known, Left, Load, Status},
    subscriptions::Upstream,
    timers::Timers,
    unavailable::Unavailable,
    uri,
};

/// How long an introduction may wait for what a server says of itself that is being started for the first time.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How long the first list of all may wait for a server that is being started for the first time.
pub const FIRST_START: Duration = Duration::from_secs(10);

/// Access tokens that are kept out of texts.
const MAX_HIDDEN: usize = 64;

/// Where a server is, as its callers see it.
#[derive(Clone)]
pub enum State {
    /// Nobody needs it yet, or any more.
    Idle,
    Starting,
    Ready(Arc<Connection>),
    /// Not connected; tried again at `retry_at`, if that is known.
    Down {
        reason: Arc<str>,
        retry_at: Option<Instant>,
    },
    /// Switched off, removed, stopped by hand, or the product stops.
    Stopped,
}

impl State {
    /// The word that callers read, where there is no reason.
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
    key: ServerKey,
    /// What its exposed URIs begin with, where it is known by its name.
    uri_prefix: String,
    /// The same where servers of several projects stand beside each other.
    qualified_uri_prefix: String,
    /// [`Server::want`]
    pub(crate) wanted: Notify,
    /// How it begins, where that is not as soon as it is wanted.
    pub(crate) begin: OnceLock<Begin>,
    /// What has to be gone before this one starts: it is the same server, as it was declared before.
    pub(crate) before: Mutex<Option<Weak<Server>>>,
    pub(crate) inbox: Inbox,
    pub(crate) known: Known,
    pub(crate) was_up: AtomicBool,
    wanted_at: OnceLock<Instant>,
    /// [`Server::rest`]
    pub(crate) resting: Notify,
    pub(crate) disabled_tools: ArcSwap<BTreeSet<NativeName>>,
    pub(crate) state: watch::Sender<State>,
    pub(crate) catalog: ArcSwap<Catalog>,
    pub(crate) pinned: Pinned,
    /// Lists that the server says have changed.
    pub(crate) refresh: Refresh,
    /// Whether the first start has come to an end, good or bad.
    pub(crate) settled: AtomicBool,
    pub(crate) queue: Queue,
    /// Whom it is asking something.
    pub(crate) asked_now: Arc<AskedNow>,
    pub(crate) over: CancellationToken,
    pub(crate) gone: CancellationToken,
    pub(crate) upstream: Upstream,
    pub(crate) instances: OwnInstances,
    pub(crate) timers: Timers,
    /// The connection of the life there is.
    pub(crate) live: Mutex<Option<Arc<Connection>>>,
    pub(crate) last: Mutex<Option<Handle>>,
    /// Of the life there is: what its instances are marked with.
    pub(crate) fence: Mutex<Option<Fence>>,
    pub(crate) stderr_of_failure: Mutex<Option<String>>,
    pub(crate) blocked: Mutex<Option<Blocked>>,
    pub stats: Stats,
    /// Whether each caller signs in to it by themselves, and has an instance of their own. The common one has somebody's sign-in, and is
    /// there for the lists that all see.
    pub(crate) is_personal: bool,
    /// The access tokens that its instances had in their environment last.
    issued: Mutex<VecDeque<Hidden>>,
    /// What its calls would fill the log with.
    pub(crate) repeats: Repeats,
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

impl Server {
    /// `queue_len` calls wait in line at most.
    pub(crate) fn new(
        spec: ServerSpec,
        remembered: Remembered,
        queue_len: usize,
        is_personal: bool,
    ) -> Arc<Self> {
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
            wanted: Notify::new(),
            begin: OnceLock::new(),
            before: Mutex::default(),
            inbox: Inbox::default(),
            known: Known::default(),
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
            queue: Queue::new(limit, queue_len, takes_turns),
            asked_now: Arc::default(),
            over: CancellationToken::new(),
            gone: CancellationToken::new(),
            upstream: Upstream::default(),
            instances: OwnInstances::default(),
            timers: Timers::new(limit),
            live: Mutex::default(),
            last: Mutex::default(),
            fence: Mutex::default(),
            stderr_of_failure: Mutex::default(),
            blocked: Mutex::default(),
            stats: Stats::default(),
            issued: Mutex::default(),
            repeats: Repeats::default(),
            is_personal,
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
        self.last.lock().clone()
    }

    /// The end of the server's stderr.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        let failed = self.stderr_of_failure.lock().clone();
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

    /// Follows its state.
    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Whether a gateway that ran it is lost just now, so that another one may be about to.
    pub(crate) fn is_moving(&self) -> bool {
        let until = self.known.status().moves_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether another gateway of the installation runs it.
    pub fn is_elsewhere(&self) -> bool {
        self.known.status().elsewhere
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(*self.state.borrow(), State::Idle)
    }

    /// Starts it if nobody has.
    pub fn want(&self) {
        if self.is_now_wanted() {
            self.wanted.notify_one();
        }
    }

    /// Shows callers that it starts, unless somebody wanted it before; returns whether it was the first.
    pub(crate) fn is_now_wanted(&self) -> bool {
        let begins = |state: &mut State| {
            let begins = matches!(state, State::Idle) && self.spec.enabled;
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
            self.known.status().phase = Phase::Starting { patient: true };
        }
        true
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.send_replace(state);
    }

    /// The first start has come to an end. Wakes who waits for that, for it is no part of the state.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.state.send_modify(|_| {});
    }

    /// Whether the connection is one of today's era.
    #[must_use]
    pub fn era(&self) -> Option<Era> {
        self.catalog.load().info.as_ref().map(|info| info.era)
    }

    /// Asks a lazy server to give up its connection soon, if nobody uses it now; what it offered stays offered. This does nothing
    /// to other servers, and to one that is not connected.
    pub fn release_idle(&self) {
        self.resting.notify_waiters();
    }

    /// Waits until the first start has come to an end; at most [`FIRST_START`] after it began.
    pub(crate) async fn first_settled(&self) {
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
    pub async fn up(&self) -> Result<(), Arc<str>> {
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

    /// Makes its start wait until `before` is gone, a server of the same name.
    pub(crate) fn waits_for(&self, before: &Arc<Self>) {
        let mut waiting = self.before.lock();
        *waiting = Some(Arc::downgrade(before));
    }

    /// Lets it take the place of the same server as it was declared before.
    pub(crate) fn comes_after(&self, before: &Arc<Self>) {
        let rested = matches!(before.status().phase, Phase::Stopped | Phase::Failed);
        let _ = self.begin.set(match rested && before.spec.enabled {
            true => Begin::Resting,
            false => Begin::New,
        });
        self.known.status().last_crash = before.status().last_crash;
        self.waits_for(before);
    }

    /// How an earlier run of the product left it. Only before it begins.
    pub(crate) fn was_left(&self, left: Left) {
        if self.begin.set(Begin::Left(left.last)).is_ok() {
            self.known.status().last_crash = left.crash;
        }
    }

    /// Follows an order, and returns when what it asked for has come about or failed; `false` if the server is switched
    /// off or over, or too many orders wait already.
    ///
    /// # Cancel safety
    /// The order is followed all the same.
    pub async fn command(&self, order: Order) -> bool {
        let (done, followed) = oneshot::channel();
        if !self.spec.enabled || !self.inbox.push((order, done)) {
            return false;
        }
        followed.await.is_ok()
    }

    /// Ends the instances of somebody who has signed in or out (`None`: all that are somebody's own): the next call makes one with what they
    /// have now.
    pub async fn part_with(&self, principal: Option<&Arc<str>>, grace: Duration) {
        match principal {
            Some(principal) => self.instances.close_of(principal, grace).await,
            None => self.instances.close_all(grace).await,
        }
    }

    /// Waits until no call is in flight, for as long as `patience` at most.
    pub async fn idle(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.queue.idle()).await;
    }

    /// The text without the server's secrets, access tokens included.
    pub(crate) fn redact(&self, text: &str) -> String {
        let issued: Vec<Hidden> = self.issued.lock().iter().cloned().collect();
        self.spec.redact_also(text, &issued)
    }

    /// Takes note of an instance's access token: it is in no text of ours from now on.
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

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.known.status().clone()
    }

    /// What its instance uses, if it runs and somebody counts.
    pub async fn usage(&self) -> Option<Load> {
        let State::Ready(connection) = self.state() else {
            return None;
        };
        let usage = connection.handle.as_ref()?.usage().await?;
        let now = Instant::now();
        let mut measured = self.known.measured.lock();
        let cores = measured.replace((now, usage)).and_then(|(at, before)| {
            let time = now.duration_since(at).as_secs_f64();
            let used = usage.cpu.checked_sub(before.cpu)?.as_secs_f64();
            (time > 0.05).then(|| used / time)
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

    /// The shared connection: at once if it is up or down, within `deadline` while it is starting.
    pub(crate) async fn connection(
        &self,
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
            // Whoever calls may be signed in.
            State::Down { .. } if self.is_personal && self.status().needs_login => None,
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
    }

    /// Waits until it has been stopped for good.
    pub async fn stopped(&self) {
        self.gone.cancelled().await;
    }
}
