//! Browsers that sign in to Toolwharf itself: with a link, a key, or at an issuer; in Chromium, and against pages of others.

#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

#[expect(dead_code, reason = "each test binary uses its own part of it")]
#[path = "recipe_vault/browser.rs"]
mod browser;
mod common;

use browser::{Browser, ENTER};
use common::{
    Gateway, Setup,
    cli::{said, toolwharf},
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Issuer, RawClient, Reply, wait_for};

/// The status of a request that a script of the page makes, with the cookie and nothing else.
const STATUS: &str = "fetch('/api/v1/status').then((reply) => { window.got = reply.status; })";
/// The same for one that changes something.
const PUT: &str = "fetch('/api/v1/projects/made', { method: 'PUT', body: '{}', headers: { 'content-type': 'application/json', \
                   'x-requested-with': 'toolwharf' } }).then((reply) => { window.got = reply.status; })";

/// What a script of the page gets.
async fn got(browser: &Browser, script: &str) -> Value {
    browser
        .eval(&format!("(window.got = null, {script}, 1)"))
        .await;
    browser.wait("window.got !== null").await;
    browser.eval("window.got").await
}

fn link(stderr: &str) -> String {
    let line = stderr.lines().find(|line| line.contains("/sign-in#"));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

async fn json_of(reply: impl Future<Output = Reply>) -> Value {
    let reply = reply.await;
    assert!(reply.status.is_success(), "{}", reply.text());
    serde_json::from_slice(&reply.body).unwrap()
}

/// Signs in with a key, as the page's form does; the answer.
async fn enter(gateway: &Gateway, key: &str, origin: &str) -> Reply {
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("origin", origin),
    ];
    gateway
        .at("/sign-in")
        .post_with(&headers, format!("key={key}&next=/chat"))
        .await
}

