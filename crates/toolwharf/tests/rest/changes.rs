//! Changes of the configuration file over the API: refusals, and responses that already reflect the change.

use crate::{
    api::{Api, problem},
    common::{Gateway, Setup, body, scripted},
};
use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, within};
use tokio::task::JoinSet;

fn file(gateway: &Gateway) -> String {
    std::fs::read_to_string(gateway.servers_file()).expect("a file")
}

#[tokio::test]
async fn what_is_wrong_changes_nothing_and_is_explained() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let before = file(&gateway);
    let admin = Api::admin(&gateway);
    let pid = async || admin.get("/mcp/servers/one").await["pid"].clone();
    let running = pid().await;
    assert!(running.is_u64());
    let (open, close) = ("[".repeat(10_000), "]".repeat(10_000));
    let deep = format!("PUT /mcp/servers/x 400 JSON | {{\"a\":{open}{close}}}");
    let large = "x".repeat(300 << 10);
    let large = format!("PUT /mcp/servers/x 413 limit | {{\"command\":\"{large}\"}}");
    let table = r#"
        PUT /mcp/servers/x 400 JSON | {
        PUT /mcp/servers/x 400 JSON |
        PUT /mcp/servers/x 400 JSON | {"command":"a","command":"b"}
        PUT /mcp/servers/x 422 object | []
        PUT /mcp/servers/x 422 command | {}
        PUT /mcp/servers/x 422 pigeon | {"command":"a","type":"pigeon"}
        PUT /mcp/servers/one 422 url | {"url":"gopher://x"}
        PUT /mcp/servers/x 422 prompts | {"command":"a","env":{"K":"sesame${input:k}","L":"${SURELY_NOT_SET}"}}
        PUT /mcp/servers/a%2Fb 422 / | {"command":"a"}
        PUT /mcp/servers/a%0Ab 422 control | {"command":"a"}
        PUT /mcp/servers/%2E%2E 422 .. | {"command":"a"}
        GET /mcp/servers/none 404 none |
        DELETE /mcp/servers/none 404 none |
        POST /mcp/servers/none/enable 404 none | {}
        GET /mcp/servers/none/logs 404 none |
        GET /mcp/servers/one/logs?tail=many 400 tail |
        PUT /mcp/servers/none/tools/t 404 none | {"enabled":false}
        PUT /mcp/servers/one/tools/none 404 none | {"enabled":false}
        GET /tools?project=none 404 none |
        GET /tools?project=a%20b 404 project |
        GET /tools?server=none 404 none |
        POST /import 409 invalid JSON | {"text":"{"}
        POST /import 400 text | {}
    "#;
    for table in [&*deep, &*large, table] {
        let problems = admin.refuses(table).await.to_string();
        assert!(!problems.contains("sesame"), "{problems}");
    }
    let none_match = [("if-none-match", "*")];
    let path = "/api/v1/mcp/servers/one";
    let reply = admin.ask("PUT", path, r#"{"command":"a"}"#, &none_match);
    problem(&reply.await, 412);
    assert_eq!(file(&gateway), before);
    assert_eq!(pid().await, running, "the server was restarted");
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_configuration_and_says_so() {
    let setup = Setup::new().settings("require_valid_entries = true\n");
    let gateway = setup.scripted("one", &[]).connected().await;
    let broken = json!({"mcpServers": {"one": scripted("one", &[]), "bad": {"type": "pigeon"}}});
    gateway.replace(&gateway.servers_file(), &broken.to_string());
    gateway.logged("keeping the old one").await;
    let admin = Api::admin(&gateway);
    let saved = admin.put("/mcp/servers/two", scripted("two", &[])).await;
    let notice = saved["notices"][0].as_str().expect("a notice");
    assert!(notice.contains("pigeon"), "{saved}");
    assert_eq!(saved["status"], "unusable", "{saved}");
    // Removing the invalid entry puts the whole file into effect.
    admin.delete("/mcp/servers/bad").await;
    gateway.up("two").await;
}

#[tokio::test]
async fn answers_reflect_the_change_and_no_change_is_lost() {
    let mut gateway = Setup::new().scripted("one", &[]).connected().await;
    let mut all = JoinSet::new();
    for n in 0..24 {
        let client = gateway.admin(&format!("/mcp/servers/s{n}"));
        all.spawn(async move {
            // Disabled, because this test is about files and not about processes.
            let entry = r#"{"command":"true","disabled":true}"#;
            let reply = client.send(Method::PUT, &[], entry).await;
            let reply = reply.collect(DEADLINE).await;
            assert_eq!(reply.status, 201, "{}", reply.text());
            assert_eq!(body(&reply)["status"], "disabled", "{}", reply.text());
            let reply = client.get(&[]).await.collect(DEADLINE).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        });
    }
    within("all changes", DEADLINE, async {
        while let Some(done) = all.join_next().await {
            done.expect("a change");
        }
    })
    .await;
    let written: Value = serde_json::from_str(&file(&gateway)).expect("JSON");
    assert_eq!(written["mcpServers"].as_object().map(|s| s.len()), Some(25));
    // A later manual edit is still noticed.
    gateway.edit(|servers| {
        servers.insert("hand".into(), scripted("hand", &[]));
    });
    gateway.up("hand").await;
}
