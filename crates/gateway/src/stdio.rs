//! The gateway on standard input and output, for clients that can only start commands.
//!
//! One pipe serves both protocol eras: `initialize` opens a legacy session, and a request with modern `_meta` is
//! self-contained (2026-07-28 basic/versioning "Backward Compatibility").

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use engine::{Caller, Gateway, Scope};
use futures_util::FutureExt;
use mcp::{
    Era, Frame, Kind, bridge,
    lines::{Head, Line, LineReader},
    outbox::{Bounds, Outbox, Weight},
    protocol::{meta, method},
    server::{ClientInfo, Session, modern},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
};

/// Limits of the queue of messages that the client has not read yet.
pub const CLIENT_QUEUE_BOUNDS: Bounds = Bounds {
    messages: 4096,
    bytes: 64 << 20,
};
/// After the client has closed its end: the time limit for requests in flight, and then again for writing their
/// responses.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves one client until it closes its end or stops reading. Audit records name the client `caller`.
pub async fn run(
    gateway: &Gateway,
    caller: Arc<str>,
    scope: Scope,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) {
    let session = Session::new(caller, CLIENT_QUEUE_BOUNDS);
    let _open = session.hold_open();
    let registration = gateway.attach(scope.clone(), &session);
    let writing = write(session.outbox(), output);
    let reading = async {
        let mut pipe = Pipe {
            gateway: gateway.clone(),
            scope,
            session: session.clone(),
            requests: JoinSet::new(),
        };
        pipe.read(input).await;
        let finished = async { while pipe.requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, finished).await;
        session.outbox().close();
        // The writer ends once everything is written. If the client reads nothing, the writer never ends, so this wait
        // is limited.
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
    gateway.detach(registration).await;
}

/// Writes each message as a line until the outbox is closed and empty, or the reader is gone.
pub async fn write(outbox: &Outbox, mut output: impl AsyncWrite + Unpin) {
    while let Some(message) = outbox.next().await {
        let mut line = Vec::with_capacity(message.len() + 1);
        line.extend_from_slice(&mcp::json::one_line(&message));
        line.push(b'\n');
        if output.write_all(&line).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

struct Pipe {
    gateway: Gateway,
    scope: Scope,
    session: Arc<Session>,
    requests: JoinSet<()>,
}

impl Pipe {
    async fn read(&mut self, input: impl AsyncRead + Unpin) {
        let settings = self.gateway.settings();
        let mut lines = LineReader::new(input, settings.limits.max_body_bytes);
        loop {
            let text = tokio::select! {
                line = lines.next() => match line {
                    Ok(Some(Line::Text(text))) => text,
                    Ok(Some(Line::TooLong { head })) => {
                        let max = settings.limits.max_body_bytes;
                        let what = format!("a message has more than {max} bytes (`max_body_bytes`)");
                        let error = mcp::RpcError::new(mcp::error::INVALID_REQUEST, what);
                        let id = Head::of(&head).id.unwrap_or_default();
                        self.send(&Frame::error(id, &error));
                        continue;
                    }
                    Ok(None) | Err(_) => return,
                },
                Some(_) = self.requests.join_next(), if !self.requests.is_empty() => continue,
            };
            match Frame::parse(text, settings.limits.max_depth) {
                Ok(frame) => self.take(frame).await,
                Err(invalid) if invalid.response => {}
                Err(invalid) => {
                    let id = invalid.id.clone().unwrap_or_default();
                    self.send(&Frame::error(&id, &invalid.to_rpc()));
                }
            }
        }
    }

    fn send(&self, frame: &Frame) {
        self.session
            .outbox()
            .push(Weight::Must, frame.text().clone());
    }

    async fn take(&mut self, frame: Frame) {
        match frame.kind() {
            Kind::Result | Kind::Error => {
                self.session.answered(frame);
            }
            Kind::Notification => {
                let caller = self.caller(Era::Legacy, None);
                self.gateway.notification(&caller, &frame);
            }
            Kind::Request
                if frame
                    .meta()
                    .is_some_and(|own| own.find(meta::PROTOCOL_VERSION).is_some()) =>
            {
                let face = bridge::modern_face(&frame);
                match face.and_then(|face| modern::check_version(&face.version).map(|()| face)) {
                    Ok(face) => {
                        let capabilities = Bytes::copy_from_slice(face.capabilities);
                        let caller = self.caller(Era::Modern, Some(capabilities));
                        self.start(caller, frame);
                    }
                    Err(error) => self.send(&Frame::error(frame.id(), &error)),
                }
            }
            Kind::Request if frame.method() == method::INITIALIZE => {
                let answer = match ClientInfo::from_initialize(&frame) {
                    Ok(face) => {
                        let result = self
                            .gateway
                            .initialize(&self.scope, &face)
                            .await
                            .unwrap_or_default();
                        self.session.introduce(face);
                        Frame::result(frame.id(), result.as_bytes())
                    }
                    Err(error) => Frame::error(frame.id(), &error),
                };
                self.send(&answer);
            }
            Kind::Request if frame.method() == method::DISCOVER => {
                // A `server/discover` without `_meta` is malformed, not a legacy request.
                if let Err(error) = bridge::modern_face(&frame) {
                    self.send(&Frame::error(frame.id(), &error));
                }
            }
            Kind::Request => {
                let caller = self.caller(Era::Legacy, None);
                self.start(caller, frame);
            }
        }
    }

    fn caller(&self, era: Era, modern_capabilities: Option<Bytes>) -> Caller {
        let session = self.session.clone();
        let (principal, outbox) = (session.principal().clone(), session.outbox().clone());
        Caller {
            era,
            session: Some(session),
            may_use: true,
            modern_capabilities,
            ..Caller::legacy(self.scope.clone(), principal, outbox)
        }
    }

    fn start(&mut self, caller: Caller, frame: Frame) {
        let gateway = self.gateway.clone();
        let session = self.session.clone();
        let mut answering = Box::pin(async move { gateway.request(&caller, &frame).await });
        // The first poll happens here, not in the task. Requests therefore enter their queues in the order of the input
        // lines (G14), regardless of how their tasks are scheduled.
        let ready = (&mut answering).now_or_never();
        self.requests.spawn(async move {
            let answer = match ready {
                Some(answer) => answer,
                None => answering.await,
            };
            if !answer.silent {
                session.outbox().push(Weight::Must, answer.into_text());
            }
        });
    }
}
