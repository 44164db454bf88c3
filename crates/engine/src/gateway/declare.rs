//! Changes to the fleet: which servers are declared, and which of their tools are offered.
//!
//! Invariant: an unchanged server is not disturbed. Deliberately absent: the source of the specs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use catalog::{ListKind, Remembered, config_digest};
use futures_util::{FutureExt, future::join_all};
use model::{
    Declared, HostEnv, NativeName, Origin, ProjectId, ServerKey, ServerName, ServerSpec, Settings,
    StartPolicy, ToolChoice,
};
use tokio::time::Instant;

use crate::{
    Gateway,
    scope::Scope,
    server::{Server, status::Left},
    shared::{REMOVAL_TIME, Shared},
    views::fleet::{Fleet, Project},
};
use lifecycle::Rules;

/// Time that shutdown waits for killed servers to be gone.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// Time that shutdown waits for the last writes, and the part of it that is left if servers had to be killed.
const WRITE_WAIT: Duration = Duration::from_secs(10);
const LAST_WRITE_WAIT: Duration = Duration::from_millis(500);

/// Why the servers could not be started (start policy `sequential`).
#[derive(Debug, thiserror::Error)]
#[error("server `{server}` did not start: {reason}; the servers started before it were stopped")]
pub struct StartFailed {
    pub server: ServerName,
    pub reason: Arc<str>,
}

impl Gateway {
    /// Starts the initial servers according to the start policy.
    ///
    /// # Errors
    /// [`StartFailed`] under `sequential`, unless the server's own entry blocks it. The other policies report failures
    /// as they happen.
    pub async fn start(
        &self,
        specs: Vec<ServerSpec>,
        mut remembered: HashMap<ServerName, Remembered>,
    ) -> Result<(), StartFailed> {
        if self.shared.start_policy() != StartPolicy::Sequential {
            self.reconfigure_with(specs, None, &mut remembered);
            return Ok(());
        }
        let mut up = Vec::new();
        for spec in specs {
            up.push(spec);
            self.reconfigure_with(up.clone(), None, &mut remembered);
            let servers = self.servers();
            // A server that its own entry blocks is reported like any other missing server. One that needs header
            // values starts with its callers.
            let starts = |server: &&Arc<Server>| {
                server.spec.enabled && server.spec.unusable.is_none() && server.unmet().is_none()
            };
            let Some(server) = servers.last().filter(starts) else {
                continue;
            };
            if let Err(reason) = server.up().await {
                let server = server.name().clone();
                self.reconfigure(Vec::new(), None, HashMap::new());
                return Err(StartFailed { server, reason });
            }
        }
        Ok(())
    }

    /// Replaces the servers of the configuration file with `specs`: an unchanged server is not disturbed, a changed one
    /// is restarted, a removed one is stopped. Returns when the old servers are stopping. `remembered` is the saved
    /// state of new servers.
    pub fn reconfigure(
        &self,
        specs: Vec<ServerSpec>,
        settings: Option<Settings>,
        mut remembered: HashMap<ServerName, Remembered>,
    ) {
        self.reconfigure_with(specs, settings, &mut remembered);
    }

    fn reconfigure_with(
        &self,
        specs: Vec<ServerSpec>,
        settings: Option<Settings>,
        remembered: &mut HashMap<ServerName, Remembered>,
    ) {
        self.replace(
            |_| true,
            |fleet, shared| {
                let host_env = fleet.settings.host_env.clone();
                if let Some(settings) = settings {
                    fleet.settings = Arc::new(settings);
                }
                let known = |spec: &ServerSpec| remembered.remove(&spec.name);
                let is_of_file = |server: &Server| server.spec.declared == Declared::File;
                let mut change = put(fleet, None, is_of_file, specs, known, shared);
                if host_env != fleet.settings.host_env {
                    // The servers of projects and registrations get the changed variables too.
                    let others = fleet.all().filter(|server| !is_of_file(server));
                    let others = others.map(|server| server.spec.clone()).collect();
                    let is_other = |server: &Server| !is_of_file(server);
                    let more = put(fleet, None, is_other, others, |_| None, shared);
                    change.stopped.extend(more.stopped);
                    change.started.extend(more.started);
                }
                change
            },
        );
    }

    /// Replaces the hosted servers in the same way as [`Gateway::reconfigure`]. Each is paired with the state in which
    /// an earlier run of the gateway left it, if any.
    pub fn host(
        &self,
        hosted: Vec<(ServerSpec, Option<Left>)>,
        mut remembered: HashMap<ServerKey, Remembered>,
    ) {
        let (specs, left): (Vec<ServerSpec>, Vec<_>) = hosted.into_iter().unzip();
        let keys = specs.iter().map(ServerSpec::key);
        let mut left: HashMap<ServerKey, Option<Left>> = keys.zip(left).collect();
        self.replace(
            |_| true,
            |fleet, shared| {
                let known = |spec: &ServerSpec| remembered.remove(&spec.key());
                let is_registered = |server: &Server| server.spec.declared == Declared::Registered;
                let change = put(fleet, None, is_registered, specs, known, shared);
                for server in &change.started {
                    if let Some(left) = left.remove(server.key()).flatten() {
                        server.was_left(left);
                    }
                }
                change
            },
        );
    }

