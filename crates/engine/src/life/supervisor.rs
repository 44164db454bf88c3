//! The driver loop. Each server has one loop that feeds events to [`lifecycle::step`] and carries out the actions it
//! returns.
//!
//! [`Server::supervisor`] is the loop. A *life* is one run of an instance (or one connection to a remote server), from
//! launch to exit. A server has at most one at a time, polled by its own loop. Invariants: the loop never awaits the
//! store or a client; the state that callers see ([`State`]) follows from the phase; after shutdown begins, nothing is
//! launched.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use catalog::{Catalog, ListKind};
use mcp::{Era, client::Ambient, client::CallError, protocol::method};
use model::Declared;
use records::event_log::Write;
use runtime::{
    Handle,
    diagnosis::{CRASH_LINES, START_LINES},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    life::{chain, tokens},
    server::{
        Server, State,
        advice::explained,
        commands::{Command, Ordered},
        connection::Connection,
        gate::{Held, Runs},
        launch::{Hindrance, Launched, StartError},
        status::{Begin, Crash},
    },
    shared::Shared,
};
use lifecycle::{Action, Cause, Event, Note, Phase, Rules, step};

/// Time from `SIGTERM` to `SIGKILL` when a user stops a registered server.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Time added to the grace period before the runtime counts as unreachable. Enough for the clean-up after a kill.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);
/// Time to wait for final output of an instance that exited.
const STDERR_DRAIN: Duration = Duration::from_millis(50);
/// Time to save the last status before another gateway may run the server.
const LAST_STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// Lines of stderr kept for a crash, and their total length in bytes.
const STDERR_TAIL: (usize, usize) = (20, 4096);

/// The reason shown to callers when this gateway may no longer run a server.
const LEASE_LOST: &str =
    "this replica has lost the server's lease: it was not renewed in the database in time";

type Life = Pin<Box<dyn Future<Output = Event> + Send>>;

/// The state of a server's loop.
struct Driver<'a> {
    server: &'a Arc<Server>,
    shared: &'a Arc<Shared>,
    state: lifecycle::State,
    life: Option<Life>,
    /// The grace period of a requested stop of the current life.
    stop: watch::Sender<Option<Duration>>,
    /// Events sent by the current life.
    tell: mpsc::Sender<Event>,
    timer: Option<Instant>,
    /// Senders to notify when their order has been carried out.
    waiting: Vec<oneshot::Sender<()>>,
    over: bool,
}

impl Server {
    /// Runs the server whenever it is wanted, until its declaration or the gateway ends.
    pub(crate) async fn drive(self: Arc<Self>, shared: Arc<Shared>) {
        let rules = self.rules(&shared);
        let mut rested = Some(lifecycle::State::new(rules, rand::random::<u64>()));
        while let Some(state) = rested
            && self.is_wanted(&shared).await
        {
            // Boxed to save memory while the server is not wanted.
            rested = Box::pin(self.drive_until_idle(&shared, state)).await;
        }
        self.inbox.close();
        self.end(&shared).await;
    }

    fn rules(&self, shared: &Shared) -> Rules {
        Rules::of(&self.spec, &shared.fleet().settings)
    }

    /// Waits until the server is wanted. Returns `false` if the server's task is to end.
    async fn is_wanted(&self, shared: &Shared) -> bool {
        // Callers subscribe to the state before they read it, so no caller is missed here.
        if self.state.receiver_count() > 0 && self.is_now_wanted() {
            return true;
        }
        tokio::select! {
            biased;
            () = self.over.cancelled() => false,
            () = shared.closing.cancelled() => false,
            () = self.wanted.notified() => true,
            () = self.inbox.filled() => {
                self.is_now_wanted();
                true
            }
        }
    }

