//! Nothing of a server is left, however the server ends.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use runtime::Runtime as _;
use tokio::time::{Instant, timeout};

use crate::ground::{Ground, bubblewrap, options, read, running, say, sh, with_data};
use crate::support::{TEST_TIMEOUT, VICTIM, children, descriptors, marked, wait_for};
use testkit::{in_time, soak};

/// Leaves daemons behind in new sessions, one without the marker.
const DAEMONS_SCRIPT: &str = "setsid sleep 1000 & setsid env -i /bin/sleep 1000 & setsid setsid sh -c 'trap \"\" TERM; sleep 1000; :' & sleep 1000 &";

#[tokio::test]
async fn a_stop_lets_it_save_its_data() {
    let ground = Ground::new();
    let mut server = with_data(
        "trap 'echo saved > /data/file; exit 5' TERM; echo up; while :; do sleep 0.05; done",
    );
    let instance = ground.up(server.clone()).await;
    let exit = instance.handle.stop(TEST_TIMEOUT).await;
    assert_eq!(exit.code, Some(5), "{exit}");
    server.program = sh("cat /data/file").program;
    assert_eq!(ground.run(server).await.0, "saved\n");
}

#[tokio::test]
async fn one_that_does_not_listen_is_killed_after_its_grace() {
    let ground = Ground::new();
    let instance = ground
        .up(sh("trap '' TERM; echo up; while :; do sleep 0.05; done"))
        .await;
    let begun = Instant::now();
    let exit = instance.handle.stop(Duration::from_millis(300)).await;
    assert_eq!(exit.signal, Some(9), "{exit}");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn daemons_end_with_the_server() {
    let ground = Ground::new();
    for end in ["exit 4", "read line; exit 4"] {
        let mut instance = ground
            .up(sh(&format!("{DAEMONS_SCRIPT} echo up; {end}")))
            .await;
        let pids = groups(&ground);
        if end.starts_with("read") {
            assert!(pids.len() >= 6, "{pids:?}");
            say(&mut instance, "end\n").await;
        }
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        assert_eq!(exit.code, Some(4));
        assert_eq!(ground.left(), [] as [PathBuf; 0]);
        assert_eq!(marked(ground.spawner.run_id()), [] as [u32; 0]);
        for pid in pids {
            assert!(!crate::support::alive(pid), "{pid} survived");
        }
    }
}

#[tokio::test]
async fn what_is_dropped_is_gone() {
    let ground = Ground::new();
    for _ in 0..3 {
        let instance = ground
            .up(sh(&format!("{DAEMONS_SCRIPT} echo up; wait")))
            .await;
        drop(instance);
        wait_for("its end", || ground.left().is_empty()).await;
    }
    // A cancelled launch leaves nothing.
    for millis in [0, 5, 10, 20, 40, 80] {
        let launch = ground.launch(sh("sleep 1000"));
        let _ = timeout(Duration::from_millis(millis), launch).await;
        wait_for("its end", || ground.left().is_empty()).await;
    }
}

/// Runs ten thousand servers in `cargo xtask soak`, otherwise 80.
#[tokio::test]
async fn many_leave_no_zombie_no_descriptor_and_no_group() {
    let ground = Ground::new();
    ground.run(sh("true")).await;
    let (before, own) = (descriptors(), children().len());
    let most = if soak() { 10_000 } else { 80 };
    for _ in 0..most / 8 {
        let runs = (0..8).map(|number| {
            let mut server = sh("cat /etc/passwd | wc -l");
            server.sandbox.id = format!("server-{number}");
            ground.run(server)
        });
        for (text, _) in futures_util::future::join_all(runs).await {
            assert_eq!(text, "3\n");
        }
    }
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
    wait_for("descriptors to be closed", || descriptors() <= before).await;
    wait_for("every child to be reaped", || children().len() <= own).await;
    let after = descriptors();
    eprintln!("churn: {after} descriptors after {most} sandboxes (bound {before})");
}

#[tokio::test]
async fn kill_9_of_the_host_leaves_nothing_that_runs_and_a_sweep_the_rest() {
    let other = Ground::new();
    let mut stranger = other.up(sh("echo up; read line")).await;

    let ground = Ground::new();
    let mut host = Command::new(VICTIM)
        .args([
            "sandbox",
            &ground.install,
            ground.directory.path().to_str().unwrap(),
            "3",
            DAEMONS_SCRIPT,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(host.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let run = lines.next().unwrap();
    let run = run.strip_prefix("run ").unwrap();
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let pids = groups(&ground);
    assert!(pids.len() >= 3 * 6, "{pids:?}");
    let killed = Instant::now();
    host.kill().unwrap();
    host.wait().unwrap();
    wait_for("the servers to die", || {
        !pids.iter().any(|&pid| crate::support::alive(pid))
    })
    .await;
    eprintln!("{} processes gone after {:?}", pids.len(), killed.elapsed());
    assert_eq!(marked(run), [] as [u32; 0]);
    assert!(
        !ground.left().is_empty(),
        "no process is left to remove groups and mounts"
    );

    let mine = ground.run_kept().await;
    assert_eq!(ground.sandbox.sweep().await.unwrap(), 3);
    let left = ground.left();
    assert!(
        !left.is_empty()
            && left
                .iter()
                .all(|path| path.to_str().unwrap().contains("/kept.")),
        "{left:?}"
    );
    assert_eq!(mine.handle.exit_status(), None);
    assert_eq!(ground.sandbox.sweep().await.unwrap(), 0);
    mine.handle.kill_now();
    in_time(TEST_TIMEOUT, mine.handle.exited()).await;
    assert_eq!(ground.left(), [] as [PathBuf; 0]);

    assert_eq!(
        stranger.handle.exit_status(),
        None,
        "another installation must not be swept"
    );
    say(&mut stranger, "end\n").await;
    assert!(
        in_time(TEST_TIMEOUT, stranger.handle.exited())
            .await
            .success()
    );
}

impl Ground {
    async fn run_kept(&self) -> runtime::Instance {
        let mut kept = sh("echo up; read line");
        kept.sandbox.id = "kept".into();
        self.up(kept).await
    }
}

/// Lists the processes in this installation's control groups.
fn groups(ground: &Ground) -> Vec<u32> {
    let mut pids: Vec<u32> = ground
        .left()
        .iter()
        .filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// As in an upgrade, the file of the running program is gone.
#[tokio::test]
async fn a_program_that_was_replaced_starts_servers_all_the_same() {
    let ground = Ground::new();
    let copy = ground.directory.path().join("copy");
    fs::copy(VICTIM, &copy).unwrap();
    let program = fs::File::open(&copy).unwrap();
    fs::remove_file(&copy).unwrap();
    let mut options = options(&ground.install, ground.directory.path());
    options.shim.program = format!("/proc/self/fd/{}", program.as_raw_fd()).into();
    let sandbox = bubblewrap(&ground.spawner, options);
    for _ in 0..2 {
        let unit = running("/bin/sh", &["-c", "echo up"]).unit();
        let mut instance = in_time(TEST_TIMEOUT, sandbox.launch(unit)).await.unwrap();
        assert_eq!(read(&mut instance).await, "up\n");
        in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    }
    // The next run does not need the copy.
    let copies = || {
        let state = fs::read_dir(ground.directory.path().join("state")).unwrap();
        let names = state.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_str().unwrap().starts_with("shim."))
            .count()
    };
    assert_eq!(copies(), 1);
    let next = Ground::at(ground.install.clone(), tempfile::tempdir().unwrap());
    let options = crate::ground::options(&ground.install, ground.directory.path());
    bubblewrap(&next.spawner, options).sweep().await.unwrap();
    assert_eq!(copies(), 0);
}
