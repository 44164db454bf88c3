//! The limit for open files: raised for this process, unchanged for its children.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// The limit with which this process was started, once it has been raised.
static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit for open files to the hard limit, and returns it. `None`: unlimited.
pub fn raise_file_limit() -> Option<u64> {
    let given = *ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit {
        current: given.maximum,
        ..given
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit for open files: {error}");
    }
    getrlimit(Resource::Nofile).current
}

/// Gives a child that runs this program again the limit with which this process was started.
pub fn restore_file_limit(child: u32) {
    let child = i32::try_from(child).ok().and_then(Pid::from_raw);
    if let (Some(child), Some(given)) = (child, given())
        && let Err(error) = prlimit(Some(child), Resource::Nofile, given)
    {
        tracing::warn!("cannot restore the limit for open files: {error}");
    }
}

/// The limit for children. `None`: unchanged.
pub(super) fn given() -> Option<Rlimit> {
    ORIGINAL_LIMIT.get().copied()
}
