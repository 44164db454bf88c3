//! Clients of both eras. They use the gateway as its surfaces do: [`Gateway::request`], a [`Session`] and an
//! [`Outbox`].

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use code::Clock;
use engine::{Caller, Gateway, Scope, hub::Registration};
use futures_util::FutureExt;
use mcp::{
    Era, Frame,
    outbox::{Bounds, Outbox},
    server::{ClientInfo, Session},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const BOUNDS: Bounds = Bounds {
    messages: 4096,
    bytes: 16 << 20,
};
/// Rounds of `input_required` after which a test fails.
const MAX_ROUNDS: usize = 10;

/// A client, and its conversation with the gateway.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    scope: Mutex<Scope>,
    /// The session of a legacy client; `None` for a modern one.
    session: Option<Arc<Session>>,
    capabilities: Value,
    /// The clock of a run that makes all calls.
    clock: Clock,
    next_id: AtomicU64,
    inbox: Mutex<Inbox>,
    /// True if the client answers requests immediately.
    answers: AtomicBool,
    tasks: TaskTracker,
    registration: Mutex<Option<Registration>>,
    _reading: Option<AbortOnDropHandle<()>>,
}

/// Messages that arrived outside of responses.
#[derive(Default)]
struct Inbox {
    notifications: Vec<Value>,
    questions: VecDeque<Value>,
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The response. `null` if the client cancelled the request.
    pub(crate) frame: Value,
    /// The response, byte for byte.
    pub(crate) raw: String,
    /// Notifications that a modern client received during the request.
    pub(crate) notifications: Vec<Value>,
}

/// A request in flight. Dropping it simulates a client that disconnects.
pub(crate) struct Pending {
    pub(crate) id: u64,
    answering: AbortOnDropHandle<Reply>,
}

impl Pending {
    pub(crate) async fn reply(self) -> Reply {
        self.answering.await.expect("a request does not panic")
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.answering.is_finished()
    }
}

impl Reply {
    pub(crate) fn result(&self) -> &Value {
        let result = self.frame.get("result");
        result.unwrap_or_else(|| panic!("no result: {}", self.frame))
    }

    pub(crate) fn error(&self) -> &Value {
        let error = self.frame.get("error");
        error.unwrap_or_else(|| panic!("no error: {}", self.frame))
    }

    /// The text of the first content block.
    pub(crate) fn text(&self) -> &str {
        let text = self.result()["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text: {}", self.frame))
    }

    /// The text of a tool's result, parsed as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap()
    }

    pub(crate) fn message(&self) -> &str {
        self.error()["message"].as_str().unwrap()
    }

    /// Checks that the error's message contains this.
    #[track_caller]
    pub(crate) fn says(&self, part: &str) {
        assert!(self.message().contains(part), "{}", self.raw);
    }

    /// `error.data.reason`: the kind of failure.
    pub(crate) fn reason(&self) -> &str {
        let reason = self.error()["data"]["reason"].as_str();
        reason.unwrap_or_else(|| panic!("no reason: {}", self.frame))
    }
}

fn info() -> Value {
    json!({ "name": "client", "version": "1" })
}

pub(crate) fn all_capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } })
}

/// The answer of a client to a request with this method.
pub(crate) fn answer(method: &str) -> Value {
    match method {
        "sampling/createMessage" => json!({
            "role": "assistant", "model": "m", "content": { "type": "text", "text": "Well." },
        }),
        "elicitation/create" => json!({ "action": "accept", "content": { "name": "Ada" } }),
        _ => json!({ "roots": [{ "uri": "file:///work" }] }),
    }
}

/// The scope of a request with these headers.
pub(crate) fn with_headers(
    gateway: &Gateway,
    scope: Scope,
    headers: &[(&'static str, &str)],
) -> Scope {
    let mut map = http::HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.parse().expect("a value"));
    }
    let scope = gateway.with_values(scope, &map);
    scope.expect("the values are valid")
}

fn frame(value: &Value) -> Frame {
    Frame::parse(Bytes::from(value.to_string()), 64).expect("a frame")
}

