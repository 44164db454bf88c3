//! The cost of a call compared with a bare round trip over `attach`, and of idle servers.
//!
//! `TOOLWHARF_TEST_PRODUCT` names an optimised build of the product; `cargo xtask soak kubernetes` makes one.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use testkit::{Bin, Process, RawClient, soak, wait_for, within};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::{Namespace, TEST_TIMEOUT};

/// Limit for the p50 of a call, as a multiple of the p50 of a bare round trip.
const MAX_P50_RATIO: f64 = 1.5;
/// Limit for the memory of 200 idle servers.
const MAX_IDLE_MIB: f64 = 60.0;
const MESSAGE: &str = "some words that go there and back";

struct Product {
    process: Process,
    url: String,
    token: String,
    _dir: tempfile::TempDir,
}

impl Product {
    /// `more`: additional settings.
    async fn start(namespace: &Namespace, more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = format!(
            "[hosting]\nproviders = [\"kubernetes\"]\n[kubernetes]\nkubeconfig = {:?}\nnamespace = {:?}\nruntime_class = \"\"\n{more}",
            crate::support::config(),
            namespace.name
        );
        let (settings_file, servers) = (
            dir.path().join("toolwharf.toml"),
            dir.path().join("mcp.json"),
        );
        fs::write(&settings_file, settings).expect("a file");
        fs::write(&servers, r#"{"mcpServers":{}}"#).expect("a file");
        let program = std::env::var_os("TOOLWHARF_TEST_PRODUCT").map(PathBuf::from);
        let program = program.unwrap_or_else(|| Bin::path("toolwharf"));
        let mut command = tokio::process::Command::new(program);
        command
            .arg("--config")
            .arg(servers)
            .arg("--config")
            .arg(settings_file);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        command.arg(dir.path().join("data")).env("HOME", dir.path());
        let mut process = Process::spawn(command);
        let url = process
            .announced(|line| {
                let url = line
                    .strip_prefix("toolwharf is at ")?
                    .strip_suffix("/mcp")?;
                Some(url.to_owned())
            })
            .await;
        let token = fs::read_to_string(dir.path().join("data/admin-token")).expect("a token");
        let token = token.trim().to_owned();
        Self {
            process,
            url,
            token,
            _dir: dir,
        }
    }

    /// Registers a scripted server, waits until it runs, and returns its id.
    async fn register(&self, name: &str) -> String {
        let admin = |path: &str| {
            let client = RawClient::new(&format!("{}/api/v1/mcp/servers{path}", self.url));
            client.with("authorization", &format!("Bearer {}", self.token))
        };
        let entry = json!({
            "name": name, "image": "toolwharf-test/scripted:1", "args": ["--name", name],
            "start_timeout_ms": 120_000, "resource_limits": {"memory": "64M"},
        });
        let registration = admin("");
        let asked = registration.try_send(hyper::Method::POST, &[], entry.to_string());
        let made = within("a registration", 4 * TEST_TIMEOUT, asked).await;
        let made = made.expect("an answer").collect(TEST_TIMEOUT).await;
        let told: Value = serde_json::from_str(&made.text()).unwrap_or_default();
        let id = told["id"]
            .as_str()
            .unwrap_or_else(|| panic!("{}", made.text()))
            .to_owned();
        wait_for("a server to run", 4 * TEST_TIMEOUT, async || {
            let told = admin(&format!("/{id}"))
                .get(&[])
                .await
                .collect(TEST_TIMEOUT)
                .await;
            let told: Value = serde_json::from_str(&told.text()).unwrap_or_default();
            told["status"] == "running"
        })
        .await;
        id
    }

    /// Private memory in MiB (proc(5), `smaps_rollup`), without the pages of its program.
    fn private(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.pid()));
        let text = text.expect("it runs");
        let is_own = |line: &&str| line.starts_with("Pss_Anon:") || line.starts_with("SwapPss:");
        let kib = text.lines().filter(is_own).filter_map(|line| {
            let number = line.split_ascii_whitespace().nth(1)?;
            number.parse::<f64>().ok()
        });
        kib.sum::<f64>() / 1024.0
    }
}

/// One connection to the product, with one call after another.
struct Caller {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Caller {
    async fn of(product: &Product, id: &str) -> Self {
        let address = product.url.strip_prefix("http://").expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("a setting");
        let head = format!(
            "POST /api/v1/mcp/servers/{id}/call HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
             accept: application/json\r\ncontent-type: application/json\r\n",
            product.token
        );
        let stream = BufReader::new(stream);
        Self { stream, head }
    }

    async fn call(&mut self) -> Duration {
        let body = json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"message": MESSAGE}}});
        let body = body.to_string();
        let asked = format!("{}content-length: {}\r\n\r\n{body}", self.head, body.len());
        let start = Instant::now();
        self.stream
            .write_all(asked.as_bytes())
            .await
            .expect("a request");
        let mut length = 0;
        let mut line = String::new();
        let mut is_first = true;
        loop {
            line.clear();
            self.stream.read_line(&mut line).await.expect("a line");
            assert!(!is_first || line.contains(" 200 "), "{line}");
            is_first = false;
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        self.stream
            .read_exact(&mut answer)
            .await
            .expect("an answer");
        let took = start.elapsed();
        assert!(String::from_utf8_lossy(&answer).contains(MESSAGE));
        took
    }
}

