//! When a hosted server is started, stopped and started again: decisions only (H08 to H12, H15).
//!
//! [`step`] takes a [`State`], an [`Event`] and the time, and says the next state and what is to be done. Whoever
//! runs the server does it, in the order given, and tells what came of it.
//!
//! # Invariants
//!
//! - Between two [`Action::Launch`] there is an end: [`Event::StartFailed`], [`Event::Exited`], [`Event::Stopped`],
//!   or [`Event::RuntimeBack`] that found nothing.
//! - There is one timer at most, and it follows from the state: [`State::timer`].
//! - An event that means nothing in a state changes nothing. What each means in each is the table below, which a
//!   test compares with the code.
//! - What was stopped by hand starts again by hand only, save under `always` when the product starts; as Docker has it.
//!
//! # What the runner owes
//!
//! - One of those ends, once, for each launch; [`Event::StartFailed`] also for what was launched and never became
//!   ready, when nothing of it is left.
//! - [`Event::RuntimeLost`] before any end that it only guesses.
//! - At most one timer: [`Action::SetTimer`] replaces the one there is.
//!
//! Deliberately absent: tasks, clocks, randomness, texts for the API, and how long ago something was by the calendar.
//!
#![doc = include_str!("supervisor/table.md")]

use std::{fmt, time::Duration};

use model::{Hosting, RestartPolicy};
use runtime::Exit;
use tokio::time::Instant;

/// Ends within this time of each other count together.
pub const WINDOW: Duration = Duration::from_secs(60);
/// So many of them are followed by a start at once (H09).
pub const AT_ONCE: usize = 3;
/// The waits after more than that (H10). The last one stays.
pub const LADDER: [Duration; 5] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(45),
    Duration::from_secs(120),
    Duration::from_secs(300),
];
/// Running without a break for this long is stable: the ladder is left.
pub const STABLE: Duration = Duration::from_secs(600);
/// From `SIGTERM` to `SIGKILL` in a restart by hand (H12).
pub const RESTART_GRACE: Duration = Duration::from_secs(10);

/// What is decided by, of a server's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub restart: RestartPolicy,
    /// Heartbeats missed in a row after which it is unresponsive; 0 is taken as 1.
    pub misses: u32,
}

/// What is known of one server. Made by [`State::new`], changed by [`step`].
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    rules: Rules,
    phase: Phase,
    ladder: Ladder,
    last: Last,
    restarts: u64,
    last_crash: Option<Crash>,
}

/// Where a server is, with what only matters there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing runs: it was never started, was stopped, or ended as it may.
    Stopped,
    /// Nothing runs: it crashed, and its policy does not start it again.
    Failed,
    /// On its way from [`Action::Launch`] or [`Action::Attach`] to [`Event::Ready`].
    Starting,
    Running {
        /// When it was ready, or answered again.
        since: Instant,
        /// Heartbeats in a row.
        missed: u32,
    },
    /// It runs, and does not answer heartbeats.
    Unresponsive,
    /// Nothing runs, and it is started then.
    Backoff { until: Instant },
    /// What runs is being stopped, and started anew when it is gone.
    Restarting,
    /// What runs is being stopped.
    Stopping,
    /// Whoever runs it does not answer: there may be an instance, or none.
    Unknown { goal: Goal },
    /// What runs is being stopped, for the product stops.
    Ending,
    /// Nothing runs, and nothing will.
    Over,
}

/// What an [unknown](Phase::Unknown) server shall become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Run,
    Stop,
    /// Whatever runs is stopped first.
    Restart,
}

/// How a server was left: what a later run of the product has to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// It ran, or was to run.
    Up,
    ByHand,
    /// It ended with code 0, and its policy did not start it again.
    Finished,
    /// It crashed, and its policy did not start it again.
    Failed,
}

