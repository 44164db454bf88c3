//! The connection to the running gateway. The gateway is found by the lock of the data directory and reached at its
//! endpoint. When the connection is lost, the gateway is located again.
//!
//! Invariants: the token is sent only to the process that holds the lock. A request that may have reached the gateway
//! is never sent twice. When the gateway is back, the session of a legacy client is restored. The client notices only
//! that lists may have changed.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use config::Sources;
use engine::Scope;
use http::{HeaderName, HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use mcp::{
    Frame, Kind, Version,
    client::http::{HeaderList, Passage, PassageError, Reply},
    frame::Param,
    json::{Object, Splice},
    outbox::{Outbox, Weight},
    protocol::{meta, method},
    server::modern,
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use backend::lock::{self, Holder};

/// Time limit for a gateway that holds the lock to publish its address.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a message that waits for an unavailable gateway.
const UNAVAILABLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delays between attempts to find an unavailable gateway.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Timeout for messages that are answered immediately: notifications, responses, the end of the session.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum resource subscriptions that are restored when the gateway is back.
const MAX_SUBSCRIPTIONS: usize = 1024;
/// Nesting depth of a message. The gateway has its own limit.
pub(super) const MAX_DEPTH: usize = 10_000;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const ACCEPT_EVENTS: &str = "text/event-stream";
const ACCEPT_BOTH: &str = "application/json, text/event-stream";
const ACCEPT_ANY: &str = "*/*";
/// The id of this process's own requests. At most one of them is in flight.
pub(super) const OWN_ID: &str = "\"toolwharf-stdio\"";
/// Notifications about changed lists, with the capability that announces each.
const CHANGES: [(&str, &str); 3] = [
    ("tools", method::TOOLS_CHANGED),
    ("prompts", method::PROMPTS_CHANGED),
    ("resources", method::RESOURCES_CHANGED),
];

/// Finds the gateway, and defines the scope to use.
pub(super) struct Finder {
    /// Absolute path of the data directory.
    pub(super) dir: PathBuf,
    /// The file with the key to send.
    pub(super) token: PathBuf,
    pub(super) sources: Sources,
    pub(super) scope: Scope,
    /// Maximum bytes of a client's message.
    pub(super) max_message: usize,
    /// Maximum bytes of a gateway's message.
    pub(super) max_answer: usize,
}

impl Finder {
    /// The running gateway, once it has published its address; `None` if none runs.
    ///
    /// # Errors
    /// If the gateway uses other configuration files, or is not usable.
    pub(super) async fn wait(&self) -> anyhow::Result<Option<Passage>> {
        let start = Instant::now();
        loop {
            let Some(holder) = lock::holder(&self.dir) else {
                return Ok(None);
            };
            if holder.at.is_some() {
                return self.reach(&holder).map(Some);
            }
            if start.elapsed() > STARTUP_TIMEOUT {
                bail!(
                    "the data directory {} belongs to {holder}: try again later, or use --standalone for a \
                     separate gateway",
                    self.dir.display()
                );
            }
            sleep(MIN_PAUSE).await;
        }
    }

    /// The gateway that runs now.
    fn look(&self) -> anyhow::Result<Passage> {
        match lock::holder(&self.dir) {
            Some(holder) => self.reach(&holder),
            None => bail!(
                "no gateway runs on the data directory {}: start one with `toolwharf serve`",
                self.dir.display()
            ),
        }
    }

    fn reach(&self, holder: &Holder) -> anyhow::Result<Passage> {
        let dir = self.dir.display();
        let Some(at) = &holder.at else {
            bail!("the data directory {dir} belongs to {holder}");
        };
        let named = !self.sources.optional;
        if named && !at.works_with(&self.sources) {
            let files = |files: &[PathBuf]| {
                let files: Vec<_> = files
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect();
                files.join(", ")
            };
            bail!(
                "the gateway on {dir} ({holder}) uses other configuration files: {} instead of {}. Pass the same --config, \
                 or use --standalone for a separate gateway",
                files(&at.config),
                files(&lock::absolute(&self.sources)),
            );
        }
        let file = &self.token;
        let token = fs::read_to_string(file).with_context(|| {
            format!(
                "cannot read the token in {}; `toolwharf connect` creates the tokens of clients",
                file.display()
            )
        })?;
        let mut url = url::Url::parse(&at.url).with_context(|| {
            let url = &at.url;
            format!("the gateway published `{url}`, which is not a URL: restart `toolwharf serve`")
        })?;
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push("mcp");
            let Scope {
                project, server, ..
            } = &self.scope;
            match (project, server) {
                (Some(project), _) => drop(path.push(project.as_str())),
                (None, Some(_)) => drop(path.push("-")),
                (None, None) => {}
            }
            if let Some(server) = server {
                path.push(server.as_str());
            }
        }
        let token = (
            "Authorization".to_owned(),
            format!("Bearer {}", token.trim()),
        );
        let tools = self.scope.tools;
        let tools = tools.map(|mode| (gateway::TOOLS.to_string(), mode.to_string()));
        let headers: Vec<_> = [token].into_iter().chain(tools).collect();
        Ok(Passage::new(
            url.as_str(),
            &headers,
            self.max_answer,
            at.pin(),
        )?)
    }
}

/// One connection to the gateway. A new one is made whenever the gateway was lost.
pub(super) struct Life {
    passage: Arc<Passage>,
    /// The session of a legacy client after `initialize`.
    session: Option<Session>,
    over: CancellationToken,
}

struct Session {
    id: HeaderValue,
    /// The protocol version header, for versions that have it (since 2025-06-18).
    version: Option<HeaderValue>,
}

impl Life {
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// The headers of the session's messages.
    fn headers(&self) -> HeaderList {
        let mut headers = HeaderList::new();
        if let Some(session) = &self.session {
            headers.push((modern::SESSION_ID, session.id.clone()));
            let version = session.version.clone();
            headers.extend(version.map(|version| (modern::PROTOCOL_VERSION, version)));
        }
        headers
    }

    pub(super) async fn post(
        &self,
        mut headers: HeaderList,
        text: Bytes,
        is_legacy: bool,
    ) -> Result<Reply, PassageError> {
        if is_legacy {
            headers.extend(self.headers());
        }
        headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        self.passage
            .send(Method::POST, ACCEPT_BOTH, headers, text)
            .await
    }
}

#[derive(Clone)]
enum State {
    Up(Arc<Life>),
    /// The gateway is unavailable, for this reason.
    Away(Arc<str>),
}

/// The state of a legacy client's session, as messages to replay.
#[derive(Default)]
struct ClientState {
    initialize: Option<Frame>,
    initialized: Option<Frame>,
    level: Option<Frame>,
    /// Resource subscriptions, with their URIs.
    watched: Vec<(String, Frame)>,
}

/// The gateway, available or not.
pub(super) struct Link {
    finder: Finder,
    state: watch::Sender<State>,
    client_state: Mutex<ClientState>,
    outbox: Arc<Outbox>,
    /// Set when the client does not read and its queue is full.
    pub(super) stuck: CancellationToken,
}

impl Link {
    pub(super) fn new(finder: Finder, passage: Passage, outbox: Arc<Outbox>) -> Self {
        let life = Life {
            passage: Arc::new(passage),
            session: None,
            over: CancellationToken::new(),
        };
        Self {
            finder,
            state: watch::Sender::new(State::Up(Arc::new(life))),
            client_state: Mutex::default(),
            outbox,
            stuck: CancellationToken::new(),
        }
    }

    /// The connection, if the gateway is available.
    pub(super) fn now(&self) -> Option<Arc<Life>> {
        match &*self.state.borrow() {
            State::Up(life) => Some(life.clone()),
            State::Away(_) => None,
        }
    }

    /// The connection; waits a while for an unavailable gateway.
    ///
    /// # Errors
    /// Why it is unavailable.
    pub(super) async fn up(&self, until: Instant) -> Result<Arc<Life>, Arc<str>> {
        let mut state = self.state.subscribe();
        let up = state.wait_for(|state| matches!(state, State::Up(_)));
        let _ = tokio::time::timeout_at(until, up).await;
        match &*self.state.borrow() {
            State::Up(life) => Ok(life.clone()),
            State::Away(why) => Err(why.clone()),
        }
    }

    /// The deadline of a message that arrives now.
    pub(super) fn patience() -> Instant {
        Instant::now() + UNAVAILABLE_TIMEOUT
    }

    /// Records that a connection is lost.
    pub(super) fn lose(&self, life: &Arc<Life>, why: &str) {
        let lost = self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Up(now) if Arc::ptr_eq(now, life));
            if is_it {
                *state = State::Away(why.into());
            }
            is_it
        });
        if lost {
            life.over.cancel();
            tracing::warn!("lost the connection to the gateway: {why}");
        }
    }

    fn replace(&self, life: Arc<Life>) {
        if let State::Up(before) = self.state.send_replace(State::Up(life)) {
            before.over.cancel();
        }
    }

    /// Finds the gateway again whenever it is lost, in a loop.
    pub(super) async fn keep(&self) {
        let mut state = self.state.subscribe();
        loop {
            // Waiting cannot fail, because this struct owns the sender.
            let _ = state
                .wait_for(|state| matches!(state, State::Away(_)))
                .await;
            let mut pause = MIN_PAUSE;
            loop {
                match self.find_again().await {
                    Ok((life, capabilities)) => {
                        tracing::info!("the gateway is available again");
                        self.replace(life);
                        self.tell_changes(&capabilities);
                        break;
                    }
                    Err(error) => {
                        let why = format!("{error:#}");
                        tracing::debug!("the gateway is unavailable: {why}");
                        self.state.send_replace(State::Away(why.into()));
                    }
                }
                sleep(pause).await;
                pause = (2 * pause).min(MAX_PAUSE);
            }
        }
    }

    /// Opens a new connection. Also returns the gateway's capabilities for a legacy client.
    async fn find_again(&self) -> anyhow::Result<(Arc<Life>, Bytes)> {
        let passage = Arc::new(self.finder.look()?);
        let (initialize, rest) = {
            let client_state = self.client_state.lock();
            let watched = client_state.watched.iter().map(|(_, frame)| frame.clone());
            let rest = client_state
                .initialized
                .iter()
                .chain(&client_state.level)
                .cloned();
            (
                client_state.initialize.clone(),
                rest.chain(watched).collect::<Vec<_>>(),
            )
        };
        let Some(initialize) = initialize else {
            let life = Life {
                passage,
                session: None,
                over: CancellationToken::new(),
            };
            return Ok((Arc::new(life), Bytes::new()));
        };
        let text = initialize.rewritten(OWN_ID.as_bytes(), Splice::new());
        let (life, answer) = open(&passage, text).await?;
        let Some(life) = life else {
            let why = String::from_utf8_lossy(answer.body());
            bail!("the gateway refuses the session: {why}");
        };
        for frame in rest {
            let text = frame.rewritten(OWN_ID.as_bytes(), Splice::new());
            let sent = timeout(MESSAGE_TIMEOUT, async {
                life.post(HeaderList::new(), text, true)
                    .await?
                    .whole()
                    .await
            });
            sent.await.with_context(|| silent(MESSAGE_TIMEOUT))??;
        }
        let capabilities = answer
            .object()
            .and_then(|result| Some(answer.text().slice(result.object("capabilities")?.span())));
        Ok((life, capabilities.unwrap_or_default()))
    }

    /// Notifies a legacy client that lists may have changed while the gateway was unavailable.
    fn tell_changes(&self, capabilities: &Bytes) {
        let Some(capabilities) = Object::of(capabilities) else {
            return;
        };
        for (capability, change) in CHANGES {
            let own = capabilities.object(capability);
            if own.is_some_and(|own| own.raw("listChanged") == Some(b"true")) {
                self.deliver(&Frame::notification(change, None));
            }
        }
    }

    /// Opens the session of a legacy client, and returns the response.
    ///
    /// # Errors
    /// The error for the client.
    pub(super) async fn initialize(&self, frame: &Frame) -> Result<Frame, String> {
        let until = Self::patience();
        loop {
            let life = self.up(until).await.map_err(|why| why.to_string())?;
            match open(&life.passage, frame.text().clone()).await {
                Ok((None, answer)) => return Ok(answer),
                Ok((Some(new), answer)) => {
                    *self.client_state.lock() = ClientState {
                        initialize: Some(kept(frame)),
                        ..ClientState::default()
                    };
                    self.replace(new);
                    goodbye(&life).await;
                    return Ok(answer);
                }
                Err(error) => {
                    let not_sent = matches!(
                        error.downcast_ref::<PassageError>(),
                        Some(PassageError::NotSent(_))
                    );
                    if !not_sent || Instant::now() >= until {
                        return Err(format!("{error:#}"));
                    }
                    self.lose(&life, &format!("{error:#}"));
                }
            }
        }
    }

    /// Forwards a notification or a response of the client. The message is dropped if the gateway is unavailable or has
    /// no session, since no request is in flight then.
    pub(super) async fn tell(&self, headers: HeaderList, frame: &Frame, is_legacy: bool) {
        if is_legacy && frame.method() == method::INITIALIZED {
            self.client_state.lock().initialized = Some(kept(frame));
        }
        let Some(life) = self.now() else { return };
        if is_legacy && !life.has_session() {
            return;
        }
        let sent = timeout(
            MESSAGE_TIMEOUT,
            life.post(headers, frame.text().clone(), is_legacy),
        );
        match sent.await {
            Ok(Ok(reply)) if is_legacy && reply.status == StatusCode::NOT_FOUND => {
                self.lose(&life, "the gateway no longer knows this session");
            }
            Ok(Ok(reply)) => {
                // A connection can be reused once its response is read to the end.
                let _ = timeout(MESSAGE_TIMEOUT, reply.whole()).await;
            }
            Ok(Err(error @ PassageError::NotSent(_))) => self.lose(&life, &error.to_string()),
            Ok(Err(error)) => {
                tracing::debug!("a message may not have reached the gateway: {error}")
            }
            Err(_) => tracing::warn!("{}", silent(MESSAGE_TIMEOUT)),
        }
    }

    /// Records the changes that a legacy client's request makes to its session.
    pub(super) fn remember(&self, frame: &Frame) {
        let uri = || frame.param_string(Param::Uri).map(String::from);
        match frame.method() {
            method::SET_LEVEL => self.client_state.lock().level = Some(kept(frame)),
            method::RESOURCES_SUBSCRIBE => {
                if let Some(uri) = uri() {
                    let mut client_state = self.client_state.lock();
                    client_state.watched.retain(|(known, _)| *known != uri);
                    if client_state.watched.len() < MAX_SUBSCRIPTIONS {
                        client_state.watched.push((uri, kept(frame)));
                    }
                }
            }
            method::RESOURCES_UNSUBSCRIBE => {
                if let Some(uri) = uri() {
                    self.client_state
                        .lock()
                        .watched
                        .retain(|(known, _)| *known != uri);
                }
            }
            _ => {}
        }
    }

    /// Sends a message to the client. If the client does not read, notifications are dropped first; beyond that the
    /// outbox closes, and the session ends.
    pub(super) fn deliver(&self, frame: &Frame) {
        let weight = match frame.kind() {
            Kind::Notification if CHANGES.iter().any(|(_, own)| *own == frame.method()) => {
                Weight::Signal
            }
            Kind::Notification => Weight::Notification,
            Kind::Request | Kind::Result | Kind::Error => Weight::Must,
        };
        if !self.outbox.push(weight, frame.text().clone()) && self.outbox.is_closed() {
            self.stuck.cancel();
        }
    }

    /// Forwards the messages on the session's stream, in a loop.
    pub(super) async fn listen(&self) {
        let mut state = self.state.subscribe();
        loop {
            let found = state.wait_for(|state| matches!(state, State::Up(life) if life.has_session() && !life.over.is_cancelled()));
            let life = match found.await.as_deref() {
                Ok(State::Up(life)) => life.clone(),
                _ => return,
            };
            tokio::select! {
                () = self.listen_to(&life) => {}
                () = life.over.cancelled() => {}
            }
        }
    }

    /// Returns when the connection is lost.
    async fn listen_to(&self, life: &Arc<Life>) {
        let mut last: Option<HeaderValue> = None;
        loop {
            let mut headers = life.headers();
            headers.extend(last.clone().map(|last| (LAST_EVENT_ID, last)));
            let opened = life
                .passage
                .send(Method::GET, ACCEPT_EVENTS, headers, Bytes::new());
            match opened.await {
                Ok(reply) if reply.is_stream() => self.read(reply, &mut last).await,
                Ok(reply) if reply.status == StatusCode::NOT_FOUND => {
                    return self.lose(life, "the gateway no longer knows this session");
                }
                // The position in the stream is lost, together with the messages since.
                Ok(_) => last = None,
                Err(error @ PassageError::NotSent(_)) => {
                    return self.lose(life, &error.to_string());
                }
                // The next attempt shows if the gateway is gone.
                Err(_) => {}
            }
            sleep(MIN_PAUSE).await;
        }
    }

    async fn read(&self, mut reply: Reply, last: &mut Option<HeaderValue>) {
        loop {
            match reply.event().await {
                Ok(Some(event)) => {
                    if let Some(id) = &event.id {
                        *last = HeaderValue::from_str(id).ok();
                    }
                    if let Some(frame) = message(&event) {
                        self.deliver(&frame);
                    }
                }
                Ok(None) | Err(PassageError::NotSent(_) | PassageError::Broken(_)) => return,
                Err(error @ PassageError::TooLong(_)) => {
                    tracing::warn!("skipped a message from the gateway: {error}");
                    *last = None;
                    return;
                }
            }
        }
    }

    /// Ends the session, and the requests in flight with it.
    pub(super) async fn end(&self) {
        if let Some(life) = self.now() {
            goodbye(&life).await;
        }
    }

    /// Checks that the gateway has the requested project or server.
    ///
    /// # Errors
    /// The gateway's error. If the gateway is unavailable, the check is skipped.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        let Some(life) = self.now() else {
            return Ok(());
        };
        let version = Version::LATEST;
        let info = concat!(
            "{\"name\":\"toolwharf stdio\",\"version\":\"",
            env!("CARGO_PKG_VERSION"),
            "\"}"
        );
        let discover = format!("{{\"_meta\":{{{}}}}}", meta::members(info, "{}"));
        let frame = Frame::request(OWN_ID, method::DISCOVER, Some(discover.as_bytes()));
        let headers = vec![
            (
                modern::PROTOCOL_VERSION,
                HeaderValue::from_static(version.as_str()),
            ),
            (modern::METHOD, HeaderValue::from_static(method::DISCOVER)),
        ];
        let answer = timeout(HANDSHAKE_TIMEOUT, async {
            let reply = life.post(headers, frame.text().clone(), false).await?;
            let status = reply.status;
            Ok::<_, PassageError>((status, reply.whole().await?))
        });
        match answer.await.with_context(|| silent(HANDSHAKE_TIMEOUT))? {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, text)) => bail!("{}", said(status, &text)),
            Err(error) => {
                self.lose(&life, &error.to_string());
                Ok(())
            }
        }
    }
}

