//! Signing in to Toolwharf with a browser: with a link, a key, or at an issuer. In Chromium, and against attacks from
//! other pages.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use common::{
    Gateway, Setup, body,
    cli::{said, toolwharf},
    holds,
    session::{PAGE_SECRET, Session, begin, come_back, enter, post, token},
    shell::ok,
};
use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use testkit::{Browser, DEADLINE, Issuer, RawClient, Reply, browser::ENTER, wait_for};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

/// Requests the status from a script of the page, with the cookie and the page's secret.
const STATUS: &str = "fetch('/api/v1/status', { headers: { 'toolwharf-session': localStorage.getItem('toolwharf-session') } })\
                      .then((reply) => reply.status)";
/// Like [`STATUS`], for a request that changes something.
const PUT: &str = "fetch('/api/v1/projects/made', { method: 'PUT', body: '{}', headers: { 'content-type': 'application/json', \
                   'x-requested-with': 'toolwharf', 'toolwharf-session': localStorage.getItem('toolwharf-session') } })\
                   .then((reply) => reply.status)";

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
/// The secret that a page of the console keeps.
const SECRET: &str = "localStorage.getItem('toolwharf-session')";

/// The link that the gateway prints at its start.
async fn link(gateway: &Gateway) -> String {
    let line = gateway.logged("/sign-in#").await;
    line.split_whitespace().last().unwrap().to_owned()
}

/// Waits until the browser shows the servers of a signed-in user.
async fn is_in(browser: &Browser) {
    browser.wait("location.pathname === '/servers'").await;
    assert_eq!(browser.eval(STATUS).await, 200);
}

/// A browser that has signed in with the link.
async fn signed_in(gateway: &Gateway) -> Browser {
    let browser = Browser::open().await;
    browser.go(&link(gateway).await).await;
    is_in(&browser).await;
    browser
}

async fn shows(browser: &Browser, text: &str) {
    let script = format!("document.body.innerText.includes('{text}')");
    browser.wait(&script).await;
}

async fn json_of(reply: impl Future<Output = Reply>) -> Value {
    let reply = reply.await;
    assert!(reply.status.is_success(), "{}", reply.text());
    body(&reply)
}

#[tokio::test]
async fn a_link_signs_a_browser_in_once() {
    let gateway = Setup::new().serve().await;
    let url = link(&gateway).await;
    let start = format!("{}/sign-in#", gateway.url);
    assert!(url.starts_with(&start), "{url}");
    let browser = signed_in(&gateway).await;
    assert_eq!(browser.eval(PUT).await, 201);
    // Scripts cannot read the cookie.
    assert_eq!(browser.eval("document.cookie").await, "");

    let other = Browser::open().await;
    other.go(&url).await;
    shows(&other, "used before").await;
    let printed = ok(&gateway, "open --print", "").await;
    other.go(printed.trim()).await;
    is_in(&other).await;
    other.quit().await;
    browser.quit().await;
}

