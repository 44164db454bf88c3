//! The table of all states and events, the rules one by one, and both against models of their own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

const POLICIES: [RestartPolicy; 4] = [
    RestartPolicy::Always,
    RestartPolicy::UnlessStopped,
    RestartPolicy::OnFailure,
    RestartPolicy::No,
];
const GRACE: Duration = Duration::from_secs(30);
const CRASH: Event = exited(1);
const CLEAN: Event = exited(0);

const fn exited(code: i32) -> Event {
    Event::Exited {
        exit: Exit {
            code: Some(code),
            signal: None,
            out_of_memory: false,
            fork_bomb: false,
        },
    }
}

fn killed() -> Event {
    Event::Exited {
        exit: Exit {
            signal: Some(9),
            out_of_memory: true,
            ..Exit::default()
        },
    }
}

fn start_failed() -> Event {
    Event::StartFailed {
        reason: "there is no image `x`".to_owned(),
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A state and a clock, for tests that tell a story.
struct Story {
    state: State,
    now: Instant,
}

impl Story {
    fn new(restart: RestartPolicy) -> Self {
        let rules = Rules { restart, misses: 3 };
        Self {
            state: State::new(rules),
            now: Instant::now(),
        }
    }

    fn running(restart: RestartPolicy) -> Self {
        let mut story = Self::new(restart);
        story.tell(Event::StartRequested);
        story.tell(Event::Ready);
        story
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let (state, actions) = step(self.state.clone(), event, self.now);
        self.state = state;
        actions
    }

    fn after(&mut self, wait: Duration, event: Event) -> Vec<Action> {
        self.now += wait;
        self.tell(event)
    }

    fn word(&self) -> &'static str {
        self.state.phase().word()
    }
}

fn notes(actions: &[Action]) -> Vec<&'static str> {
    let note = |action: &Action| match action {
        Action::Record(note) => Some(note.kind()),
        _ => None,
    };
    actions.iter().filter_map(note).collect()
}

fn launches(actions: &[Action]) -> usize {
    let launch = |action: &&Action| **action == Action::Launch;
    actions.iter().filter(launch).count()
}

// --- The table -----------------------------------------------------------------------------------

/// A state for each line of the table's first column.
fn phases(restart: RestartPolicy, now: Instant) -> Vec<(&'static str, State)> {
    let since = now - secs(1);
    let running = |missed| Phase::Running { since, missed };
    let until = now + secs(9);
    let ground = Ladder::Ground(vec![now - secs(2); AT_ONCE]);
    let top = Ladder::Rung(LADDER.len() - 1);
    let of = |phase, ladder: &Ladder, last| {
        let mut state = State::new(Rules { restart, misses: 3 });
        (state.phase, state.ladder, state.last) = (phase, ladder.clone(), last);
        state
    };
    let up = Last::Up;
    vec![
        (
            "stopped",
            of(Phase::Stopped, &Ladder::default(), Last::ByHand),
        ),
        (
            "failed",
            of(Phase::Failed, &Ladder::default(), Last::Failed),
        ),
        ("starting", of(Phase::Starting, &Ladder::default(), up)),
        (
            "starting, after 3 ends in 60 s",
            of(Phase::Starting, &ground, up),
        ),
        (
            "running, 2 heartbeats missed",
            of(running(2), &Ladder::default(), up),
        ),
        (
            "running, not stable yet after the longest wait",
            of(running(0), &top, up),
        ),
        (
            "running, stable after the longest wait",
            of(
                Phase::Running {
                    since: now - STABLE,
                    missed: 0,
                },
                &top,
                up,
            ),
        ),
        (
            "unresponsive",
            of(Phase::Unresponsive, &Ladder::default(), up),
        ),
        (
            "backoff, not over",
            of(Phase::Backoff { until }, &Ladder::Rung(1), up),
        ),
        (
            "backoff, over",
            of(Phase::Backoff { until: now }, &Ladder::Rung(1), up),
        ),
        ("restarting", of(Phase::Restarting, &Ladder::default(), up)),
        (
            "stopping, by hand",
            of(Phase::Stopping, &Ladder::default(), Last::ByHand),
        ),
        (
            "unknown, shall run",
            of(Phase::Unknown { goal: Goal::Run }, &Ladder::default(), up),
        ),
        (
            "unknown, shall stop",
            of(
                Phase::Unknown { goal: Goal::Stop },
                &Ladder::default(),
                Last::ByHand,
            ),
        ),
        (
            "unknown, shall restart",
            of(
                Phase::Unknown {
                    goal: Goal::Restart,
                },
                &Ladder::default(),
                up,
            ),
        ),
        (
            "stopping, as the product does",
            of(Phase::Ending, &Ladder::default(), up),
        ),
        (
            "stopped, as the product did",
            of(Phase::Over, &Ladder::default(), up),
        ),
    ]
}

