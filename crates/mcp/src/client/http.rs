//! Streamable HTTP towards servers, both eras.
use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;

use super::{CallError, Client, ConnectError, Event, Options, Outgoing};
use crate::Frame;

/// Header names and values, ready to send.
pub type HeaderList = Vec<(HeaderName, HeaderValue)>;

/// The connection pool that conversations share.
#[derive(Clone, Default)]
pub struct Pool {}

#[derive(Clone)]
pub(crate) struct HttpLink {}

pub struct HttpCall {}

impl HttpLink {
    pub(super) fn call(&self, _outgoing: Outgoing<'_>) -> Result<HttpCall, CallError> {
        Err(CallError::SessionExpired)
    }
    pub(super) async fn send(&self, _frame: &Frame) -> Result<(), CallError> {
        Err(CallError::SessionExpired)
    }
    pub(super) async fn closed(&self) -> Arc<str> {
        std::future::pending().await
    }
    pub(super) async fn close(&self, _grace: Duration) {}
    pub(super) fn stray_answers(&self) -> u64 {
        0
    }
}

impl HttpCall {
    pub(super) async fn next(&mut self) -> Result<Event, CallError> {
        std::future::pending().await
    }
    pub(super) fn id(&self) -> u64 {
        0
    }
}

pub(super) async fn connect(
    _pool: &Pool,
    _url: &str,
    _headers: &[(String, String)],
    _options: &Options,
    _ambient: mpsc::Sender<Event>,
) -> Result<Client, ConnectError> {
    Err(ConnectError::Unreachable("HTTP is not here yet".into()))
}
