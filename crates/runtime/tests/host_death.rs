//! No process outlives the host, however the host ends.

#![expect(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{VICTIM, alive, children, kill, marked, sh, spawner, up, wait_for};
use tokio::time::Instant;

struct Host {
    child: Child,
    stdout: BufReader<ChildStdout>,
    run: String,
}

impl Host {
    fn start(args: &[&str]) -> Self {
        Self::run(Command::new(VICTIM), args)
    }

    /// A host with its own session, like a service.
    fn in_session(args: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        command.arg(VICTIM);
        Self::run(command, args)
    }

    fn run(mut command: Command, args: &[&str]) -> Self {
        let mut child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let run = line(&mut stdout);
        let run = run.strip_prefix("run ").unwrap().to_owned();
        Self { child, stdout, run }
    }

    fn ready(&mut self) {
        assert_eq!(line(&mut self.stdout), "ready");
    }

    async fn gone(mut self, what: &str) -> ExitStatus {
        let status = self.child.wait().unwrap();
        let run = self.run;
        wait_for(what, || marked(&run).is_empty()).await;
        status
    }
}

fn line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[tokio::test]
async fn kill_9_of_the_host_leaves_nothing() {
    for _ in 0..5 {
        let mut host = Host::start(&["host", "20"]);
        host.ready();
        // A family has at least five processes.
        assert!(marked(&host.run).len() >= 100);
        let killed = Instant::now();
        host.child.kill().unwrap();
        host.gone("the families to die").await;
        eprintln!("100 and more processes gone after {:?}", killed.elapsed());
    }
}

/// Programs that keep the processors busy, each in its own session.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Self {
        let burn = |_| {
            Command::new("setsid")
                .args(["sh", "-c", "while :; do :; done"])
                .spawn()
        };
        Self((0..count).map(|n| burn(n).unwrap()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// The sentinel and the processes that it kills do not wait for their share of a busy processor.
#[tokio::test]
async fn orphans_are_gone_within_half_a_second_on_a_busy_machine() {
    let mut hosts = [(); 3].map(|()| Host::in_session(&["host", "4"]));
    hosts.iter_mut().for_each(Host::ready);
    let _busy = Busy::start(30);
    // The sentinel is measured, not the wait of this process for the processor.
    rustix::process::setpriority_process(None, -20).unwrap();
    let _ = std::fs::write("/proc/self/autogroup", "-20");
    for mut host in hosts {
        let killed = Instant::now();
        host.child.kill().unwrap();
        host.gone("the families to die").await;
        let took = killed.elapsed();
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}

/// `docker run` stops its container on SIGTERM only.
#[tokio::test]
async fn container_clients_can_stop_their_containers() {
    let dir = tempfile::tempdir().unwrap();
    // The shell reports the end of `sleep` on its stderr, which is closed by then.
    let client = |name: &str, on_sigterm: &str| {
        let path = dir.path().join(name);
        let script = format!(
            "#!/bin/sh\ntrap '' PIPE\ntrap '{on_sigterm}' TERM\necho up\nwhile :; do sleep 0.02; done\n"
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let stopped = |name: &str| dir.path().join(format!("{name}.stopped"));
    let stop = "echo > \"$0.stopped\"; exit";
    let clients = [
        client("docker", stop),
        client("podman", ""),
        client("other", stop),
    ];
    let [one, two, three] = clients.each_ref().map(String::as_str);
    let mut host = Host::start(&["programs", one, two, three]);
    host.ready();
    host.child.kill().unwrap();
    host.gone("the clients to end").await;
    assert!(stopped("docker").exists(), "it got SIGTERM");
    assert!(!stopped("other").exists(), "other programs get SIGKILL");
}

#[tokio::test]
async fn kill_9_in_the_middle_of_launches_leaves_nothing() {
    for round in 0..20 {
        let mut host = Host::start(&["storm"]);
        // Half of the rounds may end before the first launch. The other half must not.
        if round % 2 == 1 {
            wait_for("a launch", || !marked(&host.run).is_empty()).await;
        }
        tokio::time::sleep(Duration::from_millis(7 * round)).await;
        host.child.kill().unwrap();
        host.gone("the storm to end").await;
    }
}

#[tokio::test]
async fn a_host_that_just_exits_leaves_nothing() {
    let mut host = Host::start(&["exit", "3"]);
    // Waits until the host reports that all families are running.
    host.ready();
    let status = host.gone("the families to die").await;
    assert_eq!(status.code(), Some(3), "{status}");
}

#[tokio::test]
async fn a_dead_sentinel_is_replaced_and_knows_the_living() {
    let mut host = Host::start(&["host", "3"]);
    host.ready();
    let sentinel = sentinel_of(host.child.id()).unwrap();
    kill(sentinel, Signal::KILL);
    let host_id = host.child.id();
    wait_for("another sentinel", || {
        sentinel_of(host_id).is_some_and(|pid| pid != sentinel)
    })
    .await;
    assert!(
        marked(&host.run).len() >= 15,
        "the death of a sentinel kills no other process"
    );
    host.child.kill().unwrap();
    host.gone("the families to die").await;
}

#[tokio::test]
async fn a_sentinel_that_hangs_is_replaced_in_time() {
    let spawner = spawner();
    let first = sentinel_of(std::process::id()).unwrap();
    kill(first, Signal::STOP);
    // Each launch and each exit sends a line, until the socket is full.
    for _ in 0..2000 {
        let instance = spawner.spawn(sh("exit 4")).await.unwrap();
        assert_eq!(instance.handle.exited().await.code, Some(4));
        if !alive(first) {
            break;
        }
    }
    wait_for("another sentinel", || {
        sentinel_of(std::process::id()).is_some_and(|pid| pid != first)
    })
    .await;
    let instance = spawner.spawn(sh("exit 4")).await.unwrap();
    assert_eq!(instance.handle.exited().await.code, Some(4));
}

#[tokio::test]
async fn a_sentinel_is_deaf_and_alone() {
    let spawner = spawner();
    let sentinel = sentinel_of(std::process::id()).unwrap();
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::PIPE,
        Signal::USR1,
    ] {
        kill(sentinel, signal);
    }
    let instance = up(&spawner, "echo up; read line").await;
    assert_eq!(sentinel_of(std::process::id()), Some(sentinel));
    assert_eq!(
        std::fs::read(format!("/proc/{sentinel}/environ")).unwrap(),
        b""
    );
    drop(instance);
    drop(spawner);
    wait_for("the sentinel to end and be reaped", || {
        !alive(sentinel) && children().is_empty()
    })
    .await;
}

#[test]
fn a_sentinel_is_not_started_by_hand() {
    let output = Command::new(VICTIM)
        .arg("sentinel")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("sentinel: "), "{text}");
}

#[test]
fn a_program_that_is_no_sentinel_is_refused() {
    for program in ["/bin/true", "/nonexistent"] {
        let error = runtime::process::Spawner::new(runtime::process::SentinelCommand {
            program: program.into(),
            args: Vec::new(),
        })
        .unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(program), "{source}");
    }
}

#[test]
fn an_ignored_sigchld_does_not_matter() {
    let script = "import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])";
    let output = Command::new("python3")
        .args(["-c", script, VICTIM, "code"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("\nexit code 7\n"), "{text}");
}

fn sentinel_of(host: u32) -> Option<u32> {
    support::numbers().find(|&pid| {
        support::state(pid).is_some_and(|(state, parent)| parent == host && state != 'Z')
            && std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(b"toolwharf-sentinel\0"))
    })
}
