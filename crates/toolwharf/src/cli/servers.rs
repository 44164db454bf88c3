//! `ls`, `get`, `rm`, `enable`, `disable`.

use model::{NativeName, ProjectId, ServerName, ToolRef};
use serde_json::{Value, json};

use super::{
    Context, No, Output, Reach, Usage,
    add::{connected, warn},
    http::{Api, path},
    owned, print,
    reach::{Place, own},
    tool_settings,
};
use crate::{
    config::{Config, Sources, nearest},
    registry,
    rest::{Detail, Row, Saved, Servers, Setting},
    startup,
};

pub(super) const HEAD: [&str; 9] = [
    "NAME",
    "STATE",
    "TRANSPORT",
    "SANDBOX",
    "TARGET",
    "TOOLS",
    "CALLS",
    "ERRORS",
    "NOTE",
];

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// The servers of this project; without it, the configuration file's.
    #[arg(long)]
    project: Option<ProjectId>,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    name: ServerName,
    /// The project whose own server it is; without it, the configuration file's.
    #[arg(long)]
    project: Option<ProjectId>,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Args)]
pub(super) struct SwitchArgs {
    /// A server, or one of its tools as SERVER/TOOL.
    #[arg(value_name = "NAME[/TOOL]")]
    name: String,
    /// For this project: its own server, or any tool that it sees.
    #[arg(long)]
    project: Option<ProjectId>,
    /// How long to wait for a server to connect, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    wait: u64,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    if let Some(project) = &args.project {
        let api = args.reach.gateway(context).await?;
        return owned::list(context, &api, project).await;
    }
    let rows = match args.reach.place(context).await? {
        Place::Gateway(api) if context.output == Output::Json => {
            return print::json(&api.get::<Value>(&path(&["servers"])).await?);
        }
        Place::Gateway(api) => api.get::<Servers>(&path(&["servers"])).await?.servers,
        Place::Files(sources) => {
            eprintln!("no gateway is running: this is what the configuration says");
            let config = load(&sources)?;
            config.servers.iter().map(Row::configured).collect()
        }
    };
    if context.output == Output::Json {
        return print::json(&Servers { servers: rows });
    }
    if rows.is_empty() {
        eprintln!("there are no servers yet; `toolwharf add NAME -- COMMAND` adds one");
    }
    let cells: Vec<[String; 9]> = rows.iter().map(cells).collect();
    print::data(&print::table(HEAD, &cells))
}

pub(super) fn cells(row: &Row) -> [String; 9] {
    let mut notes = Vec::new();
    match (&row.reason, row.uptime_ms) {
        (Some(reason), _) => notes.push(print::short(reason, 120)),
        (None, Some(ms)) => notes.push(format!("up {}", print::duration(ms))),
        (None, None) => {}
    }
    if row.kept_back > 0 {
        notes.push(format!(
            "{} kept back (`tools ls` says why)",
            tools(row.kept_back)
        ));
    }
    [
        row.name.clone(),
        row.state.clone(),
        row.transport.clone(),
        row.sandbox.as_deref().unwrap_or("-").to_owned(),
        print::short(&row.target, 48),
        row.tools.to_string(),
        row.calls.to_string(),
        row.errors.to_string(),
        notes.join("; "),
    ]
}

/// So many tools, in words.
pub(super) fn tools(count: usize) -> String {
    match count {
        1 => "1 tool".to_owned(),
        count => format!("{count} tools"),
    }
}

pub(super) async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    if let Some(project) = &args.project {
        let api = args.reach.gateway(context).await?;
        return owned::show(context, &api, project, &args.name).await;
    }
    let name = args.name.as_str();
    let detail = match args.reach.place(context).await? {
        Place::Gateway(api) if context.output == Output::Json => {
            return print::json(&api.get::<Value>(&path(&["servers", name])).await?);
        }
        Place::Gateway(api) => api.get::<Detail>(&path(&["servers", name])).await?,
        Place::Files(sources) => {
            eprintln!("no gateway is running: this is what the configuration says");
            let config = load(&sources)?;
            let found = config.servers.iter().find(|spec| spec.name == args.name);
            Detail::configured(found.ok_or_else(|| unknown(name, &config))?)
        }
    };
    if context.output == Output::Json {
        return print::json(&detail);
    }
    print::data(&fields(&detail))
}

fn unknown(name: &str, config: &Config) -> anyhow::Error {
    let names: Vec<&str> = config.servers.iter().map(|s| s.name.as_str()).collect();
    match nearest(name, &names) {
        Some(near) => anyhow::anyhow!("there is no server `{name}`; did you mean `{near}`?"),
        None => {
            anyhow::anyhow!("there is no server `{name}`; `toolwharf ls` shows which there are")
        }
    }
}

