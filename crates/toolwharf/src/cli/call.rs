//! `tools call`: calls a tool over MCP, as a client does.

use std::time::Duration;

use anyhow::{Context as _, bail};
use mcp::{
    Era, Frame, Kind, RpcError,
    client::{CallerId, Client, Connector, Event, Identity, Options, Outgoing, Target},
    json::{Object, quote},
    protocol::method,
};
use serde_json::{Map, Value};

use super::{Context, No, Output, Usage, http::escaped, names, print, tool_lookup};
use crate::cli::prompt::stdin;

/// Maximum size of a response, in bytes.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_DEPTH: usize = 512;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The tool as `tools ls` shows it: its name, or SERVER/TOOL.
    #[arg(add = names::tools())]
    name: String,
    /// The arguments as a JSON object. `-` reads them from standard input.
    arguments: Option<String>,
    /// One argument, KEY=VALUE. A value that is not JSON is a string. May be given several times.
    #[arg(long = "arg", short, value_name = "KEY=VALUE")]
    arg: Vec<String>,
    /// Use the tools as this project sees them.
    #[arg(long, add = names::projects())]
    project: Option<model::ProjectId>,
    /// Use only this server, with unprefixed names.
    #[arg(long)]
    server: Option<model::ServerName>,
    /// Timeout for the result, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let arguments = arguments(&args)?;
    let api = context.gateway().await?;
    let mut name = args.name.clone();
    if args.server.is_none() && name.contains('/') {
        let tool = tool_lookup::find(&api, args.project.as_ref(), &name).await?;
        let exposed = tool.exposed().map(str::to_owned);
        name = exposed.with_context(|| {
            format!(
                "clients cannot see the tool `{}`; `toolwharf tools ls` shows its state",
                args.name
            )
        })?;
    }
    let mut url = format!("{}/mcp", api.url);
    match (&args.project, &args.server) {
        (None, None) => {}
        (Some(project), None) => url.push_str(&format!("/{project}")),
        (project, Some(server)) => {
            let project = project.as_ref().map_or("-", model::ProjectId::as_str);
            url.push_str(&format!("/{project}/{}", escaped(server.as_str())));
        }
    }
    let headers = api
        .token
        .iter()
        .map(|token| ("authorization".to_owned(), format!("Bearer {token}")));
    let target = Target::Http {
        url,
        headers: headers.collect(),
    };
    let options = Options {
        label: "gateway".into(),
        identity: Identity {
            name: "toolwharf-cli".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            chain: None,
        },
        capabilities: "{}".into(),
        // The legacy era needs only one session, and no headers that repeat the arguments.
        era: Some(Era::Legacy),
        max_message: MAX_RESPONSE_BYTES,
        max_depth: MAX_DEPTH,
        timeout: HANDSHAKE_TIMEOUT,
        public_only: false,
        authorize: None,
        sign: None,
    };
    let connected = Connector::direct().connect(target, &options).await;
    let (client, _ambient) =
        connected.with_context(|| format!("cannot connect to the gateway at {}", api.url))?;
    let limit = Duration::from_secs(args.timeout.min(30 * 24 * 3600));
    let called = tokio::time::timeout(limit, call(&client, &name, &arguments)).await;
    client.close(CLOSE_TIMEOUT).await;
    let Ok(frame) = called else {
        bail!(
            "no result within {} s; --timeout increases the limit",
            args.timeout
        );
    };
    let frame = frame?;
    if frame.kind() == Kind::Error && args.server.is_none() {
        let error = RpcError::from_json(frame.body());
        let is_unknown = error.message.starts_with("Unknown tool");
        // The error suggests a similar name.
        if is_unknown && let Err(more) = tool_lookup::find(&api, args.project.as_ref(), &name).await
        {
            bail!("{error}: {more}");
        }
    }
    shown(context, &frame)
}

