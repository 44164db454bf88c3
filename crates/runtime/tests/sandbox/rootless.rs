//! The sandbox as an ordinary user, with the protection that is possible, and without bubblewrap.

use std::process::{Command, Stdio};

use crate::support::VICTIM;

#[test]
fn without_root_it_isolates_and_says_what_it_cannot_limit() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(65_534), Some(65_534)).unwrap();
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let script = "read line; id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status; ls -A /; touch /x; cat /proc/net/dev | tail -n +3 | grep -c lo: ; echo x > /data/file && cat /data/file";
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            VICTIM,
            "rootless",
        ])
        .arg(&state)
        .arg(script)
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{complaints}");
    eprintln!("{text}");
    for expected in [
        "probe bubblewrap ",
        ", rootless, ",
        "usage 2\n",
        "out 65534\n",
        "out CapPrm:\t0000000000000000\n",
        "out CapEff:\t0000000000000000\n",
        "out NoNewPrivs:\t1\n",
        "out 1\nout x\n",
        "filesystem true ",
        "network true ",
        "privileges true ",
        "memory false ",
        "pids false ",
        "cpu false ",
        "disk false volumes are not limited: only root",
        "strict `",
        "exit exit code 0\n",
    ] {
        assert!(
            text.contains(expected),
            "{expected:?} is not in:\n{text}{complaints}"
        );
    }
    assert!(!text.contains("out root\n"), "{text}");
}

#[test]
fn a_missing_bubblewrap_says_how_to_get_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    // The script runs the command without bubblewrap in `/usr/bin`.
    let script = format!(
        "mkdir {at}/upper {at}/work {at}/state && mknod {at}/upper/bwrap c 0 0 && \
         mount -t overlay -o lowerdir=/usr/bin,upperdir={at}/upper,workdir={at}/work none /usr/bin && \
         exec {VICTIM} rootless {at}/state true"
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    for expected in [
        "probe failed: `bwrap` is not installed; `apt-get install bubblewrap`",
        "launch failed: `bwrap` is not installed; `apt-get install bubblewrap`",
    ] {
        assert!(text.contains(expected), "{text}{complaints}");
    }
}