impl Client {
    /// Creates an initialised client of the era.
    pub(crate) async fn new(
        era: Era,
        gateway: &Gateway,
        scope: Scope,
        capabilities: Value,
        tasks: &TaskTracker,
    ) -> Self {
        let session = (era == Era::Legacy).then(|| Session::new("tester".into(), BOUNDS));
        let client = Arc::new_cyclic(|client| {
            let client = client.clone();
            let reading = session.clone().map(|session| {
                AbortOnDropHandle::new(tasks.spawn(async move {
                    while let Some(text) = session.outbox().next().await {
                        let Some(client) = client.upgrade().map(Client) else {
                            return;
                        };
                        client.take(serde_json::from_slice(&text).unwrap());
                    }
                }))
            });
            Inner {
                gateway: gateway.clone(),
                scope: Mutex::new(scope.clone()),
                session,
                capabilities,
                clock: Clock::default(),
                next_id: AtomicU64::new(1),
                inbox: Mutex::default(),
                answers: AtomicBool::new(true),
                tasks: tasks.clone(),
                registration: Mutex::default(),
                _reading: reading,
            }
        });
        let client = Self(client);
        let this = &client.0;
        if let Some(session) = &this.session {
            *this.registration.lock().unwrap() = Some(gateway.attach(scope.clone(), session));
            let params = json!({
                "protocolVersion": "2025-11-25",
                "capabilities": this.capabilities,
                "clientInfo": info(),
            });
            let hello =
                json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
            let face = ClientInfo::from_initialize(&frame(&hello)).expect("a face");
            let result = gateway.initialize(&scope, &face).await;
            result.expect("there is such a scope");
            session.introduce(face);
        }
        client
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.0.session.is_none()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.0.session.as_ref().expect("it has a session")
    }

