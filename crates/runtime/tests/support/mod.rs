//! Shared test support: a spawner, and functions for inspecting processes.

#![expect(dead_code, reason = "each test binary uses only a part of it")]
#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use model::{Launch, Place, Program};
use runtime::process::{Instance, SentinelCommand, Spawner};
use runtime::sandbox::{Bounds, Bubblewrap, Options, Own};
use runtime::{PackageOptions, Packages, Ports, Unit};
use testkit::in_time;
use tokio::io::AsyncReadExt as _;

pub(crate) const VICTIM: &str = env!("CARGO_BIN_EXE_runtime-victim");
/// Timeout for everything that should complete quickly.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn spawner() -> Spawner {
    Spawner::new(SentinelCommand {
        program: VICTIM.into(),
        args: vec!["sentinel".into()],
    })
    .unwrap()
}

/// A sandbox of this installation, in which packages may be installed.
pub(crate) fn bubblewrap(spawner: &Spawner, options: Options) -> Bubblewrap {
    let packages = Packages::new(
        options.dir.with_file_name("packages"),
        spawner.clone(),
        true,
        PackageOptions {
            install: options.install.clone(),
            shim: options.shim.clone(),
            bounds: Bounds {
                bytes: 1 << 30,
                files: 100_000,
            },
            hosts: Vec::new(),
        },
    );
    Bubblewrap::new(spawner.clone(), packages.into(), options)
}

pub(crate) fn options(install: &str, directory: &Path) -> Options {
    Options {
        dir: directory.join("state"),
        install: install.to_owned(),
        ports: Ports::new(directory.join("ports.json")),
        own: Own::default(),
        shim: SentinelCommand {
            program: VICTIM.into(),
            args: vec!["shim".into()],
        },
    }
}

pub(crate) fn command(program: &str, args: &[&str]) -> Unit {
    let program = Program::Command {
        program: program.to_owned(),
        args: args.iter().map(|&arg| arg.into()).collect(),
    };
    Unit::new("test", Launch::new(program, Place::Host))
}

pub(crate) fn sh(script: &str) -> Unit {
    command("sh", &["-c", script])
}

/// Runs a script that prints the line `up` first, and waits for that line.
pub(crate) async fn up(spawner: &Spawner, script: &str) -> Instance {
    let mut instance = spawner.spawn(sh(script)).await.unwrap();
    read_until(&mut instance, "up").await;
    instance
}

pub(crate) async fn wait_for(what: &str, mut predicate: impl FnMut() -> bool) {
    testkit::wait_for(what, TEST_TIMEOUT, async || predicate()).await;
}

pub(crate) async fn read_until(instance: &mut Instance, mark: &str) -> String {
    let mut text = String::new();
    let read = async {
        let mut chunk = [0; 4096];
        while !text.contains(mark) {
            let count = instance.stdout.read(&mut chunk).await.unwrap();
            assert_ne!(count, 0, "ended before it said {mark:?}: {text:?}");
            text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
    };
    in_time(TEST_TIMEOUT, read).await;
    text
}

pub(crate) async fn read_to_end(instance: &mut Instance) -> String {
    let mut text = String::new();
    in_time(TEST_TIMEOUT, instance.stdout.read_to_string(&mut text))
        .await
        .unwrap();
    text
}

pub(crate) fn numbers() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The living processes with the marker of a run.
pub(crate) fn marked(run: &str) -> Vec<u32> {
    let marker = format!("TOOLWHARF_INSTANCE={run}:");
    numbers()
        .filter(|pid| {
            // A zombie has no environment.
            fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
                environ
                    .windows(marker.len())
                    .any(|w| w == marker.as_bytes())
            })
        })
        .collect()
}

/// The living processes of a run, and those in the session of one of its leaders.
pub(crate) fn family(run: &str, leader: u32) -> Vec<u32> {
    let mut family = marked(run);
    let kin = numbers().filter(|&pid| {
        alive(pid) && stat(pid).is_some_and(|fields| fields[3] == leader.to_string())
    });
    family.extend(kin);
    family.sort_unstable();
    family.dedup();
    family
}

/// The fields after the name: state, parent, group, session.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// State and parent of a process, if it exists.
pub(crate) fn state(pid: u32) -> Option<(char, u32)> {
    let fields = stat(pid)?;
    Some((fields[0].chars().next()?, fields[1].parse().ok()?))
}

pub(crate) fn alive(pid: u32) -> bool {
    state(pid).is_some_and(|(state, _)| state != 'Z')
}

/// The children of this process, including dead ones.
pub(crate) fn children() -> Vec<u32> {
    let me = std::process::id();
    numbers()
        .filter(|&pid| state(pid).is_some_and(|(_, parent)| parent == me))
        .collect()
}

pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The peak memory of this process in KiB.
pub(crate) fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

pub(crate) fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
