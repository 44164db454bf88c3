//! A scripted language model behind the real streaming protocols: Anthropic's Messages API (`POST /v1/messages`) and
//! OpenAI's chat completions (`POST /v1/chat/completions`).
//!
//! A script is JSON ([`script::Script`]). It has one turn per request; each turn says what the request must contain,
//! and what to stream or how to fail. The script is loaded from a file (`--script`) or by `POST /script`, which starts
//! over. A request that does not match its turn gets 400 with the differences, and the turn is not used up. Requests
//! are validated as the real API does ([`check`]) before the script is consulted. `GET /requests` returns all requests,
//! and whether their responses were read to the end.
//!
//! Deliberately absent: responses that are not streams, and all parts of the APIs that our agents do not use.

mod anthropic;
mod check;
mod openai;
mod play;
mod script;

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Parser;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    check::{Refusal, View},
    script::{Fail, Script, Turn},
};

/// Large, so that tests reach the product's own limits first.
const BODY_LIMIT: usize = 256 * 1024 * 1024;
/// Maximum number of requests kept.
const MAX_RECORDED_REQUESTS: usize = 1_000;

#[derive(Debug, Parser)]
#[command(about = "A scripted language model, for tests")]
struct Options {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The initial script.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// The only accepted key. Without this option, any key is accepted.
    #[arg(long)]
    key: Option<String>,
}

/// The API format of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Anthropic,
    OpenAi,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Anthropic => "/v1/messages",
            Self::OpenAi => "/v1/chat/completions",
        }
    }
}

/// State shared by all requests.
#[derive(Default)]
pub(crate) struct Front {
    key: Option<String>,
    state: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    script: Script,
    next: usize,
    /// Number of older requests that were dropped from `requests`.
    forgotten: usize,
    requests: VecDeque<Record>,
    /// The thinking text of each signature, to check thinking blocks that a request sends back.
    pub(crate) signatures: HashMap<String, String>,
    ids: u64,
}

/// A request and its outcome.
#[derive(Debug, Serialize)]
struct Record {
    path: &'static str,
    /// The client's address.
    peer: SocketAddr,
    headers: HashMap<String, String>,
    body: Value,
    /// `open`, `refused`, `failed`, `complete` or `dropped`.
    outcome: &'static str,
}

impl Front {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock()
    }

    pub(crate) fn outcome(&self, number: usize, outcome: &'static str) {
        let mut inner = self.lock();
        let at = number.checked_sub(inner.forgotten);
        if let Some(record) = at.and_then(|at| inner.requests.get_mut(at)) {
            record.outcome = outcome;
        }
    }
}

impl Inner {
    fn record(
        &mut self,
        path: &'static str,
        peer: SocketAddr,
        headers: &HeaderMap,
        body: Value,
    ) -> usize {
        if self.requests.len() == MAX_RECORDED_REQUESTS {
            self.requests.pop_front();
            self.forgotten += 1;
        }
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
        self.requests.push_back(Record {
            path,
            peer,
            headers: headers
                .iter()
                .map(|(k, v)| (k.to_string(), text(v)))
                .collect(),
            body,
            outcome: "open",
        });
        self.forgotten + self.requests.len() - 1
    }

    /// Returns the turn for this request and advances the script, or an error if the request does not match.
    fn turn(&mut self, view: &View, headers: &HeaderMap, body: &Value) -> Result<Turn, Refusal> {
        let Some(turn) = self.script.turns.get(self.next).cloned() else {
            return Err(Refusal::invalid(format!(
                "the script has only {} turns, and this request needs another one",
                self.script.turns.len()
            )));
        };
        let wrong = turn.expect.differs(view, headers, body);
        if !wrong.is_empty() {
            return Err(Refusal::invalid(format!(
                "turn {} of the script expects something else: {}",
                self.next,
                wrong.join("; ")
            )));
        }
        if !(self.script.repeat_last && self.next + 1 == self.script.turns.len()) {
            self.next += 1;
        }
        Ok(turn)
    }

    /// Returns a unique number.
    pub(crate) fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testkit-llm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let front = Front {
        key: options.key,
        ..Front::default()
    };
    if let Some(file) = options.script {
        front.lock().script = serde_json::from_slice(&std::fs::read(file)?)?;
    }
    let router = Router::new()
        .route(Api::Anthropic.path(), post(answer))
        .route(Api::OpenAi.path(), post(answer))
        .route("/script", post(script_put))
        .route("/requests", get(requests))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(Arc::new(front));
    tokio::runtime::Runtime::new()?.block_on(testkit::serve::listen(options.listen, "", router))?;
    Ok(())
}

async fn answer(
    State(front): State<Arc<Front>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let api = match uri.path() == Api::OpenAi.path() {
        true => Api::OpenAi,
        false => Api::Anthropic,
    };
    let body: Value = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(error) => {
            return Refusal::invalid(format!("the body is not JSON: {error}")).answer(api);
        }
    };
    let (number, turn) = {
        let mut inner = front.lock();
        let number = inner.record(api.path(), peer, &headers, body.clone());
        let view = check::key(api, &headers, front.key.as_deref()).and_then(|()| {
            let view = match api {
                _ if inner.script.unchecked => Ok(View::default()),
                Api::Anthropic => check::anthropic(&headers, &body, &inner.signatures),
                Api::OpenAi => check::openai(&body),
            };
            view.map_err(|wrong| Refusal::invalid(format!("{wrong:#}")))
        });
        (
            number,
            view.and_then(|view| inner.turn(&view, &headers, &body)),
        )
    };
    let turn = match turn {
        Ok(turn) => turn,
        Err(refusal) => {
            front.outcome(number, "refused");
            return refusal.answer(api);
        }
    };
    match turn.fail {
        None => play::answer(&front, number, api, &turn.reply),
        Some(fail) => {
            front.outcome(number, "failed");
            failed(&front, number, api, fail).await
        }
    }
}

async fn failed(front: &Arc<Front>, number: usize, api: Api, fail: Fail) -> Response {
    if fail.stall {
        let _guard = play::Reading::new(front, number);
        std::future::pending::<()>().await;
    }
    if fail.hang_up {
        // This panics on purpose, to end the connection's task and with it the connection.
        std::panic::resume_unwind(Box::new("hangs up as the script says"));
    }
    let refusal = Refusal {
        status: StatusCode::from_u16(fail.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        kind: fail.kind,
        message: fail.message,
    };
    let mut response = match fail.body {
        Some(body) => (refusal.status, body).into_response(),
        None => refusal.answer(api),
    };
    for (name, value) in fail.headers {
        let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), value.parse()) else {
            return Refusal::invalid(format!("the script's header {name} cannot be sent"))
                .answer(api);
        };
        response.headers_mut().insert(name, value);
    }
    response
}

async fn script_put(State(front): State<Arc<Front>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Script>(&body) {
        Ok(script) => {
            let mut inner = front.lock();
            (inner.script, inner.next) = (script, 0);
            inner.requests.clear();
            inner.forgotten = 0;
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("no script: {error}\n")).into_response(),
    }
}

async fn requests(State(front): State<Arc<Front>>) -> Json<Value> {
    Json(json!(front.lock().requests))
}

impl Refusal {
    /// Formats the error as the API does.
    fn answer(self, api: Api) -> Response {
        let body = match api {
            Api::Anthropic => json!({
                "type": "error",
                "error": { "type": self.kind, "message": self.message },
                "request_id": "req_testkit",
            }),
            Api::OpenAi => json!({
                "error": { "message": self.message, "type": self.kind, "param": null, "code": "testkit" },
            }),
        };
        (self.status, Json(body)).into_response()
    }
}
