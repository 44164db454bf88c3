//! The rules of registered servers.

use super::*;

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
            let saved = story.state.saved.expect("something was saved").last;
            assert_eq!(saved, story.state.last);
            assert_eq!(Last::from_word(saved.word()), Some(saved));
        }
    }
    assert_eq!(Last::from_word("registered"), None);
}

#[test]
fn h09_the_policies_are_dockers() {
    // `expect`: whether the server is restarted after code 0, another code, a signal, and a failed start.
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
            let expected = match (expect, crash) {
                (_, false) => vec!["exited"],
                (true, true) => vec!["crashed"],
                (false, true) => vec!["crashed", "failed"],
            };
            assert_eq!(notes(&actions), expected, "{event:?}");
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

/// The saved status is the current one. The state for the next start of the gateway is saved separately.
#[test]
fn h01_the_saved_status_is_the_current_one() {
    let mut story = Story::new(RestartPolicy::UnlessStopped);
    assert_eq!(story.state.status(), "registered");
    let grace = GRACE;
    for (event, status, last) in [
        (Event::Boot { last: Last::Up }, "starting", Last::Up),
        (Event::Ready, "ready", Last::Up),
        (Event::HeartbeatMissed, "ready", Last::Up),
        (Event::HeartbeatMissed, "ready", Last::Up),
        (Event::HeartbeatMissed, "unresponsive", Last::Up),
        (Event::HeartbeatAnswered, "ready", Last::Up),
        (Event::RuntimeLost, "unknown", Last::Up),
        (Event::RuntimeBack { alive: true }, "starting", Last::Up),
        (Event::StopRequested { grace }, "stopping", Last::ByHand),
        (Event::Stopped, "stopped", Last::ByHand),
        (Event::StartRequested, "starting", Last::Up),
        (Event::Ready, "ready", Last::Up),
        (Event::Shutdown { grace }, "stopping", Last::Up),
        (Event::Stopped, "stopped", Last::Up),
    ] {
        story.tell(event.clone());
        assert_eq!(story.state.saved, Some(Saved { status, last }), "{event:?}");
        assert_eq!(story.state.status(), status, "{event:?}");
    }
}

#[test]
fn h09_a_stop_by_hand_is_not_undone() {
    for policy in POLICIES {
        for end in [CLEAN, CRASH, killed(), Event::Stopped] {
            let mut story = Story::running(policy);
            let actions = story.tell(Event::StopRequested { grace: GRACE });
            let saved = Saved {
                status: "stopping",
                last: Last::ByHand,
            };
            assert_eq!(
                actions,
                [Action::Save(saved), Action::Stop { grace: GRACE }]
            );
            let actions = story.tell(end);
            assert_eq!(notes(&actions), ["stopped"]);
            assert_eq!(story.word(), "stopped");
            assert_eq!(story.after(secs(9999), Event::TimerFired), []);
        }
    }
}

#[test]
fn h10_more_than_three_crashes_in_a_minute() {
    let mut story = Story::running(RestartPolicy::Always);
    for _ in 0..3 {
        let actions = story.after(secs(20), CRASH);
        assert_eq!((notes(&actions), launches(&actions)), (vec!["crashed"], 1));
        assert!(!story.state.ladder.is_rung());
        story.tell(Event::Ready);
    }
    // The fourth end is 60 s after the first.
    for (index, wait) in [5, 15, 45, 120, 300, 300, 300].into_iter().enumerate() {
        let actions = story.after(secs(if index == 0 { 20 } else { 599 }), CRASH);
        assert_eq!(notes(&actions), ["crashed", "backoff"], "rung {index}");
        assert_eq!(launches(&actions), 0);
        assert_eq!(story.word(), "backoff");
        assert_eq!(story.state.next_attempt(), Some(story.now + secs(wait)));
        assert_eq!(story.state.ladder.rung(), Some(index.min(4)));
        let actions = story.after(secs(wait), Event::TimerFired);
        assert_eq!(deeds(actions), [Action::Launch]);
        story.tell(Event::Ready);
    }
    // Once the server has been stable, the waits start from the beginning, and the recovery is recorded.
    let actions = story.after(Rules::REGISTERED.stable, Event::TimerFired);
    assert_eq!(notes(&actions), ["recovered"]);
    assert!(!story.state.ladder.is_rung());
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
            deeds(story.after(secs(1), by_hand)),
            [Action::Launch, Action::CancelTimer]
        );
        assert_eq!(
            (story.state.ladder.rung(), story.state.restarts()),
            (None, 0)
        );
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
    assert_eq!(
        deeds(story.tell(shutdown())),
        [Action::Stop { grace: GRACE }]
    );
    assert_eq!(story.tell(Event::StartRequested), []);
    assert_eq!(deeds(story.tell(CRASH)), [Action::End]);
    assert_eq!(story.tell(Event::StartRequested), []);
    assert_eq!(
        story.state.last,
        Last::Up,
        "it starts with the product again"
    );

    let mut waiting = Story::running(RestartPolicy::Always);
    for _ in 0..4 {
        waiting.tell(CRASH);
    }
    assert_eq!(
        deeds(waiting.tell(shutdown())),
        [Action::End, Action::CancelTimer]
    );
}

#[test]
fn h12_a_restart_by_hand() {
    let mut story = Story::running(RestartPolicy::No);
    let grace = secs(10);
    assert_eq!(
        deeds(story.tell(Event::RestartRequested)),
        [Action::Stop { grace }]
    );
    assert_eq!(story.word(), "restarting");
    assert_eq!(deeds(story.tell(killed())), [Action::Launch]);
    assert_eq!(notes(&story.tell(Event::Ready)), ["ready"]);
}

#[test]
fn h15_a_server_that_does_not_answer() {
    let mut story = Story::running(RestartPolicy::Always);
    let [missed, answered] = [Event::HeartbeatMissed, Event::HeartbeatAnswered];
    for event in [&missed, &missed, &answered, &missed, &missed] {
        assert_eq!(story.tell(event.clone()), []);
    }
    let warning = Note::Unresponsive { missed: 3 };
    assert!(warning.is_warning());
    assert_eq!(
        deeds(story.tell(Event::HeartbeatMissed)),
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

    // The server is launched at once each time, since a lost instance is not its fault.
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
