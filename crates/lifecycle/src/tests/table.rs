//! The table of all states and events.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::*;

/// A state for each section of the table.
fn phases(rules: Rules, now: Instant) -> Vec<(&'static str, State)> {
    let since = now - secs(1);
    let running = |missed| Phase::Running { since, missed };
    let until = now + secs(9);
    let none = Ladder::new(7);
    let ground = Ladder::fallen(rules.free.most, now - secs(2));
    let rung = Ladder::on(&rules, 1);
    let top = Ladder::on(&rules, rules.waits.len() - 1);
    let starting = Phase::Starting { patient: true };
    let of = |phase, ladder: &Ladder, last| {
        let mut state = State::new(rules, 7);
        (state.phase, state.ladder, state.last) = (phase, ladder.clone(), last);
        state.saved = state.to_save();
        state
    };
    let unknown = |goal| Phase::Unknown { goal };
    let stable = Phase::Running {
        since: now - rules.stable,
        missed: 0,
    };
    let up = Last::Up;
    let of_failed = |failures, phase| {
        let mut state = of(phase, &none, up);
        state.failures = failures;
        state
    };
    let told = |phase| {
        let mut state = of(phase, &none, up);
        state.told = Some("no image `x`".to_owned());
        state
    };
    let blocked = |until| told(Phase::Blocked { until });
    vec![
        ("idle", of(Phase::Idle, &none, Last::ByHand)),
        ("stopped", of(Phase::Stopped, &none, Last::ByHand)),
        ("failed", of(Phase::Failed, &none, Last::Failed)),
        ("starting", of(starting, &none, up)),
        ("starting, free restarts used up", of(starting, &ground, up)),
        ("starting, after two failed starts", of_failed(2, starting)),
        (
            "starting, after it was blocked",
            told(Phase::Starting { patient: false }),
        ),
        ("running, 2 heartbeats missed", of(running(2), &none, up)),
        (
            "running, not stable yet after the longest wait",
            of(running(0), &top, up),
        ),
        (
            "running, stable after the longest wait",
            of(stable, &top, up),
        ),
        ("unresponsive", of(Phase::Unresponsive, &none, up)),
        ("backoff, not over", of(Phase::Backoff { until }, &rung, up)),
        (
            "backoff, over",
            of(Phase::Backoff { until: now }, &rung, up),
        ),
        (
            "unavailable",
            of_failed(3, Phase::Unavailable { until: now }),
        ),
        ("blocked", blocked(None)),
        ("blocked, check due", blocked(Some(now))),
        ("restarting", of(Phase::Restarting, &none, up)),
        (
            "stopping, by hand",
            of(Phase::Stopping, &none, Last::ByHand),
        ),
        ("stopping, unused", of(Phase::Parting, &none, up)),
        ("unknown, to run", of(unknown(Goal::Run), &none, up)),
        (
            "unknown, to stop",
            of(unknown(Goal::Stop), &none, Last::ByHand),
        ),
        ("unknown, to be idle", of(unknown(Goal::Rest), &none, up)),
        ("unknown, to restart", of(unknown(Goal::Restart), &none, up)),
        ("stopping, on shutdown", of(Phase::Ending, &none, up)),
        ("stopped, after shutdown", of(Phase::Over, &none, up)),
    ]
}

pub(super) fn events() -> Vec<(&'static str, Event)> {
    use Event::{
        Boot, HeartbeatAnswered, HeartbeatMissed, Ready, RestartRequested, RuntimeBack,
        RuntimeLost, Shutdown, StartRequested, StopRequested, Stopped, TimerFired, Unused, Wanted,
    };
    let boot = |last| Boot { last };
    vec![
        ("boot, saved `ready`", boot(Last::Up)),
        ("boot, saved `stopped`", boot(Last::ByHand)),
        ("boot, saved `exited`", boot(Last::Finished)),
        ("boot, saved `failed`", boot(Last::Failed)),
        ("wanted", Wanted),
        ("start", StartRequested),
        ("stop", StopRequested { grace: GRACE }),
        ("restart", RestartRequested),
        ("unused", Unused { grace: GRACE }),
        ("ready", Ready),
        ("refused", refused(Some(60))),
        ("refused permanently", refused(None)),
        ("start failed", start_failed()),
        ("exited with 0", CLEAN),
        ("exited with 1", CRASH),
        ("exited with 1 before answering", mute()),
        ("killed by signal 9", killed()),
        ("stop complete", Stopped),
        ("heartbeat missed", HeartbeatMissed),
        ("heartbeat answered", HeartbeatAnswered),
        ("timer", TimerFired),
        ("runtime does not respond", RuntimeLost),
        (
            "runtime responds, server alive",
            RuntimeBack { alive: true },
        ),
        (
            "runtime responds, server gone",
            RuntimeBack { alive: false },
        ),
        ("shutdown", Shutdown { grace: GRACE }),
    ]
}