fn events() -> Vec<(&'static str, Event)> {
    use Event::{
        Boot, HeartbeatAnswered, HeartbeatMissed, Ready, RestartRequested, RuntimeBack,
        RuntimeLost, Shutdown, StartRequested, StopRequested, Stopped, TimerFired,
    };
    let boot = |last| Boot { last };
    vec![
        ("boot, left `ready`", boot(Last::Up)),
        ("boot, left `stopped`", boot(Last::ByHand)),
        ("boot, left `exited`", boot(Last::Finished)),
        ("boot, left `failed`", boot(Last::Failed)),
        ("start", StartRequested),
        ("stop", StopRequested { grace: GRACE }),
        ("restart", RestartRequested),
        ("is ready", Ready),
        ("start failed", start_failed()),
        ("exited with 0", CLEAN),
        ("exited with 1", CRASH),
        ("killed by 9", killed()),
        ("is gone", Stopped),
        ("heartbeat missed", HeartbeatMissed),
        ("heartbeat answered", HeartbeatAnswered),
        ("timer", TimerFired),
        ("runtime lost", RuntimeLost),
        ("runtime back, there", RuntimeBack { alive: true }),
        ("runtime back, gone", RuntimeBack { alive: false }),
        ("shutdown", Shutdown { grace: GRACE }),
    ]
}

fn show(action: &Action, now: Instant) -> String {
    match action {
        Action::Launch => "launch".to_owned(),
        Action::Attach => "attach".to_owned(),
        Action::Stop { grace } => format!("end it within {} s", grace.as_secs()),
        Action::SetTimer { at } => format!("timer in {} s", (*at - now).as_secs()),
        Action::CancelTimer => "no timer".to_owned(),
        Action::Save(last) => format!("save `{}`", last.word()),
        Action::Record(note) if note.is_warning() => format!("**warn `{}`**", note.kind()),
        Action::Record(note) => format!("record `{}`", note.kind()),
        Action::End => "end".to_owned(),
    }
}

/// What becomes of it, or `None` if nothing changes and nothing is to be done.
fn outcome(state: &State, event: &Event, now: Instant) -> Option<String> {
    let (next, actions) = step(state.clone(), event.clone(), now);
    if next == *state && actions.is_empty() {
        return None;
    }
    let actions: Vec<_> = actions.iter().map(|action| show(action, now)).collect();
    Some(format!("{} | {}", next.phase().word(), actions.join(", ")))
}

fn table() -> String {
    let now = Instant::now() + secs(10_000);
    let mut text = "# Table of states\n".to_owned();
    let by_policy = POLICIES.map(|policy| phases(policy, now));
    for (index, (name, _)) in by_policy[0].iter().enumerate() {
        let mut ignored = Vec::new();
        let mut lines = String::new();
        for (event_name, event) in events() {
            let mut outcomes: Vec<(Option<String>, Vec<&str>)> = Vec::new();
            for (policy, phases) in POLICIES.iter().zip(&by_policy) {
                let found = outcome(&phases[index].1, &event, now);
                match outcomes.iter_mut().find(|(outcome, _)| *outcome == found) {
                    Some((_, policies)) => policies.push(policy.as_str()),
                    None => outcomes.push((found, vec![policy.as_str()])),
                }
            }
            let one = outcomes.len() == 1;
            for (outcome, policies) in outcomes {
                let policies = if one {
                    String::new()
                } else {
                    format!(" ({})", policies.join(", "))
                };
                match outcome {
                    Some(outcome) => {
                        writeln!(lines, "| {event_name}{policies} | {outcome} |").unwrap();
                    }
                    None => ignored.push(format!("{event_name}{policies}")),
                }
            }
        }
        writeln!(text, "\n## {name}\n").unwrap();
        if !lines.is_empty() {
            write!(text, "| event | next | actions |\n|---|---|---|\n{lines}\n").unwrap();
        }
        writeln!(text, "Ignored: {}.", ignored.join("; ")).unwrap();
    }
    text
}