    /// Runs the server until it is idle (returns the state) or ended (returns `None`).
    async fn drive_until_idle(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        state: lifecycle::State,
    ) -> Option<lifecycle::State> {
        let before = {
            let mut before = self.before.lock();
            before.take()
        };
        // A server that was dropped no longer has a task, and so no instance.
        if let Some(before) = before.and_then(|before| before.upgrade()) {
            before.stopped().await;
        }
        let (tell, mut told) = mpsc::channel(8);
        let mut driver = Driver {
            server: self,
            shared,
            state,
            life: None,
            stop: watch::Sender::new(None),
            tell,
            timer: None,
            waiting: Vec::new(),
            over: false,
        };
        // `begin` applies to the first run only. A server that was idle continues from its state.
        let begin = self.begin.get().filter(|_| driver.state.is_new());
        let mut next = match begin {
            _ if self.over.is_cancelled() => driver.shutdown(),
            Some(Begin::Left(last)) => Event::Boot { last: *last },
            Some(Begin::Resting) => Event::StopRequested { grace: STOP_GRACE },
            Some(Begin::New) | None => driver.wanted(),
        };
        let mut ending = matches!(next, Event::Shutdown { .. });
        loop {
            driver.take(next);
            if driver.over {
                break;
            }
            if driver.state.phase() == Phase::Idle {
                self.set_state(State::Idle);
                return Some(driver.state);
            }
            let closing = !ending && !driver.is_up();
            next = tokio::select! {
                biased;
                // The events of a life are handled before its end.
                Some(event) = told.recv() => event,
                event = lived(&mut driver.life) => {
                    driver.life = None;
                    event
                }
                () = self.over.cancelled(), if !ending => {
                    ending = true;
                    driver.shutdown()
                }
                // A server that is up may keep running until `over`.
                () = shared.closing.cancelled(), if closing => {
                    ending = true;
                    driver.shutdown()
                }
                () = elapsed(driver.timer) => {
                    driver.timer = None;
                    Event::TimerFired
                }
                order = self.inbox.next() => driver.ordered(order),
            };
        }
        None
    }

    /// Runs one life, from launch to exit, and returns the event of its end.
    async fn one_life(
        self: Arc<Self>,
        shared: Arc<Shared>,
        tell: mpsc::Sender<Event>,
        mut stop: watch::Receiver<Option<Duration>>,
    ) -> Event {
        let launched = Instant::now();
        let entered = tokio::select! {
            biased;
            _ = asked(&mut stop) => return Event::Stopped,
            entered = self.enter(&shared) => entered,
        };
        let Held { lost, fence } = match entered {
            Ok(Runs::Here(held)) => held,
            Ok(Runs::RemoteReplica(place)) if self.is_for_all() => {
                let life = self.life_elsewhere(&shared, &place, launched, &tell, stop);
                return life.await;
            }
            Ok(Runs::RemoteReplica(place)) => return self.elsewhere(&place.why),
            Ok(Runs::Nowhere(why)) => return self.nowhere(why),
            Err(why) => return self.elsewhere(&why),
        };
        self.fence.lock().clone_from(&fence);
        let started = Launched::under(fence);
        // After a lost lease, another gateway may run the server: the stop was not requested by the loop.
        let stopped = || match lost.is_cancelled() {
            true => self.elsewhere(LEASE_LOST),
            false => Event::Stopped,
        };
        let connected = tokio::select! {
            biased;
            grace = asked(&mut stop) => Err(grace),
            () = lost.cancelled() => Err(Duration::ZERO),
            connected = self.connect(&shared, &started) => Ok(connected),
        };
        let started = started.take();
        let connected = match (connected, started) {
            (Ok(connected), _) => connected,
            (Err(_), None) => return stopped(),
            (Err(grace), Some(handle)) => {
                let stopping = async {
                    handle.stop(grace).await;
                };
                return match cleared(stopping, grace, Some(&handle), &tell).await {
                    true => stopped(),
                    false => Event::RuntimeBack { alive: false },
                };
            }
        };
        let (connection, ambient) = match connected {
            Ok(connected) => connected,
            Err(error) => return self.not_started(error),
        };
        {
            let mut status = self.known.status();
            status.placement.clone_from(&connection.hosted);
            status.refused = None;
            status.needs_login = false;
            status.elsewhere = false;
        }
        let grace = tokio::select! {
            biased;
            grace = asked(&mut stop) => Err(grace),
            () = lost.cancelled() => Err(Duration::ZERO),
            why = self.conversation(&shared, &connection, ambient, launched, &tell) => Ok(why),
        };
        if let Ok(why) = &grace {
            self.say(why.clone());
            // New calls must not use this connection while the instance is cleaned up.
            let patient = self.rules(&shared).patient;
            let reason = why.clone();
            self.set_state(match patient {
                true => State::Starting,
                false => State::Down {
                    reason,
                    retry_at: Some(Instant::now()),
                },
            });
        }
        *self.live.lock() = None;
        let patience = grace.as_ref().err().copied();
        let patience = patience.unwrap_or(shared.stop_grace);
        let closing = connection.close(patience);
        if !cleared(closing, patience, connection.handle.as_ref(), &tell).await {
            return Event::RuntimeBack { alive: false };
        }
        if let Some(blocked) = self.take_blocked() {
            return self.blocked(&blocked);
        }
        let needs_login = self.needs_login.lock().take();
        if let Some(why) = needs_login {
            return self.not_started(StartError::of_sign_in(&why));
        }
        let Ok(why) = grace else {
            return stopped();
        };
        let cause = match &connection.handle {
            Some(handle) => {
                let exit = handle.exited().await;
                let what = format!("the process ended with {exit}");
                let (launch, stderr) = (self.spec.launch(), handle.stderr_tail());
                let what = explained(&what, exit, launch, &stderr, CRASH_LINES);
                self.say(self.redact(&what));
                Cause::Exit(exit)
            }
            None => Cause::Closed(why.to_string()),
        };
        let answered = true;
        Event::Ended { cause, answered }
    }

