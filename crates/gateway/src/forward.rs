//! Forwards requests for sessions of another replica, and relays the responses as they arrive.

use std::{io, sync::Arc};

use axum::BoxError;
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use mcp::{Frame, Kind, RpcError, error, protocol::method, server::modern, sse};
use tokio_util::sync::CancellationToken;

use super::{
    Body, HttpGateway,
    guard::Refusal,
    http::{json, refusal},
    listener::Routes,
    peers::{Forwarded, Peer, Unanswered, Work},
    wire::Wire,
};
use crate::http::Upload;
use auth::Principal;

/// Response headers that are relayed.
const RESPONSE_HEADERS: [http::HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CACHE_CONTROL,
    header::ALLOW,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    modern::SESSION_ID,
];

/// Path prefix of requests between replicas that are not MCP.
pub(super) const BESIDE_PREFIX: &str = "/beside";

/// Method, URI and headers of a request that may have to be forwarded.
pub(super) type Head<'r> = (&'r Method, &'r Uri, &'r HeaderMap);

impl HttpGateway {
    /// Answers a request on the internal listener, which serves other replicas only.
    pub(super) async fn answer_forwarded(
        self: Arc<Self>,
        request: Request<Upload>,
        wire: Arc<Wire>,
        other: Arc<dyn Routes>,
    ) -> Response<Body> {
        const NONE: (StatusCode, &str) = (StatusCode::NOT_FOUND, "this gateway has no replicas");
        const LEAVING: (StatusCode, &str) = (
            StatusCode::MISDIRECTED_REQUEST,
            "this replica is stopping; other replicas take over its sessions",
        );
        let opened = match &self.peers {
            Some(peers) => peers.open(request.headers()),
            None => Err(NONE),
        };
        let opened = opened.and_then(|opened| match self.is_leaving() {
            true => Err(LEAVING),
            false => Ok(opened),
        });
        let opened = opened.and_then(|(head, forwarded)| {
            let built = head.extension(forwarded).body(request.into_body());
            built.map_err(|_| {
                (
                    StatusCode::BAD_REQUEST,
                    "the forwarded request is malformed",
                )
            })
        });
        match opened {
            Ok(request) => match request.extensions().get::<Forwarded>() {
                Some(forwarded) if forwarded.caller.is_some() => {
                    let forwarded = forwarded.clone();
                    Box::pin(self.answer_replica(request, forwarded, wire, other)).await
                }
                _ => Box::pin(self.answer(request, wire)).await,
            },
            Err((status, why)) => {
                tracing::debug!(%status, "refused a request on the internal listener: {why}");
                Self::refuse(&refusal(status, why))
            }
        }
    }

    /// Checks that the body of a forwarded request matches its sealed digest.
    pub(super) fn check_forwarded(
        forwarded: Option<&Forwarded>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        match forwarded {
            Some(forwarded) if !forwarded.is_of(body) => {
                let what = "the body of this forwarded request does not match its digest";
                Err(refusal(StatusCode::FORBIDDEN, what))
            }
            _ => Ok(()),
        }
    }

