//! The command line for projects, secrets, products, keys, calls and tools, on a running gateway.

use super::support::scripted as program;
use crate::common::{
    Gateway, LEGACY, Setup, holds, item, scripted,
    shell::{fails, json_of, ok, ok_with, on, on_with, transcript},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Peer, peer, wait_for};

#[tokio::test]
async fn projects_and_their_servers() {
    let gateway = Setup::new().serve().await;
    transcript(
        &gateway,
        "
        $ project ls # there are no projects yet
        $ project add games --name Games # added the project `games`
        $ project add games --description Play --naming always-prefix # changed
        $ project ls
        | games  enabled  Games  Play
        ",
    )
    .await;
    let shown = json_of(&gateway, "project get games").await;
    assert_eq!(shown["name"], "Games");
    assert_eq!(shown["description"], "Play");
    assert_eq!(shown["naming"], "always-prefix");

    let add = format!("add --project games one {} --name one", program());
    let said = on(&gateway, &add).await.code(0);
    said.says("added `one` of project `games`")
        .says("starts at its first use");
    // A tool can be named as in either column of `tools ls`: `one__echo` or `one/echo`.
    transcript(
        &gateway,
        r#"
        $ tools ls --project games
        | one__echo
        $ ls --project games
        | running
        $ tools call one__echo {"text":"hello"} --project games
        = {"text":"hello"}
        $ tools call one/echo {"text":"hello"} --project games
        = {"text":"hello"}
        $ tools get one/echo --project games
        | name             one__echo
        | "properties"
        | byte for byte
        1$ tools call one__ehco {} --project games # did you mean `one__echo`?
        $ get one --project games
        | project          games
        $ disable one --project games # disabled `one`
        $ enable one --project games # enabled `one`
        $ rm one --project games # removed `one`
        1$ get one --project games # no server `one`
        1$ ls --project none # there is no project `none`
        "#,
    )
    .await;
    let said = on(&gateway, "get none --project games -o json").await;
    let error: Value = serde_json::from_str(&said.err).expect("JSON");
    assert_eq!(error["status"], 404, "{said:?}");
    said.code(1);
    transcript(
        &gateway,
        "
        $ project disable games # is disabled
        $ project enable games # is enabled
        2$ project rm games # --yes
        $ project rm games --yes # removed
        $ project ls # there are no projects yet
        2$ project add a/b # letters
        ",
    )
    .await;
}

#[tokio::test]
async fn secrets_come_from_standard_input() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    let set = "secret set KEY --project a";
    let says = "set `KEY` of project `a`, version 1";
    ok_with(&gateway, set, "canary\n", says).await;
    transcript(
        &gateway,
        "
        $ secret ls --project a
        | KEY
        ! canary
        $ secret rotate-master # new master key
        2$ secret set a-b --project a # `a-b`
        1$ secret rm NONE --project a # no secret `NONE`
        $ secret rm KEY --project a # removed
        $ secret ls # there are no secrets yet
        ",
    )
    .await;
}

#[tokio::test]
async fn products_are_installed_from_files() {
    let gateway = Setup::new().serve().await;
    let file = gateway.folder().join("p.yaml");
    let manifest = "name: search\nversion: '1'\ndescription: finds\nmcp:\n  servers:\n    web: {url: 'https://x.example.com'}\n";
    std::fs::write(&file, manifest).expect("written");
    transcript(
        &gateway,
        "
        $ project add a
        $ product install p.yaml --project a # `search` 1 is installed in project `a`: 1 servers
        $ product ls --project a
        | search  1        web      finds
        ",
    )
    .await;
    let wrong =
        r#"{"name":"search","version":2,"mcp":{"servers":{"web":{},"two":{"type":"pigeon"}}}}"#;
    let line = "product install - --project a";
    let places = ["/version", "/mcp/servers/web", "/mcp/servers/two"];
    on_with(&gateway, line, wrong).await.ends(line, 1, &places);
    transcript(
        &gateway,
        "
        1$ product install none.yaml --project a # there is no file none.yaml
        $ product rm search --project a # removed
        1$ product rm search --project a # no product `search`
        ",
    )
    .await;
}

