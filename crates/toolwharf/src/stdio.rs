//! `stdio`: MCP on standard input and output.
//!
//! If a gateway runs on the data directory, this process is its client ([`bridge`]): it starts no servers and writes no
//! audit records. If none runs, or with `--standalone`, this process is a separate gateway. Such a gateway never takes
//! the lock of the data directory, starts no hosted servers, and leaves alone what another gateway may still need:
//! sandboxes, containers, audit records of open calls.

mod bridge;
mod link;
mod params;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use config::{Client, Sources};
use engine::Scope;
use mcp::chain::Chain;
use model::{ProjectId, ServerName, Settings, ToolMode};
use store::Store;
use tokio::time::Instant;

use self::link::Finder;
use crate::{
    logs,
    serve::{STOP_TIMEOUT, ended},
};
use auth::admin_token::TOKEN_FILE;
use backend::{
    clients::{self, Clients, token_file},
    config_secrets,
    loop_detection::LoopDetection,
    reload::{Live, warn_of},
    service_manager::ServiceManager,
    startup::{self, CliOverrides},
};

/// Error for a client that was disconnected with `toolwharf disconnect`.
const NO_KEY: &str = "the client `NAME` has no valid key: run `toolwharf connect NAME`";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) overrides: CliOverrides,
    /// Only the servers of this project.
    #[arg(long)]
    project: Option<ProjectId>,
    /// Only this server, with unprefixed names.
    #[arg(long)]
    server: Option<ServerName>,
    /// The tools in its lists: all, search (tools that find the others) or auto (search for long lists).
    #[arg(long, value_name = "MODE")]
    tools: Option<ToolMode>,
    /// The client that starts this, as written by `toolwharf connect`. Its calls use its own key.
    #[arg(long, value_parser = connected)]
    client: Option<&'static Client>,
    /// Run a separate gateway with separate instances, even if one runs on the data directory.
    #[arg(long)]
    standalone: bool,
}

/// Speaks MCP on standard input and output until its end, SIGTERM or SIGINT.
pub(crate) async fn run(named: &[PathBuf], args: Args) -> anyhow::Result<()> {
    runtime::process::raise_file_limit();
    let sources = Sources::locate(named, &startup::env)?;
    // Only the settings are read here. The server entries may be invalid, because only the running gateway uses them.
    let mut settings = startup::settings(&sources)?;
    args.overrides.overrule(&mut settings);
    logs::init(&settings);
    let data_dir = startup::open_data_dir(&settings)?;
    let chain = startup::chain(&data_dir, true)?;
    if !args.standalone && chain.refusal().is_none() {
        let finder = Finder {
            dir: data_dir.clone(),
            token: args.client.map_or_else(
                || data_dir.join(TOKEN_FILE),
                |client| token_file(&data_dir, client),
            ),
            sources: sources.clone(),
            scope: Scope {
                project: args.project.clone(),
                server: args.server.clone(),
                tools: args.tools,
                ..Scope::default()
            },
            max_message: settings.limits.max_body_bytes,
            // Twice the gateway's limit for a server's message, because the gateway adds prefixes to names.
            max_answer: 2 * settings.limits.max_line_bytes,
        };
        if let Some(place) = finder.wait().await? {
            return bridge::run(finder, place, ended()).await;
        }
    }
    own(sources, args, settings, data_dir, chain).await
}

fn connected(name: &str) -> Result<&'static Client, clients::Error> {
    Clients::find(name)
}

/// The owner of a client's key, as named in audit records.
async fn identified(store: &Store, data_dir: &Path, client: &Client) -> anyhow::Result<Arc<str>> {
    let file = token_file(data_dir, client);
    let again = || NO_KEY.replace("NAME", client.name);
    let token = fs::read_to_string(&file).with_context(again)?;
    let key = store.key_by_hash(&auth::hash(token.trim())).await?;
    let key = key.filter(|key| key.is_living(store::now()));
    let key = key.with_context(again)?;
    Ok(format!("key:{}", key.id).into())
}

/// Runs a separate gateway.
async fn own(
    sources: Sources,
    args: Args,
    settings: Settings,
    data_dir: PathBuf,
    chain: Chain,
) -> anyhow::Result<()> {
    let store = startup::open_store(&settings, &data_dir).await?;
    config_secrets::load(&sources, &store, &data_dir).await?;
    let mut config = startup::load(&sources)?;
    config.settings = settings;
    let myself = LoopDetection::at(&[]);
    myself.leave_out(&mut config);
    warn_of(&config);
    let refusal = chain.refusal();
    if let Some(why) = &refusal {
        // The gateway starts no servers, but answers requests, so that the client's user learns the reason.
        tracing::error!("started without servers: {why}");
        config.servers.clear();
    }
    let (gateway, projects, _logins) = startup::gateway(
        config.settings.clone(),
        &data_dir,
        store.clone(),
        chain,
        startup::spawner()?,
        None,
        None,
    )
    .await?;
    projects
        .declared(&startup::declared_projects(&config))
        .await;
    let remembered = startup::remembered(&store, &config).await?;
    let caller = match args.client {
        Some(client) => identified(&store, &data_dir, client).await?,
        None => "stdio".into(),
    };
    let mut scope = Scope {
        project: args.project,
        server: args.server,
        tools: args.tools,
        ..Scope::default()
    };
    if refusal.is_some() {
        scope = Scope::default();
    }
    gateway.start(config.servers.clone(), remembered).await?;
    projects.admit(&scope).await?;
    if gateway.view(&scope).is_none() {
        gateway.shutdown(Instant::now() + STOP_TIMEOUT).await;
        let list = match (&scope.project, &scope.server) {
            (Some(_), None) => "`toolwharf project ls` lists the projects",
            _ => "`toolwharf ls` lists the servers",
        };
        bail!("{}; {list}", scope.missing());
    }
    let live = Live::new(
        sources,
        gateway.clone(),
        projects,
        args.overrides,
        myself,
        ServiceManager::default(),
    );
    tokio::select! {
        () = gateway::stdio::run(&gateway, caller, scope, tokio::io::stdin(), tokio::io::stdout()) => {}
        () = live.watch(), if refusal.is_none() => {}
        _ = ended() => {}
    }
    gateway.shutdown(Instant::now() + STOP_TIMEOUT).await;
    store.close().await;
    Ok(())
}
