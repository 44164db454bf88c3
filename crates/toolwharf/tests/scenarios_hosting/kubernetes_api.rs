//! An API server that is unreachable, slow or has lost its history, and a gateway that is killed during an operation.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use testkit::{Process, Proxy, Way, soak, wait_for, wait_for_some};
use tokio::time::Instant;

use crate::{
    kubernetes::{self, config, kubectl, list, nothing_left},
    support::{Host, LONG_DEADLINE, Platform, Site, with},
};

/// Makes the product use this address instead of the API server's.
fn lead(site: &Site, server: &str) {
    let own = site.kept.dir.path().join("kubeconfig");
    let mut text = fs::read_to_string(config()).unwrap();
    let known = kubectl(&[
        "config",
        "view",
        "--output=jsonpath={.clusters[0].cluster.server}",
    ]);
    assert!(text.contains(&known), "{text}");
    text = text.replace(&known, server);
    fs::write(&own, text).unwrap();
    site.reconfigure(&config(), own.to_str().unwrap());
}

/// Returns host and port of the API server.
fn api_server() -> String {
    let server = kubectl(&[
        "config",
        "view",
        "--output=jsonpath={.clusters[0].cluster.server}",
    ]);
    server.strip_prefix("https://").unwrap().to_owned()
}

async fn proxied(site: &Site) -> Proxy {
    let proxy = Proxy::to(&api_server()).await;
    lead(site, &format!("https://{}", proxy.address()));
    proxy
}

#[tokio::test]
async fn d07_kubernetes_an_api_server_that_is_away_ends_nothing_and_starts_nothing() {
    let away = Duration::from_secs(if soak() { 60 } else { 5 });
    for way in [Way::Cut, Way::Stalled] {
        let site = Site::new(Platform::Kubernetes).await;
        let proxy = proxied(&site).await;
        let (host, id) = site.hosting("away", &[]).await;
        host.mark(&id).await;
        let before = kubernetes::containers(&id);
        proxy.be(way);
        let start = Instant::now();
        while start.elapsed() < away {
            let failed = host.call_within(&id, "echo", json!({}), 1000).await;
            assert!(!failed.status.is_success(), "{}", failed.text());
            assert_eq!(kubernetes::containers(&id), before);
        }
        proxy.be(Way::Open);
        wait_for("the same instance to answer", LONG_DEADLINE, async || {
            let echo = host.call_within(&id, "echo", json!({}), 2000).await;
            echo.status == 200
        })
        .await;
        assert!(host.is_marked(&id).await, "{way:?}");
        assert_eq!(kubernetes::containers(&id), before);
        assert_eq!(host.events_of(&id, "ready").await.len(), 1);
        // Exits in the meantime are noticed afterwards.
        proxy.be(way);
        host.kill_server(&id, "away");
        wait_for("its end", LONG_DEADLINE, async || {
            kubernetes::containers(&id).is_empty()
        })
        .await;
        assert_eq!(host.events_of(&id, "crashed").await.len(), 0);
        proxy.be(Way::Open);
        host.happened(&id, "ready", 2).await;
        assert_eq!(kubernetes::containers(&id).len(), 1);
        host.stop().await;
        nothing_left(&id).await;
    }
}

/// A machine in between that loses power closes no connection.
#[tokio::test]
async fn d07_kubernetes_connections_that_are_lost_in_silence_are_made_again() {
    let site = Site::new(Platform::Kubernetes).await;
    let proxy = proxied(&site).await;
    let (host, id) = site.hosting("silent", &[]).await;
    host.mark(&id).await;
    let before = kubernetes::containers(&id);
    proxy.lose_connections();
    wait_for("the same instance to answer", LONG_DEADLINE, async || {
        let echo = host.call_within(&id, "echo", json!({}), 2000).await;
        echo.status == 200
    })
    .await;
    assert!(host.is_marked(&id).await);
    assert_eq!(kubernetes::containers(&id), before);
    // The watch is opened again, too.
    host.kill_server(&id, "silent");
    host.happened(&id, "ready", 2).await;
    host.stop().await;
    nothing_left(&id).await;
}