fn cookie(reply: &Reply) -> String {
    let set = reply.header("set-cookie").unwrap();
    assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_link_signs_a_browser_in_once() {
    let gateway = Setup::new().serve().await;
    let printed = gateway.logged("/sign-in#").await;
    let url = link(&printed);
    assert!(
        url.starts_with(&format!("{}/sign-in#", gateway.url)),
        "{url}"
    );
    let browser = Browser::open().await;
    browser.go(&url).await;
    browser.wait("location.pathname === '/servers'").await;
    assert_eq!(got(&browser, STATUS).await, 200);
    assert_eq!(got(&browser, PUT).await, 201);
    // Scripts do not see the cookie.
    assert_eq!(browser.eval("document.cookie").await, "");

    let other = Browser::open().await;
    other.go(&url).await;
    other
        .wait("document.body.innerText.includes('used before')")
        .await;
    let mut open = toolwharf();
    open.args(["open", "--print", "--data-dir"])
        .arg(gateway.folder().join("data"));
    let printed = said(open, "").await.code(0);
    other.go(printed.out.trim()).await;
    other.wait("location.pathname === '/servers'").await;
    assert_eq!(got(&other, STATUS).await, 200);
    other.quit().await;
    browser.quit().await;
}

#[tokio::test]
async fn a_key_signs_a_browser_in_until_it_is_revoked() {
    let gateway = Setup::new().serve().await;
    let admin = gateway
        .at("/api/v1/keys")
        .with("authorization", &format!("Bearer {}", gateway.token()));
    let made = json_of(admin.post(r#"{"name":"browser"}"#)).await;
    let key = made["token"].as_str().unwrap().to_owned();
    let browser = Browser::open().await;
    browser
        .go(&format!("{}/sign-in?next=/docs", gateway.url))
        .await;
    browser
        .type_into("#key", &format!("twh_wrong{ENTER}"))
        .await;
    browser
        .wait("document.body.innerText.includes('opens nothing here')")
        .await;
    browser.type_into("#key", &format!("{key}{ENTER}")).await;
    browser.wait("location.pathname === '/docs'").await;
    assert_eq!(got(&browser, STATUS).await, 200);
    let id = made["id"].as_str().unwrap();
    let revoked = admin.at(&format!("/api/v1/keys/{id}")).delete(&[]).await;
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    assert_eq!(got(&browser, STATUS).await, 401);
    browser.quit().await;
}

#[tokio::test]
async fn an_issuer_signs_a_browser_in_as_its_claims_say() {
    let accounts = json!({ "ann": { "groups": ["operators"] } });
    let issuer = Issuer::start(json!({ "accounts": accounts, "host": "localhost" })).await;
    let gateway = with_issuer(&issuer).await;
    register(&issuer, &gateway).await;
    let browser = Browser::open().await;
    browser.go(&format!("{}/sign-in", gateway.url)).await;
    browser.click("a.button").await;
    browser
        .type_into("[name=account]", &format!("ann{ENTER}"))
        .await;
    browser.wait("document.querySelector('#allow')").await;
    browser.click("#allow").await;
    browser.wait("location.pathname === '/servers'").await;
    assert_eq!(got(&browser, STATUS).await, 200);
    assert_eq!(got(&browser, PUT).await, 201);

    // Somebody without a role is told so, and a refusal is the issuer's own words.
    for (account, deny, said) in [
        ("eve", false, "user:corp:eve"),
        ("ann", true, "access_denied"),
    ] {
        let (begun, waiting) = begin(&gateway).await;
        let back = issuer.browse(&begun, account, deny).await;
        let reply = come_back(back["location"].as_str().unwrap(), &waiting).await;
        assert!(
            reply.header("set-cookie").is_none() && reply.text().contains(said),
            "{}",
            reply.text()
        );
    }
    // An answer counts once, in the browser that began, and with the state that it began with.
    let (begun, waiting) = begin(&gateway).await;
    let back = issuer.sign_in(&begun, "ann").await;
    let wrong = back.replace("state=", "state=0");
    for (place, cookie) in [
        (&back, "toolwharf-sign-in=stolen"),
        (&back, &waiting),
        (&wrong, &waiting),
    ] {
        let reply = come_back(place, cookie).await;
        assert_eq!(reply.status, 400);
        assert!(
            reply.text().contains("began in another browser"),
            "{}",
            reply.text()
        );
    }
    browser.quit().await;
}

/// A gateway at which people of `issuer` can sign in.
async fn with_issuer(issuer: &Issuer) -> Gateway {
    let settings = format!(
        "[auth.oidc.corp]\nissuer = \"{}\"\nclient_id = \"wharf\"\n\
         access = [{{ claim = \"groups\", values = [\"operators\"], role = \"admin\" }}]\n",
        issuer.url()
    );
    Setup::new().settings(&settings).serve().await
}

/// Has the issuer know the gateway, whose port is not known before it runs.
async fn register(issuer: &Issuer, gateway: &Gateway) {
    let redirect = format!("{}/sign-in/callback", gateway.url);
    let client = json!({ "client_id": "wharf", "redirect_uris": [redirect] });
    issuer.set(json!({ "clients": [client] })).await;
    issuer.rotate().await;
}

/// Where the gateway sends a browser, and the cookie that it has to bring back.
async fn begin(gateway: &Gateway) -> (String, String) {
    let reply = gateway
        .at("/sign-in/with/corp?next=//evil.example")
        .get(&[])
        .await;
    assert_eq!(reply.status, 303);
    let cookie = reply
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    (reply.header("location").unwrap().to_owned(), cookie)
}

async fn come_back(place: &str, cookie: &str) -> Reply {
    RawClient::new(place)
        .get(&[("cookie", cookie)])
        .await
        .collect(DEADLINE)
        .await
}

/// Whatever another page does with the cookie of somebody who is signed in, nothing happens.
#[tokio::test]
async fn a_page_of_another_origin_can_do_nothing() {
    // Another port of this machine is another origin, and the same site.
    let issuer = Issuer::start(json!({})).await;
    let gateway = Setup::new().serve().await;
    let browser = Browser::open().await;
    browser.go(&link(&gateway.logged("/sign-in#").await)).await;
    browser.wait("location.pathname === '/servers'").await;
    assert_eq!(got(&browser, STATUS).await, 200);
    browser
        .go(&format!(
            "{}/.well-known/openid-configuration",
            issuer.url()
        ))
        .await;
    let url = &gateway.url;
    for script in [
        format!("fetch('{url}/api/v1/status', {{ credentials: 'include' }})"),
        format!(
            "fetch('{url}/api/v1/projects/stolen', {{ method: 'PUT', body: '{{}}', credentials: 'include' }})"
        ),
        format!(
            "fetch('{url}/api/v1/browser-links', {{ method: 'POST', mode: 'no-cors', credentials: 'include' }})"
        ),
    ] {
        let script = format!(
            "{script}.then((reply) => reply.text().then((text) => {{ window.got = text; }}), () => {{ window.got = ''; }})"
        );
        assert_eq!(got(&browser, &script).await, "");
    }
    // As the browser sends it, and as one that says less does.
    let cookie = cookie(&enter(&gateway, &gateway.token(), url).await);
    let ask = async |headers: &[(&str, &str)]| {
        let with = [&[("cookie", cookie.as_str())], headers].concat();
        let reply = gateway
            .at("/api/v1/browser-links")
            .post_with(&with, "{}")
            .await;
        reply.status.as_u16()
    };
    let own = ("origin", url.as_str());
    let script = ("x-requested-with", "toolwharf");
    assert_eq!(ask(&[own, script]).await, 200);
    assert_eq!(
        ask(&[own, script, ("sec-fetch-site", "same-origin")]).await,
        200
    );
    assert_eq!(ask(&[own]).await, 403);
    assert_eq!(ask(&[script]).await, 403);
    assert_eq!(ask(&[("origin", issuer.url()), script]).await, 403);
    assert_eq!(ask(&[("origin", "null"), script]).await, 403);
    for site in ["same-site", "cross-site", "none"] {
        assert_eq!(
            ask(&[own, script, ("sec-fetch-site", site)]).await,
            403,
            "{site}"
        );
    }
    let read = gateway
        .at("/api/v1/status")
        .get(&[("cookie", &cookie), ("sec-fetch-site", "same-site")])
        .await;
    assert_eq!(read.status, 403);
    // MCP takes no cookie, and nobody is signed in by a foreign form.
    let tools = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let closed = Setup::new().settings("require_key = true").serve().await;
    let there = enter(&closed, &closed.token(), &closed.url).await;
    let there = there
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let reply = closed
        .client()
        .post_with(&[("cookie", &there)], tools)
        .await;
    assert_eq!(reply.status, 401);
    assert_eq!(
        enter(&gateway, &gateway.token(), issuer.url()).await.status,
        403
    );
    let projects = gateway.at("/api/v1/projects").with("cookie", &cookie);
    let projects = json_of(async { projects.get(&[]).await.collect(DEADLINE).await }).await;
    assert_eq!(projects["projects"], json!([]));
    browser.quit().await;
}

#[tokio::test]
async fn signing_out_ends_the_session() {
    let gateway = Setup::new().serve().await;
    let url = gateway.url.clone();
    let signed_in = enter(&gateway, &gateway.token(), &url).await;
    assert_eq!(signed_in.status, 200);
    let cookie = cookie(&signed_in);
    let status = async || {
        let client = gateway.at("/api/v1/status").with("cookie", &cookie);
        client.get(&[]).await.status.as_u16()
    };
    assert_eq!(status().await, 200);
    let out = gateway.at("/sign-out");
    assert_eq!(out.post_with(&[("cookie", &cookie)], "").await.status, 403);
    let reply = out
        .post_with(&[("cookie", &cookie), ("origin", &url)], "")
        .await;
    assert!(reply.header("set-cookie").unwrap().contains("Max-Age=0"));
    wait_for("the end", DEADLINE, async || status().await == 401).await;
}

/// What opens the browser gets a page that only its user can read, and no secret as an argument.
#[tokio::test]
async fn open_gives_the_browser_a_page_that_leads_to_the_link() {
    use std::os::unix::fs::PermissionsExt as _;
    let gateway = Setup::new().serve().await;
    let opener = gateway.folder().join("xdg-open");
    std::fs::write(&opener, "#!/bin/sh\necho \"$*\" > \"$0.arguments\"\n").unwrap();
    std::fs::set_permissions(&opener, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", gateway.folder().display());
    let mut open = toolwharf();
    let data = gateway.folder().join("data");
    open.args(["open", "--data-dir"])
        .arg(&data)
        .env("PATH", path);
    let printed = said(open, "").await.code(0);
    assert!(!printed.out.contains("/sign-in#"), "{}", printed.out);
    let arguments = std::fs::read_to_string(opener.with_extension("arguments")).unwrap();
    let page = data.join("open.html");
    assert_eq!(arguments.trim(), page.display().to_string());
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let html = std::fs::read_to_string(&page).unwrap();
    let (_, rest) = html.split_once("/sign-in#").unwrap();
    let link = rest.split('"').next().unwrap();
    let form = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("origin", &gateway.url),
    ];
    let entered = gateway
        .at("/sign-in")
        .post_with(&form, format!("link={link}"))
        .await;
    assert_eq!(entered.status, 200);
    cookie(&entered);
}
