//! `tools call`: calls a tool over MCP, as a client does.

use std::time::Duration;

use anyhow::{Context as _, bail};
use mcp::{
    Era, Frame, Kind, RpcError,
    client::{CallerId, Client, Connector, Event, Identity, Options, Outgoing, Target},
    json::quote,
    protocol::method,
};
use serde_json::Value;

use super::{
    Context, No, Output, Usage,
    arguments::{self, Pair},
    http::{Api, escaped},
    names, print, tool_lookup, values,
};

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
    /// The arguments: KEY=VALUE, with the types in the schema, or KEY:=JSON. Or one JSON object; `-` reads it
    /// from standard input.
    #[arg(value_name = "KEY=VALUE|JSON")]
    arguments: Vec<String>,
    /// One argument, KEY=VALUE. May be given several times.
    #[arg(long = "arg", short, value_name = "KEY=VALUE")]
    arg: Vec<String>,
    /// Use the tools as this project sees them.
    #[arg(long, add = names::projects())]
    project: Option<model::ProjectId>,
    /// Use only this server, with unprefixed names.
    #[arg(long)]
    server: Option<model::ServerName>,
    /// Timeout for the result, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, allow_hyphen_values = true, value_parser = values::seconds)]
    timeout: u64,
}

/// The arguments as they were written.
enum Given<'a> {
    /// The text of an object.
    Json(String),
    Pairs(Vec<Pair<'a>>),
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let given = given(&args)?;
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
    let arguments = match given {
        Given::Json(text) => text,
        Given::Pairs(pairs) => {
            let schema = schema(&api, &args, &name).await?;
            arguments::typed(&pairs, &schema, &args.name)?.to_string()
        }
    };
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
    let (client, _ambient) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            // The list of tools says whether the project or the server is missing.
            let of = tool_lookup::of(args.project.as_ref(), args.server.as_ref(), None);
            api.get::<api::Tools>(&of).await?;
            let error = anyhow::Error::from(error);
            return Err(error.context(format!("cannot connect to the gateway at {}", api.url)));
        }
    };
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
    if frame.kind() == Kind::Error {
        let error = RpcError::from_json(frame.body());
        let is_unknown = ["Unknown tool", "tool not found", "Tool not found"];
        let is_unknown = is_unknown.iter().any(|text| error.message.contains(text));
        // The error suggests a similar name, and names the servers that are down.
        let (project, server) = (args.project.as_ref(), args.server.as_ref());
        if is_unknown && let Some(more) = tool_lookup::absent(&api, project, server, &name).await {
            match args.server {
                None => bail!("Unknown tool: {name}: {more}"),
                Some(_) => bail!("{error}: {more}"),
            }
        }
    }
    shown(context, &frame, &args.name)
}

/// Returns the tool's input schema, or null if the tool is not known.
async fn schema(api: &Api, args: &Args, name: &str) -> anyhow::Result<Value> {
    let project = args.project.as_ref();
    let schema = match &args.server {
        None => tool_lookup::schema(api, project, name).await?,
        Some(server) => {
            let tools = tool_lookup::of_server(api, project, server).await?;
            let tool = tools.into_iter().find(|tool| tool.native == name);
            match tool.as_ref().and_then(|tool| tool.exposed()) {
                Some(exposed) => tool_lookup::schema(api, project, exposed).await?,
                None => None,
            }
        }
    };
    Ok(schema.unwrap_or_default())
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

fn shown(context: &Context, frame: &Frame, name: &str) -> anyhow::Result<()> {
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
        eprintln!(
            "the tool reports an error; `toolwharf tools get {}` shows its arguments",
            print::printable(name)
        );
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

fn given(args: &Args) -> anyhow::Result<Given<'_>> {
    let words = args.arguments.as_slice();
    if let [text] = words
        && Pair::parse(text).is_none()
    {
        if !args.arg.is_empty() {
            let why = "the arguments are given both as JSON and with --arg; use one of the two";
            return Err(Usage(why.into()).into());
        }
        let form = "write KEY=VALUE, or a JSON object: '{\"key\": \"value\"}'";
        return arguments::object(text, "arguments", form).map(Given::Json);
    }
    let all = words.iter().chain(&args.arg);
    let pairs = all.map(|word| {
        Pair::parse(word).ok_or_else(|| {
            let word = print::one_line(word, 60);
            Usage(format!(
                "`{word}` must have the form KEY=VALUE; write a JSON object as one quoted word: '{{\"key\": \"value\"}}'"
            ))
        })
    });
    let pairs: Vec<Pair<'_>> = pairs.collect::<Result<_, Usage>>()?;
    Ok(match pairs.is_empty() {
        true => Given::Json("{}".to_owned()),
        false => Given::Pairs(pairs),
    })
}
