//! Faults of nodes, daemons and services: nothing runs twice, and no instance is lost.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use runtime::{Error, Instance, Runtime as _};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{in_time, soak};
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

use crate::server::Server;
use crate::support::{
    Bench, GRACE, LOST_NODE, TEST_TIMEOUT, bench, docker, node, read_until, running, socket, stdio,
    unavailable, wait_for, with,
};

/// A server that echoes lines. `mark` identifies its process on this machine, whichever node it runs on.
pub(crate) fn echo(mark: &str) -> Server {
    marked("while read line; do echo \"$line\"; done", mark)
}

/// A shell script whose process has this mark.
pub(crate) fn marked(script: &str, mark: &str) -> Server {
    running(&["/bin/sh", "-c", script, mark])
}

pub(crate) fn processes(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let has_mark = |pid: &String| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == mark.as_bytes())
    };
    names.filter(has_mark).collect()
}

pub(crate) fn mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

pub(crate) async fn answers(instance: &mut Instance, line: &str) {
    let line = format!("{line}\n");
    stdio(instance)
        .stdin
        .write_all(line.as_bytes())
        .await
        .expect("it listens");
    read_until(instance, &line).await;
}

pub(crate) async fn ended(instance: Instance) -> Duration {
    let begun = Instant::now();
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    begun.elapsed()
}

#[tokio::test]
async fn what_others_start_is_a_gate_and_no_server() {
    let bench = bench("others", "linux");
    let mark = mark("others");
    let mut instance = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut instance, "one").await;
    let first = bench.containers();
    let two = format!("{}=2", bench.service());
    docker(1, &["service", "scale", "--detach", &two]);
    wait_for("there is a second container", || {
        bench.containers().len() == 2
    })
    .await;
    answers(&mut instance, "two").await;
    assert_eq!(processes(&mark).len(), 1);
    if soak() {
        // The gate receives nothing for a minute.
        let mut all = bench.containers().into_iter();
        let (number, gate) = all.find(|one| !first.contains(one)).expect("a gate");
        let code = spawn_blocking(move || docker(number, &["wait", &gate])).await;
        assert_eq!(code.expect("it ends").trim(), "125");
        answers(&mut instance, "two and a half").await;
    }
    // Swarm ends the task and starts another one.
    docker(
        1,
        &["service", "update", "--detach", "--force", &bench.service()],
    );
    ended(instance).await;
    assert_eq!(processes(&mark).len(), 0);
    let mut instance = bench.launch(echo(&mark)).await.expect("it starts again");
    answers(&mut instance, "three").await;
    assert_eq!(processes(&mark).len(), 1);
    docker(1, &["service", "rm", &bench.service()]);
    ended(instance).await;
    let mut instance = bench
        .launch(echo(&mark))
        .await
        .expect("it starts once more");
    answers(&mut instance, "four").await;
    instance.handle.stop(GRACE).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_server_of_a_run_that_is_no_more_makes_room() {
    let bench = bench("room", "linux");
    let mark = mark("room");
    let mut first = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut first, "one").await;
    let next = bench.next_run();
    let mut second = in_time(TEST_TIMEOUT, next.launch(echo(&mark).unit()))
        .await
        .expect("it starts");
    answers(&mut second, "two").await;
    assert_eq!(processes(&mark).len(), 1);
    ended(first).await;
    answers(&mut second, "three").await;
    second.handle.stop(GRACE).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn it_runs_where_its_image_is() {
    let bench = bench("image", "linux");
    let image = format!("toolwharf-test/{}", mark("only-here"));
    docker(2, &["tag", "toolwharf-test/busybox", &image]);
    for _ in 0..2 {
        let mut server = echo("image");
        if let model::Program::Image { image: name, .. } = &mut server.program {
            name.clone_from(&image);
        }
        let mut instance = bench.launch(server).await.expect("it starts");
        answers(&mut instance, "one").await;
        assert_eq!(bench.containers()[0].0, 2);
        instance.handle.stop(GRACE).await;
    }
    docker(2, &["rmi", &image]);
    bench.nothing_left().await;
}

/// The state of connections.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Line {
    Open,
    /// Connections stay open, but nothing arrives at either end.
    Silent,
    Cut,
}

