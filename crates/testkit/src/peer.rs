//! A complete MCP client of any era over any transport, for tests that drive the same
//! conversation through many forms.
//!
//! A [`Peer`] does what a good client does: it shakes hands, answers the server's requests, repeats
//! a request that came back as `input_required`, opens the stream that notifications come on, and
//! cancels in the way of its era. What it does not do is check anything: messages are handed over
//! as they came.

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
/// Rounds of `input_required` before a test has gone wrong.
const ROUNDS: usize = 10;
/// Messages that the server may be ahead of the test.
const INBOX: usize = 4096;

/// Answers a request of the server: from method and params to a result.
type Responder = Box<dyn Fn(&str, &Value) -> Value + Send + Sync>;

/// A client, and its conversation with one server.
pub struct Peer {
    version: String,
    capabilities: Value,
    log_level: Option<String>,
    wire: Wire,
    inbox: mpsc::Receiver<Value>,
    // Kept so that the inbox never looks closed while a stream may still be opened.
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

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The final response, a result or an error. A response of HTTP that is no JSON-RPC appears as
    /// an error with code 0 and the status in its message.
    pub response: Value,
    /// The notifications that came before it since the request, in their order.
    pub notifications: Vec<Value>,
    /// The methods that the server asked meanwhile, as requests or as input requests.
    pub asked: Vec<String>,
}

impl Outcome {
    /// The result.
    ///
    /// # Panics
    /// If it is an error.
    pub fn result(&self) -> &Value {
        self.response
            .get("result")
            .unwrap_or_else(|| panic!("no result: {}", self.response))
    }

    /// The text of the result's first content.
    ///
    /// # Panics
    /// If there is none.
    pub fn text(&self) -> &str {
        self.result()["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text: {}", self.response))
    }
}

impl Peer {
    /// Speaks revision `version` over stdio.
    ///
    /// # Panics
    /// If the handshake fails.
    pub async fn stdio(mut client: StdioClient, version: &str, capabilities: Value) -> Self {
        let (to_child, mut outgoing) = mpsc::channel::<Value>(INBOX);
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
                        // No line within the deadline is no news, except at the end of the stream.
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

    /// Speaks revision `version` over streamable HTTP.
    ///
    /// # Panics
    /// If the handshake fails.
    pub async fn http(client: RawClient, version: &str, capabilities: Value) -> Self {
        let mut this = Self::new(version, capabilities, Wire::Http(client));
        this.shake_hands().await;
        this
    }

    /// Speaks 2024-11-05 over HTTP+SSE; `client` is for the URL of the stream.
    ///
    /// # Panics
    /// If the handshake fails.
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
            while let Some(event) = stream.event().await {
                if let Some(message) = event.json()
                    && inlet.send(message).await.is_err()
                {
                    return;
                }
            }
        });
        this.shake_hands().await;
        this
    }

    fn new(version: &str, capabilities: Value, wire: Wire) -> Self {
        let (inlet, inbox) = mpsc::channel(INBOX);
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

    /// Answers the server's requests with what `responder` makes of method and params: a result,
    /// or `{"error": …}`. Without this, every kind of request has a fixed answer ([`answer`]).
    pub fn answering(
        mut self,
        responder: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.responder = Box::new(responder);
        self
    }

    /// Whether this client is of the modern era.
    pub fn is_modern(&self) -> bool {
        self.version.as_str() >= MODERN
    }

    /// Sends a request and sees it through to its final response.
    ///
    /// # Panics
    /// If that takes longer than [`DEADLINE`].
    pub async fn request(&mut self, method: &str, params: Value) -> Outcome {
        self.absorb();
        let before = self.notifications.len();
        self.asked.clear();
        let mut current = params.clone();
        for _ in 0..ROUNDS {
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
        panic!("{method} still wants input after {ROUNDS} rounds");
    }

    /// Calls a tool and sees it through.
    pub async fn tool(&mut self, name: &str, arguments: Value) -> Outcome {
        let params = json!({ "name": name, "arguments": arguments });
        self.request("tools/call", params).await
    }

    /// Sends a request and returns its id without waiting for anything.
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

    /// Waits for the response to request `id`, answering what the server asks meanwhile.
    ///
    /// # Panics
    /// If that takes longer than [`DEADLINE`].
    pub async fn finish(&mut self, id: u64) -> Value {
        let response = self.finish_within(id, DEADLINE).await;
        response.unwrap_or_else(|| panic!("no response to request {id} within {DEADLINE:?}"))
    }

    /// Like [`Peer::finish`], giving up after `limit`.
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

    /// Cancels request `id` in the way of the era: a closed response stream over modern HTTP, a
    /// notification elsewhere.
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

    /// The next notification of this method that has not been handed out yet, also one that is
    /// already in an [`Outcome`]; `None` if none comes within `limit`.
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

    /// Subscribes to all list changes and to the resources `uris`; returns the id of the listening
    /// request of a modern client, which [`Peer::cancel`] ends.
    ///
    /// # Panics
    /// If the server refuses.
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

    /// Asks for log messages from `level` on.
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
            // A server may have no such stream (405).
            if stream.is_event_stream() {
                let inlet = self.inlet.clone();
                self.tasks.spawn(async move {
                    while let Some(event) = stream.event().await {
                        if let Some(message) = event.json()
                            && inlet.send(message).await.is_err()
                        {
                            return;
                        }
                    }
                });
            }
        }
    }

    /// Adds what a modern request says about its client.
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
                // Fails when the child has ended, which the missing response will tell.
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
                    // The session id is needed for whatever comes next, and the order of
                    // notifications matters, so these are waited for.
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

    /// Takes what has already come, without waiting.
    fn absorb(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            match (message.get("method").is_some(), message.get("id").is_some()) {
                (true, false) => self.notifications.push_back(message),
                (false, _) => self.responses.push_back(message),
                // A request outside of any call: put back for whoever waits next.
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

/// Posts one message and forwards what comes back; gives the session that the server assigned.
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
        while let Some(event) = stream.event().await {
            if let Some(message) = event.json()
                && inlet.send(message).await.is_err()
            {
                break;
            }
        }
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

/// Capabilities that allow everything that [`answer`] answers.
pub fn all_capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } })
}

/// The fixed answer to a request of the server.
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
