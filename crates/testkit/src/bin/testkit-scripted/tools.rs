//! The tools, most of which misbehave.

use std::{
    process::Stdio,
    sync::{atomic::Ordering, mpsc},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    hog,
    server::{Server, Session},
    wire::{Out, Params, quote},
};

/// Time limit for the client's response to `server_request`.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);
/// Interval at which a sleeping call checks whether its client has disconnected.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A tool, with the JSON types of its arguments. All arguments are optional.
#[derive(Deserialize)]
struct Tool {
    name: String,
    description: String,
    arguments: serde_json::Map<String, Value>,
}

/// The tool definitions for `tools/list`.
pub(crate) fn definitions() -> Vec<Value> {
    let tools: Vec<Tool> =
        serde_json::from_str(include_str!("tools.json")).expect("the file contains tools");
    let defined = tools.into_iter().map(|tool| {
        let arguments = tool.arguments.into_iter();
        let properties: serde_json::Map<_, _> = arguments
            .map(|(name, kind)| (name, json!({ "type": kind })))
            .collect();
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": { "type": "object", "properties": properties },
        })
    });
    defined.collect()
}

/// Returns whether the tool never blocks, so that it needs no thread.
pub(crate) fn is_immediate(name: &str) -> bool {
    name == "echo" || name == "freeze" || name.starts_with("tool_")
}