#[test]
fn the_table_is_what_the_code_does() {
    let (found, written) = (table(), include_str!("table.md"));
    if found != written && std::env::var_os("WRITE_TABLE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/supervisor/table.md");
        std::fs::write(path, &found).unwrap();
    }
    assert!(
        found == written,
        "supervisor/table.md differs from this (WRITE_TABLE=1 writes it):\n{found}"
    );
}

#[test]
fn every_state_of_the_table_is_every_state() {
    let now = Instant::now() + secs(10_000);
    let mut seen = BTreeMap::new();
    for (_, state) in phases(RestartPolicy::Always, now) {
        // A new state or event does not compile before it is in the table.
        let number = match state.phase {
            Phase::Stopped => 0,
            Phase::Failed => 1,
            Phase::Starting => 2,
            Phase::Running { .. } => 3,
            Phase::Unresponsive => 4,
            Phase::Backoff { .. } => 5,
            Phase::Restarting => 6,
            Phase::Stopping => 7,
            Phase::Unknown { goal: Goal::Run } => 8,
            Phase::Unknown { goal: Goal::Stop } => 9,
            Phase::Unknown {
                goal: Goal::Restart,
            } => 10,
            Phase::Ending => 11,
            Phase::Over => 12,
        };
        seen.insert(number, ());
    }
    assert_eq!(seen.len(), 13);
    let mut seen = BTreeMap::new();
    for (_, event) in events() {
        let number = match event {
            Event::Boot { .. } => 0,
            Event::StartRequested => 1,
            Event::StopRequested { .. } => 2,
            Event::RestartRequested => 3,
            Event::Ready => 4,
            Event::StartFailed { .. } => 5,
            Event::Exited { .. } => 6,
            Event::Stopped => 7,
            Event::HeartbeatMissed => 8,
            Event::HeartbeatAnswered => 9,
            Event::TimerFired => 10,
            Event::RuntimeLost => 11,
            Event::RuntimeBack { .. } => 12,
            Event::Shutdown { .. } => 13,
        };
        seen.insert(number, ());
    }
    assert_eq!(seen.len(), 14);
}

// --- The rules -----------------------------------------------------------------------------------

#[test]
fn h08_what_boots() {
    use Last::{ByHand, Failed, Finished, Up};
    let starts: [(RestartPolicy, &[Last]); 4] = [
        (RestartPolicy::Always, &[Up, ByHand, Finished, Failed]),
        (RestartPolicy::UnlessStopped, &[Up, Finished, Failed]),
        (RestartPolicy::OnFailure, &[Up, Failed]),
        (RestartPolicy::No, &[]),
    ];
    for (policy, starting) in starts {
        for last in [Up, ByHand, Finished, Failed] {
            let mut story = Story::new(policy);
            let actions = story.tell(Event::Boot { last });
            let expect = usize::from(starting.contains(&last));
            assert_eq!(launches(&actions), expect, "{policy} after {last:?}");
            assert_eq!(Last::from_word(last.word()), Some(last));
        }
    }
    assert_eq!(Last::from_word("creating"), None);
}

