//! `add`: adds a server. The grammar is that of `claude mcp add`, with options for the sandbox.
//!
//! Invariant: a variable's value may come from the environment of the command line (`--env KEY`), so that no secret
//! needs to be in the arguments.

mod typo;

use crate::cli::prompt::stdin;
use std::{env, ffi::OsString};

use api::Server;
use clap::{FromArgMatches, error::ErrorKind};
use config::nearest;
use http::header;
use hyper::Method;
use model::{ProjectId, Provider, RestartPolicy, ServerName};
use serde_json::{Map, Value, json};

use super::{
    Context, Output, Usage, clashes,
    http::{Api, Refused, of_project},
    names, print,
    reach::{Place, own},
    secrets,
    servers::{connected, said_name, usable, warn},
    values,
};
use crate::cli::http::of_server;
use backend::server_files;
use rest::configured;

#[derive(clap::Args)]
pub(super) struct Args {
    /// An environment variable for the server. `KEY` alone takes its value from the environment of this command.
    /// Write '${VAR}' to keep a secret out of the file. May be given several times.
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// The name is followed by an entry as in mcp.json. `-` reads the entry from standard input.
    #[arg(long, conflicts_with_all = ["env", "header", "transport", "image", "sandbox"])]
    json: bool,
    /// Run this container image. A command after the name replaces the image's command.
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    confined: ConfinedArgs,
    /// When to restart the server after it exits: always, on-failure, unless-stopped or no.
    #[arg(long, value_name = "POLICY")]
    restart: Option<RestartPolicy>,
    /// When to start the server: with the gateway (boot) or at its first use (demand).
    #[arg(long, value_enum, value_name = "WHEN")]
    start: Option<Start>,
    /// Seconds between two health checks.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = values::seconds)]
    heartbeat: Option<u64>,
    /// The maximum number of concurrent calls.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::count)]
    max_concurrency: Option<u64>,
    /// Timeout of a call, in seconds.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = values::seconds)]
    timeout: Option<u64>,
    /// Replace an existing server of this name.
    #[arg(long)]
    force: bool,
    /// Maximum time to wait until the server connects, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, allow_hyphen_values = true, value_parser = values::wait)]
    wait: u64,
    /// Add the server to this project instead of the configuration file.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    name: String,
    /// A URL, or a command and its arguments.
    #[arg(
        required_unless_present = "image",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND_OR_URL"
    )]
    what: Vec<String>,
}

/// Options of a URL.
#[derive(clap::Args)]
struct RemoteArgs {
    /// A header for the server, "Name: value". May be given several times.
    #[arg(long, short = 'H', value_name = "HEADER")]
    header: Vec<String>,
    /// The transport. The default is `http` for a URL and `stdio` for a command.
    #[arg(long, short, value_enum)]
    transport: Option<Transport>,
}

