//! The differences between kinds of servers, as data.

use std::time::Duration;

use model::{Breaker, Declared, Origin, RestartPolicy, ServerSpec, Settings, StartPolicy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub restart: RestartPolicy,
    /// Heartbeats missed in a row before the server counts as unresponsive. 0 counts as 1.
    pub misses: u32,
    pub free: Free,
    /// The waits before restarts that are not immediate, in order. The last one repeats.
    pub waits: &'static [Duration],
    /// True if each wait is shortened by up to half, so that servers that crashed together do not restart together.
    pub jitter: bool,
    /// Once the server has run this long without interruption, it counts as stable, and the waits start from the
    /// beginning.
    pub stable: Duration,
    /// `None`: there is no limit for failed starts.
    pub breaker: Option<Breaker>,
    /// True if the server is started only on demand, and stopped when unused.
    pub lazy: bool,
    /// True if callers wait during an immediate restart. Otherwise they are refused.
    pub patient: bool,
}

/// Free restarts: ends that are followed by an immediate restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Maximum number within [`Rules::RESTART_WINDOW`].
    pub most: usize,
    pub earned: Earned,
}

/// The ends that are followed by a free restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earned {
    /// All ends, up to the maximum. Once a server has had to wait, all its restarts wait until it is stable again.
    Always,
    /// The end of an instance that had responded since its launch.
    Answered,
    /// The end of a connection that lasted at least this long.
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

    /// Returns whether a server that ran longer than its last wait is restarted immediately again.
    pub(super) fn forgives(self) -> bool {
        self == Self::Answered
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

impl Rules {
    /// Ends within this time of each other are counted together.
    pub const RESTART_WINDOW: Duration = secs(60);
    /// Waits of registered servers (H10).
    pub const REGISTERED_WAITS: &'static [Duration] =
        &[secs(5), secs(15), secs(45), secs(120), secs(300)];
    const DOUBLING_WAITS: &'static [Duration] = &[
        Duration::from_millis(500),
        secs(1),
        secs(2),
        secs(4),
        secs(8),
        secs(16),
        secs(32),
        secs(60),
    ];

    /// A command of the configuration file or of a project that runs on the host and has no `restart`.
    pub const PROCESS: Self = Self {
        restart: RestartPolicy::Always,
        misses: 1,
        free: Free {
            most: 10,
            earned: Earned::Answered,
        },
        waits: Self::DOUBLING_WAITS,
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

    /// A registered server, which is kept running.
    pub const REGISTERED: Self = Self {
        // H09 allows three immediate restarts.
        free: Free {
            most: 3,
            earned: Earned::Always,
        },
        waits: Self::REGISTERED_WAITS,
        jitter: false,
        stable: secs(600),
        ..Self::PROCESS
    };
}

impl Rules {
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
        // A server declared by a project belongs to a user. So it is started at its first use, and attempts are
        // limited.
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