#[tokio::test]
async fn a_key_signs_a_browser_in_until_it_is_revoked() {
    let gateway = Setup::new().serve().await;
    let admin = gateway.admin("/keys");
    let made = json_of(admin.post(r#"{"name":"browser"}"#)).await;
    let key = made["token"].as_str().unwrap().to_owned();
    let browser = Browser::open().await;
    let page = format!("{}/sign-in?next=/docs", gateway.url);
    browser.go(&page).await;
    // The key is the only visible input.
    let seen = "[...document.querySelectorAll('input')].filter((it) => it.checkVisibility()).map((it) => it.id)";
    assert_eq!(browser.eval(seen).await, json!(["key"]));
    let wrong = format!("twh_wrong{ENTER}");
    browser.type_into("#key", &wrong).await;
    shows(&browser, "unknown, revoked or expired").await;
    browser.type_into("#key", &format!("{key}{ENTER}")).await;
    browser.wait("location.pathname === '/docs'").await;
    assert_eq!(browser.eval(STATUS).await, 200);
    let id = made["id"].as_str().unwrap();
    let revoked = admin.at(&format!("/api/v1/keys/{id}")).delete(&[]).await;
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    assert_eq!(browser.eval(STATUS).await, 401);
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
    browser.click("button.issuer").await;
    let account = "[name=account]";
    let there = |selector: &str| format!("document.querySelector('{selector}')");
    browser.wait(&there(account)).await;
    browser.type_into(account, &format!("ann{ENTER}")).await;
    browser.wait(&there("#allow")).await;
    browser.click("#allow").await;
    is_in(&browser).await;
    assert_eq!(browser.eval(PUT).await, 201);

    // A user without a role sees the reason, and a refusal shows the issuer's own text.
    let url = &gateway.url;
    for (account, deny, said) in [
        ("eve", false, "user:corp:eve"),
        ("ann", true, "access_denied"),
    ] {
        let (begun, tab) = begin(&gateway, "corp", url).await;
        let back = issuer.browse(&begun, account, deny).await;
        let reply = come_back(&gateway, back["location"].as_str().unwrap(), &tab, url).await;
        assert!(reply.header("set-cookie").is_none());
        holds(&reply.text(), &[said]);
    }
    // A response is valid once, in the tab that began the sign-in, and with the original `state`.
    let (begun, tab) = begin(&gateway, "corp", url).await;
    let back = issuer.sign_in(&begun, "ann").await;
    let wrong = back.replace("state=", "state=0");
    let foreign = come_back(&gateway, &back, &tab, issuer.url()).await;
    assert_eq!(foreign.status, 403, "{}", foreign.text());
    let used = "was used already, or has expired";
    for (place, tab, why) in [
        (&back, "stolen", "began in another tab"),
        (&back, &*tab, used),
        (&wrong, &*tab, used),
    ] {
        let reply = come_back(&gateway, place, tab, url).await;
        assert_eq!(reply.status, 400);
        holds(&reply.text(), &[why]);
    }
    // The redirect alone signs no one in, whatever cookies the browser sends.
    let (begun, tab) = begin(&gateway, "corp", url).await;
    let back = issuer.sign_in(&begun, "ann").await;
    let cookies = format!("toolwharf-sign-in={tab}");
    let shown = RawClient::new(&back).get(&[("cookie", &cookies)]).await;
    let shown = shown.collect(DEADLINE).await;
    assert!(shown.header("set-cookie").is_none());
    let tabs = come_back(&gateway, &back, &tab, url).await;
    assert_eq!(tabs.status, 200, "{}", tabs.text());
    let there = Session::of(&tabs).get(gateway.at("/api/v1/status")).await;
    assert_eq!(there.status, 200, "{}", there.text());
    browser.quit().await;
}

/// A gateway where users of `issuer` can sign in.
async fn with_issuer(issuer: &Issuer) -> Gateway {
    let settings = format!(
        "[auth.oidc.corp]\nissuer = \"{}\"\nclient_id = \"wharf\"\n\
         access = [{{ claim = \"groups\", values = [\"operators\"], role = \"admin\" }}]\n",
        issuer.url()
    );
    Setup::new().settings(&settings).serve().await
}

/// Registers the gateway at the issuer, since its port is known only once it runs.
async fn register(issuer: &Issuer, gateway: &Gateway) {
    let redirect = format!("{}/sign-in/callback", gateway.url);
    let client = json!({ "client_id": "wharf", "redirect_uris": [redirect] });
    issuer.set(json!({ "clients": [client] })).await;
    issuer.rotate().await;
}

/// Asserts that a script of the page can read no answer from this URL, even though its request has the cookie.
async fn reads_nothing(browser: &Browser, url: &str, init: &str) {
    let script = format!(
        "fetch('{url}', {{ {init} credentials: 'include' }}).then((reply) => reply.text(), () => '')"
    );
    assert_eq!(browser.eval(&script).await, "", "{url}");
}

/// A page of another origin can do nothing with the cookie of a signed-in user.
#[tokio::test]
async fn a_page_of_another_origin_can_do_nothing() {
    // Another port of this machine is another origin, but the same site.
    let issuer = Issuer::start(json!({})).await;
    let gateway = Setup::new().serve().await;
    let browser = signed_in(&gateway).await;
    let foreign = format!("{}/.well-known/openid-configuration", issuer.url());
    browser.go(&foreign).await;
    let url = &gateway.url;
    for (path, init) in [
        ("/api/v1/status", ""),
        ("/api/v1/projects/stolen", "method: 'PUT', body: '{}',"),
        ("/api/v1/browser-links", "method: 'POST', mode: 'no-cors',"),
    ] {
        reads_nothing(&browser, &format!("{url}{path}"), init).await;
    }
    // Tests a request with a browser's headers, and with fewer.
    let session = Session::enter(&gateway, &gateway.token()).await;
    let ask = async |headers: &[(&str, &str)]| {
        let with = [&session.headers()[..], headers].concat();
        let links = gateway.at("/api/v1/browser-links");
        links.post_with(&with, "{}").await.status.as_u16()
    };
    let own = ("origin", url.as_str());
    let script = ("x-requested-with", "toolwharf");
    assert_eq!(ask(&[own, script]).await, 200);
    assert_eq!(ask(&[own]).await, 403);
    assert_eq!(ask(&[script]).await, 403);
    assert_eq!(ask(&[("origin", issuer.url()), script]).await, 403);
    assert_eq!(ask(&[("origin", "null"), script]).await, 403);
    for (site, status) in [
        ("same-origin", 200),
        ("same-site", 403),
        ("cross-site", 403),
        ("none", 403),
    ] {
        let headers = [own, script, ("sec-fetch-site", site)];
        assert_eq!(ask(&headers).await, status, "{site}");
    }
    let headers = [&session.headers()[..], &[("sec-fetch-site", "same-site")]].concat();
    let read = gateway.at("/api/v1/status").get(&headers).await;
    assert_eq!(read.status, 403);
    // MCP accepts no session, and a form of another site signs no one in.
    let closed = Setup::new().settings("require_key = true").serve().await;
    let there = Session::enter(&closed, &closed.token()).await;
    let reply = closed.client().post_with(&there.headers(), LIST).await;
    assert_eq!(reply.status, 401);
    let key = format!("key={}", gateway.token());
    assert_eq!(enter(&gateway, &key, issuer.url()).await.status, 403);
    let projects = session.get(gateway.at("/api/v1/projects"));
    assert_eq!(json_of(projects).await["projects"], json!([]));
    browser.quit().await;
}

/// A form's token is required, and valid once.
#[tokio::test]
async fn a_sign_in_form_is_sent_once_and_only_from_its_own_page() {
    let gateway = Setup::new().serve().await;
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("origin", gateway.url.as_str()),
    ];
    let key = gateway.token();
    let send = async |token: &str| {
        let body = format!("key={key}&form={token}");
        gateway.at("/sign-in").post_with(&headers, body).await
    };
    let token = token(gateway.at("/sign-in")).await;
    let refused = async |token: &str| {
        let refused = send(token).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(refused.header("set-cookie").is_none());
        refused
    };
    for missing in ["", "guess"] {
        refused(missing).await;
    }
    assert_eq!(send(&token).await.status, 200);
    let replayed = refused(&token).await;
    holds(&replayed.text(), &["sent before"]);
    // The response contains a new token, so that the page keeps working.
    let told = body(&replayed);
    assert_eq!(send(told["form"].as_str().unwrap()).await.status, 200);
    // The other forms of the page refuse the used token, too.
    let form = format!("link=x&form={token}&");
    let gone = post(&gateway, "/sign-in", &form, &gateway.url).await;
    assert_eq!(gone.status, 401, "{}", gone.text());
}

/// From the browser, a page and server on another port receive only the cookie. No part of the gateway accepts the
/// cookie alone.
#[tokio::test]
async fn a_server_on_another_port_cannot_use_the_session_that_browsers_send_it() {
    let gateway = Setup::new().serve().await;
    let url = &gateway.url;
    let port = url.rsplit(':').next().unwrap().to_owned();
    let browser = signed_in(&gateway).await;
    let secret = browser.eval(SECRET).await;
    let secret = secret.as_str().unwrap().to_owned();

    let mut stolen = None;
    for (bind, host) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("127.0.0.1", "localhost"),
        ("::1", "[::1]"),
    ] {
        let thief = Thief::listen(bind).await;
        let page = format!("http://{host}:{}", thief.port);
        browser.go(&page).await;
        // The page reads its own storage, then sends requests.
        assert_eq!(browser.eval(SECRET).await, Value::Null);
        let post = "method: 'POST', mode: 'no-cors',";
        let key = format!("{post} body: '{{\"name\":\"stolen\"}}',");
        for (path, init) in [
            ("/api/v1/status", ""),
            ("/api/v1/events", ""),
            ("/api/v1/keys", &*key),
            ("/api/v1/status", "headers: { 'toolwharf-session': 'x' },"),
            ("/sign-in", ""),
            ("/sign-out", post),
        ] {
            reads_nothing(&browser, &format!("{url}{path}"), init).await;
        }
        // The gateway cannot be framed, and a window opened by the page cannot be read.
        let seen = thief.requests();
        assert!(!seen.is_empty());
        assert!(!seen.iter().any(|request| request.contains(&secret)));
        if let Some(cookie) = seen.iter().find_map(|request| cookie_of(request, &port)) {
            stolen = Some(cookie);
        }
    }
    // The attack begins: a server on another port of the same host has received the cookie.
    let stolen = stolen.expect("a browser sends a cookie to every port of its host");

    // The attacker's server forges every header that a browser would send, and tries everything.
    let referer = format!("{url}/servers");
    let forged = [
        ("cookie", &*stolen),
        ("origin", &**url),
        ("referer", &*referer),
        ("x-requested-with", "toolwharf"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-mode", "cors"),
        ("content-type", "application/json"),
    ];
    let value = stolen.split_once('=').unwrap().1.to_owned();
    let own = Session::enter(&gateway, &gateway.token()).await;
    for guess in [
        None,
        Some(""),
        Some("guess"),
        Some(&*value),
        Some(&*own.secret),
    ] {
        let mut headers = forged.to_vec();
        headers.extend(guess.map(|guess| (PAGE_SECRET, guess)));
        for (method, path, body) in [
            ("GET", "/api/v1/status", ""),
            ("GET", "/api/v1/events", ""),
            ("GET", "/api/v1/mcp/servers", ""),
            ("GET", "/api/v1/keys", ""),
            ("GET", "/api/v1/projects", ""),
            ("POST", "/api/v1/keys", r#"{"name":"stolen"}"#),
            ("POST", "/api/v1/browser-links", "{}"),
            ("POST", "/api/v1/chat", r#"{"message":"hi"}"#),
            ("POST", "/api/v1/mcp/servers/x/call", "{}"),
            ("PUT", "/api/v1/projects/stolen", "{}"),
        ] {
            let what = format!("{method} {path} {guess:?}");
            let method = method.parse().unwrap();
            let reply = gateway.at(path).send(method, &headers, body).await;
            assert_eq!(reply.status, 401, "{what}");
        }
        // Public pages reveal nothing about the session, and a sign-in needs a key or a link.
        for path in [
            "/",
            "/servers",
            "/sign-in",
            "/sign-in/callback",
            "/docs",
            "/openapi.json",
        ] {
            let page = gateway.at(path).get(&headers).await;
            let page = page.collect(DEADLINE).await;
            assert!(page.header("set-cookie").is_none(), "{path}");
            assert!(!page.text().contains(&secret), "{path}");
        }
        let token = token(gateway.at("/sign-in")).await;
        for (path, form) in [
            ("/sign-in", format!("form={token}")),
            ("/sign-in", format!("key={value}&form={token}")),
            ("/sign-in", format!("link={value}&form={token}")),
            (
                "/sign-in/callback",
                format!("state={value}&code=x&browser={value}"),
            ),
        ] {
            let reply = gateway.at(path).post_with(&headers, form).await;
            assert!(reply.status.is_client_error(), "{path}: {}", reply.text());
            assert!(reply.header("set-cookie").is_none());
            assert!(!reply.text().contains("\"session\""), "{}", reply.text());
        }
        // The attacker's server cannot even end the session.
        gateway.at("/sign-out").post_with(&headers, "").await;
    }
    let closed = Setup::new().settings("require_key = true").serve().await;

    assert_eq!(closed.client().post_with(&forged, LIST).await.status, 401);

    // Another user's cookie, which any port can set, does not move the page's requests into that user's session.
    browser.go(url).await;
    is_in(&browser).await;
    let there = Thief::listen("127.0.0.1").await;
    let fixed = format!("{}; Path=/api; HttpOnly", own.cookie);
    there.set_cookie(&fixed);
    browser.go(&there.url()).await;
    browser.go(&format!("{url}/servers")).await;
    browser.wait("location.pathname === '/sign-in'").await;
    assert_eq!(browser.eval(STATUS).await, 401);
    browser.quit().await;
}

/// A session survives a reload, its event stream works, and signing out removes it.
#[tokio::test]
async fn the_console_goes_on_over_reloads_and_tabs_and_hears_events() {
    let gateway = Setup::new().serve().await;
    let browser = signed_in(&gateway).await;
    let thief = Thief::listen("127.0.0.1").await;
    browser.go(&thief.url()).await;
    browser.go(&format!("{}/servers", gateway.url)).await;
    shows(&browser, "Sign out").await;
    browser.wait("location.pathname === '/servers'").await;
    let entry = r#"{"name":"heard","command":"true","enabled":false}"#;
    json_of(gateway.admin("/mcp/servers").post(entry)).await;
    shows(&browser, "heard").await;
    assert_eq!(browser.eval(STATUS).await, 200);
    // Signing out removes the page's secret.
    let button = "[...document.querySelectorAll('button')].find((one) => one.textContent.includes('Sign out'))";
    browser.eval(&format!("{button}.click()")).await;
    browser.wait("location.pathname === '/sign-in'").await;
    assert_eq!(browser.eval(SECRET).await, Value::Null);
    browser.quit().await;
}

/// A server on another port that records what browsers send.
struct Thief {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    cookie: Arc<Mutex<Option<String>>>,
    _serving: JoinSet<()>,
}

impl Thief {
    async fn listen(ip: &str) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let cookie = Arc::<Mutex<Option<String>>>::default();
        let (kept, set) = (seen.clone(), cookie.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = vec![0; 16 << 10];
                let Ok(read) = socket.read(&mut request).await else {
                    continue;
                };
                let text = String::from_utf8_lossy(&request[..read]).into_owned();
                kept.lock().unwrap().push(text);
                let set = set.lock().unwrap().clone();
                let set = set.map_or_else(String::new, |set| format!("set-cookie: {set}\r\n"));
                let body = "<!doctype html><title>thief</title><p>A page of another port.";
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n{set}connection: close\r\n\r\n",
                    body.len()
                );
                // The browser may have disconnected.
                let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        Self {
            port,
            seen,
            cookie,
            _serving: serving,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn set_cookie(&self, cookie: &str) {
        *self.cookie.lock().unwrap() = Some(cookie.to_owned());
    }
}

/// Returns the gateway's cookie from a request.
fn cookie_of(request: &str, port: &str) -> Option<String> {
    let name = format!("toolwharf-{port}=");
    let mut lines = request.lines();
    let cookies = lines.find_map(|line| line.strip_prefix("Cookie: "))?;
    let mut cookies = cookies.split("; ");
    let own = cookies.find(|cookie| cookie.starts_with(&name));
    own.map(str::to_owned)
}

#[tokio::test]
async fn signing_out_ends_the_session() {
    let gateway = Setup::new().serve().await;
    let url = gateway.url.clone();
    let session = Session::enter(&gateway, &gateway.token()).await;
    let status = async || {
        let reply = session.get(gateway.at("/api/v1/status")).await;
        reply.status.as_u16()
    };
    assert_eq!(status().await, 200);
    let out = gateway.at("/sign-out");
    assert_eq!(out.post_with(&session.headers(), "").await.status, 403);
    // Without the page's secret the session cannot be ended.
    let origin = ("origin", url.as_str());
    let alone = [("cookie", session.cookie.as_str()), origin];
    assert_eq!(out.post_with(&alone, "").await.status, 204);
    assert_eq!(status().await, 200);
    let own = [&session.headers()[..], &[origin]].concat();
    let reply = out.post_with(&own, "").await;
    assert!(reply.header("set-cookie").unwrap().contains("Max-Age=0"));
    wait_for("the end", DEADLINE, async || status().await == 401).await;
}

/// The browser is started with a page that only the user can read, and with no secret as an argument.
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
    let entered = enter(&gateway, &format!("link={link}"), &gateway.url).await;
    assert_eq!(entered.status, 200);
    Session::of(&entered);
}
