//! A machine whose first process is systemd: separate namespaces and control groups on this host. It uses the host's
//! network. Needs root, like the sandbox tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, Process, RawClient, Reply, wait_for};

use crate::common::{self, body, real::free_port};

const BOOT: &str = include_str!("boot.sh");
/// The targets that the units refer to. Those of the host would start its services.
const TARGETS: [&str; 6] = [
    "basic",
    "multi-user",
    "network-online",
    "shutdown",
    "sockets",
    "sysinit",
];

/// The units for packages, with their names.
pub(crate) fn units() -> [(&'static str, String); 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    ["toolwharf.service", "toolwharf.socket"].map(|name| {
        let text = fs::read_to_string(folder.join(name));
        (name, text.expect("a unit"))
    })
}

pub(crate) struct Machine {
    folder: TempDir,
    url: String,
    /// Its control groups.
    groups: Vec<PathBuf>,
    /// `unshare`, whose child is systemd. `None`: the machine is off.
    running: Option<Process>,
}

impl Machine {
    /// A machine with Toolwharf and these servers, switched off.
    pub(crate) async fn new(servers: &Value) -> Self {
        let folder = common::folder();
        let units_folder = folder.path().join("units");
        fs::create_dir(&units_folder).expect("a folder");
        let write = |name: &str, text: &str| {
            let file = units_folder.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a unit");
        };
        let program = Bin::path("toolwharf").display().to_string();
        for (name, text) in units() {
            write(name, &text.replace("/usr/bin/toolwharf", &program));
        }
        for name in TARGETS {
            let needs = match name {
                "multi-user" => "Requires=basic.target\nWants=sockets.target\nAfter=basic.target\n",
                _ => "",
            };
            write(
                &format!("{name}.target"),
                &format!("[Unit]\nDefaultDependencies=no\n{needs}"),
            );
        }
        std::os::unix::fs::symlink("multi-user.target", units_folder.join("default.target"))
            .expect("a link");
        let address = format!("127.0.0.1:{}", free_port().await);
        write(
            "toolwharf.socket.d/test.conf",
            &format!("[Socket]\nListenStream=\nListenStream={address}\n"),
        );
        // There is no journal.
        let log = "/var/lib/toolwharf.log";
        write(
            "toolwharf.service.d/test.conf",
            &format!("[Service]\nStandardOutput=append:{log}\nStandardError=append:{log}\n"),
        );
        let servers = json!({ "mcpServers": servers }).to_string();
        fs::write(folder.path().join("mcp.json"), servers).expect("a file");
        fs::write(folder.path().join("toolwharf.toml"), common::SETTINGS).expect("a file");
        Self {
            folder,
            url: format!("http://{address}"),
            groups: groups(),
            running: None,
        }
    }

    /// Switches the machine on, and waits until it has started what is enabled.
    pub(crate) async fn boot(&mut self) {
        for group in &self.groups {
            fs::create_dir_all(group).expect("a control group; run the tests as root");
        }
        let groups = self.groups.iter().map(|group| group.display().to_string());
        let groups: Vec<String> = groups.collect();
        let mut command = tokio::process::Command::new("unshare");
        command
            // systemd sets the host name.
            .args([
                "--mount",
                "--pid",
                "--ipc",
                "--uts",
                "--fork",
                "--kill-child",
            ])
            .args(["bash", "-c", BOOT])
            .env("FOLDER", self.folder.path())
            .env("GROUPS_OF_BOOT", groups.join(" "));
        self.running = Some(Process::spawn(command));
        wait_for("the machine to be up", DEADLINE, async || {
            self.ask(&["is-active", "multi-user.target"])
                .is_some_and(|said| said.trim() == "active")
        })
        .await;
    }

    /// Ends all processes at once. The files stay.
    pub(crate) fn cut_power(&mut self) {
        if let Some(init) = self.init() {
            let _ = kill_process(init, Signal::KILL);
        }
        self.running = None;
        remove(&self.groups);
    }

    /// The process id of systemd on this host.
    fn init(&self) -> Option<Pid> {
        let pid = self.running.as_ref()?.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let child = children.split_whitespace().next()?.parse().ok()?;
        Pid::from_raw(child)
    }

