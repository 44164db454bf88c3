//! Checks what a server can reach: nothing, its allow-list, or everything.

use std::net::SocketAddr;
use std::time::Duration;

use model::{Network, Port, Reach};
use runtime::Error;
use testkit::in_time;
use testkit::serve::{get, host};
use tokio::net::{TcpListener, TcpStream};

use crate::ground::{Ground, python, row};
use crate::server::Server;
use crate::support::TEST_TIMEOUT;

/// Tries to reach `address`: directly, according to the variables, and with `CONNECT`.
fn prober(address: SocketAddr, network: Network) -> Server {
    let script = r#"
import os, socket, urllib.request, urllib.error
host, port = "HOST", PORT
try:
    socket.create_connection((host, port), 5).close()
    print("direct: connected")
except OSError as e: print("direct:", e.strerror)
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
try: print("http:", urllib.request.urlopen(f"http://{host}:{port}/path?query", timeout=5).read().decode())
except urllib.error.HTTPError as e: print("http:", e.code, e.read().decode().strip())
except OSError as e: print("http: failed")
proxy = os.environ.get("HTTPS_PROXY")
if proxy:
    s = socket.create_connection(proxy.removeprefix("http://").split(":"), 5)
    s.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
    answer = s.recv(1000).decode()
    print("connect:", answer.split("\r\n")[0])
    if " 200 " in answer:
        s.sendall(b"GET /tunnel HTTP/1.0\r\n\r\n")
        print("tunnel:", b"".join(iter(lambda: s.recv(1000), b"")).decode().split("\r\n")[-1])
"#
    .replace("\"HOST\", PORT", &format!("\"{}\", {}", address.ip(), address.port()));
    let mut server = python(&script);
    server.sandbox.network = network;
    server
}

#[tokio::test]
async fn none_reaches_nothing() {
    let ground = Ground::new();
    let (address, _host) = host().await;
    let (text, instance) = ground.run(prober(address, Network::None)).await;
    assert_eq!(
        text,
        "direct: Connection refused\nhttp: failed\n",
        "{}",
        instance.handle.stderr_tail()
    );
    let (text, _) = ground
        .run(python("import socket; print([name for _, name in socket.if_nameindex() if not name.startswith(('sit', 'tunl', 'ip'))])\ntry: socket.create_connection(('1.1.1.1', 80), 5)\nexcept OSError as e: print(e.strerror)"))
        .await;
    assert_eq!(text, "['lo']\nNetwork is unreachable\n");
    assert!(row(&instance, "network").holds);
}

#[tokio::test]
async fn allow_reaches_what_is_listed_through_the_proxy_only() {
    let ground = Ground::new();
    let (address, _host) = host().await;
    let listed = Network::Allow(vec![address.to_string()]);
    let (text, instance) = ground.run(prober(address, listed)).await;
    let expected = "direct: Connection refused\n\
                    http: from the host: GET /path?query HTTP/1.1\n\
                    connect: HTTP/1.1 200 Connection established\n\
                    tunnel: from the host: GET /tunnel HTTP/1.0\n";
    assert_eq!(text, expected, "{}", instance.handle.stderr_tail());
    assert!(row(&instance, "network").holds);

    let others = Network::Allow(vec![
        "127.0.0.2".into(),
        "localhost".into(),
        format!("127.0.0.1:{}", address.port() ^ 1),
    ]);
    let (text, _) = ground.run(prober(address, others.clone())).await;
    let expected = format!(
        "direct: Connection refused\nhttp: 403 `{address}` is not in the server's `network.allow`\nconnect: HTTP/1.1 403 Forbidden\n"
    );
    assert_eq!(text, expected);

    // An allowed name may not lead to a non-public address.
    let script = format!(
        "import os, urllib.request, urllib.error\nos.environ['no_proxy'] = ''\ntry: print(urllib.request.urlopen('http://localhost:{}/', timeout=5).read())\nexcept urllib.error.HTTPError as e: print(e.code, e.read().decode())",
        address.port()
    );
    let mut rebound = python(&script);
    rebound.sandbox.network = others;
    let (text, instance) = ground.run(rebound).await;
    assert!(
        text.starts_with("403 `localhost` resolves to "),
        "{text} {}",
        instance.handle.stderr_tail()
    );
}

#[tokio::test]
async fn open_reaches_what_the_host_reaches() {
    let ground = Ground::new();
    let (address, _host) = host().await;
    let (text, instance) = ground.run(prober(address, Network::Open)).await;
    assert_eq!(
        text,
        "direct: connected\nhttp: from the host: GET /path?query HTTP/1.1\n",
        "{}",
        instance.handle.stderr_tail()
    );
    let row = row(&instance, "network");
    assert!(!row.holds && row.how.contains("as configured"), "{row:?}");
}

