//! `host add`: the flags of a registration, and what they become.
//!
//! Invariants: a variable's value may come from the environment of the command line (`--env KEY`), so that no
//! secret has to stand among arguments; what the gateway finds wrong is said in the words of the flags that were
//! typed. Deliberately absent: changing one setting of many. What is shown of a server is not all of it, since
//! values of variables never are; so a registration is replaced as a whole.

use std::env;

use model::{ProjectId, Provider, RestartPolicy, ServerName};
use serde_json::{Map, Value, json};

use super::{Hosted, of_host, said, typed, whole};
use crate::{
    cli::{
        Context, Reach, Usage,
        http::{Refused, path},
    },
    config::Wrong,
};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
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
    /// How often it is asked whether it still answers, in seconds; 30 without it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    heartbeat: Option<u64>,
    /// How long it may take to say so, in seconds; 10 without it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    heartbeat_timeout: Option<u64>,
    /// After so many in a row without an answer it is `unresponsive`; 3 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    heartbeat_misses: Option<u64>,
    /// Never ask it.
    #[arg(long, conflicts_with_all = ["heartbeat", "heartbeat_timeout", "heartbeat_misses"])]
    no_heartbeat: bool,
    /// The project that it belongs to; without it, to none.
    #[arg(long)]
    project: Option<ProjectId>,
    /// In the place of the hosted server of that name, all of whose settings go; it keeps its id and its volumes.
    #[arg(long)]
    replace: bool,
    /// Do not wait until it is up.
    #[arg(long, conflicts_with = "replace")]
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

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let here = |name: &str| env::var(name).ok();
    let entry = entry(&args, here)?;
    let api = args.reach.gateway(context).await?;
    let answer: anyhow::Result<Value> = if args.replace {
        api.put(&of_host(args.name.as_str(), ""), &entry).await
    } else {
        let to = format!("{}?wait={}", path(&["mcp", "servers"]), !args.no_wait);
        api.post(&to, &entry).await
    };
    let answer = answer.map_err(|error| said_of_flags(error, &args))?;
    let server: Hosted = typed(&answer)?;
    let done = if args.replace {
        "replaced"
    } else {
        "registered"
    };
    eprintln!("{done} `{}`, id {}", server.name, server.id);
    said(&server);
    whole(context, &answer)
}

/// The body of a registration; `here` tells the variables of this process.
fn entry(args: &Args, here: impl Fn(&str) -> Option<String>) -> Result<Value, Usage> {
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
    let bridge = args.http.then_some(false);
    let strict = args.strict.then_some(true);
    let limits = json!({
        "cpu": args.cpu, "memory": args.memory, "disk": args.disk, "pids": args.pids, "strict": strict,
    });
    let ms = |seconds: Option<u64>| seconds.map(|seconds| seconds * 1000);
    let heartbeat = if args.no_heartbeat {
        false.into()
    } else {
        given(json!({
            "interval_ms": ms(args.heartbeat),
            "timeout_ms": ms(args.heartbeat_timeout),
            "misses": args.heartbeat_misses,
        }))
    };
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
        "call_timeout_ms": ms(args.timeout),
        "heartbeat": heartbeat,
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
fn said_of_flags(error: anyhow::Error, args: &Args) -> anyhow::Error {
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
fn flag(pointer: &str, args: &Args) -> String {
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
        ("heartbeat", "interval_ms") => "--heartbeat".to_owned(),
        ("heartbeat", "timeout_ms") => "--heartbeat-timeout".to_owned(),
        ("heartbeat", "misses") => "--heartbeat-misses".to_owned(),
        ("provider" | "network" | "path" | "max_concurrency" | "project", _) => {
            format!("--{}", first.replace('_', "-"))
        }
        _ => format!("`{pointer}`"),
    }
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

    fn parsed(line: &str) -> Args {
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
                    --port 80 --http --path /m --max-concurrency 2 --timeout 3 \
                    --heartbeat 5 --heartbeat-misses 2 --project p";
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
            "heartbeat": {"interval_ms": 5000, "misses": 2},
        });
        assert_eq!(body, expect);
        let body = entry(&parsed("a --no-heartbeat -- run"), here).expect("it is right");
        assert_eq!(body["heartbeat"], false);
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
            ("/heartbeat/misses", "--heartbeat-misses"),
            ("/of/later", "`/of/later`"),
        ] {
            assert_eq!(flag(pointer, &args), expect, "{pointer}");
        }
    }
}
