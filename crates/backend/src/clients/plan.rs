//! Plans for connecting a client, and their execution.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use config::{Client, ClientFile, EditError, Foreign, ImportReport, OnDisk, Sources, Way, foreign};
use model::{ProjectId, ServerName};
use serde_json::json;

use super::{
    Clients, ENTRY_NAME, Error, blocking, diff,
    keys::{Keyring, Made},
    of, parsed,
    record::{Moved, Record},
    twice,
};
use crate::{loop_detection::LoopDetection, server_files, startup};

/// Placeholder for a token that does not exist yet.
const PLACEHOLDER_TOKEN: &str = "twh_…";

/// The options of connecting a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The project whose servers the client sees. `None`: all servers.
    pub project: Option<ProjectId>,
    /// Connect by the gateway's URL instead of a command.
    pub http: bool,
    /// Move the client's own servers to Toolwharf.
    pub take: bool,
}

pub struct Plan {
    client: &'static Client,
    disk: OnDisk,
    /// The text to restore later.
    base: Option<String>,
    /// That text without the moved servers.
    bare: ClientFile,
    wish: Wish,
    /// Servers to be moved, in Toolwharf's format.
    pub moving: Vec<Foreign>,
    /// Moved servers that Toolwharf has already.
    there: Vec<ServerName>,
    /// Servers that stay in the client's file, with the reason.
    staying: Vec<(String, String)>,
    /// Servers that stay in the client's file although Toolwharf has them too.
    twice: Vec<String>,
    record: Option<Record>,
    token: Option<String>,
    /// The file with Toolwharf's entry, if that contains no key.
    ready: Option<Arc<ClientFile>>,
}

impl Clients {
    /// Plans to connect a client.
    ///
    /// # Errors
    /// [`Error`]
    pub fn plan(
        &self,
        client: &'static Client,
        wish: &Wish,
        (sources, myself): (&Sources, &LoopDetection),
    ) -> Result<Plan, Error> {
        if wish.http && !client.takes_urls() {
            return Err(Error::CommandsOnly(client.title));
        }
        if wish.http && self.url.is_none() {
            return Err(Error::NoAddress);
        }
        if wish.take && wish.project.is_some() {
            return Err(Error::MovedIntoProject);
        }
        let record = self.records.record(client)?;
        // A connected client is connected again, starting from the original text.
        let mut plan = match &record {
            Some(_) => {
                let undo = self.undo(client)?;
                Plan::of(client, undo.disk, undo.text, wish)?
            }
            None => Plan::new(client, self.disk(client)?, wish)?,
        };
        let has_moved = record.as_ref().is_some_and(|it| !it.moved.is_empty());
        if wish.take || has_moved {
            plan.take(sources, myself)?;
        }
        if record.is_some() {
            plan.token = self.records.key(client)?;
        }
        plan.twice = twice::servers(|| plan.own(), sources, wish.project.as_ref());
        plan.record = record;
        // If the file's text cannot be edited, that is reported here, before anything is changed.
        let ready = self.edited(&plan, PLACEHOLDER_TOKEN)?;
        if !plan.wish.http {
            plan.ready = Some(ready);
        }
        Ok(plan)
    }

    /// The client's file with Toolwharf's entry and this key.
    fn edited(&self, plan: &Plan, token: &str) -> Result<Arc<ClientFile>, Error> {
        if let Some(ready) = &plan.ready {
            return Ok(ready.clone());
        }
        let mut file = plan.bare.clone();
        let entry = plan.client.entry(ENTRY_NAME, &self.way(plan, token));
        let put = file.put(ENTRY_NAME, &entry);
        put.map_err(|source| of(plan.client, source))?;
        Ok(Arc::new(file))
    }

    fn text(&self, plan: &Plan, token: &str) -> Result<String, Error> {
        Ok(self.edited(plan, token)?.to_string())
    }

    fn way(&self, plan: &Plan, token: &str) -> Way {
        let Plan { client, wish, .. } = plan;
        if wish.http {
            let mut url = format!("{}/mcp", self.url.as_deref().unwrap_or_default());
            if let Some(project) = &wish.project {
                url.push_str(&format!("/{project}"));
            }
            let token = token.to_owned();
            return Way::Url { url, token };
        }
        let mut args = self.options.clone();
        args.extend(["stdio", "--client", client.name].map(str::to_owned));
        if let Some(project) = &wish.project {
            args.extend(["--project".to_owned(), project.to_string()]);
        }
        let program = self.program.clone();
        Way::Command { program, args }
    }

