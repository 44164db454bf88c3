//! Decides when a server is started, stopped and restarted (G05, P07, P10, P12, H08 to H12, H15).
//!
//! [`step`] takes a [`State`], an [`Event`] and the time, and returns the next state and the actions to take. The
//! runner of the server carries them out in the given order and reports the results as events. Servers differ only in
//! their [`Rules`].
//!
//! # Invariants
//!
//! - Between two [`Action::Launch`] there is always an end event: [`Event::Ended`], [`Event::Refused`],
//!   [`Event::Stopped`], or [`Event::RuntimeBack`] with no instance alive.
//! - There is at most one timer, determined by the state ([`State::timer`]).
//! - An event that has no meaning in a state changes nothing. The table below lists the meanings; a test compares it
//!   with the code.
//! - A server that a user stopped is started only by a user. Exception, as in Docker: under `always` it starts with the
//!   gateway.
//! - An obstacle that waiting cannot remove is not a crash. It is not counted, and it is reported once.
//!
//! # Duties of the runner
//!
//! - Report exactly one of these end events for each launch, once nothing of the instance is left. This includes
//!   launches that never became ready.
//! - If the runtime does not respond and the end is only assumed, report [`Event::RuntimeLost`] first.
//! - Keep at most one timer: [`Action::SetTimer`] replaces the current one.
//!
//! Deliberately absent: tasks, clocks, randomness other than a seed, and calendar times.
//!
//! In the table, parentheses list the rules for which a row applies: a process, a server at a URL, a lazy server, a
//! project's server, or a restart policy. Without parentheses, the row applies to all. *Before answering*: the instance
//! had not answered the initial requests since its launch.
//!
#![doc = include_str!("table.md")]

mod ladder;
mod rules;
mod words;

use std::time::Duration;

use model::RestartPolicy;
use runtime::Exit;
use tokio::time::Instant;

use ladder::Ladder;
pub use rules::{Earned, Free, Rules};

/// The status in the database of a server that has not been started yet.
pub const REGISTERED: &str = "registered";
/// Time from `SIGTERM` to `SIGKILL` in a restart by a user (H12).
pub const RESTART_GRACE: Duration = Duration::from_secs(10);

/// The state of one server. [`State::new`] creates it, [`step`] changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    rules: Rules,
    phase: Phase,
    ladder: Ladder,
    /// Consecutive failed starts.
    failures: u32,
    last: Last,
    /// The content of the last [`Action::Save`].
    saved: Option<Saved>,
    restarts: u64,
    /// The last reported reason for being blocked.
    told: Option<String>,
}

/// The phase of a server, with the data specific to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing runs, because the server is not needed, or not needed yet.
    Idle,
    /// Nothing runs: it was stopped, or it exited and its policy does not restart it.
    Stopped,
    /// Nothing runs: it crashed, and its policy does not restart it.
    Failed,
    /// Between [`Action::Launch`] or [`Action::Attach`] and [`Event::Ready`]. If `patient`, callers wait for the start.
    Starting { patient: bool },
    Running {
        /// When the server became ready or responded again.
        since: Instant,
        /// Heartbeats missed in a row.
        missed: u32,
    },
    /// The server runs but does not respond to heartbeats.
    Unresponsive,
    /// Nothing runs. The server is started at this time.
    Backoff { until: Instant },
    /// Nothing runs. The server failed to start too often, so it is not started until this time. After that, the next
    /// caller that needs the server triggers an attempt.
    Unavailable { until: Instant },
    /// Nothing runs, and waiting alone does not help. `until`: time of the next check, if a check may help.
    Blocked { until: Option<Instant> },
    /// The instance is being stopped, and the server is started again once it is gone.
    Restarting,
    /// The instance is being stopped.
    Stopping,
    /// The instance is being stopped because it is unused.
    Parting,
    /// The runtime does not respond, so it is unknown whether an instance exists.
    Unknown { goal: Goal },
    /// The instance is being stopped because the gateway stops or the server was removed.
    Ending,
    /// Nothing runs, and nothing will be started.
    Over,
}

/// The intended state of an [unknown](Phase::Unknown) server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Run,
    Stop,
    Rest,
    /// The instance is stopped first, if there is one.
    Restart,
}

