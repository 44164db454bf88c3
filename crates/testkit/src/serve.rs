//! HTTP servers for tests.

use std::{io, net::SocketAddr};

use axum::{Router, serve::ListenerExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Serves `router` on `address` until the process ends. Prints the URL, with `path`.
///
/// # Errors
/// The address cannot be bound.
pub async fn listen(address: SocketAddr, path: &str, router: Router) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}{path}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // Small responses must not wait for acknowledgements of earlier ones.
        let _ = stream.set_nodelay(true);
    });
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await
}

/// Serves `router` on a free loopback port, until the set is dropped. Returns the URL, without a path.
pub(crate) async fn serve(router: impl FnOnce(&str) -> Router) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = router(&url);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        // The server runs until the set is dropped.
        let _ = axum::serve(listener, router).await;
    });
    (url, tasks)
}

/// A server on loopback that answers each connection with `from the host: ` and the request line, until the set is
/// dropped.
///
/// # Panics
/// If no port is free.
pub async fn host() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let count = stream.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            let text = format!("from the host: {}", head.lines().next().unwrap_or_default());
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, tasks)
}

/// Requests `path` with HTTP/1.0, and returns the response with its head.
///
/// # Errors
/// The connection is refused or breaks.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
