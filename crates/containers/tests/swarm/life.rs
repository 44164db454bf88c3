//! The lifecycle of a service: streams, limits, exit, clean-up.

use std::fs;
use std::time::Duration;

use model::Network;
use runtime::{Error, Runtime as _};
use testkit::in_time;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::support::{
    GRACE, TEST_TIMEOUT, bench, docker, node, of_image, read_until, rest, running, sh, stdio,
    unavailable, wait_for, with,
};

const VALUE: &str = "hunter2-in-no-object";

#[tokio::test]
async fn a_server_is_spoken_to_and_its_values_are_in_no_object_of_the_swarm() {
    for node in ["node-1", "node-2", "node-3"] {
        let kernel = if node == "node-3" { "gvisor" } else { "linux" };
        let bench = with(&format!("life-{node}"), &[1, 2, 3], |options| {
            options.constraints = vec![format!("node.hostname == {node}")];
            options.gvisor = kernel == "gvisor";
        });
        let probed = in_time(TEST_TIMEOUT, bench.runtime.probe()).await.unwrap();
        assert!(
            probed.contains("Swarm") && probed.contains("of 4 nodes"),
            "{probed}"
        );
        let script = "echo $TOKEN $0 \"$1\" >&2; exec cat";
        let mut server = running(&["/bin/sh", "-c", script, "an-argument", ""]);
        server.env.insert("TOKEN".to_owned(), VALUE.to_owned());
        let mut instance = bench.launch(server).await.unwrap();
        stdio(&mut instance)
            .stdin
            .write_all(b"there\nand back\n")
            .await
            .unwrap();
        read_until(&mut instance, "there\nand back\n").await;
        let (_, container) = &bench.containers()[0];
        let number = bench.containers()[0].0;
        for told in [
            docker(1, &["service", "inspect", &bench.service()]),
            docker(number, &["inspect", container]),
        ] {
            assert!(
                !told.contains(VALUE) && !told.contains("an-argument"),
                "{told}"
            );
        }
        let said = format!("{VALUE} an-argument");
        wait_for("its stderr is there", || {
            instance.handle.stderr_tail().trim() == said
        })
        .await;
        for row in &*instance.enforced {
            // Only gVisor provides a separate kernel. Both enforce everything else.
            let told = row.what == "kernel" && kernel == "linux";
            assert_eq!(row.holds, !told, "{row:?}");
        }
        let usage = instance.handle.usage().await;
        assert!(usage.is_some_and(|usage| usage.memory > 0), "{usage:?}");

        let exit = instance.handle.stop(GRACE).await;
        assert!(
            exit.signal == Some(15) || exit.code == Some(143),
            "{exit:?}"
        );
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn how_it_ends_is_told() {
    let bench = bench("ends", "linux");
    let mut instance = bench
        .launch(sh("echo out; echo err >&2; exit 7"))
        .await
        .unwrap();
    assert_eq!(rest(&mut instance).await, "out\n");
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(exit.code, Some(7));
    assert_eq!(instance.handle.stderr_tail(), "err\n");
    // The name is free for the next instance immediately.
    let mut server = sh("tail /dev/zero");
    server.sandbox.limits.memory = 32 << 20;
    let begun = Instant::now();
    let instance = bench.launch(server).await.unwrap();
    eprintln!("launched again in {:?}", begun.elapsed());
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert!(exit.out_of_memory, "{exit:?}");
    bench.nothing_left().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_field() {
    let bench = bench("refused", "linux");
    let program = "no-such-program";
    bench.refuses(running(&[program]), "command", program).await;
    let absent = of_image("toolwharf-test/absent", &[]);
    bench.refuses(absent, "image", "absent").await;
    let mut server = running(&["cat"]);
    server.sandbox.network = Network::Allow(vec!["x.example".to_owned()]);
    assert_eq!(bench.refused(server).await.0, "network");
    let not_gvisor = bench.with(|options| options.gvisor = true);
    let launched = not_gvisor.launch(running(&["cat"])).await;
    unavailable(launched, "not gVisor's");
    not_gvisor.nothing_left().await;
}

#[tokio::test]
async fn volumes_keep_their_server_on_its_node() {
    let bench = bench("volumes", "linux");
    let script = "cat /data/* 2>/dev/null; echo kept >/data/x; hostname; echo .";
    let server = || {
        let mut server = sh(script);
        server.sandbox.volumes = vec!["/data".to_owned()];
        server
    };
    let mut nodes = Vec::new();
    for round in 0..3 {
        let mut instance = bench.launch(server()).await.unwrap();
        let said = read_until(&mut instance, ".\n").await;
        assert_eq!(said.contains("kept"), round > 0, "{said}");
        nodes.push(bench.containers().first().map(|(number, _)| *number));
        instance.handle.stop(GRACE).await;
    }
    let found = nodes
        .iter()
        .flatten()
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(found.len(), 1, "{nodes:?}");
    in_time(TEST_TIMEOUT, bench.runtime.volumes_remove("h1", None))
        .await
        .unwrap();
    for number in [1, 2, 3] {
        assert_eq!(bench.list(number, &["volume", "ls"]), "");
    }
    assert_eq!(bench.list(1, &["config", "ls"]), "");
    bench.nothing_left().await;
}

#[tokio::test]
async fn what_an_earlier_run_left_is_swept() {
    let bench = bench("swept", "linux");
    let instance = bench.launch(sh("exec cat")).await.unwrap();
    assert_eq!(bench.runtime.sweep().await.unwrap(), 0);
    let next = bench.next_run();
    assert_eq!(in_time(TEST_TIMEOUT, next.sweep()).await.unwrap(), 1);
    let within = Duration::from_secs(20);
    timeout(within, instance.handle.exited()).await.unwrap();
    in_time(TEST_TIMEOUT, next.sweep()).await.unwrap();
    bench.nothing_left().await;
}

/// A proxy to the daemon of node 2 that listens on loopback and connects in the node's network namespace.
async fn way() -> (String, Child) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address");
    drop(free);
    let pid = fs::read_to_string(node(2).join("pid")).expect("it runs");
    let inside = format!(
        "nsenter --target {} --net socat STDIO TCP\\:10.99.0.2\\:2376",
        pid.trim()
    );
    let listen = format!(
        "TCP-LISTEN:{},bind=127.0.0.1,reuseaddr,fork",
        address.port()
    );
    let mut socat = Command::new("socat");
    socat
        .args([listen, format!("EXEC:{inside}")])
        .kill_on_drop(true);
    let socat = socat.spawn().expect("socat: cargo xtask setup installs it");
    wait_for("socat listens", || {
        std::net::TcpStream::connect(address).is_ok()
    })
    .await;
    (format!("tcp://{address}"), socat)
}

#[tokio::test]
async fn a_daemon_elsewhere_is_reached_with_certificates_and_not_without() {
    let (address, _socat) = way().await;
    let bench = with("tls", &[1], |options| {
        options.daemons.push(address.clone());
        options.tls = Some(node(2));
        options.constraints = vec!["node.hostname == node-2".to_owned()];
    });
    let mut instance = bench.launch(sh("echo err >&2; exec cat")).await.unwrap();
    let line = vec![b'x'; 1 << 20];
    let stdin = &mut instance.stdio.take().unwrap();
    let writing = async {
        stdin.stdin.write_all(&line).await.unwrap();
        stdin.stdin.flush().await.unwrap();
    };
    let mut back = vec![0; line.len()];
    let reading = tokio::io::AsyncReadExt::read_exact(&mut stdin.stdout, &mut back);
    let (read, ()) = in_time(TEST_TIMEOUT, async { tokio::join!(reading, writing) }).await;
    read.unwrap();
    assert_eq!(back, line);
    instance.handle.stop(GRACE).await;
    bench.nothing_left().await;

    let strange = tempfile::tempdir().unwrap();
    for (file, from) in [
        ("ca.pem", "server.pem"),
        ("cert.pem", "cert.pem"),
        ("key.pem", "key.pem"),
    ] {
        fs::copy(node(2).join(from), strange.path().join(file)).unwrap();
    }
    let stranger = with("tls-stranger", &[], |options| {
        options.daemons.push(address.clone());
        options.tls = Some(strange.path().to_owned());
    });
    let probed = in_time(TEST_TIMEOUT, stranger.runtime.probe()).await;
    unavailable(probed, "certificate");
    let key = strange.path().join("key.pem");
    fs::write(&key, "no key\n").unwrap();
    let probed = in_time(TEST_TIMEOUT, stranger.runtime.probe()).await;
    unavailable(probed, key.to_str().unwrap());
    let mut without = bench.options.clone();
    without.tls = None;
    match containers::docker::Swarm::new(without) {
        Err(Error::Refused { why, .. }) => assert!(why.contains("certificates"), "{why}"),
        other => panic!("{:?}", other.is_ok()),
    }
}