/// Options of the sandbox. Each of them also turns the sandbox on.
#[derive(Clone, clap::Args)]
struct ConfinedArgs {
    /// Run the server in a sandbox, without network and without files of this host except its program.
    #[arg(long, value_name = "PROVIDER", num_args = 0..=1, require_equals = true)]
    sandbox: Option<Option<Provider>>,
    /// A path in the sandbox with persistent files. May be given several times.
    #[arg(long, value_name = "PATH")]
    volume: Vec<String>,
    /// A folder of this host to mount in the sandbox: HOST:PATH, or HOST:PATH:rw for write access. May be given several
    /// times.
    #[arg(long, value_name = "HOST:PATH")]
    mount: Vec<String>,
    /// A host that the server may reach, as host or host:port, or `open` for all. May be given several times.
    #[arg(long, value_name = "HOST")]
    network: Vec<String>,
    /// CPU limit in cores, such as 0.5 or 500m.
    #[arg(long, value_name = "CORES", allow_hyphen_values = true)]
    cpu: Option<String>,
    /// Memory limit, such as 512M or 1Gi.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Disk space limit, such as 1Gi.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    disk: Option<String>,
    /// Limit of processes and threads.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::count)]
    pids: Option<u64>,
    /// Do not start the server if a limit cannot be enforced.
    #[arg(long)]
    strict: bool,
    /// The port on which the server speaks HTTP instead of using standard input and output. HOST:PORT also sets the
    /// port on this host.
    #[arg(long, value_name = "PORT", value_parser = config::is_port)]
    port: Option<String>,
    /// The path of the MCP endpoint on that port. The default is /mcp.
    #[arg(long, requires = "port")]
    path: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    Stdio,
    Http,
    Sse,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Start {
    Boot,
    Demand,
}

/// Parses a command line. As in `claude mcp add`, options may also follow a URL. clap would take them for the arguments
/// of a command, so they are moved before the URL. `add` returns the arguments of `add`, if that is the command.
///
/// `command` is the grammar.
pub(super) fn parse<T: FromArgMatches>(
    mut words: Vec<OsString>,
    command: impl Fn() -> clap::Command,
    add: impl Fn(&T) -> Option<&Args>,
) -> Result<T, clap::Error> {
    let parsed = parse_as_is::<T>(&words, &command)?;
    let Some(args) = add(&parsed).filter(|args| args.image.is_none() && !args.json) else {
        return Ok(parsed);
    };
    let Some((url, behind)) = args.what.split_first().filter(|(first, _)| is_url(first)) else {
        return Ok(parsed);
    };
    let url = url.clone();
    if behind.is_empty() {
        return Ok(parsed);
    }
    let options = words.split_off(words.len() - behind.len());
    words.pop();
    words.retain(|word| word != "--");
    words.extend(options);
    words.push(url.clone().into());
    let moved = parse_as_is(&words, &command)?;
    match add(&moved) {
        Some(args) if args.what == [url.as_str()] => Ok(moved),
        moved => {
            let first = moved.and_then(|args| args.what.first());
            // The value of an unknown option may be a secret.
            let option = first.filter(|word| word.starts_with('-'));
            let option = option.and_then(|word| word.split('=').next());
            let mut command = command();
            let hint = match option {
                Some(option) => format!("`{option}` is unknown{}", similar(&command, option)),
                None => "leave out the words behind it".to_owned(),
            };
            let why = format!(
                "after the URL {}, only options are allowed; {hint}",
                model::url_for_display(&url)
            );
            Err(command.error(ErrorKind::TooManyValues, why))
        }
    }
}

fn parse_as_is<T: FromArgMatches>(
    words: &[OsString],
    command: impl Fn() -> clap::Command,
) -> Result<T, clap::Error> {
    let mut command = command();
    let mut matches = command.try_get_matches_from_mut(words)?;
    T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Returns a suggestion for a mistyped option of `add`.
fn similar(command: &clap::Command, option: &str) -> String {
    let add = command.find_subcommand("add").unwrap_or(command);
    let known = add.get_arguments().filter_map(|one| one.get_long());
    let known: Vec<String> = known.map(|long| format!("--{long}")).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let near = nearest(option, &known);
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

fn is_url(word: &str) -> bool {
    let scheme = word.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
    })
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let (confined, image) = (args.confined.clone(), args.image.clone());
    let added = added(context, args).await;
    added.map_err(|error| with_option(error, &confined, image.as_deref()))
}

async fn added(context: &Context, args: Args) -> anyhow::Result<()> {
    if args.json && args.name.starts_with('{') {
        let why = "the name comes before the entry: write `toolwharf add --json NAME '{…}'`";
        return Err(Usage(why.into()).into());
    }
    let name = ServerName::parse(&args.name).map_err(|error| {
        Usage(format!(
            "invalid server name `{}`: {error}; choose a name such as `time`",
            args.name
        ))
    })?;
    let entry = entry(&args, |name| env::var(name).ok())?;
    let place = context.place_of(args.project.as_ref()).await?;
    match &place {
        Place::Gateway(api) => {
            let project = args.project.as_ref();
            let to = of_server(name.as_str(), &[]) + &of_project(project);
            let before = clashes::Names::read(api, project).await;
            let server = put(api, &to, &entry, args.force).await?;
            warn(&server.notices);
            match &server.file {
                Some(file) => eprintln!(
                    "added `{name}` to {file} (loaded by the gateway at {})",
                    api.url
                ),
                None => eprintln!("added {}", said_name(&server)),
            }
            let server = secrets::complete(context, &place, api, server).await?;
            let server = connected(api, server, args.wait).await?;
            clashes::report(api, project, &server, before).await;
            context.print_json(&server)?;
            usable(&server)
        }
        Place::Files(sources) => {
            let edited = server_files::put(sources, &own(sources), &name, &entry, args.force)
                .map_err(|error| already(error.into(), args.force))?;
            warn(&edited.warnings);
            let file = edited.file.display();
            eprintln!("no gateway is running: added `{name}` to {file}");
            secrets::ask(context, &place, None, &edited.unset).await?;
            if context.output == Output::Json {
                let config = config::Config::load(sources, &backend::startup::env).ok();
                let spec = config.and_then(|c| c.servers.into_iter().find(|s| s.name == name));
                print::json(&spec.map(|spec| configured(&spec)))?;
            }
            Ok(())
        }
    }
}

async fn put(api: &Api, path: &str, entry: &Value, replace: bool) -> anyhow::Result<Server> {
    let only_new = [(header::IF_NONE_MATCH, "*")];
    let headers = if replace { &[][..] } else { &only_new[..] };
    let body = serde_json::to_vec(entry)?.into();
    let put = api.ask(Method::PUT, path, body, headers).await;
    put.map_err(|error| already(error, replace))
}

/// Adds the option and its value to an error about the part of the entry that the option became.
fn with_option(
    mut error: anyhow::Error,
    args: &ConfinedArgs,
    image: Option<&str>,
) -> anyhow::Error {
    let text = error.to_string();
    let ConfinedArgs {
        memory, cpu, disk, ..
    } = args;
    let single = [
        ("memory", "`sandbox.memory`", memory.as_deref()),
        ("cpu", "`sandbox.cpu`", cpu.as_deref()),
        ("disk", "`sandbox.disk`", disk.as_deref()),
        ("image", "`image` of server", image),
    ];
    let option = |name: &str, value: &str| match value {
        "" => format!("--{name} ''"),
        value => format!("--{name} {value}"),
    };
    let mut single = single.into_iter().filter_map(|(name, key, value)| {
        let is_it = text.contains(key);
        Some(option(name, value.filter(|_| is_it)?))
    });
    let lists = [
        ("volume", "volumes", &args.volume),
        ("mount", "mounts", &args.mount),
        ("network", "network", &args.network),
    ];
    let mut lists = lists.into_iter().filter_map(|(name, key, values)| {
        let mut values = values.iter().enumerate();
        let (_, value) = values.find(|(at, _)| text.contains(&format!("`{key}.{at}`")))?;
        Some(option(name, value))
    });
    let Some(option) = single.next().or_else(|| lists.next()) else {
        return error;
    };
    match error.downcast_mut::<Refused>() {
        Some(refused) => {
            refused.detail.insert_str(0, &format!("{option}: "));
            error
        }
        None => anyhow::anyhow!("{option}: {text}"),
    }
}

/// Adds advice to the error for a name that is already taken.
fn already(error: anyhow::Error, replace: bool) -> anyhow::Error {
    let is_taken = error
        .downcast_ref::<Refused>()
        .is_some_and(|refused| refused.status == 412)
        || matches!(
            error.downcast_ref(),
            Some(server_files::Error::Exists { .. })
        );
    if is_taken && !replace {
        anyhow::anyhow!("{error}; replace it with --force, or choose another name")
    } else {
        error
    }
}

/// Returns the entry in the form of mcp.json. `here` reads the environment of this process.
fn entry(args: &Args, here: impl Fn(&str) -> Option<String>) -> Result<Value, Usage> {
    let what = args.what.as_slice();
    if args.json {
        return match what {
            [text] => json_entry(text),
            _ => Err(Usage(
                "expected one quoted JSON object after the name".into(),
            )),
        };
    }
    let first = what.first().map(String::as_str).unwrap_or_default();
    let is_url = is_url(first);
    let remote = &args.remote;
    let usual = if is_url && args.image.is_none() {
        Transport::Http
    } else {
        Transport::Stdio
    };
    match remote.transport.unwrap_or(usual) {
        Transport::Stdio => launched(args, remote, what, is_url, here),
        Transport::Http => reached(args, remote, first, is_url, "http"),
        Transport::Sse => reached(args, remote, first, is_url, "sse"),
    }
}

fn launched(
    args: &Args,
    remote: &RemoteArgs,
    what: &[String],
    is_url: bool,
    here: impl Fn(&str) -> Option<String>,
) -> Result<Value, Usage> {
    if is_url && args.image.is_none() {
        return Err(Usage(format!(
            "`{}` is a URL, which does not work with `--transport stdio`; leave the option out",
            model::url_for_display(&what[0])
        )));
    }
    if !remote.header.is_empty() {
        return Err(Usage("--header is for a URL; a command takes --env".into()));
    }
    let mut entry = Map::new();
    if let Some(image) = &args.image {
        entry.insert("image".into(), image.as_str().into());
    }
    if let Some((program, rest)) = what.split_first() {
        if args.image.is_none()
            && let Some(why) = typo::mistyped_url(program)
        {
            return Err(Usage(why));
        }
        entry.insert("command".into(), program.as_str().into());
        if !rest.is_empty() {
            entry.insert("args".into(), rest.into());
        }
    }
    let env = variables(&args.env, here)?;
    if !env.is_empty() {
        entry.insert("env".into(), env.into());
    }
    let ours = ours(args);
    if ours.as_object().is_some_and(|ours| !ours.is_empty()) {
        entry.insert("toolwharf".into(), ours);
    }
    Ok(entry.into())
}

fn reached(
    args: &Args,
    remote: &RemoteArgs,
    url: &str,
    is_url: bool,
    word: &str,
) -> Result<Value, Usage> {
    if !is_url {
        return Err(Usage(format!(
            "`{url}` is not a URL; write http://… or https://…, or leave --transport out for a command"
        )));
    }
    // A reference to a variable is only filled in later.
    if !url.contains("${")
        && let Err(why) = url::Url::parse(url)
    {
        let url = model::url_for_display(url);
        return Err(Usage(format!(
            "`{url}` is not a valid URL: {why}; write https://HOST/PATH"
        )));
    }
    let ours = ours(args);
    for key in [
        "sandbox",
        "volumes",
        "mounts",
        "network",
        "port",
        "restart",
        "heartbeat",
    ] {
        if ours.get(key).is_some() {
            return Err(Usage(format!(
                "--{} is for a command or an image; it does not apply to a URL",
                key.trim_end_matches('s')
            )));
        }
    }
    if !args.env.is_empty() {
        return Err(Usage("--env is for a command; a URL takes --header".into()));
    }
    let mut entry = Map::new();
    entry.insert("type".into(), word.into());
    let url = match url.split_once("://") {
        Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
        None => url.to_owned(),
    };
    entry.insert("url".into(), url.into());
    let headers = headers(&remote.header)?;
    if !headers.is_empty() {
        entry.insert("headers".into(), headers.into());
    }
    if ours.as_object().is_some_and(|ours| !ours.is_empty()) {
        entry.insert("toolwharf".into(), ours);
    }
    Ok(entry.into())
}

/// Returns the members of the entry that only Toolwharf understands, such as `sandbox`.
fn ours(args: &Args) -> Value {
    let confined = &args.confined;
    let provider = confined.sandbox.flatten();
    let sandbox = given(json!({
        "provider": provider.map(|provider| provider.to_string()),
        "cpu": confined.cpu,
        "memory": confined.memory,
        "disk": confined.disk,
        "pids": confined.pids,
        "strict": confined.strict.then_some(true),
    }));
    let sandbox = match sandbox.as_object() {
        Some(limits) if !limits.is_empty() => sandbox,
        _ => confined.sandbox.map_or(Value::Null, |_| true.into()),
    };
    let network: Value = match confined.network.as_slice() {
        [word] if word == "open" || word == "none" => word.as_str().into(),
        hosts => hosts.into(),
    };
    let ms = |seconds: Option<u64>| seconds.map(|seconds| seconds * 1000);
    let port = confined.port.as_ref().map(|port| {
        let number = port.parse::<u16>();
        number.map_or_else(|_| port.as_str().into(), Value::from)
    });
    given(json!({
        "sandbox": sandbox,
        "volumes": confined.volume,
        "mounts": confined.mount,
        "network": network,
        "port": port,
        "path": confined.path,
        "start": args.start.map(|start| match start {
            Start::Boot => "boot",
            Start::Demand => "demand",
        }),
        "restart": args.restart.map(|policy| policy.to_string()),
        "heartbeat": ms(args.heartbeat).map(|ms| json!({ "interval_ms": ms })),
        "maxConcurrency": args.max_concurrency,
        "callTimeoutMs": ms(args.timeout),
    }))
}

/// Removes the members of the object that have no value.
fn given(mut object: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            _ => true,
        });
    }
    object
}

