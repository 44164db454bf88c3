//! An API server, one namespace per test, and gateways that watch it.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{
    Bin, DEADLINE, Process, Proxy, RawClient, Way, postgres::Database, wait_for, wait_for_some,
};

use crate::{
    api::Api,
    common::{Gateway, Setup, processes},
};

/// The variable with the path of the API server's kubeconfig.
const VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES_API";
/// Deadline for each wait, reached only if the test fails.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// A patch that removes all finalizers.
pub(crate) const NO_FINALIZERS: &str = r#"{"metadata":{"finalizers":null}}"#;
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
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(stdin.as_bytes()).unwrap();
    drop(pipe);
    child.wait_with_output().unwrap()
}

pub(crate) fn kubectl(args: &[&str], stdin: &str) -> String {
    let output = try_kubectl(args, stdin);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {why}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A separate namespace for one test, in a cluster with the resource definition.
pub(crate) struct Namespace {
    pub(crate) name: String,
    /// `kubectl proxy`. Tests poll the API through it, because each start of `kubectl` takes a fifth of a second of
    /// processor time.
    proxy: Process,
    url: String,
}

impl Namespace {
    pub(crate) async fn new(test: &str) -> Self {
        define().await;
        let name = format!("{test}-{}", std::process::id());
        kubectl(&["create", "namespace", &name], "");
        let mut command = tokio::process::Command::new("kubectl");
        command.args(["--kubeconfig", &config(), "proxy", "--port=0"]);
        let mut proxy = Process::spawn(command);
        let serving = "Starting to serve on ";
        let address = proxy.announced(|line| line.strip_prefix(serving).map(str::to_owned));
        let url = format!("http://{}", address.await);
        Self { name, proxy, url }
    }

    pub(crate) fn kubectl(&self, args: &[&str], stdin: &str) -> String {
        kubectl(&[&["--namespace", &self.name], args].concat(), stdin)
    }

    fn try_kubectl(&self, args: &[&str]) -> Output {
        try_kubectl(&[&["--namespace", &self.name], args].concat(), "")
    }

    /// Reads objects of the namespace from the API: `api` is a group with its version, such as `api/v1`. Returns `None`
    /// if they do not exist.
    async fn read(&self, api: &str, objects: &str) -> Option<Value> {
        let url = format!("{}/{api}/namespaces/{}/{objects}", self.url, self.name);
        let reply = RawClient::new(&url).get(&[]).await.collect(DEADLINE).await;
        if reply.status == 404 {
            return None;
        }
        assert_eq!(
            reply.status,
            200,
            "{objects}: {} {}",
            reply.text(),
            self.proxy.stderr()
        );
        Some(serde_json::from_slice(&reply.body).unwrap())
    }

    /// Creates or changes an object of Kubernetes itself.
    pub(crate) fn apply_plain(&self, object: &Value) {
        self.kubectl(&["apply", "--filename=-"], &object.to_string());
    }

    /// Creates the Secret `keys` with this value of `token`, or changes it.
    pub(crate) fn apply_token(&self, value: &str) {
        self.apply_plain(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": value},
        }));
    }

    /// Changes a resource as another client would.
    pub(crate) fn patch(&self, name: &str, patch: &str) {
        let args = ["patch", "mcpserver", name, "--type=merge", "--patch", patch];
        self.kubectl(&args, "");
    }

    pub(crate) fn apply(&self, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "toolwharf.dev/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec,
        });
        let args = ["apply", "--server-side", "--force-conflicts"];
        let args = [&args[..], &["--filename=-"]].concat();
        self.kubectl(&args, &object.to_string());
    }

    /// Applies a scripted server of this name.
    pub(crate) fn scripted(&self, name: &str, more: Value) {
        self.apply(name, scripted(name, more));
    }

    /// Returns the resource, or `None` if it does not exist.
    pub(crate) async fn get(&self, name: &str) -> Option<Value> {
        let api = "apis/toolwharf.dev/v1alpha1";
        self.read(api, &format!("mcpservers/{name}")).await
    }

    /// Starts to delete a resource.
    pub(crate) fn delete(&self, name: &str) {
        self.kubectl(&["delete", "mcpserver", name, "--wait=false"], "");
    }

    pub(crate) async fn gone(&self, name: &str) {
        wait_for(&format!("{name} to be gone"), LONG_DEADLINE, async || {
            self.get(name).await.is_none()
        })
        .await;
    }

    /// Deletes a resource and waits until it is gone.
    pub(crate) async fn remove(&self, name: &str) {
        self.delete(name);
        self.gone(name).await;
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
            let object = self.get(name).await?;
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

    /// Waits until the resource is ready. Returns its server's id.
    pub(crate) async fn id(&self, name: &str) -> String {
        let object = self.ready(name).await;
        object["status"]["id"].as_str().unwrap().to_owned()
    }

    /// Applies scripted servers and waits until they are ready. Returns their ids.
    pub(crate) async fn run(&self, names: &[&str], more: Value) -> Vec<String> {
        for name in names {
            self.scripted(name, more.clone());
        }
        let mut ids = Vec::new();
        for name in names {
            ids.push(self.id(name).await);
        }
        ids
    }

    /// Waits until the resource is refused for this reason. Returns the whole resource.
    pub(crate) async fn refused(&self, name: &str, reason: &str) -> Value {
        self.condition(name, "Accepted", "False", reason).await
    }

    /// Returns the events of a resource: type, reason and message.
    pub(crate) async fn events(&self, name: &str) -> Vec<[String; 3]> {
        let of = format!("involvedObject.name%3D{name}%2CinvolvedObject.kind%3DMCPServer");
        let events = format!("events?fieldSelector={of}");
        let told = self.read("api/v1", &events).await.unwrap_or_default();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let events = told["items"].as_array().unwrap().iter();
        events
            .map(|event| ["type", "reason", "message"].map(|key| text(event, key)))
            .collect()
    }

    /// The settings of a gateway that watches the namespace.
    fn settings(&self, config: &str) -> String {
        format!(
            "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n[hosting]\nproviders = [\"process\"]\n[replicas]\nlease = \"{LEASE}\"\n\
             [kubernetes]\nkubeconfig = {config:?}\nwatch_namespace = {:?}\n",
            self.name
        )
    }

    pub(crate) async fn gateway(&self) -> Gateway {
        self.gateway_with(&config()).await
    }

    /// Starts a gateway with this kubeconfig.
    pub(crate) async fn gateway_with(&self, config: &str) -> Gateway {
        Setup::new().settings(&self.settings(config)).serve().await
    }

    pub(crate) async fn replica(&self, database: &Database, first: Option<&Gateway>) -> Gateway {
        let setup = Setup::new().settings(&self.settings(&config()));
        setup.of_replica(database.url(), first).serve().await
    }
}

