//! A gateway to test: the real binary with a separate directory and configuration.
//!
//! [`Setup`] defines the configuration. [`Setup::serve`] runs `toolwharf serve` and returns a [`Gateway`];
//! [`Setup::stdio`] runs `toolwharf stdio`. Servers are usually [`scripted`]. Processes are killed when they are
//! dropped. Deliberately absent: assertions about responses, which belong in the tests.

#![expect(dead_code, reason = "each test binary uses only a part of it")]
#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

pub(crate) mod chat;
pub(crate) mod checks;
pub(crate) mod cli;
pub(crate) mod first_hour;
pub(crate) mod nginx;
pub(crate) mod processes;
pub(crate) mod real;
pub(crate) mod replicas;
pub(crate) mod rows;
pub(crate) mod rpc;
pub(crate) mod session;
pub(crate) mod shell;
pub(crate) mod steps;
pub(crate) mod systemd;
pub(crate) mod terminal;
pub(crate) mod wire;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use testkit::{
    Bin, DEADLINE, Peer, Process, RawClient, Reply, StdioClient, peer, wait_for, wait_for_some,
};
use tokio::process::Command;

/// The newest legacy protocol version.
pub(crate) const LEGACY: &str = "2025-11-25";

/// The configuration of one gateway.
pub(crate) struct Setup {
    dir: TempDir,
    servers: Map<String, Value>,
    settings: String,
    env: Vec<(String, String)>,
    arguments: Vec<String>,
    extra: Vec<PathBuf>,
    listen: String,
    program: PathBuf,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            dir: folder(),
            servers: Map::new(),
            settings: SETTINGS.to_owned(),
            env: Vec::new(),
            arguments: Vec::new(),
            extra: Vec::new(),
            listen: "127.0.0.1:0".to_owned(),
            program: Bin::path("toolwharf"),
        }
    }

    /// Uses this gateway binary, which may be another version.
    pub(crate) fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Passes this address to `--listen`.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// Reuses the same port at every start.
    pub(crate) fn at_one_port(mut self) -> Self {
        let free = std::net::TcpListener::bind(&self.listen).unwrap();
        self.listen = free.local_addr().unwrap().to_string();
        self
    }

    /// The directory of the configuration.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Adds another, existing configuration file.
    pub(crate) fn config(mut self, file: &Path) -> Self {
        self.extra.push(file.to_owned());
        self
    }

    /// Adds an entry of `mcpServers`.
    pub(crate) fn server(mut self, name: &str, entry: Value) -> Self {
        self.servers.insert(name.to_owned(), entry);
        self
    }

    /// Adds a scripted stdio server of that name. `options` are its command-line options except `--name`.
    pub(crate) fn scripted(self, name: &str, options: &[&str]) -> Self {
        self.server(name, scripted(name, options))
    }

    /// Adds a scripted stdio server of that name, with these Toolwharf options in its entry.
    pub(crate) fn tuned(self, name: &str, options: Value) -> Self {
        self.server(name, with(scripted(name, &[]), options))
    }

    /// Adds the scripted servers [`KINDS`], with these Toolwharf options in their entries. Returns the processes of the
    /// remote servers.
    pub(crate) async fn every_kind(self, options: &Value) -> (Self, [Process; 3]) {
        let http = "127.0.0.1:0";
        let mut old = Process::bin("testkit-scripted", ["--http", http]);
        let mut new = Process::bin("testkit-scripted", ["--http", http, "--era", "modern"]);
        let mut sse = Process::bin("testkit-scripted", ["--sse-http", http]);
        let entries = [
            scripted("pipe", &[]),
            scripted("newpipe", &["--era", "modern"]),
            json!({"url": old.url().await}),
            json!({"url": new.url().await}),
            json!({"type": "sse", "url": sse.url().await}),
        ];
        let all = KINDS.into_iter().zip(entries);
        let setup = all.fold(self, |setup, (name, entry)| {
            setup.server(name, with(entry, options.clone()))
        });
        (setup, [old, new, sse])
    }

    /// Replaces the whole `toolwharf.toml`, including the short stop timeouts.
    pub(crate) fn settings(mut self, text: &str) -> Self {
        text.clone_into(&mut self.settings);
        self
    }

    /// Sets an environment variable of the gateway.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument after the subcommand.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    fn command(&self, verb: &str) -> Command {
        let folder = self.dir.path();
        write_servers(folder, &self.servers);
        std::fs::write(settings_file(folder), &self.settings).unwrap();
        let files = self.extra.iter();
        let mut command = configured(&self.program, folder);
        command
            .args(files.flat_map(|file| [Path::new("--config"), file]))
            .arg(verb)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Writes the files and starts `toolwharf serve`, without waiting.
    pub(crate) fn spawn(self) -> (Process, TempDir) {
        (self.launch(), self.dir)
    }

    /// Starts `toolwharf serve`.
    pub(crate) fn launch(&self) -> Process {
        let mut command = self.command("serve");
        command
            .args(["--listen", &self.listen, "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(&self.arguments);
        Process::spawn(command)
    }

    /// Runs `toolwharf serve`, which must refuse to start. Returns its stderr.
    pub(crate) async fn refused(self) -> String {
        let stderr = self.spawn_and_fail().await;
        assert!(!stderr.contains("toolwharf is at"), "{stderr}");
        stderr
    }

    /// Runs `toolwharf serve`, which must exit by itself with an error. Returns its stderr.
    pub(crate) async fn spawn_and_fail(self) -> String {
        let (mut process, _dir) = self.spawn();
        let status = process.ended(DEADLINE).await;
        let stderr = process.stderr();
        assert!(!status.success(), "{stderr}");
        stderr
    }

    /// Runs `toolwharf serve` until it is ready. Its servers may not be ready yet.
    pub(crate) async fn serve(self) -> Gateway {
        let mut process = self.launch();
        Gateway {
            url: ready(&mut process).await,
            process,
            setup: self,
        }
    }

    /// Runs `toolwharf serve` until all servers of its file are connected. A first request waits for them at most ten
    /// seconds, which can be too short on a busy machine.
    pub(crate) async fn connected(self) -> Gateway {
        let servers: Vec<String> = self.servers.keys().cloned().collect();
        let gateway = self.serve().await;
        for server in servers {
            gateway.up(&server).await;
        }
        gateway
    }

    /// Runs `toolwharf stdio`. The directory must outlive the client.
    pub(crate) fn stdio(self) -> (StdioClient, TempDir) {
        let mut command = self.command("stdio");
        command
            .env("XDG_DATA_HOME", self.dir.path().join("data"))
            .args(&self.arguments);
        (StdioClient::spawn(command), self.dir)
    }
}

/// A gateway with one scripted server, `one`, that is connected.
pub(crate) async fn with_one(options: &[&str]) -> Gateway {
    Setup::new().scripted("one", options).connected().await
}

/// A running `toolwharf serve`.
pub(crate) struct Gateway {
    pub(crate) process: Process,
    /// Scheme, host and port.
    pub(crate) url: String,
    setup: Setup,
}

impl Gateway {
    /// A raw client for `/mcp`.
    pub(crate) fn client(&self) -> RawClient {
        self.at("/mcp")
    }

    /// A raw client for another path.
    pub(crate) fn at(&self, path: &str) -> RawClient {
        RawClient::new(&format!("{}{path}", self.url))
    }

    /// A raw client for a path of the REST API, with the administrator's token.
    pub(crate) fn admin(&self, path: &str) -> RawClient {
        let bearer = format!("Bearer {}", self.token());
        self.at(&format!("/api/v1{path}"))
            .with("authorization", &bearer)
    }

    /// Returns the response to a GET request, read to its end.
    pub(crate) async fn page(&self, path: &str) -> Reply {
        self.at(path).get(&[]).await.collect(DEADLINE).await
    }

    /// A client of the newest legacy version, with an open GET stream.
    pub(crate) async fn legacy(&self) -> Peer {
        Peer::http(self.client(), LEGACY, peer::all_capabilities()).await
    }

    /// A client of the modern era.
    pub(crate) async fn modern(&self) -> Peer {
        Peer::http(self.client(), peer::MODERN, peer::all_capabilities()).await
    }

    pub(crate) fn servers_file(&self) -> PathBuf {
        servers_file(self.setup.dir.path())
    }

    pub(crate) fn settings_file(&self) -> PathBuf {
        settings_file(self.setup.dir.path())
    }

    /// The directory of all files.
    pub(crate) fn folder(&self) -> &Path {
        self.setup.dir.path()
    }

    /// Changes the servers and replaces the file, as an editor does.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Map<String, Value>)) {
        change(&mut self.setup.servers);
        write_servers(self.folder(), &self.setup.servers);
    }

    /// Stops the gateway with SIGTERM and starts it again with the same data.
    pub(crate) async fn restarted(self) -> Self {
        self.restarted_after(Signal::TERM).await
    }

    /// Like [`Gateway::restarted`], with another signal.
    pub(crate) async fn restarted_after(mut self, signal: Signal) -> Self {
        self.process.signal(signal);
        self.process.wait(DEADLINE).await;
        self.again().await
    }

    /// Starts the current version with the data of the stopped gateway.
    pub(crate) async fn upgraded(self) -> Self {
        self.setup.program(&Bin::path("toolwharf")).serve().await
    }

    /// Starts the stopped gateway again with the same data.
    pub(crate) async fn again(self) -> Self {
        self.setup.serve().await
    }

    /// Replaces a configuration file atomically.
    pub(crate) fn replace(&self, file: &Path, text: &str) {
        replace(file, text);
    }

    pub(crate) fn token(&self) -> String {
        let file = self.setup.dir.path().join("data/admin-token");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// Returns the text of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        let reply = self.at("/metrics").get(&[]).await;
        reply.collect(DEADLINE).await.text()
    }

    /// Returns one value of `/metrics`: per server, such as `server_up`, or without a server, such as `sessions`.
    pub(crate) async fn metric(&self, name: &str, server: Option<&str>) -> Option<u64> {
        let label = server.map_or_else(String::new, |server| format!("{{server=\"{server}\"}}"));
        let wanted = format!("toolwharf_{name}{label}");
        let metrics = self.metrics().await;
        metrics.lines().find_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            (key == wanted).then(|| value.parse().unwrap())
        })
    }

    /// Waits until the server is connected.
    pub(crate) async fn up(&self, server: &str) {
        wait_for(&format!("server {server}"), DEADLINE, async || {
            self.metric("server_up", Some(server)).await == Some(1)
        })
        .await;
    }

    /// Waits until this many calls to the server are in flight.
    pub(crate) async fn in_flight(&self, server: &str, count: u64, limit: Duration) {
        wait_for(&format!("{count} calls in flight"), limit, async || {
            self.metric("calls_in_flight", Some(server)).await == Some(count)
        })
        .await;
    }

    /// Waits until the gateway has logged a line with `what`, and returns the line.
    pub(crate) async fn logged(&self, what: &str) -> String {
        let waiting = format!("{what:?} in the log");
        wait_for_some(&waiting, DEADLINE, async || {
            let stderr = self.process.stderr();
            let line = stderr.lines().find(|line| line.contains(what));
            line.map(str::to_owned)
        })
        .await
    }

    /// The gateway's peak memory, in KiB.
    pub(crate) fn memory_peak(&self) -> u64 {
        memory(self.process.pid(), "VmHWM:")
    }

    /// The gateway's peak private memory, in KiB: peak memory minus the file pages (program text) resident now.
    pub(crate) fn private_peak(&self) -> u64 {
        self.memory_peak() - memory(self.process.pid(), "RssFile:")
    }

    /// The gateway's current private memory (anonymous pages), in KiB. Program text is excluded, because the kernel
    /// decides how much of it stays resident.
    pub(crate) fn memory_now(&self) -> u64 {
        private(self.process.pid())
    }
}

