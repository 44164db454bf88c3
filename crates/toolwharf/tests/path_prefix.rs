//! A gateway below a path of a reverse proxy: with the path in `public_url`, whether the proxy removes it from requests
//! or not. The console below a path is tested in `console`.

mod common;

use common::{
    Gateway, LEGACY, SETTINGS, Setup, body, checks,
    cli::{said, toolwharf},
    echo, item, tools,
};
use serde_json::{Value, json};
use testkit::{
    Browser, DEADLINE, Issuer, PathProxy, Peer, Protected, RawClient, Reply, browser::ENTER, peer,
    protected,
};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const METADATA: &str = "/.well-known/oauth-protected-resource";

/// The path of the proxies. A page of the console has the same path below it.
const PATH: &str = "/tools";

/// A proxy of each kind.
async fn proxies() -> [PathProxy; 2] {
    [
        PathProxy::keeping(PATH).await,
        PathProxy::removing(PATH).await,
    ]
}

/// A gateway that knows that it is behind this proxy.
async fn behind(proxy: &PathProxy, setup: Setup, settings: &str) -> Gateway {
    let settings = format!("public_url = \"{}\"\n{settings}", proxy.url());
    let gateway = setup.settings(&settings).connected().await;
    proxy.leads_to(&gateway.url);
    gateway
}

fn at(proxy: &PathProxy, path: &str) -> RawClient {
    RawClient::new(&format!("{}{path}", proxy.url()))
}

async fn get(client: RawClient) -> Reply {
    client.get(&[]).await.collect(DEADLINE).await
}

async fn document(url: &str) -> Value {
    let reply = get(RawClient::new(url)).await;
    assert_eq!(reply.status, 200, "{url}: {}", reply.text());
    body(&reply)
}

#[tokio::test]
async fn clients_reach_every_endpoint() {
    for proxy in proxies().await {
        let setup = Setup::new().scripted("one", &["--tools", "1"]);
        let gateway = behind(&proxy, setup, SETTINGS).await;
        let all = peer::all_capabilities;
        for mut peer in [
            Peer::http(at(&proxy, "/mcp"), LEGACY, all()).await,
            Peer::http(at(&proxy, "/mcp/-/one"), peer::MODERN, all()).await,
            Peer::sse(at(&proxy, "/sse"), all()).await,
            Peer::sse(at(&proxy, "/sse/-/one"), all()).await,
            // Clients on this machine may connect without the proxy.
            gateway.legacy().await,
            Peer::sse(gateway.at("/sse"), all()).await,
        ] {
            assert!(tools(&mut peer).await.contains(&"tool_0".to_owned()));
            echo(&mut peer, "echo", 1).await;
        }
        for path in ["/healthz", "/readyz", "/metrics", "/docs", "", "/", "?a=b"] {
            let reply = get(at(&proxy, path)).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        }
        let described = document(&format!("{}/openapi.json", proxy.url())).await;
        assert_eq!(described["servers"][0]["url"], PATH);
        let unknown = get(at(&proxy, "/nothing")).await;
        assert_eq!(unknown.status, 404);
    }
}

#[tokio::test]
async fn the_command_line_takes_an_address_with_a_path() {
    for proxy in proxies().await {
        let setup = Setup::new().scripted("one", &[]);
        let gateway = behind(&proxy, setup, SETTINGS).await;
        let token = gateway.folder().join("data/admin-token");
        for url in [proxy.url(), &format!("{}/mcp", proxy.url())] {
            let run = async |line: &[&str]| {
                let mut command = toolwharf();
                command.args(line).args(["--url", url, "--token-file"]);
                command.arg(&token).env("HOME", gateway.folder());
                said(command, "").await.code(0)
            };
            let listed = run(&["ls", "-o", "json"]).await.json();
            let listed = listed.get("servers").unwrap_or(&listed).clone();
            item(&listed, "name", "one");
            let link = run(&["open", "--print"]).await.out;
            let start = format!("{}/sign-in#", proxy.url());
            assert!(link.starts_with(&start), "{link}");
        }
    }
}

