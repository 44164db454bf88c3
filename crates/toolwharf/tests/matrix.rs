//! The bridge between the eras, cell by cell: every kind of client with every kind of server.
//!
//! There is one test per kind of server. Each runs the same conversation with all kinds of clients, once in the
//! aggregated view (prefixed names, `resource://` URIs) and once in the view of the single server. A failing cell is
//! named in the error. Deliberately absent: features of a single era, except that they are refused in the other.

mod common;

use std::{panic::AssertUnwindSafe, path::Path, time::Duration};

use common::{
    Gateway, LEGACY, Setup, checks,
    steps::{completions, conformant_http, conformant_stdio, resource},
};
use futures_util::FutureExt;
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Outcome, Peer, StdioClient,
    peer::{MODERN, all_capabilities, answer},
    wait_for,
};

/// The server's name in the gateway configuration.
const NAME: &str = "up";

/// A kind of client.
#[derive(Clone, Copy, Debug)]
enum Form {
    Stdio(&'static str),
    Sse,
    Http(&'static str),
}

const FORMS: [Form; 7] = [
    Form::Stdio(LEGACY),
    Form::Sse,
    Form::Http("2025-03-26"),
    Form::Http("2025-06-18"),
    Form::Http(LEGACY),
    Form::Http(MODERN),
    Form::Stdio(MODERN),
];

/// The view of the gateway that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    All,
    One,
}

impl View {
    /// The name of a tool or prompt in this view.
    fn name(self, native: &str) -> String {
        match self {
            Self::All => format!("{NAME}__{native}"),
            Self::One => native.to_owned(),
        }
    }

    /// The prefix of URIs in this view.
    fn scheme(self) -> &'static str {
        match self {
            Self::All => "resource://up/",
            Self::One => "test://",
        }
    }
}

const SETTINGS: &str =
    "naming = \"always-prefix\"\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";

fn setup(entry: &Value) -> Setup {
    Setup::new().settings(SETTINGS).server(NAME, entry.clone())
}

/// Runs one kind of server through all kinds of clients.
async fn matrix(upstream: &str, version: &str, entry: Value) {
    let gateway = setup(&entry).connected().await;
    gateway.logged(&format!("version={version}")).await;
    let mut failed = Vec::new();
    for form in FORMS {
        for view in [View::All, View::One] {
            let cell = format!("client {form:?}, view {view:?}, server {upstream}");
            let outcome = AssertUnwindSafe(cell_of(&gateway, &entry, form, view));
            if outcome.catch_unwind().await.is_err() {
                eprintln!("--- failed: {cell}");
                failed.push(cell);
            }
        }
    }
    let count = failed.len();
    assert!(count == 0, "{count} cells failed:\n{}", failed.join("\n"));
}

async fn cell_of(gateway: &Gateway, entry: &Value, form: Form, view: View) {
    // The directory of a gateway on stdio must outlive it.
    let (peer, _folder) = connect(gateway, entry, form, view, all_capabilities()).await;
    let races = entry["type"] == "http";
    conversation(peer, view, races).await;
    let (peer, _folder) = connect(gateway, entry, form, view, json!({})).await;
    refusals(peer, view).await;
}

async fn connect(
    gateway: &Gateway,
    entry: &Value,
    form: Form,
    view: View,
    capabilities: Value,
) -> (Peer, Option<impl AsRef<Path> + use<>>) {
    let end = match view {
        View::All => String::new(),
        View::One => format!("/-/{NAME}"),
    };
    let mcp = gateway.at(&format!("/mcp{end}"));
    let peer = match form {
        Form::Http(version) => Peer::http(mcp, version, capabilities).await,
        Form::Sse => Peer::sse(gateway.at(&format!("/sse{end}")), capabilities).await,
        Form::Stdio(version) => {
            let mut setup = setup(entry);
            if view == View::One {
                setup = setup.argument("--server").argument(NAME);
            }
            let (client, folder): (StdioClient, _) = setup.stdio();
            let peer = Peer::stdio(client, version, capabilities).await;
            return (peer, Some(folder));
        }
    };
    (peer, None)
}

/// Exercises every kind of message between client and server.
async fn conversation(mut peer: Peer, view: View, races: bool) {
    for (tool, method) in [
        ("ask_sampling", "sampling/createMessage"),
        ("ask_elicitation", "elicitation/create"),
        ("ask_roots", "roots/list"),
    ] {
        let outcome = call(&mut peer, view, tool).await;
        let said: Value = serde_json::from_str(outcome.text()).expect("JSON");
        assert_eq!(said, answer(method), "{tool}");
        assert_eq!(outcome.asked, [method], "{tool}");
    }
    let rounds = "test_input_required_result_multi_round";
    let outcome = call(&mut peer, view, rounds).await;
    assert_eq!(outcome.asked.len(), 2, "{outcome:?}");
    assert!(outcome.text().contains("state-ok"), "{outcome:?}");

    progress(&mut peer, view).await;
    cancellation(&mut peer, view).await;
    logging(&mut peer, view, races).await;
    resources(&mut peer, view).await;
    prompts(&mut peer, view).await;
    changes(&mut peer, view).await;
}