    /// Forwards a request to the replica that owns the session; `None` if that is this one. `forwarded`: another
    /// replica sent the request here.
    pub(super) fn forward<'a>(
        &'a self,
        head: Head<'a>,
        text: &'a Bytes,
        principal: &'a Principal,
        forwarded: bool,
    ) -> Option<BoxFuture<'a, Option<Response<Body>>>> {
        let id = head.2.get(modern::SESSION_ID)?.to_str().ok()?;
        if forwarded || self.peers.is_none() || self.sessions.is_own(id) {
            return None;
        }
        let opener = self.seal.opener(&principal.id, id)?;
        Some(Box::pin(async move {
            let opener = &opener;
            let work = Work::Session { id, opener };
            self.forward_to(work, head, text, principal).await
        }))
    }

    /// Like [`Self::forward`], for a client without a session that returns to a call waiting for input, or to a task.
    /// Only one replica has that call or task. If the replica is lost, so is the call or task.
    pub(super) fn forward_return<'a>(
        &'a self,
        head: Head<'a>,
        frame: &'a Frame,
        principal: &'a Principal,
        forwarded: bool,
    ) -> Option<BoxFuture<'a, Option<Response<Body>>>> {
        let address = self.place_elsewhere(frame).filter(|_| !forwarded)?;
        Some(Box::pin(async move {
            let work = Work::Place(&address);
            self.forward_to(work, head, frame.text(), principal).await
        }))
    }

    /// The address of the replica that holds the paused call or the task that the request refers to; `None` if it is
    /// this replica, or unknown.
    pub fn place_elsewhere(&self, frame: &Frame) -> Option<String> {
        let peers = self.peers.as_ref()?;
        let address = self.seal.place(&engine::place_of(frame)?)?;
        (address != peers.address()).then_some(address)
    }

    /// Like [`Self::forward`], for an HTTP+SSE session, which ends with the replica that opened it.
    pub(super) async fn forward_sse(
        &self,
        id: &str,
        head: Head<'_>,
        text: &Bytes,
        principal: &Principal,
    ) -> Option<Response<Body>> {
        let opener = self.seal.sse_opener(&principal.id, id)?;
        let opener = &opener;
        let work = Work::Session { id, opener };
        Box::pin(self.forward_to(work, head, text, principal)).await
    }

    /// Makes another replica answer a request outside MCP, on behalf of a principal whose permissions have been
    /// checked. `last` builds the final event of a stream that breaks off. Returns `None` if the replica cannot be
    /// reached.
    ///
    /// # Errors
    /// If the replica was lost while it worked on the request.
    pub async fn forward_beside(
        &self,
        address: &str,
        (who, path): (&Principal, &str),
        headers: &HeaderMap,
        body: &Bytes,
        last: impl FnOnce(&str) -> Bytes,
    ) -> Option<Result<Response<Body>, String>> {
        let uri = Uri::try_from(format!("{BESIDE_PREFIX}{path}")).ok()?;
        let mut carried = HeaderMap::new();
        for name in [header::ACCEPT, header::CONTENT_TYPE] {
            if let Some(value) = headers.get(&name) {
                carried.insert(name, value.clone());
            }
        }
        let passed_on = self.gateway.fleet().passed_on().clone();
        for (name, value) in headers {
            if passed_on.contains(name.as_str()) {
                carried.append(name, value.clone());
            }
        }
        let head = (&Method::POST, &uri, &carried);
        let sent = self.sent(Work::Place(address), head, body, Some(&who.id));
        Some(match sent.await? {
            Ok((answer, peer)) => Ok(self.relayed(answer, peer, |why| Some(last(why)), who)),
            Err(why) => Err(why),
        })
    }

    async fn forward_to(
        &self,
        work: Work<'_>,
        head: Head<'_>,
        text: &Bytes,
        principal: &Principal,
    ) -> Option<Response<Body>> {
        Some(match self.sent(work, head, text, None).await? {
            Ok((answer, peer)) => {
                let last = |why: &str| {
                    let failure = failure(text, why)?;
                    Some(sse::encode(Some("message"), None, &failure))
                };
                self.relayed(answer, peer, last, principal)
            }
            Err(why) => match failure(text, &why) {
                Some(failure) => json(StatusCode::OK, failure),
                None => Self::refuse(&refusal(StatusCode::BAD_GATEWAY, &why)),
            },
        })
    }

    /// Sends a request to the replica responsible for `work`; `None` if that is this one.
    ///
    /// # Errors
    /// If the replica was lost while it worked on the request.
    async fn sent(
        &self,
        work: Work<'_>,
        head: Head<'_>,
        text: &Bytes,
        caller: Option<&str>,
    ) -> Option<Result<(Response<Incoming>, Peer), String>> {
        let peers = self.peers.as_ref()?;
        let passed_on = self.gateway.fleet().passed_on().clone();
        let mut moved = false;
        loop {
            let peer = peers.worker(work).await?;
            let sending = peers.send(&peer, head, &passed_on, text.clone(), caller);
            match sending.await {
                Ok(answer) => return Some(Ok((answer, peer))),
                Err(Unanswered::Moved) if !moved => moved = true,
                Err(Unanswered::Away | Unanswered::Moved) => peers.note_away(&peer),
                Err(Unanswered::Lost(why)) => return Some(Err(why)),
            }
        }
    }

    /// Relays the response of another replica. If the replica is lost, a stream ends with an event that says so, any
    /// other body with an error.
    fn relayed(
        &self,
        answer: Response<Incoming>,
        peer: Peer,
        last: impl FnOnce(&str) -> Option<Bytes>,
        principal: &Principal,
    ) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind == "text/event-stream");
        let why = format!(
            "replica {} was lost while it worked on this request, which may have been carried out",
            peer.host
        );
        let body = if is_stream {
            let last = last(&why);
            let events =
                stream::unfold((Some(body), peer, last), |(body, peer, last)| async move {
                    let mut body = body?;
                    let frame = tokio::select! {
                        frame = body.frame() => frame?.ok(),
                        () = peer.lost.cancelled() => None,
                    };
                    match frame {
                        Some(frame) => {
                            let data = frame.into_data().unwrap_or_default();
                            Some((data, (Some(body), peer, last)))
                        }
                        None => Some((last?, (None, peer, None))),
                    }
                });
            let events = axum::body::Body::from_stream(events.map(Ok::<_, io::Error>));
            Body::shared(events, self.streams().join(&principal.id))
        } else {
            Body::Other(until_lost(body, peer.lost, why))
        };
        let mut response = Response::new(body);
        *response.status_mut() = parts.status;
        for name in RESPONSE_HEADERS {
            if let Some(value) = parts.headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        if is_stream {
            let no = http::HeaderValue::from_static("no");
            response.headers_mut().insert("x-accel-buffering", no);
        }
        response
    }
}

