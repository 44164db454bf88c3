//! A hosted server at work: does what [`supervisor::step`] decides, and tells it what comes of that.
//!
//! [`Server::host`] is the one loop. A *life* is from the launch of an instance to its end; there is one at a time,
//! and it is polled by the loop that owns it. Invariants: the loop never waits for the store or for a client; what
//! callers see (`server::State`) follows from the supervisor's phase.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use mcp::{Era, client::CallError, protocol::method};
use model::Hosting;
use runtime::{Exit, Usage};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use crate::{
    chronicle::Write,
    launch::{Housing, Refused},
    server::{Connection, Server, State},
    shared::Shared,
    supervisor::{self, Action, Cause, Event, Last, Note, Phase, Rules, step},
};

/// From `SIGTERM` to `SIGKILL` when the product stops (H11).
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// The same when somebody stops the server.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longer than every grace and what follows it: whoever runs the instance does not answer.
const UNREACHABLE: Duration = Duration::from_secs(10);
/// Orders that wait; one more is refused.
const ORDERS: usize = 16;
/// Lines of stderr that are kept of a crash, and their length in all, in bytes.
const TAIL: (usize, usize) = (20, 4096);

/// What somebody wants of a hosted server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Start,
    Stop,
    Restart,
}

/// An order, and who is told when the server has settled.
type Ordered = (Order, oneshot::Sender<()>);

/// How a server begins.
#[derive(Clone, Copy, Debug)]
enum Begin {
    /// It is started.
    New,
    /// The product started, and finds it so.
    Left(Last),
    /// It takes the place of one that did not run.
    Resting,
}

/// What is known of a hosted server, besides its connection.
pub(crate) struct Hosted {
    orders: mpsc::Sender<Ordered>,
    inbox: Mutex<Option<mpsc::Receiver<Ordered>>>,
    /// Unset: it is new.
    begin: OnceLock<Begin>,
    /// What has to be gone before this one starts: it had the same volumes and ports.
    before: OnceLock<Arc<Server>>,
    status: Mutex<Status>,
    measured: Mutex<Option<(Instant, Usage)>>,
}

/// How a hosted server is.
#[derive(Clone, Debug)]
pub struct Status {
    pub phase: Phase,
    pub since: SystemTime,
    /// When the instance that runs became ready.
    pub ready_at: Option<SystemTime>,
    /// How often it was started by itself since it was last started by hand or by the product.
    pub restarts: u64,
    pub last_crash: Option<Crash>,
    pub next_attempt: Option<Instant>,
    /// Of the instance that runs, or ran last.
    pub housing: Option<Arc<Housing>>,
    pub warnings: u64,
    /// What of its registration the last attempt to start it found impossible.
    pub refused: Option<Refused>,
}

/// The last end that should not have been.
#[derive(Clone, Debug)]
pub struct Crash {
    pub at: SystemTime,
    pub cause: String,
    pub exit: Option<Exit>,
    /// The last lines of its stderr, without secrets.
    pub stderr: String,
}

/// What a hosted server uses now.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub usage: Usage,
    /// Cores, since it was last asked for; `None` the first time.
    pub cores: Option<f64>,
}

type Life = Pin<Box<dyn Future<Output = Event> + Send>>;

