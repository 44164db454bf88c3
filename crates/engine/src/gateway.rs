//! The front door: requests and notifications of clients, and the set of servers behind them.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mcp::{
    Era, Frame, Kind, RpcError,
    bridge::{self, ClientFace},
    client::{CallerId, Connector, Identity},
    error,
    frame::Param,
    json::{self, quote},
    outbox::{Outbox, Weight},
    protocol::{meta, method},
    server::{Face, Session},
};
use model::{NativeName, ProjectId, ServerKey, ServerName, ServerSpec, Settings, StartPolicy};
use runtime::process::Spawner;
use store::Store;
use tokio::sync::Semaphore;

use crate::{
    announce,
    audit::NotRecorded,
    catalog::{Catalog, ListKind},
    chain,
    chronicle::Warning,
    fleet::{Fleet, Project},
    hub::{Filter, Hub, Listener, Registration},
    launch::Launcher,
    memory::Remembered,
    own_tools,
    relay::{Target, relay, routed_span, string_at},
    remember::Pins,
    runtimes::Runtimes,
    server::{Server, State},
    shared::Shared,
    skills,
    supervisor::Last,
    tasks,
    view::{Scope, View},
};

/// The principal of whoever comes without a key.
pub const ANONYMOUS: &str = "anonymous";

/// Who asks, and where messages go that belong to the request.
pub struct Caller {
    pub era: Era,
    pub scope: Scope,
    /// The legacy conversation, or the stdio pipe.
    pub session: Option<Arc<Session>>,
    pub outbox: Arc<Outbox>,
    pub principal: Arc<str>,
    /// Whether they may use what there is, and not only see it.
    pub may_use: bool,
    /// A modern request's client, where the request is all that is known.
    pub modern_capabilities: Option<Bytes>,
    /// The HTTP headers of a modern request: `Mcp-Param-*` are checked against its arguments.
    pub headers: Option<http::HeaderMap>,
    /// How long a server may take; `None`: as it is configured.
    pub timeout: Option<Duration>,
    /// The run of an agent that the record of a call belongs to.
    pub run: Option<Arc<str>>,
}

impl Caller {
    /// On whose behalf the request is made. Two requests of one session are of the same caller, and so are two of one
    /// run, or of one client that shows the same key and name; any other is of a caller of its own.
    pub(crate) fn id(&self, frame: &Frame) -> CallerId {
        if let Some(session) = &self.session {
            return session.caller();
        }
        if let Some(run) = &self.run {
            return CallerId::of(("run", run));
        }
        // Whoever comes without a key may be anybody.
        if self.modern_capabilities.is_none() || &*self.principal == ANONYMOUS {
            return CallerId::unique();
        }
        let info = frame.meta().and_then(|own| own.raw(meta::CLIENT_INFO));
        info.map_or_else(CallerId::unique, |info| {
            CallerId::of((&self.principal, info))
        })
    }

    pub(crate) fn face(&self) -> ClientFace {
        match (&self.modern_capabilities, &self.session) {
            (Some(capabilities), _) => ClientFace {
                info: Bytes::from_static(b"{}"),
                capabilities: capabilities.clone(),
                log_level: None,
            },
            (None, Some(session)) => session.client_face(),
            (None, None) => ClientFace {
                info: Bytes::from_static(b"{}"),
                capabilities: Bytes::from_static(b"{}"),
                log_level: None,
            },
        }
    }
}

/// What a request comes to.
#[derive(Debug)]
pub struct Answer {
    /// The response: JSON text. Of a list, only what comes before `shared`.
    pub(crate) text: Bytes,
    /// A list that every caller gets, out of the snapshot; one closing brace follows it.
    shared: Option<Bytes>,
    /// Its JSON-RPC error code, if it is an error.
    pub code: Option<i64>,
    /// The client cancelled the request and expects nothing more.
    pub silent: bool,
    /// The HTTP status, where it is neither the usual one nor one of the protocol.
    pub status: Option<http::StatusCode>,
}

impl Answer {
    #[must_use]
    pub fn ok(text: Bytes) -> Self {
        Self {
            text,
            shared: None,
            code: None,
            silent: false,
            status: None,
        }
    }

    /// A result that lives in a snapshot: it is sent from there, not copied.
    #[must_use]
    pub fn shared(frame: &Frame, result: Bytes) -> Self {
        let id = frame.id();
        let mut head = Vec::with_capacity(id.len() + 40);
        head.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        head.extend_from_slice(id);
        head.extend_from_slice(b",\"result\":");
        Self {
            shared: Some(result),
            ..Self::ok(head.into())
        }
    }

    /// The pieces of the response, in order.
    #[must_use]
    pub fn pieces(self) -> [Bytes; 3] {
        match self.shared {
            Some(shared) => [self.text, shared, Bytes::from_static(b"}")],
            None => [self.text, Bytes::new(), Bytes::new()],
        }
    }

    /// The response in one piece.
    #[must_use]
    pub fn into_text(self) -> Bytes {
        match &self.shared {
            None => self.text,
            Some(_) => self.pieces().concat().into(),
        }
    }

