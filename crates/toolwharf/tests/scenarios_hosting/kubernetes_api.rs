//! An API server that is unreachable, slow or has lost its history, and a gateway that is killed during an operation.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use testkit::{Process, Proxy, Way, soak, wait_for, wait_for_some};
use tokio::time::Instant;

use crate::{
    kubernetes::{
        self, config, create_namespace, delete_namespace, goes_on, kubectl, list, marked,
        nothing_left, stop,
    },
    support::{Host, LONG_DEADLINE, Platform, Site, gone},
};

/// Returns the URL of the API server.
fn server() -> String {
    let path = "--output=jsonpath={.clusters[0].cluster.server}";
    kubectl(&["config", "view", path])
}

/// Makes the product use this address instead of the API server's.
fn lead(site: &Site, address: &str) {
    let own = site.kept.dir.path().join("kubeconfig");
    let mut text = fs::read_to_string(config()).unwrap();
    let known = server();
    assert!(text.contains(&known), "{text}");
    text = text.replace(&known, address);
    fs::write(&own, text).unwrap();
    site.reconfigure(&config(), own.to_str().unwrap());
}

/// Returns host and port of the API server.
fn api_server() -> String {
    server().strip_prefix("https://").unwrap().to_owned()
}

/// A site whose product reaches the API server through a proxy.
async fn proxied() -> (Site, Proxy) {
    let site = Site::new(Platform::Kubernetes).await;
    let proxy = Proxy::to(&api_server()).await;
    lead(&site, &format!("https://{}", proxy.address()));
    (site, proxy)
}

#[tokio::test]
async fn d07_kubernetes_an_api_server_that_is_away_ends_nothing_and_starts_nothing() {
    let away = Duration::from_secs(if soak() { 60 } else { 5 });
    for way in [Way::Cut, Way::Stalled] {
        let (site, proxy) = proxied().await;
        let (host, id) = marked(&site, "away").await;
        let before = kubernetes::containers(&id);
        proxy.be(way);
        let start = Instant::now();
        while start.elapsed() < away {
            let failed = host.call_within(&id, "echo", json!({}), 1000).await;
            assert!(!failed.status.is_success(), "{}", failed.text());
            assert_eq!(kubernetes::containers(&id), before);
        }
        proxy.be(Way::Open);
        goes_on(&host, &id, &before).await;
        // A server exit during the outage is noticed afterwards.
        proxy.be(way);
        host.kill_server(&id, "away");
        gone(host.platform, &id, "away").await;
        assert_eq!(host.events_of(&id, "crashed").await.len(), 0);
        proxy.be(Way::Open);
        host.happened(&id, "ready", 2).await;
        assert_eq!(kubernetes::containers(&id).len(), 1);
        stop(host, &[&id]).await;
    }
}

/// A machine between the gateway and the API server loses power, which closes no connection.
#[tokio::test]
async fn d07_kubernetes_connections_that_are_lost_in_silence_are_made_again() {
    let (site, proxy) = proxied().await;
    let (host, id) = marked(&site, "silent").await;
    let before = kubernetes::containers(&id);
    proxy.lose_connections();
    goes_on(&host, &id, &before).await;
    // The watch is opened again, too.
    host.kill_server(&id, "silent");
    host.happened(&id, "ready", 2).await;
    stop(host, &[&id]).await;
}

#[tokio::test]
async fn d07_kubernetes_an_api_server_that_is_slow_is_waited_for() {
    let (site, proxy) = proxied().await;
    proxy.be(Way::Slow(Duration::from_millis(200)));
    let (host, id) = site.hosting("slow", &[]).await;
    host.call(&id, "crash", json!({})).await;
    host.is_back(&id, 2).await;
    assert_eq!(kubernetes::containers(&id).len(), 1);
    host.stop().await;
}

