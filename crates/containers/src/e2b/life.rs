//! The tasks of one instance: streams, lease, and exit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, pending};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::api::Call;
use super::envd::{Broken, Envd, Event, Events, Signal};
use runtime::handle::{Exit, ProcessState};
use runtime::ladder::{Ladder, Step};

/// Maximum input of one request, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
const BUFFER_BYTES: usize = 64 << 10;
/// Number of renewals within one lease.
const RENEWALS_PER_LEASE: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// How the output ended.
pub(super) enum Over {
    /// The command ended.
    Ended(Exit),
    /// The state of the command is unknown.
    Broken(String),
}

pub(super) struct Life {
    pub(super) inner: Arc<Inner>,
    pub(super) sandbox: String,
    pub(super) pid: u32,
    pub(super) envd: Envd,
    pub(super) shared: Arc<ProcessState>,
    /// Ends with an error if the input failed.
    pub(super) input: JoinHandle<Result<(), String>>,
    pub(super) output: JoinHandle<Over>,
    /// Cancelled to make the output task discard the rest.
    pub(super) killed: CancellationToken,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

/// Sends input to a command, one request at a time to keep the order.
pub(super) async fn input(envd: Envd, pid: u32, mut from: DuplexStream) -> Result<(), String> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).await.unwrap_or(0);
        if count == 0 {
            return match envd.close(pid).await {
                // The exit is reported on the output stream.
                Ok(_) => Ok(()),
                Err(error) => Err(words(error)),
            };
        }
        // Do not retry after a failure, because the input may have arrived.
        match envd.input(pid, &chunk[..count]).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // The command has closed its input, or has just exited.
            Err(Call::Answer(500, why)) => {
                tracing::debug!(pid, "a command in a sandbox accepts no input: {why}");
                return Ok(());
            }
            Err(error) => return Err(words(error)),
        }
    }
}

/// Reads the output of a command until it ends. stdout has a bounded buffer; while it is full, neither stdout nor
/// stderr is read.
pub(super) async fn output(
    mut events: Events,
    stdout: DuplexStream,
    shared: Arc<ProcessState>,
    killed: CancellationToken,
) -> Over {
    let (mut lines, log) = duplex(BUFFER_BYTES);
    let moving = async move {
        let mut stdout = Some(stdout);
        let mut exit = None;
        loop {
            match events.next().await {
                Ok(Some(Event::Stdout(bytes))) => {
                    if let Some(pipe) = &mut stdout {
                        tokio::select! {
                            // An error means that the reader is gone, which is allowed.
                            _ = pipe.write_all(&bytes) => {}
                            () = killed.cancelled() => stdout = None,
                        }
                    }
                }
                Ok(Some(Event::Stderr(bytes))) => {
                    let _ = lines.write_all(&bytes).await;
                }
                // After the exit event, the end of the stream is irrelevant.
                Ok(Some(Event::End(found))) => {
                    exit = Some(found);
                    break;
                }
                Ok(None) => break,
                Err(Broken::Off(why)) => return Over::Broken(why),
                Err(Broken::Error { code, message }) => {
                    return Over::Broken(format!("{message} ({code})"));
                }
            }
        }
        match exit {
            Some(exit) => Over::Ended(exit),
            None => {
                Over::Broken("the command's output ended before its exit was reported".to_owned())
            }
        }
    };
    let (over, ()) = tokio::join!(moving, shared.log.fill(log));
    over
}

