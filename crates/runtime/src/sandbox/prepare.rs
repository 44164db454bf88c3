//! Prepares everything for a sandbox before it starts: groups, volumes, user and command.
//!
//! # Invariants
//!
//! - Dropping [`Prepared`] removes everything it created.
//! - The command contains neither arguments nor variables of the server.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::{Launch, Network, Place, Port, Program, Sandbox};
use rustix::fs::{MemfdFlags, memfd_create};

use super::cgroup::{Group, Tree};
use super::shim::Order;
use super::view::{Plan, Scratch, Tmp, View, Wanted};
use super::volume::Opened;
use super::{Inner, executable, failed, seccomp, shim, view, volume};
use crate::process::SentinelCommand;
use crate::sandbox::Files;
use crate::search::own_path;
use crate::unit::{Confined, Enforced, Error, Unit};

pub(super) const BWRAP: &str = "bwrap";
/// Processes that belong to the sandbox itself: bubblewrap, twice.
const SANDBOX_PROCESSES: u32 = 2;
/// Processes of the port helper: two while it starts.
const HELPER_PROCESSES: u32 = 2;
/// The first user id for servers, far above the range used for people and containers.
const FIRST_USER: u32 = 1_900_000_000;
const USER_COUNT: u32 = 200_000_000;
/// The host name inside.
const HOST_NAME: &str = "sandbox";
const MAX_INSTALL_BYTES: usize = 64;
/// Prefix of the names of copies of this program. The run id follows.
const SHIM_PREFIX: &str = "shim.";
/// The resources of a sandbox before it starts.
pub(super) struct Prepared {
    pub(super) group: Arc<Group>,
    pub(super) opened: Option<Opened>,
    pub(super) scratch: Scratch,
    pub(super) program: PathBuf,
    pub(super) user: u32,
    pub(super) extra: u32,
    pub(super) shim: File,
    pub(super) plan: Plan,
}

