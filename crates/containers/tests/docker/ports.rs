//! Ports of containers, with and without a network.

use std::time::Duration;

use containers::docker::Docker;
use model::{Network, Port, Provider, Reach};
use runtime::{Error, Instance, Runtime as _};
use testkit::in_time;
use testkit::serve::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::server::Server;
use crate::support::{BOTH, GRACE, TEST_TIMEOUT, bench, own_id, sh, wait_for};

const BIG_BYTES: usize = 8 << 20;
/// HTTP servers with a small and a big file, one that echoes, and one that kills the relay.
const SERVER_SCRIPT: &str = "mkdir /tmp/www; echo hello > /tmp/www/small; \
    dd if=/dev/zero bs=1024k count=8 2>/dev/null | tr '\\0' x > /tmp/www/big; \
    nc -ll -p 7 -e cat & nc -ll -p 9 -e killall -9 relay & httpd -f -p 127.0.0.1:8080 -h /tmp/www";

fn open(inside: u16) -> Port {
    Port { inside, host: None }
}

fn served(network: Network) -> Server {
    let mut server = sh(SERVER_SCRIPT);
    server.sandbox.id = own_id();
    server.reach = Reach::Port { path: "/".into() };
    server.sandbox.ports = vec![open(8080), open(7), open(9), open(6)];
    server.sandbox.network = network;
    server
}

