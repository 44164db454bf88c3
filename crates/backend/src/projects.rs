//! Loads the projects of the store, with their servers, into the gateway.
//!
//! A project is loaded when it is first used, and reloaded whenever it changes. Invariant: loads of one project never
//! overlap. Deliberately absent: detecting changes that another process writes to the database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use catalog::Remembered;
use config::{check_project, not_allowed, why_not_allowed};
use engine::{Gateway, Project, Scope};
use futures_util::{StreamExt as _, stream};
use model::{
    ExposedName, NativeName, Origin, ProjectId, ProjectView, ServerSpec, Settings, ToolRef,
    ToolSetting,
};
use serde_json::Value;
use store::{
    Page, ProjectRow, SealedSecret, SecretRow, ServerRow, Store,
    encryption::{DataKey, Sealed},
};
use tokio::sync::OnceCell;

use crate::{
    entries::{Owner, Sealing, evident},
    locks::Locks,
    master::Master,
};

/// Maximum projects that are loaded concurrently.
const MAX_CONCURRENT_LOADS: usize = 8;
/// Maximum bytes of a secret's value.
const MAX_SECRET_BYTES: usize = 64 << 10;
/// Maximum bytes of a secret's name.
const MAX_SECRET_NAME_BYTES: usize = 128;
/// The remedy for a data key that cannot be decrypted.
const NEW_MASTER_KEY: &str = "the master key was changed on another replica; start this replica with the new key in TOOLWHARF_MASTER_KEY";
/// Attempts to store a secret while other callers store it, too.
const MAX_ATTEMPTS: usize = 10;
/// The key in a stored entry that says who registered it, and its value if that was a project key.
pub const REGISTERED_BY: &str = "registeredBy";
pub const BY_PROJECT: &str = "project";

pub struct Projects {
    store: Store,
    gateway: Gateway,
    master: Arc<Master>,
    locks: Locks,
    /// The key that encrypts secrets in entries. Rotating the master key does not change it.
    entry_key: OnceCell<DataKey>,
    /// Decrypted data keys. They stay the same when another master key wraps them.
    data_keys: parking_lot::Mutex<HashMap<ProjectId, Arc<DataKey>>>,
    /// Projects whose data key cannot be decrypted and for which that was logged.
    closed: parking_lot::Mutex<BTreeSet<ProjectId>>,
    /// True if all projects must be loaded, including new ones.
    wants_all: AtomicBool,
    all: AtomicBool,
}

/// The secrets of a project.
#[derive(Default)]
pub struct Secrets {
    /// Decrypted secrets, by name.
    pub values: HashMap<String, String>,
    /// Secrets that cannot be decrypted, with the reason.
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
            let why = format!("secret `{name}` of project `{project}` cannot be decrypted: {why}");
            secrets.closed.insert(name, why);
        }
        secrets
    }

    /// Why a secret of the project cannot be decrypted.
    pub fn closed(&self, name: &str) -> Option<&str> {
        self.closed.get(name).map(String::as_str)
    }

    /// Prevents the start of a server whose secrets cannot be decrypted. Otherwise the default of a variable would be
    /// used instead.
    pub fn hold_back(&self, spec: &mut ServerSpec, config: &Value) {
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
pub enum SecretError {
    #[error(
        "`{}` cannot be the name of a secret: use at most {MAX_SECRET_NAME_BYTES} letters, digits and `_`, and no digit \
         at the beginning",
        shortened(.0)
    )]
    Name(String),
    #[error(
        "a secret must be a string of at most {MAX_SECRET_BYTES} bytes without the character U+0000"
    )]
    Value,
    #[error("the project's data key cannot be decrypted: {NEW_MASTER_KEY}")]
    Sealed,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Returns the beginning of a name, for errors.
