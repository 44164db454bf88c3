//! Chaos test: hosted servers are killed, hung and starved of resources at random while clients call them. Afterwards,
//! the accounts of all calls must agree.
//!
//! Every call has a unique argument and is recorded independently by three parties: the client, which counts responses;
//! the server, which appends a line to a file for each call that it carries out; and the audit log. [`Promise`] lists
//! what must hold at the end. The exit code is 1 if a promise is broken.
//!
//! The gateway itself is not killed here; see the tests `faults_hosting` and `faults_store`. `--seed` determines what
//! is done to which server, but not the timing, so the same seed does not repeat a run exactly.

mod books;
mod harm;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::ACCEPT;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::echo::MODERN_VERSION;
use crate::echo::http::{METHOD, NAME, VERSION};
use crate::run::api::Api;
use crate::run::client::{MODERN_META, answer_in_stream};
use crate::run::part::{Home, Part, program};
use crate::run::report::median;
use crate::run::{proc, raise_descriptor_limit};
use books::{Books, Ended};

/// Call timeout of the hosted servers, in milliseconds.
const CALL_TIMEOUT_MS: u64 = 2_000;
/// Time within which a call must end, including its wait in the queue.
const CALL_DEADLINE: Duration = Duration::from_secs(15);
/// Maximum pause of a client between two calls. 32 clients make about 1,000 calls per second as long as all servers
/// work.
const MAX_CLIENT_PAUSE: Duration = Duration::from_millis(60);
/// Maximum pause between two harms.
const MAX_HARM_PAUSE: Duration = Duration::from_millis(500);
const HEAL_DEADLINE: Duration = Duration::from_secs(60);
/// Factor by which memory and the number of open files may grow during the test.
const MAX_GROWTH: f64 = 1.25;
/// The environment variable with the name of a server.
const NAME_VARIABLE: &str = "CHAOS_SERVER";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Duration of the test, in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    #[arg(long, default_value_t = 16)]
    servers: usize,
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Seed for the choice of servers and harms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The gateway's binary [default: `toolwharf` next to this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
    /// The server's binary [default: `testkit-scripted` next to this program]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

/// A condition that must hold, and the violations found.
struct Promise {
    says: &'static str,
    /// Some of the violations. Empty if the promise is kept.
    against: Vec<String>,
}

impl Promise {
    fn new(says: &'static str, against: impl IntoIterator<Item = String>) -> Self {
        let against = against.into_iter().collect();
        Self { says, against }
    }
}

/// The gateway with its servers.
struct Place {
    part: Part,
    servers: usize,
    ledger: PathBuf,
}

/// Harms servers under load for the given time, and prints a report.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    raise_descriptor_limit()?;
    let toolwharf = program(options.toolwharf.clone(), "toolwharf")?;
    let server = program(options.server.clone(), "testkit-scripted")?;
    let ledger = tempfile::tempdir().context("cannot create a directory for the servers' files")?;
    // Sandboxed servers run as `nobody` and write to this directory.
    fs::set_permissions(ledger.path(), fs::Permissions::from_mode(0o777))?;
    let settings = format!(
        "[hosting]\nproviders = [\"process\"]\nmounts = [{:?}]\n",
        ledger.path()
    );
    let home = Home::new(&json!({}), &settings)?;
    let place = Arc::new(Place {
        part: home.start(&toolwharf).await?,
        servers: options.servers,
        ledger: ledger.path().to_owned(),
    });
    let done = at_work(&place, &server, &options).await;
    let log = place.part.log();
    let place = Arc::into_inner(place).context("the clients are not done")?;
    place.part.stop().await;
    let mut promises = done.with_context(|| format!("the product's log ends:\n{log}"))?;
    let left = left(NAME_VARIABLE)?;
    promises.push(Promise::new("no process is left after SIGTERM", left));
    let mut kept = true;
    println!();
    for promise in &promises {
        let verdict = if promise.against.is_empty() {
            "held  "
        } else {
            "BROKEN"
        };
        println!("{verdict}  {}", promise.says);
        for what in promise.against.iter().take(5) {
            println!("          {what}");
        }
        if promise.against.len() > 5 {
            println!("          and {} more", promise.against.len() - 5);
        }
        kept &= promise.against.is_empty();
    }
    if !kept {
        println!("\nthe product's log ends:\n{log}");
    }
    Ok(ExitCode::from(u8::from(!kept)))
}

