//! Commands for servers: `ls`, `get`, `status`, `rm`, `enable`, `disable`, `start`, `stop`, `restart` and `events`.
//!
//! Without a running gateway, those that only need the configuration file work on the file.

use crate::cli::http::of_server;
use crate::cli::reach::all_servers;
use crate::cli::reach::load_config;
use std::time::Duration;

use api::{Event, Removed, Server};
use api::{Set, Setting};
use model::{NativeName, ProjectId, ServerName, ToolRef};
use serde_json::json;

use super::{
    Context, No, Output, Usage, attention, clashes,
    http::{self, Api},
    names,
    pages::{self, Lines},
    print,
    reach::{Place, own},
    secrets, shown, suggest, tool_settings, values,
};
use backend::server_files;
use rest::configured;

/// Interval between checks whether a server is connected.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
/// Number of stderr lines shown for a server that did not start.
const TAIL_LINES: &str = "10";

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only these servers, by name or id.
    #[arg(value_name = "NAME", add = names::servers())]
    names: Vec<ServerName>,
    /// Only servers of this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// The server's name or id.
    #[arg(add = names::servers())]
    name: ServerName,
    /// The project that owns the server.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct StatusArgs {
    /// The server's name or id. Without it, list all servers.
    #[arg(add = names::servers())]
    name: Option<ServerName>,
    /// The project of the servers.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    named: NameArgs,
    /// Also delete the volumes of a registered server.
    #[arg(long)]
    volumes: bool,
}

#[derive(clap::Args)]
pub(super) struct SwitchArgs {
    /// A server, or one of its tools as SERVER/TOOL.
    #[arg(value_name = "NAME[/TOOL]", add = names::servers())]
    name: String,
    /// Change only this project: a server that it owns, or any tool that it sees.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Maximum time to wait until the server connects, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, allow_hyphen_values = true, value_parser = values::wait)]
    wait: u64,
}

#[derive(clap::Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    named: NameArgs,
    #[command(flatten)]
    lines: Lines,
}

impl NameArgs {
    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }

    /// Returns the API path of the server, or one below it.
    pub(super) fn path(&self, below: &[&str]) -> String {
        self.path_with(below, &[])
    }

    /// Returns the path with additional query parameters.
    pub(super) fn path_with(&self, below: &[&str], query: &[(&str, Option<&str>)]) -> String {
        let project = self.project.as_ref().map(ProjectId::as_str);
        let query = [&[("project", project)], query].concat();
        of_server(self.name.as_str(), below) + &http::query(&query)
    }

    async fn place(&self, context: &Context) -> anyhow::Result<Place> {
        context.place_of(self.project.as_ref()).await
    }
}

pub(super) fn said_name(server: &Server) -> String {
    let name = &server.name;
    match &server.project {
        Some(project) => format!("`{name}` of project `{project}`"),
        None => format!("`{name}`"),
    }
}

pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", print::printable(warning));
    }
}

pub(super) async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let place = context.place_of(args.project.as_ref()).await?;
    let mut servers: Vec<Server> = match &place {
        Place::Gateway(api) => all_servers(api, args.project.as_ref()).await?,
        Place::Files(sources) => {
            eprintln!("no gateway is running: reading the configuration files");
            let config = load_config(sources)?;
            config.servers.iter().map(configured).collect()
        }
    };
    let is_named = |server: &Server, name: &ServerName| {
        server.name == name.as_str() || server.id == name.as_str()
    };
    for name in &args.names {
        if !servers.iter().any(|server| is_named(server, name)) {
            return Err(unknown(
                name.as_str(),
                servers.iter().map(|server| &*server.name),
            ));
        }
    }
    if !args.names.is_empty() {
        servers.retain(|server| args.names.iter().any(|name| is_named(server, name)));
    }
    if context.output == Output::Json {
        return print::json(&json!({ "servers": servers }));
    }
    if servers.is_empty() {
        let of = args
            .project
            .as_ref()
            .map_or_else(String::new, |it| format!(" --project {it}"));
        eprintln!("there are no servers yet; `toolwharf add NAME{of} -- COMMAND` adds one");
    }
    print::data(&shown::table(&servers))?;
    match place {
        Place::Gateway(api) => attention::say(&api, args.project.as_ref()).await,
        Place::Files(_) => Ok(()),
    }
}