    /// A command inside the machine.
    fn inside(&self, program: &str) -> Option<Command> {
        let init = self.init()?.as_raw_pid().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &init, "--mount", "--pid", "--", program]);
        Some(command)
    }

    /// Returns what systemctl prints; `None` if systemd does not answer.
    fn ask(&self, args: &[&str]) -> Option<String> {
        let output = self.inside("systemctl")?.args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Runs systemctl, which must succeed. Returns its output.
    pub(crate) async fn systemctl(&self, args: &[&str]) -> String {
        let mut command = self.inside("systemctl").expect("a running machine");
        command.args(args);
        let output = tokio::process::Command::from(command).output().await;
        let output = output.expect("systemctl is missing; run: cargo xtask setup");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{args:?}: {said}\n{}", self.log());
        said
    }

    async fn property(&self, name: &str) -> String {
        let said = self
            .systemctl(&["show", "toolwharf.service", "--value", "--property", name])
            .await;
        said.trim().to_owned()
    }

    /// The state of the service.
    pub(crate) async fn state(&self) -> String {
        self.property("ActiveState").await
    }

    /// The process id of the gateway inside the machine.
    pub(crate) async fn pid(&self) -> u32 {
        self.property("MainPID")
            .await
            .parse()
            .expect("a process id")
    }

    /// The status of a process inside the machine (proc(5)).
    pub(crate) fn status_of(&self, pid: u32) -> String {
        let mut command = self.inside("cat").expect("a running machine");
        let output = command
            .arg(format!("/proc/{pid}/status"))
            .output()
            .expect("cat");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The output of the gateway.
    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("var/toolwharf.log")).unwrap_or_default()
    }

    fn client(&self, path: &str) -> RawClient {
        let token = self.folder.path().join("var/toolwharf/admin-token");
        let token = fs::read_to_string(token).unwrap_or_default();
        RawClient::new(&format!("{}/api/v1/mcp/servers{path}", self.url))
            .with("authorization", &format!("Bearer {}", token.trim()))
            .with("accept", "application/json")
    }

    pub(crate) async fn health(&self) -> u16 {
        let client = RawClient::new(&format!("{}/healthz", self.url));
        client.get(&[]).await.status.as_u16()
    }

    /// Connects again and again. Panics if a connection is refused.
    pub(crate) async fn keeps_accepting(&self) {
        let address = self.url.trim_start_matches("http://");
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        loop {
            tick.tick().await;
            tokio::net::TcpStream::connect(address)
                .await
                .expect("the service manager accepts connections");
        }
    }

    /// The state of a server, or `None` if it does not exist.
    pub(crate) async fn server(&self, name: &str) -> Option<Value> {
        let reply = self.client(&format!("/{name}")).get(&[]).await;
        let reply = reply.collect(DEADLINE).await;
        (reply.status == 200).then(|| body(&reply))
    }

    /// Adds a server to the configuration file.
    pub(crate) async fn put(&self, name: &str, entry: Value) -> Reply {
        let client = self.client(&format!("/{name}"));
        let begun = client
            .try_send(http::Method::PUT, &[], entry.to_string())
            .await;
        begun.expect("an answer").collect(DEADLINE).await
    }

    /// Calls a tool of a server.
    pub(crate) async fn call(&self, server: &str, tool: &str, arguments: Value) -> Reply {
        let params = json!({ "name": tool, "arguments": arguments });
        let request = json!({ "method": "tools/call", "params": params });
        self.client(&format!("/{server}/call"))
            .post(request.to_string())
            .await
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the gateway ---\n{}", self.log());
        }
        self.cut_power();
    }
}

/// New control groups for a machine, in the hierarchies that systemd keeps track of processes in.
fn groups() -> Vec<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("toolwharf-machine-{}-{number}", std::process::id());
    let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
    let used = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_used = kind == "cgroup2" || kind == "cgroup" && options.contains("name=systemd");
        is_used.then(|| Path::new(at).join(&name))
    });
    used.collect()
}

/// Removes control groups and those below them, in all hierarchies. They are empty once the processes are gone.
fn remove(groups: &[PathBuf]) {
    let Some(name) = groups.first().and_then(|group| group.file_name()) else {
        return;
    };
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    let mut all: Vec<PathBuf> = hierarchies.map(|entry| entry.path().join(name)).collect();
    all.extend(groups.iter().cloned());
    for group in all {
        for _ in 0..100 {
            remove_below(&group);
            if !group.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn remove_below(group: &Path) {
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_below(&entry.path());
    }
    let _ = fs::remove_dir(group);
}
