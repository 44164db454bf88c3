//! `host`: servers that the gateway runs in sandboxes and keeps running.
//!
//! Invariants: a variable's value may come from the environment of the command line (`--env KEY`), so that no
//! secret has to stand among arguments; what the gateway finds wrong is said in the words of the flags that were
//! typed. Deliberately absent: changing a registration, for which there is the API (`PUT`).

use std::{collections::HashMap, env, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, header};
use mcp::{Frame, sse::Parser};
use model::{ProjectId, Provider, RestartPolicy, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    Context, No, Output, Reach, Usage,
    add::stdin,
    call::progress,
    http::{Api, Refused, path},
    logs, print,
};
use crate::rest::{Problem, Wrong};

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
    Add(Box<AddArgs>),
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
pub(super) struct AddArgs {
    name: ServerName,
    /// The image to run; without it, COMMAND is a program of the gateway's host.
    #[arg(long)]
    image: Option<String>,
    /// A variable for the server; `KEY` alone takes its value from the environment here. '${SECRET}' in a value
    /// stands for a secret of the project. May be given several times.
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// A path inside that is kept over restarts; may be given several times.
    #[arg(long, value_name = "PATH")]
    volume: Vec<String>,
    /// A path of the host that the server sees, if the gateway's settings allow it; may be given several times.
    #[arg(long, value_name = "HOST:PATH[:rw]")]
    mount: Vec<String>,
    /// Cores that it may use, as 0.5 or 500m.
    #[arg(long, value_name = "CORES")]
    cpu: Option<String>,
    /// Memory that it may use, as 512M or 1Gi.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// What it may write, as 1Gi.
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// Processes and threads that it may have.
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Do not start it where one of the limits cannot be enforced.
    #[arg(long)]
    strict: bool,
    /// What runs it: gvisor, firecracker, runc or process; without it, the strongest that there is.
    #[arg(long)]
    provider: Option<Provider>,
    /// When it is started again: always, on-failure, unless-stopped or no.
    #[arg(long, value_name = "POLICY")]
    restart: Option<RestartPolicy>,
    /// What it reaches: nothing, or all that the host reaches.
    #[arg(long, value_enum, conflicts_with = "allow")]
    network: Option<Network>,
    /// A host that it reaches, as api.example.com, api.example.com:443 or '*.example.com', and no others; may be
    /// given several times.
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
    /// A port that it listens on inside; may be given several times.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,
    /// It speaks HTTP at its first port, not JSON lines on its standard streams.
    #[arg(long, requires = "port")]
    http: bool,
    /// Where its MCP endpoint is over HTTP; without it, /mcp.
    #[arg(long, requires = "http")]
    path: Option<String>,
    /// Calls that it gets at the same time.
    #[arg(long, value_name = "N")]
    max_concurrency: Option<u64>,
    /// How long a call may take, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// The project that it belongs to; without it, to none.
    #[arg(long)]
    project: Option<ProjectId>,
    /// Do not wait until it is up.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    reach: Reach,
    /// A program and its arguments.
    #[arg(last = true, required_unless_present = "image", value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Network {
    None,
    Open,
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
        Command::Add(args) => add(context, *args).await,
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

async fn add(context: &Context, args: AddArgs) -> anyhow::Result<()> {
    let here = |name: &str| env::var(name).ok();
    let entry = entry(&args, here)?;
    let api = args.reach.gateway(context).await?;
    let to = format!("{}?wait={}", path(&["mcp", "servers"]), !args.no_wait);
    let answer: Value = api
        .post(&to, &entry)
        .await
        .map_err(|error| said_of_flags(error, &args))?;
    let server: Hosted = typed(&answer)?;
    eprintln!("registered `{}`, id {}", server.name, server.id);
    said(&server);
    whole(context, &answer)
}

/// The body of a registration; `here` tells the variables of this process.
fn entry(args: &AddArgs, here: impl Fn(&str) -> Option<String>) -> Result<Value, Usage> {
    let mut environment = Map::new();
    for text in &args.env {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = here(text).ok_or_else(|| {
                    Usage(format!(
                        "--env {text}: `{text}` is not set here, or is no UTF-8: export it, or write {text}=VALUE"
                    ))
                })?;
                (text.as_str(), value)
            }
        };
        if environment.insert(name.to_owned(), value.into()).is_some() {
            return Err(Usage(format!("--env {name}: it is given twice")));
        }
    }
    let mounts = args.mount.iter().map(|text| mount(text));
    let mounts: Vec<Value> = mounts.collect::<Result<_, _>>()?;
    let network = match args.network {
        _ if !args.allow.is_empty() => json!({ "allow": args.allow }),
        Some(Network::None) => "none".into(),
        Some(Network::Open) => "open".into(),
        None => Value::Null,
    };
    let ms = args.timeout.map(|seconds| seconds * 1000);
    let bridge = args.http.then_some(false);
    let strict = args.strict.then_some(true);
    let limits = json!({
        "cpu": args.cpu, "memory": args.memory, "disk": args.disk, "pids": args.pids, "strict": strict,
    });
    let entry = json!({
        "name": args.name,
        "image": args.image,
        "command": args.command,
        "environment": environment,
        "volumes": args.volume,
        "mounts": mounts,
        "resource_limits": given(limits),
        "provider": args.provider.map(|provider| provider.to_string()),
        "restart_policy": args.restart.map(|policy| policy.to_string()),
        "network": network,
        "ports": args.port,
        "stdio_bridge": bridge,
        "path": args.path,
        "max_concurrency": args.max_concurrency,
        "call_timeout_ms": ms,
        "project": args.project,
    });
    Ok(given(entry))
}

/// An object without what was not given.
fn given(mut object: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => true,
        });
    }
    object
}

