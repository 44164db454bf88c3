//! The projects of the store, and their servers in the gateway.
//!
//! A project is taken in when it is first asked for, and again whenever something of it changes. Invariant: one
//! at a time takes a project in. Deliberately absent: noticing what another process writes into the database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use config::{check_project, not_allowed, why_not_allowed};
use engine::{
    Gateway, Project, Remembered, Scope,
    secrets::{DataKey, Sealed},
};
use futures_util::{StreamExt as _, stream};
use model::{
    ExposedName, NativeName, Origin, ProjectId, ProjectView, ServerSpec, Settings, ToolRef,
    ToolSetting,
};
use serde_json::Value;
use store::{Page, ProjectRow, SealedSecret, SecretRow, ServerRow, Store};
use tokio::sync::OnceCell;

use crate::{
    entries::{Owner, Sealing, evident},
    locks::Locks,
    master::Master,
};

/// Projects that are taken in at a time when all are wanted.
const AT_ONCE: usize = 8;
/// Longest value of a secret, in bytes.
const MAX_SECRET: usize = 64 << 10;
/// Longest name of a secret, in bytes.
const MAX_SECRET_NAME: usize = 128;
/// What to do about a data key that does not open.
const NEW_MASTER_KEY: &str = "the master key was changed on another replica; start this one with the new key as TOOLWHARF_MASTER_KEY";
/// Attempts to store a secret that others store, too.
const ATTEMPTS: usize = 10;
/// The key of a stored entry that says who put it there, and its value for a project's own key.
pub(crate) const REGISTERED_BY: &str = "registeredBy";
pub(crate) const BY_PROJECT: &str = "project";

pub(crate) struct Projects {
    store: Store,
    gateway: Gateway,
    master: Arc<Master>,
    locks: Locks,
    /// The key that seals secrets in entries. Rotating the master key does not change it.
    entry_key: OnceCell<DataKey>,
    /// Data keys that were opened. They stay the same when another master key wraps them.
    data_keys: parking_lot::Mutex<HashMap<ProjectId, Arc<DataKey>>>,
    /// Projects with a data key that does not open, which was told.
    closed: parking_lot::Mutex<BTreeSet<ProjectId>>,
    /// Whether all projects are to be in the gateway, those that come to be included.
    wants_all: AtomicBool,
    /// Whether they are.
    all: AtomicBool,
}

/// The secrets of a project.
#[derive(Default)]
pub(crate) struct Secrets {
    /// Those that could be opened, by their names.
    pub(crate) values: HashMap<String, String>,
    /// Those that could not, and why.
    closed: BTreeMap<String, String>,
}

impl Secrets {
    fn open(project: &ProjectId, key: Option<&DataKey>, rows: Vec<SealedSecret>) -> Self {
        let mut secrets = Self::default();
        for secret in rows {
            let sealed = Sealed {
                nonce: secret.nonce,
                sealed: secret.sealed,
            };
            let name = secret.name;
            let opened =
                key.map(|key| key.open(project, &name, i64::from(secret.version), &sealed));
            let why = match opened {
                Some(Ok(value)) => {
                    secrets.values.insert(name, value.as_str().to_owned());
                    continue;
                }
                Some(Err(error)) => format!("{error}; set it again"),
                None => NEW_MASTER_KEY.to_owned(),
            };
            let why = format!("secret `{name}` of project `{project}` cannot be opened: {why}");
            secrets.closed.insert(name, why);
        }
        secrets
    }

    /// Why a secret is not known that the project has.
    pub(crate) fn closed(&self, name: &str) -> Option<&str> {
        self.closed.get(name).map(String::as_str)
    }

    /// Keeps a server from being started without a secret that is not known: the default of a variable would be in its place.
    pub(crate) fn hold_back(&self, spec: &mut ServerSpec, config: &Value) {
        if self.closed.is_empty() || !spec.enabled {
            return;
        }
        let text = config.to_string();
        let missing = |name| match self.values.contains_key(name) {
            true => None,
            false => self.closed(name),
        };
        if let Some(why) = variables(&text).find_map(missing) {
            spec.unusable = Some(why.to_owned());
        }
    }
}

