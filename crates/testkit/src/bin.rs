//! Locates the workspace's binaries for tests of any crate.

use std::path::PathBuf;

/// A binary of this workspace, located in the target directory of the running test.
pub struct Bin;

impl Bin {
    /// Returns the path of the workspace binary `name`, for example `testkit-scripted`.
    ///
    /// Cargo builds a package's binaries only for that package's tests. A test of another package relies on the whole
    /// workspace having been built.
    ///
    /// # Panics
    /// If the binary was not built. The message gives the command that builds it.
    pub fn path(name: &str) -> PathBuf {
        let test = std::env::current_exe().expect("a running test has a path");
        // The test is target/<profile>/deps/<test>-<hash>, target/<profile>/examples/<name>, or a workspace binary in
        // target/<profile>.
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
