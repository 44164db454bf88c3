//! The server's state, and all methods except tool calls.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::{
    Era, Options, tools,
    wire::{Frame, Out, Params, quote},
};

pub(crate) struct Server {
    pub(crate) options: Options,
    /// The number of listed tools `tool_N`, and the text that their descriptions begin with.
    pub(crate) listed: Arc<Mutex<(usize, String)>>,
    /// Requests to the client that wait for a response.
    pub(crate) waiting: Mutex<HashMap<String, mpsc::Sender<String>>>,
    pub(crate) next_request: AtomicU64,
    /// Requests to the client that no call waits for. Each has the receiver of its response, and the response, if it
    /// was read already.
    pub(crate) asked_beside: Mutex<Vec<(mpsc::Receiver<String>, Value)>>,
    /// Open `subscriptions/listen` requests and where their notifications go. Per process, because a modern HTTP
    /// request has no session.
    pub(crate) listening: Mutex<Vec<(String, Out)>>,
    /// Calls of `hold`: current, maximum and total.
    pub(crate) held: Gauge,
    /// Calls of `slow`: current, maximum and total.
    pub(crate) slow: Gauge,
    /// All calls: current, maximum and total.
    pub(crate) calls: Gauge,
    pub(crate) cancelled: AtomicU64,
    /// Set once `sign_in` has sent its URL to the client.
    pub(crate) signed_in: Mutex<bool>,
    /// The content of the `--answers` file.
    answers: Value,
    /// The capabilities that the client last declared.
    pub(crate) client: Mutex<String>,
}

/// State of one session.
#[derive(Default)]
pub(crate) struct Session {
    /// The ids of cancelled requests, as they were written.
    pub(crate) cancelled: Mutex<BTreeSet<String>>,
    pub(crate) cancel: Condvar,
    /// Over HTTP: the headers of the request that is being handled.
    pub(crate) headers: Mutex<Value>,
    /// The notification stream of HTTP+SSE and GET.
    pub(crate) stream: Mutex<Option<Out>>,
}

impl Session {
    /// Sends a message to the client on the session's stream, or on `out` if the session has no stream.
    pub(crate) fn send(&self, message: &Value, out: &Out) {
        let stream = self.stream.lock().clone();
        stream.as_ref().unwrap_or(out).line(message.to_string());
    }
}

/// A counter with its maximum and total.
#[derive(Default)]
pub(crate) struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
    total: AtomicUsize,
}

/// Decrements the gauge when dropped.
pub(crate) struct Held<'a>(&'a Gauge);

