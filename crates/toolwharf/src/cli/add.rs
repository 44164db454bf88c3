//! `add`: the grammar of `claude mcp add`.

use std::{io::Read, time::Duration};

use anyhow::Context as _;
use http::header;
use hyper::Method;
use model::{ProjectId, ServerName};
use serde_json::{Map, Value, json};

use super::{
    Context, Output, Reach, Usage,
    http::{Api, Refused, path},
    owned, print,
    reach::{Place, own},
};
use crate::{
    registry,
    rest::{Detail, Row, Saved},
};

/// How often it is looked whether the server is there.
const LOOK: Duration = Duration::from_millis(150);
/// Lines of stderr that are shown of a server that did not start.
const TAIL: &str = "10";

#[derive(clap::Args)]
pub(super) struct Args {
    /// A variable for the server, KEY=VALUE; may be given several times. Write '${VAR}' to keep a secret out
    /// of the file.
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// A header for the server, "Name: value"; may be given several times.
    #[arg(long, short = 'H', value_name = "HEADER")]
    header: Vec<String>,
    /// How the server is reached; without it, by what stands behind the name.
    #[arg(long, short, value_enum)]
    transport: Option<Transport>,
    /// The entry as in mcp.json stands behind the name; `-` reads it from standard input.
    #[arg(long, conflicts_with_all = ["env", "header", "transport"])]
    json: bool,
    /// Run it in a sandbox: no network, and of this host's files only what its program is made of.
    #[arg(long, conflicts_with = "json")]
    sandbox: bool,
    /// A path inside of the sandbox that is kept; may be given several times.
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    volume: Vec<String>,
    /// A folder of this host that the sandbox sees, HOST:PATH or HOST:PATH:rw; may be given several times.
    #[arg(long, value_name = "HOST:PATH", requires = "sandbox")]
    mount: Vec<String>,
    /// A host that it may reach, host or host:port, or `open`; may be given several times.
    #[arg(long, value_name = "HOST", requires = "sandbox")]
    network: Vec<String>,
    /// What it may use at most, for instance 512M.
    #[arg(long, value_name = "SIZE", requires = "sandbox")]
    memory: Option<String>,
    /// Replace a server of that name.
    #[arg(long)]
    force: bool,
    /// How long to wait for the server to connect, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    wait: u64,
    /// Give it to this project; without it, it goes into the configuration file.
    #[arg(long)]
    project: Option<ProjectId>,
    #[command(flatten)]
    reach: Reach,
    name: String,
    /// A URL, or a command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND_OR_URL"
    )]
    what: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    Stdio,
    Http,
    Sse,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let name = ServerName::parse(&args.name).map_err(|error| {
        Usage(format!(
            "`{}` cannot be a server's name: {error}",
            args.name
        ))
    })?;
    let entry = entry(&args)?;
    if let Some(project) = &args.project {
        let api = args.reach.gateway(context).await?;
        return owned::add(context, &api, project, &name, &entry, args.force).await;
    }
    match args.reach.place(context).await? {
        Place::Gateway(api) => {
            let saved = put(&api, &name, &entry, args.force).await?;
            warn(&saved.warnings);
            let file = saved.file.display();
            eprintln!(
                "added `{name}` to {file} (the gateway at {} has it)",
                api.url
            );
            let row = match saved.server {
                Some(row) => connected(&api, &name, row, args.wait).await?,
                None => return Ok(()),
            };
            if context.output == Output::Json {
                print::json(&row)?;
            }
            Ok(())
        }
        Place::Files(sources) => {
            let edited = registry::put(&sources, &own(&sources), &name, &entry, args.force)
                .map_err(|error| already(error.into(), args.force))?;
            warn(&edited.warnings);
            let file = edited.file.display();
            eprintln!("no gateway is running: added `{name}` to {file}");
            if context.output == Output::Json {
                let config = crate::config::Config::load(&sources, &crate::startup::env).ok();
                let spec = config.and_then(|c| c.servers.into_iter().find(|s| s.name == name));
                print::json(&spec.map(|spec| Row::configured(&spec)))?;
            }
            Ok(())
        }
    }
}

async fn put(api: &Api, name: &ServerName, entry: &Value, replace: bool) -> anyhow::Result<Saved> {
    let only_new = [(header::IF_NONE_MATCH, "*")];
    let headers = if replace { &[][..] } else { &only_new[..] };
    let body = serde_json::to_vec(entry)?.into();
    let path = path(&["servers", name.as_str()]);
    let saved = api.ask(Method::PUT, &path, body, headers).await;
    saved.map_err(|error| already(error, replace))
}

