//! HTTP requests as text, for clients that send or read too little.

use std::net::SocketAddr;

use rustix::process::{Resource, getrlimit, setrlimit};
use testkit::{DEADLINE, within};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
};

use super::Gateway;

pub(crate) fn address(gateway: &Gateway) -> SocketAddr {
    let host = gateway.url.strip_prefix("http://").unwrap();
    host.parse().unwrap()
}

/// Raises the file limit to its maximum: each socket is a file, and this process has one end of each.
pub(crate) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// A connection with the smallest possible receive buffer.
pub(crate) async fn narrow(gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address(gateway)).await.unwrap()
}

/// Reads the beginning of what the gateway sends next.
pub(crate) async fn read(socket: &mut TcpStream) -> String {
    let mut bytes = [0; 512];
    let read = within("an answer", DEADLINE, socket.read(&mut bytes)).await;
    String::from_utf8_lossy(&bytes[..read.unwrap()]).into_owned()
}

/// The head of a request with a body of this length. It accepts JSON and events unless `headers` says otherwise.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    );
    let accept = ("accept", "application/json, text/event-stream");
    let given = headers.iter().any(|(name, _)| *name == accept.0);
    for (name, value) in headers.iter().chain((!given).then_some(&accept)) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: &str) -> String {
    head("POST", path, headers, body.len()) + body
}
