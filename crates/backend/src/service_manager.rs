//! The service manager that started the gateway, such as systemd: messages to it (sd_notify(3)), and the socket that it
//! passes (sd_listen_fds(3)) or keeps for the next start (`FDSTORE=1`).
//!
//! Invariants:
//! - Only `toolwharf serve` notifies. `toolwharf stdio` may have inherited the variables of a service that started its
//!   client.
//! - Nothing but [`ServiceManager::watchdog`] waits longer than [`SEND_TIMEOUT`] for the service manager.
//! - Servers get neither the variables nor the socket: `runtime::process` clears their environment and closes inherited
//!   descriptors.
//! - During an upgrade, only the main process of the service sends messages: the old gateway until it has named the new
//!   one, the new one afterwards.
//!
//! Deliberately absent: several sockets, and sockets other than TCP.

use std::{
    future, io, net,
    os::{
        fd::{AsFd as _, BorrowedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::net::{Shutdown, shutdown, sockopt::socket_acceptconn};
use sd_notify::NotifyState;
use tokio::{net::TcpListener, runtime::Handle, sync::Mutex, time::MissedTickBehavior};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::handover;

/// The name of the listener that the service manager keeps.
const KEPT_NAME: &str = "toolwharf-listener";
/// The variable with the names of the passed sockets.
const NAMES_VARIABLE: &str = "LISTEN_FDNAMES";
/// The variable with the address for messages.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// Timeout for a message. The kernel queues it immediately, unless the service manager has stopped reading.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The new start timeout in each message of [`ServiceManager::extend_start`]. It begins when the message arrives.
const START_EXTENSION: Duration = Duration::from_secs(60);
/// The shortest interval between two pings.
const MIN_PING_INTERVAL: Duration = Duration::from_millis(1);

/// Held while a message is sent: messages stay in order, and block at most one thread if the service manager has stopped
/// reading.
static SENDING: Mutex<()> = Mutex::const_new(());

/// The status while changed configuration files are invalid.
const INVALID_STATUS: &str = "the changed configuration is invalid, so the previous one stays in force; `toolwharf doctor` shows the errors";

/// Sends notifications to the service manager. Without one, all methods do nothing.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    /// The status of the running gateway. `None` without a service manager.
    status: Option<Arc<str>>,
    /// Another process is the main process of the service.
    muted: Arc<AtomicBool>,
    /// The period of the watchdog, if the service manager expects pings of this process.
    watchdog: Option<Duration>,
}

/// A message to the service manager.
#[derive(Clone, Debug)]
enum Message {
    Ready(Arc<str>),
    Reloading,
    Stopping,
    Ping,
    ExtendStart,
    MainProcess(u32),
    Status(String),
}

impl ServiceManager {
    /// The service manager that started this process, if any. `status` describes the running gateway in one line.
    #[must_use]
    pub fn of_this_process(status: &str) -> Self {
        let is_there = std::env::var_os(SOCKET_VARIABLE).is_some_and(|socket| !socket.is_empty());
        Self {
            status: is_there.then(|| status.into()),
            muted: Arc::default(),
            watchdog: sd_notify::watchdog_enabled(),
        }
    }

    /// The period of the watchdog, if the service manager expects pings of this process.
    #[must_use]
    pub fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Takes the period from the old gateway of an upgrade, whose pings the service manager expects.
    #[must_use]
    pub fn with_watchdog(self, watchdog: Option<Duration>) -> Self {
        Self { watchdog, ..self }
    }

    /// Sends nothing, because another process is the main process of the service.
    pub fn mute(&self) {
        self.muted.store(true, Ordering::Relaxed);
    }

    /// Sends messages again, because this process has become the main process of the service.
    pub fn unmute(&self) {
        self.muted.store(false, Ordering::Relaxed);
    }

    /// The status, if there is a service manager that expects messages of this process.
    fn status(&self) -> Option<&Arc<str>> {
        let is_muted = self.muted.load(Ordering::Relaxed);
        self.status.as_ref().filter(|_| !is_muted)
    }

    /// Tells that the process with this id is the main process of the service from now on. This one sends nothing more.
    pub async fn main_process(&self, pid: u32) {
        if self.status().is_some() {
            send(Message::MainProcess(pid)).await;
        }
        self.mute();
    }

    /// Tells in the status that an upgrade has failed.
    pub async fn upgrade_failed(&self, why: &str) {
        if let Some(status) = self.status() {
            let line = format!("{status}; the last upgrade failed: {why}");
            send(Message::Status(line.replace('\n', " "))).await;
        }
    }

    /// Returns whether a service manager started this process. It usually keeps a log of standard error.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.status.is_some()
    }

    /// Reports that the gateway accepts connections.
    pub async fn ready(&self) {
        if let Some(status) = self.status() {
            send(Message::Ready(status.clone())).await;
        }
    }

    /// Lets the service manager keep the listener while the gateway is restarted. systemd does that if the unit sets
    /// `FileDescriptorStoreMax=`, and ignores the message otherwise.
    pub fn keep(&self, listener: &TcpListener) {
        let text = format!("FDSTORE=1\nFDNAME={KEPT_NAME}\n");
        if self.status().is_some()
            && let Err(error) = send_with(&text, &[listener.as_fd()])
        {
            warn(&error);
        }
    }

    /// Tells that the gateway stops.
    pub async fn stopping(&self) {
        if self.status().is_some() {
            send(Message::Stopping).await;
        }
    }

    /// Reports a reload of the configuration, which lasts until [`Reload::done`] or until the returned value is dropped.
    pub async fn reload(&self) -> Reload {
        // Created first, so that the end is also reported if this future is dropped.
        let reload = Reload {
            status: self.status().cloned(),
        };
        if reload.status.is_some() {
            send(Message::Reloading).await;
        }
        reload
    }

    /// Extends the start timeout, in a loop. Never returns.
    pub async fn extend_start(&self) {
        if self.status().is_none() {
            return future::pending().await;
        }
        loop {
            tokio::time::sleep(START_EXTENSION / 2).await;
            send(Message::ExtendStart).await;
        }
    }

    /// Pings the watchdog twice per period, if it is enabled. Never returns.
    ///
    /// Each ping passes through the task of the caller, a worker thread and a thread for blocking work. If one of them
    /// hangs, the pings end, and the service manager restarts the gateway.
    pub async fn watchdog(&self) {
        let period = self.watchdog.filter(|_| self.status().is_some());
        let Some(period) = period else {
            return future::pending().await;
        };
        let mut tick = tokio::time::interval((period / 2).max(MIN_PING_INTERVAL));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let tasks = TaskTracker::new();
        loop {
            tick.tick().await;
            // No timeout: the next ping is not sent before this one.
            let ping = tasks.spawn(async {
                let sent = tokio::task::spawn_blocking(|| Message::Ping.send());
                sent.await
                    .unwrap_or_else(|error| Err(io::Error::other(error)))
            });
            if let Ok(Err(error)) = AbortOnDropHandle::new(ping).await {
                warn(&error);
            }
        }
    }
}

/// A reload of the configuration that was reported to the service manager. Dropping it reports the end.
#[must_use]
pub struct Reload {
    /// The status afterwards. `None`: the end was reported, or no service manager is in use.
    status: Option<Arc<str>>,
}

impl Reload {
    /// Reports the end of the reload. `is_valid`: the changed configuration is in force.
    pub async fn done(mut self, is_valid: bool) {
        if let Some(status) = self.status.take() {
            let status = match is_valid {
                true => status,
                false => INVALID_STATUS.into(),
            };
            send(Message::Ready(status)).await;
        }
    }
}

impl Drop for Reload {
    /// The future of the reload was dropped. Without this message, the service manager would wait for the end.
    fn drop(&mut self) {
        if let Some(status) = self.status.take()
            && let Ok(runtime) = Handle::try_current()
        {
            // Sending may block.
            runtime.spawn_blocking(move || {
                let _turn = SENDING.blocking_lock();
                if let Err(error) = Message::Ready(status).send() {
                    warn(&error);
                }
            });
        }
    }
}

/// Sends a message. An error is logged, because the gateway works without a service manager.
async fn send(message: Message) {
    let sent = async {
        let turn = SENDING.lock().await;
        let sent = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            message.send()
        });
        sent.await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    };
    let sent = match tokio::time::timeout(SEND_TIMEOUT, sent).await {
        Ok(sent) => sent,
        Err(_) => Err(io::Error::other("it has not read the earlier messages")),
    };
    if let Err(error) = sent {
        warn(&error);
    }
}

