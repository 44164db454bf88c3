//! A private Docker daemon for the duration of a command: `cargo xtask docker -- CMD…`, and for the tests.
//!
//! It has a separate socket, data directory, control group and configuration below the system's temporary directory. It
//! supports the runtimes `runc` and `runsc` (gVisor), has no default bridge and does not change the firewall. The
//! command gets its address in `TOOLWHARF_TEST_DOCKER`. If that variable is already set, the daemon at that address is
//! used, and only the images are added.
//!
//! No registry is used. The test images are made from files on this machine, see [`images`].
//!
//! It stops when the command ends, when this process gets a signal, and, through a parent-death signal, when this
//! process is killed. What a killed process leaves behind is removed by the next one. The programs are found by their
//! packages' paths, since a `docker` on the `PATH` may be something else.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::shell::is_root;
use crate::{
    postgres,
    shell::{Cmd, heading, is_executable},
    workspace::Workspace,
};

/// Tells tests where the daemon is.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
/// The daemon's network for tests that need one.
const NETWORK_NAME: &str = "toolwharf-test";

const DIR_PREFIX: &str = "toolwharf-docker-";
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
/// Debian's directories, without locally installed programs.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Polls until the daemon must be ready, and until it must have stopped: 30 s.
pub(crate) const MAX_POLLS: u32 = 1500;

/// A program from one of the required packages.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = PATH.split(':').map(|dir| Path::new(dir).join(name));
    found.into_iter().find(|file| is_executable(file))
}

/// Runs a command with a private daemon, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, cmd: Cmd) -> Result<ExitCode> {
    let interrupted = postgres::interruption()?;
    let daemon = Daemon::start(workspace, &interrupted)?;
    postgres::supervise(cmd.env(VARIABLE, &daemon.host), &interrupted)
}

pub(crate) struct Daemon {
    pub(crate) host: String,
    /// `None` if the daemon is not a private one.
    own: Option<Own>,
}

struct Own {
    child: Child,
    // Dropped last: removes what the daemon left.
    _dir: Directory,
}

