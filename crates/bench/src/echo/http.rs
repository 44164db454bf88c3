//! The echo server over streamable HTTP, with JSON responses.
//!
//! Legacy: `initialize` returns an `Mcp-Session-Id`, every later request must carry one (any value is accepted), and
//! `GET` opens a stream that stays silent. Modern: the version header must be 2026-07-28, and `Mcp-Method` must match
//! the body, so that a bridge that omits them fails the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Either;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};

use super::{Answered, Echo, Era, MODERN_VERSION, Options, error};
use crate::frame::Envelope;
use crate::serve::{self, BoxBody};

pub(crate) static SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) static VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) static METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(crate) static NAME: HeaderName = HeaderName::from_static("mcp-name");

struct Server {
    echo: Echo,
    sessions: AtomicU64,
}

/// Serves on `listen` until the process exits.
pub(crate) async fn run(options: &Options, listen: &str) -> anyhow::Result<()> {
    let server = Arc::new(Server {
        echo: Echo::new(options),
        sessions: AtomicU64::new(1),
    });
    serve::serve(listen, move |request| {
        let server = Arc::clone(&server);
        async move {
            if request.method() == Method::GET {
                return server.stream(&request);
            }
            server.post(request).await.map(Either::Left)
        }
    })
    .await
}

impl Server {
    async fn post(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::POST {
            return serve::empty(StatusCode::METHOD_NOT_ALLOWED);
        }
        let (head, body) = request.into_parts();
        let Some(body) = serve::whole(body).await else {
            return serve::empty(StatusCode::BAD_REQUEST);
        };
        let Ok(envelope) = serde_json::from_slice::<Envelope>(&body) else {
            return serve::empty(StatusCode::BAD_REQUEST);
        };
        let method = envelope.method.unwrap_or_default();
        let version = head.headers.get(&VERSION).map(HeaderValue::as_bytes);
        let refusal = match self.echo.era {
            Era::Legacy if version == Some(MODERN_VERSION.as_bytes()) => {
                Some((-32000, "unsupported protocol version"))
            }
            Era::Legacy if method != "initialize" && !head.headers.contains_key(&SESSION) => {
                Some((-32000, "Mcp-Session-Id is missing"))
            }
            Era::Modern if version != Some(MODERN_VERSION.as_bytes()) => {
                Some((-32022, "unsupported protocol version"))
            }
            Era::Modern
                if head.headers.get(&METHOD).map(HeaderValue::as_bytes)
                    != Some(method.as_bytes()) =>
            {
                Some((-32020, "Mcp-Method does not match the body"))
            }
            _ => None,
        };
        let mut out = Vec::with_capacity(body.len() + 128);
        if let Some((code, message)) = refusal {
            if let Some(id) = envelope.id {
                error(&mut out, id, code, message);
            }
            let mut response = serve::json(Full::from(out));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        }
        let answered = self.echo.answer(&body, &mut out);
        if answered == Answered::Nothing {
            return serve::empty(StatusCode::ACCEPTED);
        }
        let mut response = serve::json(Full::from(out));
        if answered == Answered::Error && self.echo.era == Era::Modern {
            *response.status_mut() = match method {
                "tools/call" | "tools/list" => StatusCode::BAD_REQUEST,
                _ => StatusCode::NOT_FOUND,
            };
        }
        if method == "initialize" && answered == Answered::Result {
            let session = self.sessions.fetch_add(1, Ordering::Relaxed);
            let session = HeaderValue::from_str(&format!("echo-{session:016x}"))
                .expect("letters and digits are a header value");
            response.headers_mut().insert(SESSION.clone(), session);
        }
        response
    }

    fn stream(&self, request: &Request<Incoming>) -> Response<Either<Full<Bytes>, BoxBody>> {
        if self.echo.era == Era::Modern || !request.headers().contains_key(&SESSION) {
            return serve::empty(StatusCode::METHOD_NOT_ALLOWED).map(Either::Left);
        }
        let silent = StreamBody::new(futures_util::stream::pending::<
            Result<Frame<Bytes>, hyper::Error>,
        >());
        let mut response = Response::new(Either::Right(silent.boxed_unsync()));
        response.headers_mut().insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        response
    }
}