fn warn(error: &io::Error) {
    tracing::warn!("cannot notify the service manager ({SOCKET_VARIABLE}): {error}");
}

impl Message {
    /// Blocks while the queue of the socket is full.
    fn send(&self) -> io::Result<()> {
        match self {
            Self::Ready(status) => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
            }
            // systemd requires the time since version 253.
            Self::Reloading => sd_notify::notify(&[
                NotifyState::Reloading,
                NotifyState::monotonic_usec_now()?,
                NotifyState::Status("reloading the configuration"),
            ]),
            Self::Stopping => {
                sd_notify::notify(&[NotifyState::Stopping, NotifyState::Status("stopping")])
            }
            Self::Ping => sd_notify::notify(&[NotifyState::Watchdog]),
            // The ping gives the other process a full period until its own first one.
            Self::MainProcess(pid) => {
                sd_notify::notify(&[NotifyState::MainPid(*pid), NotifyState::Watchdog])
            }
            Self::Status(line) => sd_notify::notify(&[NotifyState::Status(line)]),
            Self::ExtendStart => {
                let micros = u32::try_from(START_EXTENSION.as_micros()).unwrap_or(u32::MAX);
                sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(micros)])
            }
        }
    }
}

/// Sends a message with descriptors. Does not wait.
fn send_with(text: &str, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let address = std::env::var_os(SOCKET_VARIABLE).unwrap_or_default();
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match address.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(&address)?,
    }
    handover::send(&socket, text.as_bytes(), passed)
}