/// The state in which a server was left, for a later run of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The server ran or was due to run.
    Up,
    ByHand,
    /// The server exited with code 0, and its policy did not restart it.
    Finished,
    /// The server crashed, and its policy did not restart it.
    Failed,
}

/// The state of a server in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The current state, for people and other programs.
    pub status: &'static str,
    /// The state for the next [`Event::Boot`]. The end of the gateway does not change it.
    pub last: Last,
}

/// The cause of the end of an instance or connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Exit(Exit),
    /// The connection to a remote server ended.
    Closed(String),
    /// The server never ran or never became ready.
    Start(String),
    /// The instance was gone when the runtime responded again.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The gateway started and found the server as an earlier run left it.
    Boot {
        last: Last,
    },
    /// A caller needs the server.
    Wanted,
    StartRequested,
    StopRequested {
        grace: Duration,
    },
    RestartRequested,
    /// The server has been unused for the configured time.
    Unused {
        grace: Duration,
    },
    /// The server runs and can be called.
    Ready,
    /// Nothing runs any longer: the instance exited on its own, or it did not become ready and was removed.
    Ended {
        cause: Cause,
        /// True if the instance had answered the handshake. Then its end is no failed start, even if its lists were not
        /// loaded yet.
        answered: bool,
    },
    /// Nothing runs: the server cannot be started, and waiting alone does not change that.
    Refused {
        why: String,
        /// Delay until the next check. `None`: a check would not help.
        again: Option<Duration>,
    },
    /// The target of [`Action::Stop`] is gone, if it ever existed.
    Stopped,
    HeartbeatMissed,
    HeartbeatAnswered,
    TimerFired,
    /// The runtime does not respond.
    RuntimeLost,
    /// The runtime responds again and reports whether the server is alive.
    RuntimeBack {
        alive: bool,
    },
    /// The gateway stops, or the server was removed.
    Shutdown {
        grace: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance, or connect to a remote server. No instance runs at this moment.
    Launch,
    /// Connect to the existing instance. The result is [`Event::Ready`] or an end event.
    Attach,
    /// Stop the instance or the launch. A later stop can only shorten the grace period.
    Stop {
        grace: Duration,
    },
    SetTimer {
        at: Instant,
    },
    CancelTimer,
    /// Save the server's state. Comes first, since later actions may be cut short.
    Save(Saved),
    /// Log this note, and record it as an event of the server.
    Record(Note),
    /// There will be no further actions.
    End,
}

/// A message for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Ready,
    Crashed {
        cause: Cause,
    },
    /// The instance exited with code 0.
    Exited,
    /// The server failed, and its restart policy does not restart it.
    Failed {
        why: String,
    },
    /// The server waits before the next attempt. `rung` counts from 1. `ends`: recent ends that were followed by an
    /// immediate restart.
    Backoff {
        rung: usize,
        wait: Duration,
        ends: usize,
    },
    /// The server failed to start too often. No attempt is made before the wait is over.
    Unavailable {
        failures: u32,
        wait: Duration,
    },
    /// `again`: delay until the next check of the cause. `None`: there is no next check.
    Blocked {
        why: String,
        again: Option<Duration>,
    },
    /// The server has been stable for this long.
    Recovered {
        after: Duration,
    },
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

/// Determines the next state and the actions for an event. Never fails: an event that has no meaning in a state is
/// ignored (see the module docs).
#[must_use]
pub fn step(state: State, event: Event, now: Instant) -> (State, Vec<Action>) {
    // A timer that has fired is no longer set, even if no phase waited for it.
    let timer = state.timer().filter(|_| event != Event::TimerFired);
    let mut step = Step {
        state,
        now,
        actions: Vec::new(),
    };
    step.state.phase = step.next(event);
    let Step {
        mut state,
        mut actions,
        ..
    } = step;
    if let Some(saved) = state.to_save() {
        state.saved = Some(saved);
        actions.insert(0, Action::Save(saved));
    }
    match state.timer() {
        now if now == timer => {}
        Some(at) => actions.push(Action::SetTimer { at }),
        None => actions.push(Action::CancelTimer),
    }
    (state, actions)
}

struct Step {
    state: State,
    now: Instant,
    actions: Vec<Action>,
}

