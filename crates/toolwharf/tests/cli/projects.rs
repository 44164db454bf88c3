//! The command line for projects, secrets, products, keys, calls and tools, on a running gateway.

use crate::common::{
    LEGACY, Setup, scripted,
    shell::{fails, json_of, ok, ok_with, on, on_with, transcript},
};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Peer, peer};

#[tokio::test]
async fn projects_and_their_servers() {
    let gateway = Setup::new().serve().await;
    transcript(
        &gateway,
        "
        $ project ls # there are no projects yet
        $ project add games --name Games # added the project `games`
        $ project add games --description Play --naming always-prefix # changed
        ",
    )
    .await;
    let shown = json_of(&gateway, "project get games").await;
    assert_eq!(shown["name"], "Games");
    assert_eq!(shown["description"], "Play");
    assert_eq!(shown["naming"], "always-prefix");
    let table = ok(&gateway, "project ls", "").await;
    assert!(table.contains("games  enabled  Games  Play"), "{table}");

    let program = Bin::path("testkit-scripted");
    let add = format!("add --project games one {} --name one", program.display());
    let said = on(&gateway, &add).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err.contains("added `one` of project `games`"),
        "{said:?}"
    );
    assert!(said.err.contains("starts at its first use"), "{said:?}");
    let tools = ok(&gateway, "tools ls --project games", "").await;
    assert!(tools.contains("one__echo"), "{tools}");
    let servers = ok(&gateway, "ls --project games", "").await;
    assert!(servers.contains("running"), "{servers}");
    let told = ok(
        &gateway,
        "tools call one__echo {\"text\":\"hello\"} --project games",
        "",
    )
    .await;
    assert_eq!(told, "{\"text\":\"hello\"}\n");
    // The name can be given as in either column of `tools ls`.
    let by_own = "tools call one/echo {\"text\":\"hello\"} --project games";
    assert_eq!(ok(&gateway, by_own, "").await, told);
    let tool = ok(&gateway, "tools get one/echo --project games", "").await;
    for says in [
        "name             one__echo",
        "\"properties\"",
        "byte for byte",
    ] {
        assert!(tool.contains(says), "{says}: {tool}");
    }
    let slip = "tools call one__ehco {} --project games";
    fails(&gateway, slip, 1, "did you mean `one__echo`?").await;
    let said = on(&gateway, "get none --project games -o json").await;
    let error: Value = serde_json::from_str(&said.err).expect("JSON");
    assert_eq!(
        (said.code, &error["status"]),
        (Some(1), &json!(404)),
        "{said:?}"
    );
    let shown = ok(&gateway, "get one --project games", "").await;
    assert!(shown.contains("project          games"), "{shown}");
    ok(&gateway, "disable one --project games", "disabled `one`").await;
    ok(&gateway, "enable one --project games", "enabled `one`").await;
    ok(&gateway, "rm one --project games", "removed `one`").await;
    fails(&gateway, "get one --project games", 1, "no server `one`").await;
    fails(
        &gateway,
        "ls --project none",
        1,
        "there is no project `none`",
    )
    .await;

    ok(&gateway, "project disable games", "is disabled").await;
    ok(&gateway, "project enable games", "is enabled").await;
    fails(&gateway, "project rm games", 2, "--yes").await;
    ok(&gateway, "project rm games --yes", "removed").await;
    ok(&gateway, "project ls", "there are no projects yet").await;
    fails(&gateway, "project add a/b", 2, "letters").await;
}

#[tokio::test]
async fn secrets_come_from_standard_input() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    ok_with(
        &gateway,
        "secret set KEY --project a",
        "canary\n",
        "set `KEY` of project `a`, version 1",
    )
    .await;
    let listed = ok(&gateway, "secret ls --project a", "").await;
    assert!(
        listed.contains("KEY") && !listed.contains("canary"),
        "{listed}"
    );
    ok(&gateway, "secret rotate-master", "new master key").await;
    fails(&gateway, "secret set a-b --project a", 1, "letters, digits").await;
    fails(
        &gateway,
        "secret rm NONE --project a",
        1,
        "no secret `NONE`",
    )
    .await;
    ok(&gateway, "secret rm KEY --project a", "removed").await;
    fails(&gateway, "secret ls", 2, "--project").await;
}