impl Inner {
    pub(super) fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| Tree::new(&self.options.install))
    }

    pub(super) fn check_install(&self) -> Result<(), Error> {
        let install = &self.options.install;
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if install.is_empty() || install.len() > MAX_INSTALL_BYTES || !install.bytes().all(good) {
            return Err(Error::Failed(format!(
                "invalid installation name `{}`: use 1 to {MAX_INSTALL_BYTES} characters from a-z and 0-9",
                install.escape_debug()
            )));
        }
        Ok(())
    }

    pub(super) fn prepare(
        &self,
        unit: Confined<'_>,
        package: Option<&Files>,
    ) -> Result<Prepared, Error> {
        let (launch, sandbox) = (unit.launch, unit.sandbox);
        self.check_install()?;
        check_id(&sandbox.id)?;
        let Program::Command { program, .. } = &launch.program else {
            return Err(Error::Refused {
                field: "image",
                why: "images need Docker; give a command, or set up Docker".to_owned(),
            });
        };
        check_text(launch)?;
        view::check(sandbox)?;
        if sandbox.ports.len() > usize::from(u8::MAX) {
            return Err(Error::Refused {
                field: "ports",
                why: format!("at most 255 ports are allowed, not {}", sandbox.ports.len()),
            });
        }
        let program = view::resolve(program, &search(launch))?;
        volume::private(&self.options.dir).map_err(|error| {
            Error::Failed(format!(
                "cannot use `{}`: {error}",
                self.options.dir.display()
            ))
        })?;
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{}-{serial}", sandbox.id, self.run);
        let user = if self.privileged {
            user_of(&self.options.install, &sandbox.id)
        } else {
            rustix::process::geteuid().as_raw()
        };
        let extra = if forwards(sandbox) {
            SANDBOX_PROCESSES + HELPER_PROCESSES
        } else {
            SANDBOX_PROCESSES
        };
        let limits = &sandbox.limits;
        let group = self.tree().group(&name, limits, extra);
        let group = group.map_err(failed("cannot create a control group"))?;
        let enforced = group.enforced(limits, extra);
        judge(&enforced, sandbox.strict)?;
        let mut scratch = scratch(limits.disk, limits.memory);
        let opened = if sandbox.volumes.is_empty() {
            None
        } else {
            let size = limits.disk.saturating_sub(scratch.run + scratch.shm);
            // File systems consist of whole blocks.
            let size = size & !4095;
            let owner = self.privileged.then_some(user);
            let opened = self
                .volumes
                .open(&sandbox.id, &name, &sandbox.volumes, size, owner)?;
            if let Some(directory) = &opened.scratch {
                scratch.tmp = Tmp::Disk(directory.clone());
            }
            Some(opened)
        };
        judge(&[disk(&scratch, opened.as_ref())], sandbox.strict)?;
        let nothing = BTreeMap::new();
        let mut plan = Plan::new(&Wanted {
            launch,
            sandbox,
            program: &program,
            package,
            search: &search(launch),
            volumes: opened
                .as_ref()
                .map_or(&nothing, |opened| &opened.directories),
            own: &self.options.own,
        })?;
        for (from, at) in group.shown() {
            plan.show_group(from, Path::new(at));
        }
        Ok(Prepared {
            plan,
            group: Arc::new(group),
            opened,
            scratch,
            program,
            user,
            extra,
            shim: self.shim()?,
        })
    }

    /// Opens Toolwharf's own executable as a file that can be shown inside. If the file was replaced by another
    /// version, only a copy has a path.
    fn shim(&self) -> Result<File, Error> {
        let open = |path: &Path| File::open(path).map_err(executable("open", path));
        let mut own = open(&self.options.shim.program)?;
        let about = own.metadata();
        if about
            .map_err(executable("inspect", &self.options.shim.program))?
            .nlink()
            > 0
        {
            return Ok(own);
        }
        let copy = self.options.dir.join(format!("{SHIM_PREFIX}{}", self.run));
        if !copy.exists() {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let making = self
                .options
                .dir
                .join(format!("{SHIM_PREFIX}{}.{serial}", self.run));
            let mut made = OpenOptions::new();
            made.write(true).create_new(true).mode(0o755);
            made.open(&making)
                .and_then(|mut made| io::copy(&mut own, &mut made))
                .and_then(|_| fs::rename(&making, &copy))
                .map_err(executable("copy", &self.options.shim.program))?;
        }
        open(&copy)
    }

    /// Removes the copies of this program that earlier runs left behind.
    pub(super) fn shims_remove(&self) {
        for entry in fs::read_dir(&self.options.dir)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let run = name
                .to_str()
                .and_then(|name| name.strip_prefix(SHIM_PREFIX));
            if run.is_some_and(|run| !run.starts_with(&self.run)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(super) fn order(&self, unit: Confined<'_>, prepared: &Prepared) -> Order {
        let (launch, sandbox) = (unit.launch, unit.sandbox);
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), view::HOME.to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("PATH".to_owned(), inside_path(launch, prepared)),
            ("TMPDIR".to_owned(), "/tmp".to_owned()),
            ("USER".to_owned(), "server".to_owned()),
        ]);
        env.extend(launch.env.clone());
        hint_memory(&mut env, sandbox.limits.memory);
        Order {
            user: self.privileged.then_some(prepared.user),
            proxy: matches!(sandbox.network, Network::Allow(_)),
            ports: if forwards(sandbox) {
                sandbox.ports.iter().map(|port| port.inside).collect()
            } else {
                Vec::new()
            },
            cwd: view::HOME.to_owned(),
            program: prepared.program.clone().into(),
            args: launch.program.args().to_vec(),
            env,
        }
    }

    /// Returns the command that creates the sandbox and starts the shim in it, with the descriptors it needs.
    pub(super) fn bwrap(
        &self,
        unit: Confined<'_>,
        prepared: &Prepared,
        channel: OwnedFd,
    ) -> Result<(Unit, Vec<OwnedFd>), Error> {
        let network = &unit.sandbox.network;
        let memory =
            |text: &[u8]| memory_file(text).map_err(failed("cannot create a file in memory"));
        let shim = prepared
            .shim
            .try_clone()
            .map_err(executable("share", &self.options.shim.program))?;
        let user = prepared.user;
        let passwd = memory(
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 server:x:{user}:{user}:server:{}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                view::HOME
            )
            .as_bytes(),
        )?;
        let group = format!("root:x:0:\nserver:x:{user}:\nnogroup:x:65534:\n");
        let group = memory(group.as_bytes())?;
        let hosts = memory(&hosts(network))?;
        let files = [
            ("/etc/passwd", passwd.as_raw_fd()),
            ("/etc/group", group.as_raw_fd()),
            ("/etc/hosts", hosts.as_raw_fd()),
        ];
        let view = View {
            unit,
            plan: &prepared.plan,
            scratch: &prepared.scratch,
            shim: shim.as_raw_fd(),
            files: &files,
        };
        let mut arguments: Vec<OsString> =
            self.namespaces(network).iter().map(Into::into).collect();
        arguments.extend(view::arguments(&view));
        let filter = match seccomp::program() {
            Some(program) => Some(memory(&program)?),
            None => None,
        };
        if let Some(filter) = &filter {
            arguments.extend(["--seccomp".into(), filter.as_raw_fd().to_string().into()]);
        }
        let env = [("PATH", view::PATH), ("HOME", view::HOME)];
        let (launch, text) = bwrap(&arguments, &self.options.shim, &channel, env)
            .map_err(failed("cannot create a file in memory"))?;
        let bwrap = Unit::new(unit.label, launch);
        let mut pass = vec![shim.into(), passwd, group, hosts, text, channel];
        pass.extend(filter);
        Ok((bwrap, pass))
    }

    pub(super) fn namespaces(&self, network: &Network) -> Vec<&'static str> {
        let mut arguments = vec![
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--hostname",
            HOST_NAME,
            "--die-with-parent",
            "--cap-drop",
            "ALL",
        ];
        if *network != Network::Open {
            arguments.push("--unshare-net");
        }
        if self.privileged {
            // The shim needs these capabilities, and gives them up before the server begins.
            for capability in ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"] {
                arguments.extend(["--cap-add", capability]);
            }
        } else {
            arguments.push("--unshare-user");
        }
        arguments
    }
}