#[tokio::test]
async fn d07_kubernetes_an_api_server_that_is_slow_is_waited_for() {
    let site = Site::new(Platform::Kubernetes).await;
    let proxy = proxied(&site).await;
    proxy.be(Way::Slow(Duration::from_millis(200)));
    let (host, id) = site.hosting("slow", &[]).await;
    host.call(&id, "crash", json!({})).await;
    host.happened(&id, "ready", 2).await;
    host.until(&id, "running").await;
    assert_eq!(kubernetes::containers(&id).len(), 1);
    host.stop().await;
}

/// Each watch asks for a version that the API server no longer has. The server responds with 410, and the pod is read
/// again.
#[tokio::test]
async fn d07_kubernetes_a_watch_that_is_too_old_is_begun_anew() {
    let site = Site::new(Platform::Kubernetes).await;
    let mut plain = tokio::process::Command::new("kubectl");
    plain.args([
        "--kubeconfig",
        &config(),
        "proxy",
        "--port=0",
        "--reject-paths=^$",
    ]);
    let mut plain = Process::spawn(plain);
    let target = plain
        .announced(|line| Some(line.strip_prefix("Starting to serve on ")?.to_owned()))
        .await;
    let proxy = Proxy::editing(&target, |sent| {
        let text = String::from_utf8_lossy(&sent);
        match text.split_once("&resourceVersion=") {
            Some((before, after)) if before.contains("watch=true") => {
                let rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
                format!("{before}&resourceVersion=1{rest}").into_bytes()
            }
            _ => sent,
        }
    })
    .await;
    lead(&site, &format!("http://{}", proxy.address()));
    let (host, id) = site.hosting("aged", &[]).await;
    host.mark(&id).await;
    host.call(&id, "crash", json!({"code": 4})).await;
    host.happened(&id, "ready", 2).await;
    let told = host.until(&id, "running").await;
    assert_eq!(told["last_crash"]["exit_code"], 4, "{told:#}");
    assert_eq!(kubernetes::containers(&id).len(), 1);
    host.stop().await;
}

/// Killed when the pod exists and the gateway does not know it yet.
#[tokio::test]
async fn d07_kubernetes_a_gateway_that_is_killed_in_mid_start_leaves_nothing_that_runs_twice() {
    for what in ["secrets", "pods"] {
        let site = Site::new(Platform::Kubernetes).await;
        let proxy = proxied(&site).await;
        let (host, id) = site.hosting("killed", &[]).await;
        host.order(&id, "stop").await;
        let path = format!("/{id}/start");
        let starting = host.ask("POST", &path, Value::Null);
        let seen = async {
            wait_for("the object to be created", LONG_DEADLINE, async || {
                !list(what, &id).is_empty()
            })
            .await;
            proxy.be(Way::Stalled);
        };
        tokio::select! {
            _ = starting => {}
            () = seen => {}
        }
        host.running.kill().await;
        proxy.be(Way::Open);
        let host = site.start().await;
        host.until(&id, "running").await;
        assert_eq!(list("pods", &id).len(), 1, "{what}");
        assert_eq!(list("secrets", &id).len(), 1, "{what}");
        host.stop().await;
        nothing_left(&id).await;
    }
}

/// The server is not started again, so no launch removes the old pod.
#[tokio::test]
async fn d07_kubernetes_what_an_earlier_run_left_goes_when_the_api_server_is_back() {
    let site = Site::new(Platform::Kubernetes).await;
    let proxy = proxied(&site).await;
    let (host, id) = site.hosting("left", &[]).await;
    proxy.be(Way::Cut);
    let path = format!("/{id}");
    tokio::select! {
        _ = host.ask("DELETE", &path, Value::Null) => {}
        () = wait_for("its row to be removed", LONG_DEADLINE, async || {
            host.ask("GET", &path, Value::Null).await.status == 404
        }) => {}
    }
    host.running.kill().await;
    assert_eq!(kubernetes::containers(&id).len(), 1);
    let host = site.start().await;
    let gone = host.ask("GET", &path, Value::Null).await;
    assert_eq!(gone.status, 404, "{}", gone.text());
    assert_eq!(kubernetes::containers(&id).len(), 1);
    proxy.be(Way::Open);
    nothing_left(&id).await;
    host.stop().await;
}