    pub(crate) fn relayed(text: Bytes, code: Option<i64>) -> Self {
        Self {
            code,
            ..Self::ok(text)
        }
    }

    #[must_use]
    pub fn result(frame: &Frame, result: &[u8]) -> Self {
        Self::ok(Frame::result(frame.id(), result).text().clone())
    }

    pub(crate) fn unavailable(frame: &Frame, what: &str) -> Self {
        let error = RpcError::internal(what).with_data(br#"{"reason":"unavailable"}"#.to_vec());
        Self {
            status: Some(http::StatusCode::SERVICE_UNAVAILABLE),
            ..Self::error(frame, &error)
        }
    }

    #[must_use]
    pub fn error(frame: &Frame, error: &RpcError) -> Self {
        Self {
            code: Some(error.code),
            ..Self::ok(Frame::error(frame.id(), error).text().clone())
        }
    }
}

/// How long the product waits for the last writes when it stops.
const WRITING: Duration = Duration::from_secs(10);
/// Hosted servers that are being started at a time.
const STARTS_PER_CORE: usize = 2;
const LEAST_STARTS: usize = 8;

/// The gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// Why the servers could not be started (start policy `sequential`).
#[derive(Debug, thiserror::Error)]
#[error("server `{server}` did not start: {reason}; the servers before it were stopped again")]
pub struct StartFailed {
    pub server: ServerName,
    pub reason: Arc<str>,
}

impl Gateway {
    /// A gateway without servers yet.
    #[must_use]
    pub fn new(
        settings: Settings,
        identity: Identity,
        spawner: Spawner,
        runtimes: Runtimes,
        store: Store,
    ) -> Self {
        let limits = &settings.limits;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let launcher = Launcher {
            spawner,
            runtimes: Arc::new(runtimes),
            starting: Semaphore::new((cores * STARTS_PER_CORE).max(LEAST_STARTS)),
            connector: Connector::new(),
            identity: identity.clone(),
            max_message: limits.max_line_bytes,
            max_depth: limits.max_depth,
            stop_grace: limits.stop_grace,
        };
        let fleet = Fleet {
            settings: Arc::new(settings),
            ..Fleet::default()
        };
        let shared = Shared::new(fleet, launcher, identity, store);
        let sweeping = shared.clone();
        shared.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1));
            while sweeping
                .over
                .run_until_cancelled(tick.tick())
                .await
                .is_some()
            {
                sweeping.held.sweep();
                sweeping.tasks.sweep();
            }
        });
        shared.spawn(announce::run(shared.clone()));
        Self { shared }
    }

    /// Starts the first set of servers, as the start policy says.
    ///
    /// # Errors
    /// [`StartFailed`] under `sequential`; the other policies report failures as they happen.
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
            let Some(server) = servers.last().filter(|server| server.spec.enabled) else {
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

    /// Makes the servers of the configuration file be `specs`: what is unchanged goes on undisturbed, what
    /// changed is started anew, what is gone is stopped. Returns once the old ones are on their way out.
    /// Of those that are new, `remembered` is what was known of them when they were there before.
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
                if let Some(settings) = settings {
                    fleet.settings = Arc::new(settings);
                }
                let known = |spec: &ServerSpec| remembered.remove(&spec.name);
                let (servers, change) = kept_or_new(&fleet.shared, specs, known, shared);
                fleet.shared = servers;
                change
            },
        );
    }

    /// Makes the hosted servers be these, as [`Gateway::reconfigure`] does it; each with how an earlier run of the
    /// product left it, if there was one.
    pub fn host(
        &self,
        hosted: Vec<(ServerSpec, Option<Last>)>,
        mut remembered: HashMap<ServerKey, Remembered>,
    ) {
        let (specs, left): (Vec<_>, Vec<_>) = hosted.into_iter().unzip();
        self.replace(
            |_| true,
            |fleet, shared| {
                let known = |spec: &ServerSpec| remembered.remove(&spec.key());
                let (servers, change) = kept_or_new(&fleet.hosted, specs, known, shared);
                for server in &change.started {
                    let before = change.stopped.iter();
                    let mut before = before.filter(|old| old.key() == server.key());
                    if let (Some(hosted), Some(before)) = (&server.hosted, before.next()) {
                        hosted.comes_after(before.clone());
                    }
                }
                for (server, left) in servers.iter().zip(left) {
                    if let (Some(hosted), Some(left)) = (&server.hosted, left) {
                        hosted.was_left(left);
                    }
                }
                fleet.hosted = servers;
                change
            },
        );
    }

    /// Health warnings of hosted servers from now on.
    #[must_use]
    pub fn warnings(&self) -> tokio::sync::broadcast::Receiver<Warning> {
        self.shared.chronicle.warnings()
    }

    /// What runs hosted servers.
    #[must_use]
    pub fn runtimes(&self) -> &Runtimes {
        &self.shared.launcher.runtimes
    }

    /// Carries one request to a server by its own names, whatever views say of it. What comes in the course of it goes
    /// to the caller's outbox.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request at its server.
    pub async fn call(&self, caller: &Caller, server: &Arc<Server>, frame: &Frame) -> Answer {
        let param = match frame.method() {
            method::TOOLS_CALL | method::PROMPTS_GET => Some(Param::Name),
            method::RESOURCES_READ => Some(Param::Uri),
            _ => None,
        };
        let target = Target {
            server: server.clone(),
            rename: None,
            name: param.and_then(|param| frame.param_string(param).map(Cow::into_owned)),
            headers: None,
        };
        relay(&self.shared, caller, frame, target).await
    }

    /// Makes a project be so: its settings and its own servers, as [`Gateway::reconfigure`] does it.
    pub fn project_set(
        &self,
        id: &ProjectId,
        mut project: Project,
        specs: Vec<ServerSpec>,
        mut remembered: HashMap<ServerName, Remembered>,
    ) {
        self.replace(
            |scope| scope.project.as_ref().is_none_or(|named| named == id),
            |fleet, shared| {
                let old = fleet.projects.get(id).cloned().unwrap_or_default();
                let known = |spec: &ServerSpec| remembered.remove(&spec.name);
                let (servers, change) = kept_or_new(&old.servers, specs, known, shared);
                project.servers = servers;
                fleet.projects.insert(id.clone(), Arc::new(project));
                change
            },
        );
    }

    /// Forgets a project and stops its own servers (P05).
    pub fn project_remove(&self, id: &ProjectId) {
        self.replace(
            |scope| scope.project.as_ref().is_none_or(|named| named == id),
            |fleet, _| {
                let gone = fleet.projects.remove(id);
                Change {
                    stopped: gone.map_or_else(Vec::new, |project| project.servers.clone()),
                    started: Vec::new(),
                }
            },
        );
    }

    fn replace(
        &self,
        concerns: impl Fn(&Scope) -> bool,
        change: impl FnOnce(&mut Fleet, &Arc<Shared>) -> Change,
    ) {
        let shared = &self.shared;
        let change = shared.change(|fleet| change(fleet, shared));
        // The old ones leave the views before they stop: nobody is sent to a server on its way out.
        shared.publish(&ListKind::ALL, concerns);
        for server in change.stopped {
            server.stop();
        }
        for server in change.started {
            server.begin();
        }
    }

    /// The servers of the configuration file, in order.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.shared.fleet().shared.clone()
    }

    /// All there is at the moment.
    #[must_use]
    pub fn fleet(&self) -> Arc<Fleet> {
        self.shared.fleet()
    }

    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.fleet().settings.clone()
    }

    /// Calls that wait for their clients' input, and clients that listen.
    #[must_use]
    pub fn gauges(&self) -> (usize, usize) {
        (self.shared.held.len(), self.shared.hub.len())
    }

    /// The snapshot of a scope; `None` if there is no such project or server.
    #[must_use]
    pub fn view(&self, scope: &Scope) -> Option<Arc<View>> {
        self.shared.view(scope)
    }

    /// Waits until no server of the scope is in its first start any more, at most
    /// [`crate::server::FIRST_START`].
    pub async fn settled(&self, scope: &Scope) -> Option<Arc<View>> {
        let view = self.shared.view(scope)?;
        if view.is_settled() {
            return Some(view);
        }
        futures_util::future::join_all(view.awaited().map(Server::first_settled)).await;
        // What was learnt may be about to be published; and a server that used up its time without coming up
        // publishes nothing.
        match self.shared.view(scope)? {
            view if view.is_settled() => Some(view),
            _ => self.shared.view_anew(scope),
        }
    }

    /// Answers `initialize`: the result, for the face that the client showed. Waits a moment for what servers say of
    /// themselves that are just being started, and longer for the one of a single view whose capabilities nobody
    /// knows yet.
    pub async fn initialize(&self, scope: &Scope, face: &Face) -> Option<String> {
        let mut view = self.shared.view(scope)?;
        if view.is_single() {
            view = self.settled(scope).await?;
        } else {
            introduced(&view).await;
        }
        let result = view.initialize(face.version);
        if !face.is_gateway {
            return Some(result);
        }
        let result = self.shared.with_chain(&result.into());
        Some(String::from_utf8_lossy(&result).into_owned())
    }

    /// Records a call that no server is asked for: its intent before it is made, its outcome before anybody hears of it.
    ///
    /// # Errors
    /// [`NotRecorded`]. An outcome is tried again later.
    pub async fn record(&self, write: store::CallWrite) -> Result<(), NotRecorded> {
        self.shared.audit.write(write).await
    }

    /// Registers a legacy session with those that are told of changes.
    #[must_use]
    pub fn attach(&self, scope: Scope, session: &Arc<Session>) -> Registration {
        let principal = session.principal().clone();
        let outbox = session.outbox().clone();
        let mut listener = Listener::new(scope, Filter::ALL, outbox, principal);
        listener.session = Some(session.clone());
        self.shared.hub.register(listener)
    }

    /// Ends what a session had: its subscriptions and its own instances.
    pub async fn detach(&self, registration: Registration) {
        let listener = registration.listener().clone();
        self.forget(&listener).await;
        if let Some(session) = &listener.session {
            session.end();
            for server in self.shared.fleet().all() {
                server
                    .instances
                    .close(session.id(), self.shared.launcher.stop_grace)
                    .await;
            }
        }
    }

    /// Ends what goes on for ever (listening streams), so that only calls are left to finish.
    pub fn stop_listening(&self) {
        self.shared.over.cancel();
    }

    /// Stops all servers. Waits until they are gone, at most `limit`.
    pub async fn shutdown(&self, limit: Duration) {
        self.shared.over.cancel();
        let fleet = self.shared.fleet();
        for server in fleet.all() {
            server.stop();
        }
        let gone = futures_util::future::join_all(fleet.all().map(|server| server.stopped()));
        if tokio::time::timeout(limit, gone).await.is_err() {
            tracing::warn!("some servers did not stop within {} s", limit.as_secs());
        }
        if tokio::time::timeout(WRITING, self.shared.written())
            .await
            .is_err()
        {
            tracing::warn!(
                "not all that was to be remembered is written down: the database does not answer"
            );
        }
    }

    /// Answers a request.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request at its server.
    pub async fn request(&self, caller: &Caller, frame: &Frame) -> Answer {
        let Some(session) = &caller.session else {
            return self.dispatch(caller, frame).await;
        };
        let in_flight = match session.begin(frame) {
            Ok(in_flight) => in_flight,
            Err(error) => return Answer::error(frame, &error),
        };
        tokio::select! {
            biased;
            answer = self.dispatch(caller, frame) => answer,
            () = in_flight.cancelled() => Answer {
                silent: true,
                ..Answer::error(frame, &RpcError::internal("the client cancelled the request"))
            },
        }
    }

    async fn dispatch(&self, caller: &Caller, frame: &Frame) -> Answer {
        match self.dispatch_inner(caller, frame).await {
            Ok(answer) => answer,
            Err(error) => Answer::error(frame, &error),
        }
    }

    async fn dispatch_inner(&self, caller: &Caller, frame: &Frame) -> Result<Answer, RpcError> {
        let legacy = caller.era == Era::Legacy;
        if !caller.may_use && uses(frame.method()) {
            let what = format!(
                "this key may see what there is, not use it ({})",
                frame.method()
            );
            let error = RpcError::new(error::INVALID_REQUEST, what)
                .with_data(br#"{"reason":"forbidden"}"#.to_vec());
            return Ok(Answer {
                status: Some(http::StatusCode::FORBIDDEN),
                ..Answer::error(frame, &error)
            });
        }
        let Some(view) = self.shared.view(&caller.scope) else {
            return Ok(Answer {
                status: Some(http::StatusCode::NOT_FOUND),
                ..Answer::error(frame, &no_scope(&caller.scope))
            });
        };
        match frame.method() {
            method::TOOLS_CALL => {
                let target = match self.tool_target(&view, frame) {
                    Err(_) if !view.is_settled() => {
                        let view = Box::pin(self.settled(&caller.scope))
                            .await
                            .ok_or_else(|| no_scope(&caller.scope))?;
                        self.tool_target(&view, frame)?
                    }
                    Err(unknown) => self.app_target(caller, &view, frame).ok_or(unknown)?,
                    Ok(target) => target,
                };
                if view.has_views()
                    && let Ok((_, name)) = routed(frame, Param::Name)
                    && view.has_view(&name)
                {
                    self.shared.opened.note(caller, &target.server, true);
                }
                if let (Some(declared), Some(headers)) = (&target.headers, &caller.headers) {
                    let arguments = frame
                        .param(Param::Arguments)
                        .map(|span| &frame.text()[span]);
                    declared.validate(arguments, headers).map_err(|why| {
                        RpcError::new(error::HEADER_MISMATCH, format!("Header mismatch: {why}"))
                    })?;
                }
                Ok(relay(&self.shared, caller, frame, target).await)
            }
            method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::TEMPLATES_LIST => self.list(caller, frame, view).await,
            method::PROMPTS_GET => {
                let (span, name) = routed(frame, Param::Name)?;
                let route = match view.prompt(&name) {
                    Err(_) if !view.is_settled() => {
                        let view = Box::pin(self.settled(&caller.scope)).await.unwrap_or(view);
                        view.prompt(&name)?
                    }
                    route => route?,
                };
                let target = Target {
                    rename: (*route.native != *name).then(|| (span, route.native.to_string())),
                    name: Some(route.native.to_string()),
                    server: route.server,
                    headers: None,
                };
                Ok(relay(&self.shared, caller, frame, target).await)
            }
            method::RESOURCES_READ => {
                let target = self.resource_target(caller, &view, frame)?;
                let is_view = |uri: &String| uri.starts_with("ui://");
                if view.has_views() && target.name.as_ref().is_some_and(is_view) {
                    self.shared.opened.note(caller, &target.server, false);
                }
                Ok(relay(&self.shared, caller, frame, target).await)
            }
            asked if skills::is_of_skills(asked) && !legacy && !view.is_single() => {
                Box::pin(self.skills(caller, frame)).await
            }
            method::COMPLETE => Box::pin(self.complete(caller, &view, frame)).await,
            method::PING if legacy => Ok(Answer::result(frame, b"{}")),
            method::SET_LEVEL if legacy => self.set_level(caller, &view, frame),
            method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE if legacy => {
                Box::pin(self.subscribe(caller, &view, frame)).await
            }
            method::DISCOVER if !legacy => {
                let view = if view.is_single() {
                    Box::pin(self.settled(&caller.scope)).await.unwrap_or(view)
                } else {
                    Box::pin(introduced(&view)).await;
                    view
                };
                let mut result = Bytes::from(view.discover());
                if chain::is_asked(frame) {
                    result = self.shared.with_chain(&result);
                }
                Ok(Answer::result(frame, &result))
            }
            method::LISTEN if !legacy => Box::pin(self.listen(caller, frame)).await,
            // Methods of one era have no meaning in the other, whatever the server would say to them.
            method::DISCOVER
            | method::LISTEN
            | method::INITIALIZE
            | method::PING
            | method::SET_LEVEL
            | method::RESOURCES_SUBSCRIBE
            | method::RESOURCES_UNSUBSCRIBE => Err(RpcError::method_not_found(frame.method())),
            name if name.starts_with("tasks/") => {
                Box::pin(tasks::answer(&self.shared, caller, &view, frame)).await
            }
            name => match view.servers.as_slice() {
                // One server as it is: what we do not know, it may.
                [server] if view.is_single() && !name.starts_with("notifications/") => {
                    let target = Target {
                        server: server.clone(),
                        rename: None,
                        name: None,
                        headers: None,
                    };
                    Ok(relay(&self.shared, caller, frame, target).await)
                }
                _ => Err(RpcError::method_not_found(name)),
            },
        }
    }

    async fn skills(&self, caller: &Caller, frame: &Frame) -> Result<Answer, RpcError> {
        let view = self.settled(&caller.scope).await;
        let view = view.ok_or_else(|| no_scope(&caller.scope))?;
        if !view.servers.iter().any(|server| skills::has(server)) {
            return Err(RpcError::method_not_found(frame.method()));
        }
        if frame.method() == method::SKILLS_LIST {
            return skills::list(&self.shared, caller, &view, frame).await;
        }
        let target = self.resource_target(caller, &view, frame)?;
        Ok(relay(&self.shared, caller, frame, target).await)
    }

    /// Where the call of an app leads that uses its server's own name for a tool.
    fn app_target(&self, caller: &Caller, view: &View, frame: &Frame) -> Option<Target> {
        if !view.has_views() {
            return None;
        }
        let (span, name) = routed(frame, Param::Name).ok()?;
        let server = self.shared.opened.server_of(caller, view, frame, &name)?;
        let route = view.native_tool(&server, &name)?;
        Some(Target {
            rename: (*route.native != *name).then(|| (span, route.native.to_string())),
            name: Some(route.native.to_string()),
            server: route.server,
            headers: route.headers,
        })
    }

    fn tool_target(&self, view: &View, frame: &Frame) -> Result<Target, RpcError> {
        let (span, name) = routed(frame, Param::Name)?;
        // A single view also reaches tools that its server does not list.
        let route = match view.tool(&name) {
            Err(_) if view.is_single() && !view.is_off(&name) => {
                let server = view.servers[0].clone();
                return Ok(Target {
                    server,
                    rename: None,
                    name: Some(name),
                    headers: None,
                });
            }
            route => route?,
        };
        Ok(Target {
            rename: (*route.native != *name).then(|| (span, route.native.to_string())),
            name: Some(route.native.to_string()),
            server: route.server,
            headers: route.headers,
        })
    }

    fn resource_target(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
    ) -> Result<Target, RpcError> {
        let (span, exposed) = routed(frame, Param::Uri)?;
        let (server, native) = view.resource(&exposed, caller.era)?;
        Ok(Target {
            server,
            rename: (native != exposed).then(|| (span, native.clone())),
            name: Some(native),
            headers: None,
        })
    }

    async fn list(
        &self,
        caller: &Caller,
        frame: &Frame,
        view: Arc<View>,
    ) -> Result<Answer, RpcError> {
        let kind = ListKind::from_method(frame.method())
            .ok_or_else(|| RpcError::method_not_found(frame.method()))?;
        if frame.param(Param::Cursor).is_some() {
            // Lists are answered whole: there is no second page to point at.
            return Err(RpcError::invalid_params("Invalid params: unknown `cursor`"));
        }
        let view = if view.is_settled() {
            view.wake();
            view
        } else {
            Box::pin(self.settled(&caller.scope))
                .await
                .ok_or_else(|| no_scope(&caller.scope))?
        };
        let own;
        let list = match &caller.session {
            Some(session) if kind == ListKind::Tools && own_tools::has_own(&view) => {
                let face = caller.face();
                let asked = own_tools::own_tools(&self.shared, &view, session, &face.capabilities);
                let tools = Box::pin(asked).await;
                own = view.own_tools(caller.era, &tools);
                &own
            }
            _ => view.list(kind, caller.era),
        };
        if chain::is_asked(frame) {
            return Ok(Answer::shared(frame, self.shared.with_chain(list)));
        }
        Ok(Answer::shared(frame, list.clone()))
    }

    async fn complete(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
    ) -> Result<Answer, RpcError> {
        let wrong =
            || RpcError::invalid_params("Invalid params: `ref` must name a prompt or a resource");
        let reference = frame
            .object()
            .and_then(|params| params.object("ref"))
            .ok_or_else(wrong)?;
        let span = routed_span(frame).ok_or_else(wrong)?;
        let exposed = string_at(frame, &span).ok_or_else(wrong)?;
        let (server, native) = if reference.string("type").as_deref() == Some("ref/prompt") {
            let route = view.prompt(&exposed)?;
            (route.server, route.native.to_string())
        } else {
            view.resource(&exposed, caller.era)?
        };
        if !server
            .catalog()
            .info
            .as_ref()
            .is_none_or(|info| info.has("completions"))
        {
            // A server without completions has none to offer: that is an answer.
            let kind = if caller.era == Era::Modern {
                "\"resultType\":\"complete\","
            } else {
                ""
            };
            let none =
                format!("{{{kind}\"completion\":{{\"values\":[],\"total\":0,\"hasMore\":false}}}}");
            return Ok(Answer::result(frame, none.as_bytes()));
        }
        let rename = (native != exposed).then_some((span, native));
        let target = Target {
            server,
            rename,
            name: None,
            headers: None,
        };
        Ok(relay(&self.shared, caller, frame, target).await)
    }

    fn set_level(&self, caller: &Caller, view: &View, frame: &Frame) -> Result<Answer, RpcError> {
        let level = frame
            .object()
            .and_then(|params| params.string("level"))
            .and_then(|level| bridge::log_level(&level));
        let level = level.ok_or_else(|| {
            RpcError::invalid_params(format!(
                "Invalid params: `level` must be one of {}",
                bridge::LOG_LEVELS.join(", ")
            ))
        })?;
        if let Some(session) = &caller.session {
            session.set_log_level(level);
        }
        for server in &view.servers {
            if let State::Ready(connection) = server.state() {
                self.shared
                    .spawn(async move { connection.ensure_level(level, false).await });
            }
            let session = caller.session.as_ref();
            if let Some(own) = session.and_then(|session| server.instances.existing(session.id())) {
                self.shared
                    .spawn(async move { own.ensure_level(level, true).await });
            }
        }
        Ok(Answer::result(frame, b"{}"))
    }

    /// `resources/subscribe` and `resources/unsubscribe` of a legacy client.
    async fn subscribe(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
    ) -> Result<Answer, RpcError> {
        let target = self.resource_target(caller, view, frame)?;
        let (_, exposed) = routed(frame, Param::Uri)?;
        let native = target.name.clone().unwrap_or_default();
        let session = caller.session.as_ref();
        let listener = session.and_then(|session| self.shared.hub.of_session(session));
        let listener = listener.ok_or_else(|| RpcError::internal("the session has no stream"))?;
        let server = target.server.clone();
        if frame.method() == method::RESOURCES_SUBSCRIBE {
            let most = self.shared.limits().max_subscriptions;
            let hub = &self.shared.hub;
            let first = hub.watch(&listener, server.key(), &native, &exposed, most);
            let Some(first) = first else {
                return Err(RpcError::internal(
                    "this client watches as many resources as it may (`max_subscriptions`): unsubscribe from some",
                ));
            };
            let answer = self
                .watch_upstream(caller, frame, target, &native, first)
                .await;
            if answer.code.is_some() {
                self.shared.hub.unwatch(&listener, server.key(), &native);
            }
            return Ok(answer);
        }
        if self.shared.hub.unwatch(&listener, server.key(), &native) {
            self.unwatch_upstream(&server, &native).await;
        }
        Ok(Answer::result(frame, b"{}"))
    }

    /// Makes sure that the server tells us of a resource; the answer is fit for a legacy client.
    async fn watch_upstream(
        &self,
        caller: &Caller,
        frame: &Frame,
        target: Target,
        native: &str,
        first: bool,
    ) -> Answer {
        let server = target.server.clone();
        match server.era() {
            Some(Era::Modern) => {
                server.upstream.add_acknowledged(native).await;
                Answer::result(frame, b"{}")
            }
            // It is asked even if somebody else watches the same: its own word on it is the answer.
            _ => {
                let answer = relay(&self.shared, caller, frame, target).await;
                if answer.code.is_none() {
                    server.upstream.add(native);
                } else if first {
                    server.upstream.remove(native);
                }
                answer
            }
        }
    }

    async fn unwatch_upstream(&self, server: &Arc<Server>, native: &str) {
        server.upstream.remove(native);
        if let (Some(Era::Legacy), State::Ready(connection)) = (server.era(), server.state()) {
            let members = format!("\"uri\":{}", quote(native));
            let asked = connection
                .client
                .ask(method::RESOURCES_UNSUBSCRIBE, &members);
            let _ = tokio::time::timeout(server.spec.call_timeout, asked).await;
        }
    }

    /// Ends all that a listener watches.
    async fn forget(&self, listener: &Listener) {
        let fleet = self.shared.fleet();
        for (key, native) in Hub::watched_by(listener) {
            if self.shared.hub.unwatch(listener, &key, &native)
                && let Some(server) = fleet.get(&key)
            {
                self.unwatch_upstream(server, &native).await;
            }
        }
    }

    /// `subscriptions/listen` of a modern client: runs until it is cancelled (2026-07-28
    /// basic/patterns/subscriptions).
    async fn listen(&self, caller: &Caller, frame: &Frame) -> Result<Answer, RpcError> {
        let wanted = frame
            .object()
            .and_then(|params| params.object("notifications"))
            .ok_or_else(|| {
                RpcError::invalid_params("Invalid params: `notifications` must be an object")
            })?;
        let flag = |key: &str| wanted.raw(key) == Some(b"true");
        let filter = Filter {
            tools: flag("toolsListChanged"),
            prompts: flag("promptsListChanged"),
            resources: flag("resourcesListChanged"),
        };
        let tag = Bytes::copy_from_slice(frame.id());
        let (scope, outbox) = (caller.scope.clone(), caller.outbox.clone());
        let mut listener = Listener::new(scope, filter, outbox, caller.principal.clone());
        listener.tag = Some(tag.clone());
        let registration = self.shared.hub.register(listener);
        let listening = Listening {
            gateway: self.clone(),
            registration: Some(registration),
        };
        let listener = listening.listener();
        let view = self
            .settled(&caller.scope)
            .await
            .ok_or_else(|| no_scope(&caller.scope))?;
        let mut honoured = Vec::new();
        if let Some(uris) = wanted.find("resourceSubscriptions") {
            for span in json::elements(frame.text(), uris) {
                let Some(exposed) = string_at(frame, &span) else {
                    continue;
                };
                if self.watch_for(&listener, &view, &exposed).await {
                    honoured.push(quote(&exposed));
                }
            }
        }
        let mut said: Vec<String> = [
            ("toolsListChanged", filter.tools),
            ("promptsListChanged", filter.prompts),
            ("resourcesListChanged", filter.resources),
        ]
        .into_iter()
        .filter(|(_, wanted)| *wanted)
        .map(|(key, _)| format!("\"{key}\":true"))
        .collect();
        if !honoured.is_empty() {
            said.push(format!(
                "\"resourceSubscriptions\":[{}]",
                honoured.join(",")
            ));
        }
        let own = format!(
            "\"_meta\":{{\"{}\":{}}}",
            meta::SUBSCRIPTION_ID,
            String::from_utf8_lossy(&tag)
        );
        let params = format!("{{{own},\"notifications\":{{{}}}}}", said.join(","));
        let acknowledged = Frame::notification(method::ACKNOWLEDGED, Some(params.as_bytes()));
        caller
            .outbox
            .push(Weight::Must, acknowledged.text().clone());
        self.shared.over.cancelled().await;
        Ok(Answer::result(
            frame,
            format!("{{\"resultType\":\"complete\",{own}}}").as_bytes(),
        ))
    }

    /// Watches a resource for a modern client; whether its server agrees.
    async fn watch_for(&self, listener: &Arc<Listener>, view: &View, exposed: &str) -> bool {
        let Ok((server, native)) = view.resource(exposed, Era::Modern) else {
            return false;
        };
        let subscribes = server
            .catalog()
            .info
            .as_ref()
            .is_some_and(|info| info.flag("resources", "subscribe"));
        if !subscribes {
            return false;
        }
        let most = self.shared.limits().max_subscriptions;
        let hub = &self.shared.hub;
        let Some(first) = hub.watch(listener, server.key(), &native, exposed, most) else {
            return false;
        };
        if !first {
            return true;
        }
        if server.era() == Some(Era::Modern) {
            return server.upstream.add_acknowledged(&native).await;
        }
        let deadline = tokio::time::Instant::now() + server.spec.call_timeout;
        let Ok(connection) = server.connection(deadline).await else {
            return false;
        };
        let members = format!("\"uri\":{}", quote(&native));
        let asked = connection.client.ask(method::RESOURCES_SUBSCRIBE, &members);
        let agreed = matches!(
            tokio::time::timeout_at(deadline, asked).await,
            Ok(Ok(frame)) if frame.kind() == Kind::Result
        );
        if agreed {
            server.upstream.add(&native);
        } else {
            self.shared.hub.unwatch(listener, server.key(), &native);
        }
        agreed
    }

    /// Takes a notification of a client.
    pub fn notification(&self, caller: &Caller, frame: &Frame) {
        let Some(session) = &caller.session else {
            return;
        };
        match frame.method() {
            method::CANCELLED => session.cancel(frame),
            method::ROOTS_CHANGED => {
                // A shared server has no single client whose roots it could ask for.
                for server in self.shared.fleet().all() {
                    if let Some(connection) = server.instances.existing(session.id()) {
                        let frame = frame.clone();
                        self.shared.spawn(async move {
                            let _ = connection.client.send(&frame).await;
                        });
                    }
                }
            }
            _ => {}
        }
    }

    /// Agrees to these definitions that tools have now, at once; `false` if none of them waits for that.
    pub fn approve_tools(&self, server: &ServerKey, tools: &[(NativeName, Arc<str>)]) -> bool {
        let fleet = self.shared.fleet();
        let Some(server) = fleet.get(server) else {
            return false;
        };
        let approved = server.pinned.approve(tools);
        if approved {
            self.shared.publish_of(server, &[ListKind::Tools]);
        }
        approved
    }

    /// Starts a server anew; `false` if there is none of that name.
    pub fn restart(&self, key: &ServerKey) -> bool {
        let found = self.shared.fleet().get(key).cloned();
        let Some(old) = found else { return false };
        let known = Remembered {
            catalog: Some(Catalog::clone(&old.catalog())).filter(|catalog| catalog.info.is_some()),
            pins: Pins::clone(&old.pins()),
        };
        let fresh = Server::new(old.spec.clone(), known, &self.shared);
        let swap = |servers: &mut Vec<Arc<Server>>| {
            for server in servers
                .iter_mut()
                .filter(|server| Arc::ptr_eq(server, &old))
            {
                *server = fresh.clone();
            }
        };
        self.replace(
            |scope| self.shared.fleet().sees(scope, &old),
            |fleet, _| {
                match &key.owner {
                    None => swap(&mut fleet.shared),
                    Some(id) => {
                        if let Some(project) = fleet.projects.get_mut(id) {
                            swap(&mut Arc::make_mut(project).servers);
                        }
                    }
                }
                Change {
                    stopped: vec![old.clone()],
                    started: vec![fresh.clone()],
                }
            },
        );
        true
    }

    /// Switches one tool of a server on or off, at once (G12).
    pub fn set_tool_enabled(&self, server: &ServerName, tool: &NativeName, enabled: bool) -> bool {
        let servers = self.servers();
        let Some(server) = servers.iter().find(|known| known.name() == server) else {
            return false;
        };
        let mut disabled = BTreeSet::clone(&server.disabled_tools.load());
        let changed = if enabled {
            disabled.remove(tool)
        } else {
            disabled.insert(tool.clone())
        };
        if changed {
            server.disabled_tools.store(Arc::new(disabled));
            self.shared.publish_of(server, &[ListKind::Tools]);
        }
        true
    }
}