/// The servers of [`Setup::every_kind`]: over stdio and HTTP in both eras, and over HTTP+SSE.
pub(crate) const KINDS: [&str; 5] = ["pipe", "newpipe", "old", "new", "sse"];

/// Short timeouts, so that tests that stop servers are fast.
pub(crate) const SETTINGS: &str = "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";

pub(crate) fn folder() -> TempDir {
    let prefix = tempfile::Builder::new().prefix("toolwharf-test-").tempdir();
    prefix.unwrap()
}

const PROXY_VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

/// The program with the configuration in this directory, without settings of the user who runs the tests.
pub(crate) fn configured(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(servers_file(folder))
        .arg("--config")
        .arg(settings_file(folder))
        .env_remove("NOTIFY_SOCKET")
        .env_remove("RUST_LOG")
        .env_remove("TOOLWHARF_CONFIG")
        .env("HOME", folder);
    for name in PROXY_VARIABLES {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command
}

/// Waits until `toolwharf serve` is ready, and returns its URL.
pub(crate) async fn ready(process: &mut Process) -> String {
    let url = process.announced(|line| {
        // Matches only the whole line, because it may arrive in pieces.
        let url = line.strip_prefix("toolwharf is at ")?;
        Some(url.strip_suffix("/mcp")?.to_owned())
    });
    let url = url.await;
    let probe = RawClient::new(&format!("{url}/readyz"));
    wait_for("/readyz", DEADLINE, async || {
        probe.get(&[]).await.status == 200
    })
    .await;
    url
}

fn servers_file(folder: &Path) -> PathBuf {
    folder.join("mcp.json")
}

fn settings_file(folder: &Path) -> PathBuf {
    folder.join("toolwharf.toml")
}

fn write_servers(folder: &Path, servers: &Map<String, Value>) {
    let text = serde_json::to_string_pretty(&json!({ "mcpServers": servers })).unwrap();
    replace(&servers_file(folder), &text);
}

fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}

