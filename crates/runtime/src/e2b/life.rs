//! The tasks of one instance: its streams, its lease, and its end.

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
use crate::handle::{Exit, ProcessState};
use crate::ladder::{Ladder, Step};

/// Bytes of one request.
const CHUNK: usize = 32 << 10;
const BUFFER: usize = 64 << 10;
/// A lease is renewed so many times before it is over.
const RENEWALS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the output came to.
pub(super) enum Over {
    /// The command ended.
    Ended(Exit),
    /// Nothing is known of the command.
    Broken(String),
}

pub(super) struct Life {
    pub(super) inner: Arc<Inner>,
    pub(super) sandbox: String,
    pub(super) pid: u32,
    pub(super) envd: Envd,
    pub(super) shared: Arc<ProcessState>,
    /// What is the matter with the input, if something is.
    pub(super) input: JoinHandle<Result<(), String>>,
    pub(super) output: JoinHandle<Over>,
    /// Tells the output that nobody needs the rest.
    pub(super) killed: CancellationToken,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

/// Sends what is written to a command. One request at a time: that keeps them in order.
pub(super) async fn input(envd: Envd, pid: u32, mut from: DuplexStream) -> Result<(), String> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from.read(&mut chunk).await.unwrap_or(0);
        if count == 0 {
            return match envd.close(pid).await {
                // Its end is told on the other stream.
                Ok(_) => Ok(()),
                Err(error) => Err(words(error)),
            };
        }
        // Not sent again if that fails: it may have arrived.
        match envd.input(pid, &chunk[..count]).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // It has closed its input, or just ended.
            Err(Call::Answer(500, why)) => {
                tracing::debug!(pid, "a command in a sandbox takes no input: {why}");
                return Ok(());
            }
            Err(error) => return Err(words(error)),
        }
    }
}

/// Takes what a command writes, to its end. stdout has a bounded buffer, and while that is full nothing is taken, stderr
/// neither.
pub(super) async fn output(
    mut events: Events,
    stdout: DuplexStream,
    shared: Arc<ProcessState>,
    killed: CancellationToken,
) -> Over {
    let (mut lines, log) = duplex(BUFFER);
    let moving = async move {
        let mut stdout = Some(stdout);
        let mut exit = None;
        loop {
            match events.next().await {
                Ok(Some(Event::Stdout(bytes))) => {
                    if let Some(pipe) = &mut stdout {
                        tokio::select! {
                            // Its reader is gone, and may be so.
                            _ = pipe.write_all(&bytes) => {}
                            () = killed.cancelled() => stdout = None,
                        }
                    }
                }
                Ok(Some(Event::Stderr(bytes))) => {
                    let _ = lines.write_all(&bytes).await;
                }
                // Whether the stream has an end of its own does not matter any more.
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
            None => Over::Broken("its output ended before it did".to_owned()),
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
        let mut due = Instant::now() + lease / RENEWALS;
        // As late as it can be: E2B counts from when it was told.
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
                        Err(_) => broken = Some("its output is not taken any more".to_owned()),
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
                // Nobody has renewed its lease: it is gone, whether E2B says so or not.
                () = sleep_until(over), if given_up => {
                    removed = true;
                    break self.gone(false);
                }
                () = &mut signal => signal = pending().boxed(),
                () = sleep_until(due), if !kill => {
                    due = Instant::now() + lease / RENEWALS;
                    let (inner, sandbox) = (Arc::clone(&self.inner), self.sandbox.clone());
                    renewal = async move { inner.api.renew(&sandbox, lease).await }.boxed();
                }
                renewed = &mut renewal => {
                    renewal = pending().boxed();
                    match renewed {
                        Ok(true) => over = Instant::now() + lease,
                        Ok(false) => broken = Some("its sandbox is gone".to_owned()),
                        // There are more before the lease is over.
                        Err(error) => {
                            let error = words(error);
                            tracing::warn!(label = self.shared.label, sandbox = self.sandbox, "its lease is not renewed: {error}");
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
                        tracing::warn!(label = self.shared.label, sandbox = self.sandbox, "killed, and its end is not known");
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
                    "{why}: it is killed"
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
        // As soon as it can be; the lease does the rest.
        if !removed {
            removed = self.remove_once().await;
        }
        self.shared.log.close();
        self.exit.send_replace(Some(exit));
        if !removed {
            let _ = tokio::time::timeout(lease, self.kill()).await;
        }
    }

    /// Whether it is gone after one attempt.
    async fn remove_once(&self) -> bool {
        match self.inner.api.kill(&self.sandbox).await {
            Ok(_) => true,
            Err(error) => {
                let error = words(error);
                tracing::warn!(
                    label = self.shared.label,
                    sandbox = self.sandbox,
                    "a sandbox is not removed yet: {error}"
                );
                false
            }
        }
    }

    /// Kills the sandbox, again and again until E2B has said that it is gone; whether it was there till then.
    fn kill(&self) -> BoxFuture<'static, bool> {
        let (inner, sandbox) = (Arc::clone(&self.inner), self.sandbox.clone());
        async move {
            let mut pause = PAUSE;
            loop {
                match inner.api.kill(&sandbox).await {
                    Ok(was_there) => return was_there,
                    Err(error) => {
                        let error = words(error);
                        tracing::debug!(sandbox, "a sandbox is not killed yet: {error}");
                    }
                }
                sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
        .boxed()
    }

    /// How an instance ended whose sandbox is no more.
    fn gone(&self, was_there: bool) -> Exit {
        if was_there {
            return Exit {
                signal: Some(9),
                ..Exit::default()
            };
        }
        // The one place where who asks for the reason will look.
        self.shared.log.push(
            "toolwharf: the sandbox ended, by somebody else or at the end of its time".into(),
        );
        Exit::default()
    }
}

/// Asked once more if that fails; the kill comes in any case.
async fn terminate(envd: Envd, pid: u32) {
    for _ in 0..2 {
        if envd.signal(pid, Signal::Term).await.is_ok() {
            return;
        }
        sleep(PAUSE).await;
    }
}

fn words(error: Call) -> String {
    crate::unit::Error::from(error).to_string()
}
