//! Lost, silent and drained nodes, and unavailable managers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use runtime::Runtime as _;
use testkit::in_time;
use tokio::time::Instant;

use crate::faults::{
    Line, Way, answers, echo, ended, forget_image, kill_daemon, lossy, mark, marked, on_lost,
    processes, start_daemon,
};
use crate::server::Server;
use crate::support::{
    Bench, GRACE, LOST_NODE, TEST_TIMEOUT, bench, docker, read_until, sh, socket, unavailable,
    wait_for, with,
};

#[tokio::test]
async fn d06_a_killed_server_of_a_silent_node_has_ended_when_that_is_said() {
    let way = Way::new(2);
    let bench = with("silent", &[1], |options| {
        options.daemons.push(way.address());
        options.constraints = vec!["node.hostname == node-2".to_owned()];
    });
    let mark = mark("silent");
    let mut instance = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut instance, "one").await;
    // The node's watch received a ping within the last two seconds, so it does nothing for the next six.
    way.line.send_replace(Line::Silent);
    let begun = Instant::now();
    let stopping = instance.handle.stop(Duration::ZERO);
    in_time(TEST_TIMEOUT, stopping).await;
    let took = begun.elapsed();
    assert_eq!(processes(&mark).len(), 0, "said after {took:?}");
    way.line.send_replace(Line::Open);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_server_that_stops_its_watch_cannot_answer_in_its_place() {
    // The pattern is `[h]`, because the script would otherwise find itself.
    let script = "for dir in /proc/[0-9]*; do tr '\\0' ' ' <$dir/cmdline | grep -q ' watc[h] $' && watch=$dir; done; \
                  kill -STOP ${watch#/proc/} && echo stopped; while :; do echo answer. >$watch/fd/1; sleep 1; done";
    for kernel in ["linux", "gvisor"] {
        let bench = bench(&format!("forged-{kernel}"), kernel);
        let mut instance = bench.launch(sh(script)).await.expect("it starts");
        read_until(&mut instance, "stopped\n").await;
        let exited = instance.handle.exited();
        in_time(TEST_TIMEOUT, exited).await;
        // gVisor lets the server write there, but the server does not know the right reply.
        let said = instance.handle.stderr_tail();
        let is_denied = said.contains("/fd/1: Permission denied");
        assert_eq!(is_denied, kernel == "linux", "{kernel}: {said}");
        bench.nothing_left().await;
    }
}

/// A server with a file, which prints the file's content before it echoes lines.
fn keeper(mark: &str) -> Server {
    let script = "cat /data/x 2>/dev/null; echo kept >/data/x; echo .; while read line; do echo \"$line\"; done";
    let mut server = marked(script, mark);
    server.sandbox.volumes = vec!["/data".to_owned()];
    server
}

#[tokio::test]
async fn d06_a_lost_node_s_server_runs_elsewhere_with_its_file_where_a_driver_brings_it() {
    let shared = tempfile::tempdir().expect("a directory");
    let device = format!("{}/{{name}}", shared.path().display());
    let options = [("type", "none"), ("o", "bind"), ("device", &device)];
    let bench = lossy("driver").with(|all| {
        all.volume_driver = Some("local".to_owned());
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        all.volume_options = options.into();
    });
    let name = format!("toolwharf-swarm.{}.h1.data", bench.options.install);
    let dir = shared.path().join(name);
    fs::create_dir(&dir).expect("it is new");
    let mark = mark("driver");
    let (gone, server) = on_lost(&bench, &mark, keeper(&mark)).await;
    kill_daemon(LOST_NODE);
    assert_eq!(processes(&mark).len(), 1);
    ended(gone).await;
    assert_eq!(processes(&mark).len(), 0);
    let mut instance = bench.launch(server).await.expect("it runs elsewhere");
    assert_eq!(read_until(&mut instance, ".\n").await, "kept\n.\n");
    assert_eq!(processes(&mark).len(), 1);
    start_daemon(LOST_NODE).await;
    answers(&mut instance, "two").await;
    assert_eq!(processes(&mark).len(), 1);
    instance.handle.stop(GRACE).await;
    let removed = bench.runtime.volumes_remove("h1", None);
    in_time(TEST_TIMEOUT, removed).await.expect("they go");
    // The nodes' volumes are removed, but the driver keeps the content.
    for number in [1, 2, LOST_NODE] {
        let left = bench.list(number, &["volume", "ls"]);
        assert_eq!(left, "", "on node {number}");
    }
    assert!(dir.join("x").exists());
    bench.nothing_left().await;
    forget_image(&mark);
}