impl Daemon {
    pub(crate) fn start(workspace: &Workspace, interrupted: &AtomicBool) -> Result<Self> {
        if let Some(host) = env::var(VARIABLE).ok().filter(|host| !host.is_empty()) {
            let daemon = Self::at(host);
            images(workspace, &daemon)?;
            return Ok(daemon);
        }
        heading("a private Docker daemon");
        for name in [
            "dockerd",
            "docker",
            "containerd",
            "runc",
            "runsc",
            "docker-init",
        ] {
            program(name)
                .with_context(|| format!("there is no {name}: run `cargo xtask setup`"))?;
        }
        ensure!(
            is_root()?,
            "a Docker daemon runs as root only: run this as root, or name a daemon that has the runtime runsc in {VARIABLE}"
        );
        remove_remains()?;
        let dir = Directory::create()?;
        let at = |name: &str| dir.path.join(name);
        fs::write(
            at("daemon.json"),
            serde_json::to_vec_pretty(&serde_json::json!({
                "runtimes": {
                    "runsc": {
                        "path": program("runsc"),
                        "runtimeArgs": ["--platform=ptrace", "--network=none"],
                    },
                    // A runtime with a misleading name.
                    "not-runsc": { "path": program("runc") },
                },
            }))?,
        )?;
        let host = format!("unix://{}", at("sock").display());
        let log = at("log");
        let cmd = Cmd::new("setpriv")
            .args(["--pdeathsig", "TERM", "--", "dockerd"])
            .args([
                "--host",
                &host,
                "--cgroup-parent",
                &format!("/{}", dir.name),
            ])
            .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
        let files = [
            ("--config-file", "daemon.json"),
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "pid"),
        ];
        let cmd = files
            .iter()
            .fold(cmd, |cmd, (flag, name)| cmd.arg(flag).arg(at(name)));
        let child = cmd
            .env("PATH", PATH)
            .into_command()
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start dockerd")?;
        let own = Own { child, _dir: dir };
        let mut daemon = Self {
            host,
            own: Some(own),
        };
        daemon.wait(interrupted, &log)?;
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
        images(workspace, &daemon)?;
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(daemon)
    }

    fn wait(&mut self, interrupted: &AtomicBool, log: &Path) -> Result<()> {
        for _ in 0..MAX_POLLS {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            if let Some(own) = &mut self.own
                && let Some(status) = own.child.try_wait()?
            {
                let log = fs::read_to_string(log).unwrap_or_default();
                bail!("dockerd ended: {status}\n{log}");
            }
            if self.client(["version"]).succeeds() {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("dockerd did not become ready")
    }

    /// An existing daemon.
    pub(crate) fn at(host: String) -> Self {
        Self { host, own: None }
    }

    pub(crate) fn client<const N: usize>(&self, args: [&str; N]) -> Cmd {
        let docker = program("docker").unwrap_or_else(|| "docker".into());
        Cmd::new(docker)
            .args(["--host", &self.host])
            .args(args)
            .env("PATH", PATH)
    }

    /// Creates an image from what `tar` packs with these arguments.
    fn import(&self, image: &str, pack: Cmd, changes: &[&str]) -> Result<()> {
        let mut tar = pack
            .into_command()
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start tar")?;
        let archive = tar.stdout.take().context("tar has no output")?;
        let changes = changes.iter().flat_map(|change| ["--change", change]);
        let status = self
            .client(["import"])
            .args(changes)
            .args(["-", image])
            .into_command()
            .stdin(archive)
            .stdout(Stdio::null())
            .status();
        let packed = tar.wait()?;
        ensure!(packed.success(), "cannot pack {image}: {packed}");
        ensure!(status?.success(), "cannot import {image}");
        Ok(())
    }
}

/// Imports the test images: `busybox` (all its applets), `scripted` (testkit's server) and `everything` (npm's
/// server-everything, with Node.js).
pub(crate) fn images(workspace: &Workspace, daemon: &Daemon) -> Result<()> {
    workspace
        .cargo(&[
            "build",
            "--quiet",
            "--package=testkit",
            "--bin=testkit-scripted",
        ])
        .run()?;
    let target = workspace.target()?.join("debug");
    let scripted = target.join("testkit-scripted");
    let tar = || Cmd::new("tar").args(["--create", "--dereference"]);
    let pack = with_libraries(tar(), &scripted)?.arg("-C").arg(&target);
    daemon.import(
        "toolwharf-test/scripted",
        pack.arg("testkit-scripted"),
        &[r#"ENTRYPOINT ["/testkit-scripted"]"#],
    )?;

    let modules = workspace.node_modules();
    let node = modules.join("node/bin/node");
    ensure!(
        is_executable(&node),
        "there is no {}: run `cargo xtask setup`",
        node.display()
    );
    let pack = with_libraries(tar(), &node)?
        // Only the program of Node.js.
        .args(["--exclude=conformance", "--exclude=@octokit"])
        .args(["--exclude=node_modules/node/[!b]*", "-C"])
        .arg(workspace.work());
    daemon.import(
        "toolwharf-test/everything",
        pack.arg("node_modules"),
        &[
            r#"ENTRYPOINT ["/node_modules/node/bin/node"]"#,
            r#"CMD ["/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]"#,
        ],
    )?;

    let busybox = program("busybox").context("there is no busybox: run `cargo xtask setup`")?;
    let root = Directory::create_named(&format!("{DIR_PREFIX}busybox-{}", std::process::id()))?;
    let bin = root.path.join("bin");
    fs::create_dir(&bin)?;
    fs::copy(&busybox, bin.join("busybox"))?;
    for applet in Cmd::new(&busybox).arg("--list").output()?.lines() {
        if applet != "busybox" {
            symlink("busybox", bin.join(applet))?;
        }
    }
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

/// Adds the libraries of a program to the archive, at the paths where its loader looks for them.
pub(crate) fn with_libraries(pack: Cmd, program: &Path) -> Result<Cmd> {
    let listed = Cmd::new("ldd").arg(program).output()?;
    let paths: BTreeSet<&str> = listed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('/'))
        .collect();
    ensure!(
        !paths.is_empty(),
        "ldd names no library of {}",
        program.display()
    );
    Ok(pack.args(["-C", "/"]).args(paths))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.own.is_none() {
            return;
        }
        // Remove containers and networks while the daemon runs, since it does so most reliably.
        let ids = self.client(["ps", "-aq"]).output().unwrap_or_default();
        if !ids.trim().is_empty() {
            let remove = self.client(["rm", "--force", "--volumes"]);
            let _ = remove.args(ids.split_whitespace()).run_for_effect();
        }
        let _ = self
            .client(["network", "prune", "--force"])
            .run_for_effect();
        if let Some(own) = &mut self.own {
            own.stop();
        }
    }
}

impl Own {
    fn stop(&mut self) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, Signal::TERM);
        for _ in 0..MAX_POLLS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        eprintln!("    dockerd does not stop and is killed");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The network device of a daemon. The name is short and contains the owner.
fn bridge(owner: u32) -> String {
    format!("twh{owner}")
}

/// Removes what is left of daemons whose owner was killed.
fn remove_remains() -> Result<()> {
    remains(&format!("{DIR_PREFIX}busybox-"))?;
    for (owner, dir) in remains(DIR_PREFIX)? {
        let link = bridge(owner);
        Cmd::new("ip").args(["link", "delete", &link]).succeeds();
        drop(dir);
    }
    Ok(())
}

/// Directories left by processes that no longer exist, each with the process id. Dropping a directory removes it.
pub(crate) fn remains(prefix: &str) -> Result<Vec<(u32, Directory)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(prefix);
        let Some(owner) = owner.and_then(|owner| Pid::from_raw(owner.parse().ok()?)) else {
            continue;
        };
        if test_kill_process(owner) == Err(rustix::io::Errno::SRCH) {
            eprintln!("    removing what {name} left behind");
            let path = entry.path();
            let owner = owner.as_raw_nonzero().get().unsigned_abs();
            all.push((owner, Directory { path, name }));
        }
    }
    Ok(all)
}

