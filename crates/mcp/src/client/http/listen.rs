//! A legacy server's own stream, for messages outside of any call (2025-11-25 basic/transports "Listening for Messages
//! from the Server").
//!
//! Messages that can be assigned to a call are passed to it.
//!
//! The stream is opened in the background and reopened whenever it ends. If the server refuses with a status that means
//! it has no such stream, it is not tried again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{Event, whose::Whose},
    body::{Media, media},
    link::{Core, ambient},
    pool::Body,
    refusal::names_lost_session,
    refusal::{Doubt, means_wait},
};
use crate::{
    Frame, Kind,
    protocol::{meta, method},
    sse::Parser,
};

/// Timeout for the response head.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(3600);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A stream that lasted this long counts as a success.
const STABLE_STREAM_TIME: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Listener {
    last_event: Option<String>,
    retry: Option<Duration>,
    failures: u32,
    /// True if the stream was open at least once, so the server supports it.
    opened: bool,
}

enum Open {
    Stream(Body),
    /// Try again later.
    Later,
    /// The server has no such stream.
    Never,
}

pub(super) async fn listen(core: Arc<Core>, to: mpsc::Sender<Event>) {
    let mut listener = Listener::default();
    loop {
        let started = Instant::now();
        let succeeded = match listener.open(&core).await {
            Open::Stream(body) => {
                listener.opened = true;
                core.stream.is_open.store(true, Ordering::Relaxed);
                let got_events = listener.read(&core, body, &to).await;
                core.stream.is_open.store(false, Ordering::Relaxed);
                got_events || started.elapsed() >= STABLE_STREAM_TIME
            }
            Open::Later => false,
            Open::Never => return,
        };
        listener.failures = if succeeded { 0 } else { listener.failures + 1 };
        sleep(listener.pause()).await;
    }
}

impl Listener {
    async fn open(&self, core: &Arc<Core>) -> Open {
        let answer = core.stream(self.last_event.as_deref());
        let response = match timeout(OPEN_TIMEOUT, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                tracing::debug!(server = %core.label, error = %core.broken(&error), "no event stream");
                return Open::Later;
            }
            Err(_) => return Open::Later,
        };
        let status = response.status();
        if status.is_success() && media(response.headers()) == Media::Events {
            return Open::Stream(response.into_body());
        }
        if means_wait(status) {
            return Open::Later;
        }
        // Before the first successful open, a refusal only means that the server has no such stream.
        let has_none = !self.opened || status == StatusCode::METHOD_NOT_ALLOWED;
        if !has_none && core.has_session() && self.is_lost(core, response).await {
            return Open::Never;
        }
        if status.is_server_error() {
            return Open::Later;
        }
        tracing::debug!(server = %core.label, status = status.as_u16(), "the server has no event stream");
        Open::Never
    }

    /// Returns true if this refusal of a stream that was open before means a lost session. The link is then unusable.
    async fn is_lost(&self, core: &Arc<Core>, response: Response<Body>) -> bool {
        let status = response.status();
        let text = core.error_text(response).await;
        if names_lost_session(status, &text) {
            let detail = core.endpoint.detail(&text);
            core.expired(&format!("HTTP {}{detail}", status.as_u16()));
            return true;
        }
        core.clone().check(Doubt::default()).await
    }

    /// Reads a stream to its end. Returns true if it contained a message.
    async fn read(&mut self, core: &Arc<Core>, mut body: Body, to: &mpsc::Sender<Event>) -> bool {
        let mut parser = Parser::new(core.max_message);
        let mut got_events = false;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(data) = frame.data_ref() else {
                continue;
            };
            parser.push(data.clone());
            loop {
                let event = match parser.next_event() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(error) => {
                        core.stray(&error.to_string());
                        return got_events;
                    }
                };
                if event.id.is_some() {
                    self.last_event = event.id;
                }
                if let Some(retry) = event.retry {
                    self.retry = Some(Duration::from_millis(retry).min(MAX_RETRY_DELAY));
                }
                if event.data.is_empty() || !matches!(&*event.event, "" | "message") {
                    continue;
                }
                got_events = true;
                match Frame::parse(event.data, core.max_depth) {
                    Ok(frame) => take(core, frame, to),
                    Err(invalid) => core.stray(&invalid.to_string()),
                }
            }
        }
        got_events
    }

    /// Delay before the next attempt, with jitter so that the clients of a restarted server do not reconnect all at
    /// once.
    fn pause(&self) -> Duration {
        let retry = self.retry.unwrap_or(DEFAULT_RETRY_DELAY);
        let backoff = retry.saturating_mul(2u32.pow(self.failures.min(8)));
        let pause = backoff.clamp(retry, MAX_BACKOFF.max(retry));
        pause.mul_f64(rand::random_range(1.0..1.25))
    }
}

fn take(core: &Arc<Core>, frame: Frame, to: &mpsc::Sender<Event>) {
    match frame.kind() {
        Kind::Notification => {
            let call = match frame.method() {
                method::PROGRESS => {
                    let token = frame.object().and_then(|params| {
                        std::str::from_utf8(params.raw(meta::PROGRESS_TOKEN)?)
                            .ok()?
                            .trim_matches('"')
                            .parse()
                            .ok()
                    });
                    token.and_then(|token| core.in_flight(token))
                }
                method::MESSAGE => {
                    core.stream.has_logged();
                    match core.whose() {
                        Whose::One(slot) => Some(slot),
                        Whose::Nobodys => None,
                        Whose::Unclear => return core.to_each_caller(&frame),
                    }
                }
                _ => None,
            };
            let event = Event::Notification(frame);
            let unclaimed = match call {
                Some(slot) => slot.push(event),
                None => Some(event),
            };
            if let Some(event) = unclaimed {
                ambient(core, to, event);
            }
        }
        Kind::Request if frame.method() == method::PING => core.answer_ping(&frame),
        // A server request should come on the stream of its call. Many servers send it here anyway, and with a single
        // caller in flight the recipient is clear.
        Kind::Request => match core.whose() {
            Whose::One(slot) => {
                if let Some(event) = slot.push(Event::Request(frame)) {
                    ambient(core, to, event);
                }
            }
            Whose::Nobodys => ambient(core, to, Event::Request(frame)),
            Whose::Unclear => ambient(core, to, Event::Unclear(frame)),
        },
        Kind::Result | Kind::Error => core.stray("a response on the event stream"),
    }
}
