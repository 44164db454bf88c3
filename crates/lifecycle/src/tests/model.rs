//! Compares the backoff with a model, on a paused clock.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Ready,
    /// The instance ends, whatever it is doing.
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

/// Operations, each after a delay in milliseconds.
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

/// The state of the server's instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Body {
    None,
    Launching,
    Up,
    Dying,
}

/// A second implementation of the rules, based on a list of all ends. Times in milliseconds.
struct Model {
    policy: RestartPolicy,
    /// All ends since the last reset.
    ends: Vec<u64>,
    /// Since when the server has been running and responding.
    steady: Option<u64>,
    missed: u32,
    /// When the server is due to be launched.
    due: Option<u64>,
    /// True if the server is launched once the current instance is gone.
    again: bool,
}

impl Model {
    /// The wait after the last of these ends.
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

    /// Ends the steady time. If it was long enough, the recorded ends are forgotten.
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

/// Counts what the traces have covered, so that the test cannot pass without testing anything.
#[derive(Default)]
struct Seen {
    waits: [Cell<u32>; 5],
    recovered: Cell<u32>,
    launches: Cell<u32>,
}

/// Runs the code on tokio's clock and timers, in parallel with the model.
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
                Action::Record(Note::Backoff { rung, wait, .. }) => {
                    assert_eq!(wait, Rules::REGISTERED_WAITS[rung - 1]);
                    self.seen.waits[rung - 1].update(|count| count + 1);
                }
                Action::Record(Note::Recovered { .. }) => {
                    self.seen.recovered.update(|count| count + 1)
                }
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
        // A server that is due now has been launched. For a later launch, a timer is set.
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
                state: State::new(registered(restart), 7),
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
            // A pending launch happens on time.
            if world.state.next_attempt().is_some() {
                world.wait(300_000).await;
                assert_eq!(world.body, Body::Launching);
            }
        });
        Ok(())
    });
    result.unwrap();
    for (wait, count) in Rules::REGISTERED_WAITS.iter().zip(&seen.waits) {
        assert!(count.get() > 100, "{wait:?} was seen {} times", count.get());
    }
    assert!(seen.recovered.get() > 100, "{}", seen.recovered.get());
    let launches = seen.launches.get();
    eprintln!(
        "crash-traces: 10000 traces with {launches} launches agree with the model (bound: all)"
    );
    assert!(launches > 50_000, "{launches}");
}
