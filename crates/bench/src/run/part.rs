//! The processes of a measurement. Each listens on a free port and exits when the driver exits.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::api::Api;
use super::client;

const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A started process that listens on `url`.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) url: String,
    pub(crate) pid: u32,
    child: Child,
    /// Only set for the gateway.
    home: Option<Home>,
}

/// Directory with the gateway's configuration, data and log. Removed with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Home(Arc<TempDir>);

/// The path of this program. The other processes of a measurement are subcommands of it.
pub(crate) fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("the path of this program is unknown")
}

/// Returns `given`, otherwise the program `name` next to this binary.
pub(crate) fn program(given: Option<PathBuf>, name: &str) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => path,
        None => own_path()?.with_file_name(name),
    };
    anyhow::ensure!(
        path.is_file(),
        "{} is missing: build it first",
        path.display()
    );
    Ok(path)
}

/// Starts this binary with `arguments` and waits until it has printed its URL.
///
/// # Errors
///
/// The process does not start, or does not print anything within 30 s.
pub(crate) async fn own(arguments: &[&str]) -> anyhow::Result<Part> {
    let mut command = Command::new(own_path()?);
    // The command of a stdio server follows `--`, so options must precede it.
    command.arg(arguments[0]).arg("--until-stdin-closes");
    let mut child = command
        .args(&arguments[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start bench {}", arguments.join(" ")))?;
    let stdout = child.stdout.take().context("no stdout")?;
    let mut url = String::new();
    timeout(START_DEADLINE, BufReader::new(stdout).read_line(&mut url))
        .await
        .with_context(|| format!("bench {} printed no URL", arguments.join(" ")))??;
    anyhow::ensure!(!url.is_empty(), "bench {} ended", arguments.join(" "));
    Ok(Part {
        url: url.trim_end().to_owned(),
        pid: child.id().context("the process has ended")?,
        child,
        home: None,
    })
}

/// Makes this folder the home of a program, which gets none of this user's settings and data. Its output goes to the file
/// `log` in the folder.
pub(crate) fn at_home(command: &mut Command, folder: &Path) -> anyhow::Result<()> {
    let log = File::create(folder.join("log"))?;
    command
        .env_remove("TOOLWHARF_DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    for name in [
        "HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    ] {
        command.env(name, folder);
    }
    Ok(())
}

impl Home {
    /// Writes the configuration: `servers` as `mcpServers`, `settings` as `toolwharf.toml`.
    pub(crate) fn new(servers: &Value, settings: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("no temporary directory")?;
        let servers = json!({ "mcpServers": servers }).to_string();
        std::fs::write(dir.path().join("mcp.json"), servers)?;
        std::fs::write(dir.path().join("toolwharf.toml"), settings)?;
        Ok(Self(Arc::new(dir)))
    }

    /// Starts the gateway, which may have used this directory before, and waits until it listens.
    pub(crate) async fn spawn(&self, program: &Path) -> anyhow::Result<Part> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        for file in ["mcp.json", "toolwharf.toml"] {
            command.arg("--config").arg(self.path().join(file));
        }
        command.env("RUST_LOG", "warn");
        at_home(&mut command, self.path())?;
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut part = Part {
            url: String::new(),
            pid: child.id().context("the process has ended")?,
            child,
            home: Some(self.clone()),
        };
        part.url = part.told().await?;
        Ok(part)
    }

    /// Like [`Home::spawn`], but waits until the gateway is ready.
    pub(crate) async fn start(&self, program: &Path) -> anyhow::Result<Part> {
        let mut part = self.spawn(program).await?;
        part.ready().await?;
        Ok(part)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Copies the keys of `first`, whose gateway must have become ready before.
    pub(crate) fn share(&self, first: &Self) -> anyhow::Result<()> {
        let data = |home: &Self| home.path().join("toolwharf");
        std::fs::create_dir_all(data(self))?;
        for file in ["admin-token", "master.key"] {
            std::fs::copy(data(first).join(file), data(self).join(file))
                .with_context(|| format!("cannot copy {file}"))?;
        }
        Ok(())
    }
}

impl Part {
    /// The directory of the gateway.
    ///
    /// # Errors
    ///
    /// The process is not the gateway.
    pub(crate) fn home(&self) -> anyhow::Result<&Home> {
        self.home.as_ref().context("only the gateway has a home")
    }

    /// The administrator's token, whose file the gateway creates before it is ready.
    pub(crate) fn token(&self) -> anyhow::Result<String> {
        let file = self.home()?.path().join("toolwharf/admin-token");
        let token = std::fs::read_to_string(&file);
        let token = token.with_context(|| format!("cannot read {}", file.display()))?;
        Ok(token.trim().to_owned())
    }

    /// Connects to the REST API of the gateway, which must have become ready before.
    pub(crate) async fn api(&self) -> anyhow::Result<Api> {
        Api::connect(&self.url, &self.token()?).await
    }

    /// Waits until `GET /readyz` returns 200.
    ///
    /// # Errors
    ///
    /// The process exited (with the end of its log), or was not ready within 30 s.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while !timeout(START_DEADLINE, client::ready(&self.url)).await? {
            self.runs(deadline, "is not ready")?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// The URL that the gateway prints when it listens, on a free port.
    async fn told(&mut self) -> anyhow::Result<String> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let log = self.written();
            let mut lines = log.split_inclusive('\n');
            let url =
                lines.find_map(|line| line.strip_prefix("toolwharf is at ")?.strip_suffix('\n'));
            if let Some(url) = url {
                return Ok(url.to_owned());
            }
            self.runs(deadline, "does not listen")?;
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Fails if the gateway has exited, or if `deadline` has passed. `fails` completes the message.
    fn runs(&mut self, deadline: Instant, fails: &str) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("the product ended with {status}:\n{}", self.log());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the product {fails} after 30 s:\n{}",
            self.log()
        );
        Ok(())
    }

    /// The last lines of the gateway's log.
    pub(crate) fn log(&self) -> String {
        let log = self.written();
        let lines: Vec<_> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// The gateway's complete log.
    fn written(&self) -> String {
        let read = |home: &Home| std::fs::read(home.path().join("log")).unwrap_or_default();
        let log = self.home.as_ref().map(read).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Stops the process. Adds the end of the gateway's log to an error.
    pub(crate) async fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let done = done.with_context(|| format!("the log ends:\n{}", self.log()));
        self.stop().await;
        done
    }

    /// Stops the process, and kills it if it has not exited after 5 s.
    pub(crate) async fn stop(mut self) {
        drop(self.child.stdin.take());
        if self.home.is_some()
            && let Some(pid) = self.child.id()
            && let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed())
        {
            // This fails if the process has just exited.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if timeout(STOP_DEADLINE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
