//! Property tests with arbitrary events.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::model::Body;
use super::*;

/// Any event, including impossible ones, regardless of the current state.
fn any_event() -> impl Strategy<Value = Event> {
    let events: Vec<_> = table::events()
        .into_iter()
        .map(|(_, event)| event)
        .collect();
    prop::sample::select(events)
}

/// Returns whether a correct runner could send this event now.
fn honest(event: &Event, body: Body, lost: bool) -> bool {
    match event {
        Event::Ready => body == Body::Launching && !lost,
        Event::Refused { .. } => body == Body::Launching && !lost,
        Event::Ended { .. } => body != Body::None && !lost,
        Event::Stopped => body == Body::Dying,
        Event::HeartbeatMissed | Event::HeartbeatAnswered => body == Body::Up,
        Event::RuntimeBack { alive } => lost && *alive == (body != Body::None),
        _ => true,
    }
}

proptest! {
    #![proptest_config(Config { cases: 4_000, failure_persistence: None, ..Config::default() })]

    /// Runs a correct runner. Requests are arbitrary, and end events come in any order.
    #[test]
    fn never_two_at_once_and_never_stuck(
        rules in prop::sample::select(kinds().map(|(_, rules)| rules).to_vec()),
        events in prop::collection::vec((0..90u64, any_event(), any::<bool>()), 1..200),
    ) {
        let (mut story, mut body, mut lost) = (Story::of(rules), Body::None, false);
        let (mut timer, mut saved, mut over) = (None, None, false);
        let mut rung = 0;
        for (gap, event, dies) in events {
            story.now += secs(gap);
            // The instance may exit unnoticed while the runtime does not respond.
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
                Event::Refused { .. } | Event::Ended { .. } | Event::Stopped => body = Body::None,
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
                    Action::Save(now) => saved = Some(now),
                    Action::Record(Note::Backoff { rung: next, .. }) => {
                        prop_assert!(next == 1 || next == (rung + 1).min(rules.waits.len()), "{} after {}", next, rung);
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
            prop_assert_eq!(saved, state.saved);
            prop_assert_eq!(over, state.phase() == Phase::Over);
            prop_assert!(state.ladder.ends() <= rules.free.most);
            // Each state matches reality, or has a timer, or is explained by a request.
            match state.phase() {
                Phase::Idle | Phase::Stopped | Phase::Failed | Phase::Over => {
                    prop_assert_eq!((body, timer), (Body::None, None));
                }
                Phase::Backoff { until } | Phase::Unavailable { until } => {
                    prop_assert_eq!((body, timer), (Body::None, Some(until)));
                }
                Phase::Blocked { until } => prop_assert_eq!((body, timer), (Body::None, until)),
                Phase::Starting { .. } if !lost => prop_assert_eq!((body, timer), (Body::Launching, None)),
                Phase::Running { .. } | Phase::Unresponsive => prop_assert_eq!(body, Body::Up),
                Phase::Restarting | Phase::Stopping | Phase::Parting => prop_assert_eq!(body, Body::Dying),
                // The server was launched while the runtime does not respond. The launch will fail or be lost as well.
                Phase::Starting { .. } | Phase::Unknown { .. } | Phase::Ending => prop_assert_eq!(timer, None),
            }
        }
    }
}