#[test]
fn h09_the_policies_are_dockers() {
    // Whether it is started again after: code 0, another code, a signal, a start that failed.
    for (policy, expect) in [
        (RestartPolicy::Always, [true, true, true, true]),
        (RestartPolicy::UnlessStopped, [true, true, true, true]),
        (RestartPolicy::OnFailure, [false, true, true, true]),
        (RestartPolicy::No, [false, false, false, false]),
    ] {
        for (event, expect) in [CLEAN, CRASH, killed(), start_failed()]
            .into_iter()
            .zip(expect)
        {
            let mut story = Story::new(policy);
            story.tell(Event::StartRequested);
            let crash = event != CLEAN;
            let actions = story.tell(event.clone());
            assert_eq!(launches(&actions) == 1, expect, "{policy}: {event:?}");
            assert_eq!(story.state.last_crash().is_some(), crash, "{event:?}");
            let note = if crash { "crashed" } else { "exited" };
            assert_eq!(notes(&actions), [note], "{event:?}");
            let word = match (expect, crash) {
                (true, _) => "starting",
                (false, true) => "failed",
                (false, false) => "stopped",
            };
            assert_eq!(story.word(), word, "{policy}: {event:?}");
            assert_eq!(story.state.restarts(), u64::from(expect));
        }
    }
}

#[test]
fn h09_a_stop_by_hand_is_not_undone() {
    for policy in POLICIES {
        for end in [CLEAN, CRASH, killed(), Event::Stopped] {
            let mut story = Story::running(policy);
            let actions = story.tell(Event::StopRequested { grace: GRACE });
            assert_eq!(
                actions,
                [Action::Save(Last::ByHand), Action::Stop { grace: GRACE }]
            );
            let actions = story.tell(end);
            assert_eq!(notes(&actions), ["stopped"]);
            assert_eq!(story.word(), "stopped");
            assert_eq!(story.after(secs(9999), Event::TimerFired), []);
            assert_eq!(story.state.last_crash(), None);
        }
    }
}

#[test]
fn h10_more_than_three_crashes_in_a_minute() {
    let mut story = Story::running(RestartPolicy::Always);
    for _ in 0..3 {
        let actions = story.after(secs(20), CRASH);
        assert_eq!((notes(&actions), launches(&actions)), (vec!["crashed"], 1));
        assert_eq!(story.state.rung(), None);
        story.tell(Event::Ready);
    }
    // The fourth is 60 s after the first.
    for (index, wait) in [5, 15, 45, 120, 300, 300, 300].into_iter().enumerate() {
        let actions = story.after(secs(if index == 0 { 20 } else { 599 }), CRASH);
        assert_eq!(notes(&actions), ["crashed", "backoff"], "rung {index}");
        assert_eq!(launches(&actions), 0);
        assert_eq!(story.word(), "backoff");
        assert_eq!(story.state.next_attempt(), Some(story.now + secs(wait)));
        assert_eq!(story.state.rung(), Some((index + 1).min(5)));
        let actions = story.after(secs(wait), Event::TimerFired);
        assert_eq!(actions, [Action::Launch]);
        story.tell(Event::Ready);
    }
    // A stable time forgives, and says so.
    let actions = story.after(STABLE, Event::TimerFired);
    assert_eq!(notes(&actions), ["recovered"]);
    assert_eq!(story.state.rung(), None);
    assert_eq!(launches(&story.tell(CRASH)), 1);
    assert_eq!(story.state.restarts(), 3 + 7 + 1);
}

#[test]
fn h10_slow_crashes_are_no_loop() {
    let mut story = Story::running(RestartPolicy::Always);
    for _ in 0..100 {
        assert_eq!(launches(&story.after(secs(21), CRASH)), 1);
    }
}

#[test]
fn h10_a_start_by_hand_forgives() {
    for by_hand in [Event::StartRequested, Event::RestartRequested] {
        let mut story = Story::running(RestartPolicy::Always);
        for _ in 0..4 {
            story.tell(killed());
        }
        assert_eq!(story.word(), "backoff");
        assert_eq!(
            story.after(secs(1), by_hand),
            [Action::Launch, Action::CancelTimer]
        );
        assert_eq!((story.state.rung(), story.state.restarts()), (None, 0));
        for _ in 0..3 {
            assert_eq!(launches(&story.tell(killed())), 1);
        }
        assert_eq!(launches(&story.tell(killed())), 0);
    }
}