/// Parses `KEY[=VALUE]` options. Errors do not quote them, because a value may be a secret.
fn variables(
    texts: &[String],
    here: impl Fn(&str) -> Option<String>,
) -> Result<Map<String, Value>, Usage> {
    let is_usual = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let mut variables = Map::new();
    for (at, text) in texts.iter().enumerate() {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), value.to_owned()),
            None if !text.is_empty() && text.bytes().all(is_usual) => {
                let unset = || {
                    Usage(format!(
                        "--env {text}: `{text}` is not set or not UTF-8; export it, or write {text}=VALUE"
                    ))
                };
                (text.as_str(), here(text).ok_or_else(unset)?)
            }
            None => ("", String::new()),
        };
        if name.is_empty() {
            return Err(Usage(format!(
                "--env number {} must have the form KEY=VALUE",
                at + 1
            )));
        }
        if variables.insert(name.to_owned(), value.into()).is_some() {
            return Err(Usage(format!("--env {name} is given twice; leave one out")));
        }
    }
    Ok(variables)
}

/// Parses `Name: value` options. Errors do not quote them, because a value may be a secret.
fn headers(texts: &[String]) -> Result<Map<String, Value>, Usage> {
    let mut headers: Map<String, Value> = Map::new();
    for (at, text) in texts.iter().enumerate() {
        let pair = text.split_once(':');
        let (name, value) = pair
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| {
                Usage(format!(
                    "--header number {} must have the form \"Name: value\"",
                    at + 1
                ))
            })?;
        let name = name.trim();
        if headers.keys().any(|known| known.eq_ignore_ascii_case(name)) {
            return Err(Usage(format!(
                "--header {name} is given twice; leave one out"
            )));
        }
        headers.insert(name.to_owned(), json!(value.trim()));
    }
    Ok(headers)
}

