//! A complete MCP client of any era over any transport, for tests that run the same conversation over many transports
//! and versions.
//!
//! A [`Peer`] does what a good client does: it performs the handshake, answers the server's requests, retries a request
//! that returned `input_required`, opens the notification stream, and cancels as its era requires. It checks nothing:
//! messages are passed on unchanged.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};

use crate::{
    raw::RawClient,
    stdio::StdioClient,
    wait::{DEADLINE, within},
};

/// The revision of the modern era.
pub const MODERN: &str = "2026-07-28";
/// Rounds of `input_required` after which the test fails.
const MAX_ROUNDS: usize = 10;
/// Maximum number of messages queued for the test.
const INBOX_CAPACITY: usize = 4096;

/// Answers a server request: maps method and params to a result.
type Responder = Box<dyn Fn(&str, &Value) -> Value + Send + Sync>;

/// A client and its conversation with one server.
pub struct Peer {
    version: String,
    capabilities: Value,
    log_level: Option<String>,
    wire: Wire,
    inbox: mpsc::Receiver<Value>,
    // This sender is kept, so that the inbox never looks closed while a stream may still be opened.
    inlet: mpsc::Sender<Value>,
    tasks: JoinSet<()>,
    open: HashMap<u64, AbortHandle>,
    next_id: u64,
    responder: Responder,
    notifications: VecDeque<Value>,
    responses: VecDeque<Value>,
    asked: Vec<String>,
}

enum Wire {
    Stdio(mpsc::Sender<Value>),
    Http(RawClient),
    Sse(RawClient),
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The final response, a result or an error. An HTTP response that is not JSON-RPC appears as an error with code 0
    /// and the status in its message.
    pub response: Value,
    /// The notifications between the request and its response, in order.
    pub notifications: Vec<Value>,
    /// The methods that the server requested during this time, as requests or as input requests.
    pub asked: Vec<String>,
}

impl Outcome {
    /// Returns the result.
    ///
    /// # Panics
    /// If the response is an error.
    pub fn result(&self) -> &Value {
        self.response
            .get("result")
            .unwrap_or_else(|| panic!("no result: {}", self.response))
    }

    /// Returns the text of the first content block.
    ///
    /// # Panics
    /// If there is no text.
    pub fn text(&self) -> &str {
        self.result()["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text: {}", self.response))
    }
}

impl Peer {
    /// Connects over stdio with protocol version `version`.
    pub async fn stdio(mut client: StdioClient, version: &str, capabilities: Value) -> Self {
        let (to_child, mut outgoing) = mpsc::channel::<Value>(INBOX_CAPACITY);
        let mut this = Self::new(version, capabilities, Wire::Stdio(to_child));
        let inlet = this.inlet.clone();
        this.tasks.spawn(async move {
            loop {
                tokio::select! {
                    message = outgoing.recv() => match message {
                        Some(message) => client.send_json(&message).await,
                        None => return,
                    },
                    line = client.receive(DEADLINE) => {
                        // After a timeout the stream may still be open; only an exited child ends it.
                        let Some(line) = line else {
                            if !client.process().is_running() {
                                return;
                            }
                            continue;
                        };
                        if let Ok(message) = serde_json::from_slice(&line)
                            && inlet.send(message).await.is_err()
                        {
                            return;
                        }
                    }
                }
            }
        });
        this.shake_hands().await;
        this
    }

    /// Connects over streamable HTTP with protocol version `version`.
    pub async fn http(client: RawClient, version: &str, capabilities: Value) -> Self {
        let mut this = Self::new(version, capabilities, Wire::Http(client));
        this.shake_hands().await;
        this
    }