#[tokio::test]
async fn keys_are_made_listed_revoked_and_recovered() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    ok(&gateway, "project add b", "").await;
    let create = "key create reader --project a --role read --expires 1d";
    let token = ok(&gateway, create, "read in project `a`").await;
    assert!(token.starts_with("twh_"), "{token}");
    let secret = token.strip_suffix('\n').expect("a line");
    std::fs::write(gateway.folder().join("reader"), &token).expect("written");
    let keys = json_of(&gateway, "key ls --project a").await;
    let id = keys[0]["id"].as_str().expect("an id");
    let text = format!(
        "
        $ project get a --token-file reader
        1$ project ls --token-file reader # administrator
        1$ project get b --token-file reader # there is no project `b`
        $ key ls
        | reader
        | active
        ! {secret}
        $ key revoke {id} # revoked
        1$ project get a --token-file reader # --token-file
        2$ key create x # --role
        2$ key create x --project a --admin # --admin
        $ key create wide --role call # call in all projects
        $ key create both --project a,b --role read # read in projects `a`, `b`
        1$ key create both --project a # the name is taken
        $ key ls
        | a, b
        $ key revoke both # revoked the key `both`
        $ key create both --project a --tools search # call in project `a`
        2$ key create x --admin --expires soon # 90d
        "
    );
    transcript(&gateway, &text).await;
    // The last administrator key, which the command line itself uses, cannot be revoked.
    let keys = json_of(&gateway, "key ls").await;
    let admin = &item(&keys, "role", "admin")["id"];
    let revoke = format!("key revoke {}", admin.as_str().expect("an id"));
    fails(&gateway, &revoke, 1, "create another one first").await;

    // The token file is lost. `key recover` makes a new key in the database, which the gateway accepts soon after.
    std::fs::remove_file(gateway.folder().join("data/admin-token")).expect("removed");
    fails(&gateway, "project ls", 1, "key").await;
    fails(&gateway, "key recover", 2, "--yes").await;
    ok(&gateway, "key recover --yes", "a new administrator's key").await;
    wait_for("the new key", DEADLINE, async || {
        on(&gateway, "project ls").await.code == Some(0)
    })
    .await;
    ok(&gateway, &revoke, "revoked").await;
}

