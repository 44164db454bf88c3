//! Rounds of calls: a fixed number of `tools/call echo` by a fixed number of clients, with every response checked.
//!
//! The clients are designed to reveal mix-ups: all count their ids from 0, every second one sends ids as strings, and
//! each payload contains the numbers of the client and the call. A response that reaches the wrong client, belongs to
//! an earlier call, or has any byte of the payload lost or changed fails the run.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::client::{Client, MODERN_META};
use super::proc;
use crate::echo::Era;

/// Deadline of one round. Enough for a proxy that is a hundred times slower than the baseline proxy.
const ROUND_DEADLINE: Duration = Duration::from_secs(300);

/// The payload apart from the text that identifies the call. Contains characters that JSON has to escape, characters
/// that it may escape, and characters of one to four bytes.
const FILLER: &str = "The quick brown fox jumps over the lazy dog: \"quoted\" \\ back\\slash / slash, \
    tab\there, é ß € 漢字 😀, {\"id\":7,\"jsonrpc\":\"2.0\",\"result\":null} and [1,2,3] \
    0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ the end";

/// The clients of one endpoint. They keep their connections between rounds.
#[derive(Debug)]
pub(crate) struct Load {
    /// The proxy processes whose CPU time is counted.
    pids: Vec<u32>,
    callers: Vec<Caller>,
    /// Counts calls that fail, instead of failing with the first one.
    is_lenient: bool,
}

/// The measurements of one round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) calls: u64,
    pub(crate) wall: Duration,
    /// CPU time of the proxy processes alone, in nanoseconds.
    pub(crate) cpu: u64,
    /// Latency of each call in nanoseconds, sorted.
    pub(crate) latencies: Vec<u64>,
    /// Calls without a correct response. They are not in `calls`.
    pub(crate) wrong: u64,
    /// Why one of them failed.
    pub(crate) complaint: Option<String>,
}

#[derive(Debug)]
struct Caller {
    client: Client,
    number: usize,
    next: u64,
    work: Work,
}

/// The request that a caller repeats.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// `tools/call` of the echo tool, by its exposed name.
    Echo { tool: String },
    /// The same through `call_tool`.
    CallTool { tool: String },
    /// A call of the echo tool of a hosted server named `echo`, over the REST API with this bearer token.
    Bridge { bearer: String },
    /// A call of the echo tool through a proxy that makes each tool a REST route.
    OpenApi,
    /// A call of the echo tool of a server named `bench`, over the REST API of mcp-hub.
    Hub,
    /// `tools/list`, whose result must consist of these bytes. `handshake` is false if the bytes come from memory
    /// instead of a server.
    List { result: Bytes, handshake: bool },
}

#[derive(Deserialize)]
struct Answer<'a> {
    /// Missing in a REST API response.
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: CallResult<'a>,
}

#[derive(Deserialize)]
struct CallResult<'a> {
    #[serde(borrow)]
    content: Vec<Text<'a>>,
}

