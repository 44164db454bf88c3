//! A scripted MCP server in this process: a test sets its behaviour and reads what it received.
//!
//! [`Scripted`] represents the server across all its instances. An instance speaks JSON lines over two byte streams, as
//! a process does. It exits when its input closes or when it is asked to, unless [`Script::is_stubborn`] is set.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use mcp::Era;
use runtime::{Exit, Remote, Request};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream},
    sync::{mpsc, oneshot},
    time::Instant,
};

/// The behaviour of a server.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) era: Era,
    pub(crate) tools: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) prompts: Vec<String>,
    /// Connection attempts that fail before anything runs.
    pub(crate) refusals: u32,
    /// The description of the server's tools.
    pub(crate) description: &'static str,
    /// Definitions listed after its own, by list (`tools`, `resourceTemplates`, …).
    pub(crate) definitions: HashMap<&'static str, Vec<Value>>,
    /// The error that it answers to a method.
    pub(crate) failing: HashMap<&'static str, &'static str>,
    /// It declares `listChanged`.
    pub(crate) reports_changes: bool,
    /// It declares no tools.
    pub(crate) has_no_tools: bool,
    /// The input schema of its tools.
    pub(crate) schema: Value,
    /// The result of `tools/list` as JSON text, instead of `tools`.
    pub(crate) tools_text: Option<String>,
    /// Why the server cannot be started as configured.
    pub(crate) refused: Option<String>,
    /// A user has to sign in before the server can be started.
    pub(crate) needs_sign_in: bool,
    /// Time from the launch to the handshake response.
    pub(crate) start_delay: Duration,
    /// Instances exit with this code instead of answering the handshake.
    pub(crate) dies_at_start: Option<i32>,
    /// This many instances exit with code 1 instead of answering `tools/list`.
    pub(crate) deaths_at_list: u32,
    /// The server no longer responds, not even to a ping.
    pub(crate) is_silent: bool,
    /// Neither the end of its input nor `SIGTERM` stops the server.
    pub(crate) is_stubborn: bool,
    /// Time from `SIGKILL` to the exit.
    pub(crate) death: Duration,
    /// The runtime does not respond: not even `SIGKILL` stops it.
    pub(crate) is_lost: bool,
}

/// A message received by an instance.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    /// Number of the instance, counted from 1.
    pub(crate) instance: usize,
    pub(crate) frame: Value,
}

/// A server and all its instances.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Mutex<Inner>>);

struct Inner {
    script: Script,
    /// Times of the connection attempts.
    attempts: Vec<Instant>,
    starts: usize,
    running: HashMap<usize, mpsc::UnboundedSender<Command>>,
    /// The highest number of instances that ran at the same time.
    most_running: usize,
    heard: Vec<Heard>,
    held: Vec<Held>,
    /// Requests that the server sent to clients, by id.
    asked: HashMap<String, oneshot::Sender<Value>>,
    /// Open `subscriptions/listen` requests.
    listening: Vec<(usize, Value)>,
}

enum Command {
    Say(String),
    /// Text without a line break.
    Write(String),
    Exit(Exit),
}

/// An unanswered call of the tool `hold`.
#[derive(Clone)]
struct Held {
    instance: usize,
    id: Value,
    arguments: Value,
    cancelled: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            era: Era::Legacy,
            tools: ["echo", "hold"].map(str::to_owned).to_vec(),
            resources: Vec::new(),
            prompts: Vec::new(),
            refusals: 0,
            description: "",
            definitions: HashMap::new(),
            failing: HashMap::new(),
            reports_changes: true,
            has_no_tools: false,
            schema: json!({ "type": "object" }),
            tools_text: None,
            refused: None,
            needs_sign_in: false,
            start_delay: Duration::ZERO,
            dies_at_start: None,
            deaths_at_list: 0,
            is_silent: false,
            is_stubborn: false,
            death: Duration::ZERO,
            is_lost: false,
        }
    }
}

fn code(code: i32) -> Exit {
    Exit {
        code: Some(code),
        ..Exit::default()
    }
}