pub(crate) fn call(server: &Server, id: &str, params: &Params<'_>, out: &Out, session: &Session) {
    let raw = params.arguments.map_or("{}", |arguments| arguments.get());
    let name = params.name.as_deref().unwrap_or_default();
    let arguments: Value = match name {
        "echo" => Value::Null,
        _ => serde_json::from_str(raw).unwrap_or_default(),
    };
    if name == "freeze" {
        // This runs in the reader, so no input is read during the sleep.
        std::thread::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0)));
    }
    if is_immediate(name) || server.options.also.iter().any(|also| also == name) {
        return server.complete(id, &both(raw), out);
    }
    let number = |name: &str, otherwise: u64| arguments[name].as_u64().unwrap_or(otherwise);
    let string = |name: &str| arguments[name].as_str().unwrap_or_default();
    let flag = |name: &str| arguments[name].as_bool().unwrap_or(false);
    let say = |text: &str| server.complete(id, &text_member(text), out);
    let done = |outcome: std::io::Result<String>| match outcome {
        Ok(text) => server.complete(id, &text_member(&text), out),
        Err(error) => fail(server, id, &error.to_string(), out),
    };
    match name {
        "alloc" => say(&hog::alloc(number("mib", 1))),
        "burn" => say(&hog::burn(Duration::from_millis(number("ms", 1)))),
        "forks" => say(&hog::forks(number("most", 1))),
        "bomb" => say(&hog::bomb(Duration::from_millis(number("ms", 0)))),
        "fill" => done(hog::fill(string("path"), number("mib", 1))),
        "flood_disk" => done(hog::flood(
            string("path"),
            Duration::from_millis(number("ms", 1)),
            flag("anew"),
        )),
        "write" => done(hog::write(string("path"), string("text"))),
        "append" => done(hog::append(string("path"), string("text"))),
        "read" => done(hog::read(string("path"))),
        "connect" => done(hog::connect(string("address"), string("text"))),
        "slow" => {
            let _slow = server.slow.enter();
            if sleep_until_cancelled(id, Duration::from_millis(number("ms", 0)), out, session) {
                server.cancelled.fetch_add(1, Ordering::SeqCst);
            } else {
                say("slept");
            }
        }
        "late" => {
            std::thread::sleep(Duration::from_millis(number("ms", 0)));
            say("late");
        }
        "hold" => {
            let held = server.held.enter();
            std::thread::sleep(Duration::from_millis(number("ms", 0)));
            // The gauge is released before the response is sent, because the client's next call may arrive before this
            // thread runs again.
            drop(held);
            say("held");
        }
        "counter" => server.complete(id, &both(&server.held.report().to_string()), out),
        "client" => server.complete(id, &both(&server.client.lock()), out),
        "running" => say(&server.slow.report()["now"].to_string()),
        "cancelled_count" => say(&server.cancelled.load(Ordering::SeqCst).to_string()),
        "crash" => {
            let code = i32::try_from(number("code", 3)).unwrap_or(3);
            std::process::exit(code);
        }
        "flood" => {
            let begin = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":""#);
            let begin = flag("answer").then_some(begin.as_bytes());
            let chunk = vec![b'x'; 64 * 1024];
            let bytes = usize::try_from(number("bytes", 0)).unwrap_or(0);
            let mut at = usize::try_from(number("at", u64::MAX)).ok();
            let mut left = bytes;
            let chunks = std::iter::from_fn(|| {
                let count = left.min(chunk.len());
                if at.take_if(|at| bytes - left + count > *at).is_some() {
                    let _ = std::fs::write(string("mark"), "");
                }
                left -= count;
                (count > 0).then(|| &chunk[..count])
            });
            // The line is written without interruption, because an answer of another thread in the middle of it would
            // be lost.
            out.raw_together(begin.into_iter().chain(chunks).chain([&b"\n"[..]]));
            say("flooded");
        }
        "garbage" => {
            for line in 0..number("lines", 1) {
                out.line(format!("garbage {line} {{\"not\": json"));
            }
            say("answered after garbage");
        }
        "never" => {}
        "twice" => {
            say("first");
            say("second");
        }
        "forge" => {
            let result = server.completed(&text_member("forged"));
            out.result(&forged(id, string("kind")), &result);
            if flag("answer") {
                say("true");
            }
        }
        "unterminated" => {
            let half = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"te"#);
            out.raw_and_stop(half.as_bytes());
        }
        "deep" => {
            let depth = usize::try_from(number("depth", 10_000)).unwrap_or(0);
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let text = text_member("deep");
            server.complete(
                id,
                &format!(r#"{text},"structuredContent":{{"deep":{nested}}}"#),
                out,
            );
        }
        "unreadable" => unreadable(id, string("kind"), out),
        "dupkeys" => duplicate_keys(server, id, string("kind"), out),
        "big" => say(&"x".repeat(usize::try_from(number("bytes", 0)).unwrap_or(0))),
        "stderr" => {
            let bytes = usize::try_from(number("bytes", 0)).unwrap_or(0);
            write_stderr(bytes, arguments["newlines"].as_bool().unwrap_or(true));
            say("wrote to stderr");
        }
        "env" => {
            let variables: serde_json::Map<_, _> = std::env::vars_os()
                .map(|(name, value)| {
                    let name = name.to_string_lossy().into_owned();
                    (name, json!(value.to_string_lossy()))
                })
                .collect();
            server.complete(id, &both(&Value::Object(variables).to_string()), out);
        }
        "digest" => {
            let value = std::env::var(string("name")).unwrap_or_default();
            say(&hex::encode(Sha256::digest(value)));
        }
        "cwd" => say(&std::env::current_dir()
            .unwrap_or_default()
            .to_string_lossy()),
        "pid" => say(&std::process::id().to_string()),
        "headers" => {
            let headers = session.headers.lock().to_string();
            server.complete(id, &both(&headers), out);
        }
        "fork" => match fork(flag("setsid"), flag("hold_stdout")) {
            Ok(pid) => say(&pid.to_string()),
            Err(error) => fail(server, id, &error.to_string(), out),
        },
        "raw" => {
            out.line(string("frame"));
            say("written");
        }
        "server_request" => {
            match server_request(server, string("method"), &arguments["params"], out, session) {
                Some(answer) => server.complete(id, &both(&answer), out),
                None => fail(server, id, "the client did not answer", out),
            }
        }
        "ask_beside" => {
            let ask = || {
                let reply = ask(server, string("method"), &arguments["params"], out, session).1;
                server.asked_beside.lock().push((reply, Value::Null));
            };
            if arguments["late"].is_null() {
                ask();
            }
            if !flag("silent") {
                say("asked");
            }
            if let Some(late) = arguments["late"].as_u64() {
                std::thread::sleep(Duration::from_millis(late));
                ask();
            }
        }
        "replies" => {
            let mut asked = server.asked_beside.lock();
            for (reply, known) in asked.iter_mut() {
                if let Ok(reply) = reply.try_recv() {
                    *known = serde_json::from_str(&reply).unwrap_or_default();
                }
            }
            let replies: Vec<_> = asked.iter().map(|(_, known)| known.clone()).collect();
            server.complete(id, &both(&json!({ "replies": replies }).to_string()), out);
        }
        "notify" => {
            notify(
                server,
                string("method"),
                arguments["params"].clone(),
                out,
                session,
            );
            say("notified");
        }
        "progress" => {
            let count = number("count", 1);
            let token = params.meta.as_ref().and_then(|meta| meta.progress_token);
            for done in 1..=count {
                if let Some(token) = token {
                    out.line(format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{done},"total":{count}}}}}"#));
                }
                std::thread::sleep(Duration::from_millis(number("ms", 0)));
            }
            say("progressed");
        }
        "input" => input(server, id, params, &arguments, out),
        "set_tools" => {
            {
                let mut listed = server.listed.lock();
                if let Some(count) = arguments["count"].as_u64() {
                    listed.0 = usize::try_from(count).unwrap_or(listed.0);
                }
                if let Some(description) = arguments["description"].as_str() {
                    description.clone_into(&mut listed.1);
                }
            }
            for _ in 0..number("times", 1) {
                notify(
                    server,
                    "notifications/tools/list_changed",
                    json!({}),
                    out,
                    session,
                );
            }
            say("changed");
        }
        "fail" => fail(server, id, string("text"), out),
        "rpc_error" => {
            let code = arguments["code"]
                .as_i64()
                .and_then(|code| code.try_into().ok());
            match &arguments["data"] {
                Value::Null => out.error(id, code.unwrap_or(-32000), string("message")),
                data => {
                    let error = json!({ "code": code, "message": string("message"), "data": data });
                    out.error_value(id, &error);
                }
            }
        }
        "sign_in" => {
            let mut signed_in = server.signed_in.lock();
            *signed_in = !*signed_in;
            if !*signed_in {
                return say("signed in");
            }
            let elicitation = json!({
                "mode": "url",
                "elicitationId": "e-1",
                "url": string("url"),
                "message": "Sign in",
            });
            let data = json!({ "elicitations": [elicitation] });
            let error = json!({ "code": -32042, "message": "Sign in first", "data": data });
            out.error_value(id, &error);
        }
        "drop_stream" => {
            // An empty frame ends the stream, even if other calls still hold it.
            if let Some(stream) = session.stream.lock().take() {
                stream.line(b"");
            }
        }
        _ => out.error(id, -32602, &format!("Unknown tool: {name}")),
    }
}

