//! The command `serve`: runs the gateway.

mod base;

use std::{
    collections::HashMap,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use catalog::Remembered;
use config::Config;
use engine::Gateway;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use model::{ProjectId, ServerName};
use runtime::process::Spawner;
use store::{Home, Store};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::Instant,
};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

use self::base::Base;
use crate::{
    endpoint::{Endpoint, bases},
    memory, ops,
    replica_changes::Changes,
    upgrade::{self, Predecessor, Requests, Upgrades},
    webhook,
};
use auth::{Identities, Role, tickets::Tickets};
use backend::{
    backup::schedule::{self, Latest},
    clients::Clients,
    hosting::Hosting,
    lock::{Announced, Lock, Prepared},
    logins::{self, Logins},
    loop_detection::LoopDetection,
    projects::Projects,
    reload::{Live, warn_of},
    replica::{self, Replica},
    service_manager::ServiceManager,
    startup::{self, CliOverrides},
};
use gateway::{For, Guard, HttpGateway, Leases, Seal, Tls, auth_pages, peers::Peers};
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
/// Time for the last steps after that, such as writing data. Then the process exits in any case.
const LAST_STEPS_TIMEOUT: Duration = Duration::from_millis(1250);
/// Connections of the old gateway that wait until they are served.
const MAX_PASSED_CONNECTIONS: usize = 64;
/// The part of `STOP_TIMEOUT` that is reserved for stopping servers, even if calls and turns are still running.
const MIN_GRACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    pub(crate) overrides: CliOverrides,
}

/// Runs the gateway over HTTP until SIGTERM, SIGINT or an upgrade.
pub(crate) async fn serve(named: &[PathBuf], args: Args) -> anyhow::Result<()> {
    let requests = Requests::new().context("cannot listen for SIGUSR2")?;
    let mut predecessor = Predecessor::of_this_process().await?;
    // Boxed, as is the work: the stack of a process keeps the size of its largest future.
    let gateway = run_gateway(named, args, requests, predecessor.as_mut());
    let served = Box::pin(gateway).await;
    if let (Err(error), Some(predecessor)) = (&served, &predecessor) {
        predecessor.fail(&format_args!("{error:#}")).await;
    }
    served
}

