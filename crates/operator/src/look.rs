//! One pass over the resources: updates their servers to match the specs, and reports the servers' state.
//!
//! The state kept between passes only saves work and may be lost at any time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use catalog::ListKind;
use engine::server::Server;
use futures_util::FutureExt as _;
use kube::api::DynamicObject;
use model::ServerName;
use serde_json::Value;
use store::{Page, RegistrationRow};
use tokio::time::{Instant, timeout};

use super::{
    cluster::{Cluster, Definition, Error, has_finalizer, is_going, name, uid},
    definition::{RECLAIM, RETAIN, SECRET_ENV},
    events,
    status::{self, Condition, Status},
};
use backend::{
    entries::hosted_by,
    hosting::{self, Entry, Hosting, Resource},
    projects::Projects,
};

/// Interval between checks of a spec, its Secrets and its row without a change.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// The check interval while the spec is not accepted or the server is being removed.
const PENDING_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The first and the maximum delay after a failure.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Timeout for one attempt to remove the volumes of a server.
const VOLUMES_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between writes to an object.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after the API server did not respond.
const AWAY_PAUSE: Duration = Duration::from_secs(5);
/// Time after a change of a server's state in which its events are reported. They are stored a moment later than the change.
const EVENTS_WINDOW: Duration = Duration::from_secs(3);
/// Maximum number of events reported at a time for one server. Older ones are skipped.
const MAX_EVENTS: u32 = 20;

pub(super) struct Look<'a> {
    cluster: &'a Cluster,
    hosting: &'a Hosting,
    projects: &'a Projects,
    /// Set if other gateways may run the servers.
    has_replicas: bool,
    memories: BTreeMap<String, Memory>,
    /// Servers without a row that have not exited yet, by id.
    leaving: HashMap<String, Arc<Server>>,
    /// Servers that are kept although their resource is gone. The warning about each was logged.
    kept: BTreeSet<String>,
    /// No requests are sent until this time, because the API server did not respond.
    away: Option<Instant>,
    logged: String,
}

