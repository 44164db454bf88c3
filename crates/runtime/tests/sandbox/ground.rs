//! A sandbox with a separate installation, and functions for finding what is left of it.

use std::fs;
use std::path::{Path, PathBuf};

use model::Program;
use runtime::process::Spawner;
use runtime::sandbox::Bubblewrap;
use runtime::{Error, Instance, Runtime as _};
use tempfile::TempDir;
use testkit::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::server::Server;
use crate::support::{TEST_TIMEOUT, spawner};
pub(crate) use crate::support::{bubblewrap, options};

pub(crate) struct Ground {
    pub(crate) sandbox: Bubblewrap,
    pub(crate) spawner: Spawner,
    pub(crate) install: String,
    pub(crate) directory: TempDir,
}

impl Ground {
    pub(crate) fn new() -> Self {
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

    /// Creates a run of the installation `install`, whose files are in `directory`.
    pub(crate) fn at(install: String, directory: TempDir) -> Self {
        let spawner = spawner();
        let options = options(&install, directory.path());
        Self {
            sandbox: bubblewrap(&spawner, options),
            spawner,
            install,
            directory,
        }
    }

    pub(crate) async fn launch(&self, server: Server) -> Result<Instance, Error> {
        in_time(TEST_TIMEOUT, self.sandbox.launch(server.unit())).await
    }

    /// Launches a server whose first line is `up`.
    pub(crate) async fn up(&self, server: Server) -> Instance {
        let mut instance = self.launch(server).await.unwrap();
        assert_eq!(line(&mut instance).await, "up");
        instance
    }

    pub(crate) async fn run(&self, server: Server) -> (String, Instance) {
        let mut instance = self.launch(server).await.unwrap();
        let text = read(&mut instance).await;
        in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        (text, instance)
    }

    /// The paths of this installation's groups: in each hierarchy, or in the only one.
    fn groups(&self) -> Vec<PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let mut hierarchies = vec![root.to_owned()];
        let entries = fs::read_dir(root).unwrap().flatten();
        hierarchies.extend(entries.map(|entry| entry.path()));
        let ours = |at: PathBuf| at.join("toolwharf").join(&self.install);
        hierarchies.into_iter().map(ours).collect()
    }

    /// Control groups and mounts that are left of this installation.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for ours in self.groups() {
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
        for ours in self.groups() {
            let _ = fs::remove_dir(ours);
        }
    }
}

pub(crate) fn running(program: &str, args: &[&str]) -> Server {
    let source = Program::Command {
        program: program.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
    };
    Server::new("server", source)
}

pub(crate) fn sh(script: &str) -> Server {
    running("sh", &["-c", script])
}

/// A server that runs a shell script and has the volume `/data`.
pub(crate) fn with_data(script: &str) -> Server {
    let mut server = sh(script);
    server.sandbox.volumes = vec!["/data".into()];
    server
}

pub(crate) fn python(script: &str) -> Server {
    running("/usr/bin/python3", &["-c", script])
}

pub(crate) async fn read(instance: &mut Instance) -> String {
    let mut text = String::new();
    let stdout = &mut instance.stdio.as_mut().unwrap().stdout;
    in_time(TEST_TIMEOUT, stdout.read_to_string(&mut text))
        .await
        .unwrap();
    text
}

pub(crate) async fn line(instance: &mut Instance) -> String {
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
    in_time(TEST_TIMEOUT, reading).await;
    String::from_utf8(line).unwrap()
}

pub(crate) async fn say(instance: &mut Instance, text: &str) {
    let stdin = &mut instance.stdio.as_mut().unwrap().stdin;
    stdin.write_all(text.as_bytes()).await.unwrap();
}

pub(crate) fn row<'a>(instance: &'a Instance, what: &str) -> &'a runtime::Enforced {
    instance
        .enforced
        .iter()
        .find(|row| row.what == what)
        .unwrap()
}