/// The names in `${NAME}`, `${NAME:-default}` and `${env:NAME}`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let forms = text.split("${").skip(1);
    forms.filter_map(|form| {
        let (form, _) = form.split_once('}')?;
        let form = form.strip_prefix("env:").unwrap_or(form);
        Some(form.split_once(":-").map_or(form, |(name, _)| name))
    })
}

/// Why a secret was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error(
        "a secret's name consists of letters, digits and `_`, does not begin with a digit, and has at most \
         {MAX_SECRET_NAME} characters"
    )]
    Name,
    #[error("a secret must be a string of at most {MAX_SECRET} bytes without the character U+0000")]
    Value,
    #[error("the project's data key cannot be opened: {NEW_MASTER_KEY}")]
    Sealed,
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Projects {
    pub(crate) fn new(store: Store, gateway: Gateway, master: Arc<Master>) -> Arc<Self> {
        Arc::new(Self {
            store,
            gateway,
            master,
            locks: Locks::default(),
            entry_key: OnceCell::new(),
            data_keys: parking_lot::Mutex::default(),
            closed: parking_lot::Mutex::default(),
            wants_all: AtomicBool::new(false),
            all: AtomicBool::new(false),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Makes sure that the projects which the configuration file names are in the store, so that they can have
    /// servers and secrets of their own, and takes in what that file says of those that are known.
    pub(crate) async fn declared(&self, ids: &[ProjectId]) {
        if let Err(error) = self.store.project_ensure(ids).await {
            tracing::error!("projects of the configuration file are not in the database: {error}");
        }
        let known: Vec<ProjectId> = self.gateway.fleet().projects.keys().cloned().collect();
        for id in known {
            if let Err(error) = self.reload(&id).await {
                tracing::error!(project = %id, "the project stays as it was: {error}");
            }
        }
    }

    /// The projects that the gateway has, and all where it is to have them.
    ///
    /// # Errors
    /// If the store cannot tell.
    pub(crate) async fn wanted(&self) -> store::Result<BTreeSet<ProjectId>> {
        let fleet = self.gateway.fleet();
        let mut ids: BTreeSet<ProjectId> = fleet.projects.keys().cloned().collect();
        if self.wants_all.load(Ordering::Acquire) {
            let mut page = Page::default();
            loop {
                let rows = self.store.project_list(&page).await?;
                let Some(last) = rows.last() else { break };
                page = Page::after(last.id.as_str(), store::MAX_PAGE);
                ids.extend(rows.into_iter().map(|row| row.id));
            }
        }
        Ok(ids)
    }

    /// Takes in what the store says of those of these projects that the gateway has or is to have. Those of which the store cannot tell; what is
    /// known of them stays.
    pub(crate) async fn reload_changed(
        &self,
        ids: &BTreeSet<ProjectId>,
    ) -> Vec<(ProjectId, store::Error)> {
        let reloads = ids.iter().map(|id| async move {
            let _one_at_a_time = self.locks.of(id).lock().await;
            let is_known = self.gateway.fleet().projects.contains_key(id);
            match is_known || self.wants_all.load(Ordering::Acquire) {
                true => self
                    .take_in(id)
                    .await
                    .err()
                    .map(|error| (id.clone(), error)),
                false => None,
            }
        });
        let failed = stream::iter(reloads).buffer_unordered(AT_ONCE);
        failed
            .filter_map(|failed| async move { failed })
            .collect()
            .await
    }

    /// Makes sure that the gateway knows what a scope addresses, if there is such a thing.
    ///
    /// # Errors
    /// If the store cannot tell.
    pub(crate) async fn admit(&self, scope: &Scope) -> store::Result<()> {
        match &scope.project {
            Some(project) if self.gateway.fleet().projects.contains_key(project) => Ok(()),
            // Rare, and boxed: what answers a call is moved into its connection.
            Some(project) => Box::pin(self.load(project)).await,
            None if scope.server.is_some() || self.all.load(Ordering::Acquire) => Ok(()),
            None => {
                // The rest goes on without them, and the next one who asks tries again.
                if let Err(error) = Box::pin(self.load_all()).await {
                    tracing::warn!("not all projects are known: {error}");
                }
                Ok(())
            }
        }
    }

    /// Makes sure that the gateway has the project, if it is enabled.
    ///
    /// # Errors
    /// If the store cannot tell.
    pub(crate) async fn known(&self, id: &ProjectId) -> store::Result<()> {
        self.load(id).await
    }

    async fn load(&self, id: &ProjectId) -> store::Result<()> {
        let _one_at_a_time = self.locks.of(id).lock().await;
        if self.gateway.fleet().projects.contains_key(id) {
            return Ok(());
        }
        self.take_in(id).await
    }

    /// Takes in what the store says of a project now, or forgets it if it is gone.
    ///
    /// # Errors
    /// If the store cannot tell: what is known stays.
    pub(crate) async fn reload(&self, id: &ProjectId) -> store::Result<()> {
        let _one_at_a_time = self.locks.of(id).lock().await;
        self.take_in(id).await
    }

    async fn load_all(&self) -> store::Result<()> {
        // First: what another replica makes meanwhile may be on no page.
        self.wants_all.store(true, Ordering::Release);
        let mut page = Page::default();
        loop {
            let rows = self.store.project_list(&page).await?;
            let Some(last) = rows.last() else { break };
            page = Page::after(last.id.as_str(), store::MAX_PAGE);
            for rows in rows.chunks(AT_ONCE) {
                let mut loads = Vec::with_capacity(rows.len());
                for row in rows {
                    loads.push(self.load(&row.id));
                }
                futures_util::future::try_join_all(loads).await?;
            }
        }
        self.all.store(true, Ordering::Release);
        Ok(())
    }

    async fn take_in(&self, id: &ProjectId) -> store::Result<()> {
        let row = match self.store.project_get(id).await {
            Ok(row) if row.enabled => row,
            Ok(_) | Err(store::Error::NotFound { .. }) => {
                self.data_keys.lock().remove(id);
                self.gateway.project_remove(id);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let owner = Some(id);
        let mut servers = self.store.server_list(id).await?;
        // In the order of registration, which says whose tool wins a name (`last-wins`): ids are in the order of time.
        servers.sort_by(|one, other| one.id.cmp(&other.id));
        // Before anything looks for `${NAME}`, which may be within a sealed value.
        let mut opened = Vec::with_capacity(servers.len());
        for server in &mut servers {
            let owner = Owner::Server(id, &server.name);
            let one = self.opened(owner, &server.config).await?;
            opened.push(one.map(|config| {
                let values = evident(&config);
                server.config = config;
                values
            }));
        }
        let settings = self.store.tool_setting_list(id).await?;
        let snapshots = self.store.snapshot_list(owner).await?;
        let pins = self.store.pin_digest_list(owner).await?;
        let secrets = self.secrets(id, &servers).await?;
        let settled = self.gateway.settings();
        let mut specs: Vec<ServerSpec> = Vec::with_capacity(servers.len());
        for (server, opened) in servers.iter().zip(opened) {
            let Some(mut spec) = spec(id, server, &secrets, &settled) else {
                continue;
            };
            match opened {
                Ok(values) => spec.secrets.0.extend(values),
                Err(why) => spec.unusable = Some(why),
            }
            specs.push(spec);
        }
        let tools: HashMap<ToolRef, ToolSetting> = settings
            .into_iter()
            .map(|row| {
                let tool = ToolRef {
                    server: row.server,
                    tool: NativeName::new(row.tool),
                };
                let setting = ToolSetting {
                    enabled: row.enabled,
                    alias: row.alias.map(ExposedName::new),
                    description: row.description,
                };
                (tool, setting)
            })
            .collect();
        let digest = |name: &model::ServerName| {
            let spec = specs.iter().find(|spec| spec.name == *name)?;
            Some(engine::config_digest(spec))
        };
        let depth = self.gateway.settings().limits.max_depth;
        let remembered = Remembered::of_rows(snapshots, pins, digest, depth);
        let view = self.view(id, &row);
        let project = Project { view, tools };
        self.gateway.project_set(id, project, specs, remembered);
        Ok(())
    }

    /// What a project sees of the configuration file's servers: what that says of it, else none.
    fn view(&self, id: &ProjectId, row: &ProjectRow) -> ProjectView {
        let fleet = self.gateway.fleet();
        let mut view = if fleet.declares(id) {
            fleet.settings.projects.get(id).cloned().unwrap_or_default()
        } else {
            ProjectView {
                servers: Some(BTreeSet::new()),
                naming: Some(model::NamingPolicy::Preserve),
                ..ProjectView::default()
            }
        };
        let naming = row.settings.get("naming").and_then(Value::as_str);
        if let Some(naming) = naming.and_then(|word| word.parse().ok()) {
            view.naming = Some(naming);
        }
        let start = row.settings.get("start").and_then(Value::as_str);
        if let Some(start) = start.and_then(|word| word.parse().ok()) {
            view.start = Some(start);
        }
        view
    }

    /// The project's secrets, if one of the servers has variables in it.
    async fn secrets(&self, id: &ProjectId, servers: &[ServerRow]) -> store::Result<Secrets> {
        if !servers
            .iter()
            .any(|server| server.config.to_string().contains("${"))
        {
            return Ok(Secrets::default());
        }
        self.secret_values(id).await
    }

    /// All secrets of a project.
    ///
    /// # Errors
    /// If the store cannot tell.
    pub(crate) async fn secret_values(&self, id: &ProjectId) -> store::Result<Secrets> {
        let Some(wrapped) = self.store.project_data_key(id).await? else {
            return Ok(Secrets::default());
        };
        let key = self.opened_key(id, &wrapped);
        Ok(Secrets::open(
            id,
            key.as_deref(),
            self.store.secret_all(id).await?,
        ))
    }

    /// The data key that is wrapped so, else the one that the project had before.
    fn opened_key(&self, id: &ProjectId, wrapped: &[u8]) -> Option<Arc<DataKey>> {
        if let Ok(key) = self.master.key().unwrap(id, wrapped) {
            let key = Arc::new(key);
            self.data_keys.lock().insert(id.clone(), key.clone());
            self.closed.lock().remove(id);
            return Some(key);
        }
        let known = self.data_keys.lock().get(id).cloned();
        if self.closed.lock().insert(id.clone()) {
            let goes_on = match known {
                Some(_) => "its secrets are opened with the one that was known before",
                None => "servers that need its secrets do not start",
            };
            tracing::error!(project = %id, "the project's data key cannot be opened, and {goes_on}: {NEW_MASTER_KEY}");
        }
        known
    }

    /// Seals and stores a secret; servers of the project that use it are connected anew.
    ///
    /// # Errors
    /// [`SecretError`]
    pub(crate) async fn secret_set(
        &self,
        project: &ProjectId,
        name: &str,
        value: &str,
    ) -> Result<SecretRow, SecretError> {
        let mut bytes = name.bytes();
        let begins = bytes
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let goes_on = bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !begins || !goes_on || name.len() > MAX_SECRET_NAME {
            return Err(SecretError::Name);
        }
        if value.len() > MAX_SECRET || value.contains('\0') {
            return Err(SecretError::Value);
        }
        let key = self.data_key(project).await?;
        let mut attempts = ATTEMPTS;
        let row = loop {
            attempts -= 1;
            let version = match self.store.secret_get(project, name).await {
                Ok(stored) => stored.version.saturating_add(1),
                Err(store::Error::NotFound { .. }) => 1,
                Err(error) => return Err(error.into()),
            };
            let sealed = key.seal(project, name, i64::from(version), value);
            let secret = SealedSecret {
                name: name.to_owned(),
                version,
                nonce: sealed.nonce,
                sealed: sealed.sealed,
            };
            match self.store.secret_put(project, &secret).await {
                Err(store::Error::Conflict { .. }) if attempts > 0 => {}
                stored => break stored?,
            }
        };
        self.reload(project).await?;
        Ok(row)
    }

    /// # Errors
    /// [`store::Error`]
    pub(crate) async fn secret_delete(&self, project: &ProjectId, name: &str) -> store::Result<()> {
        self.store.secret_delete(project, name).await?;
        self.reload(project).await
    }

    async fn data_key(&self, project: &ProjectId) -> Result<DataKey, SecretError> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            let master = self.master.key();
            let wrapped = match self.store.project_data_key(project).await? {
                Some(wrapped) => wrapped,
                None => {
                    let fresh = master.wrap(project, &DataKey::random());
                    let id = master.id();
                    let set = self
                        .store
                        .project_data_key_set_if_none(project, &id, &fresh);
                    match set.await {
                        // The master key was rotated meanwhile.
                        Err(store::Error::Conflict { .. }) if attempts > 0 => continue,
                        set => set?,
                    }
                }
            };
            match master.unwrap(project, &wrapped) {
                Ok(key) => return Ok(key),
                Err(_) if attempts > 0 => {}
                Err(_) => return Err(SecretError::Sealed),
            }
        }
    }

    /// The key that session ids are sealed with. It is that of sign-ins, which stays when the master key is rotated.
    ///
    /// # Errors
    /// When the database does not answer, or the master key does not open it.
    pub(crate) async fn session_key(&self) -> anyhow::Result<DataKey> {
        self.master.login_key().await
    }

    /// The key that secrets in entries are sealed with: the one of sign-ins.
    ///
    /// # Errors
    /// When the database does not answer, or the master key does not open it.
    pub(crate) async fn entry_key(&self) -> anyhow::Result<&DataKey> {
        let key = self.entry_key.get_or_try_init(|| self.master.login_key());
        key.await
    }

    /// Returns the means to seal entries that are about to be stored.
    ///
    /// # Errors
    /// As [`Projects::entry_key`].
    pub(crate) async fn sealing(&self) -> anyhow::Result<Sealing<'_>> {
        let is_known = self.store.sealing_begin().await?;
        Ok(Sealing::new(self.entry_key().await?, is_known))
    }

    /// A stored entry with its secrets opened, or why they cannot be.
    ///
    /// # Errors
    /// When the database does not answer.
    pub(crate) async fn opened(
        &self,
        owner: Owner<'_>,
        entry: &Value,
    ) -> store::Result<Result<Value, String>> {
        if !Sealing::is_in(entry) {
            return Ok(Ok(entry.clone()));
        }
        let key = match self.entry_key().await {
            Ok(key) => key,
            Err(error) => {
                return match error.downcast::<store::Error>() {
                    Ok(error) => Err(error),
                    Err(error) => Ok(Err(format!("{error:#}"))),
                };
            }
        };
        let opened = Sealing::new(key, false).open(owner, entry);
        Ok(opened.map_err(|error| error.to_string()))
    }

    /// Goes over to a new master key; its id.
    ///
    /// # Errors
    /// If it cannot be kept; the old one stays then.
    pub(crate) async fn master_rotate(&self) -> anyhow::Result<String> {
        self.master.rotate().await
    }
}

/// The entry of a stored server, as it would stand in `mcp.json`.
pub(crate) fn entry(server: &ServerRow) -> Value {
    let mut entry = server.config.clone();
    if let Some(members) = entry.as_object_mut() {
        members.remove(REGISTERED_BY);
        members.insert("type".to_owned(), server.transport.as_str().into());
    }
    entry
}

fn spec(
    project: &ProjectId,
    server: &ServerRow,
    secrets: &Secrets,
    settings: &Settings,
) -> Option<ServerSpec> {
    match check_project(project, &server.name, &entry(server), &secrets.values) {
        Ok(mut spec) => {
            spec.enabled = server.enabled;
            secrets.hold_back(&mut spec, &server.config);
            if let Origin::Remote(remote) = &mut spec.origin {
                remote.public_only = server.config[REGISTERED_BY] == BY_PROJECT;
            }
            spec.resolve_login(&settings.logins);
            let allowed = &settings.hosting.mounts;
            let refused = spec.sandbox().and_then(|own| not_allowed(allowed, own));
            if let Some(path) = refused {
                spec.unusable = Some(why_not_allowed(path));
            }
            Some(spec)
        }
        Err(unfit) => {
            tracing::error!(%project, server = %server.name, "cannot be used: {}", unfit.problems.join("; "));
            None
        }
    }
}
