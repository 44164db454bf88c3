//! A product that hosts servers on one platform, and the requests that tests send to it.

use std::{process::Command, time::Duration};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Reply, wait_for, wait_for_some, within};

use crate::{
    common::{checks, processes},
    kept::{Kept, Running},
    kubernetes, swarm,
};

/// The variable with the address of the test Docker daemon.
const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
/// Deadline for each wait, reached only if the test fails. gVisor containers take seconds to start on a busy machine.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(90);

/// Turns each function `async fn name(platform: Platform)` into a test `module::name` on this platform.
macro_rules! on_platform {
    ($module:ident, $platform:ident, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::$platform).await;
            })*
        }
    };
}

/// Turns each function `async fn name(platform: Platform)` into the tests `process::name`, `postgres::name`,
/// `runc::name`, `gvisor::name`, `d06_swarm::name` and `d06_swarm_gvisor::name`; with the feature `kubernetes` also
/// `d07_kubernetes::name` and `d07_kubernetes_gvisor::name`.
macro_rules! on_every_platform {
    ($($name:ident),* $(,)?) => {
        on_platform!(process, Process, $($name),*);
        on_platform!(postgres, Postgres, $($name),*);
        on_platform!(runc, Runc, $($name),*);
        on_platform!(gvisor, Gvisor, $($name),*);
        on_platform!(d06_swarm, Swarm, $($name),*);
        on_platform!(d06_swarm_gvisor, SwarmGvisor, $($name),*);
        #[cfg(feature = "kubernetes")]
        on_platform!(d07_kubernetes, Kubernetes, $($name),*);
        #[cfg(feature = "kubernetes")]
        on_platform!(d07_kubernetes_gvisor, KubernetesGvisor, $($name),*);
    };
}

/// The platform that runs the servers of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    Process,
    /// Processes on this host, with the product's state in Postgres.
    Postgres,
    Runc,
    Gvisor,
    /// Services of a swarm, on nodes with runc.
    Swarm,
    /// Services of a swarm, on a node with gVisor.
    SwarmGvisor,
    /// Pods with the cluster's default runtime, which is runc.
    Kubernetes,
    /// Pods of a runtime class that is gVisor.
    KubernetesGvisor,
}

impl Platform {
    /// The provider's name in the product.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Process | Self::Postgres => "process",
            Self::Runc => "runc",
            Self::Gvisor => "gvisor",
            Self::Swarm | Self::SwarmGvisor => "swarm",
            Self::Kubernetes | Self::KubernetesGvisor => "kubernetes",
        }
    }

    pub(crate) fn is_kubernetes(self) -> bool {
        matches!(self, Self::Kubernetes | Self::KubernetesGvisor)
    }

    pub(crate) fn is_swarm(self) -> bool {
        matches!(self, Self::Swarm | Self::SwarmGvisor)
    }

    pub(crate) fn is_gvisor(self) -> bool {
        matches!(
            self,
            Self::Gvisor | Self::SwarmGvisor | Self::KubernetesGvisor
        )
    }

    /// Returns whether servers on this platform run as images, not as commands.
    pub(crate) fn runs_images(self) -> bool {
        self.is_docker() || self.is_swarm() || self.is_kubernetes()
    }

    /// Returns the name of a test image.
    pub(crate) fn image(self, name: &str) -> String {
        // The kubelet would pull an image without a version at every start.
        let version = if self.is_kubernetes() { ":1" } else { "" };
        format!("toolwharf-test/{name}{version}")
    }

    pub(crate) fn is_docker(self) -> bool {
        matches!(self, Self::Runc | Self::Gvisor)
    }
}

fn daemon() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no Docker daemon; run: cargo xtask docker -- cargo nextest run -p toolwharf -E \
             'binary(scenarios_hosting)'"
        )
    })
}

/// Runs the Docker client against the test daemon.
pub(crate) fn docker(args: &[&str]) -> String {
    docker_at(&daemon(), args)
}

/// Runs the Docker client against the daemon at this address.
pub(crate) fn docker_at(daemon: &str, args: &[&str]) -> String {
    let output = Command::new("/usr/bin/docker")
        .args(["--host", daemon])
        .args(args)
        .output()
        .expect("docker's own client: cargo xtask setup installs it");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?}: {why}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The parts that outlive the product: directory, settings, database.
pub(crate) struct Site {
    pub(crate) kept: Kept,
    pub(crate) platform: Platform,
}

impl Site {
    /// Creates a site that allows only this platform's provider.
    pub(crate) async fn new(platform: Platform) -> Self {
        Self::with(platform, "", &[platform.word()]).await
    }

