//! The streams of a container over one WebSocket. In Kubernetes's framing, the first byte of a message says which
//! stream the rest belongs to.
//!
//! kube's own implementation uses pipes and an extra task. With a hundred servers, its buffers would dominate memory
//! usage.

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use kube::core::Request;
use kube::{Client, Resource as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::api::{Call, Cluster, call};
use runtime::unit::Error;

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
/// The container's exit status, sent at the end.
pub(super) const STATUS: u8 = 3;
/// Read buffer in bytes. A larger message gets as much memory as it needs.
const READ_BUFFER_BYTES: usize = 4 << 10;

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;
pub(super) type Sink = SplitSink<Socket, Message>;
pub(super) type Stream = SplitStream<Socket>;

/// Connects to the streams of a running container.
pub(super) async fn attach(
    cluster: &Cluster,
    client: &Client,
    pod: &str,
    params: &AttachParams,
) -> Result<Socket, Call> {
    let request = Request::new(path(cluster)).attach(pod, params);
    connect(client, "attach to a pod", request).await
}

/// Runs a command in a container.
pub(super) async fn exec(
    cluster: &Cluster,
    pod: &str,
    command: [&str; 3],
    params: &AttachParams,
) -> Result<Socket, Call> {
    let request = Request::new(path(cluster)).exec(pod, command, params);
    connect(&cluster.client, "run a program in a pod", request).await
}

fn path(cluster: &Cluster) -> String {
    Pod::url_path(&(), Some(&cluster.namespace))
}

async fn connect<E: std::error::Error>(
    client: &Client,
    what: &'static str,
    request: Result<hyper::Request<Vec<u8>>, E>,
) -> Result<Socket, Call> {
    let request =
        request.map_err(|error| Call::Other(Error::Failed(format!("cannot {what}: {error}"))))?;
    let connected = call(what, client.connect(request)).await?;
    let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
    // No bytes are lost here, because nothing was read from the stream yet.
    let raw = connected.into_stream().into_inner();
    Ok(WebSocketStream::from_raw_socket(raw, Role::Client, Some(config)).await)
}

/// Returns the stream of a message and its data. `None` for messages that belong to no stream.
pub(super) fn piece(message: Message) -> Option<(u8, Bytes)> {
    match message {
        Message::Binary(bytes) if bytes.len() > 1 => Some((bytes[0], bytes.slice(1..))),
        _ => None,
    }
}

/// Encodes data for a stream.
pub(super) fn message(stream: u8, bytes: &[u8]) -> Message {
    let mut all = Vec::with_capacity(bytes.len() + 1);
    all.push(stream);
    all.extend_from_slice(bytes);
    Message::binary(all)
}