    /// Sends these headers with all further requests.
    pub(crate) fn sends(&self, headers: &[(&'static str, &str)]) -> &Self {
        let mut scope = self.0.scope.lock().unwrap();
        *scope = with_headers(&self.0.gateway, scope.clone(), headers);
        drop(scope);
        self
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.0.inbox.lock().unwrap()
    }

    /// Handles a message outside of a response.
    fn take(&self, message: Value) {
        if message.get("id").is_none() {
            self.inbox().notifications.push(message);
            return;
        }
        if self.0.answers.load(Ordering::Relaxed) {
            self.answer(&message);
        } else {
            self.inbox().questions.push_back(message);
        }
    }

    /// Makes requests wait for [`Client::answer`].
    pub(crate) fn thinks(&self) -> &Self {
        self.0.answers.store(false, Ordering::Relaxed);
        self
    }

    /// Returns the next request that waits for an answer.
    pub(crate) fn question(&self) -> Option<Value> {
        self.inbox().questions.pop_front()
    }

    pub(crate) fn answer(&self, question: &Value) {
        let result = answer(question["method"].as_str().unwrap());
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        let session = self.0.session.as_ref().expect("it is asked over a session");
        session.answered(frame(&answer));
    }

    /// Takes the notifications with this method that have arrived so far.
    pub(crate) fn notifications(&self, method: &str) -> Vec<Value> {
        let mut inbox = self.inbox();
        let (of, others) = std::mem::take(&mut inbox.notifications)
            .into_iter()
            .partition(|message| message["method"] == method);
        inbox.notifications = others;
        of
    }

    fn caller(&self, outbox: Arc<Outbox>) -> Caller {
        let this = &self.0;
        Caller {
            era: if self.is_modern() {
                Era::Modern
            } else {
                Era::Legacy
            },
            scope: this.scope.lock().unwrap().clone(),
            session: this.session.clone(),
            outbox,
            principal: "tester".into(),
            may_use: true,
            modern_capabilities: self
                .is_modern()
                .then(|| Bytes::from(this.capabilities.to_string())),
            headers: None,
            timeout: None,
            run: None,
            replay_of: None,
            wants_whole: false,
            clock: Some(this.clock.clone()),
        }
    }

    /// Sends a request.
    pub(crate) fn begin(&self, method: &str, params: Value) -> Pending {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        self.begin_as(id, method, params)
    }

    /// Sends a request with an id chosen by the test.
    pub(crate) fn begin_as(&self, id: u64, method: &str, mut params: Value) -> Pending {
        if self.is_modern() {
            let own = &mut params["_meta"];
            own["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
            own["io.modelcontextprotocol/clientInfo"] = info();
            own["io.modelcontextprotocol/clientCapabilities"] = self.0.capabilities.clone();
        }
        self.begin_frame(
            id,
            Frame::request(&id.to_string(), method, Some(params.to_string().as_bytes())),
        )
    }

    /// Sends a request with `params` as JSON text.
    pub(crate) fn begin_raw(&self, method: &str, params: &str) -> Pending {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        self.begin_frame(
            id,
            Frame::request(&id.to_string(), method, Some(params.as_bytes())),
        )
    }

    fn begin_frame(&self, id: u64, request: Frame) -> Pending {
        let outbox = match &self.0.session {
            Some(session) => session.outbox().clone(),
            None => Outbox::new(BOUNDS),
        };
        let (client, caller) = (self.clone(), self.caller(outbox.clone()));
        let mut answering = Box::pin(async move {
            let answer = client.0.gateway.request(&caller, &request).await;
            let mut notifications = Vec::new();
            if client.is_modern() {
                while let Some((_, text)) = outbox.take() {
                    notifications.push(serde_json::from_slice(&text).unwrap());
                }
            }
            let raw = match answer.silent {
                true => "null".to_owned(),
                false => String::from_utf8(answer.into_text().to_vec()).unwrap(),
            };
            // The values of these tests cannot hold half an emoji.
            let whole = mcp::json::without_lone_surrogates(raw.as_bytes());
            Reply {
                frame: serde_json::from_slice(&whole).unwrap(),
                raw,
                notifications,
            }
        });
        // Requests enter the queue in the order in which they were sent, as over a pipe.
        let ready = (&mut answering).now_or_never();
        let answering: JoinHandle<Reply> = self.0.tasks.spawn(async move {
            match ready {
                Some(reply) => reply,
                None => answering.await,
            }
        });
        Pending {
            id,
            answering: AbortOnDropHandle::new(answering),
        }
    }

    /// Sends a request and completes it: a modern client answers requests for input.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Reply {
        let mut asked = params.clone();
        for _ in 0..MAX_ROUNDS {
            let reply = self.begin(method, asked).reply().await;
            let result = &reply.frame["result"];
            let Some(wanted) = result["inputRequests"].as_object() else {
                return reply;
            };
            let answers = wanted
                .iter()
                .map(|(key, question)| (key.clone(), answer(question["method"].as_str().unwrap())));
            asked = params.clone();
            asked["inputResponses"] = answers.collect();
            asked["requestState"] = result["requestState"].clone();
        }
        panic!("{method} still wants input after {MAX_ROUNDS} rounds");
    }

    pub(crate) fn begin_tool(&self, name: &str, arguments: Value) -> Pending {
        self.begin(
            "tools/call",
            json!({ "name": name, "arguments": arguments }),
        )
    }

    /// Calls a tool and completes the call.
    pub(crate) async fn tool(&self, name: &str, arguments: Value) -> Reply {
        let params = json!({ "name": name, "arguments": arguments });
        self.request("tools/call", params).await
    }

    /// Calls `echo`, which must fail at once because its server is unavailable.
    pub(crate) async fn echo_unavailable(&self) -> Reply {
        let began = Instant::now();
        let reply = self.tool("echo", json!({})).await;
        assert!(began.elapsed().is_zero());
        assert_eq!(reply.reason(), "server_unavailable");
        reply
    }

    /// Returns the items of a list.
    pub(crate) async fn list(&self, list: &str) -> Vec<Value> {
        let reply = self.request(&format!("{list}/list"), json!({})).await;
        reply.result()[list].as_array().unwrap().clone()
    }

    /// Returns the names of the offered tools.
    pub(crate) async fn tools(&self) -> Vec<String> {
        let tools = self.list("tools").await;
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    /// Cancels a request as the client's era defines it.
    pub(crate) fn cancel(&self, pending: Pending) -> Option<Pending> {
        if self.is_modern() {
            drop(pending);
            return None;
        }
        let params = json!({ "requestId": pending.id });
        self.notify("notifications/cancelled", &params);
        Some(pending)
    }

    pub(crate) fn notify(&self, method: &str, params: &Value) {
        let session = self.0.session.as_ref().expect("it has a session");
        let caller = self.caller(session.outbox().clone());
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.0.gateway.notification(&caller, &frame(&message));
    }

    /// Subscribes to changes of all lists and of these resources. A legacy client only has to subscribe to the
    /// resources.
    pub(crate) async fn listen(&self, uris: &[&str]) -> Option<Listening> {
        if !self.is_modern() {
            for uri in uris {
                let reply = self
                    .request("resources/subscribe", json!({ "uri": uri }))
                    .await;
                reply.result();
            }
            return None;
        }
        let filter = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
            "resourceSubscriptions": uris,
        });
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let own = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": info(),
            "io.modelcontextprotocol/clientCapabilities": self.0.capabilities,
        });
        let params = json!({ "_meta": own, "notifications": filter });
        let method = "subscriptions/listen";
        let request =
            frame(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let outbox = Outbox::new(BOUNDS);
        let (client, caller) = (self.clone(), self.caller(outbox.clone()));
        let listening = self.0.tasks.spawn(async move {
            client.0.gateway.request(&caller, &request).await;
        });
        let first = outbox.next().await.unwrap();
        let first: Value = serde_json::from_slice(&first).unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
        let client = self.clone();
        let reading = self.0.tasks.spawn(async move {
            while let Some(text) = outbox.next().await {
                client.take(serde_json::from_slice(&text).unwrap());
            }
        });
        Some(Listening {
            _listening: AbortOnDropHandle::new(listening),
            _reading: AbortOnDropHandle::new(reading),
        })
    }

    /// Ends the session.
    pub(crate) async fn leave(&self) {
        let registration = self.0.registration.lock().unwrap().take();
        if let Some(registration) = registration {
            self.0.gateway.detach(registration).await;
        }
    }
}

/// A stream of changes. Dropping it closes the stream.
pub(crate) struct Listening {
    _listening: AbortOnDropHandle<()>,
    _reading: AbortOnDropHandle<()>,
}
