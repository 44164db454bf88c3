//! Hosted servers: their rows in the store, and their registration in the gateway.
//!
//! Invariant: the gateway matches the rows, and changes never overlap. Deliberately absent: HTTP, and detecting changes
//! that another process writes to the database.

mod entry;
mod resource;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::Wrong;
use catalog::Remembered;
use config::{not_allowed, why_not_allowed};
use engine::{Crash, Gateway, Left, server::Server};
use lifecycle::Last;
use model::{NativeName, Program, ProjectId, Provider, ServerKey, ServerName, ServerSpec};
use runtime::Exit;
use serde_json::Value;
use store::{EventRow, NewRegistration, RegistrationRow, Store, encryption::CannotOpen};
use tokio::sync::Mutex;

pub use self::entry::KEYS;
pub use self::{
    entry::Entry,
    resource::{Resource, given},
};
use crate::{
    entries::{Owner, evident, hosted_by},
    projects::{Projects, Secrets},
    replica::{Replica, SWEEP},
};

/// Interval between cleanups of what lost replicas left running.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

pub struct Hosting {
    store: Store,
    gateway: Gateway,
    projects: Arc<Projects>,
    /// Guards all changes to hosted servers.
    edits: Mutex<()>,
}

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the registration is invalid: {}", join(.0))]
    Unfit(Vec<Wrong>),
    /// Another server has the name.
    #[error("server `{0}` already exists")]
    Taken(ServerName),
    #[error("there is no project `{0}`")]
    NoProject(ProjectId),
    #[error(
        "the Kubernetes resource `{namespace}/{name}` declares the server: change the resource instead"
    )]
    Declared { namespace: String, name: ServerName },
    #[error("cannot load the key that encrypts variables: {0}")]
    Key(String),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("cannot remove the server's volumes: {0}")]
    Volumes(runtime::Error),
}

impl Hosting {
    pub fn new(store: Store, gateway: Gateway, projects: Arc<Projects>) -> Arc<Self> {
        Arc::new(Self {
            store,
            gateway,
            projects,
            edits: Mutex::default(),
        })
    }

    /// Removes unneeded leftovers of an earlier run as soon as their runtime responds. After that, periodically removes
    /// leftovers of lost replicas, in a loop, on one replica only.
    pub async fn sweep(&self, replica: Option<&Replica>) {
        let runtimes = self.gateway.runtimes();
        let mut left = runtimes.elsewhere();
        loop {
            runtimes.sweep(&mut left).await;
            if left.is_empty() && replica.is_none() {
                return std::future::pending().await;
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
            if let Some(replica) = replica
                && replica.take(SWEEP).await.is_ok()
                && let Err(error) = self.sweep_lost(replica).await
            {
                tracing::warn!("cannot clean up after lost replicas: {error:#}");
            }
        }
    }

    async fn sweep_lost(&self, replica: &Replica) -> anyhow::Result<()> {
        let installation = self.installation().await?.into();
        let held = async || replica.fences().await;
        let runtimes = self.gateway.runtimes();
        Ok(runtimes.sweep_fenced(&installation, held).await?)
    }

    /// The id shared by all gateways of the database.
    async fn installation(&self) -> anyhow::Result<String> {
        Ok(self.projects.session_key().await?.installation())
    }

    /// Applies the rows: starts new and changed servers, and leaves all others running.
    ///
    /// # Errors
    /// Database errors.
    pub async fn reload(&self) -> Result<(), Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.take_in(self.rows().await?).await
    }

    /// Applies the rows if one of these projects has a server.
    ///
    /// # Errors
    /// Database errors.
    pub async fn reload_of(&self, projects: &BTreeSet<ProjectId>) -> Result<(), Error> {
        if projects.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.edits.lock().await;
        let is_of = |owner: Option<&ProjectId>| owner.is_some_and(|id| projects.contains(id));
        // A deleted project has no rows, but its servers may still be loaded.
        let is_here = {
            let fleet = self.gateway.fleet();
            fleet
                .registered()
                .any(|one| is_of(one.key().owner.as_ref()))
        };
        let rows = self.rows().await?;
        match is_here || rows.iter().any(|row| is_of(hosted_by(row).as_ref())) {
            true => self.take_in(rows).await,
            false => Ok(()),
        }
    }

