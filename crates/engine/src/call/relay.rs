//! Relays one call: queue, connection, translation between the eras, and back.

mod asked;
mod outcome;
mod reach;
mod response;
mod routed;
mod sign_in;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mcp::{
    Era, Frame, Kind, RpcError, bridge,
    client::{Call, CallError, CallerId, Event, Outgoing},
    elicit, extensions,
    frame::Param,
    headers::{self, ParamHeaders},
    json::{Span, Splice, excerpt, quote},
    outbox::Weight,
    protocol::{meta, method},
    tasks,
};
use model::{Pinning, Reach, Sharing};
use records::NotRecorded;
use tokio::time::Instant;

use crate::{
    call::steps::Steps,
    exchange::{Answer, Caller},
    life::elsewhere::MOVE_WAIT,
    server::{
        Server, advice,
        connection::Connection,
        questions::Questions,
        queue::{Permit, Sending},
        unavailable::Unavailable,
    },
    shared::Shared,
    views::refusals,
};

use outcome::End;

pub(crate) use asked::{ask_client, refusal};
pub(crate) use reach::connection;
pub(crate) use routed::{routed_span, string_at};
pub(crate) use sign_in::{sign_in, sign_in_tool};

/// Maximum number of times that a modern server may ask for input in one call.
const MAX_ROUNDS: usize = 10;
/// Maximum duration of a call. Progress messages cannot extend a call beyond it.
pub(crate) const MAX_CALL_TIME: Duration = Duration::from_secs(3600);

/// The server of a request, and how the request has to be changed for it.
pub(crate) struct Target {
    pub(crate) server: Arc<Server>,
    /// The position of the name or URI in the frame, and its native replacement.
    pub(crate) rename: Option<(Span, String)>,
    /// The native name or URI, for the `Mcp-Name` header.
    pub(crate) name: Option<String>,
    pub(crate) headers: Option<Arc<ParamHeaders>>,
}

/// Why a call has no response from its server.
pub(crate) enum Failure {
    Rpc(RpcError),
    Call(CallError),
    Timeout {
        ms: u64,
        /// Text other than messages that the server wrote during the call.
        printed: Option<String>,
    },
    /// Rejected without waiting.
    Refused(Unavailable),
    NotRecorded(NotRecorded),
}

/// The future that opens the record of a call.
type Opening<'a> = std::pin::Pin<&'a mut (dyn Future<Output = Result<(), NotRecorded>> + Send)>;

