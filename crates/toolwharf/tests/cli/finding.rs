//! How a command finds its gateway, and the findings of `doctor`.

use serde_json::json;

use super::support::scripted;
use crate::common::{
    Setup,
    shell::{Home, transcript},
};

#[tokio::test]
async fn doctor_says_what_to_do() {
    let home = Home::new();
    home.write(
        "bad.json",
        r#"{"mcpServers": {"a": {"command": "x", "type": "pigeon"}, "b": {"args": []},
            "c": {"command": "x", "env": {"K": "${SURELY_NOT_SET}"}}}}"#,
    );
    home.transcript(
        "
        1$ doctor --config none.json
        | the file does not exist
        1$ doctor --config bad.json
        | pigeon
        | command
        | SURELY_NOT_SET
        | bad.json:1:
        | PROBLEM
        | problems to fix
        ",
    )
    .await;
    home.write(
        "paths.json",
        r#"{"mcpServers": {"a": {"command": "surely-not-there"}, "b": {"command": "/surely/not"},
            "c": {"command": "sh", "cwd": "/surely/not"}, "d": {"command": "nor-this", "disabled": true}}}"#,
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let data = home.path("d").display().to_string();
    let settings = format!("listen = \"127.0.0.1:{port}\"\ndata_dir = \"{data}\"");
    home.write("s.toml", &settings);
    home.write("d/admin-token", "twh_0123456789abcdef");
    let said = home.run("doctor -c paths.json -c s.toml -o json").await;
    let said = said.code(1);
    let report = said.json();
    assert_eq!(report["problems"], 5, "{said:?}");
    for absent in ["twh_", "nor-this"] {
        assert!(!said.out.contains(absent), "{said:?}");
    }
    for finding in report["findings"].as_array().expect("findings") {
        let helps = finding["level"] == "ok" || finding["help"].is_string();
        assert!(helps, "{finding}");
    }

    let gateway = Setup::new()
        .settings("listen = \"127.0.0.1:0\"")
        .scripted("one", &[])
        .connected()
        .await;
    let text = format!(
        "
        $ doctor
        | server `one` is running
        | Verdict:
        $ add bad -- {} --exit-at-start --stderr-at-start 'no licence'
        1$ doctor
        | exit code 5
        | | no licence
        ",
        scripted()
    );
    transcript(&gateway, &text).await;
}

#[tokio::test]
async fn the_gateway_that_is_meant_is_found_and_no_other() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let home = Home::new();
    let data = gateway.folder().join("data").display().to_string();
    home.write(
        "other.json",
        r#"{"mcpServers": {"mine": {"command": "x"}}}"#,
    );
    let of_gateway = gateway.servers_file().display().to_string();
    home.write("token", &gateway.token());
    home.write("wrong", "twh_wrong");
    let url = &gateway.url;
    // If `--config` names a configuration other than the gateway's, the command uses the files of that configuration.
    let text = format!(
        "
        $ --config other.json ls --data-dir {data} # no gateway
        | mine
        $ --config {of_gateway} ls --data-dir {data}
        | running
        $ ls --url {url} --token-file token
        | one
        1$ ls --url {url} # --token-file
        1$ ls --url {url} --token-file wrong # TOOLWHARF_TOKEN
        1$ ls --url ftp://example.com # http://
        1$ ls --url http://127.0.0.1:1 # cannot reach
        "
    );
    home.transcript(&text).await;

    // The `serve.json` of a killed gateway is ignored, even if another process listens on the gateway's port by now.
    let thief = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    thief.set_nonblocking(true).expect("a socket");
    let there = json!({"url": format!("http://{}", thief.local_addr().expect("an address")), "pid": 4_194_304});
    home.write("stale/serve.json", &there.to_string());
    home.write("stale/admin-token", "twh_0123456789abcdef");
    home.transcript("$ -c other.json ls --data-dir stale # no gateway")
        .await;
    assert!(thief.accept().is_err(), "the token went to another process");
}