async fn call(client: &Client, name: &str, arguments: &str) -> anyhow::Result<Frame> {
    let params = format!(
        "{{\"name\":{},\"arguments\":{arguments},\"_meta\":{{\"progressToken\":0}}}}",
        quote(name)
    );
    let request = Frame::request("0", method::TOOLS_CALL, Some(params.as_bytes()));
    let mut outgoing = Outgoing::new(&request);
    outgoing.caller = Some(CallerId::unique());
    outgoing.progress = request.meta().and_then(|meta| meta.find("progressToken"));
    let mut call = client.call(outgoing).await?;
    loop {
        match call.next().await? {
            Event::Response(frame) => return Ok(frame),
            Event::Request(request) => {
                let refusal = RpcError::method_not_found(request.method());
                client.send(&Frame::error(request.id(), &refusal)).await?;
            }
            Event::Notification(frame) => progress(&frame),
            Event::Unclear(_) => {}
        }
    }
}

/// Prints progress and log messages to stderr.
pub(super) fn progress(frame: &Frame) {
    let Some(params) = frame.object() else {
        return;
    };
    let raw = |key: &str| {
        let raw = params.raw(key)?;
        Some(String::from_utf8_lossy(raw).into_owned())
    };
    let text = match frame.method() {
        method::PROGRESS => {
            let done = raw("progress").unwrap_or_default();
            let total = raw("total").map(|total| format!("/{total}"));
            let message = params.string("message").map(|text| format!(" {text}"));
            format!(
                "progress {done}{}{}",
                total.unwrap_or_default(),
                message.unwrap_or_default()
            )
        }
        method::MESSAGE => format!(
            "{}: {}",
            params.string("level").unwrap_or_default(),
            params
                .string("data")
                .map_or_else(|| raw("data").unwrap_or_default(), |data| data.into_owned())
        ),
        _ => return,
    };
    eprintln!("{}", print::printable(&text));
}

fn shown(context: &Context, frame: &Frame) -> anyhow::Result<()> {
    if frame.kind() == Kind::Error {
        bail!("{}", RpcError::from_json(frame.body()));
    }
    let failed = frame
        .object()
        .is_some_and(|result| result.raw("isError") == Some(b"true"));
    if context.output == Output::Json {
        // Prints the server's response byte for byte.
        let mut text = String::from_utf8_lossy(frame.body()).into_owned();
        text.push('\n');
        print::foreign(&text)?;
    } else {
        print::foreign(&text(frame))?;
    }
    if failed {
        eprintln!("the tool reports an error");
        return Err(No.into());
    }
    Ok(())
}

/// Returns the text of a result. For other content, a note on stderr says what it is.
fn text(frame: &Frame) -> String {
    let body = mcp::json::without_lone_surrogates(frame.body());
    let result: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut out = String::new();
    for content in result["content"].as_array().into_iter().flatten() {
        let kind = content["type"].as_str().unwrap_or("content");
        let embedded = content["resource"]["text"].as_str();
        if let Some(text) = content["text"].as_str().or(embedded) {
            out.push_str(text);
            if !text.ends_with('\n') {
                out.push('\n');
            }
            continue;
        }
        let mime = content["mimeType"].as_str().unwrap_or("");
        let uri = content["uri"].as_str().unwrap_or("");
        let what = print::printable(&format!("[{kind} {mime}{uri}]"));
        eprintln!("{what}: `-o json` shows it");
    }
    if out.is_empty() && !result["structuredContent"].is_null() {
        out = serde_json::to_string_pretty(&result["structuredContent"]).unwrap_or_default() + "\n";
    }
    out
}

/// Returns the arguments as the JSON text of an object, unchanged if possible.
fn arguments(args: &Args) -> anyhow::Result<String> {
    let whole = match args.arguments.as_deref() {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        None => "{}".to_owned(),
    };
    mcp::json::validate(whole.as_bytes(), MAX_DEPTH)
        .map_err(|fault| Usage(format!("the arguments are not valid JSON: {fault}")))?;
    let form = "the arguments are not a JSON object: write '{\"key\": \"value\"}'";
    if Object::of(whole.as_bytes()).is_none() {
        return Err(Usage(form.into()).into());
    }
    if args.arg.is_empty() {
        return Ok(whole);
    }
    let mut map: Map<String, Value> =
        serde_json::from_str(&whole).map_err(|_| Usage(form.into()))?;
    for pair in &args.arg {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| Usage(format!("`{pair}` must have the form KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        map.insert(key.to_owned(), value);
    }
    Ok(Value::Object(map).to_string())
}
