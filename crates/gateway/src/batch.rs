//! JSON-RPC batches, which exist only in protocol version 2025-03-26.
//!
//! The number of messages and the total size of the responses are limited, since a small body can request any number of
//! long lists. Responses are written in the order in which they become ready, as the specification allows. Messages
//! before them, such as progress, turn the response into an event stream, as they do for a single request.

use std::{future, sync::Arc};

use bytes::{Bytes, BytesMut};
use engine::{Answer, Caller, Scope};
use futures_util::{StreamExt as _, future::Either, stream};
use http::{HeaderMap, Response, StatusCode};
use mcp::{
    Frame, Kind, RpcError, Version, backlog::Account, error, frame::Invalid, json, outbox::Outbox,
};

use super::{
    Body, HttpGateway,
    guard::Refusal,
    http::{REQUEST_BOUNDS, empty, json as json_response, prefers_stream, refusal, unreadable},
};
use auth::{Principal, Role};

/// Maximum messages in one batch.
const MAX_MESSAGES: usize = 256;
/// Maximum requests of one batch that are answered concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 32;
/// Maximum total bytes of the responses to one batch. Errors that replace responses which do not fit are not counted.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

impl HttpGateway {
    pub(super) async fn batch(
        self: Arc<Self>,
        headers: &HeaderMap,
        text: &Bytes,
        scope: Scope,
        principal: Arc<Principal>,
        account: Arc<Account>,
    ) -> Result<Response<Body>, Refusal> {
        let (session, scope) = self.session(headers, &scope, &principal).await?;
        if session.face().map(|face| face.version) != Some(Version::V2025_03_26) {
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                "batches exist in protocol version 2025-03-26 only: send each message on its own",
            ));
        }
        let max_depth = self.gateway.settings().limits.max_depth;
        if let Err(fault) = json::validate(text, max_depth) {
            let invalid = Invalid {
                reason: fault.into(),
                id: None,
                response: false,
                text: Bytes::new(),
            };
            return Ok(unreadable(&invalid));
        }
        let spans = || json::elements(text, json::trimmed(text));
        if spans().nth(MAX_MESSAGES).is_some() {
            let what = format!("a batch has at most {MAX_MESSAGES} messages: send several batches");
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, &what));
        }
        if spans().next().is_none() {
            let error = RpcError::new(
                error::INVALID_REQUEST,
                "Invalid request: the batch is empty",
            );
            let text = Frame::error(b"", &error).text().clone();
            return Ok(json_response(StatusCode::BAD_REQUEST, text));
        }
        let outbox = Outbox::charged(REQUEST_BOUNDS, account);
        let mut answers = Vec::new();
        for span in spans() {
            let frame = match Frame::parse(text.slice(span), max_depth) {
                Ok(frame) => frame,
                Err(invalid) => {
                    let id = invalid.id.clone().unwrap_or_default();
                    let answer = Frame::error(&id, &invalid.to_rpc()).text().clone();
                    answers.push(Either::Left(future::ready((id, Some(answer)))));
                    continue;
                }
            };
            if frame.kind() != Kind::Request {
                self.take_in(session.clone(), &frame, scope.clone(), principal.clone());
                continue;
            }
            let id = Bytes::copy_from_slice(frame.id());
            let rescoped = self.rescoped(&principal, scope.clone(), &frame, headers);
            let scope = match rescoped.await {
                Ok(scope) => scope,
                Err(refusal) => {
                    let answer = Frame::error(&id, &refusal.error).text().clone();
                    answers.push(Either::Left(future::ready((id, Some(answer)))));
                    continue;
                }
            };
            let caller = Caller {
                session: Some(session.clone()),
                may_use: principal.may(Role::Call, scope.project.as_ref()),
                ..Caller::legacy(scope, principal.id.clone(), outbox.clone())
            };
            let gateway = self.gateway.clone();
            answers.push(Either::Right(Box::pin(async move {
                let answer = gateway.request(&caller, &frame).await;
                (id, (!answer.silent).then(|| answer.into_text()))
            })));
        }
        if answers.is_empty() {
            return Ok(empty(StatusCode::ACCEPTED));
        }
        let answering = Box::pin(async move {
            let mut answers = stream::iter(answers).buffer_unordered(MAX_CONCURRENT_REQUESTS);
            let mut out = BytesMut::new();
            while let Some((id, answer)) = answers.next().await {
                let Some(answer) = answer else { continue };
                out.extend_from_slice(if out.is_empty() { b"[" } else { b"," });
                if out.len() + answer.len() <= MAX_RESPONSE_BYTES {
                    out.extend_from_slice(&answer);
                } else {
                    out.extend_from_slice(no_room(&id).text());
                }
            }
            let all_cancelled = out.is_empty();
            out.extend_from_slice(b"]");
            let mut answer = Answer::ok(out.freeze());
            answer.silent = all_cancelled;
            answer
        });
        let streams = prefers_stream(headers);
        Ok(self.respond(session, outbox, answering, streams).await)
    }
}

/// The error that replaces a response that does not fit into the batch's size limit.
fn no_room(id: &[u8]) -> Frame {
    let what = format!(
        "the responses to one batch are limited to {MAX_RESPONSE_BYTES} bytes: send this request on its own"
    );
    Frame::error(id, &RpcError::new(error::INTERNAL_ERROR, what))
}