fn json_entry(text: &str) -> Result<Value, Usage> {
    let text = if text == "-" {
        stdin().map_err(|error| Usage(format!("{error:#}")))?
    } else {
        text.to_owned()
    };
    let wrong = |why: String| {
        Usage(format!(
            "invalid entry: {why}; write {{\"command\": \"…\", \"args\": […]}} or {{\"url\": \"…\"}}"
        ))
    };
    mcp::json::validate(text.as_bytes(), 64).map_err(|fault| wrong(fault.to_string()))?;
    let entry: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if !entry.is_object() {
        return Err(wrong("expected a JSON object".into()));
    }
    if entry["mcpServers"].is_object() {
        return Err(wrong(
            "`mcpServers` contains several servers, but --json adds one (`toolwharf import -` reads all of them from \
             standard input)"
                .into(),
        ));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[arg(long, global = true)]
        data_dir: Option<String>,
        #[command(flatten)]
        args: Args,
    }

    fn line(line: &[&str]) -> Result<Line, clap::Error> {
        let words = std::iter::once(&"add").chain(line).map(OsString::from);
        parse(words.collect(), Line::command, |line: &Line| {
            Some(&line.args)
        })
    }

    fn check_words(line: &[&str], expect: Result<Value, &str>) {
        let parsed = self::line(line).map_err(|error| error.to_string());
        let here = |name: &str| (name == "TOKEN").then(|| "from here".to_owned());
        let found = parsed.and_then(|line| entry(&line.args, here).map_err(|error| error.0));
        match expect {
            Ok(expect) => assert_eq!(found.as_ref(), Ok(&expect), "{line:?}"),
            Err(part) => assert!(
                found.as_ref().is_err_and(|found| found.contains(part)),
                "{line:?}: {found:?}"
            ),
        }
    }

    fn check(line: &str, expect: Result<Value, &str>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        check_words(&words, expect);
    }

    #[test]
    fn commands() {
        let npx = json!({"command": "npx", "args": ["-y", "server"], "env": {"K": "a=b"}});
        check("-e K=a=b n -- npx -y server", Ok(npx.clone()));
        check("n --env K=a=b -- npx -y server", Ok(npx.clone()));
        check("--transport stdio n -e K=a=b npx -y server", Ok(npx));
        check("n uvx", Ok(json!({"command": "uvx"})));
        // Arguments of the server's command are not parsed as options of `add`.
        check(
            "n -- x --env A=1 -t -- -o",
            Ok(json!({"command": "x", "args": ["--env", "A=1", "-t", "--", "-o"]})),
        );
    }

    #[test]
    fn urls() {
        let url = "https://example.com/mcp";
        check_words(&["n", url], Ok(json!({"type": "http", "url": url})));
        let header = "Authorization: Bearer a:b";
        let sse = json!({"type": "sse", "url": url, "headers": {"Authorization": "Bearer a:b"}});
        for line in [
            ["-t", "sse", "n", url, "-H", header],
            ["-t", "sse", "-H", header, "n", url],
        ] {
            check_words(&line, Ok(sse.clone()));
        }
        check("-t http n npx", Err("not a URL"));
        check_words(&["-t", "stdio", "n", url], Err("leave the option out"));
        check_words(&["-e", "A=1", "n", url], Err("--header"));
        check_words(&["n", url, "more"], Err("after the URL"));
        check_words(&["n", url, "--", "more"], Err("after the URL"));
        check_words(&["n", url, "--unknown"], Err("--unknown"));
        check_words(&["n", url, "-e", "A=1"], Err("--header"));
        // Options of every command, and others of `add`.
        for words in [
            ["n", url, "--data-dir", "D", "--force"],
            ["--force", "n", url, "--data-dir", "D"],
            ["n", "--data-dir", "D", url, "--force"],
        ] {
            let line = line(&words).map_err(|error| error.to_string());
            let line = line.expect("it is valid");
            let found = (line.data_dir.as_deref(), line.args.force, line.args.what);
            assert_eq!(found, (Some("D"), true, vec![url.to_owned()]), "{words:?}");
        }
        check_words(&["--memory", "1G", "n", url], Err("--sandbox is for"));
        check_words(&["-H", "A: 1", "n", "npx"], Err("--env"));
    }

    #[test]
    fn sandboxes() {
        let one = |ours: Value| Ok(json!({"command": "x", "toolwharf": ours}));
        check("--sandbox n x", one(json!({"sandbox": true})));
        check(
            "--sandbox=process --strict n x",
            one(json!({"sandbox": {"provider": "process", "strict": true}})),
        );
        check(
            "--volume /v --network open n x",
            one(json!({"volumes": ["/v"], "network": "open"})),
        );
        let line = "n --image i --env TOKEN --env A=b=c --volume /v --mount /h:/in --mount /h:/out:rw --cpu 500m --memory 64M \
                    --disk 1Gi --pids 9 --strict --sandbox=gvisor --restart on-failure --network x.test --network y.test \
                    --port 80 --path /m --start demand --max-concurrency 2 --timeout 3 --heartbeat 5 -- run --fast";
        check(
            line,
            Ok(json!({
                "image": "i", "command": "run", "args": ["--fast"],
                "env": {"TOKEN": "from here", "A": "b=c"},
                "toolwharf": {
                    "sandbox": {
                        "provider": "gvisor", "cpu": "500m", "memory": "64M", "disk": "1Gi", "pids": 9, "strict": true,
                    },
                    "volumes": ["/v"], "mounts": ["/h:/in", "/h:/out:rw"], "network": ["x.test", "y.test"],
                    "port": 80, "path": "/m", "start": "demand", "restart": "on-failure",
                    "heartbeat": {"interval_ms": 5000}, "maxConcurrency": 2, "callTimeoutMs": 3000,
                },
            })),
        );
        check("--image i n", Ok(json!({"image": "i"})));
        check("-e NONE n x", Err("export it"));
        check("-e secret n x", Err("KEY=VALUE"));
        check("-e A=1 -e A=2 n x", Err("twice"));
    }

    #[test]
    fn entries_as_json() {
        check_words(
            &["--json", "n", r#"{"command":"x","future":1}"#],
            Ok(json!({"command": "x", "future": 1})),
        );
        check_words(&["--json", "n", "{"], Err("invalid entry"));
        check("--json n []", Err("expected a JSON object"));
        check_words(
            &["--json", "n", r#"{"command":"x","command":"y"}"#],
            Err("invalid entry"),
        );
        check_words(
            &["--json", "n", "{}", "more"],
            Err("one quoted JSON object"),
        );
        check("n", Err("required"));
    }
}