pub(super) async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let server = match args.place(context).await? {
        Place::Gateway(api) => match context.shown(&api, &args.path(&[])).await? {
            Some(server) => server,
            None => return Ok(()),
        },
        Place::Files(sources) => {
            eprintln!("no gateway is running: reading the configuration files");
            let config = load_config(&sources)?;
            let found = config.servers.iter().find(|spec| spec.name == args.name);
            let names = config.servers.iter().map(|spec| spec.name.as_str());
            configured(found.ok_or_else(|| unknown(args.name.as_str(), names))?)
        }
    };
    context.print(&server, || shown::fields(&server))
}

pub(super) async fn status(context: &Context, args: StatusArgs) -> anyhow::Result<()> {
    let StatusArgs { name, project } = args;
    match name {
        Some(name) => show(context, NameArgs { name, project }).await,
        None => {
            let names = Vec::new();
            list(context, ListArgs { names, project }).await
        }
    }
}

fn unknown<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    anyhow::anyhow!("{}", suggest::missing("server", name, &known, "ls"))
}

/// Fails if the server cannot work until a user changes something. The reason is already printed, so the error has no
/// message.
pub(super) fn usable(server: &Server) -> anyhow::Result<()> {
    match server.status.as_str() {
        "blocked" | "failed" | "unusable" | "unavailable" => Err(No.into()),
        _ => Ok(()),
    }
}

pub(super) async fn remove(context: &Context, args: RemoveArgs) -> anyhow::Result<()> {
    let RemoveArgs { named, volumes } = args;
    match named.place(context).await? {
        Place::Gateway(api) => {
            let server: Server = api.get(&named.path(&[])).await?;
            let gone = named.path_with(&[], &[("volumes", Some(&volumes.to_string()))]);
            let removed: Option<Removed> = api.delete(&gone).await?;
            let whose = said_name(&server);
            match removed {
                Some(removed) => {
                    warn(&removed.notices);
                    eprintln!("removed {whose} from {}", removed.file);
                }
                None if volumes => eprintln!("removed {whose} with its volumes"),
                None => eprintln!("removed {whose}"),
            }
        }
        Place::Files(sources) => {
            let name = &named.name;
            let file = server_files::remove(&sources, name)?;
            let file = file.display();
            eprintln!("no gateway is running: removed `{name}` from {file}");
        }
    }
    Ok(())
}

pub(super) async fn order(
    context: &Context,
    args: NameArgs,
    verb: &str,
    done: &str,
) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let server: Server = api.post(&args.path(&[verb]), &json!({})).await?;
    eprintln!("{done} {}", said_name(&server));
    said(&api, &server, 0).await;
    context.print_json(&server)?;
    usable(&server)
}

