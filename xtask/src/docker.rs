//! A private Docker daemon for the duration of a command: `cargo xtask docker -- CMD…`, and for the tests.
//!
//! It has a separate socket, data directory, control group and configuration below the system's temporary directory. It
//! supports the runtimes `runc` and `runsc` (gVisor), has no default bridge and does not change the firewall. The
//! command gets its address in `TOOLWHARF_TEST_DOCKER`. If that variable is already set, the daemon at that address is
//! used, and only the images are added.
//!
//! No registry is used. The test images are made from files on this machine, see [`images`].
//!
//! The daemon stops when the command ends, when this process gets a signal, and, through a parent-death signal, when
//! this process is killed. The next run removes what a killed process left behind. Programs are looked up in the
//! directories of Debian's packages, since a `docker` on the `PATH` may be another program.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::{
    daemon::{self, Directory},
    shell::{Cmd, heading, is_executable, is_root},
    workspace::Workspace,
};

/// The environment variable with the address of the daemon, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
/// The daemon's network for tests that need one.
const NETWORK_NAME: &str = "toolwharf-test";

const DIR_PREFIX: &str = "toolwharf-docker-";
const BUSYBOX_DIR_PREFIX: &str = "toolwharf-docker-busybox-";
/// Debian's directories, without locally installed programs.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A program from one of the required packages.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = PATH.split(':').map(|dir| Path::new(dir).join(name));
    found.into_iter().find(|file| is_executable(file))
}

/// Checks that programs are installed.
pub(crate) fn ensure_installed(names: &[&str]) -> Result<()> {
    for name in names {
        program(name).with_context(|| format!("{name} is missing: run `cargo xtask setup`"))?;
    }
    Ok(())
}

/// Runs a command with a private daemon, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<ExitCode> {
    let interrupted = daemon::interruption()?;
    let daemon = Daemon::start(workspace, &interrupted)?;
    daemon::supervise(cmd.env(VARIABLE, &daemon.host), &interrupted)
}

pub(crate) struct Daemon {
    pub(crate) host: String,
    /// `None` if the daemon is not a private one.
    own: Option<Own>,
}

struct Own {
    process: daemon::Daemon,
    // This is dropped last, to remove what the daemon left.
    _dir: Directory,
}

impl Daemon {
    /// A daemon with the test images.
    pub(crate) fn start(workspace: &Workspace, interrupted: &AtomicBool) -> Result<Self> {
        let daemon = Self::bare(interrupted)?;
        images(workspace, &daemon)?;
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(daemon)
    }

    /// A daemon without the test images.
    pub(crate) fn bare(interrupted: &AtomicBool) -> Result<Self> {
        if let Some(host) = env::var(VARIABLE).ok().filter(|host| !host.is_empty()) {
            return Ok(Self::at(host));
        }
        heading("a private Docker daemon");
        ensure_installed(&["dockerd", "docker", "containerd", "runc"])?;
        ensure_installed(&["runsc", "docker-init"])?;
        ensure!(
            is_root()?,
            "a Docker daemon needs root: run this as root, or set {VARIABLE} to the address of one with the runtime runsc"
        );
        remove_remains()?;
        let dir = Directory::create(DIR_PREFIX)?;
        let at = |name: &str| dir.path.join(name);
        fs::write(
            at("daemon.json"),
            serde_json::to_vec_pretty(&serde_json::json!({
                "runtimes": {
                    "runsc": {
                        "path": program("runsc"),
                        "runtimeArgs": ["--platform=ptrace", "--network=none"],
                    },
                    // For tests: looks like gVisor by its name, but is `runc`.
                    "not-runsc": { "path": program("runc") },
                },
            }))?,
        )?;
        let host = format!("unix://{}", at("sock").display());
        let line = dockerd(&dir.path, &dir.name) + " --bridge=none";
        let cmd = Cmd::new("setpriv").args(["--pdeathsig", "TERM", "--"]);
        let cmd = cmd.args(line.split(' ')).env("PATH", PATH);
        let process = daemon::Daemon::start("dockerd", cmd, at("log"), Signal::TERM)?;
        let mut daemon = Self::at(host);
        let own = daemon.own.insert(Own { process, _dir: dir });
        let version = || client(&daemon.host, ["version"]).succeeds();
        daemon::wait_until_ready("dockerd", interrupted, || {
            own.process.ensure_running()?;
            Ok(version())
        })?;
        let bridge = format!(
            "com.docker.network.bridge.name={}",
            bridge(std::process::id())
        );
        daemon
            .client([
                "network",
                "create",
                "--driver=bridge",
                "--opt",
                &bridge,
                NETWORK_NAME,
            ])
            .run_for_effect()?;
        Ok(daemon)
    }

    /// An existing daemon.
    pub(crate) fn at(host: String) -> Self {
        Self { host, own: None }
    }

    pub(crate) fn client<const N: usize>(&self, args: [&str; N]) -> Cmd {
        client(&self.host, args)
    }

    /// Creates an image from what `tar` packs with these arguments.
    fn import(&self, image: &str, pack: Cmd, changes: &[&str]) -> Result<()> {
        let changes = changes.iter().flat_map(|change| ["--change", change]);
        let import = self.client(["import"]).args(changes).args(["-", image]);
        pack.pipe_into(import)
            .with_context(|| format!("cannot import {image}"))
    }
}

