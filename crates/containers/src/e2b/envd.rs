//! `envd`, the program in each sandbox that runs commands, and its Connect protocol.
//!
//! A call is a `POST` of JSON to `/process.Process/METHOD`. Errors have a status and `{"code": "…", "message": "…"}`.
//! Streams consist of envelopes: a byte of flags, a length of four bytes (big endian), and as many bytes of JSON. The
//! last one has the flag [`FLAG_LAST`], and the error if there was one. A stream without this envelope broke off. In
//! JSON, bytes are base64, and values that are zero or false are omitted.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Inner;
use super::api::{Call, Made, late};
use runtime::handle::Exit;
use runtime::unit::Error;

const PORT: u16 = 49983;
/// Flags of an envelope: compressed (which is never requested), and last of its stream.
const FLAG_COMPRESSED: u8 = 1;
const FLAG_LAST: u8 = 2;
const HEADER_BYTES: usize = 5;
/// Maximum envelope size. `envd` sends 32 KiB of output at a time, which is 43 KiB in base64.
const MAX_ENVELOPE_BYTES: usize = 4 << 20;
/// Timeouts of a call, and of starting a command.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for input. A busy command may not read its input for a long time, as with a full pipe. A dead connection is
/// detected by the output stream ([`SILENCE_TIMEOUT`]).
const INPUT_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of `envd`'s keepalives in seconds. E2B closes streams that are silent for longer.
const PING_INTERVAL_SECS: u64 = 30;
/// A stream that receives nothing for this long is broken.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3 * PING_INTERVAL_SECS);
/// From this version on, `envd` has a default user for commands. Requests to older versions must name the user.
const USER_KNOWN_SINCE: [u32; 3] = [0, 4, 0];
/// Basic authentication as `user`, which exists in every template, without a password.
const USER_AUTHORIZATION: &str = "Basic dXNlcjo=";

/// The `envd` of one sandbox.
#[derive(Clone)]
pub(super) struct Envd {
    inner: Arc<Inner>,
    url: String,
    id: HeaderValue,
    token: Option<HeaderValue>,
    as_user: bool,
}

/// A running command.
pub(super) struct Started {
    pub(super) pid: u32,
    pub(super) events: Events,
}

/// An event in a command's stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    End(Exit),
}

#[derive(Clone, Copy)]
pub(super) enum Signal {
    Term,
}

impl Envd {
    pub(super) fn new(inner: Arc<Inner>, made: &Made) -> Result<Self, Error> {
        let unfit = |_| Error::Failed("E2B returned an invalid token for a sandbox".to_owned());
        let token = made
            .envd_access_token
            .as_deref()
            .filter(|token| !token.is_empty());
        let token = token
            .map(HeaderValue::from_str)
            .transpose()
            .map_err(unfit)?;
        let token = token.map(|mut token| {
            token.set_sensitive(true);
            token
        });
        Ok(Self {
            url: inner.api.envd(made, PORT),
            inner,
            id: HeaderValue::from_str(&made.id).map_err(unfit)?,
            token,
            as_user: version(&made.envd_version).is_some_and(|version| version < USER_KNOWN_SINCE),
        })
    }