#[test]
fn h11_the_product_stops() {
    let shutdown = || Event::Shutdown { grace: GRACE };
    let mut story = Story::running(RestartPolicy::Always);
    assert_eq!(story.tell(shutdown()), [Action::Stop { grace: GRACE }]);
    assert_eq!(story.tell(Event::StartRequested), []);
    assert_eq!(story.tell(CRASH), [Action::End]);
    assert_eq!(story.tell(Event::StartRequested), []);
    assert_eq!(
        story.state.last(),
        Last::Up,
        "it starts with the product again"
    );

    let mut waiting = Story::running(RestartPolicy::Always);
    for _ in 0..4 {
        waiting.tell(CRASH);
    }
    assert_eq!(waiting.tell(shutdown()), [Action::End, Action::CancelTimer]);
}

#[test]
fn h12_a_restart_by_hand() {
    let mut story = Story::running(RestartPolicy::No);
    let grace = secs(10);
    assert_eq!(
        story.tell(Event::RestartRequested),
        [Action::Stop { grace }]
    );
    assert_eq!(story.word(), "restarting");
    assert_eq!(story.tell(killed()), [Action::Launch]);
    assert_eq!(story.state.last_crash(), None);
    assert_eq!(notes(&story.tell(Event::Ready)), ["ready"]);
}

#[test]
fn h15_a_server_that_does_not_answer() {
    let mut story = Story::running(RestartPolicy::Always);
    assert_eq!(story.tell(Event::HeartbeatMissed), []);
    assert_eq!(story.tell(Event::HeartbeatMissed), []);
    assert_eq!(story.tell(Event::HeartbeatAnswered), []);
    assert_eq!(story.tell(Event::HeartbeatMissed), []);
    assert_eq!(story.tell(Event::HeartbeatMissed), []);
    let warning = Note::Unresponsive { missed: 3 };
    assert!(warning.is_warning());
    assert_eq!(
        story.tell(Event::HeartbeatMissed),
        [Action::Record(warning)]
    );
    assert_eq!(story.word(), "unresponsive");
    for _ in 0..100 {
        assert_eq!(story.after(secs(30), Event::HeartbeatMissed), []);
    }
    assert_eq!(notes(&story.tell(Event::HeartbeatAnswered)), ["responsive"]);
    assert_eq!(story.word(), "running");
}

#[test]
fn nothing_is_started_twice_when_the_runtime_was_lost() {
    let back = |alive| Event::RuntimeBack { alive };
    let mut story = Story::running(RestartPolicy::Always);
    assert_eq!(notes(&story.tell(Event::RuntimeLost)), ["runtime-lost"]);
    assert_eq!(story.word(), "unknown");
    for ignored in [
        Event::StartRequested,
        CRASH,
        Event::Ready,
        Event::TimerFired,
    ] {
        assert_eq!(story.tell(ignored), []);
    }
    let actions = story.tell(back(true));
    assert_eq!(
        (launches(&actions), actions.last()),
        (0, Some(&Action::Attach))
    );
    story.tell(Event::Ready);

    // However often: that it is gone is not its own fault.
    for _ in 0..10 {
        story.tell(Event::RuntimeLost);
        assert_eq!(launches(&story.tell(back(false))), 1);
    }
    story.tell(Event::RuntimeLost);
    story.tell(Event::RestartRequested);
    let actions = story.tell(back(true));
    assert_eq!(
        actions.last(),
        Some(&Action::Stop {
            grace: RESTART_GRACE
        })
    );
    assert_eq!(story.word(), "restarting");
}

// --- Backoff against a model, on a paused clock --------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Ready,
    /// It ends, whatever it is doing.
    End(End),
    Stop,
    Start,
    Restart,
    Miss,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Code(i32),
    Signal,
    StartFailed,
}

/// An operation after so many milliseconds.
type Trace = Vec<(u64, Op)>;