    /// Like [`Site::new`], with additional settings of `[limits]` and these providers.
    pub(crate) async fn with(platform: Platform, limits: &str, providers: &[&str]) -> Self {
        let kept = match platform {
            Platform::Postgres => Kept::postgres().await,
            _ => Kept::sqlite().await,
        };
        let mut settings = format!(
            "[limits]\nstop_grace = \"2s\"\ndrain = \"8s\"\n{limits}\n[hosting]\nproviders = {providers:?}\n"
        );
        if platform.is_docker() {
            settings.push_str(&format!("docker_host = {:?}\n", daemon()));
            // The test daemon has no bridge network.
            settings.push_str("docker_network = \"toolwharf-test\"\n");
        }
        if platform.is_kubernetes() {
            let class = if platform.is_gvisor() { "gvisor" } else { "" };
            settings.push_str(&format!(
                "[kubernetes]\nkubeconfig = {:?}\nruntime_class = {class:?}\nstorage_class = \"toolwharf-test\"\n\
                 probe_image = \"toolwharf-test/busybox:1\"\n",
                kubernetes::config()
            ));
        }
        if platform.is_swarm() {
            settings.push_str(&swarm::settings(platform.is_gvisor()));
        }
        kept.settings(&settings);
        Self { kept, platform }
    }

    /// Replaces a part of the settings.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let path = self.kept.dir.path().join("toolwharf.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Like [`Site::entry`], with more members.
    pub(crate) fn entry_with(&self, name: &str, args: &[&str], members: Value) -> Value {
        with(self.entry(name, args), members)
    }

    /// A registration of a scripted server.
    pub(crate) fn entry(&self, name: &str, args: &[&str]) -> Value {
        let mut words = vec!["--name", name];
        words.extend(args);
        if self.platform.runs_images() {
            return json!({ "name": name, "image": self.platform.image("scripted"), "args": words });
        }
        json!({ "name": name, "command": Bin::path("testkit-scripted"), "args": words })
    }

    pub(crate) async fn start(&self) -> Host {
        Host {
            running: self.kept.start().await,
            platform: self.platform,
        }
    }

    /// Creates the site of a platform and starts the product.
    pub(crate) async fn started(platform: Platform) -> (Self, Host) {
        let site = Self::new(platform).await;
        let host = site.start().await;
        (site, host)
    }

    /// Starts a product with one running scripted server. Returns both the product and the server's id.
    pub(crate) async fn hosting(&self, name: &str, args: &[&str]) -> (Host, String) {
        let host = self.start().await;
        let id = host.host(self.entry(name, args)).await;
        (host, id)
    }

    /// Returns whether a server's volumes exist.
    pub(crate) fn has_volumes(&self, id: &str) -> bool {
        if self.platform.is_kubernetes() {
            return kubernetes::has_volumes(id);
        }
        if self.platform.is_swarm() {
            return swarm::has_volumes(id);
        }
        let folder = self.kept.data("hosting");
        let home = if self.platform.is_docker() {
            folder.join("docker").join(id)
        } else {
            folder.join("process/volumes").join(id)
        };
        home.exists()
    }
}

/// A running product.
pub(crate) struct Host {
    pub(crate) running: Running,
    pub(crate) platform: Platform,
}

/// Adds members to a registration.
pub(crate) fn with(mut entry: Value, members: Value) -> Value {
    let Value::Object(members) = members else {
        panic!("members are an object");
    };
    entry.as_object_mut().unwrap().extend(members);
    entry
}

