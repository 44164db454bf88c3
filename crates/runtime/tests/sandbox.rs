//! Hosted servers as sandboxed processes: real namespaces, real control groups, real programs.

#![expect(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::{Hosting, Network, ResourceLimits, Source};
use runtime::process::{SentinelCommand, Spawner};
use runtime::sandbox::{Options, Sandbox};
use runtime::{Error, Instance, Runtime as _, Unit};
use support::{LONG, VICTIM, spawner, wait_for};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// A sandbox with an installation of its own.
struct Ground {
    sandbox: Sandbox,
    spawner: Spawner,
    install: String,
    directory: TempDir,
}

impl Ground {
    fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make control groups and mounts: run them as root"
        );
        assert!(
            Path::new("/usr/bin/bwrap").exists(),
            "bubblewrap is missing: `apt-get install bubblewrap`"
        );
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().file_name().unwrap().to_str().unwrap();
        let install = name
            .to_lowercase()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "");
        Self::at(install, directory)
    }

    fn at(install: String, directory: TempDir) -> Self {
        let spawner = spawner();
        let options = options(&install, directory.path());
        Self {
            sandbox: Sandbox::new(spawner.clone(), options),
            spawner,
            install,
            directory,
        }
    }

    async fn launch(&self, hosting: Hosting) -> Result<Instance, Error> {
        let unit = Unit {
            label: hosting.id.clone(),
            hosting: Arc::new(hosting),
        };
        timeout(LONG, self.sandbox.launch(unit)).await.unwrap()
    }

    async fn run(&self, hosting: Hosting) -> (String, Instance) {
        let mut instance = self.launch(hosting).await.unwrap();
        let text = read(&mut instance).await;
        timeout(LONG, instance.handle.exited()).await.unwrap();
        (text, instance)
    }

    /// What of this installation is left in control groups and mounts.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let ours = hierarchy.path().join("toolwharf").join(&self.install);
            for entry in fs::read_dir(ours).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    left.push(entry.path());
                }
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours = self.directory.path().to_str().unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(ours));
        left.extend(mounts.map(PathBuf::from));
        left
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for hierarchy in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let ours = hierarchy.path().join("toolwharf").join(&self.install);
            let _ = fs::remove_dir(ours);
        }
    }
}

fn options(install: &str, directory: &Path) -> Options {
    Options {
        dir: directory.join("state"),
        install: install.to_owned(),
        shim: SentinelCommand {
            program: VICTIM.into(),
            args: vec!["shim".into()],
        },
    }
}

fn hosting(program: &str, args: &[&str]) -> Hosting {
    let source = Source::Command {
        program: program.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
    };
    Hosting::new("server", source)
}

fn sh(script: &str) -> Hosting {
    hosting("sh", &["-c", script])
}

fn python(script: &str) -> Hosting {
    hosting("/usr/bin/python3", &["-c", script])
}

async fn read(instance: &mut Instance) -> String {
    let mut text = String::new();
    let stdout = &mut instance.stdio.as_mut().unwrap().stdout;
    timeout(LONG, stdout.read_to_string(&mut text))
        .await
        .unwrap()
        .unwrap();
    text
}

async fn line(instance: &mut Instance) -> String {
    let mut line = Vec::new();
    let stdout = &mut instance.stdio.as_mut().unwrap().stdout;
    let reading = async {
        loop {
            match stdout.read_u8().await {
                Ok(b'\n') | Err(_) => break,
                Ok(byte) => line.push(byte),
            }
        }
    };
    timeout(LONG, reading).await.unwrap();
    String::from_utf8(line).unwrap()
}

async fn say(instance: &mut Instance, text: &str) {
    let stdin = &mut instance.stdio.as_mut().unwrap().stdin;
    stdin.write_all(text.as_bytes()).await.unwrap();
}

fn row<'a>(instance: &'a Instance, what: &str) -> &'a runtime::Enforced {
    instance
        .enforced
        .iter()
        .find(|row| row.what == what)
        .unwrap()
}

#[tokio::test]
async fn it_says_what_it_is() {
    let text = Ground::new().sandbox.probe().await.unwrap();
    assert!(text.starts_with("bubblewrap "), "{text}");
    assert!(text.contains("cgroup v"), "{text}");
}

#[tokio::test]
async fn h16_defaults_are_enforced() {
    let ground = Ground::new();
    let mut instance = ground.launch(sh("echo up; read line")).await.unwrap();
    assert_eq!(line(&mut instance).await, "up");
    for what in [
        "cpu",
        "memory",
        "disk",
        "pids",
        "filesystem",
        "network",
        "privileges",
    ] {
        assert!(row(&instance, what).holds, "{:?}", instance.enforced);
    }
    assert!(!row(&instance, "kernel").holds);
    assert!(
        row(&instance, "memory").how.contains("536870912"),
        "{:?}",
        instance.enforced
    );
    assert!(
        row(&instance, "cpu").how.contains("50000"),
        "{:?}",
        instance.enforced
    );
    assert_eq!(instance.enforced.len(), 8);
    let usage = instance.handle.usage().await.unwrap();
    assert!(usage.pids >= 3 && usage.memory_peak > 0, "{usage:?}");
    drop(instance.stdio.take());
    let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
    assert_eq!(
        exit.code,
        Some(1),
        "{exit} {}",
        instance.handle.stderr_tail()
    );
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}