fn traces() -> impl Strategy<Value = (RestartPolicy, Trace)> {
    let gap = prop_oneof![
        6 => 0..3_000u64,
        3 => 0..30_000u64,
        2 => 0..400_000u64,
        1 => 590_000..620_000u64,
        1 => prop::sample::select(vec![0, 5_000, 15_000, 20_000, 45_000, 60_000, 120_000, 300_000, 600_000]),
    ];
    let end = prop_oneof![
        3 => (1..255i32).prop_map(End::Code),
        2 => Just(End::Code(0)),
        1 => Just(End::Signal),
        1 => Just(End::StartFailed),
    ];
    let op = prop_oneof![
        30 => Just(Op::Ready),
        60 => end.prop_map(Op::End),
        1 => Just(Op::Stop),
        2 => Just(Op::Start),
        1 => Just(Op::Restart),
        3 => Just(Op::Miss),
        3 => Just(Op::Answer),
    ];
    let policy = prop_oneof![
        6 => Just(RestartPolicy::Always),
        2 => Just(RestartPolicy::UnlessStopped),
        3 => Just(RestartPolicy::OnFailure),
        1 => Just(RestartPolicy::No),
    ];
    (policy, prop::collection::vec((gap, op), 1..40))
}

/// What there is of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    None,
    Launching,
    Up,
    Dying,
}

/// The rules once more, as somebody would do it with a list of all that happened. Milliseconds.
struct Model {
    policy: RestartPolicy,
    /// All ends since the last pardon.
    ends: Vec<u64>,
    /// Since when it runs and answers.
    steady: Option<u64>,
    missed: u32,
    /// When it is to be launched.
    due: Option<u64>,
    /// Whether it is launched when what is dying is gone.
    again: bool,
}

impl Model {
    /// How long to wait after the last of these ends.
    fn wait(ends: &[u64]) -> u64 {
        let loops = |last: &usize| *last >= 3 && ends[*last] - ends[*last - 3] <= 60_000;
        match (0..ends.len()).find(loops) {
            None => 0,
            Some(first) => match ends.len() - 1 - first {
                0 => 5_000,
                1 => 15_000,
                2 => 45_000,
                3 => 120_000,
                _ => 300_000,
            },
        }
    }

    /// Stops being steady; long enough was enough.
    fn unsteady(&mut self, now: u64) {
        if self
            .steady
            .take()
            .is_some_and(|since| now - since >= 600_000)
        {
            self.ends.clear();
        }
    }

    fn op(&mut self, op: Op, body: Body, now: u64) {
        match (op, body) {
            (Op::Ready, Body::Launching) => (self.steady, self.missed) = (Some(now), 0),
            (Op::Miss, Body::Up) => {
                self.missed += 1;
                if self.missed >= 3 {
                    self.unsteady(now);
                }
            }
            (Op::Answer, Body::Up) => {
                self.missed = 0;
                self.steady.get_or_insert(now);
            }
            (Op::End(end), Body::Launching | Body::Up) => {
                self.unsteady(now);
                self.ends.push(now);
                let clean = end == End::Code(0);
                let again = match self.policy {
                    RestartPolicy::Always | RestartPolicy::UnlessStopped => true,
                    RestartPolicy::OnFailure => !clean,
                    RestartPolicy::No => false,
                };
                self.due = again.then(|| now + Self::wait(&self.ends));
            }
            (Op::End(_), Body::Dying) => {
                self.steady = None;
                self.due = self.again.then_some(now);
            }
            (Op::Stop, _) => (self.due, self.again) = (None, false),
            (Op::Start, Body::None) | (Op::Restart, Body::None) => {
                self.ends.clear();
                self.due = Some(now);
            }
            (Op::Restart, Body::Launching | Body::Up) | (Op::Start | Op::Restart, Body::Dying) => {
                if !self.again || body != Body::Dying {
                    self.ends.clear();
                }
                self.again = true;
            }
            _ => {}
        }
    }
}

/// What was seen in all traces: a test of nothing is none.
#[derive(Default)]
struct Seen {
    waits: [Cell<u32>; 5],
    recovered: Cell<u32>,
    launches: Cell<u32>,
}

/// Runs the code on tokio's clock and its timers, beside the model.
struct World<'a> {
    state: State,
    body: Body,
    timer: Option<Instant>,
    model: Model,
    zero: Instant,
    seen: &'a Seen,
}