#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl Load {
    /// Connects `clients` clients to `url`.
    pub(crate) async fn connect(
        url: &str,
        pid: u32,
        era: Era,
        clients: usize,
        work: &Work,
    ) -> anyhow::Result<Self> {
        let mut callers = Vec::with_capacity(clients);
        for number in 0..clients {
            let connect = async {
                match work {
                    Work::List {
                        handshake: false, ..
                    }
                    | Work::Bridge { .. }
                    | Work::OpenApi
                    | Work::Hub => Client::bare(url, era).await,
                    _ => Client::connect(url, era).await,
                }
            };
            let client = timeout(ROUND_DEADLINE, connect)
                .await?
                .with_context(|| format!("client {number} of {url}"))?;
            let work = work.clone();
            let mut caller = Caller {
                client,
                number,
                next: 0,
                work,
            };
            match &caller.work {
                Work::Echo { tool } => caller.client.about("tools/call", Some(tool))?,
                Work::CallTool { .. } => caller.client.about("tools/call", Some("call_tool"))?,
                Work::Bridge { bearer } => caller.client.authorize(bearer)?,
                Work::List { .. } => caller.client.about("tools/list", None)?,
                Work::OpenApi | Work::Hub => {}
            }
            callers.push(caller);
        }
        let pids = vec![pid];
        Ok(Self {
            pids,
            callers,
            is_lenient: false,
        })
    }

    /// Counts calls that fail from now on, instead of failing with the first one.
    pub(crate) fn leniently(mut self) -> Self {
        self.is_lenient = true;
        self
    }

    /// Combines these clients with those of `other`.
    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.pids.extend(other.pids);
        self.callers.extend(other.callers);
        self
    }

    /// Counts the CPU time of these processes as well.
    pub(crate) fn count(&mut self, pids: &[u32]) {
        self.pids.extend(pids);
    }

    fn cpu_time(&self) -> anyhow::Result<u64> {
        self.pids.iter().map(|pid| proc::cpu_time(*pid)).sum()
    }

    /// Makes `calls` calls, distributed evenly among the clients.
    ///
    /// # Errors
    ///
    /// A call failed or its response was wrong, unless these are counted; or the round took longer than 300 s.
    pub(crate) async fn round(&mut self, calls: u64) -> anyhow::Result<Round> {
        let each = (calls / self.callers.len() as u64).max(1);
        let mut round = Round::default();
        let mut tasks = JoinSet::new();
        let cpu_before = self.cpu_time()?;
        let started = Instant::now();
        let is_lenient = self.is_lenient;
        for mut caller in self.callers.drain(..) {
            tasks.spawn(async move {
                let mut latencies = Vec::with_capacity(each as usize);
                let mut complaint = None;
                for _ in 0..each {
                    match caller.call().await {
                        Ok(latency) => latencies.push(latency),
                        Err(error) if is_lenient => {
                            complaint.get_or_insert_with(|| format!("{error:#}"));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok((caller, latencies, complaint))
            });
        }
        let joined = timeout(ROUND_DEADLINE, async {
            while let Some(done) = tasks.join_next().await {
                let (caller, latencies, complaint) = done??;
                self.callers.push(caller);
                round.wrong += each - latencies.len() as u64;
                round.complaint = round.complaint.take().or(complaint);
                round.latencies.extend(latencies);
            }
            anyhow::Ok(())
        });
        joined.await.context("the round took too long")??;
        round.wall = started.elapsed();
        round.cpu = self.cpu_time()?.saturating_sub(cpu_before);
        round.calls = round.latencies.len() as u64;
        round.latencies.sort_unstable();
        Ok(round)
    }

    /// Responses so far that were event streams.
    pub(crate) fn streamed(&self) -> u64 {
        self.callers
            .iter()
            .map(|caller| caller.client.streamed)
            .sum()
    }
}

impl Round {
    /// CPU time of the proxy per call, in microseconds.
    pub(crate) fn cpu_per_call(&self) -> f64 {
        self.cpu as f64 / 1e3 / self.calls.max(1) as f64
    }

    pub(crate) fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// The latency quantile `share` (0 … 1), in microseconds.
    pub(crate) fn latency(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.latencies.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

impl Caller {
    /// Makes one call and checks its response. Returns the latency in nanoseconds, without the time to build the
    /// request and check the response.
    async fn call(&mut self) -> anyhow::Result<u64> {
        let n = self.next;
        self.next += 1;
        let id = match self.number % 2 {
            0 => n.to_string(),
            _ => format!("\"{n}\""),
        };
        let meta = match self.client.era {
            Era::Legacy => "",
            Era::Modern => MODERN_META,
        };
        let payload = format!("client {} call {n}: {FILLER}", self.number);
        let body = match &self.work {
            Work::Echo { tool } => {
                let comma = if meta.is_empty() { "" } else { "," };
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"payload":{}}}{comma}{meta}}}}}"#,
                    serde_json::to_string(&payload)?
                )
            }
            Work::CallTool { tool } => {
                let comma = if meta.is_empty() { "" } else { "," };
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"call_tool","arguments":{{"name":"{tool}","arguments":{{"payload":{}}}}}{comma}{meta}}}}}"#,
                    serde_json::to_string(&payload)?
                )
            }
            Work::Bridge { .. } => format!(
                r#"{{"method":"tools/call","params":{{"name":"echo","arguments":{{"payload":{}}}}}}}"#,
                serde_json::to_string(&payload)?
            ),
            Work::OpenApi => format!(r#"{{"payload":{}}}"#, serde_json::to_string(&payload)?),
            Work::Hub => format!(
                r#"{{"server_name":"bench","tool":"echo","arguments":{{"payload":{}}}}}"#,
                serde_json::to_string(&payload)?
            ),
            Work::List { .. } => format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{{meta}}}}}"#
            ),
        };
        let started = Instant::now();
        let answer = self.client.call(body.into()).await?;
        let latency = started.elapsed().as_nanos() as u64;
        match &self.work {
            Work::Echo { .. } | Work::CallTool { .. } => check_echo(&answer, Some(&id), &payload),
            // A REST API response has no id, so the payload identifies the call.
            Work::Bridge { .. } | Work::Hub => check_echo(&answer, None, &payload),
            Work::OpenApi => check_text(&answer, &payload),
            Work::List { result, .. } => check_list(&answer, &id, result),
        }
        .with_context(|| {
            let answer = String::from_utf8_lossy(&answer[..answer.len().min(1000)]);
            format!("client {} call {n} was answered with {answer}", self.number)
        })?;
        Ok(latency)
    }
}