    /// The change to the client's file, without secrets; empty if nothing changes.
    ///
    /// # Errors
    /// Only those that [`Clients::plan`] would have reported.
    pub fn diff(&self, plan: &Plan) -> Result<String, Error> {
        let new = self.edited(plan, plan.token.as_deref().unwrap_or(PLACEHOLDER_TOKEN))?;
        let there = parsed(plan.client, &plan.disk).ok();
        let there = there.map(|there| diff::without_equal(there.root(), new.root()));
        let token = plan.token.as_deref().map(|token| json!({ "token": token }));
        let mut values = vec![new.root()];
        values.extend(&there);
        values.extend(&token);
        let new = new.to_string();
        let old = plan.disk.text.as_deref().unwrap_or_default();
        let file = plan.disk.path.display().to_string();
        Ok(diff::unified(&file, old, &new, &values))
    }

    /// Connects the client with its existing key or a new one. Returns false if it was connected already.
    ///
    /// # Errors
    /// [`Error`], or an error of `keys`. The client's file is then unchanged.
    pub async fn connect<K: Keyring>(&self, plan: Plan, keys: &K) -> Result<bool, K::Error> {
        let keeps = match plan.key() {
            Some(id) => keys.lives(id).await?,
            None => false,
        };
        if keeps && self.is_done(&plan)? {
            return Ok(false);
        }
        let made = match keeps {
            true => None,
            false => Some(keys.make(plan.client, plan.wish.project.as_ref()).await?),
        };
        let id = made.as_ref().map(|made| made.id.clone());
        let old = plan.record.as_ref().map(|record| record.key.clone());
        let this = self.clone();
        let written = blocking(move || this.write(&plan, made.as_ref())).await;
        // The key to revoke: the new one if the file could not be written, otherwise the old one.
        let over = if written.is_err() { &id } else { &old };
        if let Some(over) = over.as_ref().filter(|_| id.is_some()) {
            let revoked = keys.revoke(over).await;
            written?;
            revoked?;
            return Ok(true);
        }
        written?;
        Ok(true)
    }

    /// Returns true if the client is connected according to the plan already.
    pub(crate) fn is_done(&self, plan: &Plan) -> Result<bool, Error> {
        let Some(token) = plan.token.as_deref().filter(|_| plan.key().is_some()) else {
            return Ok(false);
        };
        Ok(plan.disk.text == Some(self.text(plan, token)?))
    }

    /// Writes the client's file, after saving what undoing needs. Without a new key the client keeps the existing one.
    pub(super) fn write(&self, plan: &Plan, made: Option<&Made>) -> Result<(), Error> {
        let token = made.map(|made| made.token.as_str());
        let new = self.text(plan, token.or(plan.token.as_deref()).unwrap_or_default())?;
        let earlier = plan.record.as_ref();
        let key = made
            .map(|made| &made.id)
            .or(earlier.map(|record| &record.key));
        let record = Record {
            file: plan.disk.path.clone(),
            existed: plan.base.is_some(),
            left: model::sha256_hex(&new),
            key: key.cloned().unwrap_or_default(),
            project: plan.wish.project.clone(),
            moved: plan.moved(),
        };
        let before = plan.base.as_deref().unwrap_or_default();
        self.records.put(plan.client, &record, before, token)?;
        plan.disk.replace(Some(&new)).map_err(|source| {
            // Nothing was changed, so there is nothing to undo.
            if earlier.is_none() {
                let _ = self.records.remove(plan.client);
            }
            of(plan.client, source)
        })
    }
}

impl Plan {
    /// Plans to connect a client that is not connected yet, without moving servers.
    pub(super) fn new(client: &'static Client, disk: OnDisk, wish: &Wish) -> Result<Self, Error> {
        let base = disk.text.clone();
        Self::of(client, disk, base, wish)
    }

    fn of(
        client: &'static Client,
        disk: OnDisk,
        base: Option<String>,
        wish: &Wish,
    ) -> Result<Self, Error> {
        let text = base.as_deref().unwrap_or_default();
        let bare = ClientFile::parse(client, &disk.path, text);
        Ok(Self {
            client,
            bare: bare.map_err(|source| of(client, source))?,
            disk,
            base,
            wish: wish.clone(),
            moving: Vec::new(),
            there: Vec::new(),
            staying: Vec::new(),
            twice: Vec::new(),
            record: None,
            token: None,
            ready: None,
        })
    }

    /// The client's own servers that stay in its file. None if the file cannot be understood.
    fn own(&self) -> Vec<Foreign> {
        let text = self.base.as_deref().unwrap_or_default();
        own(&self.bare, &self.disk.path, text).unwrap_or_default()
    }

    /// The names of those servers in the file that can be moved to Toolwharf.
    pub fn movable(&self) -> Vec<String> {
        let own = self.own().into_iter();
        let own = own.filter(|server| server.skip.is_none());
        own.map(|server| server.name).collect()
    }

