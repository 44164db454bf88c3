//! `connect` and `disconnect`: change the files of MCP clients.
//!
//! The files are changed by this process even if a gateway runs, because they belong to the user of this command, and
//! so does the environment that determines their paths. A running gateway creates the key.

use anyhow::{Context as _, bail};
use api::{Connected, Key, MadeKey};
use config::{Client, Sources};
use model::ProjectId;
use serde_json::{Value, json};
use store::Store;

use super::{
    Context, Output, Usage,
    http::{Api, of_project, path},
    names, pages, print,
    prompt::agreed,
    reach::{Place, in_use, own},
    servers::warn,
    tool_lookup,
};
use backend::{
    clients::{
        self, Clients, Wish,
        keys::{Keyring, Made, Stored},
    },
    lock,
    loop_detection::LoopDetection,
    startup::{self, CliOverrides},
};

/// Maximum number of keys with the name of one client.
const MAX_NUMBER: u32 = 50;

#[derive(clap::Args)]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    which: Which,
    /// The project whose servers the client sees. The default is all servers.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Write the gateway's URL and a key to the client's file instead of a command.
    #[arg(long)]
    http: bool,
    /// Move the client's own servers to Toolwharf.
    #[arg(long = "move")]
    take: bool,
    #[command(flatten)]
    overrides: CliOverrides,
}

#[derive(clap::Args)]
pub(super) struct DisconnectArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    overrides: CliOverrides,
}

#[derive(clap::Args)]
struct Which {
    /// The client, such as `cursor`. Without it, list the installed clients.
    #[arg(value_parser = Clients::find)]
    client: Option<&'static Client>,
    /// All installed clients.
    #[arg(long, conflicts_with = "client")]
    all: bool,
    /// Show the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

/// The state that `connect` and `disconnect` share.
struct Bench {
    clients: Clients,
    sources: Sources,
    myself: LoopDetection,
    keys: Keys,
}

/// Where keys are created: at a running gateway, otherwise in the database.
enum Keys {
    Gateway(Api),
    Store(Store),
    /// A dry run, which creates no key.
    Nobody,
}

pub(super) async fn connect(context: &Context, args: ConnectArgs) -> anyhow::Result<()> {
    let wish = Wish {
        project: args.project,
        http: args.http,
        take: args.take,
    };
    if args.which.is_none() {
        return list(context, &args.overrides).await;
    }
    let changes = !args.which.dry_run;
    let bench = Bench::open(context, &args.overrides, changes).await?;
    if let Some(project) = &wish.project {
        bench.keys.check_project(project).await?;
    }
    let mut done = Vec::new();
    for client in args.which.of(|_| true, &bench.clients) {
        done.extend(bench.connect(context, client, &wish, &args.which).await?);
    }
    bench.close().await;
    context.print_json(&done)
}

pub(super) async fn disconnect(context: &Context, args: DisconnectArgs) -> anyhow::Result<()> {
    if args.which.is_none() {
        return list(context, &args.overrides).await;
    }
    let changes = !args.which.dry_run;
    let bench = Bench::open(context, &args.overrides, changes).await?;
    let mut done = Vec::new();
    for client in args.which.of(clients::Seen::was_connected, &bench.clients) {
        done.extend(bench.disconnect(context, client, &args.which).await?);
    }
    bench.close().await;
    context.print_json(&done)
}

async fn list(context: &Context, overrides: &CliOverrides) -> anyhow::Result<()> {
    let bench = Bench::open(context, overrides, false).await?;
    let mut clients = Vec::new();
    for seen in bench.clients.installed() {
        let diff = bench.clients.diff_of(&seen, bench.with());
        clients.push(seen.to_api(diff));
    }
    if context.output == Output::Json {
        return print::json(&api::Clients { clients });
    }
    if clients.is_empty() {
        eprintln!("no supported client is installed");
        return Ok(());
    }
    let rows: Vec<[String; 5]> = clients
        .into_iter()
        .map(|client| {
            let problem = client.problem.as_deref().unwrap_or_default();
            let note = match (&client.project, problem.lines().next()) {
                (_, Some(problem)) => problem.trim_start_matches("error: ").to_owned(),
                (Some(project), None) => format!("project {project}"),
                (None, None) => String::new(),
            };
            let servers = client.servers.join(", ");
            [client.name, client.state, client.file, servers, note]
        })
        .collect();
    print::data(&print::table(
        ["CLIENT", "STATE", "FILE", "ITS OWN SERVERS", "NOTE"],
        &rows,
    ))
}

impl Which {
    fn is_none(&self) -> bool {
        self.client.is_none() && !self.all
    }