fn show(action: &Action, now: Instant) -> String {
    match action {
        Action::Launch => "launch".to_owned(),
        Action::Attach => "attach".to_owned(),
        Action::Stop { grace } => format!("stop within {} s", grace.as_secs()),
        Action::SetTimer { at } => format!("timer in {} s", (*at - now).as_secs_f32().round()),
        Action::CancelTimer => "no timer".to_owned(),
        Action::Save(Saved { status, last }) => {
            format!("save `{status}` (next boot: `{}`)", last.word())
        }
        Action::Record(note) if note.is_warning() => format!("**warn `{}`**", note.kind()),
        Action::Record(note) => format!("record `{}`", note.kind()),
        Action::End => "end".to_owned(),
    }
}

/// The outcome of an event, or `None` if nothing changes and there are no actions.
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
    let kinds = kinds();
    let by_kind = kinds.map(|(_, rules)| phases(rules, now));
    for (index, (name, _)) in by_kind[0].iter().enumerate() {
        let mut ignored = Vec::new();
        let mut lines = String::new();
        for (event_name, event) in events() {
            let mut outcomes: Vec<(Option<String>, Vec<&str>)> = Vec::new();
            for ((kind, _), phases) in kinds.iter().zip(&by_kind) {
                let found = outcome(&phases[index].1, &event, now);
                match outcomes.iter_mut().find(|(outcome, _)| *outcome == found) {
                    Some((_, kinds)) => kinds.push(kind),
                    None => outcomes.push((found, vec![kind])),
                }
            }
            let one = outcomes.len() == 1;
            for (outcome, kinds) in outcomes {
                let kinds = if one {
                    String::new()
                } else {
                    format!(" ({})", kinds.join(", "))
                };
                match outcome {
                    Some(outcome) => {
                        writeln!(lines, "| {event_name}{kinds} | {outcome} |").unwrap();
                    }
                    None => ignored.push(format!("{event_name}{kinds}")),
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
    let (found, written) = (table(), include_str!("../table.md"));
    if found != written && std::env::var_os("WRITE_TABLE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/table.md");
        std::fs::write(path, &found).unwrap();
    }
    assert!(
        found == written,
        "lifecycle/table.md differs from this (WRITE_TABLE=1 writes it):\n{found}"
    );
}

#[test]
fn every_state_of_the_table_is_every_state() {
    let now = Instant::now() + secs(10_000);
    let mut seen = BTreeMap::new();
    for (_, state) in phases(Rules::PROCESS, now) {
        // A new state or event does not compile until it is added to the table.
        let number = match state.phase {
            Phase::Idle => 0,
            Phase::Stopped => 1,
            Phase::Failed => 2,
            Phase::Starting { patient: true } => 3,
            Phase::Starting { patient: false } => 4,
            Phase::Running { .. } => 5,
            Phase::Unresponsive => 6,
            Phase::Backoff { .. } => 7,
            Phase::Unavailable { .. } => 8,
            Phase::Blocked { until: None } => 9,
            Phase::Blocked { until: Some(_) } => 10,
            Phase::Restarting => 11,
            Phase::Stopping => 12,
            Phase::Parting => 13,
            Phase::Unknown { goal: Goal::Run } => 14,
            Phase::Unknown { goal: Goal::Stop } => 15,
            Phase::Unknown { goal: Goal::Rest } => 16,
            Phase::Unknown {
                goal: Goal::Restart,
            } => 17,
            Phase::Ending => 18,
            Phase::Over => 19,
        };
        seen.insert(number, ());
    }
    assert_eq!(seen.len(), 20);
    let mut seen = BTreeMap::new();
    for (_, event) in events() {
        let number = match event {
            Event::Boot { .. } => 0,
            Event::Wanted => 1,
            Event::StartRequested => 2,
            Event::StopRequested { .. } => 3,
            Event::RestartRequested => 4,
            Event::Unused { .. } => 5,
            Event::Ready => 6,
            Event::Ended { .. } => 7,
            Event::Refused { .. } => 8,
            Event::Stopped => 9,
            Event::HeartbeatMissed => 10,
            Event::HeartbeatAnswered => 11,
            Event::TimerFired => 12,
            Event::RuntimeLost => 13,
            Event::RuntimeBack { .. } => 14,
            Event::Shutdown { .. } => 15,
        };
        seen.insert(number, ());
    }
    assert_eq!(seen.len(), 16);
}