/// Runs the gateway. `predecessor`: the gateway that it replaces, in an upgrade.
async fn run_gateway(
    named: &[PathBuf],
    args: Args,
    mut requests: Requests,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<()> {
    let files = runtime::process::raise_file_limit();
    let (mut base, spawner) =
        Base::open(named, &args.overrides, predecessor.as_deref_mut()).await?;
    let (token, is_new) = auth::bootstrap(&base.store, &base.data_dir).await?;
    let (listener, endpoint) = Endpoint::open(
        &base.config.settings,
        args.listen.as_deref(),
        predecessor.as_deref_mut(),
    )
    .await?;
    let (settings, address) = (&base.config.settings, endpoint.address);
    let audiences = bases(settings, address);
    let passed = predecessor.as_deref_mut().and_then(Predecessor::apps);
    let apps = Apps::open(settings, address, &audiences, passed).await?;
    let predecessor = predecessor.as_deref();
    let myself = LoopDetection::at(&[address]);
    myself.leave_out(&mut base.config);
    warn_of(&base.config);

    let service_manager = endpoint.service_manager(predecessor, &listener);
    let parts = Parts::new(
        &base,
        &endpoint,
        spawner,
        args.overrides,
        myself,
        files,
        service_manager,
    )
    .await?;
    let remembered = startup::remembered(&base.store, &base.config).await?;
    // From the announcement of the address on, signals stop the gateway gracefully.
    let ended = ended();
    parts.greet(&base, &endpoint, &token, is_new).await?;
    let location = startup::location(&base.config.settings, &base.data_dir);
    let address = endpoint.announced(&base.config.settings);
    let prepared = (base.lock).prepare(&address, &base.sources, &location)?;
    let announced = OnceLock::new();
    let succession = match predecessor {
        Some(predecessor) => Some((predecessor, prepared)),
        None => {
            let _ = announced.set(base.lock.announce(prepared)?);
            None
        }
    };
    let site = parts.site(&base, &endpoint, apps.as_ref().map(Apps::origin));
    let drain = base.config.settings.limits.drain;
    let drain = drain.min(STOP_TIMEOUT - MIN_GRACE);

    let upgrades = parts.upgrades(&base, &endpoint, &listener, apps.as_ref())?;
    let (connections, passed) = mpsc::channel(MAX_PASSED_CONNECTIONS);
    let serving = parts.serve_clients(listener, passed, site.clone(), drain);
    // The internal listener stays open longer than the clients' listener: other replicas use the servers here until
    // they have taken them over.
    let closed_inside = CancellationToken::new();
    let inside = base.inside.take().filter(|_| parts.peers.is_some());
    let serving_inside =
        inside.map(|(inside, _)| parts.serve_replicas(inside, site.clone(), closed_inside.clone()));
    tokio::pin!(serving);
    let take_over = async || {
        if let Some(succession) = succession {
            parts.take_over(&base.lock, succession, &announced).await;
        }
    };
    let left = predecessor.map(|predecessor| (predecessor, &connections));
    let work = parts.work(
        &base.config,
        &base.data_dir,
        remembered,
        apps,
        take_over,
        left,
    );
    let work = Box::pin(work);
    let outcome = tokio::select! {
        _ = &mut serving => Ok(()),
        outcome = work => outcome,
        () = parts.upgrade(&upgrades, &mut requests) => Ok(()),
        () = parts.follow_certificate(endpoint.tls.as_deref(), &announced) => Ok(()),
        signal = ended => {
            tracing::info!("{signal}: stopping");
            Ok(())
        }
    };

    let by = Instant::now() + STOP_TIMEOUT;
    parts.declared.cancel();
    // The lock and the address belong to the successor, if there is one.
    let successor = upgrades.finish();
    match &successor {
        Some(successor) => {
            parts.front.hand_over(successor.heir(), &parts.over);
            // Calls may wait for servers that start.
            parts.gateway.end_subscriptions();
        }
        None => {
            parts.front.stop(&parts.over);
            parts.gateway.close(by);
        }
    }
    parts.agents.close();
    let stopping = Box::pin(async {
        parts
            .leave(serving, serving_inside.is_some(), drain, by)
            .await;
        closed_inside.cancel();
        base.store.close().await;
    });
    if tokio::time::timeout_at(by + LAST_STEPS_TIMEOUT, stopping)
        .await
        .is_err()
    {
        tracing::warn!("the last steps of the shutdown were not completed in time");
    }
    if let (Some(announced), Some(_)) = (announced.into_inner(), &successor) {
        announced.leave();
    }
    drop(base.lock);
    outcome
}

struct Parts {
    store: Store,
    gateway: Gateway,
    projects: Arc<Projects>,
    logins: Arc<Logins>,
    identities: Arc<Identities>,
    tickets: Arc<Tickets>,
    hosting: Arc<Hosting>,
    agents: Arc<Agents>,
    front: Arc<HttpGateway>,
    live: Arc<Live>,
    replica: Option<Arc<Replica>>,
    peers: Option<Arc<Peers>>,
    service_manager: ServiceManager,
    backups: Arc<Latest>,
    /// The gateway replaces another one.
    is_upgrade: bool,
    /// Set when the servers are declared. Requests wait for it: otherwise they would fail because a server is unknown.
    declared: CancellationToken,
    /// Set when the servers have started.
    ready: ops::Ready,
    /// Cancelled when the gateway stops.
    over: CancellationToken,
}

impl Parts {
    async fn new(
        base: &Base,
        endpoint: &Endpoint,
        spawner: Spawner,
        overrides: CliOverrides,
        myself: LoopDetection,
        files: Option<u64>,
        service_manager: ServiceManager,
    ) -> anyhow::Result<Self> {
        let (settings, data_dir) = (&base.config.settings, &base.data_dir);
        let (store, replica) = (base.store.clone(), base.replica.clone());
        let (gateway, projects, logins) = startup::gateway(
            settings.clone(),
            data_dir,
            store.clone(),
            startup::chain(data_dir, false)?,
            spawner,
            Some(startup::own_files(&base.sources, data_dir)),
            base.predecessor.clone(),
        )
        .await?;
        let tickets = Arc::new(Tickets::new(store.clone(), projects.session_key().await?));
        let audiences = bases(settings, endpoint.address);
        let identities = Identities::new(settings, audiences, tickets.clone()).context(
            "cannot read the root certificates of this host; on Debian, `apt-get install ca-certificates` installs them",
        )?;
        if replica.is_some() {
            identities.keys.share();
        }
        identities.keys.refresh(&store).await?;
        let declared = startup::declared_projects(&base.config);
        projects.declared(&declared).await;
        let peers = join_peers(base, &gateway, &projects).await?;
        let front = HttpGateway::new(
            gateway.clone(),
            projects.clone(),
            Guard::new(settings, endpoint.address.ip(), identities.clone()),
            Seal::new(projects.session_key().await?),
            peers.clone(),
            most_connections(settings.limits.max_connections, files),
            endpoint.tls.clone(),
        );
        Ok(Self {
            hosting: Hosting::new(store.clone(), gateway.clone(), projects.clone()),
            agents: Agents::new(gateway.clone(), projects.clone(), store.clone()),
            live: Live::new(
                base.sources.clone(),
                gateway.clone(),
                projects.clone(),
                overrides,
                myself,
                service_manager.clone(),
            ),
            store,
            gateway,
            projects,
            logins,
            identities,
            tickets,
            front,
            replica,
            peers,
            service_manager,
            backups: Arc::default(),
            is_upgrade: base.predecessor.is_some(),
            declared: CancellationToken::new(),
            ready: ops::Ready::default(),
            over: CancellationToken::new(),
        })
    }

    /// Opens the pages for sign-ins, and prints the address, a link for a browser, and the administrator's token if it
    /// is new. After an upgrade, all of this is known.
    async fn greet(
        &self,
        base: &Base,
        endpoint: &Endpoint,
        token: &str,
        is_new: bool,
    ) -> anyhow::Result<()> {
        let (settings, url) = (&base.config.settings, &endpoint.url);
        // Other users may be able to read a service manager's log.
        let is_logged = self.service_manager.is_there();
        if is_new {
            let file = base.data_dir.join(auth::admin_token::TOKEN_FILE);
            match is_logged {
                true => eprintln!("administrator's token: kept in {}", file.display()),
                false => eprintln!(
                    "administrator's token (kept in {}): {token}",
                    file.display()
                ),
            }
        }
        let public_url = settings.public_url.as_deref();
        self.logins
            .listen(public_url.unwrap_or(url), self.tickets.clone());
        let is_loopback = endpoint.address.ip().is_loopback();
        if !is_loopback && public_url.is_none() && !settings.oidc.is_empty() {
            tracing::warn!(
                "clients will request tokens for {url}: set `public_url` to the URL that they connect to"
            );
        }
        if endpoint.tls.is_some() && !is_loopback && public_url.is_none() {
            tracing::warn!(
                "clients check the certificate for the name in their URL, and links lead to {url}: set `public_url` to a URL \
                 with a name of the certificate"
            );
        }
        if !settings.trusted_proxies.is_empty() && public_url.is_none() {
            tracing::warn!(
                "links for signing in to servers lead to {url}, because they are made without a request of a proxy: set \
                 `public_url` if servers need sign-ins"
            );
        }
        if base.predecessor.is_some() {
            return Ok(());
        }
        eprintln!("toolwharf is at {url}/mcp");
        if is_logged {
            eprintln!("`toolwharf open` signs a browser in");
        } else if let Some(who) = self.identities.keys.identify(token)
            && let Some(link) = self.front.guard().link(&who, &HeaderMap::new()).await?
        {
            eprintln!("sign in with a browser (once, within 10 minutes): {link}");
        }
        Ok(())
    }

    /// Returns the routes other than MCP: the REST API, the console, the sign-in pages and the metrics.
    fn site(&self, base: &Base, endpoint: &Endpoint, apps: Option<&str>) -> Arc<Site> {
        let is_local = endpoint.is_local(&base.config.settings);
        let fixed = endpoint.is_fixed.then(|| endpoint.url.clone());
        let clients = is_local.then(|| Clients::new(self.live.sources(), &base.data_dir, fixed));
        let keys = &self.identities.keys;
        let rest = Rest::new(
            self.front.clone(),
            self.live.clone(),
            self.hosting.clone(),
            self.agents.clone(),
            keys.clone(),
            self.logins.clone(),
            Catalogue::new(&base.data_dir),
            clients,
            self.replica.clone(),
            self.backups.clone(),
            self.over.clone(),
        );
        let identify = (!is_local).then(|| identify(self.identities.clone()));
        let (logins, projects) = (self.logins.clone(), self.projects.clone());
        let more = ops::router(
            self.front.clone(),
            self.gateway.clone(),
            (self.ready.clone(), keys.clone()),
            self.replica.clone(),
            self.backups.clone(),
        )
        .merge(console::router(apps, self.front.guard().prefix()))
        .merge(auth_pages::router(&self.front))
        .merge(logins::router(logins, projects, identify));
        Site::new(rest, more)
    }

    /// Serves clients until the gateway stops. Returns the connections that are still open.
    async fn serve_clients(
        &self,
        listener: TcpListener,
        passed: mpsc::Receiver<TcpStream>,
        site: Arc<Site>,
        drain: Duration,
    ) -> TaskTracker {
        self.declared.cancelled().await;
        if self.is_upgrade && !self.ready.is_set() {
            // The start failed, so the connections that wait at the listener are for the old gateway.
            let none = TaskTracker::new();
            none.close();
            return none;
        }
        let (front, over) = (self.front.clone(), self.over.clone());
        gateway::serve(listener, passed, front, For::Clients(site), over, drain).await
    }

    /// Keeps the sockets and the lock for another process.
    fn upgrades(
        &self,
        base: &Base,
        endpoint: &Endpoint,
        listener: &TcpListener,
        apps: Option<&Apps>,
    ) -> anyhow::Result<Upgrades> {
        let apps = apps.map(|apps| apps.listener().as_fd().try_clone_to_owned());
        Ok(Upgrades {
            data_dir: base.data_dir.clone(),
            own_program: upgrade::own_program(),
            is_fixed: endpoint.is_fixed,
            lock: base.lock.share()?,
            listener: listener.as_fd().try_clone_to_owned()?,
            apps: apps.transpose()?,
            service_manager: self.service_manager.clone(),
            predecessor: base.predecessor.clone(),
            successor: OnceLock::new(),
        })
    }

    /// Hands over to another program when that is requested.
    async fn upgrade(&self, upgrades: &Upgrades, requests: &mut Requests) {
        self.declared.cancelled().await;
        upgrades.run(requests).await;
    }

    /// Loads changed certificates, and publishes which one is in use. Never returns.
    async fn follow_certificate(&self, tls: Option<&Tls>, announced: &OnceLock<Announced>) {
        self.declared.cancelled().await;
        let Some(tls) = tls else {
            return std::future::pending().await;
        };
        let publish = |digest: &str| {
            if let Some(Err(error)) = announced.get().map(|it| it.set_certificate(digest)) {
                tracing::error!(
                    "commands on this machine will not trust the new certificate: {error:#}"
                );
            }
        };
        tls.watch(publish).await;
    }

    /// Waits for the servers and for the old gateway of an upgrade, and publishes the address.
    async fn take_over(
        &self,
        lock: &Lock,
        (predecessor, prepared): (&Predecessor, Prepared),
        published: &OnceLock<Announced>,
    ) {
        if self.gateway.settings().upgrade_overlap {
            self.gateway.started_outside().await;
        }
        predecessor.take_over().await;
        self.service_manager.unmute();
        match lock.announce(prepared) {
            Ok(announced) => drop(published.set(announced)),
            // The old gateway is about to exit, so this one must serve.
            Err(error) => {
                tracing::error!("commands on this machine do not find this gateway: {error:#}");
            }
        }
    }

    /// Receives the connections of the old gateway. When that is gone, closes the records that it left open, and applies
    /// what it changed. Never returns.
    async fn succeed(
        &self,
        (predecessor, connections): (&Predecessor, &mpsc::Sender<TcpStream>),
        began: store::Time,
        changes: &Changes<'_>,
    ) {
        predecessor.follow(connections).await;
        tracing::info!("the old gateway is gone");
        if let Err(error) = startup::close_open(&self.store, began).await {
            tracing::warn!("cannot close the records of the old gateway: {error:#}");
        }
        tokio::join!(changes.all(), self.gateway.retry_outside());
        std::future::pending().await
    }

    /// Serves other replicas in a task, until `closed`.
    fn serve_replicas(
        &self,
        listener: TcpListener,
        site: Arc<Site>,
        closed: CancellationToken,
    ) -> AbortOnDropHandle<TaskTracker> {
        let (front, declared) = (self.front.clone(), self.declared.clone());
        let serving = async move {
            declared.cancelled().await;
            let whom = For::Replicas(site);
            let (_, passed) = mpsc::channel(1);
            gateway::serve(listener, passed, front, whom, closed, Duration::ZERO).await
        };
        AbortOnDropHandle::new(TaskTracker::new().spawn(serving))
    }

    /// Starts the servers, and runs all background work. Returns only if the start fails. `take_over` runs before
    /// connections are accepted. `left`: the old gateway of an upgrade, and the receiver of its connections.
    async fn work(
        &self,
        config: &Config,
        data_dir: &Path,
        remembered: HashMap<ServerName, Remembered>,
        apps: Option<Apps>,
        take_over: impl AsyncFnOnce(),
        left: Option<(&Predecessor, &mpsc::Sender<TcpStream>)>,
    ) -> anyhow::Result<()> {
        let replica = self.replica.as_deref();
        // Servers may warn while they start.
        let warnings = self.gateway.warnings();
        // Starting may take longer than a lease, which must be renewed meanwhile.
        tokio::select! {
            started = async {
                self.hosting.reload().await?;
                let servers = config.servers.clone();
                match self.is_upgrade {
                    // The order of the first start does not matter, and sandboxed servers start after the old gateway.
                    true => self.gateway.reconfigure(servers, None, remembered),
                    false => self.gateway.start(servers, remembered).await?,
                }
                take_over().await;
                anyhow::Ok(())
            } => started?,
            () = run(replica, Replica::follow) => {}
            () = self.service_manager.extend_start() => {}
        }
        let began = store::now();
        // From here on, connections are accepted and answered.
        self.declared.cancel();
        self.ready.set();
        self.service_manager.ready().await;
        let changes = Changes::new(
            (&self.store, &self.gateway),
            (&self.identities, &self.logins),
            (&self.projects, &self.hosting),
            &self.live,
        );
        tokio::select! {
            () = self.live.watch() => {}
            () = startup::retain(&self.gateway, &self.store, replica) => {}
            () = self.back_up(data_dir, replica) => {}
            () = self.identities.keys.follow(&self.store) => {}
            () = self.identities.follow() => {}
            () = webhook::run(&self.gateway, warnings) => {}
            () = self.hosting.sweep(replica) => {}
            () = follow_resources(&self.hosting, &self.projects, replica) => {}
            () = self.front.reap() => {}
            () = self.front.follow_keys() => {}
            () = memory::give_back() => {}
            () = migrate_entries(&self.projects) => {}
            () = run(apps, Apps::serve) => {}
            () = run(replica, Replica::follow) => {}
            () = run(self.peers.as_deref(), Peers::follow) => {}
            () = changes.follow(replica) => {}
            () = run(left, async |left| self.succeed(left, began, &changes).await) => {}
            () = self.service_manager.watchdog() => {}
        }
        Ok(())
    }

    /// Makes scheduled backups.
    async fn back_up(&self, data_dir: &Path, replica: Option<&Replica>) {
        let sources = self.live.sources();
        let (gateway, latest) = (&self.gateway, &self.backups);
        schedule::run(gateway, &self.store, sources, data_dir, replica, latest).await;
    }

    /// Stops everything except the internal listener, and leaves the other replicas.
    async fn leave(
        &self,
        serving: impl Future<Output = TaskTracker>,
        has_inside: bool,
        drain: Duration,
        by: Instant,
    ) {
        self.service_manager.stopping().await;
        // Servers that are still stopping keep their lease until they have exited.
        tokio::select! {
            () = self.stop(serving, has_inside, drain, by) => {}
            () = run(self.replica.as_deref(), Replica::follow) => {}
            () = self.service_manager.watchdog() => {}
        }
        self.identities.keys.touch(&self.store).await;
        if let Some(replica) = &self.replica {
            replica.leave().await;
        }
        if let Some(peers) = &self.peers {
            peers.linger(by).await;
        }
    }

    /// Stops the calls and turns in flight, which need their servers; then the servers.
    async fn stop(
        &self,
        serving: impl Future<Output = TaskTracker>,
        has_inside: bool,
        drain: Duration,
        by: Instant,
    ) {
        let connections = serving.await;
        if has_inside {
            let until = (by - MIN_GRACE).min(Instant::now() + drain);
            let _ = tokio::time::timeout_at(until, self.front.leave()).await;
        }
        if self.agents.stop().await > 0 {
            // Clients get time to receive the last events of the stopped chats.
            let _ = tokio::time::timeout(LAST_EVENTS_TIMEOUT, connections.wait()).await;
        }
        self.gateway.shutdown(by).await;
    }
}

/// Connects the gateway with its other replicas, if there may be any.
async fn join_peers(
    base: &Base,
    gateway: &Gateway,
    projects: &Projects,
) -> anyhow::Result<Option<Arc<Peers>>> {
    let (Some((_, address)), Some(replica)) = (&base.inside, &base.replica) else {
        return Ok(None);
    };
    let key = projects.session_key().await?;
    gateway.keep_place(Seal::new(projects.session_key().await?).seal_place(address));
    let installation = key.installation().into();
    let peers = Peers::new(replica.clone(), address.clone(), key);
    let home = Home {
        installation: startup::installation(&base.data_dir)?,
        host: replica::host(),
    };
    gateway.keep_gate(Arc::new(Leases {
        peers: peers.clone(),
        gateway: gateway.clone(),
        store: base.store.clone(),
        installation,
        home,
    }));
    Ok(Some(peers))
}

/// Returns how the sign-in pages identify a person: by a key, or by a browser session.
fn identify(identities: Arc<Identities>) -> logins::Identify {
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
    )
}

/// Converts the entries that earlier versions stored, once. Never returns.
async fn migrate_entries(projects: &Projects) {
    backend::entries::migrate(projects.store(), async || projects.entry_key().await).await;
    std::future::pending().await
}

/// Runs an optional task. If there is no task, never returns.
async fn run<T>(part: Option<T>, task: impl AsyncFnOnce(T)) {
    match part {
        Some(part) => task(part).await,
        None => std::future::pending().await,
    }
}

/// Handles Kubernetes resources, if the settings name a namespace.
#[cfg(feature = "kubernetes")]
async fn follow_resources(hosting: &Hosting, projects: &Projects, replica: Option<&Replica>) {
    operator::follow(hosting, projects, replica).await;
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
            "`[kubernetes] watch_namespace` is set, but this build does not support Kubernetes: build Toolwharf with `--features kubernetes`"
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

/// Waits for SIGTERM or SIGINT and returns its name.
pub(crate) fn ended() -> impl Future<Output = &'static str> {
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async move {
        let (Ok(mut term), Ok(mut int)) = signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    }
}
