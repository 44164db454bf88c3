//! A private Docker Swarm for the duration of a command: `cargo xtask swarm -- CMD…`.
//!
//! Its nodes are daemons as in [`docker`]. Each node has a separate network namespace. A bridge in another namespace
//! connects the nodes, so the host's network does not see them. `TOOLWHARF_TEST_SWARM` names a directory with one
//! subdirectory per node, named by its number, which contains `sock`, `pid`, and `start`, a script that restarts the
//! daemon.
//!
//! | node | label `kernel` | |
//! | --- | --- | --- |
//! | 1 | `linux` | the manager |
//! | 2 | `linux` | the only node with Docker's bridge; also listens with certificates |
//! | 3 | `gvisor` | `runsc` is its default runtime |
//! | 4 | `lost` | for tests that kill it; its only image is `busybox` |
//!
//! The daemons stop when the command ends, when this process gets a signal, and, through a parent-death signal, when
//! this process is killed. The next run removes what a killed process left behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    daemon::{self, Directory},
    docker::{self, Daemon, PATH, program},
    shell::{Cmd, heading, is_root},
    workspace::Workspace,
};

/// The environment variable with the directory of the swarm, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
const DIR_PREFIX: &str = "toolwharf-swarm-";
/// The node that listens with certificates.
const TLS_NODE: usize = 2;
const KERNELS: [&str; 4] = ["linux", "linux", "gvisor", "lost"];

/// Runs a command with a private swarm, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<ExitCode> {
    let interrupted = daemon::interruption()?;
    let swarm = Swarm::start(workspace, &interrupted)?;
    daemon::supervise(cmd.env(VARIABLE, &swarm.dir.path), &interrupted)
}

pub(crate) struct Swarm {
    nodes: Vec<Node>,
    spaces: Spaces,
    // This is dropped last, to remove what the daemons left.
    pub(crate) dir: Directory,
}

struct Node {
    process: daemon::Daemon,
    dir: PathBuf,
}

impl Swarm {
    pub(crate) fn start(workspace: &Workspace, interrupted: &AtomicBool) -> Result<Self> {
        heading("a private Docker Swarm");
        docker::ensure_installed(&["dockerd", "docker", "containerd", "runc"])?;
        docker::ensure_installed(&["runsc", "ip", "nsenter"])?;
        ensure!(is_root()?, "Docker daemons need root: run this as root");
        for (owner, dir) in daemon::remains(DIR_PREFIX)? {
            drop(dir);
            drop(Spaces { owner });
        }
        let owner = std::process::id();
        let dir = Directory::create(DIR_PREFIX)?;
        let spaces = Spaces { owner };
        spaces.make()?;
        let mut swarm = Self {
            nodes: Vec::new(),
            spaces,
            dir,
        };
        for (number, kernel) in (1..).zip(KERNELS) {
            swarm.begin(number, kernel)?;
        }
        for number in 1..=KERNELS.len() {
            swarm.wait(number, interrupted)?;
        }
        swarm.join()?;
        swarm.images(workspace)?;
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(swarm)
    }

    /// Starts the daemon of a node.
    fn begin(&mut self, number: usize, kernel: &str) -> Result<()> {
        let dir = self.dir.path.join(number.to_string());
        fs::create_dir(&dir)?;
        let at = |name: &str| dir.join(name).display().to_string();
        let runtime = if kernel == "gvisor" { "runsc" } else { "runc" };
        let mut config = serde_json::json!({
            "default-runtime": runtime,
            "runtimes": {"runsc": {
                "path": program("runsc"),
                "runtimeArgs": ["--platform=ptrace", "--network=none"],
            }},
        });
        let mut dockerd = docker::dockerd(&dir, &self.dir.name);
        if number == TLS_NODE {
            keys(&dir)?;
            config["tlsverify"] = true.into();
            config["tlscacert"] = at("ca.pem").into();
            config["tlscert"] = at("server.pem").into();
            config["tlskey"] = at("server-key.pem").into();
            dockerd += &format!(" --host tcp://{}:2376", address(number));
        }
        fs::write(dir.join("daemon.json"), serde_json::to_vec_pretty(&config)?)?;
        if number != 2 {
            dockerd += " --bridge=none";
        }
        let space = self.spaces.name(&number.to_string());
        let script = format!(
            "#!/bin/sh\nexec nsenter --net=/run/netns/{space} unshare --uts sh -c 'hostname node-{number}; exec \"$@\"' sh \\\n\
             {dockerd} >>{} 2>&1\n",
            at("log"),
        );
        fs::write(dir.join("start"), script)?;
        let start = Cmd::new("setpriv").args(["--pdeathsig", "TERM", "--", "sh"]);
        let start = start.arg(dir.join("start")).env("PATH", PATH);
        let (name, log) = (format!("the daemon of node {number}"), dir.join("log"));
        let process = daemon::Daemon::start(&name, start, log, Signal::TERM)?;
        self.nodes.push(Node { process, dir });
        Ok(())
    }