/// Ends what a modern listener watches when its request ends, however it does.
struct Listening {
    gateway: Gateway,
    registration: Option<Registration>,
}

impl Listening {
    fn listener(&self) -> Arc<Listener> {
        self.registration
            .as_ref()
            .expect("taken only by drop")
            .listener()
            .clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let gateway = self.gateway.clone();
            self.gateway
                .shared
                .spawn(async move { gateway.forget(registration.listener()).await });
        }
    }
}

/// What a change of the fleet asks for.
struct Change {
    stopped: Vec<Arc<Server>>,
    started: Vec<Arc<Server>>,
}

/// The servers of these descriptions: the old ones where nothing changed but the tools that are switched off.
fn kept_or_new(
    old: &[Arc<Server>],
    specs: Vec<ServerSpec>,
    mut remembered: impl FnMut(&ServerSpec) -> Option<Remembered>,
    shared: &Arc<Shared>,
) -> (Vec<Arc<Server>>, Change) {
    let mut kept = BTreeSet::new();
    let mut started = Vec::new();
    let mut servers = Vec::with_capacity(specs.len());
    for spec in specs {
        if let Some(server) = old.iter().find(|server| same_instance(&server.spec, &spec)) {
            server
                .disabled_tools
                .store(Arc::new(spec.disabled_tools.clone()));
            kept.insert(server.key().clone());
            servers.push(server.clone());
        } else {
            let mut known = remembered(&spec).unwrap_or_default();
            if let Some(old) = old.iter().find(|server| *server.key() == spec.key()) {
                known.renew(old, &spec);
            }
            let server = Server::new(spec, known, shared);
            started.push(server.clone());
            servers.push(server);
        }
    }
    let stopped = old
        .iter()
        .filter(|server| !kept.contains(server.key()))
        .cloned()
        .collect();
    (servers, Change { stopped, started })
}