#[tokio::test]
async fn calls_and_what_is_set_of_tools() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    let entry = scripted("one", &[]).to_string();
    std::fs::write(gateway.folder().join("entry"), &entry).expect("written");
    ok_with(&gateway, "add --json --project a one -", &entry, "added").await;
    transcript(
        &gateway,
        "
        $ tools rename one/echo say --project a # changed
        $ tools describe one/echo Says --project a # changed
        ",
    )
    .await;
    let listed = ok(&gateway, "tools ls --project a", "").await;
    let mut lines = listed.lines();
    let line = lines.find(|line| line.starts_with("say "));
    assert!(line.is_some_and(|line| line.contains("Says")), "{listed}");
    transcript(
        &gateway,
        "
        $ tools call say {\"text\":\"x\"} --project a
        = {\"text\":\"x\"}
        $ disable one/echo --project a # changed
        1$ tools call say {} --project a # say
        $ enable one/echo --project a # changed
        $ tools rename one/echo --project a # changed
        2$ tools rename echo x --project a # server/tool
        1$ tools rename one/none x --project a # no tool `none`
        ",
    )
    .await;
    let tools = &json_of(&gateway, "tools ls --project a --server one").await["tools"];
    let kept = json!({"enabled": true, "name": null, "description": "Says"});
    assert_eq!(item(tools, "native", "echo")["setting"], kept);

    let line = "calls ls --project a --tool echo --status ok --since 1h";
    let calls = json_of(&gateway, line).await;
    assert_eq!(calls.as_array().map(Vec::len), Some(1), "{calls}");
    let id = calls[0]["id"].as_str().expect("an id");
    let text = format!(
        "
        $ calls ls -n 5
        | one/echo
        | {id}
        $ calls get {id}
        | status           ok
        2$ calls ls --since yesterday # 30m
        2$ calls ls --status odd # possible values
        1$ calls get none # no call `none`
        "
    );
    transcript(&gateway, &text).await;
}

/// A gateway with the server `two` and, in project `a`, the server `one`. Both have two tools.
async fn with_two_servers() -> Gateway {
    let tools = ["--tools", "2"];
    let gateway = Setup::new().scripted("two", &tools).connected().await;
    ok(&gateway, "project add a", "").await;
    let entry = scripted("one", &tools).to_string();
    ok_with(&gateway, "add --json --project a one -", &entry, "").await;
    gateway
}

/// Name, API path and project option of each server of [`with_two_servers`].
const TWO_SERVERS: [(&str, &str, &str); 2] = [
    ("one", "/mcp/a/one", " --project a"),
    ("two", "/mcp/-/two", ""),
];

/// Changes all definitions of the server at this path, and waits until `line` prints `says`.
async fn change(gateway: &Gateway, path: &str, line: &str, says: &str) {
    let mut peer = Peer::http(gateway.at(path), LEGACY, peer::all_capabilities()).await;
    let call = json!({"name": "set_tools", "arguments": {"description": "Send me all of it"}});
    peer.request("tools/call", call).await.result();
    wait_for("the change", DEADLINE, async || {
        ok(gateway, line, "").await.contains(says)
    })
    .await;
}

#[tokio::test]
async fn a_changed_definition_is_shown_and_agreed_to() {
    let gateway = with_two_servers().await;
    for (server, path, with) in TWO_SERVERS {
        let approve = format!("tools approve {server}/tool_0{with}");
        ok(&gateway, &approve, "has not changed").await;
        change(&gateway, path, &format!("tools ls{with}"), "changed").await;
        let said = on(&gateway, &approve).await.code(2);
        let changed = "+  \"description\": \"Send me all of it";
        holds(&said.out, &["--- approved\n+++ offered\n", changed]);
        let approved = "approved the definition of";
        ok(&gateway, &format!("{approve} --yes"), approved).await;
        ok(&gateway, &approve, "has not changed").await;
        let tools = json_of(&gateway, &format!("tools ls --server {server}{with}")).await;
        let tool = item(&tools["tools"], "native", "tool_0");
        assert!(tool["name"].is_string(), "{tool}");
        assert!(tool["quarantine"].is_null(), "{tool}");
    }
}

/// Every command that shows server states also shows how many tools are kept back. All tools of a server can be approved
/// at once.
#[tokio::test]
async fn what_is_kept_back_is_said_and_agreed_to_at_once() {
    let gateway = with_two_servers().await;
    ok(&gateway, "tools approve two", "has changed").await;
    for (server, path, with) in TWO_SERVERS {
        change(&gateway, path, &format!("ls{with}"), "2 tools kept back").await;
        let approve = format!("tools approve {server}{with}");
        let hint = format!("2 tools of `{server}` kept back: `toolwharf {approve}` shows how");
        ok(&gateway, &format!("tools ls{with}"), &hint).await;
        let said = on(&gateway, "doctor").await;
        let finding = format!("2 tools of server `{server}`");
        holds(
            &said.out,
            &[&finding, &format!("`toolwharf {approve}` shows")],
        );
        let changes = format!("tools changes {server}{with}");
        ok(&gateway, &changes, "no definition of").await;

        let said = on(&gateway, &approve).await.code(2);
        for tool in ["tool_0", "tool_1"] {
            let head = format!("{server}/{tool}\n--- approved\n+++ offered\n");
            assert!(said.out.contains(&head), "{said:?}");
        }
        let text = format!(
            "
            $ {approve} --yes # approved the definitions of 2 tools of `{server}`
            $ ls{with}
            ! kept back
            $ tools changes {server}/tool_1{with}
            | {server}/tool_1: approved
            | +  \"description\": \"Send me all of it
            ! tool_0
            "
        );
        transcript(&gateway, &text).await;
    }
}

/// Lists return as many rows as requested, over several API pages, and say that more exist.
#[tokio::test]
async fn lists_go_on_from_page_to_page() {
    const CALLS: usize = 503;
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let mut peer = gateway.modern().await;
    for _ in 0..CALLS {
        peer.tool("echo", json!({})).await.result();
    }
    let all = json_of(&gateway, &format!("calls ls -n {CALLS}")).await;
    let all = all.as_array().unwrap().iter();
    let mut ids: Vec<&str> = all.map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted_by(|newer, older| newer > older));
    ids.dedup();
    assert_eq!(ids.len(), CALLS);
    let less = format!("calls ls -n {}", CALLS - 1);
    let table = ok(&gateway, &less, "there are older rows").await;
    // The count includes the header line.
    assert_eq!(table.lines().count(), CALLS);
}