    /// Sets the settings and servers of a project, in the same way as [`Gateway::reconfigure`].
    pub fn project_set(
        &self,
        id: &ProjectId,
        project: Project,
        specs: Vec<ServerSpec>,
        mut remembered: HashMap<ServerName, Remembered>,
    ) {
        self.replace(
            |scope| scope.project.as_ref().is_none_or(|named| named == id),
            |fleet, shared| {
                fleet.projects.insert_mut(id.clone(), Arc::new(project));
                let known = |spec: &ServerSpec| remembered.remove(&spec.name);
                let is_own = |server: &Server| is_own(server, id);
                put(fleet, Some(id), is_own, specs, known, shared)
            },
        );
    }

    /// Forgets a project and stops its servers (P05).
    pub fn project_remove(&self, id: &ProjectId) {
        self.replace(
            |scope| scope.project.as_ref().is_none_or(|named| named == id),
            |fleet, shared| {
                fleet.projects.remove_mut(id);
                let is_own = |server: &Server| is_own(server, id);
                put(fleet, Some(id), is_own, Vec::new(), |_| None, shared)
            },
        );
        self.shared.past.forget(id);
    }

    fn replace(
        &self,
        concerns: impl Fn(&Scope) -> bool,
        change: impl FnOnce(&mut Fleet, &Arc<Shared>) -> Change,
    ) {
        let shared = &self.shared;
        // Old servers leave the views before they stop, so that no call is sent to a stopping server.
        let change = shared.redeclare(concerns, |fleet| change(fleet, shared));
        for server in change.stopped {
            shared.parts(&server);
            server.stop();
        }
        let settings = shared.fleet().settings.clone();
        for server in change.started {
            let rules = Rules::of(&server.spec, &settings);
            shared.spawn(server.clone().drive(shared.clone()));
            // A bad entry shows at once, even if the server would start at its first use.
            let is_bad = server.spec.declared == Declared::File && server.spec.unusable.is_some();
            if server.spec.enabled && (!rules.lazy || is_bad) {
                server.want();
            }
        }
    }

    /// Stops launching servers. Servers that are up keep running, the others stop. All of them have to be gone at `by`.
    pub fn close(&self, by: Instant) {
        let _ = self.shared.stop_by.set(by);
        self.shared.closing.cancel();
        self.shared.over.cancel();
    }

    /// Ends subscriptions to changes. Servers still start, restart and answer, until [`Gateway::shutdown`].
    pub fn end_subscriptions(&self) {
        self.shared.over.cancel();
    }

    /// Stops all servers ([`Gateway::close`]), and waits until they are gone and all data is saved, for at most one second
    /// after `by`.
    pub async fn shutdown(&self, by: Instant) {
        self.close(by);
        let (fleet, shared) = (self.shared.fleet(), &self.shared);
        for server in fleet.all() {
            server.stop();
        }
        let ending = fleet.all().map(async |server| {
            let grace = shared.stop_grace.min(shared.time_left(&server.spec));
            tokio::join!(server.instances.close_all(grace), server.stopped());
        });
        let last = by + KILL_WAIT;
        let gone = join_all(ending);
        if tokio::time::timeout_at(last, gone).await.is_err() {
            let is_late = |server: &&Arc<Server>| server.stopped().now_or_never().is_none();
            let late = fleet.all().filter(is_late).map(|late| late.key());
            let late: Vec<_> = late.map(ToString::to_string).collect();
            tracing::warn!(
                "servers did not stop in time: {}; their processes are killed now",
                late.join(", ")
            );
        }
        // A killed container counts as ended before it is removed.
        let until = last.min(Instant::now() + REMOVAL_TIME);
        for provider in shared.runtimes.idle(until).await {
            tracing::warn!(
                %provider,
                "instances could not be removed in time, because the provider does not respond; the next start of Toolwharf removes them"
            );
        }
        let until = (last + LAST_WRITE_WAIT).min(Instant::now() + WRITE_WAIT);
        if tokio::time::timeout_at(until, shared.written())
            .await
            .is_err()
        {
            tracing::warn!("some data could not be saved: the database does not respond in time");
        }
    }

