//! A container of the small image, as `docker run` starts it, with Docker's client.

use std::{env, fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{net::UdpSocket, task::JoinSet};

use crate::common::{self, real::free_port};

/// The image that `cargo xtask test` builds.
const IMAGE: &str = "toolwharf-test/toolwharf:1";
/// Debian's client. Another one may be on the `PATH`.
const DOCKER: &str = "/usr/bin/docker";

/// Dropping it removes the container.
pub(crate) struct Container {
    id: String,
    _configuration: TempDir,
    _names: JoinSet<()>,
}

impl Container {
    /// Starts a gateway with these servers, on the network of this machine. All names lead to 127.0.0.1.
    pub(crate) async fn run(servers: &Value) -> Self {
        let configuration = common::folder();
        let folder = configuration.path();
        fs::write(folder.join("mcp.json"), servers.to_string()).expect("a file");
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("permissions");
        let volume = format!("{}:/etc/toolwharf:ro", folder.display());
        let address = format!("127.0.0.1:{}", free_port().await);
        let (name_server, names) = name_server().await;
        let name_server = format!("--dns={name_server}");
        let id = docker(&[
            "run",
            "--detach",
            "--read-only",
            "--tmpfs=/tmp",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--network=host",
            &name_server,
            "--health-interval=1s",
            "--volume",
            &volume,
            IMAGE,
            "serve",
            "--listen",
            &address,
        ]);
        Self {
            id: id.unwrap_or_else(|why| panic!("{why}")),
            _configuration: configuration,
            _names: names,
        }
    }

    /// A property of the container, as a template of Docker.
    pub(crate) fn inspect(&self, template: &str) -> String {
        let found = docker(&["inspect", "--format", template, &self.id]);
        found.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Runs a program in the container. Returns what it prints.
    pub(crate) fn exec(&self, words: &[&str]) -> Result<String, String> {
        docker(&[&["exec", &self.id], words].concat())
    }

    /// A file of the container.
    pub(crate) fn read(&self, path: &str) -> String {
        let to = common::folder();
        let copy = to.path().join("copy").display().to_string();
        let copied = docker(&["cp", &format!("{}:{path}", self.id), &copy]);
        copied.unwrap_or_else(|why| panic!("{why}"));
        fs::read_to_string(copy).expect("a file")
    }

    /// Stops the container. Returns the exit code.
    pub(crate) fn stop(&self) -> String {
        docker(&["stop", "--time=40", &self.id]).unwrap_or_else(|why| panic!("{why}"));
        self.inspect("{{.State.ExitCode}}")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = client().args(["logs", &self.id]).output();
            let log = log.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            eprintln!("--- log of the gateway ---\n{}", log.unwrap_or_default());
        }
        let _ = docker(&["rm", "--force", "--volumes", &self.id]);
    }
}

/// Starts a name server that answers 127.0.0.1 for every name. Returns its address.
async fn name_server() -> (String, JoinSet<()>) {
    // The port is fixed, so each process has another address.
    let id = std::process::id();
    let address = format!("127.{}.{}.53", 100 + id / 256 % 100, id % 256);
    let socket = UdpSocket::bind((address.as_str(), 53)).await;
    let socket = socket.expect("port 53; run the tests as root");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut query = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut query).await {
            if let Some(answer) = dns_answer(&query[..count]) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    (address, tasks)
}

/// The answer to a DNS query with one question (RFC 1035, section 4.1).
fn dns_answer(query: &[u8]) -> Option<Vec<u8>> {
    const HEADER_BYTES: usize = 12;
    const IPV4: [u8; 4] = [0, 1, 0, 1];
    let name = query
        .get(HEADER_BYTES..)?
        .iter()
        .position(|byte| *byte == 0)?;
    let end = HEADER_BYTES + name + 1 + IPV4.len();
    let question = query.get(HEADER_BYTES..end)?;
    let is_ipv4 = question.ends_with(&IPV4);
    let mut answer = query.get(..2)?.to_vec();
    // A response without an error, with one question, and one answer at most.
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0]);
    answer.extend(question);
    if is_ipv4 {
        // The name of the question, type and class, 60 s, four bytes.
        answer.extend([0xc0, 12]);
        answer.extend(IPV4);
        answer.extend([0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

/// Docker's client, for the daemon of the tests.
fn client() -> Command {
    let host = env::var("TOOLWHARF_TEST_DOCKER");
    let host = host.expect("TOOLWHARF_TEST_DOCKER is not set; run: cargo xtask test");
    let mut command = Command::new(DOCKER);
    command.args(["--host", &host]);
    command
}

/// Runs Docker's client. Returns what it prints, or why it failed.
fn docker(words: &[&str]) -> Result<String, String> {
    let mut command = client();
    let output = command
        .args(words)
        .output()
        .expect("docker is missing; run: cargo xtask setup");
    let [out, err] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    match output.status.success() {
        true => Ok(out.trim_end().to_owned()),
        false => Err(format!("{words:?}: {out}{err}")),
    }
}