/// A directory that is removed with its contents, and with the processes, mounts and control groups that a daemon may
/// have left.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
}

impl Directory {
    fn create() -> Result<Self> {
        Self::create_named(&format!("{DIR_PREFIX}{}", std::process::id()))
    }

    pub(crate) fn create_named(name: &str) -> Result<Self> {
        let path = env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self {
            path,
            name: name.to_owned(),
        })
    }

    /// Processes with a path in this directory on their command line: `containerd`, its shims, `runsc`.
    fn processes(&self) -> Vec<Pid> {
        let path = self.path.to_string_lossy().into_owned();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
            .filter(|&pid| pid != rustix::process::getpid())
            .filter(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains(&format!("{path}/"))
            })
            .collect()
    }

    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let inside = table.lines().filter_map(|line| line.split(' ').nth(1));
        let inside = inside.filter(|mount| Path::new(mount).starts_with(&self.path));
        // In reverse order of mounting.
        inside.map(str::to_owned).rev().collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        for _ in 0..MAX_POLLS {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            for pid in processes {
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(POLL_INTERVAL);
        }
        for mount in self.mounts() {
            let _ = Command::new("umount").args(["--lazy", &mount]).status();
        }
        let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        let hierarchies = hierarchies.map(|entry| entry.path());
        for hierarchy in hierarchies.chain([CGROUPS.into()]) {
            remove_group(&hierarchy.join(&self.name));
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("    cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes control groups from the innermost outwards. The kernel refuses as long as it still has to clean up processes
/// in them.
fn remove_group(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    for _ in 0..50 {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(POLL_INTERVAL)
            }
            _ => return,
        }
    }
}