    async fn take_in(&self, rows: Vec<RegistrationRow>) -> Result<(), Error> {
        let mut secrets: HashMap<ProjectId, Secrets> = HashMap::new();
        let mut hosted = Vec::with_capacity(rows.len());
        let mut crashes = self.crashes().await?;
        let states = self.store.registration_left_all().await?;
        let resting = self.resting(&rows).await?;
        let mut sealed = self.sealed(&rows).await?;
        for row in &rows {
            if hosted_by(row).is_some_and(|project| resting.contains(&project)) {
                continue;
            }
            let known = match hosted_by(row) {
                Some(project) if !secrets.contains_key(&project) => {
                    let values = self.projects.secret_values(&project).await?;
                    secrets.entry(project).or_insert(values)
                }
                Some(project) => secrets.entry(project).or_default(),
                None => &mut Secrets::default(),
            };
            let sealed = match sealed
                .remove(&row.id)
                .unwrap_or_else(|| Ok(BTreeMap::new()))
            {
                Ok(sealed) => sealed,
                Err(why) => {
                    tracing::error!(server = %row.name, id = row.id, "cannot host the server, because its variables are invalid: {why}");
                    continue;
                }
            };
            let project = hosted_by(row);
            let place = Owner::Hosted(project.as_ref(), &row.name);
            let config = match self.projects.opened(place, &row.config).await? {
                Ok(opened) => opened,
                Err(why) => {
                    tracing::error!(server = %row.name, id = row.id, "cannot host the server: {why}");
                    continue;
                }
            };
            let row = &RegistrationRow {
                config,
                ..row.clone()
            };
            match Entry::kept(row, &known.values, sealed) {
                Ok(mut spec) => {
                    spec.secrets.0.extend(evident(&row.config));
                    known.hold_back(&mut spec, &row.config);
                    spec.resolve_login(&self.gateway.settings().logins);
                    hosted.push((spec, left(row, &states, &mut crashes)));
                }
                Err(wrong) => {
                    tracing::error!(server = %row.name, id = row.id, "cannot host the server: {}", join(&wrong));
                }
            }
        }
        let remembered = self.remembered(&hosted).await?;
        self.gateway.host(hosted, remembered);
        Ok(())
    }

    /// The encrypted variables in rows, by row id.
    async fn sealed(
        &self,
        rows: &[RegistrationRow],
    ) -> Result<HashMap<String, Result<BTreeMap<String, String>, CannotOpen>>, Error> {
        let resources = rows
            .iter()
            .filter_map(|row| Some((row, Resource::of(row)?)));
        let resources: Vec<_> = resources.filter(|(_, it)| it.has_secrets()).collect();
        if resources.is_empty() {
            return Ok(HashMap::new());
        }
        let key = self.projects.session_key().await;
        let key = key.map_err(|error| Error::Key(error.to_string()))?;
        let opened = resources
            .into_iter()
            .map(|(row, resource)| (row.id.clone(), resource.open(&row.name, &key)));
        Ok(opened.collect())
    }

