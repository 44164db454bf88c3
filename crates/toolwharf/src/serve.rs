//! The command `serve`: runs the gateway.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use model::{ProjectId, Settings};
use store::Home;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use crate::{changes::Changes, logs, memory, ops, webhook};
use auth::{Identities, Role, tickets::Tickets};
use backend::{
    clients::Clients,
    hosting::Hosting,
    live::{Live, warn_of},
    lock::Lock,
    logins,
    loop_detection::LoopDetection,
    projects::Projects,
    replica::{self, Replica},
    startup::{self, CliOverrides},
};
use gateway::{
    For, Guard, HttpGateway, Leases, Seal,
    peers::{self, Peers},
    signin,
};
use install::Catalogue;
use rest::{
    Rest, Site,
    agents::Agents,
    console::{self, Apps},
};

/// Time for clients to receive the last event of a chat that was stopped.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time from the stop signal to the last `SIGKILL` (H11): half a minute in total, with one second left for writing
/// data.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(29);
/// The part of that reserved for stopping servers, even if calls and turns are still running.
const MIN_GRACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    pub(crate) overrides: CliOverrides,
}

/// Runs the gateway over HTTP until SIGTERM or SIGINT.
pub(crate) async fn serve(named: &[PathBuf], args: Args) -> anyhow::Result<()> {
    let files = runtime::process::raise_file_limit();
    let (sources, mut config) = startup::load(named)?;
    args.overrides.overrule(&mut config.settings);
    logs::init(&config.settings);
    let data_dir = startup::open_data_dir(&config.settings)?;
    let lock = Lock::take(&data_dir).await?;
    let store = startup::open_store(&config.settings, &data_dir).await?;
    let spawner = startup::spawner()?;
    let replicas = config.settings.replicas;
    let (inside, replica) = match &config.settings.database_url {
        Some(url) => {
            let (inside, address) = peers::bind(replicas.listen, url).await?;
            let sentinel = spawner.clone();
            let end_all_at = move |at| sentinel.end_all_at(at);
            let joined = Replica::join(
                &store,
                replicas.lease,
                end_all_at,
                &data_dir,
                address.clone(),
            );
            (Some((inside, address)), joined.await?)
        }
        None => (None, None),
    };
    startup::close_open(&store).await?;
    let (token, new) = auth::bootstrap(&store, &data_dir).await?;
    let wanted = args.listen.as_ref().unwrap_or(&config.settings.listen);
    let is_fixed = !wanted.ends_with(":0");
    let listener = bind(wanted).await?;
    let address = listener.local_addr()?;
    let apps = Apps::open(
        &config.settings,
        address,
        is_fixed,
        &bases(&config.settings, address),
    )
    .await?;
    let myself = LoopDetection::at(&[address]);
    myself.leave_out(&mut config);
    warn_of(&config);
    let chain = startup::chain(&data_dir, false)?;
    let (gateway, projects, logins) = startup::gateway(
        config.settings.clone(),
        &data_dir,
        store.clone(),
        chain,
        spawner,
        Some(startup::own_files(&sources, &data_dir)),
    )
    .await?;
    let tickets = Arc::new(Tickets::new(store.clone(), projects.session_key().await?));
    let all = bases(&config.settings, address);
    let identities = Identities::new(&config.settings, all, tickets.clone()).context(
        "the root certificates of this host cannot be read; `apt-get install ca-certificates`",
    )?;
    let keys = identities.keys.clone();
    if replica.is_some() {
        keys.share();
    }
    keys.refresh(&store).await?;
    projects
        .declared(&startup::declared_projects(&config))
        .await;
    let remembered = startup::remembered(&store, &config).await?;
    let hosting = Hosting::new(store.clone(), gateway.clone(), projects.clone());
    let agents = Agents::new(gateway.clone(), projects.clone(), store.clone());
    let guard = Guard::new(&config.settings, address.ip(), identities.clone());
    let most = most_connections(config.settings.limits.max_connections, files);
    let (inside, peers) = match (inside, &replica) {
        (Some((inside, address)), Some(replica)) => {
            let key = projects.session_key().await?;
            gateway.keep_place(Seal::new(projects.session_key().await?).seal_place(&address));
            let installation = key.installation().into();
            let peers = Peers::new(replica.clone(), address, key);
            let home = Home {
                installation: startup::installation(&data_dir)?,
                host: replica::host(),
            };
            gateway.keep_gate(Arc::new(Leases {
                peers: peers.clone(),
                gateway: gateway.clone(),
                store: store.clone(),
                installation,
                home,
            }));
            (Some(inside), Some(peers))
        }
        _ => (None, None),
    };
    let front = HttpGateway::new(
        gateway.clone(),
        projects.clone(),
        guard,
        Seal::new(projects.session_key().await?),
        peers.clone(),
        most,
    );
    let over = CancellationToken::new();
    let url = format!("http://{}", dialable(address));
    if new {
        eprintln!(
            "administrator's token (kept in {}): {token}",
            data_dir.join("admin-token").display()
        );
    }
    let settings = &config.settings;
    logins.listen(settings.public_url.as_deref().unwrap_or(&url), tickets);
    if !address.ip().is_loopback() && settings.public_url.is_none() && !settings.oidc.is_empty() {
        tracing::warn!(
            "clients will sign in for {url}: set `public_url` to the address that they use"
        );
    }
    eprintln!("toolwharf is at {url}/mcp");
    if let Some(who) = keys.identify(&token)
        && let Some(link) = front.guard().link(&who).await?
    {
        eprintln!("sign a browser in, once and within 10 minutes: {link}");
    }
    let announced = lock.announce(&url, is_fixed, &sources)?;

    let live = Live::new(
        sources,
        gateway.clone(),
        projects.clone(),
        args.overrides,
        myself,
    );
    let ready = ops::Ready::default();
    let is_local = address.ip().is_loopback()
        && config.settings.public_url.is_none()
        && config.settings.oidc.is_empty();
    let fixed = is_fixed.then(|| url.clone());
    let clients = is_local.then(|| Clients::new(live.sources(), &data_dir, fixed));
    let rest = Rest::new(
        front.clone(),
        live.clone(),
        hosting.clone(),
        agents.clone(),
        keys.clone(),
        logins.clone(),
        Catalogue::new(&data_dir),
        clients,
        replica.clone(),
        over.clone(),
    );
    let identify = (!is_local).then(|| {
        let identities = identities.clone();
        Box::new(
            move |headers: HeaderMap, key: Option<String>, owner: Option<ProjectId>| {
                let identities = identities.clone();
                let shown = async move {
                    let who = match key.and_then(|key| identities.keys.identify(&key)) {
                        Some(who) => who,
                        None => identities.navigating(&headers).await.ok()??,
                    };
                    let role = owner.as_ref().map_or(Role::Admin, |_| Role::Manage);
                    Some(logins::Shown {
                        id: who.id.clone(),
                        manages: who.may(role, owner.as_ref()),
                    })
                };
                Box::pin(shown) as BoxFuture<'static, _>
            },
        ) as logins::Identify
    });
    let more = ops::router(
        front.clone(),
        gateway.clone(),
        (ready.clone(), keys.clone()),
        replica.clone(),
    )
    .merge(console::router(apps.as_ref().map(Apps::origin)))
    .merge(signin::router(&front))
    .merge(logins::router(logins.clone(), projects.clone(), identify));
    let other = Site::new(rest, more);
    let drain = config.settings.limits.drain.min(STOP_TIMEOUT - MIN_GRACE);
    // Requests wait until the servers are declared. Otherwise they would fail because a server is unknown.
    let declared = CancellationToken::new();
    let serving = async {
        declared.cancelled().await;
        let whom = For::Clients(other.clone());
        gateway::serve(listener, front.clone(), whom, over.clone(), drain).await
    };
    // Stays open longer than the clients' listener: other replicas use the servers here until they have taken them
    // over.
    let closed_inside = CancellationToken::new();
    let serving_inside = inside.map(|inside| {
        let (front, over) = (front.clone(), closed_inside.clone());
        let whom = For::Replicas(other.clone());
        let declared = declared.clone();
        let serving = async move {
            declared.cancelled().await;
            gateway::serve(inside, front, whom, over, Duration::ZERO).await
        };
        AbortOnDropHandle::new(TaskTracker::new().spawn(serving))
    });
    let sandbox = async {
        match apps {
            Some(apps) => apps.serve().await,
            None => std::future::pending().await,
        }
    };
    let working = async {
        // Starting may take longer than a lease, which must be renewed meanwhile.
        tokio::select! {
            started = async {
                hosting.reload().await?;
                gateway.start(config.servers.clone(), remembered).await?;
                anyhow::Ok(())
            } => started?,
            () = follow(replica.as_deref()) => {}
        }
        declared.cancel();
        ready.set();
        let changes = Changes::new(
            (&store, &gateway),
            (&identities, &logins),
            (&projects, &hosting),
        );
        tokio::select! {
            () = live.watch() => {}
            () = startup::retain(&gateway, &store, replica.as_deref()) => {}
            () = keys.follow(&store) => {}
            () = identities.follow() => {}
            () = webhook::run(&gateway) => {}
            () = hosting.sweep(replica.as_deref()) => {}
            () = follow_resources(&hosting, &projects, replica.as_deref()) => {}
            () = front.reap() => {}
            () = front.follow_keys() => {}
            () = memory::give_back() => {}
            () = async { backend::entries::migrate(projects.store(), async || projects.entry_key().await).await; std::future::pending().await } => {}
            () = sandbox => {}
            () = follow(replica.as_deref()) => {}
            () = follow_peers(peers.as_deref()) => {}
            () = changes.follow(replica.as_deref()) => {}
        }
        anyhow::Ok(())
    };
    tokio::pin!(serving);
    let outcome = tokio::select! {
        _ = &mut serving => Ok(()),
        outcome = working => outcome,
        signal = ended() => {
            tracing::info!("{signal}: stopping");
            Ok(())
        }
    };
    let by = Instant::now() + STOP_TIMEOUT;
    declared.cancel();
    front.stop(&over);
    agents.close();
    gateway.close(by);
    // First the calls and turns in flight, which need their servers; then the servers.
    let stopping = async {
        let connections = serving.await;
        if serving_inside.is_some() {
            let until = (by - MIN_GRACE).min(Instant::now() + drain);
            let _ = tokio::time::timeout_at(until, front.leave()).await;
        }
        let left = (by - MIN_GRACE).saturating_duration_since(Instant::now());
        if agents.stop(drain.min(left)).await > 0 {
            // Their last events are on the way to their clients.
            let _ = tokio::time::timeout(LAST_EVENTS_TIMEOUT, connections.wait()).await;
        }
        gateway.shutdown(by).await;
    };
    // Servers that are still stopping keep their lease until they have exited.
    tokio::select! {
        () = stopping => {}
        () = follow(replica.as_deref()) => {}
    }
    keys.touch(&store).await;
    if let Some(replica) = &replica {
        replica.leave().await;
    }
    if let Some(peers) = &peers {
        peers.linger(by).await;
    }
    closed_inside.cancel();
    store.close().await;
    drop(announced);
    drop(lock);
    outcome
}