    fn of(&self, fits: impl Fn(&clients::Seen) -> bool, all: &Clients) -> Vec<&'static Client> {
        match self.client {
            Some(client) => vec![client],
            None => all
                .installed()
                .into_iter()
                .filter(|seen| fits(seen))
                .map(|seen| seen.client)
                .collect(),
        }
    }
}

impl Bench {
    /// `changes`: false for a dry run, which creates no keys.
    async fn open(
        context: &Context,
        overrides: &CliOverrides,
        changes: bool,
    ) -> anyhow::Result<Self> {
        let place = context.place().await?;
        let located = Sources::locate(&context.config, &startup::env)?;
        let dir = context
            .dir(Some(&located))
            .context("no data directory: set HOME, or name one with --data-dir")?;
        let dir = std::path::absolute(dir)?;
        let there = lock::gateway_record(&dir);
        let sources = in_use(located, there.as_ref())?;
        let fixed = there.and_then(|there| there.url_of_clients());
        let (keys, url) = match place {
            Place::Gateway(api) if context.reach.url.is_some() => {
                let url = api.url.clone();
                (Keys::Gateway(api), Some(url))
            }
            Place::Gateway(api) => (Keys::Gateway(api), fixed),
            Place::Files(_) if changes => {
                let mut settings = startup::settings(&sources)?;
                overrides.overrule(&mut settings);
                settings.data_dir = Some(dir.clone());
                startup::open_data_dir(&settings)?;
                let store = startup::open_store(&settings, &dir).await?;
                (Keys::Store(store), None)
            }
            Place::Files(_) => (Keys::Nobody, None),
        };
        Ok(Self {
            clients: Clients::new(&sources, &dir, url),
            myself: own(&sources),
            sources,
            keys,
        })
    }

    async fn close(self) {
        if let Keys::Store(store) = self.keys {
            store.close().await;
        }
    }

    fn with(&self) -> (&Sources, &LoopDetection) {
        (&self.sources, &self.myself)
    }

    async fn connect(
        &self,
        context: &Context,
        client: &'static Client,
        wish: &Wish,
        how: &Which,
    ) -> anyhow::Result<Option<Connected>> {
        let wish = Wish {
            // A gateway given by URL may be on another machine.
            http: wish.http || context.reach.url.is_some(),
            ..wish.clone()
        };
        if wish.take && context.reach.url.is_some() {
            let why =
                "servers can be moved only to a gateway on this machine: leave --move or --url out";
            return Err(Usage(why.to_owned()).into());
        }
        let plan = self.clients.plan(client, &wish, self.with())?;
        let connected = plan.to_api(self.clients.diff(&plan)?);
        show(context, &connected.diff)?;
        for one in &connected.staying {
            eprintln!(
                "`{}` is not moved: {}",
                one.name,
                print::printable(&one.why)
            );
        }
        let twice = plan.warnings_of_twice();
        warn(&twice);
        if how.dry_run {
            return Ok(Some(connected));
        }
        let title = client.title;
        if !connected.diff.is_empty() {
            agreed(&format!("Write this to {}?", connected.file), how.yes)?;
        }
        if !plan.moving.is_empty() {
            backend::server_files::import_all(&self.sources, &self.myself, &plan.moving)?;
        }
        let movable = match wish.take {
            true => Vec::new(),
            false => plan.movable(),
        };
        if !self.clients.connect(plan, &self.keys).await? {
            eprintln!("{title} is already connected");
            return Ok(Some(connected));
        }
        let more = connected.warnings.iter().filter(|one| !twice.contains(one));
        warn(&more.cloned().collect::<Vec<_>>());
        let moved = match connected.moved.as_slice() {
            [] => String::new(),
            moved => format!(", and moved {} to Toolwharf", print::names(moved)),
        };
        eprintln!(
            "connected {title} in {}{moved}; restart {title} to apply the change",
            connected.file
        );
        if !movable.is_empty() {
            let servers = print::printable(&print::names(&movable));
            eprintln!(
                "`toolwharf connect {} --move` moves the client's own servers to Toolwharf: {servers}",
                client.name
            );
        }
        Ok(Some(connected))
    }