    /// Sets the reason why the server is not up, for callers and operators.
    pub(crate) fn say(&self, reason: impl Into<Arc<str>>) {
        self.known.status().reason = Some(reason.into());
    }

    /// Runs everything that a connected server needs: its messages, heartbeats, idle time and token renewal. Returns
    /// why the connection ended, with secrets removed.
    pub(crate) async fn conversation(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        connection: &Arc<Connection>,
        ambient: Ambient,
        launched: Instant,
        tell: &mpsc::Sender<Event>,
    ) -> Arc<str> {
        *self.live.lock() = Some(connection.clone());
        let ready = || {
            // A life sends few events, so there is always room.
            let _ = tell.try_send(Event::Ready);
        };
        let resting = async {
            if self.rules(shared).lazy {
                self.unused(shared).await;
                let grace = shared.stop_grace;
                let _ = tell.try_send(Event::Unused { grace });
            }
            std::future::pending::<()>().await
        };
        let gone = async {
            match &connection.handle {
                Some(handle) => handle.exited().await,
                None => return std::future::pending().await,
            };
            tokio::time::sleep(STDERR_DRAIN).await;
        };
        let renewing = async {
            let _paused = tokens::replaceable(shared, self, connection).await;
            let _ = tell.try_send(Event::RestartRequested);
            std::future::pending::<()>().await
        };
        let why = tokio::select! {
            why = self.converse(shared, connection, ambient, launched, ready) => why,
            () = gone => "the process ended".into(),
            () = self.heartbeats(connection, tell) => "unreachable: it never returns".into(),
            () = resting => "unreachable: it pends".into(),
            () = renewing => "unreachable: it pends".into(),
        };
        self.redact(&why).into()
    }

    /// Converts a failed start into an event.
    fn not_started(&self, error: StartError) -> Event {
        if let Some(blocked) = self.take_blocked() {
            return self.blocked(&blocked);
        }
        let hindrance = error.hindrance();
        let mut status = self.known.status();
        status.refused.clone_from(&error.refused);
        status.needs_login = hindrance == Some(Hindrance::Login);
        status.elsewhere = false;
        drop(status);
        self.say(error.reason.clone());
        let why = error.reason.to_string();
        if let Some(hindrance) = hindrance {
            let again = hindrance.again();
            return Event::Refused { why, again };
        }
        let cause = match error.exit {
            Some(exit) if !exit.success() => Cause::Exit(exit),
            _ => Cause::Start(why),
        };
        let answered = false;
        Event::Ended { cause, answered }
    }

    /// Blocks a gateway that must not be behind this one. Clears its catalog.
    fn blocked(&self, blocked: &mcp::chain::Blocked) -> Event {
        self.change(|catalog| *catalog = Catalog::default());
        let why = format!("left out: {blocked}");
        self.say(why.as_str());
        Event::Refused {
            why,
            again: blocked.may_change().then_some(chain::BLOCKED_RETRY_DELAY),
        }
    }