impl Gauge {
    pub(crate) fn enter(&self) -> Held<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.total.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }

    pub(crate) fn report(&self) -> Value {
        json!({
            "now": self.now.load(Ordering::SeqCst),
            "max": self.most.load(Ordering::SeqCst),
            "total": self.total.load(Ordering::SeqCst),
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    pub(crate) fn new(options: Options) -> Self {
        let answers = options.answers.as_ref().map(|file| {
            let text = std::fs::read_to_string(file).expect("the file of --answers is there");
            serde_json::from_str(&text).expect("the file of --answers holds JSON")
        });
        Self {
            answers: answers.unwrap_or_default(),
            client: Mutex::new("{}".to_owned()),
            listed: Arc::new(Mutex::new((options.tools, options.description.clone()))),
            options,
            waiting: Mutex::default(),
            next_request: AtomicU64::new(1),
            asked_beside: Mutex::default(),
            listening: Mutex::default(),
            held: Gauge::default(),
            slow: Gauge::default(),
            calls: Gauge::default(),
            cancelled: AtomicU64::new(0),
            signed_in: Mutex::default(),
        }
    }

    /// Handles one frame. Anything that may block runs in a separate thread.
    pub(crate) fn receive(self: &Arc<Self>, line: &[u8], out: &Out, session: &Arc<Session>) {
        let Ok(text) = std::str::from_utf8(line) else {
            return;
        };
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let Ok(frame) = serde_json::from_str::<Frame<'_>>(text) else {
            out.error("null", -32700, "Parse error");
            return;
        };
        let id = frame.id.map(|id| id.get().to_owned());
        let Some(method) = frame.method else {
            self.answered(id.as_deref(), text);
            return;
        };
        let params = frame.params.map_or("{}", |params| params.get());
        let parsed: Params<'_> = serde_json::from_str(params).unwrap_or_default();
        let Some(id) = id else {
            if method == "notifications/cancelled"
                && let Some(request) = parsed.request_id
            {
                session.cancelled.lock().insert(request.get().to_owned());
                session.cancel.notify_all();
                self.listening.lock().retain(|(id, _)| id != request.get());
            }
            return;
        };
        let blocks = match &*method {
            "tools/call" => !tools::is_immediate(parsed.name.as_deref().unwrap_or_default()),
            "tools/list" | "prompts/list" | "resources/list" => self.options.list_delay_ms > 0,
            _ => false,
        };
        if !blocks {
            self.request(&id, &method, &parsed, out, session);
            return;
        }
        let (server, out, session) = (Arc::clone(self), out.clone(), Arc::clone(session));
        let (method, params) = (method.into_owned(), params.to_owned());
        std::thread::spawn(move || {
            let parsed: Params<'_> = serde_json::from_str(&params).unwrap_or_default();
            server.request(&id, &method, &parsed, &out, &session);
        });
    }

    fn request(&self, id: &str, method: &str, params: &Params<'_>, out: &Out, session: &Session) {
        let legacy = self.options.era == Era::Legacy;
        if let Some(meta) = &params.meta
            && let Some(capabilities) = meta.capabilities
        {
            capabilities.get().clone_into(&mut self.client.lock());
        }
        if self.answered_from_file(id, method, params, out) {
            return;
        }
        match method {
            "initialize" if legacy => self.initialize(id, params, out),
            "ping" if legacy => out.result(id, "{}"),
            "logging/setLevel" if legacy => out.result(id, "{}"),
            "resources/subscribe" | "resources/unsubscribe" if legacy => out.result(id, "{}"),
            "server/discover" if self.options.exit_on_discover => std::process::exit(4),
            "server/discover" if !legacy => self.discover(id, out),
            "subscriptions/listen" if !legacy => {
                self.listening.lock().push((id.to_owned(), out.clone()));
                let wanted = params.notifications.map_or("{}", |filter| filter.get());
                out.line(
                    format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{wanted}}}}}"#
                    ),
                );
            }
            "tools/list" => self.list(id, "tools", self.tools(), params, out),
            "prompts/list" if self.options.prompts > 0 => {
                let prompts = (0..self.options.prompts)
                    .map(|n| json!({ "name": format!("prompt_{n}"), "description": "A prompt" }))
                    .collect();
                self.list(id, "prompts", prompts, params, out);
            }
            "prompts/get" if self.options.prompts > 0 => {
                let name = quote(params.name.as_deref().unwrap_or_default());
                self.complete(
                    id,
                    &format!(
                        r#""messages":[{{"role":"user","content":{{"type":"text","text":{name}}}}}]"#
                    ),
                    out,
                );
            }
            "resources/list" if self.options.resources > 0 => {
                let resources = (0..self.options.resources)
                    .map(|n| json!({ "uri": format!("scripted://{n}"), "name": format!("resource_{n}") }))
                    .collect();
                self.list(id, "resources", resources, params, out);
            }
            "resources/read" if self.options.resources > 0 => {
                let uri = quote(params.uri.as_deref().unwrap_or_default());
                let cache = self.cache_hints();
                self.complete(
                    id,
                    &format!(r#"{cache}"contents":[{{"uri":{uri},"text":{uri}}}]"#),
                    out,
                );
            }
            "tools/call" => {
                let _counted = self.calls.enter();
                tools::call(self, id, params, out, session);
            }
            _ => out.error(id, -32601, "Method not found"),
        }
    }

    fn answered_from_file(&self, id: &str, method: &str, params: &Params<'_>, out: &Out) -> bool {
        let uri = params.uri.as_deref().unwrap_or_default();
        let keys = [
            format!("{method} {uri}"),
            method.to_owned(),
            format!("{method} *"),
        ];
        let methods = &self.answers["methods"];
        let found = keys.iter().find_map(|key| methods.get(key));
        match found {
            Some(answer) if answer.get("error").is_some() => {
                let code = answer["error"]["code"].as_i64();
                let code = code.and_then(|code| i32::try_from(code).ok());
                out.error(id, code.unwrap_or(-32603), "as the file says");
            }
            Some(answer) => out.result(id, &answer.to_string()),
            None => {}
        }
        found.is_some()
    }

    /// Sends a result with these members, marked as complete in the modern era.
    pub(crate) fn complete(&self, id: &str, members: &str, out: &Out) {
        out.result(id, &self.completed(members));
    }

    /// Formats a result with these members.
    pub(crate) fn completed(&self, members: &str) -> String {
        match self.options.era {
            Era::Legacy => format!("{{{members}}}"),
            Era::Modern => format!(r#"{{"resultType":"complete",{members}}}"#),
        }
    }

    fn cache_hints(&self) -> &'static str {
        match self.options.era {
            Era::Legacy => "",
            Era::Modern => r#""ttlMs":0,"cacheScope":"private","#,
        }
    }

    fn capabilities(&self) -> Value {
        let mut capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
        if self.options.prompts > 0 {
            capabilities["prompts"] = json!({ "listChanged": true });
        }
        if self.options.resources > 0 {
            capabilities["resources"] = json!({ "listChanged": true, "subscribe": true });
        }
        if let Some(more) = self.answers["capabilities"].as_object() {
            for (name, value) in more {
                capabilities[name] = value.clone();
            }
        }
        capabilities
    }

    fn identity(&self) -> Value {
        json!({ "name": self.options.name, "version": env!("CARGO_PKG_VERSION") })
    }

    fn initialize(&self, id: &str, params: &Params<'_>, out: &Out) {
        if self.options.no_answer_initialize {
            return;
        }
        if let Some(capabilities) = params.capabilities {
            capabilities.get().clone_into(&mut self.client.lock());
        }
        let newest = &*self.options.protocol_version;
        let asked = params.protocol_version.as_deref().unwrap_or(newest);
        let mut result = json!({
            "protocolVersion": asked.min(newest),
            "capabilities": self.capabilities(),
            "serverInfo": self.identity(),
        });
        if let Some(instructions) = &self.options.instructions {
            result["instructions"] = json!(instructions);
        }
        out.result(id, &result.to_string());
    }

    fn discover(&self, id: &str, out: &Out) {
        let result = json!({
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "supportedVersions": ["2026-07-28"],
            "capabilities": self.capabilities(),
            "_meta": { "io.modelcontextprotocol/serverInfo": self.identity() },
        });
        out.result(id, &result.to_string());
    }

    fn tools(&self) -> Vec<Value> {
        let mut listed = if self.options.no_builtin {
            Vec::new()
        } else {
            tools::definitions()
        };
        let (count, description) = self.listed.lock().clone();
        listed.extend((0..count).map(|n| {
            json!({
                "name": format!("tool_{n}"),
                "description": format!("{description} ({} {n})", self.options.name),
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "text": { "type": "string", "description": "Anything" },
                        "number": { "type": "integer" },
                    },
                },
            })
        }));
        let also = self.options.also.iter();
        listed
            .extend(also.map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })));
        listed
    }

    /// Responds with one page. A cursor is the index of the first item of its page.
    fn list(&self, id: &str, member: &str, items: Vec<Value>, params: &Params<'_>, out: &Out) {
        std::thread::sleep(Duration::from_millis(self.options.list_delay_ms));
        let start = match params.cursor.as_deref().map(str::parse) {
            None => 0,
            Some(Ok(start)) => start,
            Some(Err(_)) => return out.error(id, -32602, "Invalid cursor"),
        };
        let size = self.options.page_size.unwrap_or(usize::MAX).max(1);
        let page: Vec<_> = items.iter().skip(start).take(size).collect();
        let end = start.saturating_add(page.len());
        let next = if end < items.len() {
            format!(r#","nextCursor":"{end}""#)
        } else {
            String::new()
        };
        let page = json!(page);
        let cache = self.cache_hints();
        self.complete(id, &format!(r#"{cache}"{member}":{page}{next}"#), out);
    }

    /// Passes a response from the client to the call that waits for it.
    fn answered(&self, id: Option<&str>, frame: &str) {
        let waiting = id.and_then(|id| self.waiting.lock().remove(id));
        if let Some(waiting) = waiting {
            // The call may have given up.
            let _ = waiting.send(frame.to_owned());
        }
    }
}