/// The contents of `/etc/hosts` inside. The sandbox's own host name always resolves.
fn hosts(network: &Network) -> Vec<u8> {
    let mut hosts = match network {
        Network::Open => fs::read("/etc/hosts").unwrap_or_default(),
        _ => b"127.0.0.1 localhost\n::1 localhost".to_vec(),
    };
    hosts.extend(format!("\n127.0.0.1 {HOST_NAME}\n").as_bytes());
    hosts
}

/// Tells Node.js and Go how much memory they may use, because they size their heaps by the host's memory. Variables in
/// the entry take precedence.
fn hint_memory(env: &mut BTreeMap<String, String>, limit: u64) {
    let node = env.entry("NODE_OPTIONS".to_owned()).or_default();
    // V8 accepts both spellings.
    if !node.replace('_', "-").contains("--max-old-space-size") {
        if !node.is_empty() {
            node.push(' ');
        }
        // The rest is for young objects, buffers and the program itself.
        let heap = (limit / 4 * 3) >> 20;
        node.push_str(&format!("--max-old-space-size={}", heap.max(1)));
    }
    let go = (limit / 10 * 9).to_string();
    env.entry("GOMEMLIMIT".to_owned()).or_insert(go);
}

/// Returns whether its ports are inside its own network namespace and must be forwarded.
pub(super) fn forwards(sandbox: &Sandbox) -> bool {
    !sandbox.ports.is_empty() && sandbox.network != Network::Open
}

