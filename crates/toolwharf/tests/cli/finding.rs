//! How a command finds its gateway, and the findings of `doctor`.

use serde_json::json;

use super::support::scripted;
use crate::common::{
    Setup,
    shell::{Home, on},
};

#[tokio::test]
async fn doctor_says_what_to_do() {
    let home = Home::new();
    let said = home.run("doctor --config none.json").await.code(1);
    assert!(said.out.contains("the file does not exist"), "{said:?}");
    home.write(
        "bad.json",
        r#"{"mcpServers": {"a": {"command": "x", "type": "pigeon"}, "b": {"args": []},
            "c": {"command": "x", "env": {"K": "${SURELY_NOT_SET}"}}}}"#,
    );
    let said = home.run("doctor --config bad.json").await.code(1);
    for part in [
        "pigeon",
        "command",
        "SURELY_NOT_SET",
        "bad.json:1:",
        "PROBLEM",
        "problems to fix",
    ] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    home.write(
        "paths.json",
        r#"{"mcpServers": {"a": {"command": "surely-not-there"}, "b": {"command": "/surely/not"},
            "c": {"command": "sh", "cwd": "/surely/not"}, "d": {"command": "nor-this", "disabled": true}}}"#,
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    home.write(
        "s.toml",
        &format!(
            "listen = \"127.0.0.1:{port}\"\ndata_dir = \"{}\"",
            home.path("d").display()
        ),
    );
    home.write("d/admin-token", "twh_0123456789abcdef");
    let said = home
        .run("doctor -c paths.json -c s.toml -o json")
        .await
        .code(1);
    let report = said.json();
    assert_eq!(report["problems"], 5, "{said:?}");
    assert!(
        !said.out.contains("twh_") && !said.out.contains("nor-this"),
        "{said:?}"
    );
    let findings = report["findings"].as_array().expect("findings");
    assert!(
        findings
            .iter()
            .all(|f| f["level"] == "ok" || f["help"].is_string()),
        "{said:?}"
    );

    let gateway = Setup::new()
        .settings("listen = \"127.0.0.1:0\"")
        .scripted("one", &[])
        .serve()
        .await;
    gateway.up("one").await;
    let said = on(&gateway, "doctor").await.code(0);
    assert!(said.out.contains("server `one` is running"), "{said:?}");
    assert!(said.out.contains("Verdict:"), "{said:?}");
    let scripted = scripted();
    let bad = format!("add bad -- {scripted} --exit-at-start --stderr-at-start 'no licence'");
    on(&gateway, &bad).await.code(0);
    let said = on(&gateway, "doctor").await.code(1);
    assert!(
        said.out.contains("exit code 5") && said.out.contains("| no licence"),
        "{said:?}"
    );
}

#[tokio::test]
async fn the_gateway_that_is_meant_is_found_and_no_other() {
    let gateway = Setup::new().scripted("one", &[]).serve().await;
    gateway.up("one").await;
    let home = Home::new();
    let data = gateway.folder().join("data");
    let data = data.to_str().expect("UTF-8");
    let file = home.write(
        "other.json",
        r#"{"mcpServers": {"mine": {"command": "x"}}}"#,
    );
    // A configuration other than the gateway's: the command means its files.
    let said = home
        .run(&format!("--config other.json ls --data-dir {data}"))
        .await
        .code(0);
    assert!(
        said.out.contains("mine") && said.err.contains("no gateway"),
        "{said:?}"
    );
    let of_gateway = gateway.servers_file();
    let of_gateway = of_gateway.to_str().expect("UTF-8");
    let said = home
        .run(&format!("--config {of_gateway} ls --data-dir {data}"))
        .await
        .code(0);
    assert!(said.out.contains("running"), "{said:?}");

    let token = home.write("token", &gateway.token());
    let token = token.to_str().expect("UTF-8");
    let url = gateway.url.clone();
    let said = home
        .run(&format!("ls --url {url} --token-file {token}"))
        .await
        .code(0);
    assert!(said.out.contains("one"), "{said:?}");
    home.run(&format!("ls --url {url}"))
        .await
        .code(1)
        .says("--token-file");
    home.write("wrong", "twh_wrong");
    home.run(&format!("ls --url {url} --token-file wrong"))
        .await
        .code(1)
        .says("TOOLWHARF_TOKEN");
    home.run("ls --url https://example.com")
        .await
        .code(1)
        .says("http://");
    home.run("ls --url http://127.0.0.1:1")
        .await
        .code(1)
        .says("cannot reach");

    // The file of a killed gateway is ignored, even if another process listens on its port by now.
    let thief = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    thief.set_nonblocking(true).expect("a socket");
    let there = json!({"url": format!("http://{}", thief.local_addr().expect("an address")), "pid": 4_194_304});
    home.write("stale/serve.json", &there.to_string());
    home.write("stale/admin-token", "twh_0123456789abcdef");
    let config = file.to_str().expect("UTF-8");
    let said = home
        .run(&format!("-c {config} ls --data-dir stale"))
        .await
        .code(0);
    assert!(said.err.contains("no gateway"), "{said:?}");
    assert!(thief.accept().is_err(), "the token went to another process");
}