fn signal(signal: i32) -> Exit {
    Exit {
        signal: Some(signal),
        ..Exit::default()
    }
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            script: Script::default(),
            attempts: Vec::new(),
            starts: 0,
            running: HashMap::new(),
            most_running: 0,
            heard: Vec::new(),
            held: Vec::new(),
            asked: HashMap::new(),
            listening: Vec::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Changes the server's behaviour from now on.
    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) -> &Self {
        change(&mut self.inner().script);
        self
    }

    /// Offers these tools, without a notification: see [`Scripted::changed`].
    pub(crate) fn tools(&self, tools: &[&str]) -> &Self {
        self.script(|script| script.tools = tools.iter().map(|&tool| tool.into()).collect())
    }

    /// Sends a notification that a list has changed (`tools`, `resources` or `prompts`), as the server's era defines
    /// it.
    pub(crate) fn changed(&self, list: &str) {
        self.notify(
            &format!("notifications/{list}/list_changed"),
            &json!({}),
            true,
        );
    }

    /// Sends a notification that a resource has changed.
    pub(crate) fn updated(&self, uri: &str) {
        self.notify(
            "notifications/resources/updated",
            &json!({ "uri": uri }),
            true,
        );
    }

    /// Sends a log message with these params from one instance, or from all that run.
    pub(crate) fn log(&self, instance: Option<usize>, params: &Value) {
        let method = "notifications/message";
        let frame = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        self.say(instance, &frame);
    }

    fn notify(&self, method: &str, params: &Value, is_subscribed: bool) {
        let (is_modern, streams) = {
            let inner = self.inner();
            (inner.script.era == Era::Modern, inner.listening.clone())
        };
        let mut frame = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if !(is_modern && is_subscribed) {
            return self.say(None, &frame);
        }
        for (instance, id) in streams {
            frame["params"]["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": id });
            self.say(Some(instance), &frame);
        }
    }

    /// Sends a message from one instance, or from all that run.
    fn say(&self, instance: Option<usize>, frame: &Value) {
        let inner = self.inner();
        for (number, commands) in &inner.running {
            if instance.is_none_or(|instance| instance == *number) {
                let _ = commands.send(Command::Say(frame.to_string()));
            }
        }
    }

    /// Makes all instances exit with this code, even during a call.
    pub(crate) fn exit(&self, code: i32) {
        let inner = self.inner();
        assert!(!inner.running.is_empty(), "nothing runs that could end");
        for commands in inner.running.values() {
            let _ = commands.send(Command::Exit(self::code(code)));
        }
    }

    /// Answers all calls of `hold`, even cancelled ones. Returns their number.
    pub(crate) fn release(&self) -> usize {
        let held = std::mem::take(&mut self.inner().held);
        for call in &held {
            let answer = text_result(&call.arguments.to_string());
            let frame = json!({ "jsonrpc": "2.0", "id": call.id, "result": answer });
            self.say(Some(call.instance), &frame);
        }
        held.len()
    }

    /// The arguments of unanswered calls of `hold`, oldest first.
    pub(crate) fn held(&self) -> Vec<Value> {
        let inner = self.inner();
        let open = inner.held.iter().filter(|call| !call.cancelled);
        open.map(|call| call.arguments.clone()).collect()
    }

    pub(crate) fn attempts(&self) -> Vec<Instant> {
        self.inner().attempts.clone()
    }

    /// The number of instances started so far.
    pub(crate) fn starts(&self) -> usize {
        self.inner().starts
    }

    /// The number of running instances.
    pub(crate) fn running(&self) -> usize {
        self.inner().running.len()
    }

    pub(crate) fn most_running(&self) -> usize {
        self.inner().most_running
    }

    /// The messages received with this method, in order.
    pub(crate) fn heard(&self, method: &str) -> Vec<Heard> {
        let inner = self.inner();
        let of = |heard: &&Heard| heard.frame["method"] == method;
        inner.heard.iter().filter(of).cloned().collect()
    }

    /// The requests whose cancellation the server was notified of.
    pub(crate) fn cancelled(&self) -> Vec<Value> {
        let inner = self.inner();
        let told = |heard: &&Heard| heard.frame["method"] == "notifications/cancelled";
        let request = |cancelled: &Heard| {
            let id = &cancelled.frame["params"]["requestId"];
            let is = |heard: &&Heard| {
                heard.instance == cancelled.instance
                    && heard.frame["id"] == *id
                    && heard.frame["method"].is_string()
            };
            let found = inner.heard.iter().find(is);
            found.map_or(Value::Null, |heard| heard.frame.clone())
        };
        inner.heard.iter().filter(told).map(request).collect()
    }

    /// Notes a connection attempt. Returns whether it has to fail.
    pub(crate) fn attempted(&self) -> bool {
        let mut inner = self.inner();
        inner.attempts.push(Instant::now());
        let refuses = inner.script.refusals > 0;
        inner.script.refusals = inner.script.refusals.saturating_sub(1);
        refuses
    }

    pub(crate) fn refused(&self) -> Option<String> {
        self.inner().script.refused.clone()
    }

    pub(crate) fn needs_sign_in(&self) -> bool {
        self.inner().script.needs_sign_in
    }

    /// Runs an instance until it exits.
    pub(crate) async fn run(self, remote: Remote, input: DuplexStream, output: DuplexStream) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let number = {
            let mut inner = self.inner();
            inner.starts += 1;
            let number = inner.starts;
            inner.running.insert(number, commands.clone());
            inner.most_running = inner.most_running.max(inner.running.len());
            number
        };
        remote.log(&format!("instance {number} starts"));
        let instance = Instance {
            server: self.clone(),
            number,
            say: commands,
        };
        instance.run(remote, inbox, input, output).await;
    }
}

