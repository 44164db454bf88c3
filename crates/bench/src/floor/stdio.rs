//! The baseline for a stdio server: a line multiplexer.
//!
//! Every request gets a unique u64 id. One task writes all queued output at once. Another task reads large blocks,
//! finds the request of each response by id, and restores the client's id in the response.
//!
//! Bounds: each connection has one request outstanding, so queued output and pending requests are limited by the number
//! of clients. No deadline is set: if the child exits, so does this process.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use ::bytes::Bytes;
use ::http::{Method, Request, Response, StatusCode};
use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::frame::{IdOnly, LineBuffer, with_id};
use crate::serve;

#[derive(Default)]
struct Lines {
    state: Mutex<State>,
    /// Wakes the writer. One permit is enough, since the writer takes everything that is queued.
    gathered: Notify,
}

#[derive(Default)]
struct State {
    last_id: u64,
    output: Vec<u8>,
    waiting: HashMap<u64, Waiting>,
}

struct Waiting {
    client_id: Box<[u8]>,
    answer: oneshot::Sender<Vec<u8>>,
}

/// Starts `command` and serves on `listen` in front of it until either exits.
///
/// # Errors
///
/// The command cannot be started, its pipes failed, or the address cannot be bound.
pub(crate) async fn run(command: &[String], listen: &str) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("no command was given")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let stdin = child.stdin.take().context("the child has no stdin")?;
    let stdout = child.stdout.take().context("the child has no stdout")?;
    let lines = Arc::new(Lines::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(write(Arc::clone(&lines), stdin));
    tasks.spawn(read(Arc::clone(&lines), stdout));
    tokio::select! {
        ended = tasks.join_next() => ended.context("no task was started")??,
        served = serve::serve(listen, move |request| answer(Arc::clone(&lines), request)) => served,
    }
}

async fn answer(lines: Arc<Lines>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return serve::empty(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Some(body) = serve::whole(request.into_body()).await else {
        return serve::empty(StatusCode::BAD_REQUEST);
    };
    let Ok(envelope) = serde_json::from_slice::<IdOnly>(&body) else {
        return serve::empty(StatusCode::BAD_REQUEST);
    };
    let Some(id) = envelope.id else {
        lines.with(|state| {
            state.output.extend_from_slice(&body);
            state.output.push(b'\n');
        });
        return serve::empty(StatusCode::ACCEPTED);
    };
    let (sender, receiver) = oneshot::channel();
    let client_id = id.get().as_bytes().into();
    lines.with(|state| {
        state.last_id += 1;
        let own_id = state.last_id;
        let mut number = itoa::Buffer::new();
        let number = number.format(own_id).as_bytes();
        with_id(&mut state.output, &body, id, number);
        state.output.push(b'\n');
        let answer = sender;
        state.waiting.insert(own_id, Waiting { client_id, answer });
    });
    match receiver.await {
        Ok(answer) => serve::json(Full::from(answer)),
        Err(_) => serve::empty(StatusCode::BAD_GATEWAY),
    }
}

async fn write(lines: Arc<Lines>, mut stdin: ChildStdin) -> anyhow::Result<()> {
    let mut batch = Vec::new();
    loop {
        lines.gathered.notified().await;
        std::mem::swap(&mut batch, &mut lines.lock().output);
        stdin.write_all(&batch).await.context("the child's stdin")?;
        batch.clear();
    }
}

async fn read(lines: Arc<Lines>, mut stdout: ChildStdout) -> anyhow::Result<()> {
    let mut input = LineBuffer::new();
    loop {
        let n = stdout.read(input.free()?).await;
        let n = n.context("the child's stdout")?;
        anyhow::ensure!(n > 0, "the child closed its stdout");
        input.take(n, |line| deliver(&lines, line));
    }
}

/// Passes a response to the request that waits for it. Other messages are dropped.
fn deliver(lines: &Lines, line: &[u8]) {
    let Ok(IdOnly { id: Some(id) }) = serde_json::from_slice(line) else {
        return;
    };
    let Ok(own_id) = id.get().parse() else { return };
    let Some(waiting) = lines.lock().waiting.remove(&own_id) else {
        return;
    };
    let mut answer = Vec::new();
    with_id(&mut answer, line, id, &waiting.client_id);
    // Sending fails if the client has disconnected.
    let _ = waiting.answer.send(answer);
}

impl Lines {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.gathered.notify_one();
    }
}