/// Params of a slow call that reports its progress.
fn slow(view: View, ms: u64, token: Value) -> Value {
    json!({
        "name": view.name("slow"),
        "arguments": { "ms": ms },
        "_meta": { "progressToken": token },
    })
}

async fn call(peer: &mut Peer, view: View, tool: &str) -> Outcome {
    peer.tool(&view.name(tool), json!({})).await
}

async fn progress(peer: &mut Peer, view: View) {
    let params = slow(view, 120, "the token".into());
    let outcome = peer.request("tools/call", params).await;
    assert_eq!(outcome.text(), "slept 120 ms");
    let reports = outcome.notifications.iter();
    let reports = reports.filter(|message| message["method"] == "notifications/progress");
    let reports: Vec<_> = reports.collect();
    assert!(reports.len() >= 2, "{outcome:?}");
    assert_eq!(reports[0]["params"]["progressToken"], "the token");
    // This call requests no progress.
    let outcome = peer.tool(&view.name("slow"), json!({ "ms": 60 })).await;
    assert!(outcome.notifications.is_empty(), "{outcome:?}");
}

async fn cancellation(peer: &mut Peer, view: View) {
    let count = async |peer: &mut Peer| -> u64 {
        let outcome = call(peer, view, "cancelled_count").await;
        outcome.text().parse().expect("a number")
    };
    let before = count(peer).await;
    let params = slow(view, 600_000, 7.into());
    let id = peer.begin("tools/call", params).await;
    // Only a call that has begun can be cancelled.
    loop {
        let report = peer.notification("notifications/progress", DEADLINE).await;
        if report.expect("progress")["params"]["progressToken"] == 7 {
            break;
        }
    }
    peer.cancel(id).await;
    wait_for("the cancellation", DEADLINE, async || {
        count(peer).await > before
    })
    .await;
}

/// Over streamable HTTP, a legacy server may send log messages on the session's stream, where they race with the
/// response. Messages after the response reach legacy clients on their session stream. They do not reach modern
/// clients, which have only the stream of the call. So this case is tried several times.
async fn logging(peer: &mut Peer, view: View, races: bool) {
    peer.log_level("warning").await;
    let tries = if races && peer.is_modern() { 50 } else { 1 };
    let mut logged = None;
    for left in (0..tries).rev() {
        for (level, message) in [("info", "not wanted"), ("error", "wanted")] {
            let arguments = json!({ "level": level, "message": message });
            peer.tool(&view.name("log_at"), arguments).await;
        }
        let limit = match left {
            0 => DEADLINE,
            _ => Duration::from_millis(50),
        };
        logged = peer.notification("notifications/message", limit).await;
        if logged.is_some() {
            break;
        }
    }
    // This is the first message. An unwanted one would have arrived before it.
    assert_eq!(logged.expect("a log message")["params"]["data"], "wanted");
}

async fn resources(peer: &mut Peer, view: View) {
    let listed = peer.request("resources/list", json!({})).await;
    let uri = |name: &str| {
        let all = listed.result()["resources"].as_array().expect("a list");
        let found = all.iter().find(|resource| resource["name"] == name);
        let uri = found.and_then(|resource| resource["uri"].as_str());
        uri.unwrap_or_else(|| panic!("{name}: {listed:?}"))
            .to_owned()
    };
    let text = uri("static-text");
    assert!(text.starts_with(view.scheme()), "{text}");
    assert_eq!(resource(peer, &text).await["uri"], text);

    let templates = peer.request("resources/templates/list", json!({})).await;
    let template = &templates.result()["resourceTemplates"][0]["uriTemplate"];
    let filled = template.as_str().expect("a template").replace("{id}", "42");
    assert!(filled.starts_with(view.scheme()), "{filled}");
    assert_eq!(resource(peer, &filled).await["uri"], filled);
    let of = json!({ "type": "ref/resource", "uri": template });
    let values = completions(peer, of, "id", "4").await;
    assert_eq!(values, json!(["42"]));

    let embedded = call(peer, view, "test_embedded_resource").await;
    let link = embedded.result()["content"][0]["resource"]["uri"].as_str();
    let is_exposed = link.is_some_and(|link| link.starts_with(view.scheme()));
    assert!(is_exposed, "{embedded:?}");

    let missing = json!({ "uri": format!("{}not/there", view.scheme()) });
    let outcome = peer.request("resources/read", missing).await;
    // Each era has a different error code.
    let code = if peer.is_modern() { -32602 } else { -32002 };
    assert_eq!(outcome.response["error"]["code"], code, "{outcome:?}");

    let watched = uri("watched-resource");
    let listening = peer.subscribe(&[&watched]).await;
    call(peer, view, "touch_resource").await;
    let updated = "notifications/resources/updated";
    let updated = peer.notification(updated, DEADLINE).await;
    assert_eq!(updated.expect("an update")["params"]["uri"], watched);
    match listening {
        Some(id) => peer.cancel(id).await,
        None => {
            let params = json!({ "uri": watched });
            let outcome = peer.request("resources/unsubscribe", params).await;
            assert_eq!(outcome.result(), &json!({}));
        }
    }
}