/// One run of the scripted server.
struct Instance {
    server: Scripted,
    number: usize,
    say: mpsc::UnboundedSender<Command>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let mut inner = self.server.inner();
        inner.running.remove(&self.number);
        inner.held.retain(|call| call.instance != self.number);
        inner
            .listening
            .retain(|(instance, _)| *instance != self.number);
    }
}

type Work = BoxFuture<'static, Option<Exit>>;

impl Instance {
    async fn run(
        self,
        mut remote: Remote,
        mut inbox: mpsc::UnboundedReceiver<Command>,
        input: DuplexStream,
        mut output: DuplexStream,
    ) {
        let mut lines = BufReader::new(input).lines();
        let mut is_open = true;
        let mut working: FuturesUnordered<Work> = FuturesUnordered::new();
        let exit = loop {
            tokio::select! {
                biased;
                command = inbox.recv() => match command {
                    Some(Command::Say(text)) => {
                        // A write error is ignored: a peer that no longer reads has also closed the input.
                        let _ = output.write_all(format!("{text}\n").as_bytes()).await;
                    }
                    Some(Command::Write(text)) => {
                        let _ = output.write_all(text.as_bytes()).await;
                    }
                    Some(Command::Exit(exit)) => break exit,
                    None => break Exit::default(),
                },
                Some(Some(exit)) = working.next(), if !working.is_empty() => break exit,
                line = lines.next_line(), if is_open => match line {
                    Ok(Some(line)) => working.extend(self.take(&line)),
                    _ => {
                        is_open = false;
                        if !self.script().is_stubborn {
                            break code(0);
                        }
                    }
                },
                request = remote.requested() => match request {
                    Request::Terminate if self.script().is_stubborn => {}
                    Request::Terminate => break signal(15),
                    Request::Kill if self.script().is_lost => {}
                    Request::Kill => {
                        tokio::time::sleep(self.script().death).await;
                        break signal(9);
                    }
                },
            }
        };
        remote.log(&format!("instance {} ends with {exit}", self.number));
        drop((self, lines, output));
        remote.ended(exit);
    }

    fn script(&self) -> Script {
        self.server.inner().script.clone()
    }

    /// Handles a message. Returns the work that is left to do.
    fn take(&self, line: &str) -> Option<Work> {
        let frame: Value = serde_json::from_str(line).expect("the gateway writes JSON");
        self.server.inner().heard.push(Heard {
            instance: self.number,
            frame: frame.clone(),
        });
        let Some(method) = frame["method"].as_str().map(str::to_owned) else {
            let asked = frame["id"].as_str().unwrap_or_default();
            if let Some(waiting) = self.server.inner().asked.remove(asked) {
                let _ = waiting.send(frame);
            }
            return None;
        };
        let Some(id) = frame.get("id").cloned() else {
            if method == "notifications/cancelled" {
                self.cancelled(&frame["params"]["requestId"]);
            }
            return None;
        };
        if self.script().is_silent {
            return None;
        }
        self.request(&method, id, &frame["params"])
    }

    fn cancelled(&self, id: &Value) {
        let mut inner = self.server.inner();
        let number = self.number;
        inner
            .listening
            .retain(|(instance, open)| *instance != number || open != id);
        for call in &mut inner.held {
            call.cancelled |= call.instance == number && call.id == *id;
        }
    }

    fn send(&self, frame: &Value) {
        let _ = self.say.send(Command::Say(frame.to_string()));
    }