/// Returns one field of a process's status, such as `VmRSS:`, in KiB.
pub(crate) fn memory(pid: u32, field: &str) -> u64 {
    kib(&format!("/proc/{pid}/status"), field)
}

/// Returns one memory total of a process from the kernel, in KiB (proc(5), `smaps_rollup`). `Pss` divides shared
/// memory among its users.
pub(crate) fn rollup(pid: u32, field: &str) -> u64 {
    kib(&format!("/proc/{pid}/smaps_rollup"), field)
}

fn kib(file: &str, field: &str) -> u64 {
    let all = std::fs::read_to_string(file).unwrap();
    let line = all.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the private memory of a process, including swapped pages, in KiB.
pub(crate) fn private(pid: u32) -> u64 {
    rollup(pid, "Pss_Anon:") + rollup(pid, "SwapPss:")
}

/// Returns the memory of the pages of its program file that a process has changed, in KiB (proc(5), `smaps`). The loader
/// writes addresses into them.
pub(crate) fn changed_program(pid: u32) -> u64 {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let program = program.to_str().unwrap();
    let all = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut is_program, mut sum) = (false, 0);
    for line in all.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Anonymous:") if is_program => {
                sum += words.next().unwrap().parse::<u64>().unwrap();
            }
            // The line of a mapping begins with its addresses, and ends with its file.
            Some(first) if !first.ends_with(':') => is_program = line.ends_with(program),
            _ => {}
        }
    }
    assert!(sum > 0, "{program} is not mapped into {pid}");
    sum
}

