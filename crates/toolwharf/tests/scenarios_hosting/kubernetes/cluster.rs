//! Reads and changes the state of the cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::{Process, wait_for};

use super::{config, containers, kubectl, list, try_kubectl};
use crate::support::{Host, LONG_DEADLINE, Site};

/// Returns the name of a server's pod.
pub(crate) fn pod(id: &str) -> String {
    let pods = list("pods", id);
    assert_eq!(pods.len(), 1, "{pods:?}");
    pods[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Waits until all objects of a server are removed. Objects of a launch are removed with it, some of them a moment later.
pub(crate) async fn nothing_left(id: &str) {
    wait_for("all objects to be removed", LONG_DEADLINE, async || {
        list("pods,secrets,networkpolicies", id).is_empty()
    })
    .await;
}

/// Starts a product with one running server, whose instance is marked.
pub(crate) async fn marked(site: &Site, name: &str) -> (Host, String) {
    let (host, id) = site.hosting(name, &[]).await;
    host.mark(&id).await;
    (host, id)
}

/// Waits until the server answers again. Asserts that it is the marked instance, in the same container, and that no
/// other instance has run.
pub(crate) async fn goes_on(host: &Host, id: &str, before: &[String]) {
    wait_for("the same instance to answer", LONG_DEADLINE, async || {
        let echo = host.call_within(id, "echo", json!({}), 2000).await;
        echo.status == 200
    })
    .await;
    assert!(host.is_marked(id).await);
    assert_eq!(containers(id), before);
    assert_eq!(host.events_of(id, "ready").await.len(), 1);
}

/// Stops the product, and asserts that nothing of these servers is left.
pub(crate) async fn stop(host: Host, ids: &[&str]) {
    host.stop().await;
    for id in ids {
        nothing_left(id).await;
    }
}

/// Creates a namespace that is unique to this test run.
pub(crate) fn create_namespace(name: &str) -> String {
    let name = format!("{name}-{}", std::process::id());
    kubectl(&["create", "namespace", &name]);
    name
}

pub(crate) fn delete_namespace(name: &str) {
    kubectl(&["delete", "namespace", name, "--wait=false"]);
}

/// Returns the path of a file of the test cluster.
fn file(name: &str) -> PathBuf {
    Path::new(&config()).with_file_name(name)
}

/// Kills the kubelet, which is restarted unless a [`Held`] exists.
pub(crate) fn kubelet_ends() {
    let pid = fs::read_to_string(file("kubelet.pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Keeps the node without a kubelet until this value is dropped.
pub(crate) struct Held(PathBuf);

impl Held {
    pub(crate) fn now() -> Self {
        let held = Self(file("kubelet.hold"));
        fs::write(&held.0, "").unwrap();
        kubelet_ends();
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// Denies all pods of a namespace until this value is dropped.
pub(crate) struct Webhook {
    name: String,
    _server: Process,
    _dir: tempfile::TempDir,
}

const SERVER: &str = r#"
import http.server, json, ssl, sys
class Deny(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": sys.argv[2]}}
        body = json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": said}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", 0), Deny)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/cert", sys.argv[1] + "/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("it is at", server.server_port, flush=True)
server.serve_forever()
"#;

impl Webhook {
    pub(crate) async fn denies(namespace: &str, why: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-days", "1", "-subj", "/CN=webhook", "-addext"])
            .args(["subjectAltName=IP:127.0.0.1", "-keyout", "key"])
            .args(["-out", "cert"])
            .current_dir(dir.path())
            .output()
            .expect("openssl is installed with the cluster");
        assert!(made.status.success(), "{made:?}");
        let mut server = tokio::process::Command::new("python3");
        server.args(["-c", SERVER]).arg(dir.path()).arg(why);
        let mut server = Process::spawn(server);
        let port = server
            .announced(|line| line.strip_prefix("it is at ")?.parse::<u16>().ok())
            .await;
        let name = format!("{namespace}.toolwharf.dev");
        let label = format!("denied={namespace}");
        kubectl(&["label", "namespace", namespace, &label]);
        use base64::Engine as _;
        let cert = fs::read(dir.path().join("cert")).unwrap();
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{
                "name": name,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {
                    "url": format!("https://127.0.0.1:{port}/"),
                    "caBundle": base64::engine::general_purpose::STANDARD.encode(cert),
                },
                "namespaceSelector": {"matchLabels": {"denied": namespace}},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                }],
            }],
        });
        let objects = dir.path().join("webhook.json");
        fs::write(&objects, webhook.to_string()).unwrap();
        kubectl(&["create", "--filename", objects.to_str().unwrap()]);
        // The API server applies the webhook a moment later.
        wait_for("a denial", LONG_DEADLINE, async || {
            let image = "--image=toolwharf-test/busybox:1";
            let place = ["--namespace", namespace, "--dry-run=server"];
            let tried = [&["run", "tried", image][..], &place].concat();
            try_kubectl(&tried).is_err_and(|said| said.contains(why))
        })
        .await;
        Self {
            name,
            _server: server,
            _dir: dir,
        }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let kind = "validatingwebhookconfiguration";
        let _ = try_kubectl(&["delete", kind, &self.name]);
    }
}
