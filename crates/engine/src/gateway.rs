//! The entry point for requests and notifications of clients.

mod code;
mod declare;
mod listing;
pub(crate) mod presence;
mod recording;
pub(crate) mod trial;
pub(crate) mod update;
mod watch;

use std::{
    borrow::Cow, future::poll_fn, ops::ControlFlow, pin::pin, sync::Arc, task::Poll, time::Duration,
};

use bytes::Bytes;
use catalog::ListKind;
use http::HeaderMap;
use mcp::{
    Era, Frame, RpcError, bridge,
    client::{Connector, Identity},
    error,
    frame::Param,
    json,
    protocol::method,
    server::{ClientInfo, Session},
};
use model::Settings;
use records::{NotRecorded, Warning};
use store::Store;
use tokio::sync::Semaphore;

use crate::{
    call::{
        find,
        relay::{Target, relay, routed_span, sign_in, sign_in_tool, string_at},
        results, skills, task_requests,
    },
    client_state::hub::{Filter, Listener, Registration},
    exchange::{Answer, Caller},
    life::{
        callers::{self, InvalidValue},
        chain, second,
    },
    scope::Scope,
    server::{
        Server, State,
        gate::Gate,
        launch::{Connect, Launcher},
        logins::Logins,
        runtimes::Runtimes,
    },
    shared::Shared,
    views::{finders::Finder, fleet::Fleet, offers, view::View},
};

/// Hosted servers that may start at the same time, per CPU core. At least [`MIN_CONCURRENT_STARTS`] in total.
const STARTS_PER_CORE: usize = 2;
const MIN_CONCURRENT_STARTS: usize = 8;

/// The gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
}

impl Gateway {
    /// Creates a gateway without servers.
    #[must_use]
    pub fn new(
        settings: Settings,
        identity: Identity,
        runtimes: Runtimes,
        logins: Arc<dyn Logins>,
        store: Store,
    ) -> Self {
        let limits = &settings.limits;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtimes = Arc::new(runtimes);
        let launcher = Launcher {
            runtimes: runtimes.clone(),
            starting: Semaphore::new((cores * STARTS_PER_CORE).max(MIN_CONCURRENT_STARTS)),
            connector: Connector::new(),
            direct: Connector::direct(),
            logins: logins.clone(),
            identity: identity.clone(),
            max_message: limits.max_line_bytes,
            max_depth: limits.max_depth,
            stop_grace: limits.stop_grace,
        };
        Self::with(
            settings,
            identity,
            Arc::new(launcher),
            runtimes,
            logins,
            store,
        )
    }

