//! `host`: servers that the gateway runs in sandboxes and keeps running.
//!
//! All of it goes over the API of the running gateway. `add` is in a file of its own.

mod add;
mod shown;

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, header};
use mcp::{Frame, sse::Parser};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use self::shown::{Event, Hosted, cells, detail, fields, said};
use super::{
    Context, No, Output, Reach, Usage,
    add::stdin,
    call::progress,
    http::{Api, path},
    logs,
    pages::{self, Lines},
    print,
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
    #[command(flatten)]
    lines: Lines,
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

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = args.reach.gateway(context).await?;
    let answer: Value = api.get(&of_host(&args.name, "")).await?;
    if context.output == Output::Json {
        return print::json(&answer);
    }
    print::data(&fields(&typed(&answer)?))
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
    let cells = |event: &Event| {
        [
            print::time(event.at),
            event.kind.clone(),
            detail(&event.detail),
        ]
    };
    let all = of_host(&args.name, "events");
    let head = ["TIME", "EVENT", "DETAIL"];
    let none = "nothing has happened yet";
    let listed = pages::list(&api, &all, &[], &args.lines).await?;
    listed.print(context, none, head, cells)
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
        parser.push(chunk);
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