/// Returns the body of a file, once the server responds.
async fn fetch(instance: &Instance, path: &str, length: usize) -> String {
    let fetching = async {
        loop {
            let answer = get(instance.ports[&8080], path).await.unwrap_or_default();
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
            if let Some(body) = body.filter(|body| body.len() == length) {
                return body.to_owned();
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(TEST_TIMEOUT, fetching).await
}

#[tokio::test]
async fn h02_ports_of_a_container_without_a_network_are_reached() {
    for provider in BOTH {
        let bench = bench(provider);
        let instance = bench.launch(served(Network::None)).await.unwrap();
        assert!(instance.stdio.is_none());
        assert_eq!(fetch(&instance, "/small", 6).await, "hello\n");
        let big = fetch(&instance, "/big", BIG_BYTES).await;
        assert!(big.bytes().all(|byte| byte == b'x'), "{provider:?}");
        let echo = instance.ports[&7];
        assert!(echo.ip().is_loopback());

        // The client sends and receives the same amount concurrently, and then closes one direction only.
        let (mut reads, mut writes) = TcpStream::connect(echo).await.unwrap().into_split();
        let sent: Vec<u8> = (0..BIG_BYTES).map(|at| (at % 251) as u8).collect();
        let mut heard = Vec::new();
        let speaking = async {
            writes.write_all(&sent).await.unwrap();
            writes.shutdown().await.unwrap();
        };
        let both = async { tokio::join!(speaking, reads.read_to_end(&mut heard)) };
        in_time(TEST_TIMEOUT, both).await.1.unwrap();
        assert!(heard == sent, "{provider:?}: {} bytes", heard.len());

        // Clients that do not read do not block the others, and closed connections are forgotten.
        let mut lazy = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(instance.ports[&8080]).await.unwrap();
            stream
                .write_all(b"GET /big HTTP/1.0\r\n\r\n")
                .await
                .unwrap();
            lazy.push(stream);
        }
        fetch(&instance, "/small", 6).await;
        for _ in 0..300 {
            let mut stream = TcpStream::connect(echo).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            in_time(TEST_TIMEOUT, stream.read_u8()).await.unwrap();
        }
        fetch(&instance, "/small", 6).await;
        drop(lazy);

        // Nothing listens on the last port, so the connection is closed.
        let closed = in_time(TEST_TIMEOUT, get(instance.ports[&6], "/")).await;
        assert!(closed.is_err() || closed.is_ok_and(|text| text.is_empty()));

        // The relay is an ordinary process in the container.
        let killing = in_time(TEST_TIMEOUT, get(instance.ports[&9], "/")).await;
        assert!(killing.is_err() || killing.is_ok_and(|text| text.is_empty()));
        fetch(&instance, "/small", 6).await;
        let told = instance.handle.stderr_tail();
        assert!(
            told.contains("the relay to the server's ports ended"),
            "{told}"
        );

        // The next instance has the same ports.
        let exit = in_time(TEST_TIMEOUT, instance.handle.stop(GRACE)).await;
        assert_eq!(exit.signal, Some(15), "{provider:?}");
        assert!(TcpStream::connect(echo).await.is_err());
        let again = bench.launch(served(Network::None)).await.unwrap();
        assert_eq!(again.ports, instance.ports);
        fetch(&again, "/small", 6).await;
        drop(again);
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h02_an_allow_list_and_ports_go_together() {
    let bench = bench(Provider::Runc);
    let server = served(Network::Allow(vec!["example.com".into()]));
    let instance = bench.launch(server).await.unwrap();
    assert_eq!(fetch(&instance, "/small", 6).await, "hello\n");
    drop(instance);
    bench.nothing_left().await;
}

#[tokio::test]
async fn h02_a_port_is_published_on_loopback_only() {
    let bench = bench(Provider::Runc);
    let mut options = bench.options.clone();
    options.network = "toolwharf-test".into();
    let docker = Docker::new(options).unwrap();
    let mut server =
        sh("mkdir /tmp/www; echo hello > /tmp/www/small; httpd -f -p 8080 -h /tmp/www");
    server.sandbox.id = own_id();
    server.reach = Reach::Port { path: "/".into() };
    server.sandbox.ports = vec![open(8080)];
    server.sandbox.network = Network::Open;
    let mut before = None;
    for _ in 0..2 {
        let launched = timeout(TEST_TIMEOUT, docker.launch(server.clone().unit())).await;
        let instance = launched.unwrap().unwrap();
        let address = instance.ports[&8080];
        assert!(address.ip().is_loopback());
        assert_eq!(*before.get_or_insert(address), address);
        assert_eq!(fetch(&instance, "/small", 6).await, "hello\n");
        let exit = in_time(TEST_TIMEOUT, instance.handle.stop(GRACE)).await;
        assert_eq!(exit.signal, Some(15));
    }
    // Combinations that cannot work are rejected before anything is created.
    bench.refuses(server.clone(), "network", "`bridge`").await;
    let gvisor = crate::support::bench(Provider::Gvisor);
    gvisor.refuses(server, "network", "--network=none").await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn h02_a_given_port_is_that_one_or_none() {
    for provider in BOTH {
        let bench = bench(provider);
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let mut server = served(Network::None);
        server.sandbox.ports[0].host = Some(port);
        let (field, why) = bench.refused(server.clone()).await;
        let holder = format!("(process {})", std::process::id());
        let told = why.contains(&port.to_string()) && why.contains(&holder);
        assert!(field == "ports" && told, "{why}");
        bench.nothing_left().await;
        drop(taken);
        let instance = bench.launch(server.clone()).await.unwrap();
        assert_eq!(instance.ports[&8080].port(), port);
        fetch(&instance, "/small", 6).await;
        // The error names the other Toolwharf server.
        server.sandbox.id = "h2".into();
        let (_, why) = bench.refused(server).await;
        assert!(why.contains("for the server `test`"), "{why}");
        drop(instance);
        wait_for("the end of its container", || {
            std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_relay_that_cannot_be_shown_inside_is_a_matter_of_the_ports() {
    let mut bench = bench(Provider::Runc);
    // The daemon looks for the file on its own host.
    bench.options.dir = "/proc/self/nowhere".into();
    bench.runtime = Docker::new(bench.options.clone()).unwrap();
    let error = bench.launch(served(Network::None)).await.map(|_| ());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    assert!(error.to_string().contains(".relay"), "{error}");
    bench.nothing_left().await;
}