async fn prompts(peer: &mut Peer, view: View) {
    let name = view.name("test_prompt_with_arguments");
    let params = json!({ "name": name, "arguments": { "arg1": "one", "arg2": "two" } });
    let prompt = peer.request("prompts/get", params).await;
    checks::contains(&prompt.result()["messages"], &["one", "two"]);
    let of = json!({ "type": "ref/prompt", "name": name });
    let values = completions(peer, of, "arg1", "par").await;
    assert_eq!(values, json!(["paris", "park", "party"]));
    // A prompt asks its client for input just as a tool does.
    let params = json!({ "name": view.name("test_input_required_result_prompt") });
    let prompt = peer.request("prompts/get", params).await;
    assert_eq!(prompt.asked, ["elicitation/create"], "{prompt:?}");
}

async fn changes(peer: &mut Peer, view: View) {
    let listening = peer.subscribe(&[]).await;
    for (tool, kind, name) in [
        ("toggle_tool", "tools", "toggled_tool"),
        ("test_trigger_prompt_change", "prompts", "toggled_prompt"),
    ] {
        let outcome = call(peer, view, tool).await;
        let said: Value = serde_json::from_str(outcome.text()).expect("JSON");
        let is_there = said.as_object().and_then(|said| said.values().next()) == Some(&json!(true));
        let changed = format!("notifications/{kind}/list_changed");
        let notification = peer.notification(&changed, DEADLINE).await;
        assert!(notification.is_some(), "{changed}");
        let list = format!("{kind}/list");
        wait_for(&format!("{list} with the change"), DEADLINE, async || {
            let listed = peer.request(&list, json!({})).await;
            let exposed = format!("\"{}\"", view.name(name));
            listed.response.to_string().contains(&exposed) == is_there
        })
        .await;
    }
    if let Some(id) = listening {
        peer.cancel(id).await;
    }
}

/// Messages that one side cannot send end in an error.
async fn refusals(mut peer: Peer, view: View) {
    for tool in ["ask_sampling", "ask_elicitation", "ask_roots"] {
        let outcome = call(&mut peer, view, tool).await;
        // A legacy server asks and gets an error. A modern server knows beforehand that the client cannot answer.
        assert!(outcome.asked.is_empty(), "{outcome:?}");
        let is_refused = outcome.response.get("error").is_some()
            || outcome.result()["isError"] == true
            || outcome.text().contains("\"error\"");
        assert!(is_refused, "{outcome:?}");
    }
    let subscribe = ["resources/subscribe", "resources/unsubscribe"];
    let others = match peer.is_modern() {
        true => [&["ping", "logging/setLevel"][..], &subscribe].concat(),
        false => vec!["subscriptions/listen"],
    };
    for method in others {
        let outcome = peer.request(method, json!({})).await;
        let error = &outcome.response["error"];
        assert_eq!(error["code"], -32601, "{method}: {outcome:?}");
    }
    if !peer.is_modern() {
        // Over stdio, this request could start a modern conversation, but its `_meta` is missing.
        let outcome = peer.request("server/discover", json!({})).await;
        let code = outcome.response["error"]["code"].as_i64();
        assert!(matches!(code, Some(-32601 | -32602)), "{outcome:?}");
    }
    let outcome = call(&mut peer, view, "test_simple_text").await;
    assert!(outcome.text().contains("simple text"), "{outcome:?}");
}

/// Runs a server over HTTP through all kinds of clients.
async fn matrix_http(kind: &str, version: &str, arguments: &[&str]) {
    let (_server, url) = conformant_http(arguments).await;
    let entry = json!({ "type": kind, "url": url });
    matrix(&format!("{kind} {version}"), version, entry).await;
}

#[tokio::test]
async fn matrix_stdio_legacy() {
    let entry = conformant_stdio("legacy");
    matrix("stdio 2025-11-25", "2025-11-25", entry).await;
}

#[tokio::test]
async fn matrix_stdio_modern() {
    let entry = conformant_stdio("modern");
    matrix("stdio 2026-07-28", "2026-07-28", entry).await;
}

#[tokio::test]
async fn matrix_sse() {
    matrix_http("sse", "2025-11-25", &["--sse"]).await;
}

#[tokio::test]
async fn matrix_http_legacy() {
    matrix_http("http", "2025-11-25", &["--era", "legacy"]).await;
}

#[tokio::test]
async fn matrix_http_modern() {
    matrix_http("http", "2026-07-28", &["--era", "modern"]).await;
}
