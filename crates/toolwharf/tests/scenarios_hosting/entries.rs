//! U01: an entry of the configuration file that names an image.

use serde_json::json;

use crate::support::{Platform, Site, unique};

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
        let row = host.until(&name, "running").await;
        (host, row)
    };
    let (host, row) = running().await;
    assert_eq!(row["sandbox"], platform.word(), "{row:#}");
    let memory = row["enforced"].as_array().unwrap().iter();
    let memory = memory.filter(|one| one["what"] == "memory" && one["holds"] == true);
    assert_eq!(memory.count(), 1, "{row:#}");
    let write = json!({"path": "/kept/one", "text": "kept"});
    assert_eq!(host.called(&name, "write", write).await, "written");
    host.stop().await;
    // The server's data is kept for the next run of the product.
    let (host, _) = running().await;
    let read = json!({"path": "/kept/one"});
    assert_eq!(host.called(&name, "read", read).await, "kept");
    host.stop().await;
}