/// Renews the membership, if there may be several replicas.
async fn follow(replica: Option<&Replica>) {
    match replica {
        Some(replica) => replica.follow().await,
        None => std::future::pending().await,
    }
}

/// Keeps the list of other replicas, if there may be any.
async fn follow_peers(peers: Option<&Peers>) {
    match peers {
        Some(peers) => peers.follow().await,
        None => std::future::pending().await,
    }
}

/// Handles Kubernetes resources, if the settings name a namespace.
#[cfg(feature = "kubernetes")]
async fn follow_resources(hosting: &Hosting, projects: &Projects, replica: Option<&Replica>) {
    crate::kubernetes::follow(hosting, projects, replica).await;
}

#[cfg(not(feature = "kubernetes"))]
async fn follow_resources(hosting: &Hosting, _: &Projects, _: Option<&Replica>) {
    if hosting
        .settings()
        .hosting
        .kubernetes
        .watch_namespace
        .is_some()
    {
        tracing::warn!(
            "`[kubernetes] watch_namespace` is set, but this build has no Kubernetes: build it with `--features kubernetes`"
        );
    }
    std::future::pending().await
}

/// The connection limit, reduced so that an eighth of all file descriptors remains for servers, pipes and the database.
fn most_connections(wanted: usize, files: Option<u64>) -> usize {
    let files = files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    });
    let kept = (files / 8).max(128).min(files / 2);
    wanted.min(files - kept)
}

async fn bind(wanted: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(wanted).await.with_context(|| {
        format!("cannot listen on {wanted}: choose another with --listen ADDR:PORT (port 0 takes a free one)")
    })
}

/// The address for clients on this machine.
fn dialable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The addresses of this gateway that tokens may name as audience, the one to show first.
fn bases(settings: &Settings, address: SocketAddr) -> Vec<String> {
    if let Some(url) = &settings.public_url {
        return vec![url.clone()];
    }
    let mut bases = vec![format!("http://{}", dialable(address))];
    if dialable(address).ip().is_loopback() {
        let names = ["127.0.0.1", "localhost", "[::1]"];
        bases.extend(names.map(|name| format!("http://{name}:{}", address.port())));
    }
    bases
}

/// Waits for SIGTERM or SIGINT and returns its name.
pub(crate) async fn ended() -> &'static str {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}