/// A listening socket of the service manager. The service manager keeps it open while the gateway is restarted, so that no
/// connection is refused.
pub struct Passed {
    pub listener: TcpListener,
    /// An earlier gateway opened it ([`ServiceManager::keep`]).
    pub is_kept: bool,
}

/// Closes a listener that the service manager keeps, everywhere.
pub fn forget_kept(listener: &TcpListener) {
    // Only this ends the listener in the kernel as long as there are other descriptors of it.
    if let Err(error) = shutdown(listener, Shutdown::Both) {
        tracing::warn!("cannot close the listener of the service manager: {error}");
    }
    let text = format!("FDSTOREREMOVE=1\nFDNAME={KEPT_NAME}\n");
    if let Err(error) = send_with(&text, &[]) {
        warn(&error);
    }
}

/// The listening socket that the service manager passed, if it passed one.
///
/// # Errors
/// The service manager passed several sockets, or a socket that does not listen on a TCP port.
pub fn passed_listener() -> anyhow::Result<Option<Passed>> {
    let passed = sd_notify::listen_fds();
    let passed = passed.context(
        "cannot use the sockets of the service manager (if there is none, unset LISTEN_FDS and LISTEN_PID)",
    )?;
    let passed: Vec<i32> = passed.collect();
    let number = match passed.as_slice() {
        [] => return Ok(None),
        [one] => *one,
        several => bail!(
            "the service manager passed {} sockets (LISTEN_FDS), but the gateway listens on one: keep one `ListenStream=` \
             in the socket unit",
            several.len()
        ),
    };
    let listener = listener(number).with_context(|| {
        format!(
            "cannot listen on the socket of the service manager (descriptor {number}): set `ListenStream=` in the socket \
             unit to a TCP address such as 127.0.0.1:6280"
        )
    })?;
    let is_kept = std::env::var(NAMES_VARIABLE).is_ok_and(|names| names == KEPT_NAME);
    Ok(Some(Passed { listener, is_kept }))
}

fn listener(number: i32) -> io::Result<TcpListener> {
    let socket = runtime::process::inherited(number)?;
    if !socket_acceptconn(&socket)? {
        return Err(io::Error::other("it does not listen"));
    }
    let listener = net::TcpListener::from(socket);
    let no_tcp = |_| io::Error::other("it is not a TCP socket");
    listener.local_addr().map_err(no_tcp)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