/// A proxy to a node's daemon that can be silenced and cut.
pub(crate) struct Way {
    socket: PathBuf,
    pub(crate) line: watch::Sender<Line>,
    _dir: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Way {
    pub(crate) fn new(number: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).expect("it is free");
        let (line, now) = watch::channel(Line::Open);
        let to = Arc::new(node(number).join("sock"));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut lines = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let (to, mut now) = (Arc::clone(&to), now.clone());
                lines.spawn(async move {
                    if *now.borrow() == Line::Cut {
                        return;
                    }
                    let Ok(mut far) = UnixStream::connect(&*to).await else {
                        return;
                    };
                    tokio::select! {
                        biased;
                        changed = now.wait_for(|line| *line != Line::Open) => drop(changed),
                        _ = copy_bidirectional(&mut near, &mut far) => return,
                    }
                    // Data that arrives during the silence is lost, so a connection that was silenced stays silent.
                    drop(now.wait_for(|line| *line == Line::Cut).await);
                });
            }
        });
        Self {
            socket: path,
            line,
            _dir: dir,
            _tasks: tasks,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

#[tokio::test]
async fn a_manager_that_is_away_ends_nothing_and_starts_nothing() {
    let way = Way::new(1);
    let bench = with("manager", &[2], |options| {
        options.daemons.push(way.address());
        options.constraints = vec!["node.hostname == node-2".to_owned()];
    });
    let mark = mark("manager");
    let mut instance = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut instance, "one").await;
    way.line.send_replace(Line::Cut);
    answers(&mut instance, "two").await;
    unavailable(bench.launch(echo(&mark)).await, "no manager");
    answers(&mut instance, "three").await;
    // The instance is stopped through its node's daemon. Its service is removed when a manager is available again.
    instance.handle.stop(GRACE).await;
    assert_eq!(processes(&mark).len(), 0);
    way.line.send_replace(Line::Open);
    bench.nothing_left().await;
}

/// Kills a node's daemon with all its helpers. Its containers keep running.
pub(crate) fn kill_daemon(number: usize) {
    let pid = fs::read_to_string(node(number).join("pid")).expect("it runs");
    let pid = pid
        .trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .expect("a number");
    kill_process(pid, Signal::KILL).expect("it runs");
    fs::remove_file(node(number).join("pid")).expect("it is there");
}

