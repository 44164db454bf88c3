//! The clock of a run, and its peak of memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::limits::Limits;
use crate::outcome::{Failure, FailureKind};

/// The most memory that this process has used so far. It is opened while the process can still open files.
pub(super) struct Peak(File);

impl Peak {
    pub(super) fn open() -> io::Result<Self> {
        File::open("/proc/self/status").map(Self)
    }

    /// In bytes. Can be read once.
    pub(super) fn read(&self) -> Option<u64> {
        let mut text = [0; 4096];
        let size = (&self.0).read(&mut text).ok()?;
        let text = std::str::from_utf8(text.get(..size)?).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line?.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
        Some(number << 10)
    }
}

/// The longest wait while the clock stands still. Its end has no effect.
const STANDSTILL: Duration = Duration::from_secs(3600);

pub(super) struct Watch {
    wall_limit: Duration,
    cpu_limit: Duration,
    /// The readings of the clocks at which the limits are reached. The clock of the wall may stand still.
    wall_end: Cell<Option<Duration>>,
    cpu_end: Duration,
    expired: Cell<Option<Expired>>,
}

#[derive(Clone, Copy)]
enum Expired {
    Wall,
    Cpu,
}

impl Watch {
    pub(super) fn start(limits: &Limits) -> Self {
        Self {
            wall_limit: limits.wall,
            cpu_limit: limits.cpu,
            wall_end: Cell::new(Some(
                reading(ClockId::Monotonic).saturating_add(limits.wall),
            )),
            cpu_end: reading(ClockId::ProcessCPUTime).saturating_add(limits.cpu),
            expired: Cell::new(None),
        }
    }

    /// Returns whether a limit is or was exceeded.
    pub(super) fn has_expired(&self) -> bool {
        if self.expired.get().is_none() {
            if reading(ClockId::ProcessCPUTime) >= self.cpu_end {
                self.expired.set(Some(Expired::Cpu));
            } else if self.left().is_zero() {
                self.expired.set(Some(Expired::Wall));
            }
        }
        self.expired.get().is_some()
    }

    /// Sets the time that is left, or stops the run's clock.
    pub(super) fn set_left(&self, left: Option<Duration>) {
        let now = reading(ClockId::Monotonic);
        self.wall_end.set(left.map(|left| now.saturating_add(left)));
    }

    /// The time until the run's clock has to be read again.
    pub(super) fn left(&self) -> Duration {
        match self.wall_end.get() {
            Some(end) => end.saturating_sub(reading(ClockId::Monotonic)),
            None => STANDSTILL,
        }
    }

    /// The limit that was exceeded.
    pub(super) fn failure(&self) -> Option<Failure> {
        let message = match self.expired.get()? {
            Expired::Wall => format!(
                "the run took longer than {} s",
                self.wall_limit.as_secs_f64()
            ),
            Expired::Cpu => format!(
                "the code used more than {} s of processor time",
                self.cpu_limit.as_secs_f64()
            ),
        };
        Some(Failure::new(FailureKind::Time, message))
    }
}

fn reading(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}
