//! Publishes ports of a pod on this host's loopback.
//!
//! Inside the cluster, connections go to the pod's address. Outside, that address may belong to any machine, so
//! connections go through the API server and the pod's node, by `port-forward`. Connections in the cluster also go this
//! way if the address does not accept them: the server may listen on the pod's loopback, or a policy may deny all
//! ingress. The number of connections is limited; further ones wait in the kernel's queue.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Portforwarder;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::api::{Cluster, call};
use runtime::handle::ProcessState;
use runtime::ports::Listeners;
use runtime::pump::pump;
use runtime::repeats::Repeats;
use runtime::unit::Error;

const MAX_CONNECTIONS: usize = 128;
/// Timeout of a connection to a pod's address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for the node to say why a connection has ended.
const ERROR_TIMEOUT: Duration = Duration::from_millis(100);
/// An address that did not accept a connection is skipped for this long.
const SKIP_ADDRESS_FOR: Duration = Duration::from_secs(30);

const GVISOR_HINT: &str = " (`port-forward` does not see the network of gVisor, unless `runsc` has `--network=host`: run Toolwharf in the \
                      cluster, and let the server listen on 0.0.0.0)";

/// The ports of one pod.
pub(super) struct Forward {
    pub(super) listeners: Listeners,
    pub(super) to: Arc<Destination>,
}

pub(super) struct Destination {
    cluster: Cluster,
    pod: String,
    /// The pod's address, if it can be reached from here.
    address: Option<IpAddr>,
    /// True if the pod uses gVisor's own network stack.
    is_gvisor: bool,
    /// When a connection to its address last failed.
    silent: Mutex<Option<Instant>>,
    shared: Arc<ProcessState>,
    failed: Repeats,
}

/// Ends the forwarding task on drop. kube's own type would leave it running.
struct Tunnel(Portforwarder);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Forward {
    /// Runs until dropped.
    pub(super) async fn run(self) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= MAX_CONNECTIONS {
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
                let hint = if self.is_gvisor { GVISOR_HINT } else { "" };
                let note = format!(
                    "toolwharf: cannot connect to the server's port {port}: {why}{hint}{times}"
                );
                self.shared.log.note(&note);
            }
        }
    }

    async fn connect(&self, port: u16) -> Option<TcpStream> {
        let address = self.address?;
        let silent = *self.silent.lock();
        if silent.is_some_and(|since| since.elapsed() < SKIP_ADDRESS_FOR) {
            return None;
        }
        match timeout(ADDRESS_TIMEOUT, TcpStream::connect((address, port))).await {
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
        match timeout(ERROR_TIMEOUT, failed).await {
            Ok(Some(why)) => Err(Error::Failed(why)),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}