/// The last end that should not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    pub at: Instant,
    pub cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Exit(Exit),
    /// It never ran, or never became ready.
    Start(String),
    /// It was gone when the runtime was back.
    Lost,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The product started, and finds the server as an earlier run left it.
    Boot {
        last: Last,
    },
    StartRequested,
    StopRequested {
        grace: Duration,
    },
    RestartRequested,
    /// It runs and can be called.
    Ready,
    /// Nothing runs: the launch failed, or what was launched did not become ready and was removed.
    StartFailed {
        reason: String,
    },
    /// It ended by itself.
    Exited {
        exit: Exit,
    },
    /// What [`Action::Stop`] was for is gone, if it ever was there.
    Stopped,
    HeartbeatMissed,
    HeartbeatAnswered,
    TimerFired,
    /// The runtime does not answer.
    RuntimeLost,
    /// It does again, and this is what it says of the server.
    RuntimeBack {
        alive: bool,
    },
    /// The product stops.
    Shutdown {
        grace: Duration,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance; there is none.
    Launch,
    /// Connect to the instance that is there; [`Event::Ready`] or an end is the answer.
    Attach,
    /// End the instance or the launch, whichever there is. A later one can only be sooner.
    Stop {
        grace: Duration,
    },
    SetTimer {
        at: Instant,
    },
    CancelTimer,
    /// Remember it for the next [`Event::Boot`]. It comes first: what follows may be cut short.
    Save(Last),
    /// Log it, and write it down as an event of the server.
    Record(Note),
    /// Nothing will come any more.
    End,
}

/// Something that operators want to read about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Ready,
    Crashed {
        cause: Cause,
    },
    /// With code 0.
    Exited,
    /// It fell so often that it is left alone for a while; `rung` counts from 1.
    Backoff {
        rung: usize,
        wait: Duration,
    },
    /// It has been stable since.
    Recovered,
    Unresponsive {
        missed: u32,
    },
    Responsive,
    Stopped,
    RuntimeLost,
    RuntimeBack {
        alive: bool,
    },
}

/// How often it fell lately.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ladder {
    /// When it ended, [`AT_ONCE`] times at the most.
    Ground(Vec<Instant>),
    /// An index of [`LADDER`].
    Rung(usize),
}

/// Decides. Never fails: see the module's docs for what is ignored where.
#[must_use]
pub fn step(state: State, event: Event, now: Instant) -> (State, Vec<Action>) {
    // A timer that fired is none any more, also if nobody waited for it.
    let timer = state.timer().filter(|_| event != Event::TimerFired);
    let last = state.last;
    let mut step = Step {
        state,
        now,
        actions: Vec::new(),
    };
    step.state.phase = step.next(event);
    let Step {
        state, mut actions, ..
    } = step;
    if state.last != last {
        actions.insert(0, Action::Save(state.last));
    }
    match state.timer() {
        now if now == timer => {}
        Some(at) => actions.push(Action::SetTimer { at }),
        None => actions.push(Action::CancelTimer),
    }
    (state, actions)
}

/// One decision in the making.
struct Step {
    state: State,
    now: Instant,
    actions: Vec<Action>,
}

