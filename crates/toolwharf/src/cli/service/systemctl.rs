//! systemd's manager for the services of this user, through `systemctl --user`.

use std::{
    collections::HashMap,
    env, io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use tokio::process::Command;

use super::{Failed, unit};

/// Timeout for commands that start or stop nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for commands that start or stop the service. A start may wait for servers, one after another.
const WORK_TIMEOUT: Duration = Duration::from_mins(10);

/// Reasons for the absence of a service manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    #[error("this system does not run systemd")]
    Systemd,
    /// systemd runs, but not for this user. With the message of `systemctl`.
    #[error("systemd does not answer for this user (`systemctl --user`: {0})")]
    OfUser(String),
}

/// A service manager that answers.
#[derive(Debug)]
pub(super) struct Systemctl(());

/// The state of the unit, according to systemd.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The unit file in use. `None`: systemd does not find the unit.
    pub(super) file: Option<PathBuf>,
    /// Such as `active`, `activating`, `inactive` or `failed`.
    pub(super) active: String,
    pub(super) is_enabled: bool,
    pub(super) pid: Option<u32>,
}

impl State {
    pub(super) fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading")
    }
}

impl Systemctl {
    pub(super) async fn find() -> Result<Self, Missing> {
        let answer = run(&["show-environment"], ANSWER_TIMEOUT).await;
        match answer {
            Ok(output) if output.status.success() => Ok(Self(())),
            Ok(_) if !Path::new("/run/systemd/system").is_dir() => Err(Missing::Systemd),
            Ok(output) => Err(Missing::OfUser(said(&output))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Missing::Systemd),
            Err(error) => Err(Missing::OfUser(error.to_string())),
        }
    }

    /// Makes systemd reload the unit files.
    pub(super) async fn reload(&self) -> Result<(), Failed> {
        done(&["daemon-reload"], ANSWER_TIMEOUT).await
    }

    pub(super) async fn state(&self) -> Result<State, Failed> {
        let properties = "--property=LoadState,ActiveState,UnitFileState,MainPID,FragmentPath";
        let args = ["show", unit::NAME, properties];
        let output = run(&args, ANSWER_TIMEOUT).await;
        match output {
            Ok(output) if output.status.success() => {
                Ok(parsed(&String::from_utf8_lossy(&output.stdout)))
            }
            Ok(output) => Err(failed(&args, said(&output))),
            Err(error) => Err(failed(&args, error.to_string())),
        }
    }

    pub(super) async fn enable(&self) -> Result<(), Failed> {
        done(&["enable", unit::NAME], ANSWER_TIMEOUT).await
    }

    /// Starts the service, or restarts it. Returns when the gateway accepts connections.
    pub(super) async fn restart(&self) -> Result<(), Failed> {
        done(&["restart", unit::NAME], WORK_TIMEOUT).await
    }

    /// Stops the service, and no longer starts it at login.
    pub(super) async fn disable(&self) -> Result<(), Failed> {
        done(&["disable", "--now", unit::NAME], WORK_TIMEOUT).await
    }

    /// Stops the service, if systemd still knows it.
    pub(super) async fn stop(&self) {
        let _ = run(&["stop", unit::NAME], WORK_TIMEOUT).await;
    }

    /// Clears the state `failed`. An error means that the unit does not have it.
    pub(super) async fn forget_failure(&self) {
        let _ = run(&["reset-failed", unit::NAME], ANSWER_TIMEOUT).await;
    }
}

fn parsed(text: &str) -> State {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let of: HashMap<&str, &str> = lines.collect();
    let value = |name: &str| of.get(name).copied().unwrap_or_default();
    let is_found = value("LoadState") != "not-found" && !value("FragmentPath").is_empty();
    State {
        file: is_found.then(|| value("FragmentPath").into()),
        active: value("ActiveState").to_owned(),
        is_enabled: value("UnitFileState").starts_with("enabled"),
        pid: value("MainPID").parse().ok().filter(|pid: &u32| *pid != 0),
    }
}

async fn run(args: &[&str], limit: Duration) -> io::Result<Output> {
    let mut command = Command::new("systemctl");
    command
        .args(["--user", "--no-pager"])
        .args(args)
        .env("LC_ALL", "C")
        .env("SYSTEMD_COLORS", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let late = || io::Error::other(format!("no answer within {} s", limit.as_secs()));
    let output = tokio::time::timeout(limit, command.output()).await;
    output.unwrap_or_else(|_| Err(late()))
}

async fn done(args: &[&str], limit: Duration) -> Result<(), Failed> {
    match run(args, limit).await {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(args, said(&output))),
        Err(error) => Err(failed(args, error.to_string())),
    }
}

fn failed(args: &[&str], why: String) -> Failed {
    Failed::Systemctl {
        command: args.join(" "),
        why,
    }
}

/// The message of a command that failed.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim().lines().next() {
        Some(line) => line.trim_end_matches('.').to_owned(),
        None => output.status.to_string(),
    }
}

/// Returns how the gateway can be started on a machine without a service manager for this user. `command` starts it.
pub(super) fn instead(missing: &Missing, command: &str) -> String {
    let is_there = |file: &str| Path::new(file).exists();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if let Missing::OfUser(_) = missing {
        return format!(
            "Log in as this user, not with `su` or `sudo`. On a machine without logins, run `loginctl enable-linger {}` as \
             root, and set XDG_RUNTIME_DIR=/run/user/{}",
            env::var("USER").unwrap_or_else(|_| "USER".to_owned()),
            rustix::process::getuid().as_raw()
        );
    }
    let way = if cfg!(target_os = "macos") {
        "make it the program of a launchd agent in ~/Library/LaunchAgents"
    } else if kernel.to_lowercase().contains("microsoft") {
        "write `systemd=true` under [boot] in /etc/wsl.conf and restart WSL with `wsl --shutdown`"
    } else if is_there("/.dockerenv") || is_there("/run/.containerenv") {
        "make it the command of the container"
    } else {
        "add it to what starts with your session, such as ~/.profile with `&` at the end, or to the services of this \
         system's service manager (OpenRC, runit, s6)"
    };
    format!("Start the gateway with `{command}`: {way}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read() {
        let running = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=42\n\
                       FragmentPath=/home/you/.config/systemd/user/toolwharf.service\n";
        let none =
            "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nMainPID=0\nFragmentPath=\n";
        let expect = State {
            file: Some("/home/you/.config/systemd/user/toolwharf.service".into()),
            active: "active".to_owned(),
            is_enabled: true,
            pid: Some(42),
        };
        assert_eq!(parsed(running), expect);
        let none = parsed(none);
        assert_eq!(
            (&none.file, none.is_enabled, none.pid),
            (&None, false, None)
        );
        assert!(!none.is_active() && expect.is_active());
        assert!(!parsed("").is_active());
    }
}