impl From<NotRecorded> for Failure {
    fn from(why: NotRecorded) -> Self {
        Self::NotRecorded(why)
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl Failure {
    /// The error for failures outside of a relayed call.
    pub(crate) fn into_rpc(self, server: &Server) -> RpcError {
        let name = server.name();
        let message = match self {
            Self::Rpc(error) => return error,
            Self::Refused(why) => return why.to_rpc(),
            Self::NotRecorded(why) => why.to_string(),
            Self::Timeout { ms, .. } => format!("server `{name}` did not answer within {ms} ms"),
            Self::Call(error) => format!("server `{name}` failed: {error}"),
        };
        RpcError::internal(server.redact(&message))
    }
}

/// The result of a step of a call.
enum Step {
    Response(Frame),
    /// Requests of a legacy server to a modern client.
    Input(Vec<Frame>),
}

struct Relay<'a> {
    shared: &'a Arc<Shared>,
    caller: &'a Caller,
    frame: &'a Frame,
    target: &'a Target,
    by: CallerId,
    /// The position of the caller's progress token.
    token: Option<Span>,
    started: Instant,
    /// Set only if the call is recorded.
    steps: Option<&'a Steps>,
    /// Set once the request has a place in the queue and, if it is recorded, the beginning of its record is durable.
    is_accepted: AtomicBool,
}

/// Relays a request to its server and the response back. Tool calls are recorded if the audit log is enabled.
///
/// # Cancel safety
/// Dropping the future cancels the request at the server.
pub(crate) async fn relay(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    target: Target,
) -> Answer {
    let is_call = frame.method() == method::TOOLS_CALL;
    match shared.recorded_detail(target.server.key()) {
        Some(detail) if is_call && !caller.scope.is_bare => {
            Box::pin(outcome::recorded(shared, caller, frame, target, detail)).await
        }
        _ => {
            let (answer, end) = Box::pin(carry(shared, caller, frame, &target, None, None)).await;
            if is_call {
                outcome::count(outcome::of(&answer, end).as_ref(), &target.server);
            }
            answer
        }
    }
}

async fn carry(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    target: &Target,
    mut opening: Option<Opening<'_>>,
    steps: Option<&Steps>,
) -> (Answer, End) {
    let server = &target.server;
    let relay = Relay::new(shared, caller, frame, target, steps);
    let mut outcome = relay.run(&mut opening).await;
    if let Err(failure) = outcome {
        outcome = match relay.needs_login(&failure) {
            true => Box::pin(relay.after_sign_in(failure, &mut opening)).await,
            false => Err(failure),
        };
    }
    let (answer, end) = match outcome {
        Ok(answer) => (answer, End::Answered),
        Err(Failure::NotRecorded(why)) => {
            let what = format!("{why}; the call was not made");
            (Answer::unavailable(frame, &what), End::Rejected)
        }
        Err(mut failure) => {
            // Over stdio, the reason contains the exit already.
            if let Failure::Call(CallError::Closed(why)) = &mut failure
                && !relay.is_own_instance()
                && let Some(launch) = server.spec.launch()
                && launch.reach != Reach::Streams
                && let Some(handle) = server.process()
            {
                let ended = Box::pin(advice::with_exit(why, &handle, launch)).await;
                *why = server.redact(&ended).into();
            }
            let end = match failure {
                Failure::Timeout { .. } => End::TimedOut,
                Failure::Refused(Unavailable::Busy { .. }) => {
                    Box::pin(server.pace.wait()).await;
                    End::Answered
                }
                _ => End::Answered,
            };
            (Answer::error(frame, &relay.explain(failure)), end)
        }
    };
    match relay.is_accepted.load(Ordering::Relaxed) {
        true => (answer, end),
        false => (answer, End::Rejected),
    }
}

fn progress_token(frame: &Frame) -> Option<Span> {
    frame.meta().and_then(|own| own.find(meta::PROGRESS_TOKEN))
}

/// Returns whether a legacy client wants this call to run as a task.
fn wants_task(caller: &Caller, frame: &Frame) -> bool {
    caller.era == Era::Legacy
        && frame.method() == method::TOOLS_CALL
        && frame
            .object()
            .is_some_and(|params| params.object("task").is_some())
}

impl<'a> Relay<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        caller: &'a Caller,
        frame: &'a Frame,
        target: &'a Target,
        steps: Option<&'a Steps>,
    ) -> Self {
        Self {
            shared,
            caller,
            frame,
            target,
            by: caller.id(frame),
            token: progress_token(frame),
            started: Instant::now(),
            steps,
            is_accepted: AtomicBool::new(false),
        }
    }
}

