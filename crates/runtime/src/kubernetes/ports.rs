//! Ports of a pod, brought to this host's loopback.
//!
//! Within the cluster a connection goes to the pod's address. From outside, that address may be any machine's: there, and
//! where the address does not answer (a server that listens on the pod's loopback, a policy that lets nobody in), it goes
//! through the API server and the pod's node, by `port-forward`. Connections are bounded; those beyond wait in the
//! kernel's queue.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Portforwarder;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::api::{Cluster, call};
use crate::handle::ProcessState;
use crate::ports::Listeners;
use crate::pump::pump;
use crate::repeats::Repeats;
use crate::unit::Error;

const CONNECTIONS: usize = 128;
/// How long a pod's address may take to answer.
const ADDRESS: Duration = Duration::from_secs(3);
/// How long the node may take to say why a connection has ended.
const WHY: Duration = Duration::from_millis(100);
/// How long one that did not answer is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(30);

const GVISOR: &str = " (`port-forward` does not see the network of gVisor, unless `runsc` has `--network=host`: have Toolwharf run in the \
                      cluster, and the server listen at 0.0.0.0)";

/// The ports of one pod.
pub(super) struct Forward {
    pub(super) listeners: Listeners,
    pub(super) to: Arc<Destination>,
}

pub(super) struct Destination {
    cluster: Cluster,
    pod: String,
    /// Where the pod is reached from here.
    address: Option<IpAddr>,
    /// Whether its network is gVisor's own.
    is_gvisor: bool,
    /// When its address did not answer.
    silent: Mutex<Option<Instant>>,
    shared: Arc<ProcessState>,
    failed: Repeats,
}

/// Ends with its owner: kube's own goes on.
struct Tunnel(Portforwarder);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Forward {
    /// Until it is dropped.
    pub(super) async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS {
                connections.join_next().await;
            }
            let (port, stream) = self.listeners.accept().await;
            connections.spawn(Arc::clone(&self.to).serve(stream, port));
        }
    }
}

impl Destination {
    pub(super) fn new(
        cluster: Cluster,
        pod: String,
        address: Option<IpAddr>,
        is_gvisor: bool,
        shared: Arc<ProcessState>,
    ) -> Self {
        let address = address.filter(|_| cluster.home.is_some());
        Self {
            cluster,
            pod,
            address,
            is_gvisor,
            silent: Mutex::default(),
            shared,
            failed: Repeats::default(),
        }
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, port: u16) {
        let _ = stream.set_nodelay(true);
        if let Some(direct) = self.connect(port).await {
            pump(stream, direct).await;
        } else if let Err(error) = self.forward(stream, port).await {
            let why = error.to_string();
            if let Some(times) = self.failed.count(&why) {
                let hint = if self.is_gvisor { GVISOR } else { "" };
                let note = format!("toolwharf: its port {port} is not reached: {why}{hint}{times}");
                self.shared.log.note(&note);
            }
        }
    }

    async fn connect(&self, port: u16) -> Option<TcpStream> {
        let address = self.address?;
        let silent = *self.silent.lock();
        if silent.is_some_and(|since| since.elapsed() < LEFT_ALONE) {
            return None;
        }
        match timeout(ADDRESS, TcpStream::connect((address, port))).await {
            Ok(connected) => {
                let connected = connected.ok()?;
                let _ = connected.set_nodelay(true);
                Some(connected)
            }
            Err(_) => {
                *self.silent.lock() = Some(Instant::now());
                None
            }
        }
    }

    async fn forward(&self, stream: TcpStream, port: u16) -> Result<(), Error> {
        let ports = [port];
        let forward = self.cluster.pods.portforward(&self.pod, &ports);
        let mut tunnel = Tunnel(call("reach a port of a pod", forward).await?);
        let failed = tunnel.0.take_error(port);
        if let Some(inside) = tunnel.0.take_stream(port) {
            pump(stream, inside).await;
        }
        let Some(failed) = failed else {
            return Ok(());
        };
        match timeout(WHY, failed).await {
            Ok(Some(why)) => Err(Error::Failed(why)),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}