    /// Of the projects that own these rows, those that are disabled or missing. Their servers are not loaded.
    async fn resting(&self, rows: &[RegistrationRow]) -> Result<BTreeSet<ProjectId>, Error> {
        let owners: BTreeSet<ProjectId> = rows.iter().filter_map(hosted_by).collect();
        let mut resting = BTreeSet::new();
        for owner in owners {
            match self.store.project_get(&owner).await {
                Ok(project) if project.enabled => {}
                Ok(_) | Err(store::Error::NotFound { .. }) => {
                    resting.insert(owner);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(resting)
    }

    pub async fn rows(&self) -> Result<Vec<RegistrationRow>, Error> {
        Ok(self.store.registration_list_all().await?)
    }

    /// The last crash of each registered server.
    async fn crashes(&self) -> Result<HashMap<String, Crash>, Error> {
        let rows = self.store.crash_list().await?.into_iter();
        Ok(rows.map(|row| (row.server.clone(), crash(row))).collect())
    }

    async fn remembered(
        &self,
        hosted: &[(ServerSpec, Option<Left>)],
    ) -> Result<HashMap<ServerKey, Remembered>, Error> {
        let mut owners: BTreeMap<Option<ProjectId>, Vec<&ServerSpec>> = BTreeMap::new();
        for (spec, _) in hosted {
            owners.entry(spec.owner.clone()).or_default().push(spec);
        }
        let depth = self.gateway.settings().limits.max_depth;
        let mut all = HashMap::new();
        for (owner, specs) in owners {
            let snapshots = self.store.snapshot_list(owner.as_ref()).await?;
            let pins = self.store.pin_digest_list(owner.as_ref()).await?;
            let specs: HashMap<&ServerName, &ServerSpec> =
                specs.iter().map(|spec| (&spec.name, *spec)).collect();
            let digest = |name: &ServerName| Some(catalog::config_digest(specs.get(name)?));
            let known = Remembered::of_rows(snapshots, pins, digest, depth);
            all.extend(known.into_iter().map(|(name, known)| {
                let owner = owner.clone();
                (ServerKey { owner, name }, known)
            }));
        }
        Ok(all)
    }

    /// Registers a server, starts it, and returns its row.
    ///
    /// # Errors
    /// [`Error`]. Then nothing was changed.
    pub async fn register(&self, entry: Entry) -> Result<RegistrationRow, Error> {
        self.permitted(&entry)?;
        let _one_at_a_time = self.edits.lock().await;
        self.free(&entry).await?;
        let config = self.sealed_entry(&entry, None).await?;
        let new = NewRegistration {
            project: entry.project.as_ref(),
            name: &entry.name,
            status: lifecycle::REGISTERED,
            image: entry.launch().program.target(),
            config: &config,
        };
        let put = self.store.registration_put(new).await;
        let row = put.map_err(|error| match error {
            store::Error::Conflict { .. } => Error::Taken(entry.name.clone()),
            error => error.into(),
        })?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// Replaces a registration. If the new one differs, the server is restarted.
    ///
    /// # Errors
    /// [`Error`]. Then nothing was changed.
    pub async fn update(&self, id: &str, entry: Entry) -> Result<RegistrationRow, Error> {
        self.permitted(&entry)?;
        let _one_at_a_time = self.edits.lock().await;
        let old = self.store.registration_get(None, id).await?;
        if !entry.is_of_resource() {
            self.free_to_change(&old)?;
        }
        if (&old.name, hosted_by(&old)) != (&entry.name, entry.project.clone()) {
            let why = "the name and the project of a server cannot be changed; register another server, and delete this one";
            let at = if old.name == entry.name {
                "/project"
            } else {
                "/name"
            };
            return Err(Error::Unfit(vec![Wrong::new(at, why)]));
        }
        let image = entry.launch().program.target();
        let config = self.sealed_entry(&entry, Some(&old.config)).await?;
        let row = self
            .store
            .registration_set_config(None, id, image, &config)
            .await?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// An entry as stored in its row.
    async fn sealed_entry(&self, entry: &Entry, before: Option<&Value>) -> Result<Value, Error> {
        let sealing = self.projects.sealing().await;
        let sealing = sealing.map_err(|error| Error::Key(format!("{error:#}")))?;
        let owner = Owner::Hosted(entry.project.as_ref(), &entry.name);
        Ok(sealing.seal(owner, &entry.config, before))
    }

    /// A registration as it was submitted, with its secrets decrypted.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn given(&self, row: &RegistrationRow) -> Result<Value, Error> {
        let project = hosted_by(row);
        let place = Owner::Hosted(project.as_ref(), &row.name);
        let opened = self.projects.opened(place, &given(row)).await?;
        opened.map_err(Error::Key)
    }

    /// Enables or disables a server.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn set_enabled(&self, id: &str, enabled: bool) -> Result<RegistrationRow, Error> {
        let change = |config: &mut Value| config["enabled"] = enabled.into();
        self.edit(id, change).await
    }

    /// Enables or disables a tool of a server, for all users.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn set_tool_enabled(
        &self,
        id: &str,
        tool: &NativeName,
        enabled: bool,
    ) -> Result<RegistrationRow, Error> {
        let change = |config: &mut Value| {
            let off = config[entry::DISABLED_TOOLS]
                .as_array()
                .into_iter()
                .flatten();
            let mut off: BTreeSet<&str> = off.filter_map(Value::as_str).collect();
            if enabled {
                off.remove(tool.as_str());
            } else {
                off.insert(tool.as_str());
            }
            config[entry::DISABLED_TOOLS] = off.into_iter().collect();
            if let Some(on) = config[entry::ENABLED_TOOLS].as_array_mut()
                && enabled
                && on.iter().all(|name| name != tool.as_str())
            {
                on.push(tool.as_str().into());
            }
        };
        self.edit(id, change).await
    }

    async fn edit(
        &self,
        id: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<RegistrationRow, Error> {
        let _one_at_a_time = self.edits.lock().await;
        let mut row = self.store.registration_get(None, id).await?;
        self.free_to_change(&row)?;
        change(&mut row.config);
        let row = self
            .store
            .registration_set_config(None, id, &row.image, &row.config)
            .await?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// Stops and removes a server, with its volumes if `volumes` is set.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn delete(&self, id: &str, volumes: bool) -> Result<(), Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.free_to_change(&self.store.registration_get(None, id).await?)?;
        if let Some(server) = self.forgotten(id).await? {
            server.stopped().await;
        }
        match volumes {
            true => self.volumes_remove(id).await,
            false => Ok(()),
        }
    }

    /// Removes a server without waiting for its exit. Returns the server if the gateway has it.
    ///
    /// # Errors
    /// [`Error`]
    #[cfg(feature = "kubernetes")]
    pub async fn forget(&self, id: &str) -> Result<Option<Arc<Server>>, Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.forgotten(id).await
    }

    async fn forgotten(&self, id: &str) -> Result<Option<Arc<Server>>, Error> {
        let server = self.server(id);
        self.store.registration_delete(None, id).await?;
        self.take_in(self.rows().await?).await?;
        Ok(server)
    }

    /// Removes the volumes of a server that has exited.
    ///
    /// # Errors
    /// [`Error::Volumes`], [`Error::Key`]
    pub async fn volumes_remove(&self, id: &str) -> Result<(), Error> {
        let installation = self.installation().await;
        let installation = installation.map_err(|error| Error::Key(format!("{error:#}")))?;
        let runtimes = self.gateway.runtimes();
        let removed = runtimes.volumes_remove(id, Some(&installation)).await;
        removed.map_err(Error::Volumes)
    }

    /// Refuses a change to a server that is declared by a resource which this gateway watches.
    fn free_to_change(&self, row: &RegistrationRow) -> Result<(), Error> {
        let settings = self.gateway.settings();
        let watched = &settings.hosting.kubernetes.watch_namespace;
        match Resource::of(row) {
            Some(Resource { namespace, .. }) if watched.as_ref() == Some(&namespace) => {
                let name = row.name.clone();
                Err(Error::Declared { namespace, name })
            }
            _ => Ok(()),
        }
    }

    /// Removes every trace of a server that was just registered and cannot be used. It never ran.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn withdraw(&self, id: &str) -> Result<(), Error> {
        self.delete(id, true).await?;
        // Waits until pending events are in the store.
        self.gateway.chronicled().await;
        Ok(self.store.events_remove(id).await?)
    }

    pub fn settings(&self) -> Arc<model::Settings> {
        self.gateway.settings()
    }

    pub fn server(&self, id: &str) -> Option<Arc<Server>> {
        self.gateway.fleet().by_id(id).cloned()
    }

    /// Checks a server against this installation's providers and allowed mounts, without starting it.
    fn permitted(&self, entry: &Entry) -> Result<(), Error> {
        let (launch, sandbox) = (entry.launch(), entry.sandbox());
        let mut wrong = Vec::new();
        if let Some(provider) = sandbox.provider {
            if let Some(why) = self.gateway.runtimes().refusal(provider) {
                wrong.push(Wrong::new("/provider", why));
            }
            match (&launch.program, provider) {
                (Program::Image { .. }, Provider::Process) => wrong.push(Wrong::new(
                    "/provider",
                    "`process` runs commands of this host, not images",
                )),
                (Program::Command { .. }, other) if other != Provider::Process => {
                    let why = format!("`{other}` runs images; a command runs under `process`");
                    wrong.push(Wrong::new("/provider", why));
                }
                _ => {}
            }
        }
        if sandbox.provider.is_none()
            && let Some(why) = self.gateway.runtimes().refusal_of(&launch.program)
        {
            wrong.push(Wrong::new("/provider", why));
        }
        let settings = self.gateway.settings();
        if let Some(path) = not_allowed(&settings.hosting.mounts, sandbox) {
            let at = sandbox.mounts.iter().position(|mount| mount.host == *path);
            let pointer = match at {
                Some(at) => format!("/mounts/{at}"),
                None => "/show".to_owned(),
            };
            wrong.push(Wrong::new(pointer, why_not_allowed(path)));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Error::Unfit(wrong))
        }
    }