pub(crate) async fn start_daemon(number: usize) {
    let starting = Command::new("setsid")
        .arg("sh")
        .arg(node(number).join("start"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    drop(starting.expect("it starts"));
    wait_for("the daemon answers", || {
        let mut version = Command::new("/usr/bin/docker");
        version.args(["--host", &socket(number), "version"]);
        version.output().is_ok_and(|output| output.status.success())
    })
    .await;
    wait_for("its node is ready", || {
        let format = "{{.Status.State}}";
        let nodes = docker(1, &["node", "ls", "--quiet"]);
        nodes
            .lines()
            .all(|id| docker(1, &["node", "inspect", "--format", format, id]) == "ready")
    })
    .await;
}

/// A bench that uses the node that may be lost, and others after its loss.
pub(crate) fn lossy(install: &str) -> Bench {
    with(install, &[1, 2, LOST_NODE], |options| {
        options.constraints = vec!["node.labels.kernel != gvisor".to_owned()];
    })
}

/// Removes the image of a server that [`on_lost`] launched.
pub(crate) fn forget_image(mark: &str) {
    for number in [1, 2, LOST_NODE] {
        docker(number, &["rmi", &format!("toolwharf-test/{mark}")]);
    }
}

/// A server whose image is initially only on the lost node.
pub(crate) async fn on_lost(bench: &Bench, mark: &str, mut server: Server) -> (Instance, Server) {
    let image = format!("toolwharf-test/{mark}");
    docker(LOST_NODE, &["tag", "toolwharf-test/busybox", &image]);
    if let model::Program::Image { image: name, .. } = &mut server.program {
        name.clone_from(&image);
    }
    let mut instance = bench.launch(server.clone()).await.expect("it starts");
    answers(&mut instance, "one").await;
    assert_eq!(bench.containers()[0].0, LOST_NODE);
    for number in [1, 2] {
        docker(number, &["tag", "toolwharf-test/busybox", &image]);
    }
    (instance, server)
}

#[tokio::test]
async fn d06_a_lost_node_s_server_ends_and_runs_elsewhere_once_unless_its_volumes_are_there() {
    let (free, tied) = (lossy("free"), lossy("tied"));
    let (free_mark, tied_mark) = (mark("free"), mark("tied"));
    let (gone, server) = on_lost(&free, &free_mark, echo(&free_mark)).await;
    let mut on_disk = echo(&tied_mark);
    on_disk.sandbox.volumes = vec!["/data".to_owned()];
    let (tied_gone, tied_server) = on_lost(&tied, &tied_mark, on_disk).await;
    kill_daemon(LOST_NODE);
    let lost = Instant::now();
    // The container keeps running. Its process must have ended by the time its exit is reported.
    assert_eq!(processes(&free_mark).len(), 1);
    ended(gone).await;
    assert_eq!(
        processes(&free_mark).len(),
        0,
        "what a lost node ran has ended before that is said"
    );
    let mut instance = free.launch(server).await.expect("it runs elsewhere");
    answers(&mut instance, "two").await;
    let took = lost.elapsed();
    eprintln!("elsewhere after {took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(processes(&free_mark).len(), 1);

    ended(tied_gone).await;
    tied.refuses(tied_server.clone(), "volumes", "node-4").await;
    assert_eq!(processes(&tied_mark).len(), 0);

    start_daemon(LOST_NODE).await;
    answers(&mut instance, "three").await;
    assert_eq!(processes(&free_mark).len(), 1);
    let mut back = tied.launch(tied_server).await.expect("its node is back");
    answers(&mut back, "two").await;
    assert_eq!(tied.containers()[0].0, LOST_NODE);
    back.handle.stop(GRACE).await;
    instance.handle.stop(GRACE).await;
    tied.runtime
        .volumes_remove("h1", None)
        .await
        .expect("they go");
    free.nothing_left().await;
    tied.nothing_left().await;
    forget_image(&free_mark);
    forget_image(&tied_mark);
}

#[tokio::test]
async fn a_launch_with_a_fence_ends_older_ones_and_gives_way_to_newer_ones() {
    let one = bench("fence-one", "linux");
    // This is another gateway with the same database.
    let other = bench("fence-other", "linux");
    let installation: Arc<str> = format!("db{}", std::process::id()).into();
    let mark = mark("fence");
    let fenced = |number: i64| {
        let mut server = echo(&mark);
        server.sandbox.volumes = vec!["/data".to_owned()];
        let mut unit = server.unit();
        unit.fence = Some(runtime::Fence {
            installation: Arc::clone(&installation),
            number,
        });
        unit
    };
    let launch = async |bench: &Bench, number| {
        in_time(TEST_TIMEOUT, bench.runtime.launch(fenced(number))).await
    };
    let mut first = launch(&one, 3).await.expect("it starts");
    answers(&mut first, "one").await;
    let mut second = launch(&other, 4).await.expect("it starts");
    answers(&mut second, "two").await;
    ended(first).await;
    assert_eq!(processes(&mark).len(), 1);
    match launch(&one, 3).await {
        Err(Error::Failed(why)) => assert!(why.contains("another gateway"), "{why}"),
        other => panic!("{other:?}"),
    }
    answers(&mut second, "three").await;
    let numbers = one
        .runtime
        .fences(&installation)
        .await
        .expect("it lists the fencing tokens");
    assert_eq!(numbers, [4].into());
    // The sweep of one data directory does not touch what belongs to all gateways.
    assert_eq!(other.runtime.sweep().await.expect("it sweeps"), 0);
    let lost = |number: i64| runtime::Fences {
        installation: Arc::clone(&installation),
        numbers: [number].into(),
    };
    assert_eq!(
        one.runtime.sweep_fenced(&lost(3)).await.expect("it sweeps"),
        0
    );
    answers(&mut second, "four").await;
    assert_eq!(
        one.runtime.sweep_fenced(&lost(4)).await.expect("it sweeps"),
        1
    );
    ended(second).await;
    assert_eq!(processes(&mark).len(), 0);
    // A gateway that ran nothing can remove the volumes, too.
    let third = bench("fence-third", "linux");
    let removed = third.runtime.volumes_remove("h1", Some(&installation));
    removed.await.expect("they go");
    let label = format!("label=toolwharf.install={installation}");
    for (number, kind) in [(1, "volume"), (2, "volume"), (1, "config"), (1, "service")] {
        let left = docker(number, &[kind, "ls", "--quiet", "--filter", &label]);
        assert_eq!(left, "", "{kind} on node {number}");
    }
}
