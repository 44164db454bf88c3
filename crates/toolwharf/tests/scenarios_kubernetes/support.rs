//! An API server, one namespace per test, and gateways that watch it.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{Bin, Process, postgres::Database, wait_for, wait_for_some};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    api::Api,
    common::{Gateway, Setup},
};

/// The variable with the path of the API server's kubeconfig.
const VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES_API";
/// Nothing here takes this long unless it is broken.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// The lease of replicas in these tests.
const LEASE: &str = "4s";

/// Returns the kubeconfig of the API server. Its user may do everything.
pub(crate) fn config() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no kubeconfig; run: cargo xtask kubernetes --control-plane -- cargo xtask postgres -- cargo \
             nextest run -p toolwharf --features kubernetes --test scenarios_kubernetes"
        )
    })
}

/// Runs `kubectl` and returns its output, even if it failed.
pub(crate) fn try_kubectl(args: &[&str], stdin: &str) -> Output {
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(["--kubeconfig", &config()])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = kubectl.spawn().expect("kubectl is installed");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) fn kubectl(args: &[&str], stdin: &str) -> String {
    let output = try_kubectl(args, stdin);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {why}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A separate namespace for one test, in a cluster with the resource definition.
pub(crate) struct Namespace(pub(crate) String);

impl Namespace {
    pub(crate) async fn new(test: &str) -> Self {
        define().await;
        let name = format!("{test}-{}", std::process::id());
        kubectl(&["create", "namespace", &name], "");
        Self(name)
    }

    pub(crate) fn kubectl(&self, args: &[&str], stdin: &str) -> String {
        kubectl(&[&["--namespace", &self.0], args].concat(), stdin)
    }

    pub(crate) fn apply(&self, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "toolwharf.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec,
        });
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--filename=-",
        ];
        self.kubectl(&args, &object.to_string());
    }

    /// Returns the resource, or `None` if it does not exist.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        let args = [
            "--namespace",
            &self.0,
            "get",
            "mcpserver",
            name,
            "--output=json",
        ];
        let output = try_kubectl(&args, "");
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Starts to delete a resource.
    pub(crate) fn delete(&self, name: &str) {
        self.kubectl(&["delete", "mcpserver", name, "--wait=false"], "");
    }

    pub(crate) async fn gone(&self, name: &str) {
        wait_for(&format!("{name} to be gone"), LONG_DEADLINE, async || {
            self.get(name).is_none()
        })
        .await;
    }

    /// Waits until a condition has this status and reason. Returns the whole resource.
    pub(crate) async fn condition(
        &self,
        name: &str,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> Value {
        let what = format!("{name}: {kind} {status} {reason}");
        wait_for_some(&what, LONG_DEADLINE, async || {
            let object = self.get(name)?;
            let one = condition(&object, kind)?;
            let is_so = one["status"] == status && one["reason"] == reason;
            let is_new = one["observedGeneration"] == object["metadata"]["generation"];
            (is_so && is_new).then_some(object)
        })
        .await
    }

    pub(crate) async fn ready(&self, name: &str) -> Value {
        self.condition(name, "Ready", "True", "Running").await
    }

    /// Returns the events of a resource: type, reason and message.
    pub(crate) fn events(&self, name: &str) -> Vec<[String; 3]> {
        let of =
            format!("--field-selector=involvedObject.name={name},involvedObject.kind=MCPServer");
        let told = self.kubectl(&["get", "events", "--output=json", &of], "");
        let told: Value = serde_json::from_str(&told).unwrap();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let events = told["items"].as_array().unwrap().iter();
        events
            .map(|event| ["type", "reason", "message"].map(|key| text(event, key)))
            .collect()
    }

    pub(crate) fn settings(&self) -> String {
        self.settings_with(&config())
    }

    /// The settings of a gateway that watches the namespace.
    pub(crate) fn settings_with(&self, config: &str) -> String {
        format!(
            "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[hosting]\nproviders = [\"process\"]\n[replicas]\nlease = \"{LEASE}\"\n\
             [kubernetes]\nkubeconfig = {config:?}\nwatch_namespace = {:?}\n",
            self.0
        )
    }

    pub(crate) async fn gateway(&self) -> Gateway {
        Setup::new().settings(&self.settings()).serve().await
    }

    pub(crate) async fn replica(&self, database: &Database, first: Option<&Gateway>) -> Gateway {
        let setup = Setup::new().settings(&self.settings());
        setup.of_replica(database.url(), first).serve().await
    }
}

impl Drop for Namespace {
    /// Removes the finalizers of resources whose gateway is gone; otherwise they would never be deleted.
    fn drop(&mut self) {
        let all = try_kubectl(
            &["--namespace", &self.0, "get", "mcpservers", "--output=name"],
            "",
        );
        for name in String::from_utf8_lossy(&all.stdout).lines() {
            let patch = [
                "patch",
                name,
                "--type=merge",
                "--patch",
                r#"{"metadata":{"finalizers":null}}"#,
            ];
            try_kubectl(&[&["--namespace", &self.0][..], &patch].concat(), "");
            try_kubectl(
                &["--namespace", &self.0, "delete", name, "--wait=false"],
                "",
            );
        }
    }
}