async fn at_work(
    place: &Arc<Place>,
    server: &Path,
    options: &Options,
) -> anyhow::Result<Vec<Promise>> {
    for n in 0..place.servers {
        place.register(n, server).await?;
    }
    place.healed().await.context("before the first harm")?;
    eprintln!(
        "{} servers, {} clients, {} s, seed {}",
        options.servers, options.clients, options.seconds, options.seed
    );
    let (go_on, going) = watch::channel(true);
    let mut clients = JoinSet::new();
    for number in 0..options.clients {
        let (place, going) = (place.clone(), going.clone());
        let seed = options
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(number as u64 + 1);
        clients.spawn(async move { Client::new(number, seed).calls(&place, going).await });
    }
    let mut harms = JoinSet::new();
    let (of_harms, seed) = (place.clone(), options.seed);
    harms.spawn(async move { harm::go_on(&of_harms, seed, going).await });

    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut memory = Vec::new();
    let mut files = Vec::new();
    while Instant::now() < until {
        sleep(Duration::from_secs(1)).await;
        memory.push(proc::private(place.part.pid)? as f64 / 1024.0);
        files.push(proc::descriptors(place.part.pid)? as f64);
        if memory.len().is_multiple_of(60) {
            let last = memory.last().copied().unwrap_or_default();
            eprintln!("  {} s, {last:.1} MB", memory.len());
        }
    }
    go_on.send_replace(false);
    let mut books = Books::default();
    while let Some(ended) = clients.join_next().await {
        let client = ended??;
        books.client(client.number, client.ended);
    }
    let harmed = harms.join_next().await.context("no harm was done")??;
    let mut promises = Vec::new();
    let healed = place.heal().await.err().map(|error| format!("{error:#}"));
    promises.push(Promise::new("every server is back and answers", healed));
    promises.push(Promise::new("every harm ended in time", harmed.overdue));
    for n in 0..place.servers {
        books.ledger(&place.ledger.join(format!("s{n}")))?;
    }
    let mut api = place.part.api().await?;
    books.audit(&mut api).await.context("the audit")?;
    let done = harmed
        .done
        .iter()
        .map(|(what, count)| format!("{what} {count}"));
    println!("harm      {}", done.collect::<Vec<_>>().join(", "));
    println!("calls     {}", books.summary());
    println!("{}", flat("memory", "MB", &memory).0);
    println!("{}", flat("files", "open", &files).0);
    promises.extend(books.promises());
    for (says, what, unit, figures) in [
        ("its memory does not grow", "memory", "MB", &memory),
        (
            "its open files do not grow in number",
            "files",
            "open",
            &files,
        ),
    ] {
        promises.push(Promise::new(says, flat(what, unit, figures).1));
    }
    Ok(promises)
}

/// Fails if the median of the last fifth of the figures exceeds [`MAX_GROWTH`] times that of the second fifth.
fn flat(what: &str, unit: &str, figures: &[f64]) -> (String, Option<String>) {
    let fifth = figures.len() / 5;
    let first = median(figures[fifth..fifth * 2].to_vec());
    let last = median(figures[fifth * 4..].to_vec());
    let most = figures.iter().copied().fold(0.0, f64::max);
    let line =
        format!("{what:<9} {first:.1} {unit} at first, {last:.1} at last, {most:.1} at most");
    // With fewer than five figures, a median is NaN, which passes.
    let grown = last > first * MAX_GROWTH;
    let against = grown.then(|| line.clone());
    (line, against)
}

/// Processes that have the variable in their environment.
fn left(variable: &str) -> anyhow::Result<Vec<String>> {
    let found = proc::with_variable(&format!("{variable}="))?;
    Ok(found
        .into_iter()
        .map(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!(
                "process {pid}: {}",
                String::from_utf8_lossy(&command).replace('\0', " ")
            )
        })
        .collect())
}

impl Place {
    async fn register(&self, n: usize, server: &Path) -> anyhow::Result<()> {
        let name = format!("s{n}");
        let entry = json!({
            "name": name,
            "command": server,
            "environment": { NAME_VARIABLE: name },
            "mounts": [{ "host": self.ledger, "path": "/ledger", "read_only": false }],
            "resource_limits": { "memory": "64M", "pids": 64 },
            "call_timeout_ms": CALL_TIMEOUT_MS,
            // Half of the servers take one call at a time, as most servers do. The others take several.
            "max_concurrency": if n.is_multiple_of(2) { 1 } else { 8 },
            "heartbeat": { "interval_ms": 2000, "timeout_ms": 1000, "misses": 2 },
        });
        self.part.api().await?.register(&entry).await
    }

    /// Restarts every server, and returns once each of them has responded.
    async fn heal(&self) -> anyhow::Result<()> {
        let mut api = self.part.api().await?;
        for n in 0..self.servers {
            api.order(&format!("s{n}"), "restart").await?;
        }
        self.healed().await
    }

