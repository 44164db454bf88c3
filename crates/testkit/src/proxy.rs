//! A TCP proxy that a test can cut, stall, slow down or redirect to another server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::sleep,
};

use crate::wait::{DEADLINE, wait_for};

/// How the proxy treats traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Forwards everything.
    Open,
    /// Forwards everything, each piece with this delay.
    Slow(Duration),
    /// Closes all connections, including new ones.
    Cut,
    /// Forwards nothing, and keeps the connections open.
    Stalled,
}

/// Changes the bytes that a client sends.
type Edit = dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync;

/// A TCP proxy. It starts in [`Way::Open`].
pub struct Proxy {
    address: SocketAddr,
    target: watch::Sender<Arc<str>>,
    way: watch::Sender<Way>,
    /// How many times [`Proxy::lose_connections`] was called.
    losses: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy to `target`, a host and a port.
    pub async fn to(target: &str) -> Self {
        Self::editing(target, |sent| sent).await
    }

    /// Like [`Proxy::to`], and passes each piece from a client through `edit`.
    pub async fn editing(
        target: &str,
        edit: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let edit: Arc<Edit> = Arc::new(edit);
        let target: watch::Sender<Arc<str>> = watch::Sender::new(target.into());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let way = watch::Sender::new(Way::Open);
        let mut tasks = JoinSet::new();
        let losses = Arc::new(AtomicU64::new(0));
        let (seen, current, lost) = (way.clone(), target.clone(), losses.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let target = current.borrow().clone();
                let (edit, way, lost) = (edit.clone(), seen.subscribe(), lost.clone());
                connections.spawn(async move {
                    if *way.borrow() == Way::Cut {
                        return;
                    }
                    let Ok(server) = TcpStream::connect(&*target).await else {
                        return;
                    };
                    let known = lost.load(Ordering::Relaxed);
                    let is_lost = || lost.load(Ordering::Relaxed) != known;
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = carried(from_client, to_server, way.clone(), &is_lost, &*edit) => {}
                        () = carried(from_server, to_client, way, &is_lost, &|piece| piece) => {}
                    }
                });
            }
        });
        Self {
            address,
            target,
            way,
            losses,
            _tasks: tasks,
        }
    }

    /// The address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn be(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Silently stops forwarding on all existing connections, without closing them. New connections work.
    pub fn lose_connections(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all connections and forwards new ones to `target`, like an address that moves to another host.
    pub async fn turn_to(&self, target: &str) {
        self.cut().await;
        self.target.send_replace(target.into());
        self.be(Way::Open);
    }

    /// Cuts all connections and waits until they have ended.
    pub async fn close(self) {
        self.cut().await;
    }

    async fn cut(&self) {
        self.be(Way::Cut);
        wait_for("the end of all connections", DEADLINE, async || {
            self.way.receiver_count() == 0
        })
        .await;
    }
}

async fn carried(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
    is_lost: &(dyn Fn() -> bool + Send + Sync),
    edit: &Edit,
) {
    let mut some = vec![0; 16 << 10];
    loop {
        let length = tokio::select! {
            biased;
            _ = way.wait_for(|way| *way == Way::Cut) => return,
            read = from.read(&mut some) => read.unwrap_or(0),
        };
        if is_lost() {
            let _ = way.wait_for(|way| *way == Way::Cut).await;
            return;
        }
        let Ok(now) = way
            .wait_for(|way| *way != Way::Stalled)
            .await
            .map(|way| *way)
        else {
            return;
        };
        if let Way::Slow(time) = now {
            sleep(time).await;
        }
        let piece = edit(some[..length].to_vec());
        if length == 0 || now == Way::Cut || to.write_all(&piece).await.is_err() {
            return;
        }
    }
}
