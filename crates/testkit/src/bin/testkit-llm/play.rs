//! Streams a turn's reply event by event, and records whether it was read to the end.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;

use crate::{
    Api, Front, anthropic, openai,
    script::{Reply, Then},
};

/// Records on drop how the response to a request ended: `dropped`, unless it was read to the end.
pub(crate) struct Reading {
    front: Arc<Front>,
    number: usize,
    outcome: &'static str,
}

impl Reading {
    pub(crate) fn new(front: &Arc<Front>, number: usize) -> Self {
        let front = Arc::clone(front);
        Self {
            front,
            number,
            outcome: "dropped",
        }
    }

    fn complete(mut self) {
        self.outcome = "complete";
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.front.outcome(self.number, self.outcome);
    }
}

enum Step {
    Text(String),
    Cut,
    Stall,
}

/// Streams a reply.
pub(crate) fn answer(front: &Arc<Front>, number: usize, api: Api, reply: &Reply) -> Response {
    let mut events = match api {
        Api::Anthropic => anthropic::events(&mut front.lock(), reply),
        Api::OpenAi => openai::events(&mut front.lock(), reply),
    };
    let mut last = None;
    if let Some(after) = &reply.after {
        events.truncate(after.events);
        match after.then {
            Then::Cut => last = Some(Step::Cut),
            Then::Stall => last = Some(Step::Stall),
            Then::Eof => {}
            Then::Error => events.push(match api {
                Api::Anthropic => anthropic::error(&after.kind, &after.message),
                Api::OpenAi => openai::error(&after.kind, &after.message),
            }),
        }
    }
    if reply.bytes > 0 {
        let whole = events.concat();
        events = pieces(&whole, reply.bytes)
            .into_iter()
            .map(str::to_owned)
            .collect();
    }
    let mut steps: VecDeque<Step> = events.into_iter().map(Step::Text).collect();
    steps.extend(last);
    let reading = Reading::new(front, number);
    let pause = Duration::from_millis(reply.pause_ms);
    let body = stream::unfold((steps, reading), move |(mut steps, reading)| async move {
        let Some(step) = steps.pop_front() else {
            reading.complete();
            return None;
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        } else {
            // Makes each event a separate write.
            tokio::task::yield_now().await;
        }
        let item = match step {
            Step::Text(text) => Ok(Bytes::from(stamped(text))),
            Step::Cut => Err(io::Error::other("cut as the script says")),
            Step::Stall => std::future::pending().await,
        };
        Some((item, (steps, reading)))
    });
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(body),
    )
        .into_response()
}

/// Replaces the placeholder with the current time.
fn stamped(text: String) -> String {
    const TIME_PLACEHOLDER: &str = "{{now_ns}}";
    if !text.contains(TIME_PLACEHOLDER) {
        return text;
    }
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    text.replace(TIME_PLACEHOLDER, &now.as_nanos().to_string())
}

/// Splits a text into `count` pieces, as evenly as character boundaries allow.
pub(crate) fn split(text: &str, count: usize) -> Vec<&str> {
    pieces(text, text.len().div_ceil(count.max(1)).max(1))
}

/// Splits a text into pieces of about `size` bytes. Characters are not split, because each piece must be valid text.
fn pieces(text: &str, size: usize) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
        pieces.push(piece);
        rest = more;
    }
    pieces
}