impl Step {
    fn next(&mut self, event: Event) -> Phase {
        use Phase::{
            Backoff, Ending, Failed, Restarting, Running, Starting, Stopped, Stopping, Unknown,
            Unresponsive,
        };
        match (self.state.phase, event) {
            (Stopped, Event::Boot { last }) => self.boot(last),

            (
                Stopped | Failed | Backoff { .. },
                Event::StartRequested | Event::RestartRequested,
            ) => {
                self.forgive();
                self.launch()
            }
            (Starting | Running { .. } | Unresponsive, Event::RestartRequested)
            | (Stopping, Event::StartRequested | Event::RestartRequested) => {
                self.forgive();
                self.stop(RESTART_GRACE, Restarting)
            }
            (Unknown { .. }, Event::RestartRequested)
            | (Unknown { goal: Goal::Stop }, Event::StartRequested) => {
                self.forgive();
                let goal = Goal::Restart;
                Unknown { goal }
            }

            (phase @ (Stopped | Failed | Backoff { .. }), Event::StopRequested { .. }) => {
                self.state.last = Last::ByHand;
                if phase != Stopped {
                    self.record(Note::Stopped);
                }
                Stopped
            }
            (
                Starting | Running { .. } | Unresponsive | Restarting | Stopping,
                Event::StopRequested { grace },
            ) => {
                self.state.last = Last::ByHand;
                self.stop(grace, Stopping)
            }
            (Unknown { .. }, Event::StopRequested { .. }) => {
                self.state.last = Last::ByHand;
                let goal = Goal::Stop;
                Unknown { goal }
            }

            (Starting, Event::Ready) => {
                self.record(Note::Ready);
                self.running()
            }
            (Running { since, missed }, Event::HeartbeatMissed) => self.missed(since, missed + 1),
            (Running { since, .. }, Event::HeartbeatAnswered) => Running { since, missed: 0 },
            (Unresponsive, Event::HeartbeatAnswered) => {
                self.record(Note::Responsive);
                self.running()
            }

            (Starting, Event::StartFailed { reason }) => self.crashed(Cause::Start(reason)),
            (Starting | Running { .. } | Unresponsive, Event::Exited { exit }) => self.exited(exit),
            (Restarting, Event::Exited { .. } | Event::StartFailed { .. } | Event::Stopped) => {
                self.launch()
            }
            (Stopping, Event::Exited { .. } | Event::StartFailed { .. } | Event::Stopped) => {
                self.record(Note::Stopped);
                Stopped
            }
            (Ending, Event::Exited { .. } | Event::StartFailed { .. } | Event::Stopped) => {
                self.end()
            }

            (Backoff { until }, Event::TimerFired) if until <= self.now => self.relaunch(),
            (phase @ Running { since, .. }, Event::TimerFired)
                if self.state.ladder.is_rung() && since + STABLE <= self.now =>
            {
                self.state.ladder = Ladder::default();
                self.record(Note::Recovered);
                phase
            }

            (Starting | Running { .. } | Unresponsive, Event::RuntimeLost) => self.lost(Goal::Run),
            (Stopping, Event::RuntimeLost) => self.lost(Goal::Stop),
            (Restarting, Event::RuntimeLost) => self.lost(Goal::Restart),
            (Unknown { goal }, Event::RuntimeBack { alive }) => self.found(goal, alive),

            (Stopped | Failed | Backoff { .. }, Event::Shutdown { .. }) => self.end(),
            (
                Starting | Running { .. } | Unresponsive | Restarting | Stopping | Unknown { .. },
                Event::Shutdown { grace },
            ) => self.stop(grace, Ending),

            (phase, _) => phase,
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn record(&mut self, note: Note) {
        self.act(Action::Record(note));
    }

    fn launch(&mut self) -> Phase {
        self.act(Action::Launch);
        Phase::Starting
    }

    fn relaunch(&mut self) -> Phase {
        self.state.restarts += 1;
        self.launch()
    }

    fn stop(&mut self, grace: Duration, then: Phase) -> Phase {
        self.act(Action::Stop { grace });
        then
    }

    fn end(&mut self) -> Phase {
        self.act(Action::End);
        Phase::Over
    }

    /// Somebody wants it up: what was before counts no more.
    fn forgive(&mut self) {
        self.state.last = Last::Up;
        self.state.ladder = Ladder::default();
        self.state.restarts = 0;
    }

    fn boot(&mut self, last: Last) -> Phase {
        self.state.last = last;
        let start = match self.state.rules.restart {
            RestartPolicy::Always => true,
            RestartPolicy::UnlessStopped => last != Last::ByHand,
            RestartPolicy::OnFailure => matches!(last, Last::Up | Last::Failed),
            RestartPolicy::No => false,
        };
        if start {
            self.state.last = Last::Up;
            self.launch()
        } else if last == Last::Failed {
            Phase::Failed
        } else {
            Phase::Stopped
        }
    }

    fn running(&self) -> Phase {
        Phase::Running {
            since: self.now,
            missed: 0,
        }
    }

    fn missed(&mut self, since: Instant, missed: u32) -> Phase {
        if missed < self.state.rules.misses {
            return Phase::Running { since, missed };
        }
        self.record(Note::Unresponsive { missed });
        Phase::Unresponsive
    }

    fn exited(&mut self, exit: Exit) -> Phase {
        if !exit.success() {
            return self.crashed(Cause::Exit(exit));
        }
        self.record(Note::Exited);
        match self.state.rules.restart {
            RestartPolicy::Always | RestartPolicy::UnlessStopped => self.again(),
            RestartPolicy::OnFailure | RestartPolicy::No => {
                self.state.last = Last::Finished;
                Phase::Stopped
            }
        }
    }

    fn crashed(&mut self, cause: Cause) -> Phase {
        if self.fell(cause) {
            self.again()
        } else {
            Phase::Failed
        }
    }

    /// Writes a crash down; whether the policy starts it again.
    fn fell(&mut self, cause: Cause) -> bool {
        self.record(Note::Crashed {
            cause: cause.clone(),
        });
        let at = self.now;
        self.state.last_crash = Some(Crash { at, cause });
        let again = self.state.rules.restart != RestartPolicy::No;
        if !again {
            self.state.last = Last::Failed;
        }
        again
    }

    fn again(&mut self) -> Phase {
        if let Phase::Running { since, .. } = self.state.phase
            && since + STABLE <= self.now
        {
            self.state.ladder = Ladder::default();
        }
        match self.state.ladder.climb(self.now) {
            None => self.relaunch(),
            Some(rung) => {
                let wait = LADDER[rung];
                let rung = rung + 1;
                self.record(Note::Backoff { rung, wait });
                let until = self.now + wait;
                Phase::Backoff { until }
            }
        }
    }

    fn lost(&mut self, goal: Goal) -> Phase {
        self.record(Note::RuntimeLost);
        Phase::Unknown { goal }
    }

    fn found(&mut self, goal: Goal, alive: bool) -> Phase {
        self.record(Note::RuntimeBack { alive });
        match (goal, alive) {
            (Goal::Run, true) => {
                self.act(Action::Attach);
                Phase::Starting
            }
            // The runtime's fault, not its own: no rung is climbed for that.
            (Goal::Run, false) if self.fell(Cause::Lost) => self.relaunch(),
            (Goal::Run, false) => Phase::Failed,
            (Goal::Stop, true) => self.stop(RESTART_GRACE, Phase::Stopping),
            (Goal::Stop, false) => {
                self.record(Note::Stopped);
                Phase::Stopped
            }
            (Goal::Restart, true) => self.stop(RESTART_GRACE, Phase::Restarting),
            (Goal::Restart, false) => self.launch(),
        }
    }
}

impl Ladder {
    /// Counts an end; the rung to wait on, `None` if it is not to wait at all.
    fn climb(&mut self, now: Instant) -> Option<usize> {
        match self {
            Self::Rung(rung) => *rung = (*rung + 1).min(LADDER.len() - 1),
            Self::Ground(ends) => {
                ends.retain(|end| now - *end <= WINDOW);
                if ends.len() < AT_ONCE {
                    ends.push(now);
                    return None;
                }
                *self = Self::Rung(0);
            }
        }
        self.rung()
    }

    fn rung(&self) -> Option<usize> {
        match self {
            Self::Ground(_) => None,
            Self::Rung(rung) => Some(*rung),
        }
    }

    fn is_rung(&self) -> bool {
        self.rung().is_some()
    }
}

impl Default for Ladder {
    fn default() -> Self {
        Self::Ground(Vec::new())
    }
}

impl Rules {
    #[must_use]
    pub fn of(hosting: &Hosting) -> Self {
        Self {
            restart: hosting.restart,
            misses: hosting.heartbeat.map_or(1, |heartbeat| heartbeat.misses),
        }
    }
}

impl State {
    /// A server that nothing was asked of yet. It waits for [`Event::Boot`] or [`Event::StartRequested`].
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            phase: Phase::Stopped,
            ladder: Ladder::default(),
            last: Last::ByHand,
            restarts: 0,
            last_crash: None,
        }
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When [`Event::TimerFired`] is due.
    #[must_use]
    pub fn timer(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } => Some(until),
            Phase::Running { since, .. } if self.ladder.is_rung() => Some(since + STABLE),
            _ => None,
        }
    }

    /// When it is started by itself, if it is waiting for that.
    #[must_use]
    pub fn next_attempt(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } => Some(until),
            _ => None,
        }
    }

    /// Which wait it had last, from 1; `None` if it has been stable since, or always was.
    #[must_use]
    pub fn rung(&self) -> Option<usize> {
        self.ladder.rung().map(|rung| rung + 1)
    }

    /// How often it was started by itself since it was last started by hand or by the product.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    #[must_use]
    pub fn last_crash(&self) -> Option<&Crash> {
        self.last_crash.as_ref()
    }

    /// What [`Action::Save`] said last.
    #[must_use]
    pub fn last(&self) -> Last {
        self.last
    }
}