    async fn healed(&self) -> anyhow::Result<()> {
        let mut api = self.part.api().await?;
        let deadline = Instant::now() + HEAL_DEADLINE;
        for n in 0..self.servers {
            let (server, back) = (format!("s{n}"), json!({ "back": n }));
            while let Err(error) = api.call(&server, "echo", &back).await {
                anyhow::ensure!(Instant::now() < deadline, "{server} is down: {error:#}");
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

struct Client {
    number: usize,
    random: SmallRng,
    /// For each call of this client, the server and the outcome.
    ended: Vec<(usize, Ended)>,
}

impl Client {
    fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            random: SmallRng::seed_from_u64(seed),
            ended: Vec::new(),
        }
    }

    /// Calls one server after the other until it is asked to stop. Every second client speaks MCP.
    async fn calls(mut self, place: &Place, going: watch::Receiver<bool>) -> anyhow::Result<Self> {
        let mut api = place.part.api().await?;
        while *going.borrow() {
            let server = self.random.random_range(0..place.servers);
            let call = format!("c{}-{}", self.number, self.ended.len());
            let asking = match self.number % 2 {
                0 => bridged(&api, server, &call)?,
                _ => over_mcp(&api, server, &call)?,
            };
            let ended = match timeout(CALL_DEADLINE, api.send(asking)).await {
                Ok(Ok((status, body))) => read(status, &body, &call),
                Ok(Err(error)) => Ended::Broken(format!("{error:#}")),
                Err(_) => Ended::Overdue,
            };
            if matches!(ended, Ended::Broken(_) | Ended::Overdue) {
                api = place.part.api().await?;
            }
            self.ended.push((server, ended));
            let pause = self.random.random_range(Duration::ZERO..MAX_CLIENT_PAUSE);
            sleep(pause).await;
        }
        Ok(self)
    }
}

/// The arguments of a call, exactly as sent. The audit log contains their digest.
fn arguments(server: usize, call: &str) -> String {
    format!(r#"{{"path":"/ledger/s{server}","text":"{call}"}}"#)
}

fn bridged(api: &Api, server: usize, call: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    let body = format!(
        r#"{{"method":"tools/call","params":{{"name":"append","arguments":{}}}}}"#,
        arguments(server, call)
    );
    let path = format!("/api/v1/mcp/servers/s{server}/call");
    Ok(api.request(Method::POST, &path).body(body.into())?)
}

fn over_mcp(api: &Api, server: usize, call: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    let name = format!("s{server}__append");
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":"{call}","method":"tools/call","params":{{"name":"{name}","arguments":{},{MODERN_META}}}}}"#,
        arguments(server, call)
    );
    Ok(api
        .request(Method::POST, "/mcp")
        .header(ACCEPT, "application/json, text/event-stream")
        .header(&VERSION, MODERN_VERSION)
        .header(&METHOD, "tools/call")
        .header(&NAME, name)
        .body(body.into())?)
}

/// Classifies a response.
fn read(status: StatusCode, body: &[u8], call: &str) -> Ended {
    let last = match body.first() {
        Some(b'{') => None,
        _ => answer_in_stream(body),
    };
    let body = last.as_deref().unwrap_or(body);
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Ended::Wrong(format!("{status}: {}", String::from_utf8_lossy(body)));
    };
    let id = &answer["id"];
    let foreign = !id.is_null() && *id != call;
    let result = &answer["result"];
    if foreign || (!result.is_null() && result["content"][0]["text"] != call) {
        return Ended::Wrong(format!("{call} was answered with {answer}"));
    }
    if !result.is_null() {
        return Ended::Good;
    }
    // A JSON-RPC error, or the JSON-RPC error inside HTTP problem details.
    let data = [&answer["error"]["data"], &answer["mcp"]["data"]];
    let reason = data.iter().find_map(|data| data["reason"].as_str());
    match reason {
        Some(reason) => Ended::Failed(reason.to_owned()),
        None => Ended::Wrong(format!("{call} failed without a reason: {answer}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_for_what_it_says() {
        let read = |body: &str| read(StatusCode::OK, body.as_bytes(), "c1-7");
        let good =
            r#"{"jsonrpc":"2.0","id":"c1-7","result":{"content":[{"type":"text","text":"c1-7"}]}}"#;
        assert!(matches!(read(good), Ended::Good));
        assert!(matches!(read(&format!("data: {good}\n\n")), Ended::Good));
        assert!(matches!(
            read(&good.replace(r#""text":"c1-7""#, r#""text":"c1-8""#)),
            Ended::Wrong(_)
        ));
        assert!(matches!(
            read(&good.replace(r#""id":"c1-7""#, r#""id":"c2-7""#)),
            Ended::Wrong(_)
        ));
        let failed =
            r#"{"id":"c1-7","error":{"code":-32603,"message":"m","data":{"reason":"timeout"}}}"#;
        assert!(matches!(read(failed), Ended::Failed(reason) if reason == "timeout"));
        assert!(matches!(
            read(r#"{"id":"c1-7","error":{"code":1}}"#),
            Ended::Wrong(_)
        ));
        assert!(matches!(read(""), Ended::Wrong(_)));
    }

    #[test]
    fn what_grows_is_not_flat() {
        let grows: Vec<f64> = (0..100).map(|n| 20.0 + f64::from(n)).collect();
        assert!(flat("memory", "MB", &grows).1.is_some());
        assert!(flat("memory", "MB", &[20.0; 100]).1.is_none());
    }
}