    /// Connects, and records the outcome.
    async fn connect(
        &self,
        shared: &Shared,
        launched: &Launched,
    ) -> Result<(Arc<Connection>, Ambient), StartError> {
        let unusable = self.spec.unusable.as_deref();
        if let Some(why) = unusable.map(Arc::from).or(self.needs.clone()) {
            return Err(StartError::hindered(why, Hindrance::Description));
        }
        self.count(|stats| &stats.starts);
        let capabilities = shared.shared_capabilities();
        let spec = self.filled_spec();
        let connecting = shared.connect.connect(spec, None, &capabilities, launched);
        let connected = connecting.await;
        let mut kept = self.stderr_of_failure.lock();
        let (connection, ambient) = match connected {
            Ok((connection, ambient)) => (Arc::new(connection), ambient),
            Err(error) => {
                kept.clone_from(&error.stderr);
                if let Some(blocked) = &error.blocked {
                    self.block(blocked.clone());
                }
                return Err(error);
            }
        };
        self.hide_token(&connection);
        self.was_up.store(true, Ordering::Relaxed);
        if connection.handle.is_some() {
            *kept = None;
            self.last.lock().clone_from(&connection.handle);
        }
        Ok((connection, ambient))
    }

    /// Returns when the server has been unused for the configured time, or when it is unused and was asked to release
    /// its connection.
    async fn unused(&self, shared: &Shared) {
        let mut used = u64::MAX;
        loop {
            let told = tokio::select! {
                () = tokio::time::sleep(shared.limits().server_idle) => false,
                () = self.resting.notified() => true,
            };
            let seen = self.stats.used();
            let (in_flight, waiting) = self.load();
            let quiet = in_flight + waiting == 0 && !self.upstream.is_watching();
            if quiet && (told || seen == used) && matches!(self.state(), State::Ready(_)) {
                return;
            }
            used = seen;
        }
    }

    /// Sends heartbeats while no call is in flight (H15).
    async fn heartbeats(&self, connection: &Connection, tell: &mpsc::Sender<Event>) {
        let Some(heartbeat) = self.spec.heartbeat.filter(|_| !connection.is_elsewhere) else {
            return std::future::pending().await;
        };
        let asked = match connection.client.info().era {
            Era::Legacy => method::PING,
            Era::Modern => method::DISCOVER,
        };
        loop {
            tokio::time::sleep(heartbeat.interval).await;
            if self.load().0 > 0 {
                continue;
            }
            let answer = connection.client.ask(asked, "");
            let event = match tokio::time::timeout(heartbeat.timeout, answer).await {
                Err(_) => Event::HeartbeatMissed,
                // A lost connection is handled elsewhere.
                Ok(Err(CallError::Closed(_))) => continue,
                Ok(_) => Event::HeartbeatAnswered,
            };
            let _ = tell.try_send(event);
        }
    }

    /// Cleans up after the end of the server.
    async fn end(&self, shared: &Shared) {
        let grace = shared.stop_grace.min(shared.time_left(&self.spec));
        let last = self.state.send_replace(State::Stopped);
        self.settle();
        let of_callers = self.callers.take();
        futures_util::future::join_all(of_callers.iter().map(|own| own.stopped())).await;
        self.instances.close_all(grace).await;
        if let State::Ready(connection) = last {
            connection.close(grace).await;
        }
        // Stops the instance of a connection that was still being made or cleaned up.
        if let Some(process) = self.process() {
            process.stop(grace).await;
        }
        if let Some(gate) = shared.gate.get()
            && gate.is_for_one(&self.spec)
        {
            // The gateway that starts it next saves its own status.
            let _ = tokio::time::timeout(LAST_STATUS_TIMEOUT, shared.event_log.flush()).await;
            gate.leave(&self.spec).await;
        }
        self.gone.cancel();
    }

    /// The end of the server's stderr, with secrets removed.
    fn last_words(&self) -> String {
        let all = self.redact(&self.stderr_tail());
        let mut tail = String::new();
        let lines: Vec<&str> = all.lines().rev().take(STDERR_TAIL.0).collect();
        for line in lines.into_iter().rev() {
            tail.push_str(line);
            tail.push('\n');
        }
        let mut from = tail.len().saturating_sub(STDERR_TAIL.1);
        while !tail.is_char_boundary(from) {
            from += 1;
        }
        tail.split_off(from)
    }
}

