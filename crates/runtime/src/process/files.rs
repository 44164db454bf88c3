//! The limit for open files: raised for this process, unchanged for its children.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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

/// The limit for children. `None`: unchanged.
pub(super) fn given() -> Option<Rlimit> {
    ORIGINAL_LIMIT.get().copied()
}