impl Hosted {
    pub(crate) fn new() -> Self {
        let (orders, inbox) = mpsc::channel(ORDERS);
        Self {
            orders,
            inbox: Mutex::new(Some(inbox)),
            begin: OnceLock::new(),
            before: OnceLock::new(),
            status: Mutex::new(Status {
                phase: Phase::Stopped,
                since: SystemTime::now(),
                ready_at: None,
                restarts: 0,
                last_crash: None,
                next_attempt: None,
                housing: None,
                warnings: 0,
                refused: None,
            }),
            measured: Mutex::default(),
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How an earlier run of the product left it. Only before it begins.
    pub(crate) fn was_left(&self, last: Last) {
        let _ = self.begin.set(Begin::Left(last));
    }

    /// What it takes the place of. Only before it begins, and before [`Hosted::was_left`].
    pub(crate) fn comes_after(&self, before: Arc<Server>) {
        let rested = before
            .hosted_status()
            .is_some_and(|status| matches!(status.phase, Phase::Stopped | Phase::Failed));
        let _ = self.begin.set(match rested && before.spec.enabled {
            true => Begin::Resting,
            false => Begin::New,
        });
        let _ = self.before.set(before);
    }
}

/// Everything that a loop works on.
struct Runner<'a> {
    server: &'a Arc<Server>,
    shared: &'a Arc<Shared>,
    hosted: &'a Hosted,
    hosting: &'a Arc<Hosting>,
    state: supervisor::State,
    life: Option<Life>,
    /// The grace of the stop that was asked of the life there is.
    stop: watch::Sender<Option<Duration>>,
    /// What a life says in its course.
    tell: mpsc::Sender<Event>,
    timer: Option<Instant>,
    /// The word of the phase that callers see.
    shown: Option<&'static str>,
    /// Who waits for an order to be followed.
    waiting: Vec<oneshot::Sender<()>>,
    over: bool,
}

impl Server {
    /// Follows an order, and returns when what it asked for has come about or failed; `false` if it is not hosted,
    /// its task is over, or too many orders wait already.
    ///
    /// # Cancel safety
    /// The order is followed all the same.
    pub async fn obey(&self, order: Order) -> bool {
        let Some(hosted) = &self.hosted else {
            return false;
        };
        let (done, followed) = oneshot::channel();
        hosted.orders.try_send((order, done)).is_ok() && followed.await.is_ok()
    }

    /// How it is, if it is hosted.
    #[must_use]
    pub fn hosted_status(&self) -> Option<Status> {
        Some(self.hosted.as_ref()?.status().clone())
    }

    /// What its instance uses, if it is hosted, runs, and somebody counts.
    pub async fn hosted_load(&self) -> Option<Load> {
        let hosted = self.hosted.as_ref()?;
        let State::Ready(connection) = self.state() else {
            return None;
        };
        let usage = connection.handle.as_ref()?.usage().await?;
        let now = Instant::now();
        let mut measured = hosted
            .measured
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let cores = measured.replace((now, usage)).and_then(|(at, before)| {
            let time = now.duration_since(at).as_secs_f64();
            let used = usage.cpu.checked_sub(before.cpu)?.as_secs_f64();
            (time > 0.05).then(|| used / time)
        });
        Some(Load { usage, cores })
    }

    /// Keeps a hosted server running, until the product or its registration ends.
    pub(crate) async fn host(self: Arc<Self>, shared: Arc<Shared>) {
        let (Some(hosted), Some(hosting)) = (&self.hosted, self.spec.hosting()) else {
            return;
        };
        let inbox = {
            let mut inbox = hosted.inbox.lock();
            let inbox = inbox.as_deref_mut();
            inbox.map_or(None, Option::take)
        };
        let Some(mut inbox) = inbox else { return };
        if let Some(before) = hosted.before.get() {
            before.stopped().await;
        }
        let (tell, mut told) = mpsc::channel(8);
        let mut runner = Runner {
            server: &self,
            shared: &shared,
            hosted,
            hosting,
            state: supervisor::State::new(Rules::of(hosting)),
            life: None,
            stop: watch::Sender::new(None),
            tell,
            timer: None,
            shown: None,
            waiting: Vec::new(),
            over: false,
        };
        let mut next = match hosted.begin.get() {
            Some(Begin::Left(last)) => Event::Boot { last: *last },
            // As if it had just been stopped.
            Some(Begin::Resting) => Event::StopRequested { grace: STOP_GRACE },
            Some(Begin::New) | None => Event::StartRequested,
        };
        let mut ending = false;
        loop {
            runner.take(next);
            if runner.over {
                break;
            }
            next = tokio::select! {
                biased;
                // What a life said comes before its end.
                Some(event) = told.recv() => event,
                event = lived(&mut runner.life) => {
                    runner.life = None;
                    event
                }
                () = self.over.cancelled(), if !ending => {
                    ending = true;
                    Event::Shutdown { grace: SHUTDOWN_GRACE }
                }
                () = elapsed(runner.timer) => {
                    runner.timer = None;
                    Event::TimerFired
                }
                Some((order, done)) = inbox.recv() => {
                    runner.waiting.push(done);
                    match order {
                        Order::Start => Event::StartRequested,
                        Order::Stop => Event::StopRequested { grace: STOP_GRACE },
                        Order::Restart => Event::RestartRequested,
                    }
                }
            };
        }
        drop(runner);
        self.hosting_is_over(&shared).await;
    }

