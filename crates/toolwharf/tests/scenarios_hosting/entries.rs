//! U01: an entry of the configuration file that names an image.

use serde_json::{Value, json};
use testkit::wait_for_some;

use crate::support::{LONG_DEADLINE, Platform, Site, unique};

#[tokio::test]
async fn u01_an_image_of_the_file_runs_under_runc() {
    an_image_of_the_file(Platform::Runc).await;
}

#[tokio::test]
async fn u01_an_image_of_the_file_runs_under_gvisor() {
    an_image_of_the_file(Platform::Gvisor).await;
}

async fn an_image_of_the_file(platform: Platform) {
    let site = Site::new(platform).await;
    let name = unique("u01");
    site.kept.servers(json!({ &name: {
        "image": "toolwharf-test/scripted", "args": ["--name", name],
        "toolwharf": { "sandbox": { "memory": "128M" }, "volumes": ["/kept"] },
    }}));
    let running = async || {
        let host = site.start().await;
        let row = wait_for_some("the server to run", LONG_DEADLINE, async || {
            let path = format!("/mcp/servers/{name}");
            let row = host.running.ok("GET", &path, Value::Null).await;
            (row["status"] == "running").then_some(row)
        });
        let row = row.await;
        (host, row)
    };
    let called = async |host: &crate::support::Host, tool: &str, arguments: Value| {
        let params = json!({"name": tool, "arguments": arguments});
        let scope = format!("-/{name}");
        let reply = host.running.try_mcp(&scope, "tools/call", params).await;
        let answer: Value = serde_json::from_str(&reply.unwrap().text()).unwrap();
        answer["result"]["content"][0]["text"].clone()
    };
    let (host, row) = running().await;
    assert_eq!(row["sandbox"], platform.word(), "{row:#}");
    let memory = row["enforced"].as_array().unwrap().iter();
    let memory = memory.filter(|one| one["what"] == "memory" && one["holds"] == true);
    assert_eq!(memory.count(), 1, "{row:#}");
    let write = json!({"path": "/kept/one", "text": "kept"});
    assert_eq!(called(&host, "write", write).await, "written");
    host.stop().await;
    // Its data is kept for the next run of the product.
    let (host, _) = running().await;
    let read = json!({"path": "/kept/one"});
    assert_eq!(called(&host, "read", read).await, "kept");
    host.stop().await;
}
