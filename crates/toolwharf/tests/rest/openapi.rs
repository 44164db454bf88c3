//! The OpenAPI document matches the checked-in file and the API.

use std::path::Path;

use serde_json::Value;
use testkit::DEADLINE;

use crate::{
    api::Api,
    common::{Setup, body},
};

/// Path of the checked-in document.
fn file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

#[tokio::test]
async fn the_document_is_the_one_that_is_checked_in() {
    let gateway = Setup::new().serve().await;
    let reply = gateway.page("/openapi.json").await;
    assert_eq!(reply.status, 200);
    let document = body(&reply);
    let text = serde_json::to_string_pretty(&document).expect("JSON") + "\n";
    if std::env::var_os("TOOLWHARF_UPDATE").is_some() {
        std::fs::write(file(), &text).expect("written");
    }
    let kept = std::fs::read_to_string(file()).unwrap_or_default();
    assert!(
        kept == text,
        "docs/openapi.json is out of date; run and review: TOOLWHARF_UPDATE=1 cargo nextest run -p toolwharf \
         --test rest the_document"
    );

    // The document has every route of the table and everything that it references.
    let index = Api::admin(&gateway).get("").await;
    for route in index["routes"].as_array().expect("routes") {
        let [path, method] = ["path", "method"].map(|key| route[key].as_str().expect(key));
        let operation = &document["paths"][path][method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{route}");
    }
    let mut wanted = Vec::new();
    references(&document, &mut wanted);
    assert!(!wanted.is_empty());
    for reference in wanted {
        let pointer = reference.trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                found.push(reference.clone());
            }
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_page_of_the_documentation_needs_nobody_else() {
    let gateway = Setup::new().serve().await;
    let reply = gateway.page("/docs").await;
    assert_eq!(reply.status, 200);
    let policy = reply.header("content-security-policy").expect("a policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self' 'sha256-"),
        "{policy}"
    );
    // Scalar creates its styles at run time.
    let unsafe_words = policy.replace("style-src 'unsafe-inline'", "");
    assert!(!unsafe_words.contains("unsafe"), "{policy}");
    let page = reply.text();
    assert!(!page.contains("://"), "the page contains a full URL");
    // A page of another origin cannot read the document.
    let foreign = [("origin", "http://evil.example.com")];
    let reply = gateway.at("/openapi.json").get(&foreign).await;
    assert_eq!(reply.collect(DEADLINE).await.status, 403);
}