impl World<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_millis()).unwrap()
    }

    fn tell(&mut self, event: Event) {
        let (state, actions) = step(self.state.clone(), event, Instant::now());
        self.state = state;
        for action in actions {
            match action {
                Action::Launch => {
                    assert_eq!(self.body, Body::None, "two at once");
                    assert_eq!(self.model.due.take(), Some(self.now()), "launched");
                    self.body = Body::Launching;
                    self.seen.launches.update(|count| count + 1);
                }
                Action::Stop { .. } => {
                    assert_ne!(self.body, Body::None, "nothing to stop");
                    self.body = Body::Dying;
                }
                Action::SetTimer { at } => self.timer = Some(at),
                Action::CancelTimer => self.timer = None,
                Action::Record(Note::Backoff { rung, wait }) => {
                    assert_eq!(wait, LADDER[rung - 1]);
                    self.seen.waits[rung - 1].update(|count| count + 1);
                }
                Action::Record(Note::Recovered) => self.seen.recovered.update(|count| count + 1),
                _ => {}
            }
        }
    }

    fn op(&mut self, op: Op) {
        let now = self.now();
        self.model.op(op, self.body, now);
        match (op, self.body) {
            (Op::Ready, Body::Launching) => {
                self.body = Body::Up;
                self.tell(Event::Ready);
            }
            (Op::End(end), body @ (Body::Launching | Body::Up | Body::Dying)) => {
                self.body = Body::None;
                self.tell(match (end, body) {
                    (End::Code(code), _) => exited(code),
                    (End::Signal, _) => killed(),
                    (End::StartFailed, Body::Launching) => start_failed(),
                    (End::StartFailed, Body::Dying) => Event::Stopped,
                    (End::StartFailed, _) => exited(70),
                });
            }
            (Op::Stop, _) => self.tell(Event::StopRequested { grace: GRACE }),
            (Op::Start, _) => self.tell(Event::StartRequested),
            (Op::Restart, _) => self.tell(Event::RestartRequested),
            (Op::Miss, Body::Up) => self.tell(Event::HeartbeatMissed),
            (Op::Answer, Body::Up) => self.tell(Event::HeartbeatAnswered),
            _ => {}
        }
        // What is due now was launched; what is due later is what it waits for.
        assert!(self.model.due.is_none_or(|due| due > now), "not launched");
        let next = self.state.next_attempt().map(|at| at - self.zero);
        assert_eq!(
            next,
            self.model.due.map(Duration::from_millis),
            "next attempt"
        );
        assert_eq!(self.timer, self.state.timer());
    }

    async fn wait(&mut self, gap: u64) {
        let until = Instant::now() + Duration::from_millis(gap);
        while let Some(at) = self.timer.filter(|at| *at <= until) {
            tokio::time::sleep_until(at).await;
            self.timer = None;
            self.tell(Event::TimerFired);
        }
        tokio::time::sleep_until(until).await;
    }
}

#[test]
fn h10_backoff_is_the_models_on_paused_time() {
    let seen = Seen::default();
    let mut runner = TestRunner::new(Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&traces(), |(restart, trace)| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world = World {
                state: State::new(Rules { restart, misses: 3 }),
                body: Body::None,
                timer: None,
                model: Model {
                    policy: restart,
                    ends: Vec::new(),
                    steady: None,
                    missed: 0,
                    due: None,
                    again: false,
                },
                zero: Instant::now(),
                seen: &seen,
            };
            world.op(Op::Start);
            for (gap, op) in trace {
                world.wait(gap).await;
                world.op(op);
            }
            // What it waits for comes, on time.
            if world.state.next_attempt().is_some() {
                world.wait(300_000).await;
                assert_eq!(world.body, Body::Launching);
            }
        });
        Ok(())
    });
    result.unwrap();
    for (wait, count) in LADDER.iter().zip(&seen.waits) {
        assert!(count.get() > 100, "{wait:?} was seen {} times", count.get());
    }
    assert!(seen.recovered.get() > 100, "{}", seen.recovered.get());
    assert!(seen.launches.get() > 50_000, "{}", seen.launches.get());
}

// --- Whatever comes ------------------------------------------------------------------------------

/// Any event at all, also those that cannot be; how they relate to what there is is not looked at.
fn any_event() -> impl Strategy<Value = Event> {
    let events: Vec<_> = events().into_iter().map(|(_, event)| event).collect();
    prop::sample::select(events)
}

