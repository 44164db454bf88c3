//! HTTP+SSE of 2024-11-05 towards servers.
use tokio::sync::mpsc;

use super::{Client, ConnectError, Event, Options, http::Pool};

pub(super) async fn connect(
    _pool: &Pool,
    _url: &str,
    _headers: &[(String, String)],
    _options: &Options,
    _ambient: mpsc::Sender<Event>,
) -> Result<Client, ConnectError> {
    Err(ConnectError::Unreachable("HTTP+SSE is not here yet".into()))
}
