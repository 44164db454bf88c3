//! `host`: servers that the gateway runs in sandboxes and keeps running.
//!
//! All of it goes over the API of the running gateway. `add` is in a file of its own.

mod add;

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, header};
use mcp::{Frame, sse::Parser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    Context, No, Output, Reach, Usage,
    add::stdin,
    call::progress,
    http::{Api, path},
    logs, print,
};
use crate::rest::Problem;

/// Longest time of a call, in seconds; the gateway allows no more.
const LONGEST: u64 = 3_600;
/// What a call may take on the way, beside its own time.
const GRACE: Duration = Duration::from_secs(30);
/// Longest message of a call, in bytes.
const LARGEST: usize = 256 << 20;
const DEPTH: usize = 512;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Register a server and start it: `host add NAME -- COMMAND ARGS…` or `host add NAME --image IMAGE`.
    Add(Box<add::Args>),
    /// List the hosted servers and how they are.
    Ls(ListArgs),
    /// Show one hosted server.
    Get(NameArgs),
    /// Stop a server and forget it; its volumes are kept.
    Rm(RemoveArgs),
    /// Start a server that is stopped, or in backoff.
    Start(NameArgs),
    /// Stop a server until it is started again.
    Stop(NameArgs),
    /// Stop a server and start it anew.
    Restart(NameArgs),
    /// Show what a server writes to standard error.
    Logs(LogsArgs),
    /// Show what happened to a server, newest first.
    Events(EventsArgs),
    /// Send a server one request, by its own names: `host call NAME tools/list`.
    Call(CallArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// Its name, or its id.
    name: String,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct RemoveArgs {
    /// Its name, or its id.
    name: String,
    /// Remove its volumes with all that is in them.
    #[arg(long)]
    volumes: bool,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct LogsArgs {
    /// Its name, or its id.
    name: String,
    /// Go on with what it writes from now on, over its restarts.
    #[arg(long, short)]
    follow: bool,
    /// How many lines of what it wrote before.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 200)]
    tail: usize,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct EventsArgs {
    /// Its name, or its id.
    name: String,
    /// How many of the newest.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=500))]
    lines: u32,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct CallArgs {
    /// Its name, or its id.
    name: String,
    /// The method, as tools/call.
    method: String,
    /// Its parameters: a JSON object; `-` reads it from standard input.
    params: Option<String>,
    /// How long the server may take, in seconds; without it, as it is registered.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    timeout: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

/// What is shown of a server; JSON shows all of it, as the API has it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Hosted {
    id: String,
    name: String,
    project: Option<String>,
    status: String,
    reason: Option<String>,
    image: Option<String>,
    command: Option<String>,
    stdio_bridge: bool,
    restart_policy: String,
    provider: Option<String>,
    provider_reason: Option<String>,
    enforced: Vec<Enforced>,
    uptime_seconds: Option<u64>,
    restart_count: u64,
    last_crash: Option<Crash>,
    next_attempt_ms: Option<u64>,
    warnings: u64,
    usage: Option<Used>,
    resource_limits: Limits,
    ports: Vec<Port>,
    volumes: Vec<String>,
    environment: Vec<String>,
    network: Value,
    in_flight: usize,
    waiting: usize,
    calls: u64,
    errors: u64,
    tools: usize,
}

#[derive(Deserialize)]
struct Enforced {
    what: String,
    holds: bool,
    how: String,
}

#[derive(Deserialize)]
struct Crash {
    at: u64,
    cause: String,
}

#[derive(Deserialize)]
struct Used {
    cpu: Option<f64>,
    memory: u64,
    memory_peak: u64,
    pids: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    cpu: f64,
    memory: u64,
    disk: u64,
    pids: u32,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
    address: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Events {
    events: Vec<Event>,
    next: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Event {
    id: String,
    kind: String,
    detail: Value,
    at: store::Time,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add(args) => add::run(context, *args).await,
        Command::Ls(args) => list(context, &args.reach).await,
        Command::Get(args) => show(context, args).await,
        Command::Rm(args) => remove(context, args).await,
        Command::Start(args) => order(context, args, "start", "started").await,
        Command::Stop(args) => order(context, args, "stop", "stopped").await,
        Command::Restart(args) => order(context, args, "restart", "restarted").await,
        Command::Logs(args) => {
            let api = args.reach.gateway(context).await?;
            logs::show(&api, &of_host(&args.name, "logs"), args.tail, args.follow).await
        }
        Command::Events(args) => events(context, args).await,
        Command::Call(args) => call(context, args).await,
    }
}

/// The path of a hosted server, or of something of it.
fn of_host(name: &str, of_it: &str) -> String {
    match of_it {
        "" => path(&["mcp", "servers", name]),
        of_it => path(&["mcp", "servers", name, of_it]),
    }
}

fn typed<T: for<'de> Deserialize<'de>>(answer: &Value) -> anyhow::Result<T> {
    T::deserialize(answer).context("the gateway's answer is none of this version of Toolwharf")
}

/// All of an answer, where JSON is wanted.
fn whole(context: &Context, answer: &Value) -> anyhow::Result<()> {
    if context.output == Output::Json {
        print::json(answer)?;
    }
    Ok(())
}

/// How a server is, in words for people.
fn said(server: &Hosted) {
    let mut line = match server.status.as_str() {
        "backoff" => "it is in backoff".to_owned(),
        status => format!("it is {status}"),
    };
    if let (Some(provider), "running") = (&server.provider, server.status.as_str()) {
        line.push_str(&format!(" under {provider}, with {} tools", server.tools));
    }
    if let Some(reason) = &server.reason {
        line.push_str(&format!(": {reason}"));
    }
    if let Some(ms) = server.next_attempt_ms {
        line.push_str(&format!("; next attempt in {}", print::duration(ms)));
    }
    eprintln!("{}", print::printable(&line));
    if matches!(server.status.as_str(), "backoff" | "failed" | "restarting") {
        eprintln!(
            "`toolwharf host logs {}` shows what it wrote, `toolwharf host events {0}` what happened",
            server.name
        );
    }
    let broken = server.enforced.iter().filter(|one| !one.holds);
    for one in broken.filter(|_| server.status == "running") {
        let line = format!("does not hold: {}: {}", one.what, one.how);
        eprintln!("{}", print::printable(&line));
    }
}

async fn list(context: &Context, reach: &Reach) -> anyhow::Result<()> {
    let api = reach.gateway(context).await?;
    let answer: Value = api.get(&path(&["mcp", "servers"])).await?;
    let servers = &answer["servers"];
    if context.output == Output::Json {
        return print::json(servers);
    }
    let servers: Vec<Hosted> = typed(servers)?;
    if servers.is_empty() {
        eprintln!("there are no hosted servers yet; `toolwharf host add NAME -- COMMAND` adds one");
    }
    let cells: Vec<[String; 9]> = servers.iter().map(cells).collect();
    let head = [
        "NAME", "PROJECT", "STATUS", "PROVIDER", "UP", "RESTARTS", "CALLS", "MEMORY", "REASON",
    ];
    print::data(&print::table(head, &cells))
}

fn cells(server: &Hosted) -> [String; 9] {
    let up = server.uptime_seconds.map(|up| print::duration(up * 1000));
    let memory = server.usage.as_ref().map(|used| size(used.memory));
    [
        server.name.clone(),
        server.project.clone().unwrap_or_default(),
        server.status.clone(),
        server.provider.clone().unwrap_or_default(),
        up.unwrap_or_default(),
        server.restart_count.to_string(),
        server.calls.to_string(),
        memory.unwrap_or_default(),
        print::short(server.reason.as_deref().unwrap_or_default(), 80),
    ]
}

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let answer: Value = api.get(&of_host(&args.name, "")).await?;
    if context.output == Output::Json {
        return print::json(&answer);
    }
    print::data(&fields(&typed(&answer)?))
}

fn fields(server: &Hosted) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let crash = server.last_crash.as_ref().map(|crash| {
        let ago = store::now().timestamp().unsigned_abs();
        let ago = print::duration(ago.saturating_sub(crash.at).saturating_mul(1000));
        format!("{ago} ago: {}", crash.cause)
    });
    let used = server.usage.as_ref().map(|used| {
        let cpu = used.cpu.map(|cpu| format!("{cpu:.2} cores, "));
        format!(
            "{}{} (at most {} so far), {} processes and threads",
            cpu.unwrap_or_default(),
            size(used.memory),
            size(used.memory_peak),
            used.pids
        )
    });
    let limits = &server.resource_limits;
    let port = |port: &Port| match &port.address {
        Some(address) => format!("{} at {address}", port.port),
        None => port.port.to_string(),
    };
    let ports: Vec<String> = server.ports.iter().map(port).collect();
    let network = match server.network["allow"].as_array() {
        Some(hosts) => {
            let hosts: Vec<&str> = hosts.iter().filter_map(Value::as_str).collect();
            format!("only {}", hosts.join(", "))
        }
        None => server.network.as_str().unwrap_or_default().to_owned(),
    };
    let next = server.next_attempt_ms;
    let up = server.uptime_seconds;
    let spoken = if server.stdio_bridge {
        "its standard streams"
    } else {
        "HTTP"
    };
    let mut out = print::fields(&[
        ("name", server.name.clone()),
        ("id", server.id.clone()),
        ("project", text(&server.project)),
        ("status", server.status.clone()),
        ("reason", text(&server.reason)),
        (
            "next attempt in",
            next.map(print::duration).unwrap_or_default(),
        ),
        (
            "up for",
            up.map(|up| print::duration(up * 1000)).unwrap_or_default(),
        ),
        (
            "restarts",
            format!("{}, policy {}", server.restart_count, server.restart_policy),
        ),
        ("last crash", crash.unwrap_or_default()),
        ("warnings", server.warnings.to_string()),
        ("image", text(&server.image)),
        ("command", text(&server.command)),
        ("spoken to over", spoken.to_owned()),
        ("provider", text(&server.provider)),
        ("because", text(&server.provider_reason)),
        ("uses", used.unwrap_or_default()),
        (
            "limits",
            format!(
                "{} cores, {} of memory, {} of disk, {} processes and threads",
                limits.cpu,
                size(limits.memory),
                size(limits.disk),
                limits.pids
            ),
        ),
        ("ports", ports.join(", ")),
        ("volumes", server.volumes.join(", ")),
        ("environment", server.environment.join(", ")),
        ("network", network),
        (
            "calls",
            format!(
                "{}, {} errors; {} at work, {} waiting",
                server.calls, server.errors, server.in_flight, server.waiting
            ),
        ),
        ("tools", server.tools.to_string()),
    ]);
    for one in &server.enforced {
        let holds = if one.holds { "holds" } else { "does not hold" };
        let line = format!("{} {holds}: {}", one.what, one.how);
        out.push_str(&print::fields(&[("enforced", line)]));
    }
    out
}

/// Bytes in the largest unit that leaves a number before the point.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len() - 1)
        .find(|unit| bytes >> (10 * (unit + 1)) == 0)
        .unwrap_or(units.len() - 1);
    let whole = bytes >> (10 * unit);
    let tenths = match unit {
        0 => 0,
        _ => (bytes >> (10 * (unit - 1)) & 1023) * 10 / 1024,
    };
    match tenths {
        0 => format!("{whole} {}", units[unit]),
        tenths => format!("{whole}.{tenths} {}", units[unit]),
    }
}

async fn remove(context: &Context, args: RemoveArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let of_it = format!("{}?volumes={}", of_host(&args.name, ""), args.volumes);
    api.delete::<Value>(&of_it).await?;
    let volumes = if args.volumes {
        " with its volumes"
    } else {
        ""
    };
    eprintln!("removed `{}`{volumes}", args.name);
    Ok(())
}

async fn order(context: &Context, args: NameArgs, verb: &str, done: &str) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let answer: Value = api.post(&of_host(&args.name, verb), &json!({})).await?;
    let server: Hosted = typed(&answer)?;
    eprintln!("{done} `{}`", server.name);
    said(&server);
    whole(context, &answer)
}

async fn events(context: &Context, args: EventsArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let page = format!("{}?limit={}", of_host(&args.name, "events"), args.lines);
    let page: Events = api.get(&page).await?;
    if context.output == Output::Json {
        return print::json(&page.events);
    }
    if page.next.is_some() {
        eprintln!("there are older ones; --lines shows up to 500");
    }
    let cells: Vec<[String; 3]> = page
        .events
        .iter()
        .map(|event| {
            [
                print::time(event.at),
                event.kind.clone(),
                detail(&event.detail),
            ]
        })
        .collect();
    print::data(&print::table(["TIME", "EVENT", "DETAIL"], &cells))
}

/// An event in a line; JSON has all of it.
fn detail(value: &Value) -> String {
    let Some(message) = value["message"].as_str() else {
        return match value {
            Value::Null => String::new(),
            value => value.to_string(),
        };
    };
    let last = value["stderr"]
        .as_str()
        .and_then(|text| text.lines().last());
    match last {
        Some(line) => format!("{message} | {}", print::short(line, 80)),
        None => message.to_owned(),
    }
}

/// One request. It is asked for as a stream: its head comes at once, and progress is heard of.
async fn call(context: &Context, args: CallArgs) -> anyhow::Result<()> {
    let params = match args.params.as_deref() {
        None => None,
        Some("-") => Some(stdin()?),
        Some(text) => Some(text.to_owned()),
    };
    let mut body = HashMap::from([("method", json!(args.method))]);
    if let Some(seconds) = args.timeout {
        body.insert("timeout_ms", json!(seconds * 1000));
    }
    let mut body = serde_json::to_string(&body)?;
    if let Some(params) = params {
        mcp::json::validate(params.as_bytes(), DEPTH)
            .map_err(|fault| Usage(format!("the parameters are not usable JSON: {fault}")))?;
        if mcp::json::Object::of(params.as_bytes()).is_none() {
            let form = "the parameters are no JSON object: write '{\"key\": \"value\"}'";
            return Err(Usage(form.into()).into());
        }
        // As they were written: numbers stay what they are.
        body.truncate(body.len() - 1);
        body.push_str(&format!(",\"params\":{params}}}"));
    }
    let api = args.reach.gateway(context).await?;
    let limit = args.timeout.unwrap_or(LONGEST);
    let until = Instant::now() + Duration::from_secs(limit) + GRACE;
    let path = of_host(&args.name, "call");
    let asked = asked(&api, &path, body.into());
    let Ok(result) = timeout_at(until, asked).await else {
        bail!("no answer within {limit} s");
    };
    let result = result?;
    let shown: Value = serde_json::from_slice(&result)
        .context("the gateway's answer is none of this version of Toolwharf")?;
    if context.output == Output::Json {
        // Byte for byte what the server said.
        print::foreign(&(String::from_utf8_lossy(&result).into_owned() + "\n"))?;
    } else {
        print::foreign(&(serde_json::to_string_pretty(&shown)? + "\n"))?;
    }
    if shown["isError"] == true {
        eprintln!("the tool reports an error");
        return Err(No.into());
    }
    Ok(())
}

async fn asked(api: &Api, path: &str, body: Bytes) -> anyhow::Result<Vec<u8>> {
    let stream = [(header::ACCEPT, "text/event-stream")];
    let mut answer = api.open(Method::POST, path, body, &stream).await?;
    let mut parser = Parser::new(LARGEST);
    loop {
        let Some(Ok(frame)) = answer.body.frame().await else {
            bail!("the gateway ended before the call did; what became of it is not known");
        };
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        parser.push(&chunk);
        while let Some(event) = parser.next_event()? {
            match event.event.as_str() {
                "result" => return Ok(event.data.to_vec()),
                "error" => return Err(failed(&event.data)),
                _ => {
                    if let Ok(frame) = Frame::parse(event.data, DEPTH) {
                        progress(&frame);
                    }
                }
            }
        }
    }
}

/// What a call ended with, as the server said it.
fn failed(text: &[u8]) -> anyhow::Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(text) else {
        return anyhow::anyhow!("the call failed, and why cannot be read");
    };
    match problem.mcp {
        Some(error) => {
            let data = error.data.map(|data| format!("\n{data}"));
            let data = data.unwrap_or_default();
            anyhow::anyhow!("{} (code {}){data}", problem.detail, error.code)
        }
        None => anyhow::anyhow!("{}", problem.detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, expect) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size(bytes), expect);
        }
    }
}