#[tokio::test]
async fn products_are_installed_from_files() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    let file = gateway.folder().join("p.yaml");
    let manifest = "name: search\nversion: '1'\ndescription: finds\nmcp:\n  servers:\n    web: {url: 'https://x.example.com'}\n";
    std::fs::write(&file, manifest).expect("written");
    ok(
        &gateway,
        "product install p.yaml --project a",
        "`search` 1 is installed on project `a`: 1 servers",
    )
    .await;
    let listed = ok(&gateway, "product ls --project a", "").await;
    assert!(
        listed.contains("search  1        web      finds"),
        "{listed}"
    );
    let wrong =
        r#"{"name":"search","version":2,"mcp":{"servers":{"web":{},"two":{"type":"pigeon"}}}}"#;
    let said = on_with(&gateway, "product install - --project a", wrong).await;
    assert_eq!(said.code, Some(1));
    for place in ["/version", "/mcp/servers/web", "/mcp/servers/two"] {
        assert!(said.err.contains(place), "{said:?}");
    }
    transcript(
        &gateway,
        "
        1$ product install none.yaml --project a # cannot read none.yaml
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
    let token = ok(
        &gateway,
        "key create reader --project a --role read --expires 1d",
        "read in project `a`",
    )
    .await;
    assert!(
        token.starts_with("twh_") && token.ends_with('\n'),
        "{token}"
    );
    let file = gateway.folder().join("reader");
    std::fs::write(&file, &token).expect("written");
    transcript(
        &gateway,
        "
        $ project get a --token-file reader
        1$ project ls --token-file reader # administrator
        1$ project get b --token-file reader # there is no project `b`
        ",
    )
    .await;
    let keys = json_of(&gateway, "key ls --project a").await;
    let id = keys[0]["id"].as_str().expect("an id");
    let table = ok(&gateway, "key ls", "").await;
    assert!(
        table.contains("reader") && table.contains("active"),
        "{table}"
    );
    assert!(!table.contains(token.trim()), "{table}");
    ok(&gateway, &format!("key revoke {id}"), "revoked").await;
    fails(
        &gateway,
        "project get a --token-file reader",
        1,
        "--token-file",
    )
    .await;
    fails(&gateway, "key create x", 2, "--project").await;
    fails(&gateway, "key create x --admin --expires soon", 2, "90d").await;
    // The key that the command line itself uses comes last.
    let keys = json_of(&gateway, "key ls").await;
    let admin = keys
        .as_array()
        .expect("keys")
        .iter()
        .find(|key| key["role"] == "admin");
    let id = admin.expect("one")["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    fails(
        &gateway,
        &format!("key revoke {id}"),
        1,
        "create another one first",
    )
    .await;

    // The token file is lost. `key recover` makes a new key in the database, which the gateway accepts soon after.
    std::fs::remove_file(gateway.folder().join("data/admin-token")).expect("removed");
    fails(&gateway, "project ls", 1, "key").await;
    fails(&gateway, "key recover", 2, "--yes").await;
    ok(&gateway, "key recover --yes", "a new administrator's key").await;
    testkit::wait_for("the new key", DEADLINE, async || {
        on(&gateway, "project ls").await.code == Some(0)
    })
    .await;
    ok(&gateway, &format!("key revoke {id}"), "revoked").await;
}

#[tokio::test]
async fn calls_and_what_is_set_of_tools() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "project add a", "").await;
    let entry = scripted("one", &[]).to_string();
    std::fs::write(gateway.folder().join("entry"), &entry).expect("written");
    ok_with(&gateway, "add --json --project a one -", &entry, "added").await;
    ok(&gateway, "tools rename one/echo say --project a", "changed").await;
    ok(
        &gateway,
        "tools describe one/echo Says --project a",
        "changed",
    )
    .await;
    let listed = ok(&gateway, "tools ls --project a", "").await;
    assert!(
        listed
            .lines()
            .any(|line| line.starts_with("say ") && line.contains("Says")),
        "{listed}"
    );
    let told = ok(&gateway, "tools call say {\"text\":\"x\"} --project a", "").await;
    assert_eq!(told, "{\"text\":\"x\"}\n");
    transcript(
        &gateway,
        "
        $ disable one/echo --project a # changed
        1$ tools call say {} --project a # say
        $ enable one/echo --project a # changed
        $ tools rename one/echo --project a # changed
        2$ tools rename echo x --project a # server/tool
        1$ tools rename one/none x --project a # no tool `none`
        ",
    )
    .await;
    let setting = &json_of(&gateway, "tools ls --project a --server one").await["tools"];
    let echo = setting
        .as_array()
        .expect("tools")
        .iter()
        .find(|tool| tool["native"] == "echo");
    let kept = json!({"enabled": true, "name": null, "description": "Says"});
    assert_eq!(echo.expect("echo")["setting"], kept);

    let calls = json_of(
        &gateway,
        "calls ls --project a --tool echo --status ok --since 1h",
    )
    .await;
    assert_eq!(calls.as_array().map(Vec::len), Some(1), "{calls}");
    let id = calls[0]["id"].as_str().expect("an id");
    let table = ok(&gateway, "calls ls -n 5", "").await;
    assert!(table.contains("one/echo") && table.contains(id), "{table}");
    let shown = ok(&gateway, &format!("calls get {id}"), "").await;
    assert!(shown.contains("status           ok"), "{shown}");
    fails(&gateway, "calls ls --since yesterday", 2, "30m").await;
    fails(&gateway, "calls ls --status odd", 1, "status").await;
    fails(&gateway, "calls get none", 1, "no call `none`").await;
}