    /// Starts a command with an open standard input. The command keeps running when the stream ends.
    ///
    /// # Errors
    ///
    /// `Call::Answer(400, _)` if the command cannot be started.
    pub(super) async fn start(
        &self,
        cmd: &str,
        args: &[String],
        envs: &std::collections::BTreeMap<String, String>,
    ) -> Result<Started, Call> {
        const WHAT: &str = "start a command in a sandbox";
        let asked = json!({ "process": { "cmd": cmd, "args": args, "envs": envs }, "stdin": true });
        let asked = asked.to_string();
        let mut body = BytesMut::with_capacity(HEADER_BYTES + asked.len());
        body.extend_from_slice(&[0]);
        let length = u32::try_from(asked.len()).map_err(|_| {
            Call::Other(Error::Refused {
                field: "command",
                why: "the command and its variables exceed 4 GiB".to_owned(),
            })
        })?;
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(asked.as_bytes());
        let request = self
            .request("Start", "application/connect+json")
            .header("keepalive-ping-interval", PING_INTERVAL_SECS.to_string())
            .body(body.freeze());
        let starting = async {
            let request = request.map_err(|error| failed(error.to_string()))?;
            let response = self.inner.api.send(WHAT, request).await?;
            let (head, body) = response.into_parts();
            if !head.status.is_success() {
                let body = self.inner.api.read(WHAT, body).await?;
                return Err(self.refusal(head.status, &body));
            }
            let mut events = Events {
                body,
                buffer: BytesMut::new(),
                over: false,
            };
            loop {
                match events.message().await {
                    Ok(Some(Message {
                        start: Some(start), ..
                    })) => {
                        return Ok(Started {
                            pid: start.pid,
                            events,
                        });
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        return Err(failed(
                            "the stream ended before the command started".to_owned(),
                        ));
                    }
                    Err(Broken::Error { code, message }) => {
                        let message = self.inner.api.blot(&message);
                        let status = if code == "invalid_argument" { 400 } else { 500 };
                        return Err(Call::Answer(status, message));
                    }
                    Err(Broken::Off(why)) => return Err(failed(why)),
                }
            }
        };
        late(WHAT, START_TIMEOUT, starting).await
    }

    /// Writes to a command's standard input. Returns whether the command exists.
    pub(super) async fn input(&self, pid: u32, bytes: &[u8]) -> Result<bool, Call> {
        let input = json!({ "stdin": STANDARD.encode(bytes) });
        let asked = json!({ "process": { "pid": pid }, "input": input });
        let what = "write to a command in a sandbox";
        self.call(what, INPUT_TIMEOUT, "SendInput", &asked).await
    }

    /// Closes a command's standard input. If `envd` is too old for that, ends the command.
    pub(super) async fn close(&self, pid: u32) -> Result<bool, Call> {
        let asked = json!({ "process": { "pid": pid } });
        let closed = self
            .call(
                "close the input of a command in a sandbox",
                CALL_TIMEOUT,
                "CloseStdin",
                &asked,
            )
            .await;
        match closed {
            // `envd` does not implement this method (`unimplemented`).
            Err(Call::Answer(404 | 501, _)) => self.signal(pid, Signal::Term).await,
            closed => closed,
        }
    }

    /// Sends a signal to a command. Returns whether the command exists.
    pub(super) async fn signal(&self, pid: u32, signal: Signal) -> Result<bool, Call> {
        let signal = match signal {
            Signal::Term => "SIGNAL_SIGTERM",
        };
        let asked = json!({ "process": { "pid": pid }, "signal": signal });
        let what = "signal a command in a sandbox";
        self.call(what, CALL_TIMEOUT, "SendSignal", &asked).await
    }

    /// Makes a call about a command. Returns whether the command exists.
    async fn call(
        &self,
        what: &'static str,
        within: Duration,
        method: &str,
        asked: &Value,
    ) -> Result<bool, Call> {
        #[derive(Deserialize)]
        struct Code {
            code: String,
        }
        let request = self
            .request(method, "application/json")
            .body(Bytes::from(asked.to_string()));
        let calling = async {
            let request = request.map_err(|error| failed(error.to_string()))?;
            let response = self.inner.api.send(what, request).await?;
            let (head, body) = response.into_parts();
            let body = self.inner.api.read(what, body).await?;
            if head.status.is_success() {
                return Ok(true);
            }
            // A service that does not know the method also responds with 404, but without a code.
            match serde_json::from_slice(&body) {
                Ok(Code { code }) if code == "not_found" => Ok(false),
                _ => Err(self.refusal(head.status, &body)),
            }
        };
        late(what, within, calling).await
    }