    /// Checks that the name is free and the project exists.
    async fn free(&self, entry: &Entry) -> Result<(), Error> {
        if let Some(project) = &entry.project {
            match self.store.project_get(project).await {
                Ok(_) => {}
                Err(store::Error::NotFound { .. }) => {
                    return Err(Error::NoProject(project.clone()));
                }
                Err(error) => return Err(error.into()),
            }
            self.projects.known(project).await?;
        }
        let key = ServerKey {
            owner: entry.project.clone(),
            name: entry.name.clone(),
        };
        match self.gateway.fleet().get(&key) {
            Some(_) => Err(Error::Taken(entry.name.clone())),
            None => Ok(()),
        }
    }
}

/// All errors as one text.
fn join(wrong: &[Wrong]) -> String {
    let each: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    each.join("; ")
}

/// The state in which an earlier run left a server, if it ever ran.
fn left(
    row: &RegistrationRow,
    states: &HashMap<String, String>,
    crashes: &mut HashMap<String, Crash>,
) -> Option<Left> {
    Some(Left {
        last: Last::from_word(states.get(&row.id)?)?,
        crash: crashes.remove(&row.id),
    })
}

/// The recorded data of a crash.
fn crash(row: EventRow) -> Crash {
    let number = |key: &str| {
        let number = row.detail[key].as_i64()?;
        i32::try_from(number).ok()
    };
    let (code, signal) = (number("exitCode"), number("signal"));
    let exit = Exit {
        code,
        signal,
        out_of_memory: row.detail["outOfMemory"] == true,
        fork_bomb: row.detail["forkBomb"] == true,
    };
    let text = |key: &str| row.detail[key].as_str().unwrap_or_default().to_owned();
    Crash {
        at: row.at.into(),
        cause: text("cause"),
        exit: (code.is_some() || signal.is_some()).then_some(exit),
        stderr: text("stderr"),
    }
}