impl Life {
    pub(super) async fn run(mut self) {
        let mut ladder = Ladder::new(self.shared.requests());
        let mut signal: BoxFuture<'static, ()> = pending().boxed();
        let mut killing: BoxFuture<'static, bool> = pending().boxed();
        let mut renewal: BoxFuture<'static, Result<bool, Call>> = pending().boxed();
        let lease = self.inner.options.lease;
        let mut due = Instant::now() + lease / RENEWALS_PER_LEASE;
        // The latest time at which the lease can end: E2B counts from when it received the request, which was earlier
        // than now.
        let mut over = Instant::now() + lease;
        let mut given_up = false;
        let (mut writing, mut reading, mut kill, mut removed) = (true, true, false, false);
        let exit = loop {
            let mut broken = None;
            tokio::select! {
                over = &mut self.output, if reading => {
                    reading = false;
                    match over {
                        Ok(Over::Ended(exit)) => break exit,
                        Ok(Over::Broken(_)) if kill => {}
                        Ok(Over::Broken(why)) => broken = Some(why),
                        Err(_) => broken = Some("the task that reads the command's output failed".to_owned()),
                    }
                }
                over = &mut self.input, if writing => {
                    writing = false;
                    if let Ok(Err(why)) = over && !kill {
                        broken = Some(why);
                    }
                }
                was_there = &mut killing => {
                    removed = true;
                    break self.gone(was_there);
                }
                // The lease has expired without a renewal, so the sandbox is gone, whatever E2B says.
                () = sleep_until(over), if given_up => {
                    removed = true;
                    break self.gone(false);
                }
                () = &mut signal => signal = pending().boxed(),
                () = sleep_until(due), if !kill => {
                    due = Instant::now() + lease / RENEWALS_PER_LEASE;
                    let (inner, sandbox) = (Arc::clone(&self.inner), self.sandbox.clone());
                    renewal = async move { inner.api.renew(&sandbox, lease).await }.boxed();
                }
                renewed = &mut renewal => {
                    renewal = pending().boxed();
                    match renewed {
                        Ok(true) => over = Instant::now() + lease,
                        Ok(false) => broken = Some("the server's sandbox no longer exists".to_owned()),
                        // There are more attempts before the lease is over.
                        Err(error) => {
                            let error = words(error);
                            let left = over.saturating_duration_since(Instant::now()).as_secs();
                            tracing::warn!(
                                label = self.shared.label,
                                sandbox = self.sandbox,
                                "cannot renew the lease of the server's sandbox: {error}; retrying; without a renewal, E2B ends the sandbox in {left} s"
                            );
                        }
                    }
                }
                step = ladder.next() => match step {
                    Step::Terminate if kill => {}
                    Step::Terminate => {
                        let (envd, pid) = (self.envd.clone(), self.pid);
                        signal = terminate(envd, pid).boxed();
                    }
                    Step::Kill => {
                        self.killed.cancel();
                        if !kill {
                            kill = true;
                            killing = self.kill();
                        }
                    }
                    Step::GiveUp => {
                        tracing::warn!(label = self.shared.label, sandbox = self.sandbox, "killed the instance, but its exit could not be confirmed");
                        given_up = true;
                    }
                },
            }
            if let Some(why) = broken
                && !kill
            {
                tracing::warn!(
                    label = self.shared.label,
                    sandbox = self.sandbox,
                    "{why}; killing the server"
                );
                kill = true;
                killing = self.kill();
            }
        };
        self.killed.cancel();
        self.input.abort();
        if reading {
            self.output.abort();
            let _ = (&mut self.output).await;
        }
        // Remove the sandbox immediately if possible; otherwise its lease ends it.
        if !removed {
            removed = self.remove_once().await;
        }
        self.shared.log.close();
        self.exit.send_replace(Some(self.shared.explained(exit)));
        if !removed {
            let _ = tokio::time::timeout(lease, self.kill()).await;
        }
    }

    /// Tries once to remove the sandbox. Returns whether the sandbox is gone.
    async fn remove_once(&self) -> bool {
        match self.inner.api.kill(&self.sandbox).await {
            Ok(_) => true,
            Err(error) => {
                let error = words(error);
                tracing::warn!(
                    label = self.shared.label,
                    sandbox = self.sandbox,
                    "cannot remove a sandbox, retrying: {error}"
                );
                false
            }
        }
    }

    /// Kills the sandbox. Retries until E2B confirms that it is gone. Returns whether it existed until then.
    fn kill(&self) -> BoxFuture<'static, bool> {
        let (inner, sandbox) = (Arc::clone(&self.inner), self.sandbox.clone());
        async move {
            let mut pause = RETRY_DELAY;
            loop {
                match inner.api.kill(&sandbox).await {
                    Ok(was_there) => return was_there,
                    Err(error) => {
                        let error = words(error);
                        tracing::debug!(sandbox, "cannot kill a sandbox, retrying: {error}");
                    }
                }
                sleep(pause).await;
                pause = (2 * pause).min(MAX_RETRY_DELAY);
            }
        }
        .boxed()
    }

    /// The exit of an instance whose sandbox no longer exists.
    fn gone(&self, was_there: bool) -> Exit {
        if was_there {
            return Exit {
                signal: Some(9),
                ..Exit::default()
            };
        }
        // Write this to the server's log, because users look there for the reason.
        self.shared.log.push(
            "toolwharf: the sandbox ended: another program removed it, or its lease expired".into(),
        );
        Exit::default()
    }
}

/// Sends SIGTERM, at most twice. The kill follows in any case.
async fn terminate(envd: Envd, pid: u32) {
    for _ in 0..2 {
        if envd.signal(pid, Signal::Term).await.is_ok() {
            return;
        }
        sleep(RETRY_DELAY).await;
    }
}

fn words(error: Call) -> String {
    runtime::unit::Error::from(error).to_string()
}