/// The command line of a daemon whose files are in `dir`, and whose containers are in the control group `group`. It does
/// not change the firewall.
pub(crate) fn dockerd(dir: &Path, group: &str) -> String {
    let dir = dir.display();
    format!(
        "dockerd --host unix://{dir}/sock --config-file {dir}/daemon.json --data-root {dir}/data \
         --exec-root {dir}/exec --pidfile {dir}/pid --cgroup-parent /{group} \
         --exec-opt native.cgroupdriver=cgroupfs --iptables=false --ip6tables=false"
    )
}

fn client<const N: usize>(host: &str, args: [&str; N]) -> Cmd {
    let docker = program("docker").unwrap_or_else(|| "docker".into());
    let docker = Cmd::new(docker).args(["--host", host]).args(args);
    docker.env("PATH", PATH)
}

/// Imports the test images: `busybox` (all its applets), `scripted` (testkit's server) and `everything` (npm's
/// server-everything, with Node.js).
pub(crate) fn images(workspace: &Workspace, daemon: &Daemon) -> Result<()> {
    workspace.build_scripted()?;
    daemon.import(
        "toolwharf-test/scripted",
        pack_program(&workspace.target()?.join("debug/testkit-scripted"))?,
        &[r#"ENTRYPOINT ["/testkit-scripted"]"#],
    )?;
    daemon.import(
        "toolwharf-test/everything",
        pack_everything(workspace)?,
        &[
            r#"ENTRYPOINT ["/node_modules/node/bin/node"]"#,
            r#"CMD ["/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]"#,
        ],
    )?;

    let root = Directory::create(BUSYBOX_DIR_PREFIX)?;
    copy_busybox(&root.path.join("bin"))?;
    let pack = Cmd::new("tar").args(["--create", "-C"]).arg(&root.path);
    daemon.import(
        "toolwharf-test/busybox",
        pack.arg("bin"),
        &[
            "ENV PATH=/bin",
            r#"CMD ["/bin/sh"]"#,
            "VOLUME /image-volume",
            "LABEL toolwharf.install=forged",
        ],
    )
}

/// Copies busybox into a new folder, with a link for each applet.
pub(crate) fn copy_busybox(bin: &Path) -> Result<()> {
    let busybox = program("busybox").context("busybox is missing: run `cargo xtask setup`")?;
    fs::create_dir_all(bin)?;
    fs::copy(&busybox, bin.join("busybox"))?;
    for applet in Cmd::new(&busybox).arg("--list").output()?.lines() {
        if applet != "busybox" {
            symlink("busybox", bin.join(applet))?;
        }
    }
    Ok(())
}

/// A `tar` that packs a program, at the top, with its libraries.
pub(crate) fn pack_program(program: &Path) -> Result<Cmd> {
    let folder = program.parent().context("a program is in a folder")?;
    let name = program.file_name().context("a program has a name")?;
    Ok(pack_libraries(program)?.arg("-C").arg(folder).arg(name))
}

/// A `tar` that packs npm's server-everything with Node.js.
pub(crate) fn pack_everything(workspace: &Workspace) -> Result<Cmd> {
    let node = workspace.node_modules().join("node/bin/node");
    ensure!(
        is_executable(&node),
        "{} is missing: run `cargo xtask setup`",
        node.display()
    );
    // Of Node.js, only the program is packed. The MCP clients are left out, since they take over a gigabyte.
    let pack = pack_libraries(&node)?
        .args(["--exclude=conformance", "--exclude=@octokit"])
        .args(["--exclude=@anthropic-ai", "--exclude=@google"])
        .args(["--exclude=@openai", "--exclude=opencode-*"])
        .args(["--exclude=node_modules/node/[!b]*", "-C"]);
    Ok(pack.arg(workspace.work()).arg("node_modules"))
}

/// A `tar` that packs the libraries of a program, at the paths where its loader looks for them.
fn pack_libraries(program: &Path) -> Result<Cmd> {
    let listed = Cmd::new("ldd").arg(program).output()?;
    let paths: BTreeSet<&str> = listed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('/'))
        .collect();
    ensure!(
        !paths.is_empty(),
        "ldd lists no libraries of {}, so its image cannot be built",
        program.display()
    );
    let pack = Cmd::new("tar").args(["--create", "--dereference"]);
    Ok(pack.args(["-C", "/"]).args(paths))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.own.is_none() {
            return;
        }
        // Containers and networks are removed while the daemon runs, since the daemon does this most reliably.
        let ids = self.client(["ps", "-aq"]).output().unwrap_or_default();
        if !ids.trim().is_empty() {
            let remove = self.client(["rm", "--force", "--volumes"]);
            let _ = remove.args(ids.split_whitespace()).run_for_effect();
        }
        let _ = self
            .client(["network", "prune", "--force"])
            .run_for_effect();
    }
}

/// The network device of a daemon. The name is short and contains the process id of the owner.
fn bridge(owner: u32) -> String {
    format!("twh{owner}")
}

/// Removes what is left of daemons whose owner was killed.
fn remove_remains() -> Result<()> {
    daemon::remains(BUSYBOX_DIR_PREFIX)?;
    for (owner, dir) in daemon::remains(DIR_PREFIX)? {
        let link = bridge(owner);
        Cmd::new("ip").args(["link", "delete", &link]).succeeds();
        drop(dir);
    }
    Ok(())
}
