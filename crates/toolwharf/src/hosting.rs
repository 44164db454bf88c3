//! Hosted servers: their rows in the store, and the gateway that runs them.
//!
//! Invariant: the gateway has what the rows say, and one at a time changes them. Deliberately absent: HTTP, and
//! noticing what another process writes into the database.

mod entry;
mod resource;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::Wrong;
use config::{not_allowed, why_not_allowed};
use engine::{
    Crash, Gateway, Left, Remembered, lifecycle::Last, secrets::CannotOpen, server::Server,
};
use model::{NativeName, Program, ProjectId, Provider, ServerKey, ServerName, ServerSpec};
use runtime::Exit;
use serde_json::Value;
use store::{EventRow, NewWorkspace, Store, WorkspaceRow};
use tokio::sync::Mutex;

#[cfg(test)]
pub(crate) use self::entry::KEYS;
pub(crate) use self::{
    entry::Entry,
    resource::{Resource, given},
};
use crate::{
    entries::{Owner, evident, hosted_by},
    projects::{Projects, Secrets},
    replica::{Replica, SWEEP},
};

/// From one look at what was left running to the next.
const SWEEP_AGAIN: Duration = Duration::from_secs(60);
/// What a row says before its server ever ran.
const REGISTERED: &str = "registered";

pub(crate) struct Hosting {
    store: Store,
    gateway: Gateway,
    projects: Arc<Projects>,
    /// Whoever holds it may change what is hosted.
    edits: Mutex<()>,
}

/// Why a registration came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", .0.first().map_or("it is not usable", |wrong| wrong.detail.as_str()))]
    Unfit(Vec<Wrong>),
    /// Something else has the name.
    #[error("there is a server `{0}` already")]
    Taken(ServerName),
    #[error("there is no project `{0}`")]
    NoProject(ProjectId),
    #[error("`{namespace}/{name}`, a resource of Kubernetes, declares the server: change that one")]
    Declared { namespace: String, name: ServerName },
    #[error("the key that variables are sealed with: {0}")]
    Key(String),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("its volumes are not removed: {0}")]
    Volumes(runtime::Error),
}

impl Hosting {
    pub(crate) fn new(store: Store, gateway: Gateway, projects: Arc<Projects>) -> Arc<Self> {
        Arc::new(Self {
            store,
            gateway,
            projects,
            edits: Mutex::default(),
        })
    }

    /// Removes what an earlier run left behind and nobody needs, as soon as whoever runs it answers; and now and then what replicas left that
    /// are lost, for ever. Of several replicas one does.
    pub(crate) async fn sweep(&self, replica: Option<&Replica>) {
        let runtimes = self.gateway.runtimes();
        let mut left = runtimes.elsewhere();
        loop {
            runtimes.sweep(&mut left).await;
            if left.is_empty() && replica.is_none() {
                return std::future::pending().await;
            }
            tokio::time::sleep(SWEEP_AGAIN).await;
            if let Some(replica) = replica
                && replica.take(SWEEP).await.is_ok()
                && let Err(error) = self.sweep_lost(replica).await
            {
                tracing::warn!("what lost replicas left running is not looked for: {error:#}");
            }
        }
    }

    async fn sweep_lost(&self, replica: &Replica) -> anyhow::Result<()> {
        let installation = self.installation().await?.into();
        let held = async || replica.fences().await;
        let runtimes = self.gateway.runtimes();
        Ok(runtimes.sweep_fenced(&installation, held).await?)
    }

    /// What all gateways of the database are together.
    async fn installation(&self) -> anyhow::Result<String> {
        Ok(self.projects.session_key().await?.installation())
    }