/// Inside a pod, the API server's address is in the environment, and a token, certificates and the namespace are in
/// files.
#[tokio::test]
async fn d07_kubernetes_in_the_cluster_its_account_is_all_that_is_needed() {
    const FILES: &str = "secrets/kubernetes.io/serviceaccount";
    let site = Site::new(Platform::Kubernetes).await;
    let namespace = format!("inside-{}", std::process::id());
    kubectl(&["create", "namespace", &namespace]);
    let in_it = |args: &[&str]| kubectl(&[&["--namespace", &namespace], args].concat());
    let rights = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/kubernetes/rbac.yaml"
    );
    in_it(&["apply", "--filename", rights]);
    let name = wait_for_some("the token of the account", LONG_DEADLINE, async || {
        let name = "--output=jsonpath={.secrets[0].name}";
        let name = in_it(&["get", "serviceaccount", "toolwharf", name]);
        (!name.is_empty()).then_some(name)
    })
    .await;
    let run = site.kept.dir.path().join("run");
    let files = run.join(FILES);
    fs::create_dir_all(&files).unwrap();
    for (file, key) in [
        ("token", "token"),
        ("ca.crt", "ca.crt"),
        ("namespace", "namespace"),
    ] {
        let template = format!("--output=go-template={{{{index .data {key:?} | base64decode}}}}");
        let text = in_it(&["get", "secret", &name, &template]);
        fs::write(files.join(file), text).unwrap();
    }
    site.reconfigure(&format!("kubeconfig = {:?}\n", config()), "");
    // The product gets a separate `/run`.
    let product = site.kept.command("serve");
    let product = product.as_std();
    let mut inside = tokio::process::Command::new("unshare");
    inside.args([
        "--mount",
        "sh",
        "-c",
        "mount --bind \"$0\" /run && exec \"$@\"",
    ]);
    inside
        .arg(&run)
        .arg(product.get_program())
        .args(product.get_args());
    inside
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(site.kept.data(""));
    for (name, value) in product.get_envs() {
        if let Some(value) = value {
            inside.env(name, value);
        }
    }
    // The pod that the product claims to be.
    let image = "--image=toolwharf-test/busybox:1";
    in_it(&[
        "run",
        "gateway",
        image,
        "--restart=Never",
        "--",
        "sleep",
        "600",
    ]);
    inside.env("HOSTNAME", "gateway");
    let api = api_server();
    let (address, port) = api.split_once(':').unwrap();
    inside.env_remove("KUBECONFIG");
    inside
        .env("KUBERNETES_SERVICE_HOST", address)
        .env("KUBERNETES_SERVICE_PORT", port);
    let running = site.kept.running(Process::spawn(inside)).await;
    let host = Host {
        running,
        platform: site.platform,
    };

    let id = host.host(site.entry("inside", &[])).await;
    assert_eq!(
        list("pods", &id)[0]["metadata"]["namespace"],
        namespace.as_str()
    );
    // A port is reached at the pod's address, which is reachable only within the cluster.
    let entry = with(
        site.entry("port", &["--http", "0.0.0.0:8080"]),
        json!({"stdio_bridge": false, "ports": [8080]}),
    );
    let port = host.host(entry).await;
    let policies = list("networkpolicies", &port);
    let from = &policies[0]["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"];
    assert_eq!(from["kubernetes.io/metadata.name"], namespace.as_str());
    let address: std::net::Ipv4Addr = list("pods", &port)[0]["status"]["podIP"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let remote = format!(
        " {:08X}:{:04X} ",
        u32::from_le_bytes(address.octets()),
        8080
    );
    let calling = host.tool(&port, "hold", json!({"ms": 3000}));
    let seen = wait_for(
        "a connection to the pod's address",
        LONG_DEADLINE,
        async || {
            fs::read_to_string("/proc/net/tcp")
                .unwrap()
                .contains(&remote)
        },
    );
    tokio::join!(calling, seen);
    // The gateway cannot return with its identity: everything it has created is removed with its pod.
    host.running.kill().await;
    in_it(&["delete", "pod", "gateway", "--grace-period=1"]);
    for id in [id, port] {
        nothing_left(&id).await;
    }
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}
