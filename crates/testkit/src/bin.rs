//! Finding the workspace's binaries from a test of any of its crates.

use std::path::PathBuf;

/// A binary of this workspace, looked up in the target directory that the running test is in.
pub struct Bin;

impl Bin {
    /// The path of the workspace binary `name`, for example `testkit-scripted`.
    ///
    /// Cargo builds a package's binaries for that package's own tests only, so a test elsewhere
    /// relies on the workspace having been built.
    ///
    /// # Panics
    /// If it was not built, with the command that builds it.
    pub fn path(name: &str) -> PathBuf {
        let test = std::env::current_exe().expect("a running test has a path");
        // target/<profile>/deps/<test>-<hash>, target/<profile>/examples/<name>, or a binary of
        // the workspace itself in target/<profile>.
        let found = test
            .ancestors()
            .skip(1)
            .take(2)
            .map(|directory| directory.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
            .find(|candidate| candidate.is_file());
        found.unwrap_or_else(|| {
            panic!(
                "{name} is not built for {}; run: cargo build --workspace",
                test.display()
            )
        })
    }
}