/// Sends `initialize` for a legacy client. Returns the connection with its session, unless the gateway refused, and the
/// response.
async fn open(passage: &Arc<Passage>, text: Bytes) -> anyhow::Result<(Option<Arc<Life>>, Frame)> {
    let mut life = Life {
        passage: passage.clone(),
        session: None,
        over: CancellationToken::new(),
    };
    let (status, id, text) = timeout(HANDSHAKE_TIMEOUT, async {
        let reply = life.post(HeaderList::new(), text, true).await?;
        let id = reply.header(&modern::SESSION_ID).cloned();
        Ok::<_, PassageError>((reply.status, id, reply.whole().await?))
    })
    .await
    .with_context(|| silent(HANDSHAKE_TIMEOUT))??;
    let answer = Frame::parse(text.clone(), MAX_DEPTH);
    let Ok(answer) = answer else {
        bail!("{}", said(status, &text));
    };
    if answer.kind() != Kind::Result {
        return Ok((None, answer));
    }
    let version = answer
        .object()
        .and_then(|result| Version::parse(&result.string("protocolVersion")?))
        .filter(|version| *version >= Version::V2025_06_18);
    life.session = id.map(|mut id| {
        id.set_sensitive(true);
        Session {
            id,
            version: version.map(|version| HeaderValue::from_static(version.as_str())),
        }
    });
    Ok((Some(Arc::new(life)), answer))
}