impl Step {
    fn next(&mut self, event: Event) -> Phase {
        use Phase::{
            Backoff, Blocked, Ending, Failed, Idle, Parting, Restarting, Running, Starting,
            Stopped, Stopping, Unavailable, Unknown, Unresponsive,
        };
        match (self.state.phase, event) {
            (Idle, Event::Boot { last }) => self.boot(last),
            (Idle, Event::Wanted) => {
                self.state.last = Last::Up;
                self.launch(true)
            }

            (
                Idle | Stopped | Failed | Backoff { .. } | Unavailable { .. } | Blocked { .. },
                Event::StartRequested | Event::RestartRequested,
            ) => {
                self.forgive();
                self.launch(true)
            }
            (Starting { .. } | Running { .. } | Unresponsive, Event::RestartRequested)
            | (Stopping | Parting, Event::StartRequested | Event::RestartRequested) => {
                self.forgive();
                self.stop(RESTART_GRACE, Restarting)
            }
            (Unknown { .. }, Event::RestartRequested)
            | (
                Unknown {
                    goal: Goal::Stop | Goal::Rest,
                },
                Event::StartRequested,
            ) => {
                self.forgive();
                let goal = Goal::Restart;
                Unknown { goal }
            }

            (
                phase @ (Idle
                | Stopped
                | Failed
                | Backoff { .. }
                | Unavailable { .. }
                | Blocked { .. }),
                Event::StopRequested { .. },
            ) => {
                self.state.last = Last::ByHand;
                if !matches!(phase, Idle | Stopped) {
                    self.record(Note::Stopped);
                }
                Stopped
            }
            (
                Starting { .. } | Running { .. } | Unresponsive | Restarting | Stopping | Parting,
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
            (Running { .. } | Unresponsive, Event::Unused { grace }) if self.state.rules.lazy => {
                self.stop(grace, Parting)
            }

            (Starting { .. }, Event::Ready) => {
                self.record(Note::Ready);
                self.state.failures = 0;
                self.state.told = None;
                self.running()
            }
            (Running { since, missed }, Event::HeartbeatMissed) => self.missed(since, missed + 1),
            (Running { since, .. }, Event::HeartbeatAnswered) => Running { since, missed: 0 },
            (Unresponsive, Event::HeartbeatAnswered) => {
                self.record(Note::Responsive);
                self.running()
            }

            (Starting { .. }, Event::Refused { why, again }) => self.blocked(why, again),
            (Starting { .. } | Running { .. } | Unresponsive, Event::Ended { cause, answered }) => {
                self.fell(cause, answered)
            }
            // A server that is a gateway may report only later which gateways are behind it. Such a server is refused
            // although it already runs.
            (Running { .. } | Unresponsive, Event::Refused { why, again }) => {
                self.blocked(why, again)
            }
            (Restarting, Event::Ended { .. } | Event::Refused { .. } | Event::Stopped) => {
                self.launch(true)
            }
            (Stopping, Event::Ended { .. } | Event::Refused { .. } | Event::Stopped) => {
                self.record(Note::Stopped);
                Stopped
            }
            (Parting, Event::Ended { .. } | Event::Refused { .. } | Event::Stopped) => Idle,
            (Ending, Event::Ended { .. } | Event::Refused { .. } | Event::Stopped) => self.end(),

            (Backoff { until }, Event::TimerFired) if until <= self.now => self.relaunch(false),
            (Blocked { until: Some(until) }, Event::TimerFired) if until <= self.now => {
                self.launch(false)
            }
            (Unavailable { until }, Event::TimerFired) if until <= self.now => Idle,
            (phase @ Running { since, .. }, Event::TimerFired)
                if self.state.ladder.is_rung() && since + self.state.rules.stable <= self.now =>
            {
                self.state.ladder.leave();
                let after = self.state.rules.stable;
                self.record(Note::Recovered { after });
                phase
            }

            (Starting { .. } | Running { .. } | Unresponsive, Event::RuntimeLost) => {
                self.lost(Goal::Run)
            }
            (Stopping, Event::RuntimeLost) => self.lost(Goal::Stop),
            (Parting, Event::RuntimeLost) => self.lost(Goal::Rest),
            (Restarting, Event::RuntimeLost) => self.lost(Goal::Restart),
            (Unknown { goal }, Event::RuntimeBack { alive }) => self.found(goal, alive),

            (
                Idle | Stopped | Failed | Backoff { .. } | Unavailable { .. } | Blocked { .. },
                Event::Shutdown { .. },
            ) => self.end(),
            (
                Starting { .. }
                | Running { .. }
                | Unresponsive
                | Restarting
                | Stopping
                | Parting
                | Unknown { .. },
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

    fn launch(&mut self, patient: bool) -> Phase {
        self.act(Action::Launch);
        Phase::Starting { patient }
    }

    fn relaunch(&mut self, patient: bool) -> Phase {
        self.state.restarts += 1;
        self.launch(patient)
    }

    fn stop(&mut self, grace: Duration, then: Phase) -> Phase {
        self.act(Action::Stop { grace });
        then
    }

    fn end(&mut self) -> Phase {
        self.act(Action::End);
        Phase::Over
    }

    /// The server is wanted again: resets counters and waits.
    fn forgive(&mut self) {
        self.state.last = Last::Up;
        self.state.ladder.leave();
        self.state.failures = 0;
        self.state.restarts = 0;
        self.state.told = None;
    }

    fn boot(&mut self, last: Last) -> Phase {
        self.state.last = last;
        if last.starts_again(self.state.rules.restart) {
            self.state.last = Last::Up;
            return self.launch(true);
        }
        match last {
            Last::Failed => Phase::Failed,
            Last::Finished => Phase::Stopped,
            Last::Up | Last::ByHand => {
                self.state.last = Last::ByHand;
                Phase::Stopped
            }
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

    fn blocked(&mut self, why: String, again: Option<Duration>) -> Phase {
        if self.state.told.as_ref() != Some(&why) {
            self.state.told = Some(why.clone());
            self.record(Note::Blocked { why, again });
        }
        let until = again.map(|wait| self.now + wait);
        Phase::Blocked { until }
    }

    /// Handles an unexpected end. The restart policy is applied first, then the circuit breaker, then an immediate
    /// restart, if one is left. Otherwise, the server waits.
    fn fell(&mut self, cause: Cause, answered: bool) -> Phase {
        let restart = self.state.rules.restart;
        let (again, left) = match &cause {
            Cause::Exit(exit) if exit.success() => {
                self.record(Note::Exited);
                let again = matches!(
                    restart,
                    RestartPolicy::Always | RestartPolicy::UnlessStopped
                );
                (again, (Last::Finished, Phase::Stopped))
            }
            _ => {
                let again = restart != RestartPolicy::No;
                let why = cause.to_string();
                self.record(Note::Crashed { cause });
                if !again {
                    self.record(Note::Failed { why });
                }
                (again, (Last::Failed, Phase::Failed))
            }
        };
        if !again {
            self.state.last = left.0;
            return left.1;
        }
        if matches!(self.state.phase, Phase::Starting { .. }) && !answered {
            self.state.failures = self.state.failures.saturating_add(1);
        }
        let failures = self.state.failures;
        if let Some(breaker) = self.state.rules.breaker
            && failures >= breaker.failures
        {
            let wait = breaker.cooldown;
            self.record(Note::Unavailable { failures, wait });
            let until = self.now + wait;
            return Phase::Unavailable { until };
        }
        let held = match self.state.phase {
            Phase::Running { since, .. } => self.now - since,
            _ => Duration::ZERO,
        };
        match self.state.climb(self.now, held, answered) {
            None => self.relaunch(self.state.rules.patient),
            Some(note) => {
                let Note::Backoff { wait, .. } = note else {
                    unreachable!("`climb` returns no other note")
                };
                self.record(note);
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
                Phase::Starting { patient: true }
            }
            (Goal::Run, false) => {
                let cause = Cause::Lost;
                let why = cause.to_string();
                self.record(Note::Crashed { cause });
                if self.state.rules.restart == RestartPolicy::No {
                    self.record(Note::Failed { why });
                    self.state.last = Last::Failed;
                    return Phase::Failed;
                }
                // The runtime is at fault and not the server, so the next wait does not grow.
                self.relaunch(self.state.rules.patient)
            }
            (Goal::Stop, true) => self.stop(RESTART_GRACE, Phase::Stopping),
            (Goal::Stop, false) => {
                self.record(Note::Stopped);
                Phase::Stopped
            }
            (Goal::Rest, true) => self.stop(RESTART_GRACE, Phase::Parting),
            (Goal::Rest, false) => Phase::Idle,
            (Goal::Restart, true) => self.stop(RESTART_GRACE, Phase::Restarting),
            (Goal::Restart, false) => self.launch(true),
        }
    }
}

impl State {
    /// A new server. `seed` determines the jitter of its waits.
    #[must_use]
    pub fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            phase: Phase::Idle,
            ladder: Ladder::new(seed),
            failures: 0,
            last: Last::ByHand,
            saved: None,
            restarts: 0,
            told: None,
        }
    }

    /// Returns whether the server has had no event yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.phase == Phase::Idle && self.last == Last::ByHand
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// When [`Event::TimerFired`] is due.
    #[must_use]
    pub fn timer(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } | Phase::Unavailable { until } => Some(until),
            Phase::Blocked { until } => until,
            Phase::Running { since, .. } if self.ladder.is_rung() => {
                Some(since + self.rules.stable)
            }
            _ => None,
        }
    }

    /// When the next attempt is due, if that is known.
    #[must_use]
    pub fn next_attempt(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } | Phase::Unavailable { until } => Some(until),
            Phase::Blocked { until } => until,
            _ => None,
        }
    }

