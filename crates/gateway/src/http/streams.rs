//! Event streams: when a response becomes one, and what a `GET` opens.

use std::{
    future::poll_fn,
    sync::{Arc, LazyLock},
    task::Poll,
};

use bytes::Bytes;
use engine::{Answer, Scope};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use mcp::{
    outbox::Outbox,
    server::{Lost, modern},
};
use memchr::memmem::Finder;

use super::{
    HttpGateway,
    reply::{method_not_allowed, refusal},
};
use crate::{
    Body,
    body::{Answering, Events},
    guard::Refusal,
    idle::{Source, Takeover},
    wire::Wire,
};
use auth::Principal;

/// Built once: building one costs as much as a search.
static STREAM: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("text/event-stream"));

static JSON: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("application/json"));

impl HttpGateway {
    /// Opens a new event stream of a session, or resumes an interrupted one (`GET`).
    pub(super) async fn stream(
        &self,
        headers: &HeaderMap,
        scope: &Scope,
        principal: &Arc<Principal>,
        wire: &Wire,
    ) -> Result<Response<Body>, Refusal> {
        let session = self.named_session(headers, scope, principal).await?;
        let Some((session, _)) = session else {
            return Ok(method_not_allowed());
        };
        let accept = headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        if !accept
            .is_some_and(|accept| accept.contains("text/event-stream") || accept.contains("*/*"))
        {
            let what = "GET opens an event stream: send `Accept: text/event-stream`";
            return Err(refusal(StatusCode::NOT_ACCEPTABLE, what));
        }
        let share = self.stream_share(principal)?;
        let stream = match last_event(headers) {
            None => session.listen(true),
            Some(id) => match session.resume(id) {
                Ok(stream) => stream,
                // 405 is the only response after which every official SDK stops retrying without an error. The
                // TypeScript client would otherwise reconnect even after a response that was an error.
                Err(Lost::Over) => return Ok(method_not_allowed()),
                // After 404 the client would end the session, and it would mistake a new stream for the requested one.
                Err(Lost::Unknown) => {
                    let what = "cannot resume the stream: the event in header Last-Event-ID is \
                                unknown in this session or too old; open the stream without this header";
                    return Err(refusal(StatusCode::BAD_REQUEST, what));
                }
            },
        };
        let takeover = Takeover {
            stream: Source::Session(stream),
            opening: None,
            share,
            ends_session: false,
            headers: vec![(modern::SESSION_ID, session.id().as_str().to_owned())],
        };
        match wire.leave(takeover).await {}
    }
}

/// Returns true if the client prefers a stream: `Accept` lists it first, or alone.
pub fn prefers_stream(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(header::ACCEPT)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let Some(stream) = STREAM.find(accept) else {
        return false;
    };
    let json = JSON
        .find(accept)
        .or_else(|| memchr::memmem::find(accept, b"*/*"));
    json.is_none_or(|json| stream < json)
}

/// The first output of a request. A response alone is sent as JSON; any message before it opens a stream.
pub(super) enum First {
    Answer(Answer),
    /// A message is in the outbox.
    Message,
}

pub(super) async fn first(outbox: &Outbox, answering: &mut Answering) -> First {
    poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(First::Answer(answer)),
        Poll::Pending => outbox.poll_filled(cx).map(|()| First::Message),
    })
    .await
}

/// The response that ends a stream, if any.
pub(super) fn text(answer: Answer) -> Option<Bytes> {
    (!answer.silent).then(|| answer.into_text())
}

pub(super) fn event_stream(events: Events) -> Response<Body> {
    let mut response = Response::new(Body::Events(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The event after which a client wants to resume a stream.
fn last_event(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get("last-event-id")?;
    // An event id of this gateway is always text, so any other value is an unknown id.
    Some(id.to_str().unwrap_or("?")).filter(|id| !id.is_empty())
}
