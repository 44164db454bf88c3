//! One look at the resources: their servers are made what they say, and they are told how those are.
//!
//! What is remembered here from one look to the next only saves work: all of it may be lost.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use engine::{catalog::ListKind, server::Server};
use futures_util::FutureExt as _;
use kube::api::DynamicObject;
use model::ServerName;
use serde_json::Value;
use store::{Page, WorkspaceRow};
use tokio::time::{Instant, timeout};

use super::{
    cluster::{Cluster, Definition, Error, has_finalizer, is_going, name, uid},
    definition::{RECLAIM, RETAIN, SECRET_ENV},
    events,
    status::{self, Status, Told},
};
use crate::{
    entries::hosted_by,
    hosting::{self, Entry, Hosting, Resource},
    projects::Projects,
};

/// From one look at a spec, its Secrets and its row to the next, if nothing is heard of them.
const AGAIN: Duration = Duration::from_secs(20);
/// The same, if the spec is not in force or the server is ending: what is waited for may have come.
const WAITING: Duration = Duration::from_secs(2);
/// The first and the longest wait after something failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// For one attempt to have the volumes of a server removed.
const VOLUMES: Duration = Duration::from_secs(2);
/// An object is not written to again within that time.
const WRITES: Duration = Duration::from_secs(1);
/// After an API server that does not answer.
const AWAY: Duration = Duration::from_secs(5);
/// How long after a change of a server's state its events are looked for: they are written down a moment later.
const EVENTS: Duration = Duration::from_secs(3);
/// Events of one server that are told at a time; of more, the newest.
const MAX_EVENTS: u32 = 20;

pub(super) struct Look<'a> {
    cluster: &'a Cluster,
    hosting: &'a Hosting,
    projects: &'a Projects,
    /// Whether other gateways may run the servers.
    has_replicas: bool,
    memories: BTreeMap<String, Memory>,
    /// Servers without a row that have not ended yet, by their ids.
    leaving: HashMap<String, Arc<Server>>,
    /// Rows without a resource that are kept, as the log has it.
    kept: BTreeSet<String>,
    /// The API server is left alone until then.
    away: Option<Instant>,
    logged: String,
}

