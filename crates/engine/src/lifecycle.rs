//! When a server is started, stopped and started again: decisions only (G05, P07, P10, P12, H08 to H12, H15).
//!
//! [`step`] takes a [`State`], an [`Event`] and the time, and says the next state and what is to be done. Whoever
//! runs the server does it, in the order given, and tells what came of it. Servers differ by their [`Rules`] alone.
//!
//! # Invariants
//!
//! - Between two [`Action::Launch`] there is an end: [`Event::Ended`], [`Event::Refused`], [`Event::Stopped`], or
//!   [`Event::RuntimeBack`] that found nothing.
//! - There is one timer at most, and it follows from the state: [`State::timer`].
//! - An event that means nothing in a state changes nothing. What each means in each is the table below, which a
//!   test compares with the code.
//! - What was stopped by hand starts again by hand only, save under `always` when the product starts; as Docker has it.
//! - What waiting cannot put right is no crash: nothing is counted for it, and it is told once.
//!
//! # What the runner owes
//!
//! - One of those ends, once, for each launch; also for what was launched and never became ready, when nothing of it
//!   is left.
//! - [`Event::RuntimeLost`] before any end that it only guesses.
//! - At most one timer: [`Action::SetTimer`] replaces the one there is.
//!
//! Deliberately absent: tasks, clocks, randomness but for a seed, and how long ago something was by the calendar.
//!
#![doc = include_str!("lifecycle/table.md")]

mod ladder;
mod rules;
mod words;

use std::time::Duration;

use model::RestartPolicy;
use runtime::Exit;
use tokio::time::Instant;

use ladder::Ladder;
pub use rules::{Earned, Free, Rules};

/// From `SIGTERM` to `SIGKILL` in a restart by hand (H12).
pub const RESTART_GRACE: Duration = Duration::from_secs(10);

/// The state of one server. [`State::new`] makes it, [`step`] changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    rules: Rules,
    phase: Phase,
    ladder: Ladder,
    /// Starts in a row that came to nothing.
    failures: u32,
    last: Last,
    /// What [`Action::Save`] said last.
    saved: &'static str,
    restarts: u64,
    /// Why it is blocked, as it was told.
    told: Option<String>,
}

/// Where a server is, with what only matters there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing runs, for nobody has needed it yet, or for a while.
    Idle,
    /// Nothing runs: it was stopped, or ended as it may.
    Stopped,
    /// Nothing runs: it crashed, and its policy does not start it again.
    Failed,
    /// On its way from [`Action::Launch`] or [`Action::Attach`] to [`Event::Ready`]. Callers wait for that if it is
    /// `patient`.
    Starting { patient: bool },
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
    /// Nothing runs: it failed to start so often that it is left alone until then, and tried by who wants it after.
    Unavailable { until: Instant },
    /// Nothing runs, and waiting alone will not help. It is looked at again then, if that may help.
    Blocked { until: Option<Instant> },
    /// What runs is being stopped, and started anew when it is gone.
    Restarting,
    /// What runs is being stopped.
    Stopping,
    /// What runs is being stopped, for nobody uses it.
    Parting,
    /// Whoever runs it does not answer: there may be an instance, or none.
    Unknown { goal: Goal },
    /// What runs is being stopped, for the product stops, or the server is no more.
    Ending,
    /// Nothing runs, and nothing will.
    Over,
}

/// What an [unknown](Phase::Unknown) server shall become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Run,
    Stop,
    Rest,
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

/// Why an instance or a connection is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    Exit(Exit),
    /// The connection to what is not ours ended.
    Closed(String),
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
    /// Somebody needs it.
    Wanted,
    StartRequested,
    StopRequested {
        grace: Duration,
    },
    RestartRequested,
    /// Nobody has used it for long.
    Unused {
        grace: Duration,
    },
    /// It runs and can be called.
    Ready,
    /// Nothing runs any more: it ended by itself, or did not become ready and was removed.
    Ended {
        cause: Cause,
        /// Whether it had answered what it was asked since it was launched.
        answered: bool,
    },
    /// Nothing runs: what was asked for cannot be, and waiting alone does not change that.
    Refused {
        why: String,
        /// When to look again; `None`: there is no use in that.
        again: Option<Duration>,
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
    /// The product stops, or the server is no more.
    Shutdown {
        grace: Duration,
    },
}