    /// Number of automatic restarts since the server was last started by a user or with the gateway.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Consecutive failed starts.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Consecutive waits before a restart, including a current one. 0: the server is stable, or was restarted
    /// immediately so far.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.ladder.rung().map_or(0, |rung| rung + 1)
    }

    /// Counts an end. `None`: restart immediately.
    fn climb(&mut self, now: Instant, held: Duration, answered: bool) -> Option<Note> {
        if held >= self.rules.stable {
            self.ladder.leave();
        }
        let earned = self.rules.free.earned.by(held, answered);
        let rules = &self.rules;
        let rung = self.ladder.climb(rules, now, held, earned)?;
        let wait = self.ladder.wait(rules, rung);
        Some(Note::Backoff {
            rung: rung + 1,
            wait,
            ends: self.ladder.ends(),
        })
    }

    /// The status in the database, for people and other programs.
    #[must_use]
    pub fn status(&self) -> &'static str {
        match self.phase {
            _ if self.is_new() => REGISTERED,
            Phase::Idle => "idle",
            Phase::Starting { .. } | Phase::Restarting => "starting",
            Phase::Running { .. } => "ready",
            Phase::Unresponsive => "unresponsive",
            Phase::Backoff { .. } | Phase::Unavailable { .. } => "backoff",
            Phase::Blocked { .. } => "blocked",
            Phase::Stopping | Phase::Parting | Phase::Ending => "stopping",
            Phase::Unknown { .. } => "unknown",
            Phase::Stopped | Phase::Failed | Phase::Over => match self.last {
                Last::Up => Last::ByHand.word(),
                last => last.word(),
            },
        }
    }

    /// The state to save, if it has changed.
    fn to_save(&self) -> Option<Saved> {
        if self.is_new() {
            return None;
        }
        let (status, last) = (self.status(), self.last);
        Some(Saved { status, last }).filter(|saved| self.saved != Some(*saved))
    }
}

impl Last {
    /// Returns whether a server in this state is started with the gateway.
    #[must_use]
    pub fn starts_again(self, restart: RestartPolicy) -> bool {
        match restart {
            RestartPolicy::Always => true,
            RestartPolicy::UnlessStopped => self != Self::ByHand,
            RestartPolicy::OnFailure => matches!(self, Self::Up | Self::Failed),
            RestartPolicy::No => false,
        }
    }

    /// The word for [`Last::from_word`].
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "ready",
            Self::ByHand => "stopped",
            Self::Finished => "exited",
            Self::Failed => "failed",
        }
    }

    /// The state for a saved word, or for a status that an earlier version saved. `None` if no state was saved.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "ready" | "starting" | "backoff" | "blocked" => Some(Self::Up),
            "stopped" => Some(Self::ByHand),
            "exited" => Some(Self::Finished),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