fn check_echo(answer: &[u8], id: Option<&str>, payload: &str) -> anyhow::Result<()> {
    let answer: Answer = serde_json::from_slice(answer).context("not a tool's result")?;
    if let Some(id) = id {
        let got = answer.id.map(RawValue::get);
        anyhow::ensure!(got == Some(id), "the id is not {id}");
    }
    let [text] = answer.result.content.as_slice() else {
        anyhow::bail!("the result does not have exactly one content block");
    };
    anyhow::ensure!(text.text == payload, "the payload is not {payload:?}");
    Ok(())
}

/// Checks a response that is only the text of the result.
fn check_text(answer: &[u8], payload: &str) -> anyhow::Result<()> {
    let text: String = serde_json::from_slice(answer).context("not a text")?;
    anyhow::ensure!(text == payload, "the payload is not {payload:?}");
    Ok(())
}

/// Finds the result by comparing bytes, to avoid parsing 100 KB per response. Only the text around it is parsed.
fn check_list(answer: &[u8], id: &str, result: &[u8]) -> anyhow::Result<()> {
    let at = memchr::memmem::find(answer, result).context("the list differs from the first one")?;
    let around = [&answer[..at], b"null", &answer[at + result.len()..]].concat();
    let around: crate::frame::IdOnly = serde_json::from_slice(&around)?;
    anyhow::ensure!(
        around.id.is_some_and(|got| got.get() == id),
        "the id is not {id}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, text: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
        )
    }

    #[test]
    fn only_the_own_answer_passes() {
        let check = |answer: &str| check_echo(answer.as_bytes(), Some("7"), "p");
        assert!(check(&answer("7", "p")).is_ok());
        assert!(check(&answer("7", "\\u0070")).is_ok());
        for wrong in [
            answer("\"7\"", "p"),
            answer("8", "p"),
            answer("7.0", "p"),
            answer("7", "q"),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"p"}}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#.to_owned(),
            String::new(),
        ] {
            assert!(check(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_own_text_passes() {
        assert!(check_text(br#""a\u0070""#, "ap").is_ok());
        for wrong in [r#""b""#, r#"["a"]"#, "a", ""] {
            assert!(check_text(wrong.as_bytes(), "a").is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_same_list_passes() {
        let list = br#"{"tools":[]}"#;
        let check = |answer: &str| check_list(answer.as_bytes(), "\"7\"", list);
        assert!(check(r#"{"jsonrpc":"2.0","result":{"tools":[]},"id":"7"}"#).is_ok());
        assert!(check(r#"{"jsonrpc":"2.0","result":{"tools":[]},"id":7}"#).is_err());
        assert!(check(r#"{"jsonrpc":"2.0","result":{"tools":[1]},"id":"7"}"#).is_err());
    }

    #[test]
    fn a_payload_is_about_256_bytes() {
        assert!((230..300).contains(&FILLER.len()), "{}", FILLER.len());
    }

    /// A proxy that answers the third call of each connection with the response to the second.
    #[tokio::test]
    async fn a_round_notices_an_answer_that_belongs_to_another_call() {
        use std::convert::Infallible;
        use std::sync::{Arc, Mutex};

        use hyper::service::service_fn;
        use hyper_util::rt::TokioIo;

        use crate::echo::{Echo, Options};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let echo = Arc::new(Echo::new(&Options {
            era: Era::Modern,
            tools: 1,
            prefix: None,
        }));
        let mut server = JoinSet::new();
        server.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let given = Arc::new(Mutex::new(Vec::<Vec<u8>>::new()));
                let service = service_fn(|request| {
                    let (echo, given) = (Arc::clone(&echo), Arc::clone(&given));
                    async move {
                        let body = crate::serve::whole(hyper::Request::into_body(request)).await;
                        let mut answer = Vec::new();
                        echo.answer(&body.unwrap(), &mut answer);
                        let mut given = given.lock().unwrap();
                        if given.len() == 2 {
                            answer.clone_from(&given[1]);
                        }
                        given.push(answer.clone());
                        let answer = http_body_util::Full::new(Bytes::from(answer));
                        Ok::<_, Infallible>(crate::serve::json(answer))
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            }
        });
        let work = Work::Echo {
            tool: "echo".to_owned(),
        };
        let own = std::process::id();
        let mut load = Load::connect(&url, own, Era::Modern, 1, &work)
            .await
            .unwrap();
        assert_eq!(load.round(2).await.unwrap().calls, 2);
        let error = format!("{:#}", load.round(1).await.unwrap_err());
        assert!(
            error.contains("client 0 call 2") && error.contains("the id is not 2"),
            "{error}"
        );
        let load = Load::connect(&url, own, Era::Modern, 1, &work);
        let round = load.await.unwrap().leniently().round(4).await.unwrap();
        assert_eq!((round.calls, round.wrong), (3, 1));
        assert!(round.complaint.is_some_and(|it| it.contains("call 2")));
    }
}