/// The entry of a scripted stdio server named `name`.
pub(crate) fn scripted(name: &str, options: &[&str]) -> Value {
    let arguments: Vec<&str> = [&["--name", name], options].concat();
    json!({ "command": Bin::path("testkit-scripted"), "args": arguments })
}

/// Adds Toolwharf's options to an entry.
pub(crate) fn with(mut entry: Value, options: Value) -> Value {
    entry["toolwharf"] = options;
    entry
}

/// Returns the state letter of a process in /proc, such as `S` or `Z`, or `None` if it does not exist.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits until these processes are gone, including zombies.
///
/// Orphans are reaped by the process that adopts them, which is outside our control. With `orphans`, a zombie counts as
/// gone.
pub(crate) async fn gone(pids: &[u32], orphans: bool, limit: Duration) {
    wait_for(&format!("the end of {pids:?}"), limit, async || {
        pids.iter().all(|pid| match process_state(*pid) {
            None => true,
            Some(state) => orphans && state == 'Z',
        })
    })
    .await;
}

/// Returns the tool names of `tools/list`, in order.
pub(crate) async fn tools(peer: &mut Peer) -> Vec<String> {
    names(&mut *peer, "tools/list", "tools", "name").await
}

/// Returns one member of each item of a list.
pub(crate) async fn names(peer: &mut Peer, method: &str, list: &str, member: &str) -> Vec<String> {
    let outcome = peer.request(method, json!({})).await;
    let items = outcome.result()[list]
        .as_array()
        .unwrap_or_else(|| panic!("{outcome:?}"));
    items
        .iter()
        .map(|item| item[member].as_str().unwrap().to_owned())
        .collect()
}

