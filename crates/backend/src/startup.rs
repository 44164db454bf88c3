//! The first steps of every long-running command: configuration, logs, data directory, gateway.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use catalog::Remembered;
use config::{Config, ConfigError, Sources, data_dir, setting_text};
#[cfg(feature = "kubernetes")]
use containers::kubernetes::{self, Kubernetes};
use containers::{
    docker::{self, Docker, Swarm},
    e2b::{self, E2b},
};
use engine::{Gateway, Runtimes};
use http_client::Proxies;
use mcp::{
    chain::{self, Chain},
    client::Identity,
};
use model::{ProjectId, Provider, ServerName, Settings};
use relevance::Meanings;
use runtime::{
    Host, PackageOptions, Packages, Ports, Runtime,
    process::Spawner,
    sandbox::{self, Bounds, Bubblewrap},
    sentinel::SentinelCommand,
};
use store::{Location, OpenError, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    logins::Logins,
    master::Master,
    projects::Projects,
    replica::{Replica, SWEEP},
};

/// The argument that runs this binary as the sentinel.
pub const SENTINEL: &str = "sentinel";
/// Why a gateway without the lock of its data directory starts no sandboxes.
const NOT_OWNED: &str = "it needs a sandbox, and only `toolwharf serve` runs sandboxes: start `toolwharf serve`, and this process becomes its client";
/// The argument that runs this binary as the first program in a sandbox.
pub const SHIM: &str = "sandbox-shim";
/// The file in the data directory with the id of this installation.
const INSTALLATION_FILE: &str = "installation";
/// The database in the data directory.
pub(crate) const DATABASE_FILE: &str = "toolwharf.db";
/// Interval between removals of old records.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Time limit for reaching Postgres at the start of a gateway. Both may start at the same time, or Postgres may be failing
/// over.
const DATABASE_WAIT: Duration = Duration::from_secs(30);
/// Contains the URL of a database to use instead of the file in the data directory.
pub const DATABASE_URL: &str = "TOOLWHARF_DATABASE_URL";

pub fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Finds the configuration, and reads its settings. The servers are read by [`load`], when the stored secrets are known.
///
/// # Errors
/// If the configuration is invalid, whatever the secrets are.
pub fn locate(named: &[PathBuf]) -> anyhow::Result<(Sources, Settings)> {
    let sources = Sources::locate(named, &env)?;
    match Config::load(&sources, &env) {
        Ok(config) => Ok((sources, config.settings)),
        Err(errors) => match settings(&sources) {
            // An entry may be invalid only because its secret is not known yet.
            Ok(settings) if settings.require_valid_entries => Ok((sources, settings)),
            _ => Err(invalid(&errors)),
        },
    }
}

/// Reads the configuration.
pub fn load(sources: &Sources) -> anyhow::Result<Config> {
    Config::load(sources, &env).map_err(|errors| invalid(&errors))
}

fn invalid(errors: &ConfigError) -> anyhow::Error {
    anyhow::anyhow!("the configuration is invalid\n{errors}")
}

/// Reads only the settings, which works even if the servers are invalid.
pub fn settings(sources: &Sources) -> anyhow::Result<Settings> {
    let only = Sources {
        servers: Vec::new(),
        ..sources.clone()
    };
    Ok(load(&only)?.settings)
}

/// The settings that say where the state is: `data_dir` and `database_url`. `text`: the settings file. Other settings
/// have their defaults, and may be invalid, or refer to variables that only the gateway has.
#[must_use]
pub fn state_settings(text: &str, overrides: &CliOverrides) -> Settings {
    let mut settings = Settings {
        data_dir: setting_text(text, "data_dir").map(PathBuf::from),
        database_url: setting_text(text, "database_url"),
        ..Settings::default()
    };
    overrides.overrule(&mut settings);
    settings
}