/// Whether a running instance can go on under the new description.
fn same_instance(old: &ServerSpec, new: &ServerSpec) -> bool {
    let mut old = old.clone();
    old.disabled_tools.clone_from(&new.disabled_tools);
    old == *new
}

/// Whether a method does more than to tell what there is.
fn uses(method: &str) -> bool {
    !matches!(
        method,
        method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::TEMPLATES_LIST
            | method::PING
            | method::SET_LEVEL
            | method::DISCOVER
            | method::LISTEN
            | method::SKILLS_LIST
    )
}

/// The string that a request is routed by.
fn routed(frame: &Frame, param: Param) -> Result<(json::Span, String), RpcError> {
    let found = frame
        .param(param)
        .and_then(|span| string_at(frame, &span).map(|text| (span, text)));
    found.ok_or_else(|| {
        let field = if param == Param::Uri { "uri" } else { "name" };
        RpcError::invalid_params(format!("Invalid params: `{field}` must be a string"))
    })
}

/// Waits a moment for what servers say of themselves that are just being started.
async fn introduced(view: &View) {
    let servers = view
        .servers
        .iter()
        .filter(|server| server.is_in_first_start());
    futures_util::future::join_all(servers.map(|server| server.first_answered())).await;
}

fn no_scope(scope: &Scope) -> RpcError {
    RpcError::new(error::INVALID_REQUEST, scope.missing())
}