/// Relays a body from another replica, and ends it with an error if that replica is lost.
fn until_lost<B>(body: B, lost: CancellationToken, why: String) -> axum::body::Body
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    if body.is_end_stream() {
        return axum::body::Body::new(body);
    }
    let frames = stream::unfold(Some((body, lost, why)), |state| async move {
        let (mut body, lost, why) = state?;
        tokio::select! {
            biased;
            frame = body.frame() => match frame? {
                Ok(frame) => Some((Ok(frame), Some((body, lost, why)))),
                Err(error) => Some((Err(error.into()), None)),
            },
            () = lost.cancelled() => Some((Err(BoxError::from(why)), None)),
        }
    });
    axum::body::Body::new(StreamBody::new(frames))
}

/// An error response to this message; `None` if the message is not a request that can have one.
fn failure(text: &Bytes, why: &str) -> Option<Bytes> {
    let frame = Frame::parse(text.clone(), usize::MAX).ok()?;
    if frame.kind() != Kind::Request || frame.method() == method::INITIALIZE {
        return None;
    }
    let error = RpcError::new(error::INTERNAL_ERROR, why);
    Some(Frame::error(frame.id(), &error).text().clone())
}

#[cfg(test)]
mod tests {
    use http_body::Frame as Part;

    use super::*;

    type Parts = Vec<Result<Part<Bytes>, io::Error>>;

    /// A body of these parts. If `hangs` is true, the body never ends.
    fn relayed(parts: Parts, hangs: bool, lost: &CancellationToken) -> axum::body::Body {
        let end = stream::pending().take(usize::from(hangs));
        let body = StreamBody::new(stream::iter(parts).chain(end));
        until_lost(Box::pin(body), lost.clone(), "it was lost".into())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_breaks_off_when_its_replica_is_lost() {
        let lost = CancellationToken::new();
        let part = || vec![Ok(Part::data(Bytes::from_static(b"half")))];
        let whole = relayed(part(), false, &lost).collect().await;
        assert_eq!(whole.expect("it ends").to_bytes(), "half");

        let mut body = relayed(part(), true, &lost);
        let first = body.frame().await.expect("a part").expect("no error");
        assert_eq!(first.into_data().expect("data"), "half");
        let wait = std::time::Duration::from_secs(3600);
        let waited = tokio::time::timeout(wait, body.frame()).await;
        assert!(waited.is_err(), "it is not lost yet");
        lost.cancel();
        let error = body
            .frame()
            .await
            .expect("its end")
            .expect_err("broken off");
        assert!(error.to_string().contains("lost"), "{error}");
        assert!(body.frame().await.is_none());
    }
}