/// A server that serves HTTP on a port and responds with the peer's address.
fn served(port: u16, network: Network) -> Server {
    let script = r#"
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{self.path} {os.getpid()} {len(os.listdir('/proc/self/fd'))}".encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
print("listening", flush=True)
server.serve_forever()
"#
    .replace("PORT", &port.to_string());
    let mut server = python(&script);
    server.reach = Reach::Port { path: "/".into() };
    server.sandbox.ports = vec![Port {
        inside: port,
        host: None,
    }];
    server.sandbox.network = network;
    server
}

async fn listening(instance: &runtime::Instance) {
    let (tail, mut lines) = instance.handle.follow_stderr();
    if !tail.text().contains("listening") {
        let waiting = async {
            while let Some(line) = lines.next().await {
                if line.is_ok_and(|line| line.text.contains("listening")) {
                    return;
                }
            }
        };
        in_time(TEST_TIMEOUT, waiting).await;
    }
}

#[tokio::test]
async fn a_port_inside_is_reached_from_the_host() {
    let ground = Ground::new();
    for network in [Network::None, Network::Allow(vec!["example.com".into()])] {
        // Both servers use the same port at the same time, because each has a separate network.
        let named = |name: &str| {
            let mut server = served(8000, network.clone());
            // A server's port depends on its id. The id contains the process id, so no other test takes the port while
            // it is free.
            server.sandbox.id = format!("{name}-{}", std::process::id());
            server
        };
        let instances = [
            ground.launch(named("first")).await.unwrap(),
            ground.launch(named("second")).await.unwrap(),
        ];
        for instance in &instances {
            assert!(instance.stdio.is_none());
            listening(instance).await;
            let address = instance.ports[&8000];
            for number in 0..20 {
                let path = format!("/{number}");
                let answer = in_time(TEST_TIMEOUT, get(address, &path)).await.unwrap();
                assert!(answer.contains(&format!("{path} 2 ")), "{answer}");
            }
        }
        assert_ne!(instances[0].ports, instances[1].ports);
        for instance in &instances {
            let address = instance.ports[&8000];
            instance.handle.stop(Duration::from_secs(5)).await;
            assert!(
                TcpStream::connect(address).await.is_err(),
                "nothing listens any longer"
            );
        }
        // The next instance has the same address, also with the stdio transport.
        let mut bridged = named("first");
        bridged.reach = Reach::Streams;
        let again = ground.launch(bridged).await.unwrap();
        assert_eq!(again.ports, instances[0].ports);
        assert!(again.stdio.is_some());
        let answer = async {
            loop {
                match get(again.ports[&8000], "/x").await {
                    Ok(answer) if answer.contains("/x 2 ") => return,
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        in_time(TEST_TIMEOUT, answer).await;
        again.handle.stop(Duration::from_secs(5)).await;
        assert!(ground.left().is_empty());
    }
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_closed() {
    let ground = Ground::new();
    let mut idle = python("import time; print('listening', flush=True); time.sleep(1000)");
    idle.reach = Reach::Port { path: "/".into() };
    idle.sandbox.ports = vec![Port {
        inside: 8000,
        host: None,
    }];
    let instance = ground.launch(idle).await.unwrap();
    listening(&instance).await;
    for _ in 0..3 {
        let answer = in_time(TEST_TIMEOUT, get(instance.ports[&8000], "/")).await;
        assert!(answer.is_err() || answer.is_ok_and(|text| text.is_empty()));
    }
}

#[tokio::test]
async fn with_an_open_network_a_port_is_the_hosts() {
    let ground = Ground::new();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = ground
        .launch(served(port, Network::Open))
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Refused { field: "ports", .. }),
        "{error}"
    );
    drop(taken);
    let mut elsewhere = served(port, Network::Open);
    elsewhere.sandbox.ports[0].host = Some(port ^ 1);
    let error = ground.launch(elsewhere).await.unwrap_err().to_string();
    assert!(error.contains("cannot be published as"), "{error}");
    let instance = ground.launch(served(port, Network::Open)).await.unwrap();
    listening(&instance).await;
    assert_eq!(instance.ports[&port].port(), port);
    let answer = in_time(TEST_TIMEOUT, get(instance.ports[&port], "/x"))
        .await
        .unwrap();
    assert!(answer.contains("/x 2 "), "{answer}");
}