/// The way out of a name that is taken.
pub(super) fn already(error: anyhow::Error, replace: bool) -> anyhow::Error {
    let is_taken = error
        .downcast_ref::<Refused>()
        .is_some_and(|refused| refused.status == 412)
        || matches!(error.downcast_ref(), Some(registry::Error::Exists { .. }));
    if is_taken && !replace {
        anyhow::anyhow!("{error}; replace it with --force, or choose another name")
    } else {
        error
    }
}

pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", print::printable(warning));
    }
}

/// Waits a while for the server to connect, and says what became of it.
pub(super) async fn connected(
    api: &Api,
    name: &ServerName,
    mut row: Row,
    wait: u64,
) -> anyhow::Result<Row> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(wait.min(24 * 3600));
    let of_server = path(&["servers", name.as_str()]);
    while row.state == "starting" || (row.state == "idle" && row.starts == 0) {
        let now = tokio::time::Instant::now();
        if now >= deadline {
            break;
        }
        // A lazy one stays idle: there is nothing to wait for.
        if row.state == "idle"
            && now + Duration::from_secs(wait) > deadline + Duration::from_secs(1)
        {
            break;
        }
        tokio::time::sleep(LOOK).await;
        let detail: Detail = api.get(&of_server).await?;
        row = detail.row;
    }
    match row.state.as_str() {
        "running" => {
            let version = row.protocol_version.as_deref().unwrap_or("MCP");
            eprintln!("connected: {} tools, {version}", row.tools);
        }
        "starting" => eprintln!(
            "it is still starting after {wait} s; `toolwharf get {name}` shows when it is there"
        ),
        "idle" => eprintln!("it starts at its first use"),
        "disabled" => eprintln!("it is disabled; `toolwharf enable {name}` switches it on"),
        state => {
            let reason = row.reason.as_deref().unwrap_or("the reason is not known");
            eprintln!("not connected ({state}): {}", print::printable(reason));
            let logs = format!("{of_server}/logs?tail={TAIL}");
            let tail = api.text(&logs).await.unwrap_or_default();
            for line in tail.lines() {
                eprintln!("  | {}", print::printable(line));
            }
            eprintln!("it is tried again; `toolwharf logs -f {name}` shows what it says");
        }
    }
    Ok(row)
}

/// The entry as mcp.json has it.
fn entry(args: &Args) -> Result<Value, Usage> {
    let Some((first, rest)) = args.what.split_first() else {
        return Err(Usage(
            "a command or a URL is missing behind the name".into(),
        ));
    };
    if args.json {
        if !rest.is_empty() {
            return Err(Usage(
                "behind the name goes one JSON text, in quotes".into(),
            ));
        }
        return json_entry(first);
    }
    let is_url = first.starts_with("http://") || first.starts_with("https://");
    let transport = args.transport.unwrap_or(if is_url {
        Transport::Http
    } else {
        Transport::Stdio
    });
    let mut entry = Map::new();
    if transport == Transport::Stdio {
        if is_url {
            return Err(Usage(format!(
                "`{}` is a URL, which `--transport stdio` cannot run; leave it out",
                model::url_for_display(first)
            )));
        }
        if !args.header.is_empty() {
            return Err(Usage("--header is for a URL; a command takes --env".into()));
        }
        entry.insert("command".into(), first.as_str().into());
        if !rest.is_empty() {
            entry.insert("args".into(), rest.into());
        }
        let env = pairs(&args.env, '=', "--env KEY=VALUE")?;
        if !env.is_empty() {
            entry.insert("env".into(), env.into());
        }
        if args.sandbox {
            entry.insert("toolwharf".into(), sandbox(args));
        }
        return Ok(entry.into());
    }
    if args.sandbox {
        return Err(Usage(
            "--sandbox is for a command: what runs at a URL is somebody else's".into(),
        ));
    }
    if !is_url {
        return Err(Usage(format!(
            "`{first}` is no URL; write http://… or https://…, or leave --transport out for a command"
        )));
    }
    if !rest.is_empty() {
        return Err(Usage("a URL takes no arguments".into()));
    }
    if !args.env.is_empty() {
        return Err(Usage("--env is for a command; a URL takes --header".into()));
    }
    let word = if transport == Transport::Sse {
        "sse"
    } else {
        "http"
    };
    entry.insert("type".into(), word.into());
    entry.insert("url".into(), first.as_str().into());
    let headers = pairs(&args.header, ':', "--header \"Name: value\"")?;
    if !headers.is_empty() {
        entry.insert("headers".into(), headers.into());
    }
    Ok(entry.into())
}

/// What of an entry says how it is confined.
fn sandbox(args: &Args) -> Value {
    let mut ours = Map::new();
    let sandbox = match &args.memory {
        Some(memory) => json!({ "memory": memory }),
        None => true.into(),
    };
    ours.insert("sandbox".into(), sandbox);
    for (key, list) in [("volumes", &args.volume), ("mounts", &args.mount)] {
        if !list.is_empty() {
            ours.insert(key.into(), list.as_slice().into());
        }
    }
    match args.network.as_slice() {
        [] => {}
        [word] if word == "open" || word == "none" => {
            ours.insert("network".into(), word.as_str().into());
        }
        hosts => {
            ours.insert("network".into(), hosts.into());
        }
    }
    ours.into()
}