/// Opens the data directory, creating it for this user alone if it does not exist. Its path is absolute, since it is
/// passed to sandboxes and containers with other working directories.
pub fn open_data_dir(settings: &Settings) -> anyhow::Result<PathBuf> {
    let dir = data_dir(settings, &env)?;
    let dir = std::path::absolute(&dir)
        .with_context(|| format!("cannot make the path {} absolute", dir.display()))?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .with_context(|| {
            format!(
                "cannot create the data directory {}; name another directory with --data-dir",
                dir.display()
            )
        })?;
    Ok(dir)
}

/// Command line options that take precedence over the settings.
#[derive(Clone, Default, clap::Args)]
pub struct CliOverrides {
    /// The data directory. It is an option of all commands.
    #[arg(skip)]
    pub data_dir: Option<PathBuf>,
    /// The database instead of a file in the data directory: postgres://user:password@host/database.
    #[arg(
        long,
        value_name = "URL",
        env = DATABASE_URL,
        hide_env_values = true
    )]
    database_url: Option<String>,
}

impl CliOverrides {
    /// The keys of settings that are overridden.
    pub(crate) fn overruled(&self) -> Vec<&'static str> {
        let data_dir = self.data_dir.as_ref().map(|_| "data_dir");
        let database_url = self.database_url.as_ref().map(|_| "database_url");
        data_dir.into_iter().chain(database_url).collect()
    }

    pub fn overrule(&self, settings: &mut Settings) {
        if self.data_dir.is_some() {
            settings.data_dir.clone_from(&self.data_dir);
        }
        if self.database_url.is_some() {
            settings.database_url.clone_from(&self.database_url);
        }
    }
}

/// The configured database, or else a file in the data directory.
pub fn location(settings: &Settings, data_dir: &Path) -> Location {
    match &settings.database_url {
        Some(url) => Location::Postgres(url.clone()),
        None => Location::Sqlite(data_dir.join(DATABASE_FILE)),
    }
}

pub async fn open_store(settings: &Settings, data_dir: &Path) -> anyhow::Result<Store> {
    Ok(Store::open(&location(settings, data_dir)).await?)
}