    /// From the launch of an instance to its end, and what that was.
    async fn one_life(
        self: Arc<Self>,
        shared: Arc<Shared>,
        tell: mpsc::Sender<Event>,
        mut stop: watch::Receiver<Option<Duration>>,
    ) -> Event {
        let launched = Instant::now();
        let connected = tokio::select! {
            biased;
            _ = asked(&mut stop) => return Event::Stopped,
            connected = self.connect(&shared) => connected,
        };
        let (connection, ambient) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                if let Some(hosted) = &self.hosted {
                    hosted.status().refused = error.refused;
                }
                return match error.exit {
                    Some(exit) if !exit.success() => Event::Exited { exit },
                    _ => Event::StartFailed {
                        reason: error.reason.to_string(),
                    },
                };
            }
        };
        let (Some(handle), Some(hosted)) = (&connection.handle, &self.hosted) else {
            return Event::StartFailed {
                reason: "it has no instance".to_owned(),
            };
        };
        {
            let mut status = hosted.status();
            status.housing.clone_from(&connection.hosted);
            status.refused = None;
        }
        // A life tells little; there is always room.
        let _ = tell.try_send(Event::Ready);
        let grace = tokio::select! {
            biased;
            grace = asked(&mut stop) => Some(grace),
            _ = handle.exited() => None,
            _ = self.converse(&shared, &connection, ambient, launched) => None,
            () = self.heartbeats(&connection, &tell) => None,
        };
        // Nobody new is sent there while what is left of it is cleared away.
        if grace.is_none() {
            self.set_state(State::Starting);
        }
        let patience = grace.unwrap_or(shared.launcher.stop_grace);
        let closing = connection.close(patience);
        if tokio::time::timeout(patience + UNREACHABLE, closing)
            .await
            .is_err()
        {
            let _ = tell.try_send(Event::RuntimeLost);
            handle.exited().await;
            return Event::RuntimeBack { alive: false };
        }
        match grace {
            Some(_) => Event::Stopped,
            None => Event::Exited {
                exit: handle.exited().await,
            },
        }
    }

    /// Asks the server now and then whether it still answers, while nobody calls it (H15).
    async fn heartbeats(&self, connection: &Connection, tell: &mpsc::Sender<Event>) {
        let Some(heartbeat) = self.spec.hosting().and_then(|hosting| hosting.heartbeat) else {
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
                // That it is gone is seen elsewhere.
                Ok(Err(CallError::Closed(_))) => continue,
                Ok(_) => Event::HeartbeatAnswered,
            };
            let _ = tell.try_send(event);
        }
    }
}