    async fn disconnect(
        &self,
        context: &Context,
        client: &'static Client,
        how: &Which,
    ) -> anyhow::Result<Option<api::Disconnected>> {
        let undo = self.clients.undo(client)?;
        let diff = self.clients.undo_diff(&undo);
        show(context, &diff)?;
        if how.dry_run {
            return Ok(Some(undo.to_api(Vec::new())));
        }
        let disconnected = undo.to_api(Vec::new());
        if !diff.is_empty() {
            agreed(&format!("Write this to {}?", disconnected.file), how.yes)?;
        }
        self.clients.disconnect(&undo, &self.keys).await?;
        let removed = self.clients.take_out(&undo, &self.sources)?;
        let title = client.title;
        match disconnected.restored.as_str() {
            "whole" => eprintln!("disconnected {title} and restored {}", disconnected.file),
            "entry" => eprintln!(
                "disconnected {title}: {} has been edited since, so only Toolwharf's entry was removed",
                disconnected.file
            ),
            _ => eprintln!(
                "disconnected {title}: there was nothing to restore in {}",
                disconnected.file
            ),
        }
        if !disconnected.put_back.is_empty() {
            eprintln!(
                "moved back to {title}: {}",
                print::names(&disconnected.put_back)
            );
        }
        if !removed.is_empty() {
            eprintln!("removed from Toolwharf: {}", print::names(&removed));
        }
        Ok(Some(undo.to_api(removed)))
    }
}

fn show(context: &Context, diff: &str) -> anyhow::Result<()> {
    match context.output {
        Output::Table => print::data(&print::printable(diff)),
        Output::Json => Ok(()),
    }
}

impl Keys {
    /// Fails if the project does not exist, before the user is asked anything.
    async fn check_project(&self, project: &ProjectId) -> anyhow::Result<()> {
        match self {
            Self::Store(store) => {
                store.project_get(project).await?;
            }
            Self::Gateway(api) => {
                let tools = tool_lookup::of(Some(project), None, None);
                api.get::<Value>(&tools).await?;
            }
            Self::Nobody => {}
        }
        Ok(())
    }
}

impl Keyring for Keys {
    type Error = anyhow::Error;

    async fn make(&self, client: &Client, project: Option<&ProjectId>) -> anyhow::Result<Made> {
        match self {
            Self::Store(store) => Ok(Stored { store }.make(client, project).await?),
            Self::Gateway(api) => {
                let keys = path(&["keys"]) + &of_project(project);
                let name = clients::keys::name(client);
                let mut number = 1;
                loop {
                    // Clients of other machines may have keys with this name.
                    let numbered = match number {
                        1 => name.clone(),
                        number => format!("{name} ({number})"),
                    };
                    let wanted = json!({"name": numbered, "role": "call"});
                    match api.post::<MadeKey>(&keys, &wanted).await {
                        Ok(MadeKey { key, token }) => return Ok(Made { id: key.id, token }),
                        Err(error) if has_status(&error, 409) && number < MAX_NUMBER => number += 1,
                        Err(error) => return Err(error),
                    }
                }
            }
            Self::Nobody => bail!("a dry run creates no key"),
        }
    }

    async fn revoke(&self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Store(store) => Ok(Stored { store }.revoke(id).await?),
            Self::Gateway(api) => match api.delete::<Value>(&path(&["keys", id])).await {
                Err(error) if !has_status(&error, 404) => Err(error),
                _ => Ok(()),
            },
            Self::Nobody => Ok(()),
        }
    }

    async fn lives(&self, id: &str) -> anyhow::Result<bool> {
        match self {
            Self::Store(store) => Ok(Stored { store }.lives(id).await?),
            Self::Gateway(api) => {
                let all = pages::all::<Key>(api, &path(&["keys"]), &()).await?;
                let now = store::now();
                let lives = |key: &Key| {
                    key.revoked_at.is_none() && key.expires_at.is_none_or(|end| end > now)
                };
                Ok(all.rows.iter().any(|key| key.id == id && lives(key)))
            }
            Self::Nobody => Ok(true),
        }
    }
}

fn has_status(error: &anyhow::Error, status: u16) -> bool {
    let refused = error.downcast_ref::<super::http::Refused>();
    refused.is_some_and(|refused| refused.status == status)
}