/// Without repeating what was written: it may be a secret.
fn pairs(texts: &[String], divider: char, form: &str) -> Result<Map<String, Value>, Usage> {
    let mut pairs = Map::new();
    for (at, text) in texts.iter().enumerate() {
        let pair = text.split_once(divider);
        let (name, value) = pair
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| {
                Usage(format!(
                    "number {} of them is not written as {form}",
                    at + 1
                ))
            })?;
        let value = if divider == ':' { value.trim() } else { value };
        pairs.insert(name.trim().to_owned(), json!(value));
    }
    Ok(pairs)
}

fn json_entry(text: &str) -> Result<Value, Usage> {
    let text = if text == "-" {
        stdin().map_err(|error| Usage(format!("{error:#}")))?
    } else {
        text.to_owned()
    };
    let wrong = |why: String| {
        Usage(format!(
            "the entry is not usable JSON: {why}; write {{\"command\": \"…\", \"args\": […]}} or {{\"url\": \"…\"}}"
        ))
    };
    mcp::json::validate(text.as_bytes(), 64).map_err(|fault| wrong(fault.to_string()))?;
    let entry: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if !entry.is_object() {
        return Err(wrong("it is no object".into()));
    }
    Ok(entry)
}

/// Largest input that is read, in bytes.
const LARGEST_INPUT: u64 = 16 << 20;

/// All of standard input.
pub(super) fn stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        .take(LARGEST_INPUT + 1)
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    if read as u64 > LARGEST_INPUT {
        anyhow::bail!("standard input holds more than {} MiB", LARGEST_INPUT >> 20);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn check(line: &[&str], expect: Result<Value, &str>) {
        let words = std::iter::once("add").chain(line.iter().copied());
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string());
        let found = parsed.and_then(|line| entry(&line.args).map_err(|error| error.0));
        match expect {
            Ok(expect) => assert_eq!(found.as_ref(), Ok(&expect), "{line:?}"),
            Err(part) => assert!(
                found.as_ref().is_err_and(|found| found.contains(part)),
                "{line:?}: {found:?}"
            ),
        }
    }

    #[test]
    fn commands() {
        let npx = json!({"command": "npx", "args": ["-y", "server"], "env": {"K": "a=b"}});
        check(
            &["-e", "K=a=b", "n", "--", "npx", "-y", "server"],
            Ok(npx.clone()),
        );
        check(
            &["n", "--env", "K=a=b", "--", "npx", "-y", "server"],
            Ok(npx.clone()),
        );
        check(
            &[
                "--transport",
                "stdio",
                "n",
                "-e",
                "K=a=b",
                "npx",
                "-y",
                "server",
            ],
            Ok(npx),
        );
        check(&["n", "uvx"], Ok(json!({"command": "uvx"})));
        // What belongs to the command is not ours.
        check(
            &["n", "--", "x", "--env", "A=1", "-t", "--", "-o"],
            Ok(json!({"command": "x", "args": ["--env", "A=1", "-t", "--", "-o"]})),
        );
    }

    #[test]
    fn urls() {
        let url = "https://example.com/mcp";
        check(&["n", url], Ok(json!({"type": "http", "url": url})));
        check(
            &["-t", "sse", "n", url, "-H", "Authorization: Bearer a:b"],
            Err("no arguments"),
        );
        check(
            &["-t", "sse", "-H", "Authorization: Bearer a:b", "n", url],
            Ok(json!({"type": "sse", "url": url, "headers": {"Authorization": "Bearer a:b"}})),
        );
        check(&["-t", "http", "n", "npx"], Err("no URL"));
        check(&["-t", "stdio", "n", url], Err("leave it out"));
        check(&["-e", "A=1", "n", url], Err("--header"));
        check(&["-H", "A: 1", "n", "npx"], Err("--env"));
    }

    #[test]
    fn entries_as_json() {
        check(
            &["--json", "n", r#"{"command":"x","future":1}"#],
            Ok(json!({"command": "x", "future": 1})),
        );
        check(&["--json", "n", "{"], Err("usable JSON"));
        check(&["--json", "n", "[]"], Err("no object"));
        check(
            &["--json", "n", r#"{"command":"x","command":"y"}"#],
            Err("usable JSON"),
        );
        check(&["--json", "n", "{}", "more"], Err("one JSON text"));
        check(&["-e", "secret", "n", "x"], Err("KEY=VALUE"));
        check(&["n"], Err("required"));
    }
}