    fn respond(&self, id: &Value, mut result: Value) {
        if self.script().era == Era::Modern && result["resultType"].is_null() {
            result["resultType"] = json!("complete");
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn fail(&self, id: &Value, error: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn request(&self, method: &str, id: Value, params: &Value) -> Option<Work> {
        let script = self.script();
        let is_modern = script.era == Era::Modern;
        if let Some(why) = script.failing.get(method) {
            self.fail(&id, &json!({ "code": -32603, "message": why }));
            return None;
        }
        let more = |list: &str, mut listed: Vec<Value>| {
            let more = script.definitions.get(list);
            listed.extend(more.into_iter().flatten().cloned());
            json!({ list: listed })
        };
        let answer = match method {
            "initialize" if !is_modern => return Some(self.introduce(id, &script)),
            "server/discover" if is_modern => return Some(self.introduce(id, &script)),
            "tools/call" => return self.tool(&id, params, is_modern),
            "subscriptions/listen" if is_modern => {
                let own = json!({ "io.modelcontextprotocol/subscriptionId": id });
                let params = json!({ "_meta": own, "notifications": params["notifications"] });
                let method = "notifications/subscriptions/acknowledged";
                self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
                self.server.inner().listening.push((self.number, id));
                return None;
            }
            "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe"
                if !is_modern =>
            {
                json!({})
            }
            "tools/list" if script.deaths_at_list > 0 => {
                self.server.script(|script| script.deaths_at_list -= 1);
                return Some(Box::pin(async { Some(code(1)) }));
            }
            "tools/list" if script.tools_text.is_some() => {
                let text = script.tools_text.unwrap_or_default();
                let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{text}}}"#);
                let _ = self.say.send(Command::Say(text));
                return None;
            }
            "tools/list" => {
                let tool = |name: &String| {
                    let mut tool =
                        json!({ "name": name, "inputSchema": script.schema, "x-unknown": 1 });
                    if !script.description.is_empty() {
                        tool["description"] = script.description.into();
                    }
                    tool
                };
                more("tools", script.tools.iter().map(tool).collect())
            }
            "resources/list" => {
                let resource = |uri: &String| json!({ "uri": uri, "name": uri });
                more("resources", script.resources.iter().map(resource).collect())
            }
            "prompts/list" => {
                let prompt = |name: &String| json!({ "name": name });
                more("prompts", script.prompts.iter().map(prompt).collect())
            }
            "resources/templates/list" if script.definitions.contains_key("resourceTemplates") => {
                more("resourceTemplates", Vec::new())
            }
            "resources/read" => {
                json!({ "contents": [{ "uri": params["uri"], "text": "what is in it" }] })
            }
            "prompts/get" => {
                let content = json!({ "type": "text", "text": params["name"] });
                json!({ "messages": [{ "role": "user", "content": content }] })
            }
            "completion/complete" => json!({ "completion": { "values": [params["ref"]["name"]] } }),
            _ => {
                self.fail(
                    &id,
                    &json!({ "code": -32601, "message": "Method not found" }),
                );
                return None;
            }
        };
        self.respond(&id, answer);
        None
    }

    /// Answers the handshake.
    fn introduce(&self, id: Value, script: &Script) -> Work {
        let changes = script.reports_changes;
        let mut capabilities = json!({ "logging": {} });
        if !script.has_no_tools {
            capabilities["tools"] = json!({ "listChanged": changes });
        }
        if !script.resources.is_empty() {
            capabilities["resources"] = json!({ "listChanged": true, "subscribe": true });
        }
        if !script.prompts.is_empty() {
            capabilities["prompts"] = json!({ "listChanged": true });
            capabilities["completions"] = json!({});
        }
        let identity = json!({ "name": "scripted", "version": "1" });
        let mut result = json!({ "capabilities": capabilities });
        if script.era == Era::Modern {
            result["resultType"] = json!("complete");
            result["supportedVersions"] = json!(["2026-07-28"]);
            result["_meta"] = json!({ "io.modelcontextprotocol/serverInfo": identity });
        } else {
            result["protocolVersion"] = json!("2025-11-25");
            result["serverInfo"] = identity;
        }
        let text = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        let (delay, dies, say) = (script.start_delay, script.dies_at_start, self.say.clone());
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            if dies.is_none() {
                let _ = say.send(Command::Say(text));
            }
            dies.map(code)
        })
    }

    fn tool(&self, id: &Value, params: &Value, is_modern: bool) -> Option<Work> {
        let arguments = params["arguments"].clone();
        match params["name"].as_str().unwrap_or_default() {
            "hold" => {
                self.server.inner().held.push(Held {
                    instance: self.number,
                    id: id.clone(),
                    arguments,
                    cancelled: false,
                });
                None
            }
            "fail" => {
                let mut result = text_result("it did not work");
                result["isError"] = json!(true);
                self.respond(id, result);
                None
            }
            "rich" => {
                let id = id.to_string();
                let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{{RICH}}}}}"#);
                let _ = self.say.send(Command::Say(text));
                None
            }
            "rpc_error" => {
                let error = json!({ "code": -32050, "message": "no such book", "data": arguments });
                self.fail(id, &error);
                None
            }
            "exit" => {
                let status = arguments["code"].as_i64().unwrap_or(1);
                let status = i32::try_from(status).expect("a code");
                Some(Box::pin(async move { Some(code(status)) }))
            }
            "write" => {
                let text = arguments["text"].as_str().expect("a text");
                let text = text.replace("$ID", &id.to_string());
                let _ = self.say.send(Command::Write(text));
                None
            }
            "progress" => {
                let token = &params["_meta"]["progressToken"];
                for step in 1..=3 {
                    let progress = json!({ "progressToken": token, "progress": step, "total": 3 });
                    let method = "notifications/progress";
                    self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": progress }));
                }
                self.respond(id, text_result("done"));
                None
            }
            "log" => {
                let message = json!({ "level": "warning", "data": "it is warm" });
                let method = "notifications/message";
                self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": message }));
                self.respond(id, text_result("done"));
                None
            }
            "ask" if is_modern => {
                let answer = &params["inputResponses"]["question"];
                if answer.is_null() {
                    let wanted = question(&arguments);
                    self.respond(
                        id,
                        json!({
                            "resultType": "input_required",
                            "inputRequests": { "question": wanted },
                            "requestState": "the state",
                        }),
                    );
                } else {
                    assert_eq!(params["requestState"], "the state");
                    self.respond(id, text_result(&answer.to_string()));
                }
                None
            }
            "ask" => Some(self.ask(id.clone(), &arguments)),
            _ => {
                self.respond(id, text_result(&arguments.to_string()));
                None
            }
        }
    }

    /// Sends a request to the client of a call, and answers the call with the response.
    fn ask(&self, id: Value, arguments: &Value) -> Work {
        let wanted = question(arguments);
        let asked = format!("{}-{id}", self.number);
        let (answer, answered) = oneshot::channel();
        self.server.inner().asked.insert(asked.clone(), answer);
        self.send(&json!({
            "jsonrpc": "2.0", "id": asked, "method": wanted["method"], "params": wanted["params"],
        }));
        let say = self.say.clone();
        Box::pin(async move {
            let answer = answered.await.unwrap_or_default();
            let said = match answer.get("result") {
                Some(result) => result.to_string(),
                None => answer["error"].to_string(),
            };
            let frame = json!({ "jsonrpc": "2.0", "id": id, "result": text_result(&said) });
            let _ = say.send(Command::Say(frame.to_string()));
            None
        })
    }
}

/// The result of the tool `rich`, without braces. It has to arrive unchanged.
pub(crate) const RICH: &str = r#""content":[{"type":"image","data":"AAEC","mimeType":"image/png","own":1.0}],"structuredContent":{"z":12345678901234567890123,"a":"\u00e9"},"_meta":{"own/key":[ ]},"resultType":"complete","unknown":null"#;

/// The request that the tool `ask` sends. Its argument `method` may be `sampling/createMessage` or `roots/list`;
/// without it, the request is a form.
fn question(arguments: &Value) -> Value {
    match arguments["method"].as_str() {
        Some(method @ "sampling/createMessage") => {
            let message = json!({ "role": "user", "content": { "type": "text", "text": "Well?" } });
            json!({ "method": method, "params": { "messages": [message], "maxTokens": 10 } })
        }
        Some(method @ "roots/list") => json!({ "method": method, "params": {} }),
        _ => {
            let schema =
                json!({ "type": "object", "properties": { "name": { "type": "string" } } });
            let params = json!({ "mode": "form", "message": "Who?", "requestedSchema": schema });
            json!({ "method": "elicitation/create", "params": params })
        }
    }
}

fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}
