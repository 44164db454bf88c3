//! Containers with an allow-list.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use containers::docker::Docker;
use model::{Mount, Network, Provider};
use runtime::{Instance, Runtime as _};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testkit::{in_time, serve::host};

use crate::server::Server;
use crate::support::{Bench, TEST_TIMEOUT, bench, holds, read_until, sh, wait_for};

/// The name under which [`register`] adds gVisor with `--network=host` to the daemon.
const HOST_NETWORK: &str = "runsc-host-network";

/// A server that reports at its start what it can reach, and then keeps running.
fn prober(allowed: SocketAddr, forbidden: SocketAddr) -> Server {
    let script = r#"
proxy="${HTTPS_PROXY#http://}"; at="${proxy%:*} ${proxy#*:}"
echo "tunnel: $(printf 'CONNECT ALLOWED HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n' | nc $at | tr '\r\n' '  ')"
echo "request: $(printf 'GET http://ALLOWED/ HTTP/1.1\r\n\r\n' | nc $at | tr '\r\n' '  ')"
echo "other port: $(printf 'CONNECT FORBIDDEN HTTP/1.1\r\n\r\n' | nc $at | tr '\r\n' '  ')"
echo "other host: $(printf 'CONNECT example.com:443 HTTP/1.1\r\n\r\n' | nc $at | tr '\r\n' '  ')"
for address in "HOST PORT" "10.0.0.1 80" "1.1.1.1 443"; do
  echo "direct: $(echo x | nc $address 2>&1 && echo reached)"
done
echo "own: $OWN $NO_PROXY"
echo done
exec cat"#;
    let script = script
        .replace("ALLOWED", &allowed.to_string())
        .replace("FORBIDDEN", &forbidden.to_string())
        .replace("HOST", &allowed.ip().to_string())
        .replace("PORT", &allowed.port().to_string());
    let mut server = sh(&script);
    server.sandbox.network = Network::Allow(vec![allowed.to_string(), "*.example.org".into()]);
    server.env = [("OWN", "kept"), ("HTTPS_PROXY", "http://another:1")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    server
}

/// Adds a runtime to the daemon of `cargo xtask docker`, whose configuration is next to its socket.
async fn register(bench: &Bench) {
    let dir = bench.options.host.trim_start_matches("unix://");
    let dir = std::path::Path::new(dir).parent().unwrap();
    let lock = fs::File::create(dir.join("daemon.json.lock")).unwrap();
    lock.lock().unwrap();
    if bench.cli(&["info"]).contains(HOST_NETWORK) {
        return;
    }
    let file = dir.join("daemon.json");
    let config = fs::read_to_string(&file)
        .expect("the daemon of: cargo xtask docker -- cargo nextest run -p containers");
    let runtime = format!(
        r#""runtimes": {{ "{HOST_NETWORK}": {{ "path": "/usr/bin/runsc",
           "runtimeArgs": ["--platform=ptrace", "--network=host"] }}, "#
    );
    let (before, after) = config.split_once("\"runtimes\": {").unwrap();
    fs::write(&file, format!("{before}{runtime}{after}")).unwrap();
    let pid = fs::read_to_string(dir.join("pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_for("the daemon knows the runtime", || {
        bench.cli(&["info"]).contains(HOST_NETWORK)
    })
    .await;
}

/// Benches for both runtimes that support allow-lists.
async fn able() -> [Bench; 2] {
    let mut gvisor = bench(Provider::Gvisor);
    register(&gvisor).await;
    gvisor.options.runtime = HOST_NETWORK.into();
    gvisor.runtime = Docker::new(gvisor.options.clone()).unwrap();
    [bench(Provider::Runc), gvisor]
}

fn pid(bench: &Bench) -> String {
    bench.cli(&["inspect", "--format", "{{.State.Pid}}", &bench.name("h1")])
}

/// Connects to an address in a network namespace, from a thread that ends there.
fn connect_in(space: &fs::File, address: SocketAddr) -> std::io::Result<std::net::TcpStream> {
    let space = space.try_clone().unwrap();
    let connecting = std::thread::spawn(move || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        std::net::TcpStream::connect_timeout(&address, TEST_TIMEOUT)
    });
    connecting.join().unwrap()
}

fn threads_elsewhere() -> usize {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| fs::read_link(task.path().join("ns/net")).ok())
        .filter(|space| *space != own)
        .count()
}

fn sockets() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