/// Returns the published ports of this host.
///
/// # Errors
///
/// With an open network, the server listens on the host directly. A port then has the same number inside and on the
/// host.
pub(super) fn host_ports(sandbox: &Sandbox) -> Result<Vec<Port>, Error> {
    let mut ports = sandbox.ports.clone();
    if sandbox.network != Network::Open {
        return Ok(ports);
    }
    for Port { inside, host } in &mut ports {
        let given = host.replace(*inside);
        if let Some(other) = given.filter(|given| given != inside) {
            return Err(Error::Refused {
                field: "ports",
                why: format!(
                    "with an open network, the server listens on the host itself, so port {inside} cannot be published as {other}; give `{inside}` alone"
                ),
            });
        }
    }
    Ok(ports)
}

/// Fails if `strict` is set and a limit is not enforced.
pub(super) fn judge(rows: &[Enforced], strict: bool) -> Result<(), Error> {
    let limits = ["cpu", "memory", "disk", "pids"];
    match rows
        .iter()
        .find(|row| !row.holds && limits.contains(&row.what))
    {
        Some(row) if strict => Err(Error::NotEnforced {
            what: row.what,
            why: row.how.clone(),
        }),
        _ => Ok(()),
    }
}

pub(super) fn disk(scratch: &Scratch, opened: Option<&Opened>) -> Enforced {
    let memory = scratch.run + scratch.shm;
    let found = match (&scratch.tmp, opened.map(|opened| &opened.limit)) {
        (Tmp::Memory(size), None) => Ok(format!(
            "scratch space of {} bytes in memory",
            size + memory
        )),
        (_, Some(Ok(how))) => Ok(format!("{how}, {memory} more bytes in memory")),
        (_, Some(Err(why))) => Err(format!("volumes are not limited: {why}")),
        (Tmp::Disk(_), None) => Err("scratch space on a disk without a limit".to_owned()),
    };
    Enforced {
        what: "disk",
        holds: found.is_ok(),
        how: found.unwrap_or_else(|why| why),
    }
}

/// Divides a server's scratch space when all of it is in memory.
pub(super) fn scratch(disk: u64, memory: u64) -> Scratch {
    // Whole pages: the kernel would round up.
    let pages = |bytes: u64| (bytes & !4095).max(4096);
    let all = disk.min(memory / 2);
    let shm = pages((all / 4).min(64 << 20));
    let run = pages((all / 16).min(4 << 20));
    let tmp = Tmp::Memory(pages(all - shm - run));
    Scratch { run, shm, tmp }
}

/// Returns a user id that no person and no other server has, always the same for the same server.
pub(super) fn user_of(install: &str, id: &str) -> u32 {
    // FNV-1a, because the result must be the same in every version of this program.
    let mut hash: u32 = 0x811c_9dc5;
    for byte in install.bytes().chain([b'/']).chain(id.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    FIRST_USER + hash % USER_COUNT
}

pub(super) fn check_id(id: &str) -> Result<(), Error> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > 128 || !id.bytes().all(good) {
        return Err(Error::Refused {
            field: "id",
            why: format!(
                "`{}` must consist of 1 to 128 characters from a-z, 0-9 and `-`",
                id.escape_debug()
            ),
        });
    }
    Ok(())
}

/// Rejects text that cannot be passed to a process.
pub(super) fn check_text(launch: &Launch) -> Result<(), Error> {
    let refused = |field, why: String| Err(Error::Refused { field, why });
    for (name, value) in &launch.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return refused(
                "environment",
                format!("variable name {name:?} is empty, or contains `=` or NUL"),
            );
        }
        if value.contains('\0') {
            return refused(
                "environment",
                format!("the value of `{name}` contains a NUL character"),
            );
        }
    }
    let target = launch.program.target();
    if target.is_empty() || target.contains('\0') {
        return refused(
            "command",
            "it is empty, or contains a NUL character".to_owned(),
        );
    }
    let args = launch.program.args();
    if let Some(place) = args.iter().position(|arg| arg.contains('\0')) {
        return refused(
            "command",
            format!("argument {} contains a NUL character", place + 1),
        );
    }
    let sizes = launch
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2);
    let sizes = sizes.chain(args.iter().map(|arg| arg.len() + 1));
    if sizes.sum::<usize>() > shim::MAX_ORDER_BYTES / 2 {
        return refused(
            "command",
            format!(
                "arguments and environment together exceed {} bytes",
                shim::MAX_ORDER_BYTES / 2
            ),
        );
    }
    Ok(())
}

