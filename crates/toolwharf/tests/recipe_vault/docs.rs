//! The REST API documentation page: it shows the operations, and loads nothing from other hosts.

use testkit::Browser;

use crate::common::Setup;

#[tokio::test]
async fn the_page_of_the_api_shows_operations_and_asks_only_the_gateway() {
    let gateway = Setup::new().serve().await;
    let browser = Browser::open().await;
    browser
        .go(&format!(
            "{}/docs#tag/servers/GET/api/v1/mcp/servers/{{id}}",
            gateway.url
        ))
        .await;
    let declared = "Returns the declaration and the state";
    // The page shows a parameter with its description, and an example of the response.
    for text in [declared, "or its name if it is unique", "notes-server"] {
        browser.shows(text).await;
    }

    let asked = browser
        .eval("performance.getEntriesByType('resource').map((one) => one.name)")
        .await;
    let asked: Vec<String> = serde_json::from_value(asked).expect("addresses");
    for part in ["/docs/scalar.js?", "/openapi.json"] {
        assert!(asked.iter().any(|url| url.contains(part)), "{asked:?}");
    }
    let elsewhere = |url: &&String| !url.starts_with(&gateway.url) && !url.starts_with("data:");
    assert_eq!(asked.iter().find(elsewhere), None);
    // Policy violations are logged here, after Scalar's name and version.
    let complaints = browser.complaints().await;
    let complaint = complaints
        .iter()
        .find(|line| !line.contains("@scalar/api-reference@"));
    assert_eq!(complaint, None);
    browser.quit().await;
}