    /// Takes in what the rows say now (H08): what is new or changed is started, the others go on undisturbed.
    ///
    /// # Errors
    /// The store does not tell.
    pub(crate) async fn reload(&self) -> Result<(), Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.take_in(self.rows().await?).await
    }

    /// Takes in what the rows say now, if one of these projects has a server.
    ///
    /// # Errors
    /// The store does not tell.
    pub(crate) async fn reload_of(&self, projects: &BTreeSet<ProjectId>) -> Result<(), Error> {
        if projects.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.edits.lock().await;
        let is_of = |owner: Option<&ProjectId>| owner.is_some_and(|id| projects.contains(id));
        // A project that is gone has no rows any more, but its servers may be here.
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

    async fn take_in(&self, rows: Vec<WorkspaceRow>) -> Result<(), Error> {
        let mut secrets: HashMap<ProjectId, Secrets> = HashMap::new();
        let mut hosted = Vec::with_capacity(rows.len());
        let mut crashes = self.crashes().await?;
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
                    tracing::error!(server = %row.name, id = row.id, "cannot be hosted: its variables: {why}");
                    continue;
                }
            };
            let project = hosted_by(row);
            let place = Owner::Hosted(project.as_ref(), &row.name);
            let config = match self.projects.opened(place, &row.config).await? {
                Ok(opened) => opened,
                Err(why) => {
                    tracing::error!(server = %row.name, id = row.id, "cannot be hosted: {why}");
                    continue;
                }
            };
            let row = &WorkspaceRow {
                config,
                ..row.clone()
            };
            match Entry::kept(row, &known.values, sealed) {
                Ok(mut spec) => {
                    spec.secrets.0.extend(evident(&row.config));
                    known.hold_back(&mut spec, &row.config);
                    spec.resolve_login(&self.gateway.settings().logins);
                    hosted.push((spec, left(row, &mut crashes)));
                }
                Err(wrong) => {
                    let wrong: Vec<&str> = wrong.iter().map(|one| one.detail.as_str()).collect();
                    let why = wrong.join("; ");
                    tracing::error!(server = %row.name, id = row.id, "cannot be hosted: {why}");
                }
            }
        }
        let remembered = self.remembered(&hosted).await?;
        self.gateway.host(hosted, remembered);
        Ok(())
    }

    /// The variables whose values are sealed in rows, by the ids of these.
    async fn sealed(
        &self,
        rows: &[WorkspaceRow],
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

    /// Those of the owners of rows that are switched off, with all that is theirs.
    async fn resting(&self, rows: &[WorkspaceRow]) -> Result<BTreeSet<ProjectId>, Error> {
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

    pub(crate) async fn rows(&self) -> Result<Vec<WorkspaceRow>, Error> {
        Ok(self.store.workspace_list_all().await?)
    }

    /// The last crash of each server that is registered.
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
            let digest = |name: &ServerName| {
                let spec = specs.iter().find(|spec| spec.name == *name)?;
                Some(engine::config_digest(spec))
            };
            let known = Remembered::of_rows(snapshots, pins, digest, depth);
            all.extend(known.into_iter().map(|(name, known)| {
                let owner = owner.clone();
                (ServerKey { owner, name }, known)
            }));
        }
        Ok(all)
    }

    /// Registers a server and starts it; its row.
    ///
    /// # Errors
    /// [`Error`]; nothing was changed then.
    pub(crate) async fn register(&self, entry: Entry) -> Result<WorkspaceRow, Error> {
        self.permitted(&entry)?;
        let _one_at_a_time = self.edits.lock().await;
        self.free(&entry).await?;
        let config = self.sealed_entry(&entry, None).await?;
        let new = NewWorkspace {
            project: entry.project.as_ref(),
            name: &entry.name,
            status: REGISTERED,
            image: entry.launch().program.target(),
            config: &config,
        };
        let put = self.store.workspace_put(new).await;
        let row = put.map_err(|error| match error {
            store::Error::Conflict { .. } => Error::Taken(entry.name.clone()),
            error => error.into(),
        })?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// Puts another registration in the place of one; the server is started anew if anything is different.
    ///
    /// # Errors
    /// [`Error`]; nothing was changed then.
    pub(crate) async fn update(&self, id: &str, entry: Entry) -> Result<WorkspaceRow, Error> {
        self.permitted(&entry)?;
        let _one_at_a_time = self.edits.lock().await;
        let old = self.store.workspace_get(None, id).await?;
        if !entry.is_of_resource() {
            self.free_to_change(&old)?;
        }
        if (&old.name, hosted_by(&old)) != (&entry.name, entry.project.clone()) {
            let why =
                "a server keeps its name and its project; register another, and delete this one";
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
            .workspace_set_config(None, id, image, &config)
            .await?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// An entry as its row holds it.
    async fn sealed_entry(&self, entry: &Entry, before: Option<&Value>) -> Result<Value, Error> {
        let sealing = self.projects.sealing().await;
        let sealing = sealing.map_err(|error| Error::Key(format!("{error:#}")))?;
        let owner = Owner::Hosted(entry.project.as_ref(), &entry.name);
        Ok(sealing.seal(owner, &entry.config, before))
    }

    /// A registration as it was given: its secrets are opened.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) async fn given(&self, row: &WorkspaceRow) -> Result<Value, Error> {
        let project = hosted_by(row);
        let place = Owner::Hosted(project.as_ref(), &row.name);
        let opened = self.projects.opened(place, &given(row)).await?;
        opened.map_err(Error::Key)
    }

    /// Switches a server on or off.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) async fn set_enabled(&self, id: &str, enabled: bool) -> Result<WorkspaceRow, Error> {
        let change = |config: &mut Value| config["enabled"] = enabled.into();
        self.edit(id, change).await
    }

    /// Switches a tool of a server on or off, for all who see it.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) async fn set_tool_enabled(
        &self,
        id: &str,
        tool: &NativeName,
        enabled: bool,
    ) -> Result<WorkspaceRow, Error> {
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
        };
        self.edit(id, change).await
    }

    async fn edit(&self, id: &str, change: impl FnOnce(&mut Value)) -> Result<WorkspaceRow, Error> {
        let _one_at_a_time = self.edits.lock().await;
        let mut row = self.store.workspace_get(None, id).await?;
        self.free_to_change(&row)?;
        change(&mut row.config);
        let row = self
            .store
            .workspace_set_config(None, id, &row.image, &row.config)
            .await?;
        self.take_in(self.rows().await?).await?;
        Ok(row)
    }

    /// Ends a server and forgets it; its volumes only if that is asked for.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) async fn delete(&self, id: &str, volumes: bool) -> Result<(), Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.free_to_change(&self.store.workspace_get(None, id).await?)?;
        if let Some(server) = self.forgotten(id).await? {
            server.stopped().await;
        }
        match volumes {
            true => self.volumes_remove(id).await,
            false => Ok(()),
        }
    }

    /// Forgets a server, which may take a while to end; it, if the gateway has it.
    ///
    /// # Errors
    /// [`Error`]
    #[cfg(feature = "kubernetes")]
    pub(crate) async fn forget(&self, id: &str) -> Result<Option<Arc<Server>>, Error> {
        let _one_at_a_time = self.edits.lock().await;
        self.forgotten(id).await
    }

    async fn forgotten(&self, id: &str) -> Result<Option<Arc<Server>>, Error> {
        let server = self.server(id);
        self.store.workspace_delete(None, id).await?;
        self.take_in(self.rows().await?).await?;
        Ok(server)
    }

    /// Removes the volumes of a server that has ended.
    ///
    /// # Errors
    /// [`Error::Volumes`], [`Error::Key`]
    pub(crate) async fn volumes_remove(&self, id: &str) -> Result<(), Error> {
        let installation = self.installation().await;
        let installation = installation.map_err(|error| Error::Key(format!("{error:#}")))?;
        let runtimes = self.gateway.runtimes();
        let removed = runtimes.volumes_remove(id, Some(&installation)).await;
        removed.map_err(Error::Volumes)
    }

    /// Whether a server is not declared by a resource that this gateway watches.
    fn free_to_change(&self, row: &WorkspaceRow) -> Result<(), Error> {
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

    /// Forgets a server that was registered just now and cannot be: it never ran, and nothing of it is to stay.
    ///
    /// # Errors
    /// [`Error`]
    pub(crate) async fn withdraw(&self, id: &str) -> Result<(), Error> {
        self.delete(id, true).await?;
        // What was on its way into the store is there now.
        self.gateway.chronicled().await;
        Ok(self.store.events_remove(id).await?)
    }

    pub(crate) fn settings(&self) -> Arc<model::Settings> {
        self.gateway.settings()
    }

    pub(crate) fn server(&self, id: &str) -> Option<Arc<Server>> {
        self.gateway.fleet().by_id(id).cloned()
    }

    /// Whether this installation lets it be hosted so, as far as can be told without trying.
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

    /// Whether nothing else has the name, and its project is there.
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

/// How a server was left by an earlier run, if it ever ran.
fn left(row: &WorkspaceRow, crashes: &mut HashMap<String, Crash>) -> Option<Left> {
    Some(Left {
        last: Last::from_word(&row.status)?,
        crash: crashes.remove(&row.id),
    })
}

/// What was written down of a crash.
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