#[tokio::test]
async fn s09_metadata_and_tokens_name_the_whole_path() {
    let issuer = Issuer::start(json!({})).await;
    let settings = format!(
        "{SETTINGS}[projects.ml]\nservers = [\"one\"]\n[auth.oidc.corp]\nissuer = \"{}\"\n\
         access = [{{ claim = \"groups\", values = [\"ml\"], role = \"call\", projects = [\"ml\"] }}]\n",
        issuer.url()
    );
    for proxy in proxies().await {
        let setup = Setup::new().scripted("one", &[]);
        let _gateway = behind(&proxy, setup, &settings).await;
        let url = proxy.url();
        let resource = format!("{url}/mcp/ml");
        let refused = at(&proxy, "/mcp/ml").post(INITIALIZE).await;
        assert_eq!(refused.status, 401);
        let challenge = refused.header("www-authenticate").unwrap();
        let named = format!("{url}{METADATA}/mcp/ml");
        checks::contains(challenge, &[&format!("resource_metadata=\"{named}\"")]);
        let origin = url.strip_suffix(PATH).unwrap();
        // RFC 9728, section 3.1: the path of the metadata is in front of the whole path of the resource.
        for place in [named, format!("{origin}{METADATA}{PATH}/mcp/ml")] {
            assert_eq!(document(&place).await["resource"], resource, "{place}");
        }
        let whole = document(&format!("{origin}{METADATA}{PATH}")).await;
        assert_eq!(whole["resource"], url);
        let other = get(RawClient::new(&format!("{origin}{METADATA}/toolsmith"))).await;
        assert_eq!(other.status, 404);

        let claims = json!({ "groups": ["ml"] });
        let token = issuer.token("ann", "client", &resource, &[], claims).await;
        for (path, status) in [("/mcp/ml", 200), ("/mcp", 401)] {
            let client = at(&proxy, path).with("authorization", &format!("Bearer {token}"));
            let reply = client.post(INITIALIZE).await;
            assert_eq!(reply.status, status, "{path}: {}", reply.text());
        }
    }
}

/// Signs in at the issuer's pages.
async fn sign_in_at_issuer(browser: &Browser) {
    let account = "[name=account]";
    let there = |selector: &str| format!("document.querySelector('{selector}')");
    browser.wait(&there(account)).await;
    browser.type_into(account, &format!("ann{ENTER}")).await;
    browser.wait(&there("#allow")).await;
    browser.click("#allow").await;
}

/// Signs in to the console at an issuer, and from there to a server at another one.
#[tokio::test]
async fn a_browser_comes_back_from_issuers_to_the_path() {
    let server_issuer = Issuer::start(json!({ "scopes": protected::SCOPES })).await;
    let protected = Protected::start(&server_issuer).await;
    for proxy in proxies().await {
        let url = proxy.url();
        let redirect = format!("{url}/sign-in/callback");
        let client = json!({ "client_id": "wharf", "redirect_uris": [redirect] });
        let accounts = json!({ "ann": { "groups": ["operators"] } });
        let options = json!({ "accounts": accounts, "host": "localhost", "clients": [client] });
        let issuer = Issuer::start(options).await;
        let settings = format!(
            "{SETTINGS}[auth.oidc.corp]\nissuer = \"{}\"\nclient_id = \"wharf\"\n\
             access = [{{ claim = \"groups\", values = [\"operators\"], role = \"admin\" }}]\n",
            issuer.url()
        );
        let setup = Setup::new().settings(&format!("public_url = \"{url}\"\n{settings}"));
        let entry = json!({ "type": "http", "url": protected.url() });
        let gateway = setup.server("files", entry).serve().await;
        proxy.leads_to(&gateway.url);

        let browser = Browser::open().await;
        browser.go(&format!("{url}/servers/files")).await;
        browser
            .wait("document.querySelector('button.issuer')")
            .await;
        browser.click("button.issuer").await;
        sign_in_at_issuer(&browser).await;
        let page = format!("location.pathname === '{PATH}/servers/files'");
        browser.wait(&page).await;
        browser.shows("files").await;

        let begin = format!(
            "fetch('{url}/api/v1/mcp/servers/files/login', {{ method: 'POST', body: '{{}}', headers: {{ \
             'content-type': 'application/json', 'x-requested-with': 'toolwharf', \
             'toolwharf-session': localStorage.getItem('toolwharf-session{PATH}') }} }})\
             .then((reply) => reply.json()).then((begun) => begun.link)"
        );
        let link = browser.eval(&begin).await;
        let link = link.as_str().unwrap();
        assert!(link.starts_with(&format!("{url}/login/")), "{link}");
        browser.go(link).await;
        browser.click("button").await;
        sign_in_at_issuer(&browser).await;
        browser.shows("You are signed in to files").await;
        let back = format!("location.pathname === '{PATH}/login/callback'");
        assert_eq!(browser.eval(&back).await, true);
        browser.quit().await;
    }
}