/// The members of a result in which both the text and the structured content are `raw`.
fn both(raw: &str) -> String {
    let text = text_member(raw);
    format!(r#"{text},"structuredContent":{raw}"#)
}

fn text_member(text: &str) -> String {
    let text = quote(text);
    format!(r#""content":[{{"type":"text","text":{text}}}]"#)
}

fn fail(server: &Server, id: &str, text: &str, out: &Out) {
    let text = text_member(text);
    server.complete(id, &format!(r#"{text},"isError":true"#), out);
}

/// Sleeps. Returns whether the request was cancelled or its client disconnected before the end.
fn sleep_until_cancelled(id: &str, mut left: Duration, out: &Out, session: &Session) -> bool {
    let mut cancelled = session.cancelled.lock();
    loop {
        if cancelled.remove(id) || out.is_closed() {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        let pause = left.min(CANCEL_POLL_INTERVAL);
        let woken = session.cancel.wait_for(&mut cancelled, pause);
        // After an early wake-up by another call's cancellation, this call sleeps a little longer than requested.
        if woken.timed_out() {
            left -= pause;
        }
    }
}

/// Returns the id of a different request, as JSON.
fn forged(id: &str, kind: &str) -> String {
    let number: Option<i128> = id.parse().ok();
    match (kind, number) {
        ("null", _) => "null".to_owned(),
        ("string", Some(number)) => format!("\"{number}\""),
        ("minus", Some(number)) => (number - 1).to_string(),
        ("plus" | "", Some(number)) => (number + 1).to_string(),
        ("plus" | "minus" | "string" | "", None) => quote(&format!("{id}-forged")),
        (literal, _) => literal.to_owned(),
    }
}

fn unreadable(id: &str, kind: &str, out: &Out) {
    let bad: &[u8] = match kind {
        "nul" => b"\"a\0b\"",
        "syntax" => b"tru",
        _ => b"\"\xff\xfe\"",
    };
    let id = format!(r#""id":{id}"#);
    let (first, last) = match kind {
        "last" => (r#""jsonrpc":"2.0""#, id.as_str()),
        _ => (id.as_str(), r#""jsonrpc":"2.0""#),
    };
    let parts: [&[u8]; 7] = [
        b"{",
        first.as_bytes(),
        b",\"result\":{\"content\":[],\"x\":",
        bad,
        b"},",
        last.as_bytes(),
        b"}",
    ];
    out.line(parts.concat());
}

fn duplicate_keys(server: &Server, id: &str, kind: &str, out: &Out) {
    let (one, other) = (text_member("one"), text_member("other"));
    let result = |members: &str| format!(r#""result":{}"#, server.completed(members));
    let members = match kind {
        "id" => format!(r#""id":{id},{}"#, result(&one)),
        "nested" => result(&format!("{one},{other}")),
        _ => format!("{},{}", result(&one), result(&other)),
    };
    out.line(format!(r#"{{"jsonrpc":"2.0","id":{id},{members}}}"#));
}

fn write_stderr(bytes: usize, newlines: bool) {
    use std::io::Write;
    let mut chunk = vec![b'e'; 4096];
    if newlines {
        for line in chunk.chunks_mut(64) {
            line[63] = b'\n';
        }
    }
    let mut stderr = std::io::stderr().lock();
    let mut left = bytes;
    while left > 0 {
        let count = left.min(chunk.len());
        if stderr.write_all(&chunk[..count]).is_err() {
            return;
        }
        left -= count;
    }
}

/// Starts a process that outlives its parent unless something kills it. Returns its process id.
fn fork(setsid: bool, hold_stdout: bool) -> std::io::Result<u32> {
    let mut command = hog::silent(if setsid { "setsid" } else { "sleep" });
    if setsid {
        // `setsid` (util-linux) replaces itself with the command, so the process id stays the same.
        command.arg("sleep");
    }
    if hold_stdout {
        command.stdout(Stdio::inherit());
    }
    let child = command.arg("1000").spawn()?;
    Ok(child.id())
}

/// Runs `told` on every SIGTERM, instead of the default action.
pub(crate) fn on_sigterm(told: impl Fn() + Send + 'static) {
    use tokio::signal::unix::{SignalKind, signal};
    let (ready, installed) = mpsc::channel();
    std::thread::spawn(move || {
        // The only use of an async runtime on stdio, created on demand.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a test machine can make a runtime");
        runtime.block_on(async {
            let mut signals = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
            let _ = ready.send(());
            while signals.recv().await.is_some() {
                told();
            }
        });
    });
    let _ = installed.recv_timeout(Duration::from_secs(5));
}

fn server_request(
    server: &Server,
    method: &str,
    params: &Value,
    out: &Out,
    session: &Session,
) -> Option<String> {
    let (id, receiver) = ask(server, method, params, out, session);
    let answer = receiver.recv_timeout(CLIENT_LIMIT).ok();
    server.waiting.lock().remove(&id.to_string());
    answer
}

/// Sends a request to the client. Returns the request's id and the receiver of its response.
fn ask(
    server: &Server,
    method: &str,
    params: &Value,
    out: &Out,
    session: &Session,
) -> (u64, mpsc::Receiver<String>) {
    // The ids are large numbers, so that they cannot be confused with the client's ids.
    let id = 1_000_000 + server.next_request.fetch_add(1, Ordering::SeqCst);
    let (sender, receiver) = mpsc::channel();
    server.waiting.lock().insert(id.to_string(), sender);
    let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method });
    if !params.is_null() {
        request["params"] = params.clone();
    }
    session.send(&request, out);
    (id, receiver)
}

/// Sends a notification to every open subscription, or on the call's own stream if no subscription is open.
fn notify(server: &Server, method: &str, params: Value, out: &Out, session: &Session) {
    let mut message = json!({ "jsonrpc": "2.0", "method": method });
    if !params.is_null() {
        message["params"] = params;
    }
    let listening = {
        let mut listening = server.listening.lock();
        listening.retain(|(_, out)| !out.is_closed());
        listening.clone()
    };
    let subscribed =
        method.ends_with("/list_changed") || method == "notifications/resources/updated";
    if subscribed && !listening.is_empty() {
        for (id, out) in listening {
            let id: Value = serde_json::from_str(&id).unwrap_or_default();
            message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] = id;
            out.line(message.to_string());
        }
        return;
    }
    session.send(&message, out);
}

fn input(server: &Server, id: &str, params: &Params<'_>, arguments: &Value, out: &Out) {
    let Some(responses) = params.input_responses else {
        let requests = match &arguments["requests"] {
            Value::Null => json!({ "name": {
                "method": "elicitation/create",
                "params": {
                    "mode": "form",
                    "message": "Name?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": { "name": { "type": "string" } },
                    },
                },
            } }),
            requests => requests.clone(),
        };
        let mut result = json!({ "resultType": "input_required", "inputRequests": requests });
        if let Some(state) = arguments["state"].as_str() {
            result["requestState"] = json!(state);
        }
        return out.result(id, &result.to_string());
    };
    let state = params.request_state.map_or("null", |state| state.get());
    let echoed = format!(r#"{{"inputResponses":{responses},"requestState":{state}}}"#);
    server.complete(id, &both(&echoed), out);
}
