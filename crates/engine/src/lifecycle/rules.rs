//! What servers differ in, as data.

use std::time::Duration;

use model::{Breaker, Declared, Origin, RestartPolicy, ServerSpec, Settings, StartPolicy};

/// The rules of one kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub restart: RestartPolicy,
    /// Heartbeats missed in a row after which it is unresponsive; 0 is taken as 1.
    pub misses: u32,
    pub free: Free,
    /// The waits after other ends, one after the other. The last one stays.
    pub waits: &'static [Duration],
    /// Whether a wait is cut by up to a half, so that many servers which fell together do not come back together.
    pub jitter: bool,
    /// Running without a break for this long is stable: the waits begin anew.
    pub stable: Duration,
    /// `None`: it is tried for ever.
    pub breaker: Option<Breaker>,
    /// Nobody but who needs it starts it, and it rests when nobody has for a while.
    pub lazy: bool,
    /// Callers wait for a start at once, and are not refused meanwhile.
    pub patient: bool,
}

/// Ends that are followed by a start at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// So many within [`Rules::WINDOW`].
    pub most: usize,
    pub earned: Earned,
}

/// Which ends are followed by a free restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earned {
    /// All of them, as long as there are few. A server that has waited once waits each time until it is stable.
    Always,
    /// The end of an instance that had answered since its launch.
    Answered,
    /// The end of a connection that held for this long.
    Held(Duration),
}

impl Earned {
    pub(super) fn by(self, held: Duration, answered: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Answered => answered,
            Self::Held(least) => held >= least,
        }
    }

    /// Whether who ran longer than it had waited, and has earned it, waits no more.
    pub(super) fn forgives(self) -> bool {
        self == Self::Answered
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

impl Rules {
    /// Ends within this time of each other count together.
    pub const WINDOW: Duration = secs(60);
    /// H10.
    pub const LADDER: &'static [Duration] = &[secs(5), secs(15), secs(45), secs(120), secs(300)];
    const DOUBLING: &'static [Duration] = &[
        Duration::from_millis(500),
        secs(1),
        secs(2),
        secs(4),
        secs(8),
        secs(16),
        secs(32),
        secs(60),
    ];

    /// A process that the configuration names.
    pub const PROCESS: Self = Self {
        restart: RestartPolicy::Always,
        misses: 1,
        free: Free {
            most: 10,
            earned: Earned::Answered,
        },
        waits: Self::DOUBLING,
        jitter: true,
        stable: secs(60),
        breaker: None,
        lazy: false,
        patient: true,
    };

    /// A server at a URL.
    pub const REMOTE: Self = Self {
        free: Free {
            most: 1,
            earned: Earned::Held(secs(1)),
        },
        patient: false,
        ..Self::PROCESS
    };

    /// One that was registered to be kept running.
    pub const REGISTERED: Self = Self {
        // H09
        free: Free {
            most: 3,
            earned: Earned::Always,
        },
        waits: Self::LADDER,
        jitter: false,
        stable: secs(600),
        ..Self::PROCESS
    };
}

impl Rules {
    /// What holds for a server.
    #[must_use]
    pub fn of(spec: &ServerSpec, settings: &Settings) -> Self {
        let rules = match (spec.declared, &spec.origin) {
            (Declared::Registered, _) => Self::REGISTERED,
            (_, Origin::Launch(launch)) if spec.restart.is_some() || launch.sandbox().is_some() => {
                Self::REGISTERED
            }
            (_, Origin::Launch(_)) => Self::PROCESS,
            (_, Origin::Remote(_)) => Self::REMOTE,
        };
        // A project's own is somebody else's: it is connected at its first use, and not tried for ever.
        let is_owned = spec.declared == Declared::Project;
        Self {
            restart: spec.restart.unwrap_or(rules.restart),
            misses: spec.heartbeat.map_or(1, |heartbeat| heartbeat.misses),
            breaker: is_owned.then(|| spec.breaker.unwrap_or(settings.breaker)),
            lazy: spec.lazy.unwrap_or(match spec.declared {
                Declared::File => settings.start == StartPolicy::Lazy,
                Declared::Registered => false,
                Declared::Project => true,
            }),
            ..rules
        }
    }
}