/// Each watch asks for a version that the API server no longer has. The server responds with 410, and the pod is read
/// again.
#[tokio::test]
async fn d07_kubernetes_a_watch_that_is_too_old_is_begun_anew() {
    let site = Site::new(Platform::Kubernetes).await;
    let mut plain = tokio::process::Command::new("kubectl");
    plain.args(["--kubeconfig", &config(), "proxy"]);
    plain.args(["--port=0", "--reject-paths=^$"]);
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
    let (host, id) = marked(&site, "aged").await;
    host.call(&id, "crash", json!({"code": 4})).await;
    let told = host.is_back(&id, 2).await;
    assert_eq!(told["last_crash"]["exit_code"], 4, "{told:#}");
    assert_eq!(kubernetes::containers(&id).len(), 1);
    host.stop().await;
}

/// The gateway is killed after the Secret or the pod was created, before the response has reached the gateway.
#[tokio::test]
async fn d07_kubernetes_a_gateway_that_is_killed_in_mid_start_leaves_nothing_that_runs_twice() {
    for what in ["secrets", "pods"] {
        let (site, proxy) = proxied().await;
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
        stop(host, &[&id]).await;
    }
}

/// A pod of an earlier run is removed, even though no launch of its server removes it.
#[tokio::test]
async fn d07_kubernetes_what_an_earlier_run_left_goes_when_the_api_server_is_back() {
    let (site, proxy) = proxied().await;
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
    let namespace = create_namespace("inside");
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
    for key in ["token", "ca.crt", "namespace"] {
        let template = format!("--output=go-template={{{{index .data {key:?} | base64decode}}}}");
        let text = in_it(&["get", "secret", &name, &template]);
        fs::write(files.join(key), text).unwrap();
    }
    site.reconfigure(&format!("kubeconfig = {:?}\n", config()), "");
    // The product gets a separate `/run`.
    let product = site.kept.command("serve");
    let product = product.as_std();
    let mut inside = tokio::process::Command::new("unshare");
    let script = "mount --bind \"$0\" /run && exec \"$@\"";
    inside
        .args(["--mount", "sh", "-c", script])
        .arg(&run)
        .arg(product.get_program())
        .args(product.get_args())
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(site.kept.data(""));
    for (name, value) in product.get_envs() {
        if let Some(value) = value {
            inside.env(name, value);
        }
    }
    // Creates the pod that the product claims to be.
    let image = "--image=toolwharf-test/busybox:1";
    let pod = ["run", "gateway", image, "--restart=Never"];
    in_it(&[&pod[..], &["--", "sleep", "600"]].concat());
    let api = api_server();
    let (address, port) = api.split_once(':').unwrap();
    inside
        .env_remove("KUBECONFIG")
        .env("HOSTNAME", "gateway")
        .env("KUBERNETES_SERVICE_HOST", address)
        .env("KUBERNETES_SERVICE_PORT", port);
    let running = site.kept.running(Process::spawn(inside)).await;
    let platform = site.platform;
    let host = Host { running, platform };

    let id = host.host(site.entry("inside", &[])).await;
    let place = &list("pods", &id)[0]["metadata"]["namespace"];
    assert_eq!(place, namespace.as_str());
    // A port is reached at the pod's address, which is reachable only within the cluster.
    let members = json!({"stdio_bridge": false, "ports": [8080]});
    let entry = site.entry_with("port", &["--http", "0.0.0.0:8080"], members);
    let port = host.host(entry).await;
    let policies = list("networkpolicies", &port);
    let from = &policies[0]["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"];
    assert_eq!(from["kubernetes.io/metadata.name"], namespace.as_str());
    let address = &list("pods", &port)[0]["status"]["podIP"];
    let address: std::net::Ipv4Addr = address.as_str().unwrap().parse().unwrap();
    let address = u32::from_le_bytes(address.octets());
    let remote = format!(" {address:08X}:{:04X} ", 8080);
    let calling = host.tool(&port, "hold", json!({"ms": 3000}));
    let seen = wait_for("a connection to the pod", LONG_DEADLINE, async || {
        let connections = fs::read_to_string("/proc/net/tcp").unwrap();
        connections.contains(&remote)
    });
    tokio::join!(calling, seen);
    // Once the gateway's pod is deleted, no gateway has its identity any more, so Kubernetes removes what it has created.
    host.running.kill().await;
    in_it(&["delete", "pod", "gateway", "--grace-period=1"]);
    for id in [id, port] {
        nothing_left(&id).await;
    }
    delete_namespace(&namespace);
}