    /// Connects over HTTP+SSE (2024-11-05). `client` has the URL of the stream.
    pub async fn sse(client: RawClient, capabilities: Value) -> Self {
        let mut stream = client.get(&[]).await;
        let endpoint = stream.next_event(DEADLINE).await;
        let endpoint = endpoint.unwrap_or_else(|| panic!("no endpoint event: {}", stream.status));
        assert_eq!(endpoint.event.as_deref(), Some("endpoint"));
        let path = match endpoint.data.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("/", |start| &rest[start..]),
            None => &endpoint.data,
        };
        let mut this = Self::new("2024-11-05", capabilities, Wire::Sse(client.at(path)));
        let inlet = this.inlet.clone();
        this.tasks.spawn(async move {
            stream.forward(&inlet).await;
        });
        this.shake_hands().await;
        this
    }

    fn new(version: &str, capabilities: Value, wire: Wire) -> Self {
        let (inlet, inbox) = mpsc::channel(INBOX_CAPACITY);
        Self {
            version: version.to_owned(),
            capabilities,
            log_level: None,
            wire,
            inbox,
            inlet,
            tasks: JoinSet::new(),
            open: HashMap::new(),
            next_id: 1,
            responder: Box::new(|method, _| answer(method)),
            notifications: VecDeque::new(),
            responses: VecDeque::new(),
            asked: Vec::new(),
        }
    }

    /// Answers the server's requests with `responder`, which maps method and params to a result or to `{"error": …}`.
    /// Without it, every kind of request has a fixed answer ([`answer`]).
    pub fn answering(
        mut self,
        responder: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.responder = Box::new(responder);
        self
    }

    /// Returns whether this client speaks the modern protocol.
    pub fn is_modern(&self) -> bool {
        self.version.as_str() >= MODERN
    }

    /// Sends a request and completes all its rounds up to the final response.
    ///
    /// # Panics
    /// If that takes longer than [`DEADLINE`].
    pub async fn request(&mut self, method: &str, params: Value) -> Outcome {
        self.absorb();
        let before = self.notifications.len();
        self.asked.clear();
        let mut current = params.clone();
        for _ in 0..MAX_ROUNDS {
            let id = self.begin(method, current).await;
            let response = self.finish(id).await;
            let result = &response["result"];
            if result["resultType"] != "input_required" {
                let new = self
                    .notifications
                    .range(before.min(self.notifications.len())..);
                return Outcome {
                    response,
                    notifications: new.cloned().collect(),
                    asked: std::mem::take(&mut self.asked),
                };
            }
            current = params.clone();
            let mut responses = json!({});
            if let Some(requests) = result["inputRequests"].as_object() {
                for (key, request) in requests {
                    let method = request["method"].as_str().unwrap_or_default();
                    self.asked.push(method.to_owned());
                    responses[key] = (self.responder)(method, &request["params"]);
                }
            }
            current["inputResponses"] = responses;
            if let Some(state) = result.get("requestState") {
                current["requestState"] = state.clone();
            }
        }
        panic!("{method} still wants input after {MAX_ROUNDS} rounds");
    }

    /// Calls a tool and completes all rounds of the call.
    pub async fn tool(&mut self, name: &str, arguments: Value) -> Outcome {
        let params = json!({ "name": name, "arguments": arguments });
        self.request("tools/call", params).await
    }

    /// Sends a request and returns its id without waiting.
    pub async fn begin(&mut self, method: &str, mut params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if self.is_modern() {
            self.describe(&mut params);
        }
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(message, Some(id)).await;
        id
    }

    /// Waits for the response to request `id`, and answers the server's requests in the meantime.
    ///
    /// # Panics
    /// If that takes longer than [`DEADLINE`].
    pub async fn finish(&mut self, id: u64) -> Value {
        let response = self.finish_within(id, DEADLINE).await;
        response.unwrap_or_else(|| panic!("no response to request {id} within {DEADLINE:?}"))
    }

    /// Like [`Peer::finish`], but gives up after `limit`.
    pub async fn finish_within(&mut self, id: u64, limit: Duration) -> Option<Value> {
        let end = Instant::now() + limit;
        loop {
            let known = self.responses.iter().position(|r| r["id"] == id);
            if let Some(known) = known {
                self.open.remove(&id);
                return self.responses.remove(known);
            }
            let left = end.saturating_duration_since(Instant::now());
            let message = timeout(left, self.inbox.recv()).await.ok()??;
            self.take(message).await;
        }
    }

    /// Cancels request `id`. Over modern HTTP the response stream is closed; otherwise a notification is sent.
    pub async fn cancel(&mut self, id: u64) {
        if self.is_modern() && matches!(self.wire, Wire::Http(_)) {
            if let Some(stream) = self.open.remove(&id) {
                stream.abort();
            }
            return;
        }
        let params = json!({ "requestId": id, "reason": "the test changed its mind" });
        self.notify("notifications/cancelled", params).await;
    }

    /// Sends a notification.
    pub async fn notify(&mut self, method: &str, mut params: Value) {
        if self.is_modern() {
            self.describe(&mut params);
        }
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.send(message, None).await;
    }

    /// Returns the next unread notification of this method, including those already in an [`Outcome`], or `None` after
    /// `limit`.
    pub async fn notification(&mut self, method: &str, limit: Duration) -> Option<Value> {
        let end = Instant::now() + limit;
        loop {
            let known = self
                .notifications
                .iter()
                .position(|n| n["method"] == method);
            if let Some(known) = known {
                return self.notifications.remove(known);
            }
            let left = end.saturating_duration_since(Instant::now());
            let message = timeout(left, self.inbox.recv()).await.ok()??;
            self.take(message).await;
        }
    }

    /// Subscribes to all list changes and to the resources `uris`. For a modern client it returns the id of the listen
    /// request, which [`Peer::cancel`] ends.
    pub async fn subscribe(&mut self, uris: &[&str]) -> Option<u64> {
        if !self.is_modern() {
            for uri in uris {
                let params = json!({ "uri": uri });
                let outcome = self.request("resources/subscribe", params).await;
                assert!(outcome.response.get("result").is_some(), "{outcome:?}");
            }
            return None;
        }
        let filter = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
            "resourceSubscriptions": uris,
        });
        let params = json!({ "notifications": filter });
        let id = self.begin("subscriptions/listen", params).await;
        let acknowledged = "notifications/subscriptions/acknowledged";
        let notification = self.notification(acknowledged, DEADLINE).await;
        assert!(notification.is_some(), "{:?}", self.responses);
        Some(id)
    }

    /// Requests log messages of `level` and above.
    pub async fn log_level(&mut self, level: &str) {
        if self.is_modern() {
            self.log_level = Some(level.to_owned());
        } else {
            let params = json!({ "level": level });
            let outcome = self.request("logging/setLevel", params).await;
            assert!(outcome.response.get("result").is_some(), "{outcome:?}");
        }
    }

    async fn shake_hands(&mut self) {
        if self.is_modern() {
            let outcome = self.request("server/discover", json!({})).await;
            let versions = &outcome.result()["supportedVersions"];
            let supported = versions
                .as_array()
                .is_some_and(|all| all.iter().any(|version| version == &*self.version));
            assert!(supported, "{versions}");
            return;
        }
        let params = json!({
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": client_info(),
        });
        let outcome = self.request("initialize", params).await;
        let agreed = outcome.result()["protocolVersion"].as_str();
        assert_eq!(agreed, Some(&*self.version), "{}", outcome.response);
        self.notify("notifications/initialized", json!({})).await;
        if let Wire::Http(client) = &mut self.wire {
            if self.version.as_str() >= "2025-06-18" {
                *client = client.clone().with("mcp-protocol-version", &self.version);
            }
            let headers = [("accept", "text/event-stream")];
            let mut stream = client.get(&headers).await;
            // A server may not offer this stream (405).
            if stream.is_event_stream() {
                let inlet = self.inlet.clone();
                self.tasks.spawn(async move {
                    stream.forward(&inlet).await;
                });
            }
        }
    }

    /// Adds the client description to a modern request.
    fn describe(&self, params: &mut Value) {
        let meta = &mut params["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!(self.version);
        meta["io.modelcontextprotocol/clientInfo"] = client_info();
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        if let Some(level) = &self.log_level {
            meta["io.modelcontextprotocol/logLevel"] = json!(level);
        }
    }

    async fn send(&mut self, message: Value, id: Option<u64>) {
        match &self.wire {
            Wire::Stdio(child) => {
                // Sending fails if the child has exited. The response is then missing as well.
                let _ = child.send(message).await;
            }
            Wire::Sse(client) => {
                let reply = client.post(message.to_string()).await;
                assert!(reply.status.is_success(), "{}: {message}", reply.status);
            }
            Wire::Http(client) => {
                let is_initialize = message["method"] == "initialize";
                let client = client.clone();
                let headers = self.headers(&message);
                let inlet = self.inlet.clone();
                if is_initialize || id.is_none() {
                    // The response is awaited, because the session id is needed for all later requests and the order of
                    // notifications matters.
                    let session = post(client, headers, message, id, inlet).await;
                    if let (Some(session), Wire::Http(client)) = (session, &mut self.wire) {
                        *client = client.clone().with("mcp-session-id", &session);
                    }
                    return;
                }
                let task = async move {
                    post(client, headers, message, id, inlet).await;
                };
                let handle = self.tasks.spawn(task);
                self.open.extend(id.map(|id| (id, handle)));
            }
        }
    }

    /// The headers that repeat parts of a modern body.
    fn headers(&self, message: &Value) -> Vec<(&'static str, String)> {
        let Some(method) = message["method"].as_str().filter(|_| self.is_modern()) else {
            return Vec::new();
        };
        let mut headers = vec![
            ("mcp-protocol-version", self.version.clone()),
            ("mcp-method", method.to_owned()),
        ];
        let params = &message["params"];
        let name = match method {
            "tools/call" | "prompts/get" => &params["name"],
            "resources/read" => &params["uri"],
            "tasks/get" | "tasks/update" | "tasks/cancel" => &params["taskId"],
            _ => &Value::Null,
        };
        headers.extend(name.as_str().map(|name| ("mcp-name", name.to_owned())));
        headers
    }

    /// Processes messages that have already arrived, without waiting.
    fn absorb(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            match (message.get("method").is_some(), message.get("id").is_some()) {
                (true, false) => self.notifications.push_back(message),
                (false, _) => self.responses.push_back(message),
                // A request outside any call is put back for the next wait.
                (true, true) => {
                    let _ = self.inlet.try_send(message);
                    return;
                }
            }
        }
    }

    async fn take(&mut self, message: Value) {
        let Some(method) = message["method"].as_str() else {
            self.responses.push_back(message);
            return;
        };
        let Some(id) = message.get("id") else {
            self.notifications.push_back(message);
            return;
        };
        self.asked.push(method.to_owned());
        let result = if method == "ping" {
            json!({})
        } else {
            (self.responder)(method, &message["params"])
        };
        let answer = match result.get("error") {
            Some(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
            None => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        };
        self.send(answer, None).await;
    }
}

