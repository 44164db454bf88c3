//! A client with a connection pool.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::PROXY_AUTHORIZATION};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use crate::{Connector, Options, Via};

/// Idle connections are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request has no response.
pub type Error = legacy::Error;

/// Sends requests over pooled connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    client: Arc<legacy::Client<Connector, Full<Bytes>>>,
    options: Options,
}

impl Default for Client {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Client {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(options.max_idle)
            .build(Connector::new(options));
        Self {
            client: Arc::new(client),
            options,
        }
    }

    /// Sends a request. Returns the head of the response, and its body as a stream without a limit. Dropping the future
    /// or the body closes the connection.
    pub fn send(&self, mut request: Request<Bytes>) -> legacy::ResponseFuture {
        let forwarder = self.options.forwarder(request.uri());
        if let Some(value) = forwarder.and_then(Via::authorization) {
            let headers = request.headers_mut();
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        self.client.request(request.map(Full::new))
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// There was no response within the time limit, or it is longer than `max` bytes. The error text gives the reason.
    pub async fn fetch(
        &self,
        request: Request<Bytes>,
        max: usize,
        within: Duration,
    ) -> Result<Response<Bytes>, String> {
        in_time(within, async {
            let answer = self.send(request).await.map_err(|error| cause(&error))?;
            let (head, body) = answer.into_parts();
            Ok(Response::from_parts(head, collect(body, max).await?))
        })
        .await
    }

    /// Sends a request. If the status is 200, writes the response body to `into` as it arrives.
    ///
    /// # Errors
    /// The request failed, took longer than `within`, or the body is longer than `max` bytes. `into` may then hold a
    /// part of the body.
    pub async fn fetch_into(
        &self,
        request: Request<Bytes>,
        max: usize,
        within: Duration,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Response<()>, String> {
        in_time(within, async {
            let answer = self.send(request).await.map_err(|error| cause(&error))?;
            let (head, body) = answer.into_parts();
            if head.status != StatusCode::OK {
                return Ok(Response::from_parts(head, ()));
            }
            let unwritten = |error| format!("cannot write the response: {error}");
            let mut body = Limited::new(body, max);
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(|error| cut_off(&*error, max))?.into_data() {
                    into.write_all(&data).await.map_err(unwritten)?;
                }
            }
            into.flush().await.map_err(unwritten)?;
            Ok(Response::from_parts(head, ()))
        })
        .await
    }
}

/// Reads a whole body.
///
/// # Errors
/// The connection broke, or the body is longer than `max` bytes.
pub async fn collect(body: Incoming, max: usize) -> Result<Bytes, String> {
    let collected = Limited::new(body, max).collect().await;
    Ok(collected.map_err(|error| cut_off(&*error, max))?.to_bytes())
}

fn cut_off(error: &(dyn std::error::Error + 'static), max: usize) -> String {
    match error.is::<LengthLimitError>() {
        true => format!("its response is longer than {max} bytes"),
        false => format!("its response broke off: {}", cause(error)),
    }
}

async fn in_time<T>(
    within: Duration,
    fetching: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let seconds = (within.as_secs_f32() * 10.0).round() / 10.0;
    let late = |_| Err(format!("no answer within {seconds} s"));
    timeout(within, fetching).await.unwrap_or_else(late)
}

/// The causes of an error, from outer to inner, without the library's own summary.
#[must_use]
pub fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    model::with_causes(error.source().unwrap_or(error))
}