impl Relay<'_> {
    /// Takes `opening` when it opens the call's record. A call that is rejected earlier leaves `opening` set and may be
    /// repeated.
    async fn run(&self, opening: &mut Option<Opening<'_>>) -> Result<Answer, Failure> {
        if self.caller.era == Era::Modern
            && let Some(state) = self.own_state()
        {
            // Rare paths are boxed to keep the future of the usual path small, since it is moved into its task.
            if let Some(opening) = opening.take() {
                opening.await?;
            }
            self.accept();
            return Box::pin(self.resume(&state)).await;
        }
        if self.caller.era == Era::Modern
            && let Some(declined) = self.declined()
        {
            return Err(declined);
        }
        let server = &self.target.server;
        let mut deadline = self.started + self.timeout();
        if let Some(refusal) = server.refusal() {
            return Err(Failure::Refused(refusal));
        }
        let sending = match (&self.caller.session, &*opening) {
            (None, _) => Sending::Anytime,
            (Some(_), None) => Sending::InOrder,
            (Some(_), Some(_)) => Sending::Later,
        };
        let permit = match opening.take() {
            // `tasks/result` only waits for a running task, so it does not count as a call in flight.
            None if self.frame.method() == tasks::RESULT => {
                self.accept();
                Ok(Permit::beside(self.by))
            }
            None => {
                let place = server.line_up(self.by, sending).map_err(Failure::Refused)?;
                self.accept();
                server.turn(place, deadline).await
            }
            Some(opening) => {
                let place = server.line_up(self.by, sending).map_err(Failure::Refused)?;
                let opening = async {
                    opening.await?;
                    self.accept();
                    Ok::<_, NotRecorded>(())
                };
                // Joined, so that the call keeps its place in line while its record is written.
                let (permit, opened) = tokio::join!(server.turn(place, deadline), opening);
                opened?;
                permit
            }
        };
        let mut permit = permit.map_err(|full| full.to_rpc())?;
        self.mark(Steps::turn);
        let connection = self.connection(deadline).await?;
        self.check_definition()?;
        if let Some(refusal) = self.task_refusal(&connection) {
            return Err(refusal.into());
        }
        permit.in_order().await;
        if let Some(level) = self.log_level() {
            let is_own = self.is_own_instance();
            Box::pin(connection.ensure_level(level, is_own)).await;
        }
        let frame = match self.is_after_urls() {
            // The client's answers about URLs are for this gateway, so they are not sent to the server.
            true => Cow::Owned(
                bridge::retry(self.frame, &[], None).unwrap_or_else(|| self.frame.clone()),
            ),
            false => Cow::Borrowed(self.frame),
        };
        let (call, connection) = self.call(connection, &frame, deadline).await?;
        permit.sent();
        self.mark(Steps::sent);
        self.see_through(call, connection, permit, &mut deadline)
            .await
    }

    /// Counts the request, once, even if it is sent again after a sign-in.
    fn accept(&self) {
        if self.is_accepted.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_call = self.frame.method() == method::TOOLS_CALL;
        self.target.server.count(|stats| match is_call {
            true => &stats.calls,
            false => &stats.requests,
        });
    }

    fn mark(&self, step: impl FnOnce(&Steps)) {
        if let Some(steps) = self.steps {
            step(steps);
        }
    }

    fn timeout(&self) -> Duration {
        // In a bare scope, the calling gateway enforces the client's timeout.
        if self.frame.method() == tasks::RESULT || self.caller.scope.is_bare {
            return MAX_CALL_TIME;
        }
        let configured = self.target.server.spec.call_timeout;
        self.caller.timeout.unwrap_or(configured)
    }

    /// Returns whether the call goes to a separate instance of its session.
    fn is_own_instance(&self) -> bool {
        self.caller.session.is_some() && self.target.server.spec.sharing == Sharing::Session
    }

    /// The connection that replaces one whose session the server has forgotten. If the caller has a separate instance,
    /// a new one is started.
    async fn fresh(&self, old: &Arc<Connection>, deadline: Instant) -> Option<Arc<Connection>> {
        let server = &self.target.server;
        if !server.is_personal && !self.is_own_instance() && !server.is_second(old) {
            let deadline = match old.is_elsewhere {
                true => deadline.min(Instant::now() + MOVE_WAIT),
                false => deadline,
            };
            return server.reconnected(old, deadline).await;
        }
        server.instances.forget_gone(old);
        self.connection(deadline).await.ok()
    }

    /// The connection in the era of the client, if the server speaks both. A task of a legacy client runs in the modern
    /// era if the server has tasks only there.
    async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>, Failure> {
        let (shared, caller, server) = (self.shared, self.caller, &self.target.server);
        let in_era = |era| connection(shared, caller, server, era, deadline);
        let found = in_era(caller.era_upstream()).await?;
        let lacks_tasks = wants_task(caller, self.frame)
            && server.is_second(&found)
            && !found.client.info().has("tasks");
        match lacks_tasks {
            true => Box::pin(in_era(Era::Modern)).await,
            false => Ok(found),
        }
    }

    /// The failure of a call whose connection was lost and not replaced.
    fn lost(&self) -> Failure {
        let refusal = self.target.server.refusal();
        refusal.map_or(Failure::Call(CallError::SessionExpired), Failure::Refused)
    }

    /// Counts and logs a request that is not sent to the server.
    fn refused(&self, why: &Unavailable) -> RpcError {
        let server = &self.target.server;
        server.count(|stats| &stats.refused);
        if let Some(times) = server.repeats.count(why.cause()) {
            tracing::warn!(server = %server.name(), method = self.frame.method(), "refused: {why}{times}");
        }
        why.to_rpc()
    }

    /// Sends the request. If the server has forgotten the session, retries once in a new session. This is safe because
    /// the server did not process the request (2025-11-25 basic/transports "Session Management").
    async fn call(
        &self,
        connection: Arc<Connection>,
        frame: &Frame,
        deadline: Instant,
    ) -> Result<(Call, Arc<Connection>), Failure> {
        match self.send(&connection, frame).await {
            Err(CallError::SessionExpired) => {
                let fresh = Box::pin(self.fresh(&connection, deadline)).await;
                let fresh = fresh.ok_or_else(|| self.lost())?;
                self.check_definition()?;
                let call = self.send(&fresh, frame).await.map_err(Failure::Call)?;
                Ok((call, fresh))
            }
            sent => sent.map(|call| (call, connection)).map_err(Failure::Call),
        }
    }

    async fn send(&self, connection: &Arc<Connection>, frame: &Frame) -> Result<Call, CallError> {
        let era = connection.client.info().era;
        let mut outgoing = Outgoing::new(frame);
        outgoing.caller = Some(self.by);
        outgoing.wants_logs = self.caller.era == Era::Modern
            && era == Era::Legacy
            && connection.client.is_http()
            && self.log_level().is_some();
        let same = std::ptr::eq(frame, self.frame);
        if let Some((span, native)) = &self.target.rename {
            // A retry is a different frame, with the name at another position.
            let span = if same {
                Some(span.clone())
            } else {
                routed_span(frame)
            };
            if let Some(span) = span {
                outgoing.splice.replace(span, quote(native).into_bytes());
            }
        }
        if self.caller.era != era {
            let face = self.cross(connection, frame, &mut outgoing.splice);
            bridge::request_up(frame, self.caller.era, era, &face, &mut outgoing.splice);
        }
        outgoing.progress = if same {
            self.token.clone()
        } else {
            progress_token(frame)
        };
        if era == Era::Modern && connection.client.is_http() {
            if let Some(name) = &self.target.name {
                outgoing
                    .headers
                    .push((mcp::server::modern::NAME, headers::mcp_name(name)));
            }
            if let Some(headers) = &self.target.headers {
                let arguments = frame
                    .param(Param::Arguments)
                    .map(|span| &frame.text()[span]);
                outgoing.headers.extend(headers.extract(arguments));
            }
            if let Some(given) = &self.caller.headers {
                let declared = self.target.headers.as_deref();
                let others = headers::undeclared_params(given, declared);
                outgoing.headers.extend(others);
            }
        }
        connection.name_caller(&mut outgoing, self.caller);
        connection.client.call(outgoing).await
    }

    /// Adapts the task members of a call between the eras. Returns the client information to declare.
    fn cross(
        &self,
        connection: &Connection,
        frame: &Frame,
        splice: &mut Splice<'_>,
    ) -> bridge::ClientFace {
        let Some(params) = frame.object() else {
            return self.caller.face();
        };
        if self.caller.era == Era::Legacy {
            if wants_task(self.caller, frame) {
                if let Some(task) = params.find("task") {
                    splice.remove(frame.text(), &params.span(), &task);
                }
                if makes_modern_tasks(connection) {
                    return face_with_tasks(self.caller);
                }
            }
        } else if self.is_only_task() && params.find("task").is_none() {
            splice.insert(frame.text(), &params.span(), "\"task\":{}");
        }
        self.caller.face()
    }

    /// Returns whether a legacy server runs this tool only as a task.
    fn is_only_task(&self) -> bool {
        let name = self.target.name.as_deref();
        self.frame.method() == method::TOOLS_CALL
            && name.is_some_and(|name| self.target.server.catalog().needs_task(name))
    }

    /// Refuses a tool whose definition has changed since the call was resolved: the server may have been restarted
    /// while the call waited for it. A connection is ready only once its tools were compared with the approved ones.
    fn check_definition(&self) -> Result<(), Failure> {
        let (server, name) = (&self.target.server, self.target.name.as_deref());
        let Some(native) = name.filter(|_| self.frame.method() == method::TOOLS_CALL) else {
            return Ok(());
        };
        let Some(why) = server.keeps_back(native) else {
            return Ok(());
        };
        if self.shared.fleet().settings.pinning != Pinning::Quarantine {
            return Ok(());
        }
        let exposed = self.frame.object().and_then(|params| params.string("name"));
        let exposed = exposed.as_deref().unwrap_or(native);
        Err(refusals::kept_back(&self.caller.scope, exposed, server, native, &why).into())
    }

    /// Why a modern client without task support cannot call this tool of a legacy server.
    fn task_refusal(&self, connection: &Connection) -> Option<RpcError> {
        let crosses = self.caller.era == Era::Modern && connection.client.info().era == Era::Legacy;
        if !crosses || !self.is_only_task() {
            return None;
        }
        let knows = extensions::declares(&self.caller.face().capabilities, extensions::TASKS);
        let name = self.target.name.as_deref().unwrap_or_default();
        (!knows).then(|| tasks::missing(&format!("tool `{name}`")))
    }

    /// Follows a call until its response, or until its client has to answer a request first.
    async fn see_through(
        &self,
        mut call: Call,
        mut connection: Arc<Connection>,
        permit: Permit,
        deadline: &mut Instant,
    ) -> Result<Answer, Failure> {
        let mut retried = false;
        let mut rounds = 0;
        // Ids of the URL requests that the client accepted. The client is notified when the call that waited for them
        // has ended.
        let mut opened: Vec<String> = Vec::new();
        loop {
            let by = permit.caller();
            let step = match self.drive(&mut call, &connection, deadline, by).await {
                Err(Failure::Call(CallError::SessionExpired)) if !retried => {
                    retried = true;
                    let fresh = Box::pin(self.fresh(&connection, *deadline)).await;
                    connection = fresh.ok_or_else(|| self.lost())?;
                    self.check_definition()?;
                    call = self
                        .send(&connection, self.frame)
                        .await
                        .map_err(Failure::Call)?;
                    continue;
                }
                step => step?,
            };
            let response = match step {
                Step::Input(requests) => return self.hold(call, connection, permit, requests),
                Step::Response(response) => response,
            };
            self.mark(Steps::answered);
            if response.kind() == Kind::Result && response.object().is_none() {
                let why = format!("`result` must be an object: {}", excerpt(response.body()));
                return Err(Failure::Call(CallError::Refused(why.into())));
            }
            let era = connection.client.info().era;
            if self.caller.era == Era::Modern
                || era == Era::Legacy
                || !bridge::is_input_required(&response)
            {
                for id in &opened {
                    let complete = elicit::complete(id);
                    let outbox = &self.caller.outbox;
                    outbox.push(Weight::Notification, complete.text().clone());
                }
                let urls = self.urls_required(&response, era);
                return Ok(urls.unwrap_or_else(|| self.answer(&response, &connection)));
            }
            self.mark(Steps::asked);
            rounds += 1;
            if rounds > MAX_ROUNDS {
                return Err(RpcError::internal(format!(
                    "server `{}` asked for input {MAX_ROUNDS} times without completing the call",
                    self.target.server.name()
                ))
                .into());
            }
            let retry = Box::pin(self.gather_input(&response, &mut opened)).await?;
            *deadline = Instant::now() + self.timeout();
            call = self
                .send(&connection, &retry)
                .await
                .map_err(Failure::Call)?;
        }
    }

    /// Forwards the messages of a call until it ends or needs its client.
    async fn drive(
        &self,
        call: &mut Call,
        connection: &Arc<Connection>,
        deadline: &mut Instant,
        by: CallerId,
    ) -> Result<Step, Failure> {
        let timeout = self.timeout();
        // Created with the first request, since most calls have none.
        let mut asked: Option<Questions> = None;
        let mut timer = self.target.server.timers.take(*deadline);
        loop {
            tokio::select! {
                biased;
                event = call.next() => match event.map_err(Failure::Call)? {
                    Event::Response(frame) => return Ok(Step::Response(frame)),
                    Event::Notification(frame) => {
                        if frame.method() == method::PROGRESS {
                            // Progress shows that the server is alive (2025-11-25 basic/lifecycle "Timeouts"), but the
                            // total time is limited.
                            *deadline = (Instant::now() + timeout).min(self.started + MAX_CALL_TIME);
                            timer.reset(*deadline);
                        }
                        self.forward(&frame);
                    }
                    Event::Request(request) if self.caller.era == Era::Modern => {
                        self.mark(Steps::asked);
                        if let Some(step) = self.gather_questions(request, call, connection)? {
                            return Ok(step);
                        }
                    }
                    Event::Request(request) => {
                        self.mark(Steps::asked);
                        let asked = asked.get_or_insert_with(|| Questions::new(self.shared.running(), connection));
                        self.ask_legacy(request, connection, asked, by);
                    }
                    Event::Unclear(_) => {}
                },
                Some(answer) = next_answer(&mut asked), if asked.is_some() => {
                    connection.client.send(&answer).await.map_err(Failure::Call)?;
                    *deadline = Instant::now() + timeout;
                    timer.reset(*deadline);
                }
                // No timeout while the server waits for its client's answer.
                () = timer.elapsed(), if asked.as_ref().is_none_or(Questions::is_empty) => {
                    // The same applies if the server waits for an answer in another call of this caller, since a server
                    // request does not name its call.
                    let last = self.started + MAX_CALL_TIME;
                    if !self.target.server.asked_now.includes(by) || Instant::now() >= last {
                        let printed = connection.client.printed_since(self.started);
                        let ms = ms(timeout);
                        return Err(Failure::Timeout { ms, printed });
                    }
                    *deadline = (Instant::now() + timeout).min(last);
                    timer.reset(*deadline);
                }
            }
        }
    }

    fn log_level(&self) -> Option<&'static str> {
        match &self.caller.session {
            Some(session) if self.caller.era == Era::Legacy => session.log_level(),
            _ => {
                let level = self
                    .frame
                    .meta()
                    .and_then(|own| own.string(meta::LOG_LEVEL))?;
                bridge::log_level(&level)
            }
        }
    }

    fn explain(&self, failure: Failure) -> RpcError {
        let server = self.target.server.name();
        let what = self.target.name.as_deref().unwrap_or(self.frame.method());
        let (reason, message) = match failure {
            Failure::Rpc(error) => return error,
            Failure::Refused(why) => return self.refused(&why),
            Failure::NotRecorded(why) => return RpcError::internal(why.to_string()),
            Failure::Timeout { ms, printed } => {
                let printed = printed.map(|text| {
                    format!(
                        "; during the call, it wrote to standard output what answers no request: {text} (servers must write diagnostics to standard error)"
                    )
                });
                let printed = printed.unwrap_or_default();
                (
                    "timeout",
                    format!("server `{server}` did not answer `{what}` within {ms} ms{printed}"),
                )
            }
            Failure::Call(CallError::SignIn(sign_in)) => (
                if sign_in.is_needed {
                    "needs_login"
                } else {
                    "server_unavailable"
                },
                format!("server `{server}` cannot be called: {sign_in}"),
            ),
            Failure::Call(CallError::Closed(why)) => (
                "server_unavailable",
                format!("server `{server}` disconnected during `{what}`: {why}"),
            ),
            Failure::Call(error) => (
                "server_failed",
                format!("server `{server}` failed on `{what}`: {error}"),
            ),
        };
        let message = self.target.server.redact(&message);
        if let Some(times) = self.target.server.repeats.count(&(reason, what)) {
            tracing::warn!(server = %server, method = self.frame.method(), "{message}{times}");
        }
        let data = format!(
            "{{\"reason\":\"{reason}\",\"server\":{}}}",
            quote(server.as_str())
        );
        RpcError::internal(message).with_data(data.into_bytes())
    }
}

/// Returns whether a modern server creates tasks for calls.
fn makes_modern_tasks(connection: &Connection) -> bool {
    let info = connection.client.info();
    info.era == Era::Modern && extensions::declares(&info.capabilities, extensions::TASKS)
}

/// The client information declared to a modern server for a legacy client that asks for a task.
pub(crate) fn face_with_tasks(caller: &Caller) -> bridge::ClientFace {
    let mut face = caller.face();
    let with = extensions::with(&face.capabilities, extensions::TASKS, "{}").into_owned();
    face.capabilities = with.into();
    face
}

/// The next response of the client. `None` if no request is open.
async fn next_answer(asked: &mut Option<Questions>) -> Option<Frame> {
    asked.as_mut()?.next().await
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