/// Waits until a server connects, and prints its state.
pub(super) async fn connected(api: &Api, mut server: Server, wait: u64) -> anyhow::Result<Server> {
    let now = tokio::time::Instant::now();
    let deadline = now + Duration::from_secs(wait.min(24 * 3600));
    // A server that starts at its first use stays idle.
    let idle_until = deadline.min(now + Duration::from_secs(1));
    let of_server = of_server(&server.id, &[]);
    loop {
        let until = match server.status.as_str() {
            "starting" | "restarting" => deadline,
            "idle" if server.declared == "file" && server.starts == 0 => idle_until,
            _ => break,
        };
        if tokio::time::Instant::now() >= until {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        server = api.get(&of_server).await?;
    }
    said(api, &server, wait).await;
    Ok(server)
}

/// Prints the state of a server.
async fn said(api: &Api, server: &Server, waited: u64) {
    let Server { id, name, .. } = server;
    let of = server.project.as_ref();
    let of = of.map_or_else(String::new, |project| format!(" --project {project}"));
    match server.status.as_str() {
        "running" => {
            let version = server.protocol_version.as_deref().unwrap_or("MCP");
            let tools = shown::tools(server.tools);
            match &server.sandbox {
                Some(sandbox) => eprintln!("connected: {tools}, {version}, under {sandbox}"),
                None => eprintln!("connected: {tools}, {version}"),
            }
            for one in server.enforced.iter().filter(|one| !one.holds) {
                let line = format!("not enforced: {}: {}", one.what, one.how);
                eprintln!("{}", print::printable(&line));
            }
        }
        "starting" | "restarting" if waited == 0 => {
            eprintln!("`{name}` is starting; `toolwharf get {name}{of}` shows its state");
        }
        "starting" | "restarting" => {
            match server.reason.as_ref().filter(|_| server.restart_count > 0) {
                Some(reason) => eprintln!(
                    "`{name}` failed and is starting again: {}; `toolwharf get {name}{of}` shows its state",
                    print::printable(reason)
                ),
                None => eprintln!(
                    "`{name}` is still starting after {waited} s; `toolwharf get {name}{of}` shows its state"
                ),
            }
        }
        "idle" if server.reason.is_none() => eprintln!("`{name}` starts at its first use"),
        "disabled" => {
            eprintln!("`{name}` is disabled; `toolwharf enable {name}{of}` enables it");
        }
        "stopped" => eprintln!("`{name}` stays stopped until `toolwharf start {name}{of}`"),
        status => {
            let reason = server.reason.as_deref().unwrap_or("the reason is unknown");
            let line = format!("`{name}` is not connected ({status}): {reason}");
            let width = print::width(&std::io::stderr());
            eprintln!("{}", print::wrapped(&line, 2, width));
            let logs = format!("{}?tail={TAIL_LINES}", of_server(id, &["logs"]));
            let tail = api.text(&logs).await.unwrap_or_default();
            for line in tail.lines() {
                eprintln!("  | {}", print::printable(line));
            }
            if let Some(ms) = server.next_attempt_ms {
                eprintln!("next attempt in {}", print::duration(ms));
            }
            if !server.unset.is_empty() {
                let set = server
                    .unset
                    .iter()
                    .map(|name| format!("`{}`", secrets::command(name, server.project.as_deref())));
                let set: Vec<String> = set.collect();
                eprintln!("{} starts it", set.join(", then "));
                return;
            }
            eprintln!(
                "`toolwharf logs -f {name}{of}` shows its output, `toolwharf events {name}{of}` its history"
            );
        }
    }
}

pub(super) async fn events(context: &Context, args: EventsArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let cells = |event: &Event| {
        [
            print::time(event.at),
            event.kind.clone(),
            shown::detail(&event.detail),
        ]
    };
    let all = of_server(args.named.name.as_str(), &["events"]);
    let filter = json!({ "project": args.named.project });
    let listed = pages::list(&api, &all, &filter, &args.lines).await?;
    listed.print(context, "no events yet", ["TIME", "EVENT", "DETAIL"], cells)
}

pub(super) async fn switch(
    context: &Context,
    args: SwitchArgs,
    enabled: bool,
) -> anyhow::Result<()> {
    let wrong = |error| {
        Usage(format!(
            "`{}`: {error}; write SERVER or SERVER/TOOL",
            args.name
        ))
    };
    let word = if enabled { "enable" } else { "disable" };
    let tool = match args.name.contains('/') {
        true => Some(ToolRef::parse(&args.name).map_err(wrong)?),
        false => None,
    };
    if let (Some(project), Some(tool)) = (&args.project, &tool) {
        let api = context.gateway().await?;
        let change = |setting: &mut Setting| setting.enabled = Some(enabled);
        return tool_settings::set(context, &api, project, tool, change).await;
    }
    if let Some(tool) = tool {
        let place = context.place().await?;
        return switch_tool(context, &place, &tool, enabled).await;
    }
    let named = NameArgs {
        name: ServerName::parse(&args.name).map_err(wrong)?,
        project: args.project,
    };
    match named.place(context).await? {
        Place::Gateway(api) => {
            let project = named.project.as_ref();
            let before = match enabled {
                true => Some(clashes::Names::read(&api, project).await),
                false => None,
            };
            let mut server: Server = api.post(&named.path(&[word]), &json!({})).await?;
            warn(&server.notices);
            let whose = said_name(&server);
            match &server.file {
                Some(file) => eprintln!("{word}d {whose} in {file}"),
                None => eprintln!("{word}d {whose}"),
            }
            let Some(before) = before else {
                return context.print_json(&server);
            };
            server = connected(&api, server, args.wait).await?;
            clashes::report(&api, project, &server, before).await;
            context.print_json(&server)?;
            usable(&server)
        }
        Place::Files(sources) => {
            let name = &named.name;
            let file = server_files::set_enabled(&sources, &own(&sources), name, enabled)?;
            let file = file.display();
            eprintln!("no gateway is running: {word}d `{name}` in {file}");
            Ok(())
        }
    }
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
            let of_tool = of_server(server.as_str(), &["tools", native.as_str()]);
            let set: Set = api.put(&of_tool, &json!({ "enabled": enabled })).await?;
            warn(&set.notices);
            let file = set.file.as_ref().map(|file| format!(" in {file}"));
            let file = file.unwrap_or_default();
            eprintln!("{word}d the tool `{native}` of `{server}`{file}");
            context.print_json(&set)?;
        }
        Place::Files(sources) => {
            let file =
                server_files::set_tool_enabled(sources, &own(sources), server, native, enabled)?;
            let file = file.display();
            eprintln!("no gateway is running: {word}d the tool `{native}` of `{server}` in {file}");
        }
    }
    Ok(())
}