/// The same server, connected over `attach` without Toolwharf.
struct Bare {
    stdin: Box<dyn tokio::io::AsyncWrite + Unpin>,
    stdout: BufReader<Box<dyn tokio::io::AsyncRead + Unpin>>,
    _process: kube::api::AttachedProcess,
    serial: u64,
}

impl Bare {
    async fn start(namespace: &Namespace) -> Self {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"},
            "spec": {"restartPolicy": "Never", "containers": [{
                "name": "server", "image": "toolwharf-test/scripted:1", "args": ["--name", "bare"], "stdin": true,
                "resources": {"limits": {"cpu": "500m", "memory": "64M"}},
            }]},
        }));
        namespace.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "pod/bare"]);
        let config = Kubeconfig::read_from(crate::support::config()).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let pods: Api<Pod> = Api::namespaced(client, &namespace.name);
        let params = AttachParams::default()
            .stdin(true)
            .stdout(true)
            .stderr(false);
        let mut process = pods.attach("bare", &params).await.expect("its streams");
        let mut bare = Self {
            stdin: Box::new(process.stdin().expect("stdin")),
            stdout: BufReader::new(Box::new(process.stdout().expect("stdout"))),
            _process: process,
            serial: 0,
        };
        let client = json!({"name": "t", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        bare.ask("initialize", params).await;
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        bare.send(&ready).await;
        bare
    }

    async fn send(&mut self, message: &Value) {
        self.stdin
            .write_all(format!("{message}\n").as_bytes())
            .await
            .expect("it is sent");
        self.stdin.flush().await.expect("it is sent");
    }

    async fn ask(&mut self, method: &str, params: Value) -> Duration {
        self.serial += 1;
        let start = Instant::now();
        self.send(
            &json!({"jsonrpc": "2.0", "id": self.serial, "method": method, "params": params}),
        )
        .await;
        let mut line = String::new();
        while !line.contains("\"result\"") {
            line.clear();
            let read = timeout(TEST_TIMEOUT, self.stdout.read_line(&mut line)).await;
            assert!(read.expect("an answer in time").expect("a line") > 0);
        }
        start.elapsed()
    }

    async fn call(&mut self) -> Duration {
        self.ask(
            "tools/call",
            json!({"name": "echo", "arguments": {"message": MESSAGE}}),
        )
        .await
    }
}

fn p50(mut all: Vec<Duration>) -> f64 {
    all.sort();
    all[all.len() / 2].as_secs_f64() * 1e6
}

#[tokio::test]
async fn d07_kubernetes_a_call_costs_at_most_half_more_than_a_round_trip() {
    let namespace = Namespace::new("cost").await;
    // An audit record waits twice for the disk, wherever the server runs, so its cost is printed separately.
    let product = Product::start(&namespace, "[audit]\nenabled = false\n").await;
    let recording = Product::start(&namespace, "").await;
    let mut through = Caller::of(&product, &product.register("cost").await).await;
    let mut recorded = Caller::of(&recording, &recording.register("recorded").await).await;
    let mut bare = Bare::start(&namespace).await;
    let rounds = if soak() { 100 } else { 20 };
    let (mut calls, mut records, mut trips) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        // The two measurements alternate, so that other load slows both down.
        for _ in 0..20 {
            calls.push(through.call().await);
        }
        for _ in 0..20 {
            trips.push(bare.call().await);
        }
        for _ in 0..20 {
            records.push(recorded.call().await);
        }
    }
    let (calls, records, trips) = (p50(calls), p50(records), p50(trips));
    let factor = calls / trips;
    println!(
        "a call p50 {calls:.0} µs, a bare round trip {trips:.0} µs: {factor:.2} (at most {MAX_P50_RATIO}); a recorded call {records:.0} µs"
    );
    assert!(factor <= MAX_P50_RATIO, "{factor:.2}");
}

#[tokio::test]
async fn d07_kubernetes_200_servers_that_do_nothing_cost_60_mib() {
    let count = if soak() { 200 } else { 10 };
    let namespace = Namespace::new("idle").await;
    let product = Product::start(&namespace, "").await;
    let before = product.private();
    let start = Instant::now();
    for first in (0..count).step_by(5) {
        let names: Vec<String> = (first..first + 5).map(|n| format!("idle-{n}")).collect();
        join_all(names.iter().map(|name| product.register(name))).await;
    }
    let took = start.elapsed();
    let cost = product.private() - before;
    println!("{count} servers cost {cost:.1} MiB beside {before:.1} MiB; started in {took:?}");
    let pods = namespace.count("pods");
    drop(product);
    // This leaves an idle node for the next test.
    namespace.kubectl(&["delete", "pods", "--all", "--timeout=600s"]);
    assert_eq!(pods, count);
    assert!(cost <= MAX_IDLE_MIB * count as f64 / 200.0, "{cost:.1} MiB");
}