async fn gone(bench: &Bench, instance: &Instance) {
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn egress_of_a_container_is_what_its_allow_list_says() {
    let (allowed, _serving) = host().await;
    let (forbidden, _also) = host().await;
    for bench in able().await {
        let provider = bench.options.provider;
        let mut instance = bench.launch(prober(allowed, forbidden)).await.unwrap();
        let text = read_until(&mut instance, "done\n").await;
        let line = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{provider}: no {name:?} in {text}"))
        };
        assert!(line("tunnel: ").contains("200 Connection established"));
        assert!(line("tunnel: ").contains("from the host"), "{text}");
        assert!(line("request: ").contains("from the host"), "{text}");
        for refused in [line("other port: "), line("other host: ")] {
            assert!(refused.starts_with("HTTP/1.1 403"), "{provider}: {text}");
            assert!(refused.contains("is not in the server's `network.allow`"));
        }
        assert_eq!(text.matches("direct: ").count(), 3, "{text}");
        assert!(!text.contains("reached"), "{provider}: {text}");
        assert_eq!(line("own: "), "kept localhost,127.0.0.1,::1");
        assert!(holds(&instance, "network"), "{:?}", instance.enforced);
        let row = instance.enforced.iter().find(|row| row.what == "network");
        let how = &row.unwrap().how;
        assert!(
            how.contains("loopback device only") && how.contains(&allowed.to_string()),
            "{how}"
        );
        instance.handle.kill_now();
        gone(&bench, &instance).await;
    }
}

#[tokio::test]
async fn egress_ends_with_its_container_and_leaves_nothing() {
    let (allowed, _serving) = host().await;
    for bench in able().await {
        let mut before = None;
        for round in 0..3 {
            let mut server = sh("echo $HTTP_PROXY; exec cat");
            server.sandbox.network = Network::Allow(vec![allowed.to_string()]);
            let mut instance = bench.launch(server).await.unwrap();
            let proxy = read_until(&mut instance, "\n").await;
            let proxy: SocketAddr = proxy.trim().trim_start_matches("http://").parse().unwrap();
            let space = fs::File::open(format!("/proc/{}/ns/net", pid(&bench))).unwrap();
            assert_eq!(threads_elsewhere(), 0);
            connect_in(&space, proxy).expect("the proxy listens");
            // In the three rounds, the container exits on its own, is stopped, or is killed by another program.
            match round {
                0 => drop(instance.stdio.take()),
                1 => drop(instance.handle.stop(Duration::ZERO).await),
                _ => drop(bench.cli(&["kill", &bench.name("h1")])),
            }
            gone(&bench, &instance).await;
            // The namespace exists while the test holds it, but nothing listens in it.
            let error = connect_in(&space, proxy).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
            drop((instance, space));
            let after = sockets();
            let before = *before.get_or_insert(after);
            wait_for("all sockets are closed", || sockets() <= before).await;
        }
    }
}

#[tokio::test]
async fn egress_is_refused_where_nothing_enforces_it() {
    let allow = || {
        let mut server = sh("exec cat");
        server.sandbox.network = Network::Allow(vec!["example.com".into()]);
        server
    };
    let gvisor = bench(Provider::Gvisor);
    let remedy = "need `--network=host` in the arguments of the runtime";
    gvisor.refuses(allow(), "network", remedy).await;
    gvisor.nothing_left().await;
    let runc = bench(Provider::Runc);
    let mut wrong = allow();
    wrong.sandbox.network = Network::Allow(vec!["http://example.com/".into()]);
    runc.refuses(wrong, "network", "http://example.com/").await;
    // A launch that fails after its network was created leaves no network behind either.
    let mut missing = allow();
    missing.sandbox.mounts.push(Mount {
        host: "/no/such/directory".into(),
        inside: "/data".into(),
        read_only: true,
    });
    assert_eq!(runc.refused(missing).await.0, "mounts");
    runc.nothing_left().await;
}

#[tokio::test]
async fn egress_that_an_earlier_run_left_is_swept_as_one() {
    let bench = bench(Provider::Runc);
    let mut server = sh("exec sleep 1000");
    server.sandbox.network = Network::Allow(vec!["example.com".into()]);
    let instance = bench.launch(server.clone()).await.unwrap();
    let there = || bench.list(&["ps"]).lines().count();
    assert_eq!(there(), 2, "the server's, and the one that has its network");
    assert_eq!(bench.runtime.sweep().await.unwrap(), 0, "it is of this run");
    assert_eq!(bench.next_run().sweep().await.unwrap(), 1);
    gone(&bench, &instance).await;
    // The next instance of the same name can start, even if something of the previous one is left.
    let instance = bench.launch(server.clone()).await.unwrap();
    let again = bench.next_run().launch(server.unit()).await.unwrap();
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    drop(again);
    bench.nothing_left().await;
}