/// The `PATH` on which programs are searched on the host.
pub(super) fn search(launch: &Launch) -> OsString {
    match launch.env.get("PATH") {
        Some(path) => path.into(),
        None => own_path(),
    }
}

/// The server's `PATH`: the folder of its program, and the system's folders.
pub(super) fn inside_path(launch: &Launch, prepared: &Prepared) -> String {
    let named = !launch.program.target().contains('/');
    match prepared.program.parent().and_then(|parent| parent.to_str()) {
        Some(own) if named && !view::PATH.split(':').any(|one| one == own) => {
            format!("{own}:{}", view::PATH)
        }
        _ => view::PATH.to_owned(),
    }
}

/// How bubblewrap is started with these arguments, and the file that contains them. `channel`: for the shim inside.
///
/// The arguments are in a file, because `ps` shows command lines and they would fill it.
pub(super) fn bwrap(
    arguments: &[OsString],
    shim: &SentinelCommand,
    channel: &OwnedFd,
    env: [(&str, &str); 2],
) -> io::Result<(Launch, OwnedFd)> {
    let mut text = Vec::new();
    for argument in arguments {
        text.extend_from_slice(argument.as_encoded_bytes());
        text.push(0);
    }
    let text = memory_file(&text)?;
    let shim_args = shim.args.iter();
    let args = ["--args".to_owned(), text.as_raw_fd().to_string()]
        .into_iter()
        .chain(["--".to_owned(), shim::PATH_INSIDE.to_owned()])
        .chain(shim_args.map(|arg| arg.to_string_lossy().into_owned()))
        .chain([channel.as_raw_fd().to_string()]);
    let program = Program::Command {
        program: BWRAP.to_owned(),
        args: args.collect(),
    };
    let launch = Launch {
        env: env.map(|(name, value)| (name.into(), value.into())).into(),
        cwd: Some("/".into()),
        ..Launch::new(program, Place::Host)
    };
    Ok((launch, text))
}

pub(super) fn memory_file(text: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("toolwharf", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn node_and_go_know_the_memory_limit() {
        let limit = 512 << 20;
        for (own, expect) in [
            (None, "--max-old-space-size=384"),
            (
                Some("--enable-source-maps"),
                "--enable-source-maps --max-old-space-size=384",
            ),
            (Some("--max_old_space_size=100"), "--max_old_space_size=100"),
        ] {
            let own = own.map(|own| ("NODE_OPTIONS".to_owned(), own.to_owned()));
            let mut env = BTreeMap::from_iter(own);
            hint_memory(&mut env, limit);
            assert_eq!(env["NODE_OPTIONS"], expect);
            assert_eq!(env["GOMEMLIMIT"], "483183819");
        }
        let mut env = BTreeMap::from([("GOMEMLIMIT".to_owned(), "off".to_owned())]);
        hint_memory(&mut env, limit);
        assert_eq!(env["GOMEMLIMIT"], "off");
    }

    #[test]
    fn scratch_is_never_more_than_it_may_be() {
        for (disk, memory) in [
            (1 << 20, 8 << 20),
            (1 << 30, 512 << 20),
            (64 << 40, 4 << 40),
            (1 << 30, 8 << 20),
        ] {
            let parts = scratch(disk, memory);
            let Tmp::Memory(tmp) = parts.tmp else {
                panic!("it is in memory");
            };
            assert!(tmp + parts.shm + parts.run <= disk.min(memory / 2));
            assert!(tmp >= parts.shm.min(1 << 19));
        }
    }

    #[test]
    fn every_server_is_another_user() {
        let users: BTreeSet<_> = (0..1000).map(|n| user_of("a", &format!("s-{n}"))).collect();
        assert!(users.len() > 990);
        assert!(
            users
                .iter()
                .all(|&user| (FIRST_USER..FIRST_USER + USER_COUNT).contains(&user))
        );
        assert_eq!(user_of("a", "b"), user_of("a", "b"));
    }
}