    /// Parses the error of `envd`, or of the gateway in front of it, which does not know the key.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Call {
        match self.inner.api.refusal(status, body) {
            Call::Answer(status @ (401 | 403), why) => failed(format!(
                "E2B's sandbox rejected its token: {why} (status {status})"
            )),
            other => other,
        }
    }

    fn request(&self, method: &str, content: &str) -> hyper::http::request::Builder {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/process.Process/{method}", self.url))
            .header(CONTENT_TYPE, content)
            .header("connect-protocol-version", "1")
            // These headers are needed if one address serves all sandboxes.
            .header("e2b-sandbox-id", self.id.clone())
            .header("e2b-sandbox-port", PORT.to_string());
        if let Some(token) = &self.token {
            request = request.header("x-access-token", token.clone());
        }
        if self.as_user {
            request = request.header(AUTHORIZATION, USER_AUTHORIZATION);
        }
        request
    }
}

/// The event stream of a command.
pub(super) struct Events {
    body: Incoming,
    buffer: BytesMut,
    over: bool,
}

/// Why the event stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// An error reported by `envd`.
    Error { code: String, message: String },
    /// The stream broke off.
    Off(String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    start: Option<Start>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct Start {
    pid: u32,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct End {
    exit_code: i32,
    exited: bool,
    status: String,
}

impl Events {
    /// Returns the next event, or `None` when the command has ended and there are no more events.
    ///
    /// # Cancel safety
    ///
    /// No data is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Broken> {
        while let Some(message) = self.message().await? {
            let decode = |text: String| {
                let bytes = STANDARD.decode(text);
                bytes.map_err(|_| Broken::Off("the command's output is not base64".to_owned()))
            };
            match message {
                Message { end: Some(end), .. } => return Ok(Some(Event::End(end.exit()))),
                Message {
                    data: Some(data), ..
                } => {
                    if let Some(text) = data.stdout {
                        return Ok(Some(Event::Stdout(decode(text)?)));
                    }
                    if let Some(text) = data.stderr {
                        return Ok(Some(Event::Stderr(decode(text)?)));
                    }
                }
                // This event is a keepalive.
                Message { .. } => {}
            }
        }
        Ok(None)
    }

    async fn message(&mut self) -> Result<Option<Message>, Broken> {
        #[derive(Deserialize)]
        struct Envelope {
            #[serde(default)]
            event: Message,
        }
        loop {
            if self.over {
                return Ok(None);
            }
            if let Some((flags, text)) = split(&mut self.buffer)? {
                if flags & FLAG_LAST != 0 {
                    self.over = true;
                    last(&text)?;
                    return Ok(None);
                }
                let envelope: Envelope = serde_json::from_slice(&text)
                    .map_err(|error| Broken::Off(format!("cannot parse an event: {error}")))?;
                return Ok(Some(envelope.event));
            }
            let off = |why: &str| {
                Broken::Off(format!(
                    "the stream of the command's output broke off: {why}"
                ))
            };
            match timeout(SILENCE_TIMEOUT, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Ok(Some(Err(error))) => return Err(off(&error.to_string())),
                Ok(None) => return Err(off("the end marker is missing")),
                Err(_) => return Err(off(&format!("no data for {} s", SILENCE_TIMEOUT.as_secs()))),
            }
        }
    }
}

/// Takes one complete envelope from the buffer.
fn split(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Broken> {
    let &[flags, a, b, c, d, ..] = &buffer[..] else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MAX_ENVELOPE_BYTES || flags & FLAG_COMPRESSED != 0 {
        return Err(Broken::Off(format!(
            "an event with {length} bytes and flags {flags} is not supported; the limit is {MAX_ENVELOPE_BYTES} bytes, uncompressed"
        )));
    }
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    buffer.advance(HEADER_BYTES);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

/// Parses the last envelope.
fn last(text: &[u8]) -> Result<(), Broken> {
    #[derive(Deserialize)]
    struct Last {
        error: Option<Words>,
    }
    #[derive(Deserialize)]
    struct Words {
        code: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice(text) {
        Ok(Last { error: None }) => Ok(()),
        Ok(Last {
            error: Some(Words { code, message }),
        }) => Err(Broken::Error { code, message }),
        Err(error) => Err(Broken::Off(format!(
            "cannot parse the end of the command's output: {error}"
        ))),
    }
}

impl End {
    /// `envd` is written in Go, and reports signals in Go's format: `signal: killed`.
    fn exit(&self) -> Exit {
        let signal = self.status.strip_prefix("signal: ").map(|name| {
            let name = name.trim_end_matches(" (core dumped)");
            let known = SIGNALS.iter().find(|(_, known)| *known == name);
            let number = name
                .strip_prefix("signal ")
                .and_then(|number| number.parse().ok());
            known.map(|(number, _)| *number).or(number)
        });
        match signal {
            Some(signal) => Exit {
                signal,
                ..Exit::default()
            },
            None if self.exited => Exit {
                code: Some(self.exit_code),
                ..Exit::default()
            },
            None => Exit::default(),
        }
    }
}

/// Signals that end a process, with Go's names for them on Linux.
const SIGNALS: [(i32, &str); 16] = [
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (10, "user defined signal 1"),
    (11, "segmentation fault"),
    (12, "user defined signal 2"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
    (24, "CPU time limit exceeded"),
];

fn version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = text.trim_start_matches('v').splitn(3, '.').map(|number| {
        let digits = number.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok())
    });
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

fn failed(why: String) -> Call {
    Call::Other(Error::Failed(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_taken_whole_and_no_larger_than_they_may_be() {
        let mut buffer = BytesMut::from(&b"\0\0\0\0\x02{}\x02\0\0\0\x02{}\0\0"[..]);
        assert_eq!(split(&mut buffer), Ok(Some((0, Bytes::from("{}")))));
        assert_eq!(split(&mut buffer), Ok(Some((FLAG_LAST, Bytes::from("{}")))));
        assert_eq!(split(&mut buffer), Ok(None));
        assert_eq!(&buffer[..], b"\0\0");
        let mut half = BytesMut::from(&b"\0\0\0\0\x03{}"[..]);
        assert_eq!(split(&mut half), Ok(None));
        for wrong in [&b"\0\xff\0\0\0"[..], b"\x01\0\0\0\x01x"] {
            assert!(split(&mut BytesMut::from(wrong)).is_err());
        }
    }

    #[test]
    fn the_last_envelope_may_have_an_error() {
        assert_eq!(last(b"{}"), Ok(()));
        assert_eq!(last(br#"{"metadata":{}}"#), Ok(()));
        let error = Broken::Error {
            code: "unavailable".into(),
            message: "gone".into(),
        };
        assert_eq!(
            last(br#"{"error":{"code":"unavailable","message":"gone"}}"#),
            Err(error)
        );
        assert!(matches!(last(b"x"), Err(Broken::Off(_))));
    }

    #[test]
    fn ends_are_told_as_go_tells_them() {
        let check = |text: &str, code: Option<i32>, signal: Option<i32>| {
            let end: End = serde_json::from_str(text).unwrap();
            let exit = end.exit();
            assert_eq!((exit.code, exit.signal), (code, signal), "{text}");
        };
        check(r#"{"exited":true,"status":"exit status 0"}"#, Some(0), None);
        let failed = r#"{"exitCode":3,"exited":true,"status":"exit status 3","error":"x"}"#;
        check(failed, Some(3), None);
        for (status, signal) in [
            ("killed", 9),
            ("segmentation fault (core dumped)", 11),
            ("signal 34", 34),
        ] {
            let text = format!(r#"{{"exitCode":-1,"status":"signal: {status}"}}"#);
            check(&text, None, Some(signal));
        }
        check(r#"{"exitCode":-1,"status":"?"}"#, None, None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("0.5.2"), Some([0, 5, 2]));
        assert_eq!(version("v0.10.0-rc1"), Some([0, 10, 0]));
        assert!(version("0.10.0") > Some(USER_KNOWN_SINCE));
        assert_eq!(version(""), None);
        assert_eq!(version("1.2"), None);
    }
}
