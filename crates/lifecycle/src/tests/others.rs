//! The rules of servers that are not registered.

use super::*;

/// A server that became ready before it exited is restarted at once, up to ten times a minute.
#[test]
fn u02_a_healthy_process_is_started_at_once() {
    let mut story = Story::wanted(Rules::PROCESS);
    for _ in 0..300 {
        story.tell(Event::Ready);
        assert_eq!(launches(&story.after(secs(7), CRASH)), 1);
        let phase = story.state.phase();
        assert_eq!(phase, Phase::Starting { patient: true });
    }
    for _ in 0..10 {
        story.tell(Event::Ready);
        story.tell(CRASH);
    }
    assert_eq!(story.word(), "backoff");
}

/// A server that became ready and ran longer than its last backoff is restarted at once when it exits.
#[test]
fn a_wait_is_forgiven() {
    let mut story = Story::wanted(Rules::PROCESS);
    for _ in 0..4 {
        story.tell(start_failed());
        let next = story.state.next_attempt().expect("it waits");
        assert!(next > story.now);
        story.now = next;
        assert_eq!(launches(&story.tell(Event::TimerFired)), 1);
        // Until it is ready, callers get the reason of the last failure.
        assert_eq!(story.state.phase(), Phase::Starting { patient: false });
    }
    story.tell(Event::Ready);
    assert_eq!(launches(&story.after(secs(5), CRASH)), 1);
    assert!(!story.state.ladder.is_rung());
}

/// A server that exits right after its first response is not restarted endlessly.
#[test]
fn a_process_that_keeps_ending_waits_longer_and_longer() {
    let mut story = Story::wanted(Rules::PROCESS);
    let start = story.now;
    let mut starts = 0;
    while story.now - start < secs(3600) {
        story.tell(Event::Ready);
        story.after(Duration::from_millis(100), CRASH);
        starts += 1;
        if let Some(next) = story.state.next_attempt() {
            story.now = next;
            story.tell(Event::TimerFired);
        }
    }
    assert!(starts < 100, "{starts}");
}

/// Half of each backoff is fixed and half is random. The random numbers come from the seed in the state.
#[test]
fn p07_waits_double_up_to_a_minute() {
    let waits = |seed| {
        let mut story = Story::of(Rules::REMOTE);
        story.state = State::new(Rules::REMOTE, seed);
        story.tell(Event::Wanted);
        let mut waits = Vec::new();
        for whole in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            story.tell(start_failed());
            let next = story.state.next_attempt().expect("it waits");
            let wait = (next - story.now).as_secs_f64();
            assert!((whole / 2.0..=whole).contains(&wait), "{wait} of {whole}");
            waits.push(wait);
            story.now = next;
            story.tell(Event::TimerFired);
        }
        waits
    };
    assert_eq!(waits(1), waits(1));
    assert_ne!(waits(1), waits(2));
}

#[test]
fn p07_a_connection_that_held_is_made_again_at_once() {
    let closed = || Event::Ended {
        cause: Cause::Closed("reset".to_owned()),
        answered: true,
    };
    let mut story = Story::wanted(Rules::REMOTE);
    story.tell(Event::Ready);
    assert_eq!(launches(&story.after(secs(2), closed())), 1);
    // Callers do not wait for the new connection.
    assert_eq!(story.state.phase(), Phase::Starting { patient: false });
    story.tell(Event::Ready);
    assert_eq!(launches(&story.after(secs(2), closed())), 0);
    assert_eq!(story.word(), "backoff");
}

#[test]
fn p12_three_starts_that_came_to_nothing() {
    let (_, rules) = kinds()[3];
    let mut story = Story::wanted(rules);
    for _ in 0..2 {
        assert_eq!(notes(&story.tell(start_failed())), ["crashed", "backoff"]);
        story.now = story.state.next_attempt().expect("it waits");
        story.tell(Event::TimerFired);
    }
    assert_eq!(
        notes(&story.tell(start_failed())),
        ["crashed", "unavailable"]
    );
    assert_eq!(story.state.next_attempt(), Some(story.now + secs(60)));
    assert_eq!(story.after(secs(59), Event::Wanted), []);
    assert_eq!(deeds(story.after(secs(1), Event::TimerFired)), []);
    assert_eq!(story.word(), "idle");
    // The next caller triggers an attempt. One more failure makes the server unavailable again.
    assert_eq!(launches(&story.tell(Event::Wanted)), 1);
    assert_eq!(
        notes(&story.tell(start_failed())),
        ["crashed", "unavailable"]
    );
    story.after(secs(60), Event::TimerFired);
    story.tell(Event::Wanted);
    story.tell(Event::Ready);
    assert_eq!(story.state.failures(), 0);
}

/// An obstacle to the start, such as a missing command, is reported once and does not count as a crash.
#[test]
fn u04_what_cannot_be_started_is_blocked() {
    for (_, rules) in kinds() {
        let mut story = Story::wanted(rules);
        assert_eq!(notes(&story.tell(refused(Some(60)))), ["blocked"]);
        for _ in 0..100 {
            let actions = story.after(secs(60), Event::TimerFired);
            assert_eq!(launches(&actions), 1);
            assert_eq!(notes(&story.tell(refused(Some(60)))), [""; 0]);
        }
        assert_eq!((story.word(), story.state.failures()), ("blocked", 0));
        assert_eq!(story.state.restarts(), 0);
        // The server starts without an order once the obstacle is gone.
        story.after(secs(60), Event::TimerFired);
        assert_eq!(notes(&story.tell(Event::Ready)), ["ready"]);
        // If the obstacle returns, it is reported again.
        story.tell(Event::RestartRequested);
        story.tell(Event::Stopped);
        assert_eq!(notes(&story.tell(refused(None))), ["blocked"]);
        assert_eq!(story.state.timer(), None);
        assert_eq!(launches(&story.tell(Event::StartRequested)), 1);
    }
}

#[test]
fn p10_nobody_uses_it() {
    let (_, lazy) = kinds()[2];
    let unused = || Event::Unused { grace: GRACE };
    let mut story = Story::wanted(lazy);
    story.tell(Event::Ready);
    assert_eq!(deeds(story.tell(unused())), [Action::Stop { grace: GRACE }]);
    assert_eq!(deeds(story.tell(Event::Stopped)), []);
    assert_eq!(story.word(), "idle");
    assert_eq!(launches(&story.tell(Event::Wanted)), 1);

    let mut busy = Story::wanted(Rules::PROCESS);
    busy.tell(Event::Ready);
    assert_eq!(busy.tell(unused()), []);
}
