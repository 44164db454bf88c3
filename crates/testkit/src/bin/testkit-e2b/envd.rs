//! `envd`: commands in sandboxes, over the Connect protocol with JSON.

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::ChildStdin,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::sandbox::{Command, Input, Sandbox, World, signal};

/// The size of `envd`'s read buffer.
const CHUNK_BYTES: usize = 32 << 10;
/// Maximum number of events queued for a listener.
const MAX_QUEUED_EVENTS: usize = 64;
/// After a command has exited, output of its leftover child processes is read for this long.
const OUTPUT_DRAIN: Duration = Duration::from_millis(100);
/// `envd`'s port.
const ENVD_PORT: &str = "49983";
/// The first `envd` version that can close a command's stdin.
const CLOSE_STDIN_SINCE: [u32; 3] = [0, 5, 2];
/// The keepalive interval if the request header does not set one.
const PING_INTERVAL: Duration = Duration::from_secs(90);
/// The flag of the last envelope of a stream.
const END_STREAM_FLAG: u8 = 2;

type Shared = State<Arc<World>>;

/// An error in Connect's format.
struct Wrong(&'static str, String);

impl Wrong {
    fn status(&self) -> StatusCode {
        match self.0 {
            "invalid_argument" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "not_found" => StatusCode::NOT_FOUND,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            // Errors from the gateway in front of all sandboxes.
            "gateway" => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn body(&self) -> Value {
        match self.0 {
            "gateway" => json!({ "message": self.1, "code": 502 }),
            code => json!({ "code": code, "message": self.1 }),
        }
    }
}

fn wrong(code: &'static str, message: impl Into<String>) -> Wrong {
    Wrong(code, message.into())
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        (self.status(), Json(self.body())).into_response()
    }
}

#[derive(Deserialize)]
struct Start {
    process: Config,
    stdin: Option<bool>,
    pty: Option<Value>,
}

#[derive(Deserialize)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Deserialize)]
struct Selected {
    process: Selector,
    #[serde(default)]
    input: BTreeMap<String, String>,
    #[serde(default)]
    signal: String,
}

#[derive(Deserialize)]
struct Selector {
    pid: u32,
}

pub(crate) fn routes() -> Router<Arc<World>> {
    Router::new()
        .route("/process.Process/Start", post(start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/List", post(list))
        .route("/process.Process/SendInput", post(input))
        .route("/process.Process/CloseStdin", post(close))
        .route("/process.Process/SendSignal", post(send_signal))
}

/// Returns the sandbox that a request addresses, if the request is authorized.
fn sandbox(world: &World, headers: &HeaderMap) -> Result<Arc<Sandbox>, Wrong> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if headers.contains_key("x-api-key") {
        return Err(wrong(
            "invalid_argument",
            "the API key must not be sent to a sandbox",
        ));
    }
    if header("e2b-sandbox-port") != Some(ENVD_PORT) {
        return Err(wrong(
            "gateway",
            "The sandbox is running but port is not open",
        ));
    }
    let sandbox = header("e2b-sandbox-id").and_then(|id| world.get(id));
    let sandbox = sandbox.ok_or_else(|| wrong("gateway", "The sandbox was not found"))?;
    if !sandbox.token.is_empty() && header("x-access-token") != Some(sandbox.token.as_str()) {
        return Err(wrong(
            "unauthenticated",
            "unauthorized access, please provide a valid access token",
        ));
    }
    Ok(sandbox)
}

fn parsed<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Wrong> {
    serde_json::from_slice(body)
        .map_err(|error| wrong("invalid_argument", format!("unmarshal message: {error}")))
}

/// Decodes the single message of a streaming request.
fn enveloped<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Wrong> {
    let wrong = |why: &str| Wrong("invalid_argument", why.to_owned());
    let Some((&[flags, a, b, c, d], message)) = body.split_first_chunk::<5>() else {
        return Err(wrong("protocol error: incomplete envelope"));
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flags != 0 || message.len() != length {
        return Err(wrong("protocol error: invalid envelope"));
    }
    parsed(message)
}

fn envelope(flags: u8, message: &str) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut bytes = vec![flags];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message.as_bytes());
    bytes.into()
}

fn event(event: &Value) -> String {
    json!({ "event": event }).to_string()
}

/// A streaming response: the events, then an end of stream without an error.
fn streamed(events: mpsc::Receiver<String>, cut: CancellationToken, ping: Duration) -> Response {
    let next = async move |(mut events, over): (mpsc::Receiver<String>, bool)| {
        if over {
            return None;
        }
        let told = tokio::select! {
            biased;
            () = cut.cancelled() => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
            told = timeout(ping, events.recv()) => Ok(told),
        };
        match told {
            Err(error) => Some((Err(error), (events, true))),
            Ok(Ok(Some(text))) => Some((Ok(envelope(0, &text)), (events, false))),
            Ok(Ok(None)) => Some((Ok(envelope(END_STREAM_FLAG, "{}")), (events, true))),
            Ok(Err(_)) => {
                let keep = event(&json!({ "keepalive": {} }));
                Some((Ok(envelope(0, &keep)), (events, false)))
            }
        }
    };
    // `next` is cloned for each event, because an async closure that owns its token is not `Fn`. The future is boxed,
    // because `unfold` needs that anyway.
    let stream = futures_util::stream::unfold((events, false), move |state| {
        let next = next.clone();
        Box::pin(async move { next(state).await })
    });
    let headers = [(CONTENT_TYPE, "application/connect+json")];
    (headers, Body::from_stream(stream)).into_response()
}

/// The error response to a streaming call: one final envelope.
fn refused(wrong: &Wrong) -> Response {
    if wrong.0 == "gateway" {
        return (wrong.status(), Json(wrong.body())).into_response();
    }
    let last = json!({ "error": wrong.body() }).to_string();
    let headers = [(CONTENT_TYPE, "application/connect+json")];
    (headers, Body::from(envelope(END_STREAM_FLAG, &last))).into_response()
}

fn ping(headers: &HeaderMap) -> Duration {
    let header = headers.get("keepalive-ping-interval");
    let seconds = header.and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(PING_INTERVAL, Duration::from_secs)
}

async fn start(State(world): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let started = match sandbox(&world, &headers) {
        Ok(sandbox) => enveloped(&body).and_then(|asked| run(&world, &sandbox, asked)),
        Err(wrong) => Err(wrong),
    };
    match started {
        Ok((events, cut)) => streamed(events, cut, ping(&headers)),
        Err(wrong) => refused(&wrong),
    }
}

fn run(
    world: &Arc<World>,
    sandbox: &Arc<Sandbox>,
    Start {
        process,
        stdin,
        pty,
    }: Start,
) -> Result<(mpsc::Receiver<String>, CancellationToken), Wrong> {
    if pty.is_some() {
        return Err(wrong("unimplemented", "the stand-in has no terminals"));
    }
    let invalid = |why: String| Wrong("invalid_argument", why);
    let mut command = tokio::process::Command::new(&process.cmd);
    command
        .args(&process.args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs([("HOME", "/tmp"), ("USER", "user"), ("LOGNAME", "user")])
        .envs(&sandbox.env)
        .envs(&process.envs)
        .current_dir(process.cwd.as_deref().unwrap_or("/tmp"))
        .stdin(if stdin == Some(false) {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|error| invalid(format!("error starting process '{}': {error}", process.cmd)))?;
    let pid = child
        .id()
        .ok_or_else(|| invalid("the process ended at once".to_owned()))?;
    let (input, inputs) = mpsc::channel(1);
    let (listener, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let config = json!({ "cmd": process.cmd, "args": process.args, "envs": process.envs });
    let run = Arc::new(Command {
        pid,
        config,
        input: Mutex::new(child.stdin.is_some().then_some(input)),
        listener: Mutex::new(Some(listener)),
    });
    sandbox.commands().insert(pid, Arc::clone(&run));
    let cut = sandbox.until_cut();
    let owner = Arc::clone(sandbox);
    world.tasks.spawn(async move {
        tell(&run, json!({ "start": { "pid": pid } })).await;
        // Each task ends with its pipe, or when this set is dropped.
        let mut pipes = JoinSet::new();
        if let Some(stdin) = child.stdin.take() {
            pipes.spawn(write(stdin, inputs));
        }
        let mut outputs = JoinSet::new();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            outputs.spawn(read(Arc::clone(&run), "stdout", stdout));
            outputs.spawn(read(Arc::clone(&run), "stderr", stderr));
        }
        let status = child.wait().await;
        let rest = async { while outputs.join_next().await.is_some() {} };
        let _ = timeout(OUTPUT_DRAIN, rest).await;
        drop((outputs, pipes));
        run.input.lock().take();
        owner.commands().remove(&pid);
        if let Ok(status) = status {
            tell(&run, json!({ "end": ended(status) })).await;
        }
        run.listener.lock().take();
    });
    Ok((events, cut))
}

/// Formats the exit status as Go does. Zero and false values are omitted.
fn ended(status: ExitStatus) -> Value {
    let names = [
        (2, "interrupt"),
        (6, "aborted"),
        (9, "killed"),
        (11, "segmentation fault"),
        (15, "terminated"),
    ];
    match (status.code(), status.signal()) {
        (Some(0), _) => json!({ "exited": true, "status": "exit status 0" }),
        (Some(code), _) => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            let name = names.iter().find(|(number, _)| *number == signal);
            let name = name.map_or(format!("signal {signal}"), |(_, name)| (*name).to_owned());
            let status = format!("signal: {name}");
            json!({ "exitCode": -1, "status": status, "error": status })
        }
    }
}

/// Sends an event to the listener, waiting while its queue is full. Without a listener the event is lost.
async fn tell(command: &Command, what: Value) {
    let listener = command.listener.lock().clone();
    if let Some(listener) = listener {
        let _ = listener.send(event(&what)).await;
    }
}

async fn read(command: Arc<Command>, name: &'static str, mut pipe: impl AsyncRead + Unpin) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        let data = json!({ "data": { name: STANDARD.encode(&chunk[..count]) } });
        tell(&command, data).await;
    }
}

async fn write(mut pipe: ChildStdin, mut inputs: mpsc::Receiver<Input>) {
    while let Some(Input { bytes, taken }) = inputs.recv().await {
        let written = pipe.write_all(&bytes).await;
        let failed = written.is_err();
        let _ = taken.send(written.map_err(|error| error.to_string()));
        if failed {
            return;
        }
    }
}

/// Returns the command that a request addresses.
fn command(
    world: &World,
    headers: &HeaderMap,
    Selector { pid }: &Selector,
) -> Result<Arc<Command>, Wrong> {
    let sandbox = sandbox(world, headers)?;
    let found = sandbox.commands().get(pid).cloned();
    found.ok_or_else(|| Wrong("not_found", format!("process with pid {pid} not found")))
}

async fn connect(State(world): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let connected = async {
        let Selected { process, .. } = enveloped(&body)?;
        let command = command(&world, &headers, &process)?;
        let cut = sandbox(&world, &headers)?.until_cut();
        let (listener, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let _ = listener.try_send(event(&json!({ "start": { "pid": command.pid } })));
        *command.listener.lock() = Some(listener);
        Ok((events, cut))
    };
    match connected.await {
        Ok((events, cut)) => streamed(events, cut, ping(&headers)),
        Err(wrong) => refused(&wrong),
    }
}

async fn list(State(world): Shared, headers: HeaderMap) -> Result<Json<Value>, Wrong> {
    let sandbox = sandbox(&world, &headers)?;
    let commands = sandbox.commands();
    let told = commands
        .values()
        .map(|command| json!({ "config": command.config, "pid": command.pid }));
    Ok(Json(json!({ "processes": told.collect::<Vec<_>>() })))
}

async fn input(
    State(world): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Wrong> {
    let Selected { process, input, .. } = parsed(&body)?;
    let command = command(&world, &headers, &process)?;
    let bytes = input.get("stdin").map(|text| STANDARD.decode(text));
    let Some(Ok(bytes)) = bytes else {
        return Err(wrong("unimplemented", "invalid input type"));
    };
    let internal = |why: String| Wrong("internal", format!("error writing to stdin: {why}"));
    let sender = command.input.lock().clone();
    let sender = sender.ok_or_else(|| internal("stdin not enabled or closed".to_owned()))?;
    let (taken, told) = oneshot::channel();
    let closed = || internal("stdin not enabled or closed".to_owned());
    let sent = sender.send(Input { bytes, taken }).await;
    sent.map_err(|_| closed())?;
    told.await.map_err(|_| closed())?.map_err(internal)?;
    Ok(Json(json!({})))
}

async fn close(
    State(world): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Wrong> {
    let numbers = world
        .options
        .envd
        .split('.')
        .map(|number| number.parse().unwrap_or(0));
    if numbers.collect::<Vec<u32>>().as_slice() < CLOSE_STDIN_SINCE.as_slice() {
        return Err(wrong("unimplemented", "there is no such method yet"));
    }
    let Selected { process, .. } = parsed(&body)?;
    let command = command(&world, &headers, &process)?;
    command.input.lock().take();
    Ok(Json(json!({})))
}

async fn send_signal(
    State(world): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Wrong> {
    let Selected {
        process,
        signal: name,
        ..
    } = parsed(&body)?;
    let command = command(&world, &headers, &process)?;
    let asked = match name.as_str() {
        "SIGNAL_SIGTERM" => Signal::TERM,
        "SIGNAL_SIGKILL" => Signal::KILL,
        other => {
            return Err(wrong("unimplemented", format!("invalid signal: {other}")));
        }
    };
    match signal(command.pid, asked) {
        true => Ok(Json(json!({}))),
        false => Err(wrong("internal", "error sending signal: exited")),
    }
}