/// Makes sure that the cluster has the resource definition.
pub(crate) async fn define() {
    let output = Command::new(Bin::path("toolwharf"))
        .args(["kubernetes", "crd"])
        .output()
        .unwrap();
    let definition = String::from_utf8(output.stdout).unwrap();
    wait_for("the definition", LONG_DEADLINE, async || {
        // Fails while an earlier definition is being deleted.
        try_kubectl(&["apply", "--filename=-"], &definition);
        let args = ["get", "crd", "mcpservers.toolwharf.dev", "--output=json"];
        let found: Value =
            serde_json::from_slice(&try_kubectl(&args, "").stdout).unwrap_or_default();
        let conditions = found["status"]["conditions"].as_array();
        let is_there = conditions.is_some_and(|all| {
            all.iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        });
        is_there
            && found["metadata"]["deletionTimestamp"].is_null()
            && try_kubectl(&["get", "mcpservers", "--all-namespaces"], "")
                .status
                .success()
    })
    .await;
}

pub(crate) fn condition<'o>(object: &'o Value, kind: &str) -> Option<&'o Value> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|one| one["type"] == kind)
}

/// The spec of a scripted server with the provider `process`.
pub(crate) fn scripted(name: &str, more: Value) -> Value {
    let mut spec = json!({"command": Bin::path("testkit-scripted"), "args": ["--name", name], "provider": "process"});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    spec
}

/// Returns the gateway's server of that name.
pub(crate) async fn server(gateway: &Gateway, name: &str) -> Option<Value> {
    let all = Api::admin(gateway)
        .ok("GET", "/mcp/servers", Value::Null)
        .await;
    let mut named = all["servers"]
        .as_array()?
        .iter()
        .filter(|one| one["name"] == name);
    let found = named.next().cloned();
    assert!(named.next().is_none(), "two servers are called {name}");
    found
}

/// Calls the tool `echo` of a server.
pub(crate) async fn call(gateway: &Gateway, id: &str) -> Value {
    let body =
        json!({"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hello"}}});
    let path = format!("/mcp/servers/{id}/call");
    Api::admin(gateway).ok("POST", &path, body).await
}

/// Returns how many processes of a scripted server of this name run on this machine.
pub(crate) fn instances(name: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_one = |process: &fs::DirEntry| {
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split('\0');
        words
            .next()
            .is_some_and(|program| program.ends_with("/testkit-scripted"))
            && words.any(|word| word == name)
    };
    processes.filter(is_one).count()
}

/// A second API server on the same etcd, started like the first one. A restart clears its watch history.
pub(crate) struct ApiServer {
    process: Option<Process>,
    words: Vec<String>,
    dir: PathBuf,
    port: u16,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let dir = fs::canonicalize(PathBuf::from(config()).parent().unwrap()).unwrap();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| {
            let line = fs::read_to_string(process.path().join("cmdline")).ok()?;
            let cwd = fs::read_link(process.path().join("cwd")).ok()?;
            let words: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
            (cwd == dir && words[0].ends_with("/kube-apiserver")).then_some(words)
        });
        let mut words = lines.next().expect("the API server runs on this machine");
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        words.retain(|word| !word.starts_with("--secure-port="));
        words.push(format!("--secure-port={port}"));
        let mut server = Self {
            process: None,
            words,
            dir,
            port,
        };
        drop(free);
        server.again().await;
        server
    }

    /// Restarts the API server.
    pub(crate) async fn again(&mut self) {
        self.process = None;
        let mut command = tokio::process::Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir(&self.dir);
        self.process = Some(Process::spawn(command));
        let address = format!("--server=https://127.0.0.1:{}", self.port);
        wait_for("the other API server", LONG_DEADLINE, async || {
            let args = [&address, "get", "mcpservers", "--all-namespaces"];
            try_kubectl(&args, "").status.success()
        })
        .await;
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A TCP proxy to the API server that can be cut, with a matching kubeconfig.
pub(crate) struct Way {
    address: SocketAddr,
    to: String,
    tasks: JoinSet<()>,
    pub(crate) config: PathBuf,
    _dir: tempfile::TempDir,
}

impl Way {
    pub(crate) async fn new() -> Self {
        let text = fs::read_to_string(config()).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        Self::to(rest.split('"').next().unwrap()).await
    }

    /// Starts a proxy to the API server at this address.
    pub(crate) async fn to(to: &str) -> Self {
        let text = fs::read_to_string(config()).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        let first = rest.split('"').next().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        fs::write(&config, text.replace(first, &address.to_string())).unwrap();
        let mut way = Self {
            address,
            to: to.to_owned(),
            tasks: JoinSet::new(),
            config,
            _dir: dir,
        };
        way.carry(listener);
        way
    }

    fn carry(&mut self, listener: TcpListener) {
        let to = self.to.clone();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let to = to.clone();
                connections.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(to).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
    }

    /// Ends all connections and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        self.tasks.shutdown().await;
    }

    pub(crate) async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.carry(listener);
    }
}