/// Like [`open_store`], and waits for a Postgres that cannot be reached for up to [`DATABASE_WAIT`].
pub async fn wait_for_store(settings: &Settings, data_dir: &Path) -> anyhow::Result<Store> {
    let location = location(settings, data_dir);
    let until = Instant::now() + DATABASE_WAIT;
    let mut is_logged = false;
    loop {
        let error = match Store::open(&location).await {
            Err(
                error @ OpenError::Database {
                    source: store::Error::Unavailable { .. },
                    ..
                },
            ) => anyhow::Error::from(error),
            outcome => return Ok(outcome?),
        };
        if matches!(location, Location::Sqlite(_)) || Instant::now() >= until {
            return Err(error);
        }
        if !is_logged {
            tracing::warn!("{error:#}; trying again for {} s", DATABASE_WAIT.as_secs());
            is_logged = true;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Closes call records and agent runs that an earlier gateway left open, if they began before this time. The caller must
/// own the data directory: otherwise another gateway may still be working on them.
///
/// Does nothing if other replicas run, for the same reason.
pub async fn close_open(store: &Store, before: store::Time) -> anyhow::Result<()> {
    if store.replica_list().await?.len() > 1 {
        return Ok(());
    }
    let why = "the gateway stopped before the call was answered";
    let calls = store.calls_close_open(before, why).await?;
    if calls > 0 {
        tracing::warn!(
            calls,
            "the gateway stopped before these calls were answered; their outcome is unknown"
        );
    }
    let why = "the gateway stopped before the turn ended";
    let runs = store.run_interrupt_open(before, why).await?;
    if runs > 0 {
        tracing::warn!(runs, "the gateway stopped before these agent runs ended");
    }
    Ok(())
}

/// The projects that the configuration names.
pub fn declared_projects(config: &Config) -> Vec<ProjectId> {
    let named = config.servers.iter().flat_map(|server| &server.projects);
    let mut all: Vec<ProjectId> = config
        .settings
        .projects
        .keys()
        .chain(named)
        .cloned()
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The stored tools of the configuration's servers.
pub async fn remembered(
    store: &Store,
    config: &Config,
) -> anyhow::Result<HashMap<ServerName, Remembered>> {
    let servers = config.servers.iter();
    let by_name: HashMap<_, _> = servers.map(|spec| (&spec.name, spec)).collect();
    let digest = |name: &ServerName| Some(catalog::config_digest(by_name.get(name)?));
    Ok(Remembered::of_rows(
        store.snapshot_list(None).await?,
        store.pin_digest_list(None).await?,
        digest,
        config.settings.limits.max_depth,
    ))
}

/// The position of this gateway in a chain of gateways. `is_child`: a client may have started it, so the environment
/// may name the gateways above.
pub fn chain(data_dir: &Path, is_child: bool) -> anyhow::Result<Chain> {
    let above = env(chain::VARIABLE).filter(|_| is_child);
    Ok(Chain::new(&installation(data_dir)?, above.as_deref()))
}

/// Runs of `run_code` at the same time.
const MAX_CODE_RUNS: usize = 8;

/// Creates the process spawner, with its sentinel.
pub fn spawner() -> anyhow::Result<Spawner> {
    let sentinel = SentinelCommand::this_binary([SENTINEL]);
    Spawner::new(sentinel).context("cannot start the helper that cleans up after a crash")
}

/// Toolwharf's own files, which are hidden from all sandboxes: the data directory, the default configuration directory,
/// the named files, and the key of the listener's certificate.
pub fn own_files(sources: &Sources, data_dir: &Path) -> sandbox::Own {
    let named = sources.files().map(Path::to_owned);
    let usual = config::config_dir(&env);
    let tls = settings(sources).ok().and_then(|settings| settings.tls);
    let key = tls.map(|tls| tls.key);
    let all = named.chain(usual).chain(key).chain([data_dir.to_owned()]);
    let here = std::env::current_dir().unwrap_or_default();
    let own = sandbox::Own::new(all.map(|path| here.join(path)));
    own.with_packages(&data_dir.join("bundles"))
}

/// Creates a gateway without servers, and the projects of the store. `own`: the files hidden from sandboxes; `None`:
/// another process holds the lock of the data directory, and this gateway runs no sandboxes. `predecessor`: cancelled when
/// the gateway that this one replaces has exited.
pub async fn gateway(
    settings: Settings,
    data_dir: &Path,
    store: Store,
    chain: Chain,
    spawner: Spawner,
    own: Option<sandbox::Own>,
    predecessor: Option<CancellationToken>,
) -> anyhow::Result<(Gateway, Arc<Projects>, Arc<Logins>)> {
    for problem in Proxies::of_environment().problems() {
        tracing::warn!("{problem}");
    }
    for warning in settings.host_env.warnings() {
        tracing::warn!("{warning}");
    }
    let identity = Identity {
        name: "toolwharf".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        chain: Some(chain),
    };
    let master = Arc::new(Master::open(&store, data_dir, &env).await?);
    let logins = Logins::new(store.clone(), master.clone(), &settings);
    let options = PackageOptions {
        install: installation(data_dir)?,
        shim: SentinelCommand::this_binary([SHIM]),
        bounds: Bounds {
            bytes: settings.hosting.package_bytes,
            files: settings.hosting.package_files,
        },
        hosts: settings.hosting.package_hosts.clone(),
    };
    let folder = data_dir.join("packages");
    let packages = Arc::new(Packages::new(
        folder,
        spawner.clone(),
        own.is_some(),
        options,
    ));
    let code = code::Runner::new(
        spawner.clone(),
        code::Options {
            install: installation(data_dir)?,
            shim: SentinelCommand::this_binary([SHIM]),
            limits: code::Limits::default(),
            max_runs: MAX_CODE_RUNS,
        },
    );
    let host = Host::new(spawner.clone(), packages.clone());
    let runtimes = match own {
        Some(own) => {
            let host_waits = !settings.upgrade_overlap;
            runtimes(&settings, data_dir, spawner, host, packages, own)?
                .after(predecessor, host_waits)
        }
        None => Runtimes::without_sandboxes(host, NOT_OWNED),
    };
    let (search_model, embeddings) = (settings.search_model.clone(), settings.embeddings.clone());
    let gateway = Gateway::new(settings, identity, runtimes, logins.clone(), store.clone());
    gateway.keep_code(code);
    if let Some(file) = search_model {
        // Reading the model must not delay the start.
        let gateway = gateway.clone();
        tokio::task::spawn_blocking(move || match Meanings::load(&file) {
            Ok(meanings) => gateway.keep_meanings(Arc::new(meanings)),
            Err(error) => tracing::error!(
                "the search model {} is not used: {error}; searches compare words only",
                file.display()
            ),
        });
    }
    match embeddings.as_ref().map(Meanings::of_endpoint) {
        Some(Ok(meanings)) => gateway.keep_meanings(Arc::new(meanings)),
        Some(Err(error)) => tracing::error!(
            "the endpoint in `[embeddings]` is not used: {error}; searches compare words only"
        ),
        None => {}
    }
    logins.serve(&gateway);
    gateway.set_recordings(store.recording_list().await?);
    let projects = Projects::new(store, gateway.clone(), master);
    Ok((gateway, projects, logins))
}

/// The available runtimes. Each runtime is tested only when it is first needed.
fn runtimes(
    settings: &Settings,
    data_dir: &Path,
    spawner: Spawner,
    host: Host,
    packages: Arc<Packages>,
    own: sandbox::Own,
) -> anyhow::Result<Runtimes> {
    let hosting = &settings.hosting;
    let install = installation(data_dir)?;
    let dir = data_dir.join("hosting");
    let ports = Ports::new(dir.join("ports.json"));
    let mut all: BTreeMap<Provider, Arc<dyn Runtime>> = BTreeMap::new();
    let options = sandbox::Options {
        dir: dir.join("process"),
        install: install.clone(),
        ports: ports.clone(),
        own,
        shim: SentinelCommand::this_binary([SHIM]),
    };
    all.insert(
        Provider::Process,
        Arc::new(Bubblewrap::new(spawner.clone(), packages.clone(), options)),
    );
    let docker_host = hosting.docker_host.clone();
    let docker_host = docker_host.unwrap_or_else(docker::Options::default_host);
    for (provider, runtime) in &hosting.docker_runtimes {
        let options = docker::Options {
            host: docker_host.clone(),
            provider: *provider,
            runtime: runtime.clone(),
            network: hosting.docker_network.clone(),
            install: install.clone(),
            run: spawner.run_id().to_owned(),
            guests: spawner.guests(),
            dir: dir.join("docker"),
            ports: ports.clone(),
        };
        match Docker::new(options) {
            Ok(docker) => {
                all.insert(*provider, Arc::new(docker));
            }
            Err(error) => tracing::warn!(%provider, "not available: {error}"),
        }
    }
    #[cfg(feature = "kubernetes")]
    if hosting.providers.contains(&Provider::Kubernetes) {
        let asked = &hosting.kubernetes;
        let options = kubernetes::Options {
            kubeconfig: asked.kubeconfig.clone(),
            context: asked.context.clone(),
            namespace: asked.namespace.clone(),
            runtime_class: asked.runtime_class.clone(),
            storage_class: asked.storage_class.clone(),
            probe_image: asked.probe_image.clone(),
            user: asked.user,
            install: install.clone(),
            run: spawner.run_id().to_owned(),
            ports: ports.clone(),
        };
        match Kubernetes::new(options) {
            Ok(kubernetes) => {
                all.insert(Provider::Kubernetes, Arc::new(kubernetes));
            }
            Err(error) => {
                tracing::warn!(provider = %Provider::Kubernetes, "not available: {error}")
            }
        }
    }
    if hosting.providers.contains(&Provider::Swarm) {
        let asked = &hosting.swarm;
        let daemons = match asked.daemons.as_slice() {
            [] => vec![docker_host],
            daemons => daemons.to_vec(),
        };
        let options = docker::SwarmOptions {
            daemons,
            tls: asked.tls.clone(),
            constraints: asked.constraints.clone(),
            gvisor: asked.gvisor,
            network: asked.network.clone(),
            volume_driver: asked.volume_driver.clone(),
            volume_options: asked.volume_options.clone(),
            install: install.clone(),
            run: spawner.run_id().to_owned(),
            ports: ports.clone(),
        };
        match Swarm::new(options) {
            Ok(swarm) => {
                all.insert(Provider::Swarm, Arc::new(swarm));
            }
            Err(error) => tracing::warn!(provider = %Provider::Swarm, "not available: {error}"),
        }
    }
    if let Some(key) = &hosting.e2b_api_key {
        let options = e2b::Options {
            url: hosting.e2b_url.clone(),
            sandbox_url: hosting.e2b_sandbox_url.clone(),
            key: key.clone(),
            install,
            run: spawner.run_id().to_owned(),
            lease: e2b::Options::LEASE,
        };
        match E2b::new(options) {
            Ok(e2b) => {
                all.insert(Provider::E2b, Arc::new(e2b));
            }
            Err(error) => tracing::warn!(provider = %Provider::E2b, "not available: {error}"),
        }
    }
    Ok(Runtimes::new(host, all, hosting.providers.clone()).with_packages(packages))
}

/// The id that distinguishes this installation from others on the same host. Created by the first run.
pub fn installation(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join(INSTALLATION_FILE);
    let known = |text: &str| {
        (8..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    if let Ok(text) = fs::read_to_string(&path)
        && known(text.trim())
    {
        return Ok(text.trim().to_owned());
    }
    let random: [u8; 6] = rand::random();
    let id = hex::encode(random);
    fs::write(&path, &id).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(id)
}

/// Removes records older than the retention time, in a loop. Only one of several replicas does this.
pub async fn retain(gateway: &Gateway, store: &Store, replica: Option<&Replica>) {
    let mut tick = tokio::time::interval(RETENTION_INTERVAL);
    loop {
        tick.tick().await;
        if let Some(replica) = replica
            && replica.take(SWEEP).await.is_err()
        {
            continue;
        }
        if let Err(error) = store.recording_prune().await {
            tracing::warn!("cannot remove recordings that have ended: {error}");
        }
        if let Err(error) = prune_results(store).await {
            tracing::warn!("cannot remove results that have expired: {error}");
        }
        let Some(age) = gateway.settings().audit.retention else {
            continue;
        };
        let before = store::now() - age;
        if let Err(error) = prune(store, before).await {
            tracing::warn!("cannot remove old records: {error}");
        }
    }
}

/// Removes expired results in small steps.
async fn prune_results(store: &Store) -> store::Result<()> {
    while store.result_prune().await? > 0 {}
    Ok(())
}

/// Removes older records in small steps.
async fn prune(store: &Store, before: store::Time) -> store::Result<()> {
    loop {
        // Calls are removed first, because a run is kept as long as one of its calls is.
        let calls = store.calls_prune(before).await?;
        let runs = store.run_prune(before).await?;
        let events = store.events_prune(before).await?;
        if calls + runs + events == 0 {
            return Ok(());
        }
        tracing::info!(calls, runs, events, "removed old records");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_forgotten_with_the_records_of_calls() {
        let folder = tempfile::tempdir().expect("a folder");
        let location = Location::Sqlite(folder.path().join("wharf.db"));
        let store = Store::open(&location).await.expect("a database");
        let event = store::NewEvent {
            project: None,
            server: "s",
            kind: "ready",
            detail: &serde_json::Value::Null,
        };
        store.event_add(event).await.expect("an event");
        let left = async |before| {
            prune(&store, before).await.expect("they are forgotten");
            let page = store::Page::default();
            let left = store.event_list(None, None, &page).await;
            left.expect("a list").len()
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(left(store::now() - hour).await, 1);
        assert_eq!(left(store::now() + hour).await, 0);
    }
}