pub(super) fn fields(detail: &Detail) -> String {
    let row = &detail.row;
    let some = |text: &Option<String>| text.clone().unwrap_or_default();
    let list = |names: &[String]| names.join(", ");
    let enforced = |holds: bool| {
        let all = detail.enforced.iter().filter(|one| one.holds == holds);
        let words: Vec<String> = match holds {
            true => all.map(|one| one.what.clone()).collect(),
            false => all
                .map(|one| format!("{} ({})", one.what, one.how))
                .collect(),
        };
        words.join(", ")
    };
    let rows = [
        ("name", row.name.clone()),
        ("state", row.state.clone()),
        ("reason", some(&row.reason)),
        ("transport", row.transport.clone()),
        ("sandbox", some(&row.sandbox)),
        ("enforced", enforced(true)),
        ("not enforced", enforced(false)),
        ("target", row.target.clone()),
        (
            "arguments",
            match detail.arguments {
                0 => String::new(),
                count => format!("{count} (not shown)"),
            },
        ),
        ("variables", list(&detail.env)),
        ("headers", list(&detail.headers)),
        ("era", some(&row.era)),
        ("protocol", some(&row.protocol_version)),
        (
            "process",
            row.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        ),
        ("up", row.uptime_ms.map(print::duration).unwrap_or_default()),
        ("starts", row.starts.to_string()),
        ("tools", row.tools.to_string()),
        ("disabled tools", list(&detail.disabled_tools)),
        (
            "kept back",
            match row.kept_back {
                0 => String::new(),
                count => tools(count),
            },
        ),
        (
            "calls",
            format!(
                "{} ({} errors, {} in flight, {} waiting)",
                row.calls, row.errors, row.in_flight, row.waiting
            ),
        ),
        (
            "max concurrency",
            if detail.one_session_at_a_time {
                format!("{}, one session at a time", detail.max_concurrency)
            } else {
                detail.max_concurrency.to_string()
            },
        ),
        ("sharing", detail.sharing.clone()),
        ("call timeout", format!("{} ms", detail.call_timeout_ms)),
        ("start timeout", format!("{} ms", detail.start_timeout_ms)),
        ("projects", list(&detail.projects)),
    ];
    print::fields(&rows)
}

pub(super) async fn remove(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    if let Some(project) = &args.project {
        let api = args.reach.gateway(context).await?;
        return owned::remove(&api, project, &args.name).await;
    }
    let name = &args.name;
    match args.reach.place(context).await? {
        Place::Gateway(api) => {
            let saved: Saved = api.delete(&path(&["servers", name.as_str()])).await?;
            warn(&saved.warnings);
            eprintln!("removed `{name}` from {}", saved.file.display());
        }
        Place::Files(sources) => {
            let file = registry::remove(&sources, name)?;
            let file = file.display();
            eprintln!("no gateway is running: removed `{name}` from {file}");
        }
    }
    Ok(())
}

pub(super) async fn switch(
    context: &Context,
    args: SwitchArgs,
    enabled: bool,
) -> anyhow::Result<()> {
    let wrong = |error| Usage(format!("`{}`: {error}", args.name));
    let word = if enabled { "enable" } else { "disable" };
    if let Some(project) = &args.project {
        let api = args.reach.gateway(context).await?;
        if args.name.contains('/') {
            let tool = ToolRef::parse(&args.name).map_err(wrong)?;
            let change = |setting: &mut Setting| setting.enabled = Some(enabled);
            return tool_settings::set(context, &api, project, &tool, change).await;
        }
        let name = ServerName::parse(&args.name).map_err(wrong)?;
        return owned::switch(context, &api, project, &name, word).await;
    }
    let place = args.reach.place(context).await?;
    if args.name.contains('/') {
        let tool = ToolRef::parse(&args.name).map_err(wrong)?;
        return switch_tool(context, &place, &tool, enabled).await;
    }
    let name = ServerName::parse(&args.name).map_err(wrong)?;
    match place {
        Place::Gateway(api) => {
            let verb = path(&["servers", name.as_str(), word]);
            let saved: Saved = api.post(&verb, &json!({})).await?;
            warn(&saved.warnings);
            eprintln!("{word}d `{name}` in {}", saved.file.display());
            if let Some(mut row) = saved.server {
                if enabled {
                    row = connected(&api, &name, row, args.wait).await?;
                }
                if context.output == Output::Json {
                    print::json(&row)?;
                }
            }
        }
        Place::Files(sources) => {
            let file = registry::set_enabled(&sources, &own(&sources), &name, enabled)?;
            let file = file.display();
            eprintln!("no gateway is running: {word}d `{name}` in {file}");
        }
    }
    Ok(())
}

async fn switch_tool(
    context: &Context,
    place: &Place,
    tool: &ToolRef,
    enabled: bool,
) -> anyhow::Result<()> {
    let word = if enabled { "enable" } else { "disable" };
    let (server, native): (&ServerName, &NativeName) = (&tool.server, &tool.tool);
    match place {
        Place::Gateway(api) => {
            let saved = tool_on_gateway(api, tool, word).await?;
            warn(&saved.warnings);
            let file = saved.file.display();
            eprintln!("{word}d the tool `{native}` of `{server}` in {file}");
            if context.output == Output::Json {
                print::json(&saved)?;
            }
        }
        Place::Files(sources) => {
            let file = registry::set_tool_enabled(sources, &own(sources), server, native, enabled)?;
            let file = file.display();
            eprintln!("no gateway is running: {word}d the tool `{native}` of `{server}` in {file}");
        }
    }
    Ok(())
}

async fn tool_on_gateway(api: &Api, tool: &ToolRef, word: &str) -> anyhow::Result<Saved> {
    let segments = [
        "servers",
        tool.server.as_str(),
        "tools",
        tool.tool.as_str(),
        word,
    ];
    api.post(&path(&segments), &json!({})).await
}

/// The configuration, or everything that is wrong with it.
fn load(sources: &Sources) -> anyhow::Result<Config> {
    Config::load(sources, &startup::env).map_err(|errors| {
        // Each of them begins with the word that every error begins with.
        eprintln!("{}", print::printable(&errors.to_string()));
        No.into()
    })
}