impl Drop for Namespace {
    /// Removes the finalizers of resources whose gateway is gone; otherwise they would never be deleted.
    fn drop(&mut self) {
        let all = self.try_kubectl(&["get", "mcpservers", "--output=name"]);
        for name in String::from_utf8_lossy(&all.stdout).lines() {
            self.try_kubectl(&["patch", name, "--type=merge", "--patch", NO_FINALIZERS]);
            self.try_kubectl(&["delete", name, "--wait=false"]);
        }
    }
}

/// Returns the definition that `toolwharf kubernetes crd` prints.
pub(crate) fn definition() -> String {
    let mut command = Command::new(Bin::path("toolwharf"));
    let output = command.args(["kubernetes", "crd"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Makes sure that the cluster has the resource definition.
pub(crate) async fn define() {
    let definition = definition();
    wait_for("the definition", LONG_DEADLINE, async || {
        // `kubectl apply` fails while an earlier definition is being deleted.
        try_kubectl(&["apply", "--filename=-"], &definition);
        let args = ["get", "crd", "mcpservers.toolwharf.dev", "--output=json"];
        let found: Value =
            serde_json::from_slice(&try_kubectl(&args, "").stdout).unwrap_or_default();
        let conditions = found["status"]["conditions"].as_array();
        let is_there = conditions.is_some_and(|all| {
            all.iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        });
        let list = ["get", "mcpservers", "--all-namespaces"];
        is_there
            && found["metadata"]["deletionTimestamp"].is_null()
            && try_kubectl(&list, "").status.success()
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

/// A part of a spec: the variable `TOKEN` comes from this Secret.
pub(crate) fn token_of(secret: &str) -> Value {
    let from = json!({"secretKeyRef": {"name": secret, "key": "token"}});
    json!({"secretEnv": {"TOKEN": from}})
}

/// Returns the gateway's server of that name.
pub(crate) async fn server(gateway: &Gateway, name: &str) -> Option<Value> {
    let all = Api::admin(gateway).get("/mcp/servers").await;
    let servers = all["servers"].as_array()?.iter();
    let mut named = servers.filter(|one| one["name"] == name);
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

/// Returns the directory of a server's volumes.
pub(crate) fn volumes(gateway: &Gateway, id: &str) -> PathBuf {
    let all = gateway.folder().join("data/hosting/process/volumes");
    all.join(id)
}

/// Wraps objects in a list, as `kubectl` takes them.
pub(crate) fn list_of<'o>(objects: impl IntoIterator<Item = &'o Value>) -> String {
    let items: Vec<&Value> = objects.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Returns how many processes of a scripted server of this name run on this machine.
pub(crate) fn instances(name: &str) -> usize {
    processes::scripted(name).len()
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

/// A proxy to the API server that can be cut, with a matching kubeconfig.
pub(crate) struct Link {
    proxy: Proxy,
    config: PathBuf,
    _dir: tempfile::TempDir,
}

impl Link {
    pub(crate) async fn new() -> Self {
        Self::to(&Self::known()).await
    }

    /// Returns the address of the API server in the kubeconfig.
    fn known() -> String {
        let text = fs::read_to_string(config()).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    /// Starts a proxy to the API server at this address.
    pub(crate) async fn to(address: &str) -> Self {
        let proxy = Proxy::to(address).await;
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("config");
        let text = fs::read_to_string(config()).unwrap();
        let text = text.replace(&Self::known(), &proxy.address().to_string());
        fs::write(&own, text).unwrap();
        Self {
            proxy,
            config: own,
            _dir: dir,
        }
    }

    /// The kubeconfig with the address of the proxy.
    pub(crate) fn config(&self) -> &str {
        self.config.to_str().unwrap()
    }

    /// Ends all connections, including new ones.
    pub(crate) fn cut(&self) {
        self.proxy.be(Way::Cut);
    }

    pub(crate) fn open(&self) {
        self.proxy.be(Way::Open);
    }
}
