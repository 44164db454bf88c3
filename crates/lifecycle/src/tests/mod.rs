//! Tests of the table of all states and events, of the individual rules, and against models.

mod any;
mod model;
mod others;
mod rules;
mod table;

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

/// A registered server.
const fn registered(restart: RestartPolicy) -> Rules {
    Rules {
        restart,
        misses: 3,
        ..Rules::REGISTERED
    }
}

const fn exited(code: i32) -> Event {
    Event::Ended {
        cause: Cause::Exit(Exit {
            code: Some(code),
            signal: None,
            out_of_memory: false,
            fork_bomb: false,
        }),
        answered: true,
    }
}

fn killed() -> Event {
    Event::Ended {
        cause: Cause::Exit(Exit {
            signal: Some(9),
            out_of_memory: true,
            ..Exit::default()
        }),
        answered: true,
    }
}

fn start_failed() -> Event {
    Event::Ended {
        cause: Cause::Start("it hangs".to_owned()),
        answered: false,
    }
}

/// The end of an instance that had not responded since its launch.
fn mute() -> Event {
    match CRASH {
        Event::Ended { cause, .. } => Event::Ended {
            cause,
            answered: false,
        },
        other => other,
    }
}

fn refused(again: Option<u64>) -> Event {
    Event::Refused {
        why: "no image `x`".to_owned(),
        again: again.map(secs),
    }
}

/// The kinds of servers, by their names in the table.
fn kinds() -> [(&'static str, Rules); 8] {
    let owned = Rules {
        breaker: Some(::model::Breaker::default()),
        lazy: true,
        ..Rules::PROCESS
    };
    let lazy = Rules {
        lazy: true,
        ..Rules::PROCESS
    };
    // Jitter is off, so that the table is the same each time.
    let fixed = |rules| Rules {
        jitter: false,
        ..rules
    };
    let [always, unless_stopped, on_failure, no] = POLICIES.map(registered);
    [
        ("process", fixed(Rules::PROCESS)),
        ("URL", fixed(Rules::REMOTE)),
        ("lazy", fixed(lazy)),
        ("project", fixed(owned)),
        ("always", always),
        ("unless-stopped", unless_stopped),
        ("on-failure", on_failure),
        ("no", no),
    ]
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A state and a clock, for tests with several events.
struct Story {
    state: State,
    now: Instant,
}

impl Story {
    fn new(restart: RestartPolicy) -> Self {
        Self::of(registered(restart))
    }

    fn of(rules: Rules) -> Self {
        Self {
            state: State::new(rules, 7),
            now: Instant::now(),
        }
    }

    /// A story that begins after a caller needed the server.
    fn wanted(rules: Rules) -> Self {
        let mut story = Self::of(rules);
        story.tell(Event::Wanted);
        story
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

/// Returns all actions except [`Action::Save`].
fn deeds(mut actions: Vec<Action>) -> Vec<Action> {
    actions.retain(|action| !matches!(action, Action::Save(_)));
    actions
}