fn mount(text: &str) -> Result<Value, Usage> {
    let wrong = || {
        Usage(format!(
            "--mount {text}: write HOST:PATH, or HOST:PATH:rw where the server may write"
        ))
    };
    let (rest, read_only) = match (text.strip_suffix(":rw"), text.strip_suffix(":ro")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => (text, true),
    };
    let (host, inside) = rest.split_once(':').ok_or_else(wrong)?;
    if host.is_empty() || inside.is_empty() || inside.contains(':') {
        return Err(wrong());
    }
    Ok(json!({ "host": host, "path": inside, "read_only": read_only }))
}

/// What the gateway found wrong, each with the flag that it came from.
fn said_of_flags(error: anyhow::Error, args: &AddArgs) -> anyhow::Error {
    let Some(refused) = error.downcast_ref::<Refused>() else {
        return error;
    };
    if refused.wrong.is_empty() {
        return error;
    }
    let one = |wrong: &Wrong| format!("{}: {}", flag(&wrong.pointer, args), wrong.detail);
    let each: Vec<String> = refused.wrong.iter().map(one).collect();
    match each.as_slice() {
        [only] => anyhow::anyhow!("cannot host `{}`: {only}", args.name),
        each => anyhow::anyhow!("cannot host `{}`:\n  {}", args.name, each.join("\n  ")),
    }
}

/// The flag behind a place in a registration, with its value where there may be several.
fn flag(pointer: &str, args: &AddArgs) -> String {
    let with = |flag: &str, values: &[String], at: &str| {
        let value = at.parse().ok().and_then(|at: usize| values.get(at));
        value.map_or_else(|| flag.to_owned(), |value| format!("{flag} {value}"))
    };
    let mut parts = pointer.split('/').skip(1);
    let (first, rest) = (parts.next().unwrap_or_default(), parts.last());
    let at = rest.unwrap_or_default();
    match (first, at) {
        ("", _) => "the registration".to_owned(),
        ("name", _) => "NAME".to_owned(),
        ("image", _) => "--image".to_owned(),
        ("command" | "args", _) => "COMMAND".to_owned(),
        // Not its value: that may be a secret.
        ("environment", "") => "--env".to_owned(),
        ("environment", name) => format!("--env {name}"),
        ("volumes", at) => with("--volume", &args.volume, at),
        ("mounts", at) => with("--mount", &args.mount, at),
        ("resource_limits", "") => "the limits".to_owned(),
        ("resource_limits", name) => format!("--{name}"),
        ("restart_policy", _) => "--restart".to_owned(),
        ("network", at) if !args.allow.is_empty() => with("--allow", &args.allow, at),
        ("ports", _) => "--port".to_owned(),
        ("stdio_bridge", _) => "--http".to_owned(),
        ("call_timeout_ms", _) => "--timeout".to_owned(),
        ("provider" | "network" | "path" | "max_concurrency" | "project", _) => {
            format!("--{}", first.replace('_', "-"))
        }
        _ => format!("`{pointer}`"),
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AddArgs,
    }

    fn parsed(line: &str) -> AddArgs {
        let words = ["add"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).expect("it parses").args
    }

    fn here(name: &str) -> Option<String> {
        (name == "TOKEN").then(|| "from here".to_owned())
    }

    #[test]
    fn only_what_was_given_is_sent() {
        let body = entry(&parsed("a -- run --fast"), here).expect("it is right");
        assert_eq!(body, json!({"name": "a", "command": ["run", "--fast"]}));
        let line = "a --image i --env TOKEN --env A=b=c --volume /v --mount /h:/in --mount /h:/out:rw --cpu 500m \
                    --memory 64M --disk 1Gi --pids 9 --strict --provider gvisor --restart on-failure --allow x.test \
                    --port 80 --http --path /m --max-concurrency 2 --timeout 3 --project p";
        let body = entry(&parsed(line), here).expect("it is right");
        let expect = json!({
            "name": "a", "image": "i", "project": "p",
            "environment": {"TOKEN": "from here", "A": "b=c"},
            "volumes": ["/v"],
            "mounts": [
                {"host": "/h", "path": "/in", "read_only": true},
                {"host": "/h", "path": "/out", "read_only": false},
            ],
            "resource_limits": {"cpu": "500m", "memory": "64M", "disk": "1Gi", "pids": 9, "strict": true},
            "provider": "gvisor", "restart_policy": "on-failure",
            "network": {"allow": ["x.test"]},
            "ports": [80], "stdio_bridge": false, "path": "/m",
            "max_concurrency": 2, "call_timeout_ms": 3000,
        });
        assert_eq!(body, expect);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (line, says) in [
            ("a --env NONE -- x", "--env NONE"),
            ("a --env A=1 --env A=2 -- x", "twice"),
            ("a --mount /h -- x", "HOST:PATH"),
            ("a --mount :/h -- x", "HOST:PATH"),
            ("a --mount /h:/i:/j -- x", "HOST:PATH"),
        ] {
            let error = entry(&parsed(line), here).expect_err(line).to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn places_are_said_as_flags() {
        let args = parsed("a --volume /one --volume /two --allow h --mount /h:/i -- x");
        for (pointer, expect) in [
            ("/name", "NAME"),
            ("/volumes/1", "--volume /two"),
            ("/volumes", "--volume"),
            ("/mounts/0", "--mount /h:/i"),
            ("/network/allow/0", "--allow h"),
            ("/environment/A", "--env A"),
            ("/resource_limits/memory", "--memory"),
            ("/call_timeout_ms", "--timeout"),
            ("/max_concurrency", "--max-concurrency"),
            ("/ports/0", "--port"),
            ("/of/later", "`/of/later`"),
        ] {
            assert_eq!(flag(pointer, &args), expect, "{pointer}");
        }
    }

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
