//! The limit of open files: as high as it can be for us, as it was for children.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was started with, once it has raised its own.
static GIVEN: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of open files to the hard one; says what it is then, `None` if there is none.
pub fn raise_file_limit() -> Option<u64> {
    let given = *GIVEN.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit {
        current: given.maximum,
        ..given
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
    getrlimit(Resource::Nofile).current
}

/// What children get; `None`: nothing was changed.
pub(super) fn given() -> Option<Rlimit> {
    GIVEN.get().copied()
}