impl Runner<'_> {
    /// Lets the supervisor decide, and does what it says.
    fn take(&mut self, event: Event) {
        let now = Instant::now();
        let (state, actions) = step(self.state.clone(), event, now);
        self.state = state;
        let word = self.state.phase().word();
        let changed = self.shown.replace(word) != Some(word);
        for action in actions {
            self.act(action);
        }
        let reason = {
            let mut status = self.hosted.status();
            status.phase = self.state.phase();
            status.restarts = self.state.restarts();
            status.next_attempt = self.state.next_attempt();
            if changed {
                status.since = SystemTime::now();
            }
            let crash = status.last_crash.as_ref();
            crash.map_or_else(|| "it has not run".to_owned(), |crash| crash.cause.clone())
        };
        if changed {
            self.show(&reason);
        }
        let phase = self.state.phase();
        let moving = matches!(
            phase,
            Phase::Starting | Phase::Restarting | Phase::Stopping | Phase::Ending
        );
        if !moving {
            for done in self.waiting.drain(..) {
                // Nobody waits any more if it fails.
                let _ = done.send(());
            }
        }
    }

    /// Lets callers see the phase.
    fn show(&self, reason: &str) {
        let down = |retry_at| State::Down {
            reason: reason.into(),
            retry_at,
            left_alone: false,
        };
        match self.state.phase() {
            Phase::Starting | Phase::Restarting => self.server.set_state(State::Starting),
            // Its connection is there, or about to be.
            Phase::Running { .. } | Phase::Unresponsive => {}
            Phase::Backoff { until } => self.server.set_state(down(Some(until))),
            Phase::Failed | Phase::Unknown { .. } => self.server.set_state(down(None)),
            Phase::Stopping | Phase::Stopped | Phase::Ending | Phase::Over => {
                self.server.set_state(State::Stopped);
            }
        }
        if !matches!(
            self.state.phase(),
            Phase::Starting | Phase::Running { .. } | Phase::Unresponsive
        ) {
            self.server.settle_and_publish(self.shared);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            // An instance whose connection broke is gone before the supervisor hears of it.
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
            Action::Save(last) => self.shared.chronicle.write(Write::Status {
                id: self.hosting.id.clone(),
                word: last.word(),
            }),
            Action::Record(note) => self.record(&note),
            Action::End => self.over = true,
        }
    }

    fn record(&self, note: &Note) {
        let server = self.server.key();
        let mut detail = self.detail(note);
        {
            let mut status = self.hosted.status();
            match note {
                Note::Ready => status.ready_at = Some(SystemTime::now()),
                Note::Responsive | Note::Unresponsive { .. } | Note::Recovered => {}
                _ => status.ready_at = None,
            }
            if let Note::Crashed { cause } = note {
                let exit = match cause {
                    Cause::Exit(exit) => Some(*exit),
                    Cause::Start(_) | Cause::Lost => None,
                };
                let stderr = self.stderr_tail();
                detail["stderr"] = stderr.as_str().into();
                status.last_crash = Some(Crash {
                    at: SystemTime::now(),
                    cause: cause.to_string(),
                    exit,
                    stderr,
                });
            }
            if note.is_warning() {
                status.warnings += 1;
            }
        }
        match note {
            Note::Crashed { .. } => {
                let stderr = detail["stderr"].as_str().unwrap_or_default();
                tracing::warn!(%server, stderr, "{note}");
            }
            _ if note.is_warning() => tracing::warn!(%server, "{note}"),
            _ => tracing::info!(%server, "{note}"),
        }
        self.shared.chronicle.write(Write::Event {
            project: self.server.spec.owner.clone(),
            id: self.hosting.id.clone(),
            name: self.server.name().clone(),
            kind: note.kind(),
            warning: note.is_warning(),
            detail,
        });
    }

    fn detail(&self, note: &Note) -> Value {
        let mut detail =
            json!({ "name": self.server.name().as_str(), "message": note.to_string() });
        match note {
            Note::Crashed {
                cause: Cause::Exit(exit),
            } => {
                detail["exitCode"] = exit.code.into();
                detail["signal"] = exit.signal.into();
                detail["outOfMemory"] = exit.out_of_memory.into();
                detail["forkBomb"] = exit.fork_bomb.into();
            }
            Note::Backoff { wait, .. } => detail["waitSeconds"] = wait.as_secs().into(),
            Note::Unresponsive { missed } => detail["missed"] = (*missed).into(),
            _ => {}
        }
        detail
    }

    fn stderr_tail(&self) -> String {
        let all = self.server.spec.redact(&self.server.stderr_tail());
        let mut tail = String::new();
        let lines: Vec<&str> = all.lines().rev().take(TAIL.0).collect();
        for line in lines.into_iter().rev() {
            tail.push_str(line);
            tail.push('\n');
        }
        let mut from = tail.len().saturating_sub(TAIL.1);
        while !tail.is_char_boundary(from) {
            from += 1;
        }
        tail.split_off(from)
    }
}

/// The end of the life there is.
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

/// The grace of a stop, once it is asked for.
async fn asked(stop: &mut watch::Receiver<Option<Duration>>) -> Duration {
    match stop.wait_for(Option::is_some).await {
        Ok(grace) => grace.unwrap_or_default(),
        // The loop is gone, and with it everything.
        Err(_) => Duration::ZERO,
    }
}
