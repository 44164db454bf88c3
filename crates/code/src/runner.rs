//! Runs code in sandboxed processes, one for each run.
//!
//! # Invariants
//!
//! - A process serves one run, and is killed at its end.
//! - While a [`Runner`] is in use, one process is started and waits for the next run.
//! - Without a working sandbox, every run is an [`Error`] that says what is missing.

use std::sync::Arc;
use std::time::Duration;

use model::ResourceLimits;
use parking_lot::Mutex;
use runtime::Exit;
use runtime::process::{Instance, SentinelCommand, Spawner};
use runtime::sandbox::{Bare, BareOptions};
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::child;
use crate::limits::Limits;
use crate::outcome::{End, Failure, FailureKind, Outcome};
use crate::run::{Call, Request, refusal, run};
use crate::turns::Turns;

/// Names the control groups and the user of the processes.
const NAME: &str = "code";
/// Processes and threads inside a sandbox: the interpreter alone.
const MAX_PROCESSES: u32 = 4;
/// The longest time that a run waits for another one to end.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Deadline for a process that ended by itself to be reaped.
const EXIT_TIMEOUT: Duration = Duration::from_secs(6);
/// Memory of a process in addition to the code's values.
const MEMORY_BESIDES: u64 = 192 << 20;
/// The exit code of a process whose processor time was used up: 128 and SIGXCPU.
const CPU_EXIT_CODE: i32 = 152;
const CPU_SIGNAL: i32 = 24;

#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this installation, as for other sandboxes.
    pub install: String,
    /// The command that runs [`runtime::sandbox::shim_main`]. The same executable runs [`child::main`] with the
    /// argument [`child::ARGUMENT`].
    pub shim: SentinelCommand,
    pub limits: Limits,
    /// Runs at the same time, of which one owner may have half. Further runs wait.
    pub max_runs: usize,
}

/// Runs code. Cheap to clone; clones share state. When the last clone is dropped, the waiting process is killed.
#[derive(Clone)]
pub struct Runner(Arc<Inner>);

struct Inner {
    launcher: Bare,
    limits: Limits,
    turns: Turns,
    /// The process for the next run, perhaps still starting.
    next: Mutex<Option<AbortOnDropHandle<Result<Instance, runtime::Error>>>>,
}

/// Why a run was not started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The message names what the host lacks.
    #[error("code cannot run here: {0}")]
    NoSandbox(#[source] runtime::Error),
    #[error("too many runs at the same time: none ended within {} s", MAX_WAIT.as_secs())]
    Busy,
}

impl Runner {
    /// Starts nothing yet.
    #[must_use]
    pub fn new(spawner: Spawner, options: Options) -> Self {
        let limits = options.limits;
        let launcher = Bare::new(
            spawner,
            BareOptions {
                install: options.install,
                shim: options.shim,
                name: NAME,
                args: vec![child::ARGUMENT.to_owned()],
                limits: ResourceLimits {
                    cpu_millis: 1000,
                    memory: limits.memory.saturating_add(MEMORY_BESIDES),
                    disk: 0,
                    pids: MAX_PROCESSES,
                },
            },
        );
        Self(Arc::new(Inner {
            launcher,
            limits,
            turns: Turns::new(options.max_runs),
            next: Mutex::default(),
        }))
    }

    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Starts the process for the next run, unless there is one. Must be called in an async runtime.
    pub fn warm(&self) {
        let mut next = self.0.next.lock();
        if next.is_none() {
            let launcher = self.0.launcher.clone();
            *next = Some(own_task(async move { launcher.launch().await }));
        }
    }

    /// Checks whether code can run on this host, by starting a process.
    ///
    /// # Errors
    /// Says what is missing.
    pub async fn probe(&self) -> Result<(), Error> {
        let started = self.0.launcher.launch().await.map_err(Error::NoSandbox)?;
        let mut next = self.0.next.lock();
        if next.is_none() {
            *next = Some(own_task(async move { Ok(started) }));
        }
        Ok(())
    }

    /// Runs code to its end. `call` makes a call, as in [`run`]. Owners share the runs fairly.
    ///
    /// # Errors
    /// The code was not started.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process and drops the calls that are running.
    pub async fn run<C, F>(
        &self,
        owner: &Arc<str>,
        request: Request,
        call: C,
    ) -> Result<Outcome, Error>
    where
        C: FnMut(Call) -> F,
        F: Future<Output = Result<Box<RawValue>, String>>,
    {
        let limits = &self.0.limits;
        if let Some(failure) = refusal(&request, limits) {
            return Ok(Outcome {
                end: End::Failed(failure),
                output: String::new(),
                calls: 0,
                elapsed: Duration::ZERO,
            });
        }
        let Ok(_turn) = timeout(MAX_WAIT, self.0.turns.take(owner)).await else {
            return Err(Error::Busy);
        };
        let Instance {
            stdin,
            stdout,
            handle,
        } = self.take().await?;
        let mut outcome = run(stdout, stdin, request, limits, call).await;
        if let End::Broken(why) = &outcome.end {
            // The streams are closed by now, so a process that is still there ends.
            let exit = timeout(EXIT_TIMEOUT, handle.exited()).await;
            let why = why.clone();
            outcome.end = exit.map_or(End::Broken(why.clone()), |exit| {
                explained(why, exit, limits)
            });
        }
        handle.kill_now();
        Ok(outcome)
    }

    /// A process for one run. Starts the next one.
    async fn take(&self) -> Result<Instance, Error> {
        let next = self.0.next.lock().take();
        let started = match next {
            Some(next) => match next.await {
                Ok(Ok(one)) if one.handle.exit_status().is_none() => Some(one),
                // Another try has the current error, if there still is one.
                _ => None,
            },
            None => None,
        };
        let one = match started {
            Some(one) => one,
            None => self.0.launcher.launch().await.map_err(Error::NoSandbox)?,
        };
        self.warm();
        Ok(one)
    }
}

/// How a run ended whose process ended without saying so.
fn explained(why: String, exit: Exit, limits: &Limits) -> End {
    if exit.out_of_memory {
        let message = format!("the code used more than {} bytes of memory", limits.memory);
        return End::Failed(Failure::new(FailureKind::Memory, message));
    }
    if exit.code == Some(CPU_EXIT_CODE) || exit.signal == Some(CPU_SIGNAL) {
        let message = format!(
            "the code used more than {} s of processor time, in one operation that cannot be interrupted",
            limits.cpu.as_secs_f64()
        );
        return End::Failed(Failure::new(FailureKind::Time, message));
    }
    End::Broken(format!("{why} ({exit})"))
}

fn own_task<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the returned handle owns the task and aborts it on drop"
    )]
    AbortOnDropHandle::new(tokio::spawn(task))
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("launcher", &self.0.launcher)
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}