/// Asserts that the message of an error contains all parts.
#[track_caller]
pub(crate) fn says(response: &Value, parts: &[&str]) {
    let message = response["error"]["message"].as_str();
    let message = message.unwrap_or_else(|| panic!("no error: {response}"));
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
}

/// Returns the body of a response as JSON.
#[track_caller]
pub(crate) fn body(reply: &Reply) -> Value {
    let value = serde_json::from_slice(&reply.body);
    value.unwrap_or_else(|error| panic!("{error}: {} {}", reply.status, reply.text()))
}

/// Returns the item of a list that has this value for `key`.
#[track_caller]
pub(crate) fn item<'v>(list: &'v Value, key: &str, value: &str) -> &'v Value {
    let mut items = list.as_array().into_iter().flatten();
    let found = items.find(|item| item[key] == value);
    found.unwrap_or_else(|| panic!("no `{key}` is `{value}`: {list}"))
}

/// Asserts that `text` contains all parts.
#[track_caller]
pub(crate) fn holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// Makes a call of `echo`, exposed as `tool`, and asserts that it is answered.
pub(crate) async fn echo(peer: &mut Peer, tool: &str, n: u64) {
    let answer = peer.tool(tool, json!({"n": n})).await;
    assert_eq!(answer.result()["structuredContent"]["n"], n, "{answer:?}");
}

/// Waits until a tool of a scripted server, such as `running`, returns this number.
pub(crate) async fn counts(peer: &mut Peer, tool: &str, count: u64, limit: Duration) {
    wait_for(&format!("`{tool}` to be {count}"), limit, async || {
        peer.tool(tool, json!({})).await.text() == count.to_string()
    })
    .await;
}

/// A server that records its name and process id at startup, then runs `rest` of the script.
pub(crate) fn noted(name: &str, notes: &Path, rest: &str) -> Value {
    let script = format!(
        "echo {name} $$ >> \"$0\"; {rest} exec \"$1\" --name {name} --no-builtin --tools 1"
    );
    json!({"command": "sh", "args": ["-c", script, notes, Bin::path("testkit-scripted")]})
}

/// Returns whether a call failed because its server is unavailable.
pub(crate) fn is_away(response: &Value) -> bool {
    response["error"]["data"]["reason"] == "server_unavailable"
}

/// Waits until calls of `echo` succeed.
pub(crate) async fn echoes(what: &str, limit: Duration, peer: &mut Peer) {
    wait_for(what, limit, async || {
        let answer = peer.tool("echo", json!({})).await;
        answer.response.get("result").is_some()
    })
    .await;
}