impl Phase {
    /// The word that operators see.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Stopped | Self::Over => "stopped",
            Self::Failed => "failed",
            Self::Starting => "starting",
            Self::Running { .. } => "running",
            Self::Unresponsive => "unresponsive",
            Self::Backoff { .. } => "backoff",
            Self::Restarting => "restarting",
            Self::Stopping | Self::Ending => "stopping",
            Self::Unknown { .. } => "unknown",
        }
    }
}

impl Last {
    /// The word that the store keeps.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "ready",
            Self::ByHand => "stopped",
            Self::Finished => "exited",
            Self::Failed => "failed",
        }
    }

    /// The other way round.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Up, Self::ByHand, Self::Finished, Self::Failed]
            .into_iter()
            .find(|last| last.word() == word)
    }
}

impl Note {
    /// The kind of the event.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Crashed { .. } => "crashed",
            Self::Exited => "exited",
            Self::Backoff { .. } => "backoff",
            Self::Recovered => "recovered",
            Self::Unresponsive { .. } => "unresponsive",
            Self::Responsive => "responsive",
            Self::Stopped => "stopped",
            Self::RuntimeLost => "runtime-lost",
            Self::RuntimeBack { .. } => "runtime-back",
        }
    }

    /// Whether somebody should look after it (H10, H15).
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Backoff { .. } | Self::Unresponsive { .. } | Self::RuntimeLost
        )
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("it is ready"),
            Self::Crashed { cause } => write!(f, "it crashed: {cause}"),
            Self::Exited => f.write_str("it ended with exit code 0"),
            Self::Backoff { rung: 1, wait } => write!(
                f,
                "it ended more than {AT_ONCE} times in {} s; next attempt in {} s",
                WINDOW.as_secs(),
                wait.as_secs()
            ),
            Self::Backoff { rung, wait } => write!(
                f,
                "it ended again after {} attempts with a wait; next attempt in {} s",
                rung - 1,
                wait.as_secs()
            ),
            Self::Recovered => write!(f, "it has been stable for {} s", STABLE.as_secs()),
            Self::Unresponsive { missed } => {
                write!(f, "it did not answer {missed} heartbeats in a row")
            }
            Self::Responsive => f.write_str("it answers again"),
            Self::Stopped => f.write_str("it was stopped"),
            Self::RuntimeLost => f.write_str("what runs it does not answer"),
            Self::RuntimeBack { alive: true } => {
                f.write_str("what runs it answers again, and it is still there")
            }
            Self::RuntimeBack { alive: false } => {
                f.write_str("what runs it answers again, and it is not there any more")
            }
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(exit) => exit.fmt(f),
            Self::Start(reason) => write!(f, "it did not start: {reason}"),
            Self::Lost => f.write_str("it was gone when what runs it was back"),
        }
    }
}

#[cfg(test)]
mod tests;
