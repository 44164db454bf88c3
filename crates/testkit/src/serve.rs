//! HTTP servers of tests.

use std::{io, net::SocketAddr};

use axum::{Router, serve::ListenerExt as _};
use tokio::{net::TcpListener, task::JoinSet};

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
        // Ends with the set.
        let _ = axum::serve(listener, router).await;
    });
    (url, tasks)
}
