//! Servers and tools that need a person are counted, pushed, and posted to the webhook.

use std::path::Path;

use crate::{
    api::Api,
    common::{self, Gateway, Setup, cli, scripted, shell::ok, with},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Webhook, wait_for, wait_for_some};

const SETTINGS: &str = "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n";

/// A scripted server that lists these tools, each with a description.
fn listing(folder: &Path, tools: &[(&str, &str)]) -> Value {
    let file = folder.join("answers.json");
    let tools = tools.iter().map(|(name, description)| {
        json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
    });
    let tools: Vec<Value> = tools.collect();
    let answers = json!({ "methods": { "tools/list": { "tools": tools } } });
    std::fs::write(&file, answers.to_string()).expect("written");
    scripted("index", &["--answers", file.to_str().expect("UTF-8")])
}

/// Waits until the counts of tools, servers and sign-ins are these, and returns the needs.
async fn counts(api: &Api<'_>, query: &str, wanted: [u64; 3]) -> Value {
    wait_for_some(&format!("{wanted:?}"), DEADLINE, async || {
        let all = api.get(&format!("/attention{query}")).await;
        let found = ["tools", "servers", "sign_ins"].map(|key| all[key].as_u64());
        (found == wanted.map(Some)).then(|| all["needs"].clone())
    })
    .await
}

async fn with_needs(webhook: &Webhook) -> Gateway {
    let settings = format!("{SETTINGS}[hosting]\nwebhook = \"{}\"\n", webhook.url());
    let setup = Setup::new().settings(&settings);
    let index = listing(
        setup.folder(),
        &[("search", "Looks up."), ("remove", "Removes.")],
    );
    let mut blocked = scripted("blocked", &[]);
    blocked["env"] = json!({ "KEY": "${NOT_SET_ANYWHERE}" });
    let once = scripted("once", &["--exit-at-start"]);
    let gateway = setup
        .server("index", index)
        .server("blocked", blocked)
        .server("once", with(once, json!({ "restart": "no" })))
        .scripted("looping", &["--exit-at-start"])
        .serve()
        .await;
    gateway.up("index").await;
    gateway
}

#[tokio::test]
async fn u13_what_needs_a_person_is_counted_and_posted_once() {
    let webhook = Webhook::start().await;
    let gateway = with_needs(&webhook).await;
    let admin = Api::admin(&gateway);
    let needs = counts(&admin, "", [0, 3, 0]).await;
    let mut found: Vec<_> = needs
        .as_array()
        .expect("needs")
        .iter()
        .map(|need| {
            let text = |key: &str| need[key].as_str().unwrap_or_default().to_owned();
            (text("server"), text("what"), text("reason"))
        })
        .collect();
    found.sort();
    let kinds: Vec<_> = found
        .iter()
        .map(|(name, what, _)| (&**name, &**what))
        .collect();
    assert_eq!(
        kinds,
        [
            ("blocked", "blocked"),
            ("looping", "failed"),
            ("once", "failed")
        ]
    );
    assert!(found[0].2.contains("NOT_SET_ANYWHERE"), "{found:?}");
    let failed = webhook.warning("once", "failed").await;
    let message = failed["detail"]["message"].as_str().expect("a message");
    assert!(message.contains("restart policy `no`"), "{failed}");
    webhook.warning("blocked", "blocked").await;

    // Both definitions change while the server runs.
    listing(gateway.folder(), &[("search", "All."), ("remove", "All.")]);
    admin
        .ok("POST", "/mcp/servers/index/restart", json!({}))
        .await;
    counts(&admin, "", [2, 3, 0]).await;
    let kept = webhook.warning("index", "kept-back").await;
    assert_eq!(
        kept["detail"]["tools"],
        json!(["remove", "search"]),
        "{kept}"
    );
    let said = ok(
        &gateway,
        "ls",
        "2 tools wait for approval: `toolwharf approvals ls`",
    )
    .await;
    assert!(said.contains("2 tools kept back"), "{said}");
    ok(&gateway, "ls", "3 servers need attention (").await;
    ok(&gateway, "approvals ls", "toolwharf tools approve index").await;

    // The same definitions after another restart are the same occurrence.
    admin
        .ok("POST", "/mcp/servers/index/restart", json!({}))
        .await;
    wait_for("the restart", DEADLINE, async || {
        admin.get("/mcp/servers/index").await["starts"] == 3
    })
    .await;
    counts(&admin, "", [2, 3, 0]).await;

    // Tools that are switched off or approved do not wait.
    admin
        .put(
            "/mcp/servers/index/tools/remove",
            json!({ "enabled": false }),
        )
        .await;
    counts(&admin, "", [1, 3, 0]).await;
    ok(&gateway, "tools approve index --yes", "approved").await;
    counts(&admin, "", [0, 3, 0]).await;
    for name in ["blocked", "once", "looping"] {
        ok(&gateway, &format!("disable {name}"), "disabled").await;
    }
    counts(&admin, "", [0, 0, 0]).await;
    let said = cli::said(common::shell::at(&gateway, "ls"), "")
        .await
        .code(0);
    assert!(!said.err.contains("approval"), "{said:?}");
    for (server, kind) in [
        ("index", "kept-back"),
        ("once", "failed"),
        ("blocked", "blocked"),
    ] {
        let all = webhook.warnings(server, kind);
        assert_eq!(all.len(), 1, "{server} {kind}: {all:#?}");
    }
}

#[tokio::test]
async fn u13_a_key_sees_only_the_needs_of_its_project() {
    let gateway = Setup::new()
        .scripted("looping", &["--exit-at-start"])
        .serve()
        .await;
    let admin = Api::admin(&gateway);
    admin.projects(&["a", "b"], "own", &[]).await;
    let broken = json!({ "command": "true", "env": { "KEY": "${NOT_SET_ANYWHERE}" } });
    let broken = json!({ "entry": broken });
    let put = "/api/v1/mcp/servers/broken?project=b";
    let reply = admin
        .ask("PUT", put, broken["entry"].to_string(), &[])
        .await;
    assert!(reply.status.is_success(), "{}", reply.text());
    let reader = admin.keyed("a", "read").await;
    counts(&reader, "", [0, 0, 0]).await;
    let needs = counts(&admin, "?project=b", [0, 1, 0]).await;
    assert_eq!(needs[0]["server"], "broken", "{needs}");
    assert_eq!(needs[0]["project"], "b", "{needs}");
    counts(&admin, "", [0, 2, 0]).await;
    reader.refused("GET", "/attention?project=b", "", 404).await;
}

#[tokio::test]
async fn u13_a_change_of_what_needs_a_person_is_pushed() {
    let setup = Setup::new();
    let index = listing(setup.folder(), &[("search", "Looks up.")]);
    let gateway = setup.server("index", index).connected().await;
    let admin = Api::admin(&gateway);
    let mut stream = admin.open("GET", "/api/v1/events", "", &[]).await;
    let mut until = async |tools: u64| loop {
        let event = stream.next_event(DEADLINE).await.expect("an event");
        if event.event.as_deref() == Some("attention") {
            let data = event.json().expect("JSON");
            if data["tools"] == tools {
                break;
            }
        }
    };
    until(0).await;
    listing(gateway.folder(), &[("search", "All.")]);
    admin
        .ok("POST", "/mcp/servers/index/restart", json!({}))
        .await;
    until(1).await;
    ok(&gateway, "tools approve index --yes", "approved").await;
    until(0).await;
}
