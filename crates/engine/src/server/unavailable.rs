//! Why a caller gets no connection, and the error for it.

use std::sync::Arc;

use mcp::RpcError;
use model::ServerName;

/// Why a caller gets no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unavailable {
    #[error("server `{server}` is unavailable: {reason}{}", retry_text(.retry_ms))]
    Down {
        server: ServerName,
        reason: Arc<str>,
        retry_ms: Option<u64>,
        /// True if signing in would make it available.
        needs_login: bool,
    },
    #[error(
        "server `{server}` is busy: {waiting} calls are already waiting (raise `maxConcurrency` or try again)"
    )]
    Busy { server: ServerName, waiting: usize },
    #[error("server `{server}` could not take the call within {ms} ms: {}", in_the_way(*.in_flight, *.asked, *.turns))]
    Queued {
        server: ServerName,
        ms: u64,
        in_flight: usize,
        /// Requests of the server that wait for an answer from their client.
        asked: usize,
        turns: bool,
    },
    #[error("server `{server}` did not become ready within {ms} ms")]
    Timeout { server: ServerName, ms: u64 },
}

fn retry_text(retry_ms: &Option<u64>) -> String {
    retry_ms
        .map(|ms| format!("; next attempt in {ms} ms"))
        .unwrap_or_default()
}

/// Describes what a queued call waits for.
fn in_the_way(in_flight: usize, asked: usize, turns: bool) -> String {
    let calls = match in_flight {
        1 => "1 call is in flight".to_owned(),
        count => format!("{count} calls are in flight"),
    };
    let asked = match asked {
        0 => String::new(),
        1 => ", and a request from the server waits for its client's answer".to_owned(),
        count => format!(", and {count} requests from the server wait for their clients' answers"),
    };
    let why = if turns {
        "the server gets the calls of one session at a time, because it sends requests to clients during calls; try again"
    } else {
        "raise `maxConcurrency` or try again"
    };
    format!("{calls}{asked} ({why})")
}

impl Unavailable {
    /// Identifies the cause in the log, without details that change from call to call.
    pub(crate) fn cause(&self) -> &str {
        match self {
            Self::Down { reason, .. } => reason,
            Self::Busy { .. } | Self::Queued { .. } => "busy",
            Self::Timeout { .. } => "not ready",
        }
    }

    /// The JSON-RPC error for the caller.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let (reason, server, retry) = match self {
            Self::Down {
                server,
                needs_login: true,
                ..
            } => ("needs_login", server, None),
            Self::Down {
                server, retry_ms, ..
            } => ("server_unavailable", server, *retry_ms),
            Self::Busy { server, .. } | Self::Queued { server, .. } => {
                ("server_busy", server, Some(1000))
            }
            Self::Timeout { server, .. } => ("server_not_ready", server, None),
        };
        let retry = retry
            .map(|ms| format!(",\"retryAfterMs\":{ms}"))
            .unwrap_or_default();
        let server = mcp::json::quote(server.as_str());
        let data = format!("{{\"reason\":\"{reason}\",\"server\":{server}{retry}}}");
        RpcError::internal(self.to_string()).with_data(data.into_bytes())
    }
}