impl Host {
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Value) -> Reply {
        let path = format!("/mcp/servers{path}");
        let answer = self.running.rest(method, &path, body);
        within(&format!("{method} {path}"), LONG_DEADLINE, answer).await
    }

    /// Sends a request that must succeed.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let path = format!("/mcp/servers{path}");
        let answer = self.running.ok(method, &path, body);
        within(&format!("{method} {path}"), LONG_DEADLINE, answer).await
    }

    /// Returns the native names of a server's tools.
    pub(crate) async fn tools(&self, id: &str) -> Vec<String> {
        let list = json!({"method": "tools/list"});
        let answer = body(&self.request(id, list).await.unwrap());
        let tools = answer["result"]["tools"].as_array();
        let tools = tools.unwrap_or_else(|| panic!("no tools: {answer}"));
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    /// Registers a server. Returns its status.
    pub(crate) async fn register(&self, entry: Value) -> Value {
        self.ok("POST", "", entry).await
    }

    /// Registers a server that must start. Returns its id.
    pub(crate) async fn host(&self, entry: Value) -> String {
        let told = self.register(entry).await;
        let id = told["id"].as_str().unwrap().to_owned();
        if told["status"] != "running" {
            self.until(&id, "running").await;
        }
        id
    }

    pub(crate) async fn status(&self, id: &str) -> Value {
        self.ok("GET", &format!("/{id}"), Value::Null).await
    }

    pub(crate) async fn order(&self, id: &str, order: &str) -> Value {
        self.ok("POST", &format!("/{id}/{order}"), Value::Null)
            .await
    }

    /// Waits until the server is in this state. Returns its status.
    pub(crate) async fn until(&self, id: &str, state: &str) -> Value {
        wait_for_some(&format!("{id} to be {state}"), LONG_DEADLINE, async || {
            let status = self.status(id).await;
            (status["status"] == state).then_some(status)
        })
        .await
    }

    /// Waits until the server has become ready this many times, and is running. Returns its status.
    pub(crate) async fn is_back(&self, id: &str, times: usize) -> Value {
        self.happened(id, "ready", times).await;
        self.until(id, "running").await
    }

    /// Returns all servers.
    pub(crate) async fn list(&self) -> Vec<Value> {
        let list = self.ok("GET", "", Value::Null).await;
        list["servers"].as_array().unwrap().clone()
    }

    /// Tries to register a server, which must be refused because of this field. Returns the text of the refusal.
    pub(crate) async fn refused(&self, entry: Value, field: &str) -> String {
        let reply = self.ask("POST", "", entry).await;
        let text = reply.text();
        assert_eq!(refusal(&reply), (422, vec![field.to_owned()]), "{text}");
        text
    }

    pub(crate) async fn request(&self, id: &str, body: Value) -> Result<Reply, String> {
        let client = self.running.admin(&format!("/mcp/servers/{id}/call"));
        let client = client.with("accept", "application/json");
        let sent = client.try_send(Method::POST, &[], body.to_string());
        let answer = within("the answer to a call", LONG_DEADLINE, sent).await?;
        Ok(answer.collect(DEADLINE).await)
    }

    /// Calls a tool and returns any response.
    pub(crate) async fn call(&self, id: &str, tool: &str, arguments: Value) -> Reply {
        self.request(id, calling(tool, arguments)).await.unwrap()
    }

    /// Like [`Host::call`], with a timeout.
    pub(crate) async fn call_within(
        &self,
        id: &str,
        tool: &str,
        arguments: Value,
        timeout_ms: u64,
    ) -> Reply {
        let mut body = calling(tool, arguments);
        body["timeout_ms"] = timeout_ms.into();
        self.request(id, body).await.unwrap()
    }

    /// Calls a tool that must succeed. Returns its result.
    pub(crate) async fn tool(&self, id: &str, tool: &str, arguments: Value) -> Value {
        let reply = self.call(id, tool, arguments).await;
        let text = reply.text();
        assert_eq!(reply.status, 200, "{tool}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["result"].clone()
    }

    /// Like [`Host::tool`], but returns the text.
    pub(crate) async fn said(&self, id: &str, tool: &str, arguments: Value) -> String {
        let result = self.tool(id, tool, arguments).await;
        let text = result["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{tool} returned no text: {result}"))
            .to_owned()
    }

    /// Waits until calls of the server succeed.
    pub(crate) async fn answers(&self, id: &str) {
        wait_for("a good answer", LONG_DEADLINE, async || {
            let echo = self.call(id, "echo", json!({"n": 1})).await;
            echo.status == 200 && body(&echo)["result"]["structuredContent"]["n"] == 1
        })
        .await;
    }

    /// Asserts that the tool `echo` of the server returns its arguments.
    pub(crate) async fn echoes(&self, id: &str) {
        let echo = self.tool(id, "echo", json!({"n": 1})).await;
        assert_eq!(echo["structuredContent"]["n"], 1);
    }

    /// Calls a tool of `server` through the gateway's endpoint. Returns the text of the result.
    pub(crate) async fn called(&self, server: &str, tool: &str, arguments: Value) -> String {
        let params = json!({"name": tool, "arguments": arguments});
        let scope = format!("-/{server}");
        let answer = body(&self.running.mcp(&scope, "tools/call", params).await);
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Returns the tools in the gateway's list.
    pub(crate) async fn tools_of_all(&self) -> Vec<Value> {
        let list = self.running.mcp("", "tools/list", json!({})).await;
        list.response()["result"]["tools"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Asserts that `echo` of the only server can be called through the gateway's endpoint.
    pub(crate) async fn gateway_echoes(&self) {
        let called = json!({"name": "echo", "arguments": {"n": 2}});
        let answer = self.running.mcp("", "tools/call", called).await;
        assert_eq!(answer.response()["result"]["structuredContent"]["n"], 2);
    }

    /// Marks the current instance, to recognize it later.
    pub(crate) async fn mark(&self, id: &str) {
        self.tool(id, "hold", json!({ "ms": 0 })).await;
        assert!(self.is_marked(id).await);
    }

    /// Returns whether this is the marked instance. A process id would say nothing: each instance has a separate PID
    /// namespace.
    pub(crate) async fn is_marked(&self, id: &str) -> bool {
        let counter = self.tool(id, "counter", json!({})).await;
        counter["structuredContent"]["total"].as_u64().unwrap() > 0
    }

    /// Returns the server's events, oldest first.
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let path = format!("/{id}/events?limit=200");
        let told = self.ok("GET", &path, Value::Null).await;
        let mut events = told["events"].as_array().unwrap().clone();
        events.reverse();
        events
    }

    pub(crate) async fn events_of(&self, id: &str, kind: &str) -> Vec<Value> {
        let mut events = self.events(id).await;
        events.retain(|event| event["kind"] == kind);
        events
    }

    /// Waits until `times` events of a kind are recorded. Returns all of them.
    pub(crate) async fn happened(&self, id: &str, kind: &str, times: usize) -> Vec<Value> {
        let what = format!("{times} events `{kind}`");
        wait_for_some(&what, LONG_DEADLINE, async || {
            let events = self.events_of(id, kind).await;
            (events.len() >= times).then_some(events)
        })
        .await
    }

    /// Returns the server's instances on this host: container ids, or process ids.
    pub(crate) fn instances(&self, id: &str, name: &str) -> Vec<String> {
        instances(self.platform, id, name)
    }

    /// Kills the server with SIGKILL from outside.
    pub(crate) fn kill_server(&self, id: &str, name: &str) {
        let found = self.instances(id, name);
        assert_eq!(found.len(), 1, "{found:?}");
        if self.platform.is_docker() {
            docker(&["kill", "--signal", "KILL", &found[0]]);
        } else if self.platform.is_kubernetes() {
            kubernetes::kill(&found[0]);
        } else if self.platform.is_swarm() {
            swarm::kill(&found[0]);
        } else {
            let pid = Pid::from_raw(found[0].parse().unwrap()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
        }
    }

    /// Stops the product as a service manager does.
    pub(crate) async fn stop(self) -> String {
        self.running.stop_within(LONG_DEADLINE).await
    }
}

/// Returns the instances of a server with a unique name.
pub(crate) fn instances(platform: Platform, id: &str, name: &str) -> Vec<String> {
    if platform.is_docker() {
        let filter = format!("name=toolwharf-{id}");
        let found = docker(&["ps", "--no-trunc", "--quiet", "--filter", &filter]);
        return found.lines().map(str::to_owned).collect();
    }
    if platform.is_kubernetes() {
        return kubernetes::containers(id);
    }
    if platform.is_swarm() {
        return swarm::containers(id);
    }
    processes::scripted(name)
}

pub(crate) fn calling(tool: &str, arguments: Value) -> Value {
    json!({ "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
}

/// Returns a name that is unique on this machine.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Returns status and error pointers of a refusal.
pub(crate) fn refusal(reply: &Reply) -> (u16, Vec<String>) {
    let problem = body(reply);
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    let pointers = errors.iter().map(|error| error["pointer"].as_str());
    let pointers = pointers.map(|pointer| pointer.unwrap_or_default().to_owned());
    (reply.status.as_u16(), pointers.collect())
}

pub(crate) fn body(reply: &Reply) -> Value {
    serde_json::from_str(&reply.text()).unwrap_or_else(|_| panic!("no JSON: {}", reply.text()))
}

/// Returns the row for one limit: whether it is enforced, and how.
pub(crate) fn enforced(told: &Value, what: &str) -> (bool, String) {
    let rows = told["enforced"].as_array().unwrap();
    let row = rows.iter().find(|row| row["what"] == what);
    let row = row.unwrap_or_else(|| panic!("{what} is not listed: {told:#}"));
    (
        row["holds"] == true,
        row["how"].as_str().unwrap().to_owned(),
    )
}

/// Asserts whether one limit is enforced, and that the status says how.
#[track_caller]
pub(crate) fn assert_enforced(told: &Value, what: &str, holds: bool, parts: &[&str]) {
    let (is_enforced, how) = enforced(told, what);
    assert_eq!(is_enforced, holds, "{what}: {how}");
    checks::contains(&how, parts);
}

/// Waits until no instance of a server is left on this host.
pub(crate) async fn gone(platform: Platform, id: &str, name: &str) {
    wait_for("the end of an instance", LONG_DEADLINE, async || {
        instances(platform, id, name).is_empty()
    })
    .await;
}