    /// Like [`Gateway::new`], with another implementation of [`Connect`].
    #[must_use]
    pub fn with(
        settings: Settings,
        identity: Identity,
        connect: Arc<dyn Connect>,
        runtimes: Arc<Runtimes>,
        logins: Arc<dyn Logins>,
        store: Store,
    ) -> Self {
        let fleet = Fleet::new(settings);
        let shared = Shared::new(fleet, identity, connect, runtimes, logins, store);
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
                sweeping.held_runs.sweep();
                sweeping.tasks.sweep();
                callers::sweep(&sweeping);
            }
        });
        let announcing = shared.clone();
        shared.spawn(async move {
            let view = |scope: &Scope| announcing.view(scope);
            let tell = |scope: &Scope, kinds: &[ListKind]| {
                announcing.hub.lists_changed(kinds, scope);
            };
            let over = announcing.over.clone();
            announcing.announcer.run(over, view, tell).await;
        });
        Self { shared }
    }

    /// Waits until all server events so far are written.
    pub async fn chronicled(&self) {
        self.shared.event_log.flush().await;
    }

    /// Receives health warnings of servers from now on.
    #[must_use]
    pub fn warnings(&self) -> tokio::sync::broadcast::Receiver<Warning> {
        self.shared.event_log.warnings()
    }

    /// Sets the gate that is consulted before registered servers are launched. Only the first call has an effect.
    pub fn keep_gate(&self, gate: Arc<dyn Gate>) {
        let _ = self.shared.gate.set(gate);
    }

    /// Sets the name (base64url characters) under which other gateways of the installation find this one. It is part of
    /// the handles given to clients ([`crate::place_of`]). Only the first call has an effect.
    pub fn keep_place(&self, place: String) {
        self.shared.place.keep(place);
    }

    #[must_use]
    pub fn runtimes(&self) -> &Runtimes {
        &self.shared.runtimes
    }

    /// Relays a request to a declared server under its native names. A tool that is disabled or kept back in the
    /// server's view is refused; other requests do not depend on views. `caller.scope` names the server and its owner.
    /// Messages that arrive before the answer go to the caller's outbox.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request at its server.
    pub async fn call(&self, caller: &Caller, server: &Arc<Server>, frame: &Frame) -> Answer {
        let _lease = callers::enter_one(&self.shared, server, &caller.scope);
        let (server, _) = &server.of_caller(&caller.scope.values);
        let param = match frame.method() {
            method::TOOLS_CALL | method::PROMPTS_GET => Some(Param::Name),
            method::RESOURCES_READ => Some(Param::Uri),
            _ => None,
        };
        let name = param.and_then(|param| frame.param_string(param).map(Cow::into_owned));
        let mut headers = None;
        if let (method::TOOLS_CALL, Some(name)) = (frame.method(), &name) {
            let view = self.shared.view_of(&caller.scope, server);
            match view.native_route(server, name) {
                Ok(route) => headers = route.and_then(|route| route.headers),
                Err(refusal) => return Answer::error(frame, &refusal),
            }
        }
        let target = Target {
            server: server.clone(),
            rename: None,
            name,
            headers,
        };
        relay(&self.shared, caller, frame, target).await
    }

    /// The servers of the configuration file, in order.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.shared.fleet().of_file().cloned().collect()
    }

    #[must_use]
    pub fn fleet(&self) -> Arc<Fleet> {
        self.shared.fleet()
    }

    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.fleet().settings.clone()
    }

    /// Numbers of calls on hold and of listening clients.
    #[must_use]
    pub fn gauges(&self) -> (usize, usize) {
        (self.shared.held.len(), self.shared.hub.len())
    }

    /// The scope, with the values of those headers of a request that servers of the scope ask for.
    ///
    /// # Errors
    /// The value of such a header cannot be passed on.
    pub fn with_values(&self, scope: Scope, headers: &HeaderMap) -> Result<Scope, InvalidValue> {
        let names = self.shared.fleet().passed_on_in(&scope);
        let values = callers::values(&names, headers)?;
        Ok(Scope { values, ..scope })
    }

    /// The snapshot of a scope. `None` if the project or server does not exist.
    #[must_use]
    pub fn view(&self, scope: &Scope) -> Option<Arc<View>> {
        self.shared.view(scope)
    }

    /// Waits until no server of the scope is in its first start, for at most 20 seconds.
    pub async fn settled(&self, scope: &Scope) -> Option<Arc<View>> {
        let view = self.shared.view(scope)?;
        if view.is_settled() {
            return Some(view);
        }
        let settling = view.awaited().map(|server| server.first_settled());
        futures_util::future::join_all(settling).await;
        self.known(scope)
    }

    /// The view with what is known now. Does not wait.
    #[must_use]
    pub fn known(&self, scope: &Scope) -> Option<Arc<View>> {
        // The stored view may be outdated: a start that has ended may not be published yet, and a server that did not
        // start in time publishes nothing.
        match self.shared.view(scope)? {
            view if view.is_settled() => Some(view),
            _ => self.shared.view_now(scope),
        }
    }

    /// Answers `initialize`, for the client info in `face`. Waits briefly for the handshakes of starting servers, or
    /// longer for the server of a single view whose capabilities are unknown.
    pub async fn initialize(&self, scope: &Scope, face: &ClientInfo) -> Option<String> {
        let _leases = callers::enter(&self.shared, scope);
        let mut view = self.shared.view(scope)?;
        if view.is_single() {
            view = self.settled(scope).await?;
            self.introduce_legacy(&view.servers[0]).await;
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

    /// Opens the second conversation with a server that speaks both eras, since its description of itself depends on the
    /// era.
    async fn introduce_legacy(&self, server: &Arc<Server>) {
        if let State::Ready(first) = server.state()
            && !server.is_personal
        {
            second::for_legacy(&self.shared, server, first).await;
        }
    }

    /// Records a call that does not go to a server: the intent before the call is made, the outcome before it is
    /// returned.
    ///
    /// # Errors
    /// [`NotRecorded`]. The write of an outcome is retried later.
    pub async fn record(&self, write: store::CallWrite) -> Result<(), NotRecorded> {
        self.shared.audit.write(write).await
    }

    /// Registers a legacy session for notifications.
    #[must_use]
    pub fn attach(&self, scope: Scope, session: &Arc<Session>) -> Registration {
        let principal = session.principal().clone();
        let outbox = session.outbox().clone();
        let mut listener = Listener::new(scope, Filter::ALL, outbox, principal);
        listener.session = Some(session.clone());
        self.shared.hub.register(listener)
    }

    /// Removes the subscriptions and separate instances of a session.
    pub async fn detach(&self, registration: Registration) {
        let listener = registration.listener().clone();
        self.forget(&listener).await;
        if let Some(session) = &listener.session {
            session.end();
            for declared in self.shared.fleet().all() {
                for server in declared.with_callers() {
                    server
                        .instances
                        .close(&session.id().into(), self.shared.stop_grace)
                        .await;
                }
            }
        }
    }

    /// Answers a request.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request at its server.
    pub async fn request(&self, caller: &Caller, frame: &Frame) -> Answer {
        let _leases = callers::enter(&self.shared, &caller.scope);
        let Some(session) = &caller.session else {
            return self.dispatch(caller, frame).await;
        };
        let in_flight = match session.begin(frame) {
            Ok(in_flight) => in_flight,
            Err(error) => return Answer::error(frame, &error),
        };
        let mut answering = pin!(self.dispatch(caller, frame));
        let mut cancelled = pin!(in_flight.cancelled());
        // Not `select!`: that does nothing if the task's budget is used up, and a request that is polled once must get its
        // place in the order of requests (G14).
        poll_fn(|cx| match answering.as_mut().poll(cx) {
            Poll::Pending => cancelled
                .as_mut()
                .poll(cx)
                .map(|()| Answer::cancelled(frame)),
            answered => answered,
        })
        .await
    }

    async fn dispatch(&self, caller: &Caller, frame: &Frame) -> Answer {
        match self.dispatch_inner(caller, frame).await {
            Ok(answer) if caller.era == Era::Modern => answer.signed(frame, || {
                let view = self.shared.view(&caller.scope);
                view.map_or_else(
                    || self.shared.identity.to_json(),
                    |view| view.implementation(Era::Modern),
                )
            }),
            Ok(answer) => answer,
            Err(error) => Answer::error(frame, &error),
        }
    }

    async fn dispatch_inner(&self, caller: &Caller, frame: &Frame) -> Result<Answer, RpcError> {
        let legacy = caller.era == Era::Legacy;
        if !caller.may_use && uses(frame.method()) {
            let what = format!(
                "`{}` needs the role `call`; this key may only list tools, prompts and resources",
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
        if lacks(&view, frame.method(), caller.era) {
            return Err(RpcError::method_not_found(frame.method()));
        }
        let inner;
        let mut is_inner = false;
        let frame = match find::asked(&view, frame) {
            None => frame,
            Some(Finder::Call) => {
                let depth = self.shared.fleet().settings.limits.max_depth;
                match find::inner(&view, frame, depth) {
                    Ok(call) => inner = call,
                    Err(why) => return Ok(find::failed(caller, frame, &why)),
                }
                is_inner = true;
                &inner
            }
            Some(Finder::Code) => return self.run_code(view, caller, frame).await,
            Some(Finder::Read) => {
                return Ok(Box::pin(results::read(&self.shared, &view, caller, frame)).await);
            }
            Some(finder) => {
                let view = match view.is_settled() {
                    true => view,
                    false => Box::pin(self.settled(&caller.scope)).await.unwrap_or(view),
                };
                view.wake();
                return Ok(Box::pin(find::answer(&self.shared, view, caller, frame, finder)).await);
            }
        };
        match frame.method() {
            method::TOOLS_CALL => {
                if let Some(server) = self.signs_in_to(caller, &view, frame) {
                    let signing_in = sign_in_tool(&self.shared, caller, frame, server);
                    return Ok(Box::pin(signing_in).await);
                }
                let target = match self.tool_target(&view, frame) {
                    Err(_) if !view.is_settled() => {
                        let view = Box::pin(self.settled(&caller.scope))
                            .await
                            .ok_or_else(|| no_scope(&caller.scope))?;
                        self.tool_target(&view, frame)
                    }
                    Err(unknown) => self.app_target(caller, &view, frame).ok_or(unknown),
                    found => found,
                };
                let target = match target {
                    Ok(target) => target,
                    Err(unknown) => {
                        let signing_in = self.after_sign_in(caller, frame, unknown);
                        match Box::pin(signing_in).await? {
                            ControlFlow::Continue(target) => target,
                            ControlFlow::Break(answer) => return Ok(answer),
                        }
                    }
                };
                if view.has_views()
                    && let Ok((_, name)) = routed(frame, Param::Name)
                    && view.has_view(&name)
                {
                    self.shared.opened.note(caller, &target.server, true);
                }
                // A client cannot send the headers of a tool that it calls through another one.
                if let (Some(declared), Some(headers), false) =
                    (&target.headers, &caller.headers, is_inner)
                {
                    let arguments = frame
                        .param(Param::Arguments)
                        .map(|span| &frame.text()[span]);
                    declared.validate(arguments, headers).map_err(|why| {
                        RpcError::new(error::HEADER_MISMATCH, format!("Header mismatch: {why}"))
                    })?;
                }
                Ok(results::call(&self.shared, &view, caller, frame, target).await)
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
                if let Some(uri) = results::asked(&view, frame) {
                    let reading = results::resource(&self.shared, &view, caller, frame, &uri);
                    return Box::pin(reading).await;
                }
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
            // Methods of one era do not exist in the other, even if the server would answer.
            method::DISCOVER
            | method::LISTEN
            | method::INITIALIZE
            | method::PING
            | method::SET_LEVEL
            | method::RESOURCES_SUBSCRIBE
            | method::RESOURCES_UNSUBSCRIBE => Err(RpcError::method_not_found(frame.method())),
            name if name.starts_with("tasks/") => {
                Box::pin(task_requests::answer(&self.shared, caller, &view, frame)).await
            }
            name => match &*view.servers {
                // In the view of one server, the server may know a method that the gateway does not.
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
        if !view.servers.iter().any(|server| offers::has_skills(server)) {
            return Err(RpcError::method_not_found(frame.method()));
        }
        if frame.method() == method::SKILLS_LIST {
            return skills::list(&self.shared, caller, &view, frame).await;
        }
        let target = self.resource_target(caller, &view, frame)?;
        Ok(relay(&self.shared, caller, frame, target).await)
    }

    /// The target of a call by an app, which uses its server's native tool name.
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

    /// The server that a call of the tool [`sign_in_tool`] is about.
    fn signs_in_to<'v>(
        &self,
        caller: &Caller,
        view: &'v View,
        frame: &Frame,
    ) -> Option<&'v Arc<Server>> {
        let server = view.signs_in_to(&frame.param_string(Param::Name)?)?;
        let whose = Some(&caller.principal);
        let has_sign_in = self.shared.logins.authorize(&server.spec, whose).is_some();
        has_sign_in.then_some(server)
    }

    /// The target of a call of an unknown tool, once the caller has signed in to its server. Until then, what the
    /// client has to do first.
    async fn after_sign_in(
        &self,
        caller: &Caller,
        frame: &Frame,
        unknown: RpcError,
    ) -> Result<ControlFlow<Answer, Target>, RpcError> {
        let (_, name) = routed(frame, Param::Name)?;
        let view = self.shared.view(&caller.scope);
        let server = view.as_ref().and_then(|view| view.awaits_sign_in(&name));
        let Some(server) = server else {
            return Err(unknown);
        };
        if let Some(asked) = sign_in(&self.shared, caller, frame, server).await? {
            return Ok(ControlFlow::Break(asked));
        }
        let view = self.settled(&caller.scope).await;
        let view = view.ok_or_else(|| no_scope(&caller.scope))?;
        self.tool_target(&view, frame).map(ControlFlow::Continue)
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

    pub(crate) fn resource_target(
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

    async fn complete(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
    ) -> Result<Answer, RpcError> {
        let wrong =
            || RpcError::invalid_params("Invalid params: `ref` must have a `name` or a `uri`");
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
            // The answer for a server without completions is an empty list.
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
        for server in view.servers.iter() {
            if let State::Ready(connection) = server.state() {
                let connection = connection.second.get().unwrap_or(connection);
                self.shared
                    .spawn(async move { connection.ensure_level(level, false).await });
            }
            let session = caller.session.as_ref();
            if let Some(own) =
                session.and_then(|session| server.instances.existing(&session.id().into()))
            {
                self.shared
                    .spawn(async move { own.ensure_level(level, true).await });
            }
        }
        Ok(Answer::result(frame, b"{}"))
    }

    /// Handles a notification of a client.
    pub fn notification(&self, caller: &Caller, frame: &Frame) {
        let Some(session) = &caller.session else {
            return;
        };
        match frame.method() {
            method::CANCELLED => session.cancel(frame),
            method::ROOTS_CHANGED => {
                // A shared server has no single client whose roots it could ask for.
                let fleet = self.shared.fleet();
                for server in fleet.all().flat_map(|declared| declared.with_callers()) {
                    if let Some(connection) = server.instances.existing(&session.id().into()) {
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
}

/// Returns whether a method does more than listing what is offered.
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

/// Returns whether this is the view of one server, and the server does not offer the method to clients of this era.
fn lacks(view: &View, asked: &str, era: Era) -> bool {
    let mut servers = view.servers.iter().filter(|_| view.is_single());
    servers.any(|server| offers::lacks(server, asked, era))
}

/// The string that a request is routed by.
pub(crate) fn routed(frame: &Frame, param: Param) -> Result<(json::Span, String), RpcError> {
    let found = frame
        .param(param)
        .and_then(|span| string_at(frame, &span).map(|text| (span, text)));
    found.ok_or_else(|| {
        let field = if param == Param::Uri { "uri" } else { "name" };
        RpcError::invalid_params(format!("Invalid params: `{field}` must be a string"))
    })
}

/// Waits briefly for the handshakes of servers in their first start.
async fn introduced(view: &View) {
    let servers = view
        .servers
        .iter()
        .filter(|server| server.is_in_first_start());
    futures_util::future::join_all(servers.map(|server| server.first_answered())).await;
}

pub(crate) fn no_scope(scope: &Scope) -> RpcError {
    RpcError::new(error::INVALID_REQUEST, scope.missing())
}