/// What is remembered of one resource.
struct Memory {
    /// The object as far as its spec goes, as it was looked at.
    seen: Option<Seen>,
    accepted: Option<Told>,
    generation: Option<i64>,
    id: Option<String>,
    /// When the spec is looked at next.
    due: Instant,
    failures: u32,
    written: Option<Instant>,
    pulse: Option<(&'static str, SystemTime, u64)>,
    events_until: Instant,
    logged: String,
}

#[derive(PartialEq, Eq)]
struct Seen {
    uid: String,
    generation: Option<i64>,
    is_held: bool,
    is_going: bool,
}

impl Seen {
    fn of(object: &DynamicObject) -> Self {
        Self {
            uid: uid(object).to_owned(),
            generation: object.metadata.generation,
            is_held: has_finalizer(object),
            is_going: is_going(object),
        }
    }
}

/// Why something is to be tried again.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error(transparent)]
    Hosting(#[from] hosting::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("the key that Secrets are sealed with: {0}")]
    Key(String),
}

impl<'a> Look<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        hosting: &'a Hosting,
        projects: &'a Projects,
        has_replicas: bool,
    ) -> Self {
        Self {
            cluster,
            hosting,
            projects,
            has_replicas,
            memories: BTreeMap::new(),
            leaving: HashMap::new(),
            kept: BTreeSet::new(),
            away: None,
            logged: String::new(),
        }
    }

    /// Looks at all resources there are. `is_fresh`: they were listed, or one is gone.
    pub(super) async fn at(&mut self, all: &mut BTreeMap<String, DynamicObject>, is_fresh: bool) {
        let now = Instant::now();
        if self.away.is_some_and(|until| now < until) {
            return;
        }
        self.away = None;
        self.memories.retain(|name, _| all.contains_key(name));
        let mut is_due = is_fresh;
        for (name, object) in &*all {
            let memory = self.memories.entry(name.clone());
            let memory = memory.or_insert_with(|| Memory::new(now));
            let seen = Some(Seen::of(object));
            if memory.seen != seen {
                (memory.seen, memory.due) = (seen, now);
            }
            is_due |= memory.due <= now;
        }
        let found = match is_due {
            true => match self.found().await {
                Ok(found) => {
                    self.logged.clear();
                    Some(found)
                }
                Err(error) => {
                    self.away = Some(Instant::now() + AWAY);
                    return self.failed("", &error);
                }
            },
            false => None,
        };
        if let Some((rows, definition)) = &found {
            self.sweep(all, rows, definition).await;
        }
        let names: Vec<String> = all.keys().cloned().collect();
        for name in names {
            let Some(object) = all.get_mut(&name) else {
                continue;
            };
            let memory = self.memories.get(&name);
            let may_write = memory.and_then(|memory| memory.written);
            if may_write.is_some_and(|at| at.elapsed() < WRITES) || self.away.is_some() {
                continue;
            }
            if let Err(error) = self.one(&name, object, found.as_ref()).await {
                self.failed(&name, &error);
            }
        }
    }

    async fn found(&self) -> Result<(Vec<WorkspaceRow>, Definition), Failure> {
        Ok((self.hosting.rows().await?, self.cluster.definition().await?))
    }

    fn failed(&mut self, name: &str, error: &Failure) {
        if matches!(error, Failure::Cluster(Error::Silent(_))) {
            self.away = Some(Instant::now() + AWAY);
        }
        let text = error.to_string();
        let Some(memory) = self.memories.get_mut(name) else {
            if self.logged != text {
                tracing::warn!("resources are looked at again later: {text}");
                self.logged = text;
            }
            return;
        };
        // It is gone, or somebody else changed it at the same time: what it is now is on its way.
        let is_passing = matches!(error, Failure::Cluster(Error::Answer(404 | 409, _)));
        let wait = RETRY.0 * 2_u32.saturating_pow(memory.failures.min(6));
        memory.failures += 1;
        memory.due = Instant::now() + wait.min(RETRY.1);
        if !is_passing && memory.logged != text {
            tracing::warn!(resource = name, "it is looked at again later: {text}");
            memory.logged = text;
        }
    }

    /// Removes servers whose resources are known to be gone.
    async fn sweep(
        &mut self,
        all: &BTreeMap<String, DynamicObject>,
        rows: &[WorkspaceRow],
        definition: &Definition,
    ) {
        for row in rows {
            let Some(resource) = self.resource(row) else {
                continue;
            };
            if all.contains_key(row.name.as_str()) {
                continue;
            }
            if *definition != Definition::There(resource.definition) {
                if self.kept.insert(row.id.clone()) {
                    tracing::warn!(server = %row.name, "its resource went with the definition: the server goes on, and can be removed");
                }
                continue;
            }
            tracing::warn!(server = %row.name, "its resource is gone, without the finalizer: the server is removed, its volumes stay");
            if let Err(error) = self.hosting.forget(&row.id).await {
                tracing::warn!(server = %row.name, "it is removed later: {error}");
            }
        }
    }

    /// What declares a server, if that is a resource of this namespace.
    fn resource(&self, row: &WorkspaceRow) -> Option<Resource> {
        Resource::of(row).filter(|resource| resource.namespace == self.cluster.namespace)
    }

    fn row<'r>(&self, rows: &'r [WorkspaceRow], name: &str) -> Option<&'r WorkspaceRow> {
        let mut rows = rows.iter().filter(|row| row.name.as_str() == name);
        rows.find(|row| self.resource(row).is_some())
    }

    async fn one(
        &mut self,
        name: &str,
        object: &mut DynamicObject,
        found: Option<&(Vec<WorkspaceRow>, Definition)>,
    ) -> Result<(), Failure> {
        let now = Instant::now();
        let is_due = self
            .memories
            .get(name)
            .is_some_and(|memory| memory.due <= now);
        if let (true, Some((rows, definition))) = (is_due, found) {
            let done = match definition {
                _ if is_going(object) => self.leave(object, rows, definition).await?,
                Definition::There(definition) => {
                    Some(self.declare(object, rows, definition).await?)
                }
                Definition::Going | Definition::Gone => None,
            };
            let Some(memory) = self.memories.get_mut(name) else {
                return Ok(());
            };
            memory.seen = Some(Seen::of(object));
            memory.failures = 0;
            memory.logged.clear();
            memory.due = now + AGAIN;
            let Some((accepted, id)) = done else {
                return Ok(());
            };
            if is_going(object) || accepted.status != "True" {
                memory.due = now + WAITING;
            }
            memory.generation = object.metadata.generation;
            (memory.accepted, memory.id) = (Some(accepted), id);
        }
        self.tell(name, object).await
    }

    /// Makes the server what the resource says; what became of that, and the server's id.
    async fn declare(
        &mut self,
        object: &mut DynamicObject,
        rows: &[WorkspaceRow],
        definition: &str,
    ) -> Result<(Told, Option<String>), Failure> {
        if !has_finalizer(object) {
            *object = self.cluster.finalize(object, true).await?;
        }
        let ours = self.row(rows, name(object));
        let id = ours.map(|row| row.id.clone());
        let refused = |reason: &str, why: String| Ok((Told::new("False", reason, why), id.clone()));
        let (body, wanted) = match parts(object) {
            Ok(parts) => parts,
            Err(why) => return refused("Invalid", why),
        };
        let entry = match Entry::read(body, None) {
            Ok(entry) => entry,
            Err(wrong) => return refused("Invalid", places(&wrong)),
        };
        let secrets = match self.cluster.secrets(&wanted).await? {
            Ok(secrets) => secrets,
            Err(why) => return refused("SecretMissing", why),
        };
        let key = self.projects.session_key().await;
        let key = key.map_err(|error| Failure::Key(error.to_string()))?;
        if let Some((row, resource)) = ours.and_then(|row| Some((row, self.resource(row)?)))
            && (resource.uid == uid(object) && resource.definition == definition)
            && self
                .hosting
                .given(row)
                .await
                .is_ok_and(|known| known == entry.config)
            && hosted_by(row) == entry.project
            && resource
                .open(&row.name, &key)
                .is_ok_and(|known| known == secrets)
        {
            return Ok((registered(), id));
        }
        let resource = Resource::new(
            &self.cluster.namespace,
            uid(object),
            definition,
            &entry.name,
            &secrets,
            &key,
        );
        let entry = entry.of_resource(&resource);
        let done = match &id {
            Some(id) => self.hosting.update(id, entry).await,
            None => self.hosting.register(entry).await,
        };
        match done {
            Ok(row) => Ok((registered(), Some(row.id))),
            Err(hosting::Error::Unfit(wrong)) => refused("Invalid", places(&wrong)),
            Err(error @ hosting::Error::Taken(_)) => refused("NameTaken", error.to_string()),
            Err(error @ hosting::Error::NoProject(_)) => refused("NoProject", error.to_string()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the server of a resource that is being deleted, a step at a time; how far that is. `None`: the resource may go.
    async fn leave(
        &mut self,
        object: &mut DynamicObject,
        rows: &[WorkspaceRow],
        definition: &Definition,
    ) -> Result<Option<(Told, Option<String>)>, Failure> {
        if !has_finalizer(object) {
            return Ok(None);
        }
        if matches!(definition, Definition::Going | Definition::Gone) {
            tracing::warn!(
                resource = name(object),
                "the definition is deleted: the server goes on without its resource"
            );
            *object = self.cluster.finalize(object, false).await?;
            return Ok(None);
        }
        let ending = || Told::new("False", "Deleting", "the server is being removed");
        if let Some(row) = self.row(rows, name(object)) {
            // So that it is known whose volumes are left, once there is no row.
            if status::id(object) != Some(&row.id) {
                let id = Some(row.id.clone());
                self.write(object, &ending(), id).await?;
            }
            if let Some(server) = self.hosting.forget(&row.id).await? {
                self.leaving.insert(row.id.clone(), server);
            }
        }
        // Whoever may write a status can name any server there: not one that this resource doesn't declare.
        let is_anothers = |id: &str| {
            let ours = self.row(rows, name(object));
            rows.iter().any(|row| row.id == id) && ours.is_none_or(|row| row.id != id)
        };
        let id = status::id(object).filter(|id| !is_anothers(id));
        let id = id.map(str::to_owned);
        if let Some(id) = &id {
            let server = self.leaving.get(id);
            if server.is_some_and(|server| server.stopped().now_or_never().is_none()) {
                return Ok(Some((ending(), Some(id.clone()))));
            }
            self.leaving.remove(id);
            if self.has_replicas {
                let leases = self.projects.store().lease_list().await?;
                let name = format!("server:{id}");
                if leases.iter().any(|lease| lease.name == name) {
                    return Ok(Some((ending(), Some(id.clone()))));
                }
            }
            if object.data["spec"][RECLAIM] != RETAIN
                && let Err(why) = self.volumes_remove(id).await
            {
                let told = Told::new("False", "VolumesRemain", why);
                return Ok(Some((told, Some(id.clone()))));
            }
        }
        *object = self.cluster.finalize(object, false).await?;
        tracing::info!(resource = name(object), "its server is removed");
        Ok(None)
    }

    /// Removes the volumes of a server. It does not wait long, because all other resources wait meanwhile: the next look asks again.
    ///
    /// # Errors
    /// Why they are still there.
    async fn volumes_remove(&self, id: &str) -> Result<(), String> {
        match timeout(VOLUMES, self.hosting.volumes_remove(id)).await {
            Ok(removed) => removed.map_err(|error| error.to_string()),
            Err(_) => Err(
                "its volumes are being removed: they are in use as long as a pod has them"
                    .to_owned(),
            ),
        }
    }

    /// Writes a status that is not of a server which the gateway has.
    async fn write(
        &self,
        object: &mut DynamicObject,
        told: &Told,
        id: Option<String>,
    ) -> Result<(), Failure> {
        let status = Status {
            generation: object.metadata.generation,
            id,
            state: "stopping".to_owned(),
            tools: 0,
            last_event: status::of(object)["lastEvent"].as_str().map(str::to_owned),
            accepted: told.clone(),
            ready: told.clone(),
        };
        let status = status.to_value(status::of(object), store::now());
        *object = self.cluster.set_status(object, &status).await?;
        Ok(())
    }

    /// Tells the resource and the events how its server is.
    async fn tell(&mut self, name: &str, object: &mut DynamicObject) -> Result<(), Failure> {
        let Some(memory) = self.memories.get_mut(name) else {
            return Ok(());
        };
        let Some(accepted) = memory.accepted.clone() else {
            return Ok(());
        };
        let server = memory.id.as_ref().and_then(|id| self.hosting.server(id));
        let now = Instant::now();
        let mut is_elsewhere = false;
        let (state, ready) = match &server {
            _ if is_going(object) => ("stopping", accepted.clone()),
            Some(server) => {
                let status = server.status();
                is_elsewhere = status.elsewhere;
                let pulse = (status.word(), status.since, status.restarts);
                if memory.pulse != Some(pulse) {
                    memory.pulse = Some(pulse);
                    memory.events_until = now + EVENTS;
                }
                status::ready(server)
            }
            None if memory.id.is_none() => ("", accepted.clone()),
            None => {
                let why = "the gateway does not have it: its project is switched off, or the log says why";
                ("unusable", Told::new("False", "Unusable", why))
            }
        };
        let mut last_event = status::of(object)["lastEvent"].as_str().map(str::to_owned);
        let (generation, id) = (memory.generation, memory.id.clone());
        let is_awaited = now < memory.events_until || is_elsewhere;
        let told = async {
            if !events::is_told(status::of(object), &accepted, generation) && !is_going(object) {
                let event = events::of_spec(object, &accepted);
                self.cluster.tell(&event).await?;
            }
            match id.as_ref().filter(|_| is_awaited) {
                Some(id) => self.events(object, id, last_event.clone()).await,
                None => Ok(last_event.clone()),
            }
        };
        // The status is told where the events cannot be.
        let told = told.await;
        if let Ok(last) = &told {
            last_event.clone_from(last);
        }
        let status = Status {
            generation,
            id,
            state: state.to_owned(),
            tools: server.map_or(0, |server| server.catalog().list(ListKind::Tools).len()),
            last_event,
            accepted,
            ready,
        };
        let value = status.to_value(status::of(object), store::now());
        if status::is_different(status::of(object), &value) {
            *object = self.cluster.set_status(object, &value).await?;
            if let Some(memory) = self.memories.get_mut(name) {
                memory.written = Some(Instant::now());
            }
        }
        told.map(drop)
    }

    /// Tells what happened to a server since the event `last`; the last of those that are told now.
    async fn events(
        &self,
        object: &DynamicObject,
        id: &str,
        last: Option<String>,
    ) -> Result<Option<String>, Failure> {
        let page = Page {
            limit: Some(MAX_EVENTS),
            after: None,
        };
        let mut rows = self
            .projects
            .store()
            .event_list(None, Some(id), &page)
            .await?;
        rows.retain(|row| last.as_ref().is_none_or(|last| row.id > *last));
        for row in rows.iter().rev() {
            self.cluster.tell(&events::of_server(object, row)).await?;
        }
        Ok(rows.first().map(|row| row.id.clone()).or(last))
    }
}

impl Memory {
    fn new(now: Instant) -> Self {
        Self {
            seen: None,
            accepted: None,
            generation: None,
            id: None,
            due: now,
            failures: 0,
            written: None,
            pulse: None,
            events_until: now,
            logged: String::new(),
        }
    }
}

fn registered() -> Told {
    Told::new("True", "Registered", "the spec is in force")
}

/// By variable, the Secret and its key.
type Wanted = BTreeMap<String, (String, String)>;

/// A resource as a registration, and the Secrets that it names.
fn parts(object: &DynamicObject) -> Result<(Value, Wanted), String> {
    let name =
        ServerName::parse(name(object)).map_err(|error| format!("`metadata.name`: {error}"))?;
    let Some(spec) = object.data["spec"].as_object() else {
        return Err("`spec` must be an object".to_owned());
    };
    let mut body = spec.clone();
    body.remove(RECLAIM);
    body.insert("name".to_owned(), name.as_str().into());
    let mut wanted = BTreeMap::new();
    let secrets = body.remove(SECRET_ENV);
    for (variable, from) in secrets
        .as_ref()
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if !config::is_variable(variable) {
            return Err(format!(
                "`spec.{SECRET_ENV}.{variable}`: must be the name of a variable"
            ));
        }
        let text = |key: &str| {
            from["secretKeyRef"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        wanted.insert(variable.clone(), (text("name"), text("key")));
    }
    Ok((body.into(), wanted))
}

/// What is wrong with a registration, with places in the resource.
fn places(wrong: &[api::Wrong]) -> String {
    let one = |wrong: &api::Wrong| {
        let at = wrong.pointer.trim_start_matches('/').replace('/', ".");
        match at.as_str() {
            "" => wrong.detail.clone(),
            at => format!("`spec.{at}`: {}", wrong.detail),
        }
    };
    wrong.iter().map(one).collect::<Vec<_>>().join("; ")
}
