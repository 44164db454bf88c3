//! H19 and H20: files that a server wrote to its volumes survive restarts, crashes and replacements.

use serde_json::{Value, json};
use testkit::Process;

use crate::support::{Host, Platform, Site, unique};

on_every_platform!(
    h19_volumes_outlive_instances_and_the_product,
    h20_a_server_that_crashed_finds_all_that_it_wrote,
    h19_volumes_go_when_they_are_told_to,
    h19_volumes_are_kept_where_the_data_directory_is_named_from_here,
);

async fn write(host: &Host, id: &str, path: &str, text: &str) {
    let file = json!({"path": path, "text": text});
    let written = host.said(id, "write", file).await;
    assert_eq!(written, "written", "{path}");
}

async fn read(host: &Host, id: &str, path: &str) -> String {
    host.said(id, "read", json!({"path": path})).await
}

/// Registers a server with these volumes. Returns its id.
async fn hosted(site: &Site, host: &Host, name: &str, volumes: &[&str]) -> String {
    let members = json!({"volumes": volumes, "resource_limits": {"disk": "64M"}});
    host.host(site.entry_with(name, &[], members)).await
}

async fn h19_volumes_outlive_instances_and_the_product(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let volumes = ["/data", "/var/cache/h19"];
    let id = hosted(&site, &host, "h19", &volumes).await;
    let other = hosted(&site, &host, "h19-other", &volumes).await;
    assert_eq!(host.status(&id).await["volumes"], json!(volumes));
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
    let scratch = json!({"path": "/tmp/scratch"});
    let scratch = host.tool(&id, "read", scratch).await;
    assert_eq!(
        scratch["isError"], true,
        "/tmp outlives an instance: {scratch}"
    );
    host.stop().await;

    let started = async || {
        let host = site.start().await;
        host.until(&id, "running").await;
        host.until(&other, "running").await;
        intact(&host).await;
        host
    };
    started().await.running.kill().await;
    started().await.stop().await;
}

async fn h20_a_server_that_crashed_finds_all_that_it_wrote(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let name = unique("h20");
    let id = hosted(&site, &host, &name, &["/data"]).await;
    let files = 20;
    for n in 0..files {
        write(&host, &id, &format!("/data/{n}"), &format!("text {n}")).await;
    }
    host.call(&id, "crash", json!({"code": 1})).await;
    host.is_back(&id, 2).await;
    for n in 0..files {
        let text = read(&host, &id, &format!("/data/{n}")).await;
        assert_eq!(text, format!("text {n}"));
    }
    write(&host, &id, "/data/second", "before the kill").await;
    host.kill_server(&id, &name);
    host.is_back(&id, 3).await;
    assert_eq!(read(&host, &id, "/data/second").await, "before the kill");
    assert_eq!(read(&host, &id, "/data/0").await, "text 0");
    host.stop().await;
}

async fn h19_volumes_go_when_they_are_told_to(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let kept = hosted(&site, &host, "h19-kept", &["/data"]).await;
    let removed = hosted(&site, &host, "h19-removed", &["/data"]).await;
    for id in [&kept, &removed] {
        write(&host, id, "/data/x", "x").await;
        assert!(site.has_volumes(id), "{id}");
    }
    host.ok("DELETE", &format!("/{kept}"), Value::Null).await;
    let path = format!("/{removed}?volumes=true");
    host.ok("DELETE", &path, Value::Null).await;
    assert!(site.has_volumes(&kept));
    assert!(!site.has_volumes(&removed));
    assert_eq!(host.list().await, Vec::<Value>::new());
    host.stop().await;
}

async fn h19_volumes_are_kept_where_the_data_directory_is_named_from_here(platform: Platform) {
    let site = Site::new(platform).await;
    let mut command = site.kept.command("serve");
    let options = ["--listen", "127.0.0.1:0", "--data-dir", "./data"];
    command.current_dir(site.kept.dir.path()).args(options);
    let running = site.kept.running(Process::spawn(command)).await;
    let host = Host { running, platform };
    let id = hosted(&site, &host, "h19", &["/data"]).await;
    write(&host, &id, "/data/x", "x").await;
    assert!(site.has_volumes(&id));
    host.stop().await;
}