fn shortened(name: &str) -> String {
    let mut shown: String = name.chars().take(MAX_SECRET_NAME_BYTES).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

/// Checks the name of a secret.
///
/// # Errors
/// [`SecretError::Name`]
pub fn check_secret_name(name: &str) -> Result<(), SecretError> {
    if config::is_variable(name) && name.len() <= MAX_SECRET_NAME_BYTES {
        Ok(())
    } else {
        Err(SecretError::Name(name.to_owned()))
    }
}

/// Checks the name and the value of a secret.
pub(crate) fn check_secret(name: &str, value: &str) -> Result<(), SecretError> {
    check_secret_name(name)?;
    if value.len() > MAX_SECRET_BYTES || value.contains('\0') {
        return Err(SecretError::Value);
    }
    Ok(())
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

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Adds the projects named in the configuration file to the store, so that they can have servers and secrets, and
    /// applies the file's settings to loaded projects.
    pub async fn declared(&self, ids: &[ProjectId]) {
        if let Err(error) = self.store.project_ensure(ids).await {
            tracing::error!(
                "cannot add the configuration file's projects to the database: {error}"
            );
        }
        let known: Vec<ProjectId> = self.gateway.fleet().projects.keys().cloned().collect();
        for id in known {
            if let Err(error) = self.reload(&id).await {
                tracing::error!(project = %id, "cannot reload the project: {error}");
            }
        }
    }

    /// The loaded projects, and all others if they are to be loaded.
    ///
    /// # Errors
    /// Database errors.
    pub async fn wanted(&self) -> store::Result<BTreeSet<ProjectId>> {
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

    /// Reloads the projects in `ids` that are or must be loaded. Returns those that failed; their loaded state stays.
    pub async fn reload_changed(
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
        let failed = stream::iter(reloads).buffer_unordered(MAX_CONCURRENT_LOADS);
        failed
            .filter_map(|failed| async move { failed })
            .collect()
            .await
    }

    /// Makes sure that the project of a scope is loaded, if it exists.
    ///
    /// # Errors
    /// Database errors.
    pub async fn admit(&self, scope: &Scope) -> store::Result<()> {
        match &scope.project {
            Some(project) if self.gateway.fleet().projects.contains_key(project) => Ok(()),
            // This case is rare. Its future is boxed to keep the future of a call small, which is moved into the call's
            // connection.
            Some(project) => Box::pin(self.load(project)).await,
            None if scope.server.is_some() || self.all.load(Ordering::Acquire) => Ok(()),
            None => {
                // The loaded projects work without the others. The next request tries again.
                if let Err(error) = Box::pin(self.load_all()).await {
                    tracing::warn!("cannot load the projects that are not loaded yet: {error}");
                }
                Ok(())
            }
        }
    }

    /// Makes sure that the project is loaded, if it is enabled.
    ///
    /// # Errors
    /// Database errors.
    pub async fn known(&self, id: &ProjectId) -> store::Result<()> {
        self.load(id).await
    }

    async fn load(&self, id: &ProjectId) -> store::Result<()> {
        let _one_at_a_time = self.locks.of(id).lock().await;
        if self.gateway.fleet().projects.contains_key(id) {
            return Ok(());
        }
        self.take_in(id).await
    }

    /// Reloads a project, or unloads it if it was deleted.
    ///
    /// # Errors
    /// Database errors. The loaded state then stays.
    pub async fn reload(&self, id: &ProjectId) -> store::Result<()> {
        let _one_at_a_time = self.locks.of(id).lock().await;
        self.take_in(id).await
    }

    async fn load_all(&self) -> store::Result<()> {
        // The flag is set first, because a project that another replica creates in the meantime may be missing in the
        // pages.
        self.wants_all.store(true, Ordering::Release);
        let mut page = Page::default();
        loop {
            let rows = self.store.project_list(&page).await?;
            let Some(last) = rows.last() else { break };
            page = Page::after(last.id.as_str(), store::MAX_PAGE);
            for rows in rows.chunks(MAX_CONCURRENT_LOADS) {
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
        // Sorts by registration time, which is the order of the ids. With `last-wins`, this decides whose tool gets a
        // name.
        servers.sort_by(|one, other| one.id.cmp(&other.id));
        // Decrypts the entries first, because an encrypted value may contain `${NAME}`.
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
        let by_name: HashMap<_, _> = specs.iter().map(|spec| (&spec.name, spec)).collect();
        let digest = |name: &model::ServerName| Some(catalog::config_digest(by_name.get(name)?));
        let depth = self.gateway.settings().limits.max_depth;
        let remembered = Remembered::of_rows(snapshots, pins, digest, depth);
        let view = self.view(id, &row);
        let project = Project { view, tools };
        self.gateway.project_set(id, project, specs, remembered);
        Ok(())
    }

    /// Returns the view of a project: as configured in the configuration file if that names the project, otherwise
    /// without the servers of that file.
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
        let tools = row.settings.get("tools").and_then(Value::as_str);
        if let Some(tools) = tools.and_then(|word| word.parse().ok()) {
            view.tools = Some(tools);
        }
        let listed = row.settings.get("listed_tools").and_then(Value::as_array);
        let listed = listed.into_iter().flatten().filter_map(Value::as_str);
        let listed = listed.filter_map(|tool| ToolRef::parse(tool).ok());
        view.listed_tools.extend(listed);
        let tokens = row.settings.get("max_result_tokens");
        if let Some(tokens) = tokens.and_then(Value::as_u64) {
            view.max_result_tokens = usize::try_from(tokens).ok();
        }
        if let Some(compact) = row.settings.get("compact_results").and_then(Value::as_bool) {
            view.compact_results = Some(compact);
        }
        view
    }

    /// The project's secrets, if one of the servers uses variables.
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
    /// Database errors.
    pub async fn secret_values(&self, id: &ProjectId) -> store::Result<Secrets> {
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

    /// Decrypts a data key. Falls back to the project's previously decrypted key.
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
                Some(_) => "the previously decrypted key is used",
                None => "servers that need its secrets do not start",
            };
            tracing::error!(project = %id, "the project's data key cannot be decrypted: {NEW_MASTER_KEY}. Until then, {goes_on}");
        }
        known
    }

    /// Encrypts and stores a secret. Servers of the project that use it reconnect.
    ///
    /// # Errors
    /// [`SecretError`]
    pub async fn secret_set(
        &self,
        project: &ProjectId,
        name: &str,
        value: &str,
    ) -> Result<SecretRow, SecretError> {
        check_secret(name, value)?;
        let key = self.data_key(project).await?;
        let mut attempts = MAX_ATTEMPTS;
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
    pub async fn secret_delete(&self, project: &ProjectId, name: &str) -> store::Result<()> {
        self.store.secret_delete(project, name).await?;
        self.reload(project).await
    }

    async fn data_key(&self, project: &ProjectId) -> Result<DataKey, SecretError> {
        let mut attempts = MAX_ATTEMPTS;
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
                        // The master key was rotated in the meantime.
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

    /// The key that encrypts session ids: the key for sign-ins, which a rotation of the master key does not change.
    ///
    /// # Errors
    /// If the database does not respond, or the master key cannot decrypt the key.
    pub async fn session_key(&self) -> anyhow::Result<DataKey> {
        self.master.login_key().await
    }

    /// The key that encrypts secrets in entries: the key for sign-ins.
    ///
    /// # Errors
    /// If the database does not respond, or the master key cannot decrypt the key.
    pub async fn entry_key(&self) -> anyhow::Result<&DataKey> {
        let key = self.entry_key.get_or_try_init(|| self.master.login_key());
        key.await
    }

    /// Returns the means to encrypt entries that are about to be stored.
    ///
    /// # Errors
    /// See [`Projects::entry_key`].
    pub async fn sealing(&self) -> anyhow::Result<Sealing<'_>> {
        let is_known = self.store.sealing_begin().await?;
        Ok(Sealing::new(self.entry_key().await?, is_known))
    }

    /// A stored entry with its secrets decrypted, or the reason why that is not possible.
    ///
    /// # Errors
    /// If the database does not respond.
    pub async fn opened(
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

    /// Rotates the master key and returns the id of the new one.
    ///
    /// # Errors
    /// If it cannot be stored. The old key then stays in use.
    pub async fn master_rotate(&self) -> anyhow::Result<String> {
        self.master.rotate().await
    }
}

/// The entry of a stored server in the format of `mcp.json`.
pub fn entry(server: &ServerRow) -> Value {
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
            tracing::error!(%project, server = %server.name, "the server's stored entry cannot be used: {}", unfit.problems.join("; "));
            None
        }
    }
}