impl Driver<'_> {
    /// Returns whether the server may currently answer calls.
    fn is_up(&self) -> bool {
        matches!(
            self.state.phase(),
            Phase::Running { .. } | Phase::Unresponsive
        )
    }

    fn shutdown(&self) -> Event {
        let own = match self.server.spec.declared {
            Declared::Registered if self.shared.stop_by.get().is_none() => STOP_GRACE,
            Declared::Registered => Duration::MAX,
            Declared::File | Declared::Project => self.shared.stop_grace,
        };
        let grace = own.min(self.shared.time_left(&self.server.spec));
        Event::Shutdown { grace }
    }

    /// The event that wakes the server: a waiting order, or `Wanted`.
    fn wanted(&mut self) -> Event {
        match self.server.inbox.pop() {
            Some(order) => self.ordered(order),
            None => Event::Wanted,
        }
    }

    fn ordered(&mut self, (order, done): Ordered) -> Event {
        self.waiting.push(done);
        match order {
            Command::Start => Event::StartRequested,
            Command::Stop => Event::StopRequested { grace: STOP_GRACE },
            Command::Restart => Event::RestartRequested,
        }
    }

    /// Passes the event to [`step`] and carries out the actions.
    fn take(&mut self, event: Event) {
        let before = self.state.phase();
        let (state, actions) = step(self.state.clone(), event, Instant::now());
        self.state = state;
        for action in actions {
            self.act(action);
        }
        let phase = self.state.phase();
        let changed = std::mem::discriminant(&before) != std::mem::discriminant(&phase);
        let reason = {
            let mut status = self.server.known.status();
            status.phase = phase;
            status.saved = self.state.status();
            status.restarts = self.state.restarts();
            status.failures = self.state.failures();
            status.next_attempt = self.state.next_attempt();
            status.trouble = status.next_trouble(self.state.waits());
            if changed {
                status.since = SystemTime::now();
            }
            match phase {
                Phase::Unavailable { .. } if changed => {
                    let why = status.reason.as_deref().unwrap_or("it did not start");
                    let failures = self.state.failures();
                    let why = format!("{why} ({failures} attempts in a row failed)");
                    status.reason = Some(why.into());
                }
                // After failed starts, it still needs a person.
                Phase::Idle if status.trouble.is_some() => {}
                Phase::Idle | Phase::Stopped | Phase::Running { .. } => status.reason = None,
                Phase::Unknown { .. } => {
                    status.reason = Some("its runtime does not respond".into());
                }
                _ => {}
            }
            status.reason.clone()
        };
        if changed {
            self.show(reason.unwrap_or_else(|| "it has not been started".into()));
        }
        let moving = matches!(
            phase,
            Phase::Starting { .. } | Phase::Restarting | Phase::Stopping | Phase::Ending
        );
        if !moving {
            for done in self.waiting.drain(..) {
                // Fails if the sender of the order no longer waits.
                let _ = done.send(());
            }
        }
    }

    /// Updates the state that callers see from the phase.
    fn show(&self, reason: Arc<str>) {
        let down = |retry_at| State::Down { reason, retry_at };
        let state = match self.state.phase() {
            Phase::Starting { .. } | Phase::Blocked { .. } if self.server.is_moving() => {
                return self.server.set_state(State::Starting);
            }
            Phase::Starting { patient: true } | Phase::Restarting | Phase::Parting => {
                return self.server.set_state(State::Starting);
            }
            Phase::Starting { patient: false } => {
                let now = Instant::now();
                return self.server.set_state(down(Some(now)));
            }
            Phase::Running { .. } => {
                let live = self.server.live.lock().clone();
                return live.into_iter().for_each(|connection| {
                    self.server.set_state(State::Ready(connection));
                });
            }
            Phase::Unresponsive | Phase::Idle => return,
            Phase::Backoff { until } | Phase::Unavailable { until } => down(Some(until)),
            Phase::Blocked { until } => down(until),
            Phase::Failed | Phase::Unknown { .. } => down(None),
            Phase::Stopping | Phase::Stopped => State::Stopped,
            Phase::Ending | Phase::Over => {
                self.server.set_state(State::Stopped);
                return self.server.settle();
            }
        };
        self.server.set_state(state);
        self.server.settle();
        self.shared.publish_of(self.server, &ListKind::ALL);
    }

    fn act(&mut self, action: Action) {
        match action {
            // After shutdown begins, nothing is launched. This life ends as stopped.
            Action::Launch | Action::Attach if self.shared.closing.is_cancelled() => {
                self.stop = watch::Sender::new(None);
                let mut stop = self.stop.subscribe();
                self.life = Some(Box::pin(async move {
                    asked(&mut stop).await;
                    Event::Stopped
                }));
            }
            // A life ends only after its instance has exited, even if only the connection broke.
            Action::Launch | Action::Attach => {
                self.stop = watch::Sender::new(None);
                let server = self.server.clone();
                let life = server.one_life(
                    self.shared.clone(),
                    self.tell.clone(),
                    self.stop.subscribe(),
                );
                self.life = Some(Box::pin(life));
            }
            Action::Stop { grace } => {
                self.stop.send_replace(Some(grace));
            }
            Action::SetTimer { at } => self.timer = Some(at),
            Action::CancelTimer => self.timer = None,
            // Only the gateway that may run the server saves its status.
            Action::Save(_) if !self.server.may_run(self.shared) => {}
            Action::Save(saved) => {
                if let Some(id) = self.server.spec.registered_as() {
                    let id = id.to_owned();
                    self.shared.event_log.write(Write::Status { id, saved });
                }
            }
            Action::Record(note) => self.record(&note),
            Action::End => self.over = true,
        }
    }

    fn record(&self, note: &Note) {
        let server = self.server.key();
        // The gateway that runs the server records its events.
        if self.server.status().elsewhere {
            return tracing::info!(%server, "{note}");
        }
        let mut detail = self.server.detail_of(note);
        let (kind, warns) = self.server.event_of(note);
        {
            let mut status = self.server.known.status();
            let was_up = status.ready_at.is_some();
            match note {
                Note::Ready => status.ready_at = Some(SystemTime::now()),
                Note::Responsive | Note::Unresponsive { .. } | Note::Recovered { .. } => {}
                _ => status.ready_at = None,
            }
            if let Note::Crashed { cause } = note {
                let exit = match cause {
                    Cause::Exit(exit) => Some(*exit),
                    Cause::Start(_) | Cause::Closed(_) | Cause::Lost => None,
                };
                let stderr = self.server.last_words();
                let (what, launch) = (cause.to_string(), self.server.spec.launch());
                let lines = if was_up { CRASH_LINES } else { START_LINES };
                let cause = match exit {
                    Some(exit) => explained(&what, exit, launch, &stderr, lines),
                    None => what,
                };
                detail["cause"] = cause.as_str().into();
                detail["stderr"] = stderr.as_str().into();
                status.last_crash = Some(Crash {
                    at: SystemTime::now(),
                    cause,
                    exit,
                    stderr,
                });
            }
            if warns {
                status.warnings += 1;
            }
        }
        match note {
            Note::Crashed { .. } => {
                let stderr = detail["stderr"].as_str().filter(|text| !text.is_empty());
                tracing::warn!(%server, stderr, "{note}");
            }
            // Logged already as "connected".
            Note::Ready => tracing::debug!(%server, "{note}"),
            Note::Blocked { .. } => tracing::error!(%server, "{note}"),
            Note::Backoff { wait, .. } | Note::Unavailable { wait, .. } => {
                let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(%server, retry_ms, "{note}");
            }
            _ if note.is_warning() => tracing::warn!(%server, "{note}"),
            _ => tracing::info!(%server, "{note}"),
        }
        if self.server.is_for_callers() {
            return;
        }
        self.shared.event_log.write(Write::Event {
            project: self.server.spec.owner.clone(),
            id: self.server.spec.id(),
            name: self.server.name().clone(),
            kind,
            warning: warns,
            detail,
        });
    }
}

/// Waits until an instance is gone. If its runtime stays silent for too long, reports that and continues to wait.
/// Returns whether the instance was gone in time.
async fn cleared(
    closing: impl Future<Output = ()>,
    patience: Duration,
    handle: Option<&Handle>,
    tell: &mpsc::Sender<Event>,
) -> bool {
    let closed = tokio::time::timeout(patience.saturating_add(UNREACHABLE_AFTER), closing).await;
    match (closed, handle) {
        (Err(_), Some(handle)) => {
            let _ = tell.try_send(Event::RuntimeLost);
            handle.exited().await;
            false
        }
        _ => true,
    }
}

/// Waits for the end of the current life. Never completes if `life` is `None`.
async fn lived(life: &mut Option<Life>) -> Event {
    match life {
        Some(life) => life.await,
        None => std::future::pending().await,
    }
}

async fn elapsed(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits for a stop request, and returns its grace period.
pub(crate) async fn asked(stop: &mut watch::Receiver<Option<Duration>>) -> Duration {
    match stop.wait_for(Option::is_some).await {
        Ok(grace) => grace.unwrap_or_default(),
        // The loop has ended.
        Err(_) => Duration::ZERO,
    }
}