/// Something that the runner has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance, or connect to a remote server. None runs at this moment.
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
    /// Remember this word for the next [`Event::Boot`]. It comes first: what follows may be cut short.
    Save(&'static str),
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
    /// It is left alone for a while; `rung` counts from 1. `ends`: so often it fell lately, and was started at once.
    Backoff {
        rung: usize,
        wait: Duration,
        ends: usize,
    },
    /// It did not start so often that nobody tries before the wait is over.
    Unavailable {
        failures: u32,
        wait: Duration,
    },
    /// `again`: the time until the next look at the cause; `None`: there is no next look.
    Blocked {
        why: String,
        again: Option<Duration>,
    },
    /// It has been stable since.
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

/// Decides. Never fails: see the module's docs for what is ignored where.
#[must_use]
pub fn step(state: State, event: Event, now: Instant) -> (State, Vec<Action>) {
    // A timer that fired is over, even if nothing waited for it.
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
    if let Some(word) = state.word_to_save() {
        state.saved = word;
        actions.insert(0, Action::Save(word));
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
            // What another gateway says of those behind it may come late.
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

    /// Somebody wants it up: what was before counts no more.
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

    /// Handles an end that nobody asked for. The restart policy comes first, then the breaker, then a free restart; a server
    /// that has none left waits.
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
                self.record(Note::Crashed { cause });
                (restart != RestartPolicy::No, (Last::Failed, Phase::Failed))
            }
        };
        if !again {
            self.state.last = left.0;
            return left.1;
        }
        if matches!(self.state.phase, Phase::Starting { .. }) {
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
                    unreachable!("climbing gives nothing else")
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
                self.record(Note::Crashed { cause });
                if self.state.rules.restart == RestartPolicy::No {
                    self.state.last = Last::Failed;
                    return Phase::Failed;
                }
                // The runtime's fault, not its own: no rung is climbed for that.
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
    /// A server that nothing was asked of yet. `seed`: of the jitter of its waits.
    #[must_use]
    pub fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            phase: Phase::Idle,
            ladder: Ladder::new(seed),
            failures: 0,
            last: Last::ByHand,
            saved: "",
            restarts: 0,
            told: None,
        }
    }

    /// Whether nothing was asked of it yet.
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

    /// When it is next tried, if that is known.
    #[must_use]
    pub fn next_attempt(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } | Phase::Unavailable { until } => Some(until),
            Phase::Blocked { until } => until,
            _ => None,
        }
    }

    /// How often it was started by itself since it was last started by hand or by the product.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Starts in a row that came to nothing.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts an end; `None` if it is started at once.
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

    /// How it is, for the next [`Event::Boot`], if that is not what was saved last.
    fn word_to_save(&self) -> Option<&'static str> {
        let word = match (self.last, self.phase) {
            (Last::Up, Phase::Starting { .. } | Phase::Restarting) => "starting",
            (Last::Up, Phase::Running { .. } | Phase::Unresponsive) => "ready",
            (Last::Up, Phase::Backoff { .. } | Phase::Unavailable { .. }) => "backoff",
            (Last::Up, Phase::Blocked { .. }) => "blocked",
            (Last::Up, _) if Last::from_word(self.saved) == Some(Last::Up) => self.saved,
            (Last::Up, _) => "starting",
            (Last::ByHand, Phase::Idle) => self.saved,
            (Last::ByHand, _) => "stopped",
            (Last::Finished, _) => "exited",
            (Last::Failed, _) => "failed",
        };
        (word != self.saved).then_some(word)
    }
}

impl Last {
    /// Whether a server that was left so is started when the product is.
    #[must_use]
    pub fn starts_again(self, restart: RestartPolicy) -> bool {
        match restart {
            RestartPolicy::Always => true,
            RestartPolicy::UnlessStopped => self != Self::ByHand,
            RestartPolicy::OnFailure => matches!(self, Self::Up | Self::Failed),
            RestartPolicy::No => false,
        }
    }

    /// How a server was left of which this word was saved; `None` if none was.
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
