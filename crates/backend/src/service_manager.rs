//! Notifications to the service manager that started the gateway, such as systemd (sd_notify(3)), and its listening
//! socket (sd_listen_fds(3)).
//!
//! Invariants:
//! - Only `toolwharf serve` notifies. `toolwharf stdio` may have inherited the variables of a service that started its
//!   client.
//! - Nothing but [`ServiceManager::watchdog`] waits longer than [`SEND_TIMEOUT`] for the service manager.
//! - Servers get neither the variables nor the socket: `runtime::process` clears their environment and closes inherited
//!   descriptors.
//!
//! Deliberately absent: several sockets, and sockets other than TCP.

use std::{future, io, net, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use rustix::net::sockopt::socket_acceptconn;
use sd_notify::NotifyState;
use tokio::{net::TcpListener, runtime::Handle, sync::Mutex, time::MissedTickBehavior};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The variable with the socket for notifications.
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
}

/// A message to the service manager.
#[derive(Clone, Debug)]
enum Message {
    Ready(Arc<str>),
    Reloading,
    Stopping,
    Ping,
    ExtendStart,
}

impl ServiceManager {
    /// The service manager that started this process, if any. `status` describes the running gateway in one line.
    #[must_use]
    pub fn of_this_process(status: &str) -> Self {
        let is_there = std::env::var_os(SOCKET_VARIABLE).is_some_and(|socket| !socket.is_empty());
        Self {
            status: is_there.then(|| status.into()),
        }
    }

    /// Returns whether a service manager started this process. It usually keeps a log of standard error.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.status.is_some()
    }

    /// Reports that the gateway accepts connections.
    pub async fn ready(&self) {
        if let Some(status) = &self.status {
            send(Message::Ready(status.clone())).await;
        }
    }

    /// Reports that the gateway is stopping.
    pub async fn stopping(&self) {
        if self.is_there() {
            send(Message::Stopping).await;
        }
    }

    /// Reports a reload of the configuration, which lasts until [`Reload::done`] or until the returned value is dropped.
    pub async fn reload(&self) -> Reload {
        // Created first, so that the end is also reported if this future is dropped.
        let reload = Reload {
            status: self.status.clone(),
        };
        if self.is_there() {
            send(Message::Reloading).await;
        }
        reload
    }

    /// Extends the start timeout, in a loop. Never returns.
    pub async fn extend_start(&self) {
        if !self.is_there() {
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
        let period = sd_notify::watchdog_enabled().filter(|_| self.is_there());
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
            Self::ExtendStart => {
                let micros = u32::try_from(START_EXTENSION.as_micros()).unwrap_or(u32::MAX);
                sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(micros)])
            }
        }
    }
}

/// Returns the listening socket that the service manager passed, if any. The service manager keeps the socket open while
/// the gateway restarts, so that no connection is refused.
///
/// # Errors
/// The service manager passed several sockets, or a socket that does not listen on a TCP port.
pub fn passed_listener() -> anyhow::Result<Option<TcpListener>> {
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
    listener(number).map(Some).with_context(|| {
        format!(
            "cannot listen on the socket of the service manager (descriptor {number}): set `ListenStream=` in the socket \
             unit to a TCP address such as 127.0.0.1:6280"
        )
    })
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