/// Posts one message and forwards the response. Returns the session that the server assigned.
async fn post(
    client: RawClient,
    headers: Vec<(&'static str, String)>,
    message: Value,
    id: Option<u64>,
    inlet: mpsc::Sender<Value>,
) -> Option<String> {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let sent = client
        .try_send(http::Method::POST, &headers, message.to_string())
        .await;
    let mut stream = match sent {
        Ok(stream) => stream,
        Err(error) => {
            let failure = json!({ "id": id, "error": { "code": 0, "message": error } });
            let _ = inlet.send(failure).await;
            return None;
        }
    };
    let session = stream.header("mcp-session-id").map(str::to_owned);
    if stream.is_event_stream() {
        stream.forward(&inlet).await;
        return session;
    }
    let reply = within("the rest of an answer", DEADLINE, stream.collect(DEADLINE)).await;
    let mut message: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    if id.is_some() && !message.is_object() {
        let text = format!("HTTP {}: {}", reply.status, reply.text());
        message = json!({ "error": { "code": 0, "message": text } });
    }
    if message.is_object() {
        if message["id"].is_null() {
            message["id"] = json!(id);
        }
        let _ = inlet.send(message).await;
    }
    session
}

fn client_info() -> Value {
    json!({ "name": "testkit", "version": env!("CARGO_PKG_VERSION") })
}

/// Capabilities for everything that [`answer`] can answer.
pub fn all_capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } })
}

/// The fixed answer to a server request.
pub fn answer(method: &str) -> Value {
    match method {
        "sampling/createMessage" => json!({
            "role": "assistant",
            "content": { "type": "text", "text": "An answer" },
            "model": "test-model",
            "stopReason": "endTurn",
        }),
        "elicitation/create" => json!({
            "action": "accept",
            "content": { "name": "Alice", "username": "alice", "email": "alice@example.com" },
        }),
        "roots/list" => json!({ "roots": [{ "uri": "file:///work", "name": "Work" }] }),
        _ => json!({ "error": { "code": -32601, "message": "Method not found" } }),
    }
}