    fn daemon(&self, number: usize) -> Daemon {
        let socket = self.dir.path.join(number.to_string()).join("sock");
        Daemon::at(format!("unix://{}", socket.display()))
    }

    fn wait(&mut self, number: usize, interrupted: &AtomicBool) -> Result<()> {
        let daemon = self.daemon(number);
        let node = &mut self.nodes[number - 1];
        daemon::wait_until_ready(&format!("the daemon of node {number}"), interrupted, || {
            node.process.ensure_running()?;
            Ok(daemon.client(["version"]).succeeds())
        })
    }

    /// Joins the daemons into a swarm.
    fn join(&self) -> Result<()> {
        let manager = self.daemon(1);
        let first = address(1);
        let init = manager.client(["swarm", "init", "--advertise-addr", &first]);
        init.output()?;
        let token = manager.client(["swarm", "join-token", "--quiet", "worker"]);
        let token = token.output()?;
        for (number, kernel) in (1..).zip(KERNELS) {
            let daemon = self.daemon(number);
            if number > 1 {
                let join = ["swarm", "join", "--token", token.trim(), "--advertise-addr"];
                let join = daemon.client(join).args([&address(number), &first]);
                join.output()?;
            }
            let id = daemon
                .client(["info", "--format", "{{.Swarm.NodeID}}"])
                .output()?;
            let label = format!("kernel={kernel}");
            let update = manager.client(["node", "update", "--label-add", &label, id.trim()]);
            update.output()?;
        }
        Ok(())
    }

    /// Copies the images to all nodes, with the same ids.
    fn images(&self, workspace: &Workspace) -> Result<()> {
        let first = self.daemon(1);
        docker::images(workspace, &first)?;
        let all =
            ["scripted", "busybox", "everything"].map(|name| format!("toolwharf-test/{name}"));
        for (number, kernel) in (1..).zip(KERNELS).skip(1) {
            let some = if kernel == "lost" {
                &all[1..2]
            } else {
                &all[..]
            };
            let load = self.daemon(number).client(["load", "--quiet"]);
            first.client(["save"]).args(some).pipe_into(load)?;
        }
        Ok(())
    }
}

/// Creates certificates for a daemon on loopback and for its clients: `ca.pem`, `cert.pem` and `key.pem`.
fn keys(dir: &Path) -> Result<()> {
    let openssl = |args: &str| {
        let openssl = Cmd::new("openssl").args(args.split(' '));
        openssl.dir(dir).output()
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {new} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"
    ))?;
    fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n")?;
    for (key, cert) in [("server-key.pem", "server.pem"), ("key.pem", "cert.pem")] {
        openssl(&format!(
            "req {new} -subj /CN=toolwharf-test -keyout {key} -out request"
        ))?;
        openssl(&format!(
            "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {cert}"
        ))?;
    }
    Ok(())
}

/// The address of a node, in the network shared only by the nodes.
fn address(number: usize) -> String {
    format!("10.99.0.{number}")
}

impl Drop for Swarm {
    fn drop(&mut self) {
        for node in &self.nodes {
            // The process id is read from the file, since a test may have restarted the daemon.
            let pid = fs::read_to_string(node.dir.join("pid")).unwrap_or_default();
            if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for node in &mut self.nodes {
            daemon::stops(|| {
                node.process.ensure_running().is_err() && !runs(&node.dir.join("pid"))
            });
        }
    }
}

/// Returns whether a process with the id in the file exists.
fn runs(file: &Path) -> bool {
    let pid = fs::read_to_string(file).unwrap_or_default();
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// The network namespaces of a swarm: one per node, and one for the bridge between them.
struct Spaces {
    owner: u32,
}

impl Spaces {
    fn name(&self, of: &str) -> String {
        format!("twh{}-{of}", self.owner)
    }

    fn make(&self) -> Result<()> {
        let hub = self.name("hub");
        let ip = |args: &[&str]| Cmd::new("ip").args(args).run_for_effect();
        ip(&["netns", "add", &hub])?;
        ip(&["-netns", &hub, "link", "add", "nodes", "type", "bridge"])?;
        ip(&["-netns", &hub, "link", "set", "nodes", "up"])?;
        for number in 1..=KERNELS.len() {
            let (space, port) = (self.name(&number.to_string()), format!("node-{number}"));
            ip(&["netns", "add", &space])?;
            let pair = [
                "-netns", &hub, "link", "add", &port, "type", "veth", "peer", "name",
            ];
            ip(&[&pair[..], &["eth0", "netns", &space]].concat())?;
            ip(&[
                "-netns", &hub, "link", "set", &port, "master", "nodes", "up",
            ])?;
            let address = format!("{}/24", address(number));
            ip(&["-netns", &space, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-netns", &space, "link", "set", "eth0", "up"])?;
            ip(&["-netns", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        let prefix = self.name("");
        for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) {
                Cmd::new("ip").args(["netns", "delete", &name]).succeeds();
            }
        }
    }
}
