//! The new gateway's side of an upgrade.

use std::{fmt, net, os::fd::OwnedFd, time::Duration};

use anyhow::{Context as _, bail};
use backend::handover::{Channel, Message, VARIABLE};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Time limit for the first message, which the old gateway sends at once.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum characters of the reason of a failure.
const MAX_WHY_CHARS: usize = 2000;

/// The gateway that this one replaces.
pub(crate) struct Predecessor {
    channel: Channel,
    passed: Passed,
    pub(crate) is_fixed: bool,
    /// The period of the service manager's watchdog.
    pub(crate) watchdog: Option<Duration>,
    /// Cancelled when the old gateway is gone. From then on, this one owns the data directory.
    pub(crate) gone: CancellationToken,
    /// Connections that came before the order to serve, because the old gateway was stopped at that moment.
    early: Mutex<Vec<OwnedFd>>,
}

/// The lock and the sockets of the old gateway. Each is taken once.
struct Passed {
    lock: Option<OwnedFd>,
    listener: Option<TcpListener>,
    apps: Option<TcpListener>,
}

impl Predecessor {
    /// The gateway that started this process for an upgrade, if one did.
    pub(crate) async fn of_this_process() -> anyhow::Result<Option<Self>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let channel = Channel::of_stdin().with_context(|| {
            format!("standard input does not lead to a gateway, although {VARIABLE} is set: unset the variable")
        })?;
        let first = timeout(BEGIN_TIMEOUT, channel.receive()).await;
        let first = first.context("the old gateway sent nothing")?;
        let Some((
            Message::Begin {
                is_fixed,
                watchdog,
                schema,
            },
            passed,
        )) = first.context("cannot read from the old gateway")?
        else {
            bail!(
                "the old gateway is of a version that this one cannot replace: restart it instead"
            );
        };
        if !store::is_usable_with(schema) {
            bail!(
                "the old gateway cannot use the database of this version: restart it instead, or first upgrade to a version \
                 in between"
            );
        }
        let mut passed = passed.into_iter();
        let passed = Passed {
            lock: passed.next(),
            listener: passed.next().map(listener).transpose()?,
            apps: passed.next().map(listener).transpose()?,
        };
        Ok(Some(Self {
            channel,
            passed,
            is_fixed,
            watchdog: watchdog.map(Duration::from_micros),
            gone: CancellationToken::new(),
            early: Mutex::default(),
        }))
    }

    pub(crate) fn lock(&mut self) -> anyhow::Result<OwnedFd> {
        let lock = self.passed.lock.take();
        lock.context("the old gateway passed no lock of the data directory")
    }

    pub(crate) fn listener(&mut self) -> anyhow::Result<TcpListener> {
        let listener = self.passed.listener.take();
        listener.context("the old gateway passed no listener")
    }

    pub(crate) fn apps(&mut self) -> Option<TcpListener> {
        self.passed.apps.take()
    }

    /// Tells the old gateway that this one can serve, and waits until it must. The old gateway may also be dead by then.
    pub(crate) async fn take_over(&self) {
        // An error means that the old gateway is gone, as the end of the channel does.
        let _ = self.channel.send(&Message::Ready, &[]).await;
        while let Ok(Some((message, passed))) = self.channel.receive().await {
            match message {
                Message::Serve => return,
                Message::Connection => {
                    self.early.lock().extend(passed);
                    return;
                }
                _ => {}
            }
        }
        tracing::warn!("the old gateway ended before it handed over its connections");
    }

    /// Tells the old gateway why this one exits.
    pub(crate) async fn fail(&self, why: &dyn fmt::Display) {
        let why = why.to_string().chars().take(MAX_WHY_CHARS).collect();
        let _ = self.channel.send(&Message::Failed { why }, &[]).await;
    }

    /// Receives the connections of the old gateway. Returns when that is gone.
    pub(crate) async fn follow(&self, connections: &mpsc::Sender<TcpStream>) {
        let early = std::mem::take(&mut *self.early.lock());
        take_in(early, connections).await;
        loop {
            match self.channel.receive().await {
                Ok(Some((Message::Connection, passed))) => take_in(passed, connections).await,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("cannot read from the old gateway: {error}");
                    break;
                }
            }
        }
        self.gone.cancel();
    }
}

/// Serves connections of the old gateway.
async fn take_in(passed: Vec<OwnedFd>, connections: &mpsc::Sender<TcpStream>) {
    for socket in passed {
        match TcpStream::from_std(net::TcpStream::from(socket)) {
            // It fails only if this gateway stops too.
            Ok(socket) => drop(connections.send(socket).await),
            Err(error) => tracing::warn!("cannot take a connection over: {error}"),
        }
    }
}

fn listener(socket: OwnedFd) -> anyhow::Result<TcpListener> {
    let listener = net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}
