//! A product that hosts servers on one platform, and the requests of tests.

use std::{fs, process::Command, time::Duration};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Reply, wait_for, wait_for_some, within};

use crate::{
    kept::{Kept, Running},
    kubernetes, swarm,
};

/// The variable with the address of the test Docker daemon.
const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
/// Nothing here takes this long unless it is broken. gVisor containers take seconds to start on a busy machine.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(90);

/// Turns each function `async fn name(platform: Platform)` into the tests `process::name`, `postgres::name`,
/// `runc::name`, `gvisor::name`, `d06_swarm::name` and `d06_swarm_gvisor::name`; with the feature `kubernetes` also
/// `d07_kubernetes::name` and `d07_kubernetes_gvisor::name`.
macro_rules! on_every_platform {
    ($($name:ident),* $(,)?) => {
        mod process {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Process).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Postgres).await;
            })*
        }
        mod runc {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Runc).await;
            })*
        }
        mod gvisor {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Gvisor).await;
            })*
        }
        mod d06_swarm {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Swarm).await;
            })*
        }
        mod d06_swarm_gvisor {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::SwarmGvisor).await;
            })*
        }
        #[cfg(feature = "kubernetes")]
        mod d07_kubernetes {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::Kubernetes).await;
            })*
        }
        #[cfg(feature = "kubernetes")]
        mod d07_kubernetes_gvisor {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::Platform::KubernetesGvisor).await;
            })*
        }
    };
}

/// The platform that runs the servers of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    Process,
    /// Processes as well, with the product's state in Postgres.
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

    /// Returns whether servers are images on this platform, and not commands.
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
    let output = Command::new("/usr/bin/docker")
        .args(["--host", &daemon()])
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
    /// Only this platform's provider is allowed.
    pub(crate) async fn new(platform: Platform) -> Self {
        Self::with(platform, "", &[platform.word()]).await
    }

    /// With additional settings of `[limits]` and these providers.
    pub(crate) async fn with(platform: Platform, limits: &str, providers: &[&str]) -> Self {
        let kept = if platform == Platform::Postgres {
            Kept::postgres().await
        } else {
            Kept::sqlite().await
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
            let class = if platform == Platform::Kubernetes {
                ""
            } else {
                "gvisor"
            };
            settings.push_str(&format!(
                "[kubernetes]\nkubeconfig = {:?}\nruntime_class = {class:?}\nstorage_class = \"toolwharf-test\"\n\
                 probe_image = \"toolwharf-test/busybox:1\"\n",
                kubernetes::config()
            ));
        }
        match platform {
            Platform::Swarm => settings.push_str(&swarm::settings("linux")),
            Platform::SwarmGvisor => settings.push_str(&swarm::settings("gvisor")),
            _ => {}
        }
        kept.settings(&settings);
        Self { kept, platform }
    }

    /// Replaces a part of the settings.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let path = self.kept.dir.path().join("toolwharf.toml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
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
        let what = format!("{method} {path}");
        let path = format!("/mcp/servers{path}");
        within(&what, LONG_DEADLINE, self.running.rest(method, &path, body)).await
    }

    /// Sends a request that must succeed.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.ask(method, path, body).await;
        let text = reply.text();
        assert!(
            reply.status.is_success(),
            "{method} {path}: {} {text}",
            reply.status
        );
        if text.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{method} {path}: {why}: {text}"))
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

    /// Sends one request to a server.
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

    /// Returns its events, oldest first.
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
            return;
        }
        if self.platform.is_kubernetes() {
            kubernetes::kill(&found[0]);
            return;
        }
        if self.platform.is_swarm() {
            swarm::kill(&found[0]);
            return;
        }
        let pid = Pid::from_raw(found[0].parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }

    /// Stops the product as a service manager does.
    pub(crate) async fn stop(mut self) -> String {
        self.running.process.signal(Signal::TERM);
        let status = self.running.process.wait(LONG_DEADLINE).await;
        assert!(
            status.success(),
            "{status}: {}",
            self.running.process.stderr()
        );
        self.running.process.stderr()
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
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.len() > 2
                && words[0].ends_with(b"testkit-scripted")
                && words[1..3] == [b"--name".as_slice(), name.as_bytes()]
        })
        .collect()
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
    let problem: Value =
        serde_json::from_str(&reply.text()).unwrap_or_else(|why| panic!("{why}: {}", reply.text()));
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    let pointers = errors.iter().map(|error| error["pointer"].as_str());
    let pointers = pointers.map(|pointer| pointer.unwrap_or_default().to_owned());
    (reply.status.as_u16(), pointers.collect())
}

/// Returns the body of a response.
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

/// Waits until no instance of a server is left on this host.
pub(crate) async fn gone(platform: Platform, id: &str, name: &str) {
    wait_for("the end of an instance", LONG_DEADLINE, async || {
        instances(platform, id, name).is_empty()
    })
    .await;
}
