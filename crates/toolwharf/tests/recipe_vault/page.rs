//! The chat page: access to it, how it asks for a key, and how a turn is stopped.

use serde_json::json;
use testkit::{
    Browser, DEADLINE,
    browser::ENTER,
    llm::{Llm, says, turns},
    wait_for,
};

use crate::common::{Gateway, Setup, chat::with_agent, checks, steps::admin};

async fn gateway(llm: &Llm) -> Gateway {
    with_agent(Setup::new(), llm, "", "[projects.home]\nservers = []\n").await
}

#[tokio::test]
async fn the_page_needs_no_key_and_runs_only_what_is_served_with_it() {
    let llm = Llm::start(&turns(&[])).await;
    let gateway = gateway(&llm).await;
    for path in ["/chat", "/chat?project=home"] {
        let reply = gateway.at(path).get(&[]).await.collect(DEADLINE).await;
        assert_eq!(reply.status, 200, "{path}");
        let header = |name: &str| reply.header(name).unwrap_or_default();
        assert!(header("content-type").starts_with("text/html"), "{path}");
        let policy = header("content-security-policy");
        let rules = ["default-src 'none'", "frame-ancestors 'none'"];
        checks::contains(policy, &rules);
        checks::contains(policy, &["script-src 'self';"]);
        checks::lacks(policy, &["unsafe"]);
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        // The page has no inline styles or scripts, and loads nothing from other hosts.
        let text = reply.text().replace("http://www.w3.org/2000/svg", "");
        checks::lacks(&text, &[" style=", "<style", " onclick=", "innerHTML"]);
        checks::lacks(&text, &["src=\"http", "href=\"http", "@import", "url("]);
    }
    let posted = gateway.at("/chat").post("{}").await;
    assert_eq!(posted.status, 405);
    let evil = [("host", "evil.example.com")];
    let rebound = gateway.at("/chat").get(&evil).await;
    assert_eq!(rebound.status, 403);
}

#[tokio::test]
async fn without_an_agent_the_page_says_what_to_write() {
    let gateway = Setup::new().serve().await;
    let browser = Browser::open().await;
    browser
        .go(&format!("{}/chat#key={}", gateway.url, gateway.token()))
        .await;
    browser.shows("[agent]").await;
    browser.shows("ANTHROPIC_API_KEY").await;
    browser.quit().await;
}

#[tokio::test]
async fn a_page_of_this_host_may_call_and_one_of_another_may_not() {
    let llm = Llm::start(&turns(&[says("Hi.")])).await;
    let hosts = "allowed_hosts = [\"tools.example.com\"]\n";
    let gateway = with_agent(Setup::new(), &llm, hosts, "").await;
    let client = admin(&gateway, "/chat").with("host", "tools.example.com");
    let body = json!({ "message": "hi" }).to_string();
    for (origin, status) in [
        ("https://tools.example.com:8443", 403),
        ("https://evil.example.com", 403),
        ("null", 403),
        ("https://tools.example.com", 200),
    ] {
        let reply = client.post_with(&[("origin", origin)], body.clone()).await;
        assert_eq!(reply.status, status, "{origin}: {}", reply.text());
    }
}

#[tokio::test]
async fn a_key_signs_the_page_in_and_a_turn_can_be_stopped() {
    let mut slow = says(&"word ".repeat(200));
    slow["reply"]["pause_ms"] = 100.into();
    slow["reply"]["blocks"][0]["deltas"] = 200.into();
    let llm = Llm::start(&turns(&[slow, says("Back again.")])).await;
    let gateway = gateway(&llm).await;
    // This key allows only the project's tools and chat.
    let api = admin(&gateway, "/keys?project=home");
    let made = api.post(r#"{"name":"kitchen","role":"call"}"#).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let key: serde_json::Value = serde_json::from_slice(&made.body).expect("JSON");
    let key = key["token"].as_str().expect("a key");

    let browser = Browser::open().await;
    let page = format!("{}/chat?project=home", gateway.url);
    browser.go(&page).await;
    browser.wait("location.pathname === '/sign-in'").await;
    browser
        .type_into("#key", &format!("twh_wrong{ENTER}"))
        .await;
    browser.shows("unknown, revoked or expired").await;
    browser.type_into("#key", &format!("{key}{ENTER}")).await;
    browser.wait("document.querySelector('#message')").await;
    assert_eq!(browser.eval("location.href").await, page);

    browser
        .type_into("#message", &format!("Tell me a lot{ENTER}"))
        .await;
    browser
        .wait("document.querySelector('.theirs .md')?.textContent.includes('word word')")
        .await;
    browser.click("#stop").await;
    browser
        .wait("document.querySelector('.note')?.textContent === 'Stopped.'")
        .await;
    wait_for(
        "the end of the request to the model",
        DEADLINE,
        async || llm.requests().await[0]["outcome"] == "dropped",
    )
    .await;
    browser
        .type_into("#message", &format!("Go on{ENTER}"))
        .await;
    browser
        .wait("[...document.querySelectorAll('.md')].at(-1).textContent === 'Back again.'")
        .await;
    assert_eq!(browser.texts(".wrong").await, [""; 0]);
    browser.quit().await;
}
