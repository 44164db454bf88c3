//! The old gateway's side of an upgrade.

use std::{
    future, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use backend::{
    handover::{Channel, Message, VARIABLE},
    service_manager::ServiceManager,
};
use futures_util::future::BoxFuture;
use tokio::{
    net::{TcpStream, UnixStream},
    process::{Child, Command},
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    control::{self, Control, Reply, Request},
    program,
};
use crate::first_process;

/// Time limit for the new gateway to get ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for the last message and the exit of a new gateway that has ended its work.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The variables of a service manager that are for this process only.
const OWN_VARIABLES: [&str; 5] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Requests by signal. SIGUSR2 would end a process that has not created this.
pub(crate) struct Requests(Signal);

impl Requests {
    pub(crate) fn new() -> io::Result<Self> {
        signal(SignalKind::user_defined2()).map(Self)
    }
}

/// Carries out upgrades of this gateway.
pub(crate) struct Upgrades {
    pub(crate) data_dir: PathBuf,
    /// The file of this program, as it was named at the start: npm and pip rename an old file before they remove it.
    pub(crate) own_program: Option<PathBuf>,
    /// The user chose the port.
    pub(crate) is_fixed: bool,
    pub(crate) lock: OwnedFd,
    pub(crate) listener: OwnedFd,
    /// The listener of the Apps.
    pub(crate) apps: Option<OwnedFd>,
    pub(crate) service_manager: ServiceManager,
    /// Cancelled when the gateway that this one has replaced has exited. `None`: it has replaced none.
    pub(crate) predecessor: Option<CancellationToken>,
    /// Set when an upgrade has succeeded.
    pub(crate) successor: OnceLock<Successor>,
}

/// The new gateway. It owns the data directory as soon as this is dropped.
pub(crate) struct Successor {
    channel: Arc<Channel>,
}

impl Successor {
    /// Passes connections to it.
    pub(crate) fn heir(&self) -> gateway::Heir {
        let channel = self.channel.clone();
        Arc::new(move |socket: TcpStream| -> BoxFuture<'static, ()> {
            let channel = channel.clone();
            Box::pin(async move {
                let passed = match socket.into_std() {
                    Ok(socket) => channel.send(&Message::Connection, &[socket.as_fd()]).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = passed {
                    tracing::debug!("closed a connection that could not be passed on: {error}");
                }
            })
        })
    }
}

impl Upgrades {
    /// Carries out requests, one at a time. Returns when an upgrade has succeeded.
    pub(crate) async fn run(&self, requests: &mut Requests) {
        let control = Control::bind(&self.data_dir);
        if let Err(error) = &control {
            tracing::warn!(
                "`toolwharf upgrade` cannot reach this gateway, but SIGUSR2 can: cannot listen in {}: {error}",
                self.data_dir.display()
            );
        }
        let control = control.ok();
        let mut refusals = JoinSet::new();
        let mut attempt: Option<BoxFuture<'_, ()>> = None;
        loop {
            let is_busy = attempt.is_some();
            tokio::select! {
                () = current(&mut attempt) => {
                    attempt = None;
                    if self.successor.get().is_some() {
                        if let Some(control) = control {
                            control.leave();
                        }
                        return;
                    }
                }
                _ = requests.0.recv() => {
                    if is_busy {
                        tracing::warn!("SIGUSR2 is ignored, because an upgrade is in progress");
                    } else {
                        attempt = Some(Box::pin(self.attempt(None)));
                    }
                }
                stream = accept(control.as_ref()) => {
                    if is_busy {
                        refusals.spawn(refuse(stream));
                    } else {
                        attempt = Some(Box::pin(self.attempt(Some(stream))));
                    }
                }
                Some(_) = refusals.join_next() => {}
            }
        }
    }

    /// Closes the descriptors. Returns the new gateway if an upgrade has succeeded.
    pub(crate) fn finish(self) -> Option<Successor> {
        self.successor.into_inner()
    }

    /// Carries out one request. The sender of a request without a connection finds the outcome in the log.
    async fn attempt(&self, mut from: Option<UnixStream>) {
        let reply = match self.upgrade(from.as_mut()).await {
            Ok((pid, program)) => {
                tracing::info!("process {pid} serves from now on: {}", program.display());
                Reply::Upgraded { pid, program }
            }
            Err(error) => {
                let why = format!("{error:#}");
                tracing::error!("the upgrade failed, and this process serves on: {why}");
                self.service_manager.upgrade_failed(&why).await;
                Reply::Failed { why }
            }
        };
        if let Some(stream) = &mut from {
            control::reply(stream, &reply).await;
        }
    }

    async fn upgrade(&self, from: Option<&mut UnixStream>) -> anyhow::Result<(u32, PathBuf)> {
        let request = match from {
            Some(stream) => control::request(stream).await?,
            None => Request { program: None },
        };
        if std::env::var_os(first_process::VARIABLE).is_some() {
            bail!(
                "this container ends with the process that serves now: start a container of the new image instead"
            );
        }
        let program = match request.program {
            Some(program) => program,
            None => {
                let own = self.own_program.clone();
                own.context("cannot find the file of the running program: name the new one")?
            }
        };
        program::check(&program)?;
        // A third gateway would not notice when the first one is gone.
        if let Some(gone) = &self.predecessor {
            let gone = timeout(READY_TIMEOUT, gone.cancelled()).await;
            gone.context("the process before this one has not ended yet")?;
        }
        let pid = self.hand_over(&program).await;
        Ok((
            pid.with_context(|| format!("{} cannot take over", program.display()))?,
            program,
        ))
    }

    /// Starts the program, and lets it serve once it is ready. Returns its process id.
    async fn hand_over(&self, program: &Path) -> anyhow::Result<u32> {
        let (channel, other) = Channel::pair().context("cannot create a socket pair")?;
        let mut begun = Begun::start(program, other)?;
        let ready = timeout(READY_TIMEOUT, self.ready(&channel, &mut begun)).await;
        ready.unwrap_or_else(|_| {
            let seconds = READY_TIMEOUT.as_secs();
            Err(anyhow!("it was not ready within {seconds} s"))
        })?;
        let go = channel.send(&Message::Go, &[]).await;
        go.context("it ended when it was ready")?;
        // No await lies between the order to serve and this mark.
        let pid = begun.keep();
        let channel = Arc::new(channel);
        let successor = Successor {
            channel: channel.clone(),
        };
        let _ = self.successor.set(successor);
        self.service_manager.main_process(pid).await;
        // An error means that it has just died. This process exits in any case, because the other one is the main process now.
        let _ = channel.send(&Message::Serve, &[]).await;
        Ok(pid)
    }

    /// Waits until the new gateway is ready.
    async fn ready(&self, channel: &Channel, begun: &mut Begun) -> anyhow::Result<()> {
        let watchdog = self.service_manager.watchdog_period();
        let begin = Message::Begin {
            is_fixed: self.is_fixed,
            watchdog: watchdog.and_then(|period| u64::try_from(period.as_micros()).ok()),
            schema: store::SCHEMA_VERSION,
        };
        let mut passed: Vec<BorrowedFd<'_>> = vec![self.lock.as_fd(), self.listener.as_fd()];
        passed.extend(self.apps.as_ref().map(|apps| apps.as_fd()));
        // If the program has ended already, the reason follows from its exit.
        let _ = channel.send(&begin, &passed).await;
        let child = &mut begun.child;
        loop {
            tokio::select! {
                biased;
                said = channel.receive() => match said.context("cannot read from it")? {
                    Some((Message::Ready, _)) => return Ok(()),
                    Some((Message::Failed { why }, _)) => bail!("{why}"),
                    Some(_) => {}
                    None => break,
                },
                _ = child.wait() => {
                    // Its last message may not have been read yet.
                    if let Ok(Ok(Some((Message::Failed { why }, _)))) =
                        timeout(EXIT_TIMEOUT, channel.receive()).await
                    {
                        bail!("{why}");
                    }
                    break;
                }
            }
        }
        match timeout(EXIT_TIMEOUT, child.wait()).await {
            Ok(Ok(status)) => bail!("it ended with {status} before it was ready"),
            _ => bail!("it closed its connection to this process before it was ready"),
        }
    }
}

/// The outcome of the current attempt. Without one, never returns.
async fn current(attempt: &mut Option<BoxFuture<'_, ()>>) {
    match attempt {
        Some(attempt) => attempt.await,
        None => future::pending().await,
    }
}

async fn accept(control: Option<&Control>) -> UnixStream {
    let Some(control) = control else {
        return future::pending().await;
    };
    loop {
        match control.accept().await {
            Ok(stream) => return stream,
            Err(error) => {
                tracing::warn!("cannot accept a request for an upgrade: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Refuses a request, because another one is in progress.
async fn refuse(mut stream: UnixStream) {
    // A reply before the request was read could get lost.
    let _ = control::request(&mut stream).await;
    let why = "an upgrade is in progress: wait for it".to_owned();
    control::reply(&mut stream, &Reply::Failed { why }).await;
}

/// A new gateway that does not serve yet. Dropping it kills it.
struct Begun {
    child: Child,
    is_kept: bool,
    pid: u32,
}

impl Begun {
    /// Starts the program like this one, with the other end of the channel as its standard input.
    fn start(program: &Path, channel: OwnedFd) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, "1")
            .stdin(Stdio::from(channel));
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        let child = command.spawn().context("it cannot be started")?;
        let pid = child.id().context("it has no process id")?;
        runtime::process::restore_file_limit(pid);
        Ok(Self {
            child,
            is_kept: false,
            pid,
        })
    }

    fn keep(mut self) -> u32 {
        self.is_kept = true;
        self.pid
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.child.start_kill();
        }
    }
}
