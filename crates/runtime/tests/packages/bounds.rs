//! Limits of an installation, and its preconditions.

use std::process::Command;

use crate::ground::{Ground, How, files};

#[test]
fn u03_an_installation_that_grows_too_large_is_ended() {
    let ground = Ground::new();
    let bytes = (("VICTIM_BYTES", "20000000"), "package_bytes");
    let count = (("VICTIM_FILES", "2000"), "package_files");
    for (by, package, (bound, setting)) in [
        ("npx", "large", bytes),
        ("npx", "many", count),
        ("uvx", "pylarge", bytes),
    ] {
        let how = How {
            env: &[bound],
            ..How::default()
        };
        let found = ground.install(package, &[by, package], how);
        let part = format!("`{package}` cannot be installed");
        let setting = format!("`{setting}` in [hosting]");
        for part in [&part, "more than", bound.1, &setting] {
            assert!(found.contains(part), "{part}: {found}");
        }
        let left = files(&ground.path(package).join("packages"));
        assert!(left.len() <= 3, "{left:?}");
        // The installation above fails because of the limit, not because of the package.
        let found = ground.install(package, &[by, package], How::default());
        assert!(found.starts_with("installed 1.0"), "{found}");
    }
}

#[test]
fn u03_without_bubblewrap_nothing_is_installed() {
    let ground = Ground::new();
    for (by, package) in [("npx", "plain"), ("uvx", "pyplain")] {
        let command = ground.command(package, &[by, package], How::default());
        let at = ground.path(&format!("{package}-view"));
        let at = at.display();
        // The script runs the command without bubblewrap in `/usr/bin`.
        let script = format!(
            "mkdir -p {at}/upper {at}/work && mknod {at}/upper/bwrap c 0 0 && \
             mount -t overlay -o lowerdir=/usr/bin,upperdir={at}/upper,workdir={at}/work none /usr/bin && exec \"$@\""
        );
        let mut hidden = Command::new("unshare");
        hidden.args(["--mount", "sh", "-c", &script, "sh"]);
        hidden.arg(command.get_program()).args(command.get_args());
        hidden.env_clear();
        hidden.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let output = hidden.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        for part in [
            "error packages are installed in a sandbox",
            "apt-get install bubblewrap",
        ] {
            assert!(text.contains(part), "{part}: {text}{complaints}");
        }
        let left = files(&ground.path(package).join("packages"));
        assert!(left.len() <= 3, "{left:?}");
    }
}
