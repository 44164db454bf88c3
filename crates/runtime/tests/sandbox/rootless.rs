//! The same without being root, as far as it goes.

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