/// Whether an honest runner could say this.
fn honest(event: &Event, body: Body, lost: bool) -> bool {
    match event {
        Event::Ready => body == Body::Launching && !lost,
        Event::StartFailed { .. } => body == Body::Launching && !lost,
        Event::Exited { .. } => body != Body::None && !lost,
        Event::Stopped => body == Body::Dying,
        Event::HeartbeatMissed | Event::HeartbeatAnswered => body == Body::Up,
        Event::RuntimeBack { alive } => lost && *alive == (body != Body::None),
        _ => true,
    }
}

proptest! {
    #![proptest_config(Config { cases: 4_000, failure_persistence: None, ..Config::default() })]

    /// An honest runner and a dishonest world: whatever is asked for, and in whichever order ends come.
    #[test]
    fn never_two_at_once_and_never_stuck(
        policy in prop::sample::select(POLICIES.to_vec()),
        events in prop::collection::vec((0..90u64, any_event(), any::<bool>()), 1..200),
    ) {
        let (mut story, mut body, mut lost) = (Story::new(policy), Body::None, false);
        let (mut timer, mut saved, mut over) = (None, Last::ByHand, false);
        let mut rung = 0;
        for (gap, event, dies) in events {
            story.now += secs(gap);
            // Unseen: it goes while nobody answers for it.
            if lost && dies && matches!(story.state.phase(), Phase::Unknown { .. }) {
                body = Body::None;
            }
            if !honest(&event, body, lost) {
                continue;
            }
            let fired = event == Event::TimerFired;
            if fired {
                timer = None;
            }
            match &event {
                Event::Ready => body = Body::Up,
                Event::StartFailed { .. } | Event::Exited { .. } | Event::Stopped => body = Body::None,
                Event::RuntimeLost => lost = true,
                Event::RuntimeBack { .. } => lost = false,
                _ => {}
            }
            let actions = story.tell(event.clone());
            prop_assert!(!over || actions.is_empty(), "after the end: {:?}", actions);
            for action in actions {
                match action {
                    Action::Launch => {
                        prop_assert_eq!(body, Body::None, "two at once after {:?}", event);
                        body = Body::Launching;
                    }
                    Action::Attach => {
                        prop_assert_ne!(body, Body::None);
                        body = Body::Launching;
                    }
                    Action::Stop { .. } => body = Body::Dying,
                    Action::SetTimer { at } => timer = Some(at),
                    Action::CancelTimer => prop_assert!(timer.take().is_some(), "there was none"),
                    Action::Save(last) => saved = last,
                    Action::Record(Note::Backoff { rung: next, .. }) => {
                        prop_assert!(next == 1 || next == (rung + 1).min(5), "{} after {}", next, rung);
                        rung = next;
                    }
                    Action::Record(_) => {}
                    Action::End => {
                        prop_assert_eq!(body, Body::None);
                        over = true;
                    }
                }
            }
            let state = &story.state;
            prop_assert_eq!(timer, state.timer());
            prop_assert_eq!(saved, state.last());
            prop_assert_eq!(over, state.phase() == Phase::Over);
            if let Ladder::Ground(ends) = &state.ladder {
                prop_assert!(ends.len() <= AT_ONCE);
            }
            // In each state there is what the state says, or a timer, or somebody's wish that it be so.
            match state.phase() {
                Phase::Stopped | Phase::Failed | Phase::Over => {
                    prop_assert_eq!((body, timer), (Body::None, None));
                }
                Phase::Backoff { until } => prop_assert_eq!((body, timer), (Body::None, Some(until))),
                Phase::Starting if !lost => prop_assert_eq!((body, timer), (Body::Launching, None)),
                Phase::Running { .. } | Phase::Unresponsive => prop_assert_eq!(body, Body::Up),
                Phase::Restarting | Phase::Stopping => prop_assert_eq!(body, Body::Dying),
                // Launched while nobody answers; it will fail, or be lost as well.
                Phase::Starting | Phase::Unknown { .. } | Phase::Ending => prop_assert_eq!(timer, None),
            }
        }
    }
}