/// The remembered state of one resource.
struct Memory {
    /// The version of the spec at the last check.
    seen: Option<Seen>,
    accepted: Option<Condition>,
    generation: Option<i64>,
    id: Option<String>,
    /// Time of the next check.
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

/// A failure after which the operation is retried.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error(transparent)]
    Hosting(#[from] hosting::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("cannot load the key that encrypts Secrets: {0}")]
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

    /// Handles all resources. `is_fresh`: the resources were listed again, or one was deleted, since the last pass.
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
                    self.away = Some(Instant::now() + AWAY_PAUSE);
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
            if may_write.is_some_and(|at| at.elapsed() < WRITE_INTERVAL) || self.away.is_some() {
                continue;
            }
            if let Err(error) = self.one(&name, object, found.as_ref()).await {
                self.failed(&name, &error);
            }
        }
    }

    async fn found(&self) -> Result<(Vec<RegistrationRow>, Definition), Failure> {
        Ok((self.hosting.rows().await?, self.cluster.definition().await?))
    }

    fn failed(&mut self, name: &str, error: &Failure) {
        if matches!(error, Failure::Cluster(Error::Silent(_))) {
            self.away = Some(Instant::now() + AWAY_PAUSE);
        }
        let text = error.to_string();
        let Some(memory) = self.memories.get_mut(name) else {
            if self.logged != text {
                tracing::warn!("cannot handle MCPServer resources now, will retry: {text}");
                self.logged = text;
            }
            return;
        };
        // The resource is gone, or another client changed it at the same time. A watch event will follow.
        let is_passing = matches!(error, Failure::Cluster(Error::Answer(404 | 409, _)));
        let wait = RETRY_DELAYS.0 * 2_u32.saturating_pow(memory.failures.min(6));
        memory.failures += 1;
        memory.due = Instant::now() + wait.min(RETRY_DELAYS.1);
        if !is_passing && memory.logged != text {
            tracing::warn!(
                resource = name,
                "cannot handle the resource now, will retry: {text}"
            );
            memory.logged = text;
        }
    }

    /// Removes servers whose resources are known to be gone.
    async fn sweep(
        &mut self,
        all: &BTreeMap<String, DynamicObject>,
        rows: &[RegistrationRow],
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
                    tracing::warn!(server = %row.name, "the MCPServer resource was deleted together with its definition: the server continues to run. Apply both again, or unset `watch_namespace` and run `toolwharf rm {}`", row.name);
                }
                continue;
            }
            tracing::warn!(server = %row.name, "the MCPServer resource was deleted without the finalizer: removing the server, keeping its volumes");
            if let Err(error) = self.hosting.forget(&row.id).await {
                tracing::warn!(server = %row.name, "cannot remove the server now, will retry: {error}");
            }
        }
    }

    /// The resource of this namespace that declares a server, if any.
    fn resource(&self, row: &RegistrationRow) -> Option<Resource> {
        Resource::of(row).filter(|resource| resource.namespace == self.cluster.namespace)
    }

    fn row<'r>(&self, rows: &'r [RegistrationRow], name: &str) -> Option<&'r RegistrationRow> {
        let mut rows = rows.iter().filter(|row| row.name.as_str() == name);
        rows.find(|row| self.resource(row).is_some())
    }

    async fn one(
        &mut self,
        name: &str,
        object: &mut DynamicObject,
        found: Option<&(Vec<RegistrationRow>, Definition)>,
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
            memory.due = now + CHECK_INTERVAL;
            let Some((accepted, id)) = done else {
                return Ok(());
            };
            if is_going(object) || accepted.status != "True" {
                memory.due = now + PENDING_CHECK_INTERVAL;
            }
            memory.generation = object.metadata.generation;
            (memory.accepted, memory.id) = (Some(accepted), id);
        }
        self.tell(name, object).await
    }

    /// Registers or updates the server. Returns the `Accepted` condition and the server's id.
    async fn declare(
        &mut self,
        object: &mut DynamicObject,
        rows: &[RegistrationRow],
        definition: &str,
    ) -> Result<(Condition, Option<String>), Failure> {
        if !has_finalizer(object) {
            *object = self.cluster.finalize(object, true).await?;
        }
        let ours = self.row(rows, name(object));
        let id = ours.map(|row| row.id.clone());
        let refused =
            |reason: &str, why: String| Ok((Condition::new("False", reason, why), id.clone()));
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

    /// Removes the server of a resource that is being deleted, step by step. Returns the condition; `None` once the
    /// finalizer is removed.
    async fn leave(
        &mut self,
        object: &mut DynamicObject,
        rows: &[RegistrationRow],
        definition: &Definition,
    ) -> Result<Option<(Condition, Option<String>)>, Failure> {
        if !has_finalizer(object) {
            return Ok(None);
        }
        if matches!(definition, Definition::Going | Definition::Gone) {
            tracing::warn!(
                resource = name(object),
                "the definition of MCPServer is deleted: the server continues to run without its resource"
            );
            *object = self.cluster.finalize(object, false).await?;
            return Ok(None);
        }
        let ending = || Condition::new("False", "Deleting", "the server is being removed");
        if let Some(row) = self.row(rows, name(object)) {
            // Records the id, since the volumes must be found after the row is gone.
            if status::id(object) != Some(&row.id) {
                let id = Some(row.id.clone());
                self.write(object, &ending(), id).await?;
            }
            if let Some(server) = self.hosting.forget(&row.id).await? {
                self.leaving.insert(row.id.clone(), server);
            }
        }
        // Anyone who may write the status can put any id there. Only a server declared by this resource may be removed.
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
                let condition = Condition::new("False", "VolumesRemain", why);
                return Ok(Some((condition, Some(id.clone()))));
            }
        }
        *object = self.cluster.finalize(object, false).await?;
        tracing::info!(
            resource = name(object),
            "removed the server of the resource"
        );
        Ok(None)
    }

    /// Removes the volumes of a server. The timeout is short, because all other resources have to wait; the next check
    /// tries again.
    ///
    /// # Errors
    /// Why they still exist.
    async fn volumes_remove(&self, id: &str) -> Result<(), String> {
        match timeout(VOLUMES_TIMEOUT, self.hosting.volumes_remove(id)).await {
            Ok(removed) => removed.map_err(|error| error.to_string()),
            Err(_) => Err(
                "the server's volumes are being removed: they remain in use until no pod mounts them"
                    .to_owned(),
            ),
        }
    }

    /// Writes a status while the gateway does not run the server.
    async fn write(
        &self,
        object: &mut DynamicObject,
        condition: &Condition,
        id: Option<String>,
    ) -> Result<(), Failure> {
        let status = Status {
            generation: object.metadata.generation,
            id,
            state: "stopping".to_owned(),
            tools: 0,
            last_event: status::of(object)["lastEvent"].as_str().map(str::to_owned),
            accepted: condition.clone(),
            ready: condition.clone(),
        };
        let status = status.to_value(status::of(object), store::now());
        *object = self.cluster.set_status(object, &status).await?;
        Ok(())
    }

    /// Updates the status of the resource and reports events.
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
                    memory.events_until = now + EVENTS_WINDOW;
                }
                status::ready(server)
            }
            None if memory.id.is_none() => ("", accepted.clone()),
            None => {
                let why = "the gateway has not loaded this server: its project is disabled, or the gateway's log says why";
                ("unusable", Condition::new("False", "Unusable", why))
            }
        };
        let mut last_event = status::of(object)["lastEvent"].as_str().map(str::to_owned);
        let (generation, id) = (memory.generation, memory.id.clone());
        let is_awaited = now < memory.events_until || is_elsewhere;
        let reported = async {
            if !events::is_told(status::of(object), &accepted, generation) && !is_going(object) {
                let event = events::of_spec(object, &accepted);
                self.cluster.tell(&event).await?;
            }
            match id.as_ref().filter(|_| is_awaited) {
                Some(id) => self.events(object, id, last_event.clone()).await,
                None => Ok(last_event.clone()),
            }
        };
        // The status is written even if the events cannot be.
        let reported = reported.await;
        if let Ok(last) = &reported {
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
        reported.map(drop)
    }

    /// Reports the events of a server after `last`. Returns the id of the last reported one.
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

fn registered() -> Condition {
    Condition::new("True", "Registered", "the spec is in force")
}

/// Variables with the Secret's name and key.
type Wanted = BTreeMap<String, (String, String)>;

/// Splits a resource into a registration and the Secrets that it refers to.
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
                "`spec.{SECRET_ENV}.{variable}`: a variable name consists of letters, digits and `_`, and does not begin with a digit"
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

/// The errors of a registration, with their places in the resource.
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
