//! A new user gets ten real servers running from the command line alone, three of them broken in usual ways (U13).
//! Each step follows from what the command before it printed.

use serde_json::Value;
use testkit::{wait_for, wait_for_some, within};

use crate::common::{
    Gateway,
    first_hour::{BROKEN, KEY, MAX_TIME, SOUND, new_user},
    holds,
    shell::{json_of, on, on_with},
};

/// The servers with this state, by `ls`.
async fn in_state(gateway: &Gateway, state: &str) -> Vec<String> {
    let listed = json_of(gateway, "ls").await;
    let servers = listed["servers"].as_array().expect("a list");
    let with = servers.iter().filter(|server| server["status"] == state);
    with.map(|server| server["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// Waits until the output of `get` for a broken server contains all of `parts`.
async fn reason(gateway: &Gateway, server: &str, parts: &[&str]) {
    let line = format!("get {server}");
    wait_for_some(&format!("{parts:?} of {server}"), MAX_TIME, async || {
        // Long reasons are wrapped.
        let said = on(gateway, &line).await.code(0).out;
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.iter().all(|part| said.contains(part)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn u13_ten_servers_run_from_the_command_line_alone() {
    let (gateway, hour) = new_user().await;
    let file = gateway.folder().join("desktop.json");
    std::fs::write(&file, hour.servers.to_string()).expect("a file");
    within("ten servers from the command line", MAX_TIME, async {
        let said = on(&gateway, "import desktop.json").await.code(0);
        let set = format!("toolwharf secret set {KEY}");
        holds(&said.err, &["10 added", KEY, &set]);
        wait_for("the sound servers", MAX_TIME, async || {
            let running = in_state(&gateway, "running").await;
            SOUND.iter().all(|name| running.iter().any(|it| it == name))
        })
        .await;

        // No key.
        reason(&gateway, "keyed", &[KEY, &set]).await;
        let line = format!("secret set {KEY}");
        on_with(&gateway, &line, "a-key\n").await.code(0);
        if in_state(&gateway, "disabled")
            .await
            .contains(&"keyed".to_owned())
        {
            on(&gateway, "enable keyed").await.code(0);
        }

        // A certificate that the server does not trust.
        reason(&gateway, "company", &["certificate", "`SSL_CERT_FILE`"]).await;
        let env = &hour.entry("company")["env"];
        let variable = |name: &str| format!("-e {name}={}", env[name].as_str().expect("a text"));
        let line = format!(
            "add company --force -e SSL_CERT_FILE={} {} {} -- uvx {}",
            hour.ca_file.display(),
            variable("UV_DEFAULT_INDEX"),
            variable("UV_CACHE_DIR"),
            hour.entry("company")["args"][0].as_str().expect("a text"),
        );
        on(&gateway, &line).await.code(0);

        // A Node.js that is too old.
        reason(&gateway, "notes", &["Node.js", "`PATH`"]).await;
        let entry = hour.entry("notes");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let line = format!(
            "add notes --force -e MEMORY_FILE_PATH={} -e PATH={}:/usr/bin:/bin -- node {} {}",
            text(&entry["env"]["MEMORY_FILE_PATH"]),
            hour.node.parent().expect("a folder").display(),
            text(&entry["args"][0]),
            text(&entry["args"][1]),
        );
        on(&gateway, &line).await.code(0);

        wait_for("all ten servers", MAX_TIME, async || {
            in_state(&gateway, "running").await.len() == SOUND.len() + BROKEN.len()
        })
        .await;
    })
    .await;
    let tools = json_of(&gateway, "tools ls").await;
    let tools = tools["tools"].as_array().expect("a list");
    for server in SOUND.iter().chain(&BROKEN) {
        let has_tools = tools.iter().any(|tool| tool["server"] == *server);
        assert!(has_tools, "{server}: {tools:?}");
    }
    let listed = on(&gateway, "ls -o json").await.code(0);
    assert!(!listed.out.contains("a-key") && !listed.err.contains("a-key"));
}