    /// Approves these definitions immediately. Returns `false` if no definition was pending.
    pub fn approve_tools(&self, server: &ServerKey, tools: &[(NativeName, Arc<str>)]) -> bool {
        let fleet = self.shared.fleet();
        let Some(server) = fleet.get(server) else {
            return false;
        };
        let approved = server.with_callers().fold(false, |any, server| {
            let approved = server.pinned.approve(tools);
            any || approved
        });
        if approved {
            self.shared.publish_of(server, &[ListKind::Tools]);
        }
        approved
    }

    /// The servers with tools whose definition awaits approval.
    #[must_use]
    pub fn unapproved(&self) -> Vec<ServerKey> {
        let fleet = self.shared.fleet();
        let waits = |server: &&Arc<Server>| {
            let pins = server.pinned.pins();
            pins.values().any(|pin| pin.pending.is_some())
        };
        fleet
            .all()
            .filter(waits)
            .map(|server| server.key().clone())
            .collect()
    }

    /// Enables or disables a tool immediately (G12). Returns `false` if the server does not exist.
    pub fn set_tool_enabled(&self, server: &ServerName, tool: &NativeName, enabled: bool) -> bool {
        let fleet = self.shared.fleet();
        let (owner, name) = (None, server.clone());
        let Some(server) = fleet.get(&ServerKey { owner, name }) else {
            return false;
        };
        let mut choice = ToolChoice::clone(&server.tool_choice.load());
        if choice.offers(tool.as_str()) != enabled {
            choice.set(tool, enabled);
            server.tool_choice.store(Arc::new(choice));
            self.shared.publish_of(server, &[ListKind::Tools]);
        }
        true
    }
}

/// Servers to stop and to start after a change of the fleet.
struct Change {
    stopped: Vec<Arc<Server>>,
    started: Vec<Arc<Server>>,
}

/// Returns whether the project declared the server.
fn is_own(server: &Server, project: &ProjectId) -> bool {
    server.spec.declared == Declared::Project && server.key().owner.as_ref() == Some(project)
}

/// Replaces the servers that match `is_old` with those of `specs`. A server stays if only the choice of its tools changed.
/// `only`: all of them belong to this project.
fn put(
    fleet: &mut Fleet,
    only: Option<&ProjectId>,
    is_old: impl Fn(&Server) -> bool,
    specs: Vec<ServerSpec>,
    mut remembered: impl FnMut(&ServerSpec) -> Option<Remembered>,
    shared: &Arc<Shared>,
) -> Change {
    let old: Vec<_> = fleet
        .within(only)
        .filter(|server| is_old(server))
        .cloned()
        .collect();
    let by_key: HashMap<&ServerKey, &Arc<Server>> =
        old.iter().map(|server| (server.key(), server)).collect();
    let mut started = Vec::new();
    let mut servers = Vec::with_capacity(specs.len());
    for mut spec in specs {
        give(&mut spec, &fleet.settings.host_env);
        let before = by_key.get(&spec.key()).copied();
        if let Some(server) = before.filter(|server| same_instance(&server.spec, &spec)) {
            if *server.tool_choice() != spec.tools {
                server.tool_choice.store(Arc::new(spec.tools));
            }
            servers.push(server.clone());
            continue;
        }
        let mut known = remembered(&spec).unwrap_or_default();
        if let Some(before) = before {
            let catalog = before.catalog();
            let is_same = config_digest(&before.spec) == config_digest(&spec);
            known.renew(&before.pins(), is_same.then_some(&*catalog));
        }
        let is_personal = shared.logins.is_personal(&spec);
        let queue_len = fleet.settings.limits.queue_len;
        let progress = fleet.progress.clone();
        let server = Server::new(spec, known, queue_len, is_personal, progress);
        match before {
            Some(before) => server.comes_after(before),
            None => {
                if let Some(parting) = shared.parting(server.key()) {
                    server.waits_for(&parting);
                }
            }
        }
        started.push(server.clone());
        servers.push(server);
    }
    let kept: HashSet<*const Server> = servers.iter().map(Arc::as_ptr).collect();
    let is_kept = |old: &Arc<Server>| kept.contains(&Arc::as_ptr(old));
    let stopped = old.iter().filter(|old| !is_kept(old)).cloned().collect();
    fleet.replace(only, is_old, servers);
    Change { stopped, started }
}

/// Gives a launched server the variables of this host.
pub(super) fn give(spec: &mut ServerSpec, host_env: &Arc<HostEnv>) {
    if let Origin::Launch(launch) = &mut spec.origin
        && launch.host_env != *host_env
    {
        Arc::make_mut(launch).host_env = host_env.clone();
    }
}

/// Returns whether a running instance can continue under the new spec.
fn same_instance(old: &ServerSpec, new: &ServerSpec) -> bool {
    let mut old = old.clone();
    old.tools.clone_from(&new.tools);
    old == *new
}
