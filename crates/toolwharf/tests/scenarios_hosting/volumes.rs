//! H19 and H20: files that a server wrote to its volumes survive restarts, crashes and replacements.

use serde_json::{Value, json};
use testkit::Process;

use crate::support::{Host, Platform, Site, unique, with};

on_every_platform!(
    h19_volumes_outlive_instances_and_the_product,
    h20_a_server_that_crashed_finds_all_that_it_wrote,
    h19_volumes_go_when_they_are_told_to,
    h19_volumes_are_kept_where_the_data_directory_is_named_from_here,
);

async fn write(host: &Host, id: &str, path: &str, text: &str) {
    let written = host
        .said(id, "write", json!({"path": path, "text": text}))
        .await;
    assert_eq!(written, "written", "{path}");
}

async fn read(host: &Host, id: &str, path: &str) -> String {
    host.said(id, "read", json!({"path": path})).await
}

async fn h19_volumes_outlive_instances_and_the_product(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let volumes =
        json!({"volumes": ["/data", "/var/cache/h19"], "resource_limits": {"disk": "64M"}});
    let id = host
        .host(with(site.entry("h19", &[]), volumes.clone()))
        .await;
    let other = host.host(with(site.entry("h19-other", &[]), volumes)).await;
    assert_eq!(
        host.status(&id).await["volumes"],
        json!(["/data", "/var/cache/h19"])
    );
    write(&host, &id, "/data/deep/kept", "kept").await;
    write(&host, &id, "/var/cache/h19/kept", "as well").await;
    write(&host, &id, "/tmp/scratch", "not kept").await;
    // Each server has separate volumes.
    write(&host, &other, "/data/deep/kept", "of the other").await;
    let intact = async |host: &Host| {
        assert_eq!(read(host, &id, "/data/deep/kept").await, "kept");
        assert_eq!(read(host, &id, "/var/cache/h19/kept").await, "as well");
        assert_eq!(read(host, &other, "/data/deep/kept").await, "of the other");
    };
    intact(&host).await;
    assert_eq!(host.order(&id, "restart").await["status"], "running");
    intact(&host).await;
    let scratch = host
        .tool(&id, "read", json!({"path": "/tmp/scratch"}))
        .await;
    assert_eq!(
        scratch["isError"], true,
        "scratch outlives an instance: {scratch}"
    );
    host.stop().await;

    let host = site.start().await;
    host.until(&id, "running").await;
    host.until(&other, "running").await;
    intact(&host).await;
    host.running.kill().await;

    let host = site.start().await;
    host.until(&id, "running").await;
    host.until(&other, "running").await;
    intact(&host).await;
    host.stop().await;
}

async fn h20_a_server_that_crashed_finds_all_that_it_wrote(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let name = unique("h20");
    let volumes = json!({"volumes": ["/data"], "resource_limits": {"disk": "64M"}});
    let id = host.host(with(site.entry(&name, &[]), volumes)).await;
    let files = 20;
    for n in 0..files {
        write(&host, &id, &format!("/data/{n}"), &format!("text {n}")).await;
    }
    host.call(&id, "crash", json!({"code": 1})).await;
    host.happened(&id, "ready", 2).await;
    host.until(&id, "running").await;
    for n in 0..files {
        assert_eq!(
            read(&host, &id, &format!("/data/{n}")).await,
            format!("text {n}")
        );
    }
    write(&host, &id, "/data/second", "before the kill").await;
    host.kill_server(&id, &name);
    host.happened(&id, "ready", 3).await;
    host.until(&id, "running").await;
    assert_eq!(read(&host, &id, "/data/second").await, "before the kill");
    assert_eq!(read(&host, &id, "/data/0").await, "text 0");
    host.stop().await;
}

async fn h19_volumes_go_when_they_are_told_to(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let volumes = json!({"volumes": ["/data"], "resource_limits": {"disk": "64M"}});
    let kept = host
        .host(with(site.entry("h19-kept", &[]), volumes.clone()))
        .await;
    let removed = host
        .host(with(site.entry("h19-removed", &[]), volumes))
        .await;
    for id in [&kept, &removed] {
        write(&host, id, "/data/x", "x").await;
        assert!(site.has_volumes(id), "{id}");
    }
    host.ok("DELETE", &format!("/{kept}"), Value::Null).await;
    host.ok("DELETE", &format!("/{removed}?volumes=true"), Value::Null)
        .await;
    assert!(site.has_volumes(&kept));
    assert!(!site.has_volumes(&removed));
    let list = host.ok("GET", "", Value::Null).await;
    assert_eq!(list["servers"], json!([]));
    host.stop().await;
}

async fn h19_volumes_are_kept_where_the_data_directory_is_named_from_here(platform: Platform) {
    let site = Site::new(platform).await;
    let mut command = site.kept.command("serve");
    command.current_dir(site.kept.dir.path()).args([
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        "./data",
    ]);
    let running = site.kept.running(Process::spawn(command)).await;
    let host = Host { running, platform };
    let volumes = json!({"volumes": ["/data"], "resource_limits": {"disk": "64M"}});
    let id = host.host(with(site.entry("h19", &[]), volumes)).await;
    write(&host, &id, "/data/x", "x").await;
    assert!(site.has_volumes(&id));
    host.stop().await;
}