#[tokio::test]
async fn a_changed_definition_is_shown_and_agreed_to() {
    let gateway = Setup::new()
        .scripted("two", &["--tools", "2"])
        .serve()
        .await;
    gateway.up("two").await;
    ok(&gateway, "project add a", "").await;
    ok_with(
        &gateway,
        "add --json --project a one -",
        &scripted("one", &["--tools", "1"]).to_string(),
        "",
    )
    .await;
    for (project, server) in [(Some("a"), "one"), (None, "two")] {
        let with = project.map_or_else(String::new, |project| format!(" --project {project}"));
        let path = format!("/mcp/{}/{server}", project.unwrap_or("-"));
        ok(
            &gateway,
            &format!("tools approve {server}/tool_0{with}"),
            "has not changed",
        )
        .await;
        let mut peer = Peer::http(gateway.at(&path), LEGACY, peer::all_capabilities()).await;
        let call = json!({"name": "set_tools", "arguments": {"description": "Send me all of it"}});
        peer.request("tools/call", call).await.result();
        testkit::wait_for("the change", DEADLINE, async || {
            let listed = ok(&gateway, &format!("tools ls{with}"), "").await;
            listed.contains("changed")
        })
        .await;
        let approve = format!("tools approve {server}/tool_0{with}");
        let said = on(&gateway, &approve).await;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.out.contains("--- approved\n+++ offered\n"), "{said:?}");
        assert!(
            said.out.contains("+  \"description\": \"Send me all of it"),
            "{said:?}"
        );
        ok(
            &gateway,
            &format!("{approve} --yes"),
            "approved the definition of",
        )
        .await;
        ok(&gateway, &approve, "has not changed").await;
        let tools = json_of(&gateway, &format!("tools ls --server {server}{with}")).await;
        let tool = tools["tools"]
            .as_array()
            .expect("tools")
            .iter()
            .find(|tool| tool["native"] == "tool_0");
        let tool = tool.expect("the tool");
        assert!(
            tool["name"].is_string() && tool["quarantine"].is_null(),
            "{tool}"
        );
    }
}

/// Every command that shows server states also shows how many tools are kept back. All tools of a server can be approved
/// at once.
#[tokio::test]
async fn what_is_kept_back_is_said_and_agreed_to_at_once() {
    let gateway = Setup::new()
        .scripted("two", &["--tools", "2"])
        .serve()
        .await;
    gateway.up("two").await;
    ok(&gateway, "project add a", "").await;
    let entry = scripted("one", &["--tools", "2"]).to_string();
    ok_with(&gateway, "add --json --project a one -", &entry, "").await;
    ok(&gateway, "tools approve two", "has changed").await;
    for (project, server) in [(Some("a"), "one"), (None, "two")] {
        let with = project.map_or_else(String::new, |project| format!(" --project {project}"));
        let path = format!("/mcp/{}/{server}", project.unwrap_or("-"));
        let mut peer = Peer::http(gateway.at(&path), LEGACY, peer::all_capabilities()).await;
        let call = json!({"name": "set_tools", "arguments": {"description": "Send me all of it"}});
        peer.request("tools/call", call).await.result();
        testkit::wait_for("the change", DEADLINE, async || {
            let listed = ok(&gateway, &format!("ls{with}"), "").await;
            listed.contains("2 tools kept back")
        })
        .await;
        let approve = format!("tools approve {server}{with}");
        let hint = format!("2 tools of `{server}` kept back: `toolwharf {approve}` shows how");
        ok(&gateway, &format!("tools ls{with}"), &hint).await;
        let said = on(&gateway, "doctor").await;
        let finding = format!("2 tools of server `{server}`");
        assert!(said.out.contains(&finding), "{said:?}");
        assert!(
            said.out.contains(&format!("`toolwharf {approve}` shows")),
            "{said:?}"
        );
        ok(
            &gateway,
            &format!("tools changes {server}{with}"),
            "no definition of",
        )
        .await;

        let said = on(&gateway, &approve).await;
        assert_eq!(said.code, Some(2), "{said:?}");
        for tool in ["tool_0", "tool_1"] {
            let head = format!("{server}/{tool}\n--- approved\n+++ offered\n");
            assert!(said.out.contains(&head), "{said:?}");
        }
        let done = format!("approved the definitions of 2 tools of `{server}`");
        ok(&gateway, &format!("{approve} --yes"), &done).await;
        let listed = ok(&gateway, &format!("ls{with}"), "").await;
        assert!(!listed.contains("kept back"), "{listed}");
        let changes = ok(
            &gateway,
            &format!("tools changes {server}/tool_1{with}"),
            "",
        )
        .await;
        assert!(
            changes.contains(&format!("{server}/tool_1: approved")),
            "{changes}"
        );
        assert!(
            changes.contains("+  \"description\": \"Send me all of it"),
            "{changes}"
        );
        assert!(!changes.contains("tool_0"), "{changes}");
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
    let mut ids: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap())
        .collect();
    assert!(ids.is_sorted_by(|newer, older| newer > older));
    ids.dedup();
    assert_eq!(ids.len(), CALLS);
    let less = format!("calls ls -n {}", CALLS - 1);
    let table = ok(&gateway, &less, "there are older rows").await;
    // The count includes the header line.
    assert_eq!(table.lines().count(), CALLS);
}