fn silent(limit: Duration) -> String {
    let limit = limit.as_secs();
    format!("the gateway did not respond within {limit} s; `toolwharf doctor` checks it")
}

async fn goodbye(life: &Life) {
    if life.has_session() {
        let deleted = life
            .passage
            .send(Method::DELETE, ACCEPT_ANY, life.headers(), Bytes::new());
        let _ = timeout(Duration::from_secs(2), deleted).await;
    }
}

pub(super) fn message(event: &mcp::sse::Event) -> Option<Frame> {
    if event.data.is_empty() || !matches!(&*event.event, "" | "message") {
        return None;
    }
    let frame = Frame::parse(event.data.clone(), MAX_DEPTH);
    frame
        .inspect_err(|invalid| tracing::warn!("skipped a message from the gateway: {invalid}"))
        .ok()
}

/// The error text of a response that is not JSON-RPC, or that is an error without a request id.
pub(super) fn said(status: StatusCode, text: &Bytes) -> String {
    let error = Frame::parse(text.clone(), MAX_DEPTH).ok();
    let error = error.filter(|frame| frame.kind() == Kind::Error);
    match error {
        Some(error) => mcp::RpcError::from_json(error.body()).message,
        None => format!("the gateway answered HTTP {}", status.as_u16()),
    }
}

/// A copy that does not keep the original's buffer alive.
fn kept(frame: &Frame) -> Frame {
    let text = Bytes::copy_from_slice(frame.text());
    Frame::parse(text, MAX_DEPTH).unwrap_or_else(|_| frame.clone())
}
