//! Modern requests. Each is independent.

use std::sync::Arc;

use bytes::Bytes;
use engine::{Answer, Caller, Scope};
use http::{HeaderMap, Response, StatusCode};
use mcp::{
    Frame, Kind, RpcError, backlog::Charge, error, outbox::Outbox, protocol::method, server::modern,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    HttpGateway, REQUEST_BOUNDS,
    reply::{empty, json, json_body},
    streams::{First, event_stream, first, prefers_stream, text},
};
use crate::{
    Body,
    body::{Answering, Events},
    listen,
    wire::Wire,
};
use auth::{Principal, Role};

impl HttpGateway {
    pub(crate) async fn modern(
        &self,
        headers: HeaderMap,
        frame: Frame,
        scope: Scope,
        principal: Arc<Principal>,
        wire: Arc<Wire>,
    ) -> Response<Body> {
        let face = match modern::check(&headers, &frame) {
            Ok(face) => face,
            Err(error) => {
                return json(
                    StatusCode::BAD_REQUEST,
                    Frame::error(frame.id(), &error).text().clone(),
                );
            }
        };
        match frame.kind() {
            Kind::Request => {}
            // A client cancels by closing the stream. No other client notification has a meaning here.
            Kind::Notification => return empty(StatusCode::ACCEPTED),
            Kind::Result | Kind::Error => {
                let error = RpcError::new(
                    error::INVALID_REQUEST,
                    "Invalid request: a client sends no responses in this protocol version",
                );
                return json(
                    StatusCode::BAD_REQUEST,
                    Frame::error(b"", &error).text().clone(),
                );
            }
        }
        let streams = prefers_stream(&headers);
        let capabilities = face.map(|face| Bytes::copy_from_slice(face.capabilities));
        let (share, frame, forwarded) = if frame.method() == method::LISTEN {
            match self.stream_share(&principal) {
                // A listen request lasts for hours and must not keep hyper's buffers alive. The headers are slices of
                // the buffers.
                Ok(share) => (Some(share), listen::detached(frame), None),
                Err(refusal) => return Self::refuse(&refusal),
            }
        } else {
            (None, frame, Some(headers))
        };
        let outbox = Outbox::charged(REQUEST_BOUNDS, wire.account().clone());
        let caller = Caller {
            may_use: principal.may(Role::Call, scope.project.as_ref()),
            modern_capabilities: capabilities,
            headers: forwarded,
            ..Caller::modern(scope, principal.id.clone(), outbox.clone())
        };
        let gateway = self.gateway.clone();
        let mut answering: Answering =
            Box::pin(async move { gateway.request(&caller, &frame).await });
        let events = match first(&outbox, &mut answering).await {
            First::Answer(answer) if outbox.is_empty() && (!streams || answer.code.is_some()) => {
                let status = modern_status(&answer);
                return json_body(status, Body::answer(answer));
            }
            First::Answer(answer) => Events::of_request(outbox, None, Some((text(answer), None))),
            First::Message => {
                // The call continues in a separate task. A client that does not read stalls its connection, and must
                // not stall the call, which occupies a slot at its server.
                let account = wire.account().clone();
                let answering = AbortOnDropHandle::new(self.tasks.spawn(async move {
                    let answer = text(answering.await);
                    let length = answer.as_ref().map_or(0, Bytes::len);
                    let charge = Charge::new(&account, length);
                    account.backlog().settle();
                    (answer, Some(charge))
                }));
                if let Some(share) = share {
                    match wire.leave(listen::takeover(outbox, answering, share)).await {}
                }
                let share = self.streams.join(&principal.id);
                Events::of_request(outbox, Some(answering), None).until(share)
            }
        };
        event_stream(events)
    }
}

/// The HTTP status of a modern response, derived from its error code (2026-07-28 basic/transports/streamable-http).
fn modern_status(answer: &Answer) -> StatusCode {
    if let Some(status) = answer.status {
        return status;
    }
    match answer.code {
        Some(error::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(
            error::PARSE_ERROR
            | error::INVALID_REQUEST
            | error::HEADER_MISMATCH
            | error::MISSING_CAPABILITY
            | error::UNSUPPORTED_VERSION,
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}