    /// Warnings about tools that the client will see twice.
    pub fn warnings_of_twice(&self) -> Vec<String> {
        let title = self.client.title;
        let warnings = self.twice.iter().map(|name| {
            format!(
                "`{name}` is in the file of {title} and in Toolwharf, so its tools appear twice: move the client's own \
                 servers (--move), or remove it from the file"
            )
        });
        warnings.collect()
    }

    /// Plans to move those of the client's own servers that Toolwharf supports.
    fn take(&mut self, sources: &Sources, myself: &LoopDetection) -> Result<(), Error> {
        let text = self.base.as_deref().unwrap_or_default();
        let own = own(&self.bare, &self.disk.path, text);
        let own = own.map_err(|source| of(self.client, source))?;
        let (derived, mut own): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|one| one.name.contains('/'));
        let stays =
            "its name contains `/`: add it with `toolwharf import`, and remove it here".to_owned();
        let derived = derived.into_iter().map(|one| (one.name, stays.clone()));
        let ImportReport {
            mut added,
            unchanged,
            clashes,
            refused,
            skipped,
            off,
            ..
        } = server_files::movable(sources, myself, &own)?;
        let is_off: HashSet<&str> = off.iter().map(|off| off.name.as_str()).collect();
        added.retain(|name| !is_off.contains(name.as_str()));
        let other = "Toolwharf already has a different server with this name".to_owned();
        let clashes = clashes.iter();
        let clashes = clashes.map(|name| (name.to_string(), other.clone()));
        let lacking = off.into_iter();
        let lacking = lacking.map(|off| (off.name, format!("missing: {}", off.why)));
        self.staying = clashes
            .chain(lacking)
            .chain(refused)
            .chain(skipped)
            .chain(derived)
            .collect();
        let takes: HashSet<&str> = added
            .iter()
            .chain(&unchanged)
            .map(|name| name.as_str())
            .collect();
        own.retain(|one| takes.contains(one.name.as_str()));
        let names: HashSet<&str> = own.iter().map(|one| one.name.as_str()).collect();
        let removed = self.bare.remove_all(&names);
        removed.map_err(|source| of(self.client, source))?;
        self.moving = own;
        self.there = unchanged;
        Ok(())
    }

    /// The id of the client's key, if it can be kept.
    fn key(&self) -> Option<&str> {
        let record = self.record.as_ref()?;
        let fits = self.token.is_some() && record.project == self.wish.project;
        fits.then_some(record.key.as_str())
    }

    /// The plan as returned by the API.
    pub fn to_api(&self, diff: String) -> api::Connected {
        let name = |one: &Foreign| one.name.clone();
        let notes = self.moving.iter().flat_map(|one| {
            let notes = one.notes.iter();
            notes.map(|note| format!("`{}`: {note}", one.name))
        });
        let mut warnings: Vec<String> = notes.collect();
        warnings.extend(self.warnings_of_twice());
        if self.wish.http && self.disk.is_open_to_others() {
            let file = self.disk.path.display();
            warnings.push(format!(
                "{file} now contains a key and is readable by others: run `chmod 600 {file}`"
            ));
        }
        let staying = self.staying.iter().cloned();
        api::Connected {
            name: self.client.name.to_owned(),
            file: self.disk.path.display().to_string(),
            diff,
            moved: self.moving.iter().map(name).collect(),
            staying: staying
                .map(|(name, why)| api::Unusable {
                    name,
                    why,
                    unset: Vec::new(),
                })
                .collect(),
            warnings,
        }
    }

    /// The moved servers, for the record.
    fn moved(&self) -> Vec<Moved> {
        let known = self.record.iter().flat_map(|record| &record.moved);
        let known: HashMap<&str, &Moved> = known.map(|it| (it.name.as_str(), it)).collect();
        let there: HashSet<&str> = self.there.iter().map(|name| name.as_str()).collect();
        let moved = self.moving.iter().map(|one| Moved {
            name: one.name.clone(),
            added: match known.get(one.name.as_str()) {
                Some(known) => known.added.clone(),
                None => (!there.contains(one.name.as_str())).then(|| one.entry.clone()),
            },
        });
        moved.collect()
    }
}

/// A client's own servers, in Toolwharf's format. Excludes those in other parts of the file, such as servers of a
/// single project, which the user does not have everywhere.
pub(super) fn own(file: &ClientFile, path: &Path, text: &str) -> Result<Vec<Foreign>, EditError> {
    let servers = file.servers().into_iter();
    let mut names: HashSet<String> = servers.map(|(name, _)| name).collect();
    names.remove(ENTRY_NAME);
    let mut own: Vec<Foreign> = Vec::new();
    for one in foreign(path, text, &startup::env)? {
        // If several have the same name, the first one is used.
        if names.remove(&one.name) {
            own.push(one);
        }
    }
    Ok(own)
}