fn id_of(number: usize) -> String {
    docker(number, &["info", "--format", "{{.Swarm.NodeID}}"])
}

/// A manager's change to the node that may be lost. Dropping it reverts the change.
struct Done {
    undo: Vec<String>,
}

impl Done {
    fn new(change: &[&str], undo: &[&str]) -> Self {
        let id = id_of(LOST_NODE);
        docker(1, &[change, &[&id]].concat());
        let undo = undo.iter().map(|&word| word.to_owned());
        Self {
            undo: undo.chain([id]).collect(),
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        let mut undo = Command::new("/usr/bin/docker");
        undo.args(["--host", &socket(1)]).args(&self.undo);
        let output = undo.output();
        // Do not hide the panic of a failing test.
        if !std::thread::panicking() {
            let output = output.expect("docker's own client");
            assert!(output.status.success(), "{output:?}");
        }
    }
}

#[tokio::test]
async fn d06_a_drained_node_s_server_ends_and_runs_elsewhere_unless_its_volumes_are_there() {
    let (free, tied) = (lossy("drained"), lossy("drained-tied"));
    let (free_mark, tied_mark) = (mark("drained"), mark("drained-tied"));
    let (ending, server) = on_lost(&free, &free_mark, echo(&free_mark)).await;
    let (tied_ending, tied_server) = on_lost(&tied, &tied_mark, keeper(&tied_mark)).await;
    let drain = ["node", "update", "--availability", "drain"];
    let activate = ["node", "update", "--availability", "active"];
    let drained = Done::new(&drain, &activate);
    ended(ending).await;
    ended(tied_ending).await;
    assert_eq!(processes(&free_mark).len() + processes(&tied_mark).len(), 0);
    let mut instance = free.launch(server).await.expect("it runs elsewhere");
    answers(&mut instance, "two").await;
    assert_eq!(processes(&free_mark).len(), 1);
    let (field, why) = tied.refused(tied_server.clone()).await;
    assert!(
        field == "volumes"
            && why.contains("node-4")
            && why.contains("has the availability `drain`"),
        "{field}: {why}"
    );
    drop(drained);
    let mut back = tied.launch(tied_server).await.expect("its node is back");
    assert_eq!(read_until(&mut back, ".\n").await, "kept\n.\n");
    assert_eq!(tied.containers()[0].0, LOST_NODE);
    for instance in [back, instance] {
        instance.handle.stop(GRACE).await;
    }
    let removed = tied.runtime.volumes_remove("h1", None);
    in_time(TEST_TIMEOUT, removed).await.expect("they go");
    free.nothing_left().await;
    tied.nothing_left().await;
    forget_image(&free_mark);
    forget_image(&tied_mark);
}

#[tokio::test]
async fn d06_a_second_manager_is_asked_where_the_first_one_is_away() {
    let promoted = Done::new(&["node", "promote"], &["node", "demote"]);
    let control = ["info", "--format", "{{.Swarm.ControlAvailable}}"];
    let is_manager = || docker(LOST_NODE, &control);
    wait_for("it is a manager", || is_manager() == "true").await;
    let way = Way::new(1);
    let bench: Bench = with("managers", &[2, LOST_NODE], |options| {
        options.daemons.insert(0, way.address());
        options.constraints = vec!["node.hostname == node-2".to_owned()];
    });
    let mark = mark("managers");
    let mut first = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut first, "one").await;
    way.line.send_replace(Line::Cut);
    answers(&mut first, "two").await;
    first.handle.stop(GRACE).await;
    assert_eq!(processes(&mark).len(), 0);
    bench.nothing_left().await;
    let mut second = bench.launch(echo(&mark)).await.expect("it starts again");
    answers(&mut second, "three").await;
    assert_eq!(processes(&mark).len(), 1);
    second.handle.stop(GRACE).await;
    bench.nothing_left().await;
    drop(promoted);
    // For a moment the demoted node still reports that it is a manager, although it can no longer act as one.
    wait_for("it is no manager", || is_manager() == "false").await;
    unavailable(bench.launch(echo(&mark)).await, "no manager");
}
