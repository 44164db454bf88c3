//! Runs Toolwharf in the foreground of a command.
//!
//! Toolwharf runs in a separate process group, so that Ctrl-C reaches only this process. It passes the signal on once,
//! as SIGTERM, and exits after Toolwharf has exited.

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use ureq::Agent;

use crate::{daemon, shell::Cmd};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of polls until Toolwharf is ready: 30 s.
const MAX_READY_POLLS: u32 = 300;
/// Maximum number of polls until Toolwharf has exited after SIGTERM: 30 s.
const MAX_STOP_POLLS: u32 = 300;

/// A running Toolwharf process. Dropping this value stops the process.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    interrupted: Arc<AtomicBool>,
    told_to_stop: bool,
}

impl Gateway {
    /// Starts Toolwharf.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn start(serve: Cmd) -> Result<Self> {
        let interrupted = daemon::interruption()?;
        let child = serve.into_command().process_group(0).spawn();
        let child = child.context("cannot start toolwharf")?;
        Ok(Self {
            child,
            interrupted,
            told_to_stop: false,
        })
    }

    /// Returns whether a signal has requested a stop.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until Toolwharf reports readiness.
    ///
    /// # Errors
    ///
    /// If it exits, is not ready in time, or a signal arrives.
    pub(crate) fn wait_until_ready(&mut self, address: SocketAddr) -> Result<()> {
        let agent = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(ANSWER_TIMEOUT));
        let agent = agent.build().new_agent();
        for _ in 0..MAX_READY_POLLS {
            if let Some(status) = self.child.try_wait()? {
                bail!("toolwharf exited before it was ready: {status}");
            }
            ensure!(!self.interrupted(), "interrupted");
            let answer = agent.get(format!("http://{address}/readyz")).call();
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("toolwharf is not ready after 30 s: /readyz at {address} does not return 200")
    }

    /// Waits until Toolwharf exits or a signal requests a stop.
    ///
    /// # Errors
    ///
    /// If it fails or does not exit.
    pub(crate) fn wait(mut self) -> Result<()> {
        loop {
            if self.has_ended()? {
                return Ok(());
            }
            if self.interrupted() {
                return self.stop();
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns whether Toolwharf has exited. Fails if its exit code is not 0.
    fn has_ended(&mut self) -> Result<bool> {
        let ended = self.child.try_wait()?;
        if let Some(status) = ended {
            ensure!(status.success(), "toolwharf ended: {status}");
        }
        Ok(ended.is_some())
    }

    /// Stops Toolwharf and waits until it has exited.
    ///
    /// # Errors
    ///
    /// If it fails or does not exit.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if !self.told_to_stop && self.child.try_wait()?.is_none() {
            self.told_to_stop = true;
            kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        }
        for _ in 0..MAX_STOP_POLLS {
            if self.has_ended()? {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("toolwharf did not exit within 30 s of SIGTERM")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // Toolwharf has already been reaped, or does not exit on SIGTERM. Both need no report.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
