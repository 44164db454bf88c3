//! A gateway behind a company's proxy, whose servers have certificates of the company's own authority.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::net::SocketAddr;

use common::{Gateway, LEGACY, Setup, chat, checks, echo, scripted, shell};
use serde_json::{Value, json};
use testkit::{
    Bin, DEADLINE, ForwardProxy, Issuer, Peer, PrivateCa, Process, Registry,
    conformance::node_modules,
    llm::{Llm, says, turns},
    peer, wait_for, wait_for_some,
};

const CREDENTIALS: &str = "me:hunter2";

/// The address of a server on loopback.
fn address(url: &str) -> SocketAddr {
    let place = url.strip_prefix("http://").unwrap().split('/').next();
    place.unwrap().parse().unwrap()
}

async fn server() -> (Process, SocketAddr) {
    let mut server = Process::bin("testkit-scripted", ["--http", "127.0.0.1:0"]);
    let address = address(&server.url().await);
    (server, address)
}

/// The reason in the state of a server, when it contains `part`.
async fn reason(gateway: &Gateway, server: &str, part: &str) -> String {
    let path = format!("/mcp/servers/{server}");
    wait_for_some(&format!("{part:?} of {server}"), DEADLINE, async || {
        let row = chat::told(gateway, &path).await;
        let reason = row["reason"].as_str().unwrap_or_default();
        reason.contains(part).then(|| reason.to_owned())
    })
    .await
}

/// Remote servers, an issuer and a model, over TLS and without it. The names lead nowhere, so nothing is reached without
/// the proxy.
#[tokio::test]
async fn servers_issuers_and_models_are_reached_through_the_proxy() {
    let (_plain, plain) = server().await;
    let (_secure, secure) = server().await;
    let (_near, near) = server().await;
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let issuer = Issuer::start(json!({})).await;
    let authority = PrivateCa::new(&["secure.test", "issuer.test"]);
    let (secure, _secure_tls) = authority.serve(secure).await;
    let (login, _login_tls) = authority.serve(address(issuer.url())).await;
    let hosts = [
        ("plain.test:80", plain),
        ("secure.test:443", secure),
        ("issuer.test:443", login),
        ("model.test:80", address(llm.url())),
    ];
    let proxy = ForwardProxy::start(Some(CREDENTIALS), &hosts).await;
    let url = format!("http://{CREDENTIALS}@{}", proxy.address());
    let settings = "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n\
         [agent]\nmodel = \"claude-test\"\nbase_url = \"http://model.test\"\n\
         [auth.oidc.corp]\nissuer = \"https://issuer.test\"\njwks_uri = \"https://issuer.test/jwks\"\n\
         access = [{ role = \"call\" }]\n";
    let gateway = Setup::new()
        .settings(settings)
        .server("plain", json!({"url": "http://plain.test/mcp"}))
        .server("secure", json!({"url": "https://secure.test/mcp"}))
        .server("near", json!({"url": format!("http://{near}/mcp")}))
        .scripted("launched", &[])
        .env("HTTP_PROXY", &url)
        .env("https_proxy", &url)
        .env("SSL_CERT_FILE", authority.file().to_str().unwrap())
        .env("ANTHROPIC_API_KEY", "sk-test")
        .connected()
        .await;

    let claims = json!({"iss": "https://issuer.test"});
    let token = issuer.token("ann", "client", &gateway.url, &[], claims);
    let bearer = format!("Bearer {}", token.await);
    for server in ["plain", "secure", "near", "launched"] {
        let client = gateway.at(&format!("/mcp/-/{server}"));
        let client = client.with("authorization", &bearer);
        let mut peer = Peer::http(client, LEGACY, peer::all_capabilities()).await;
        echo(&mut peer, "echo", 1).await;
    }
    let events = chat::say(&gateway, "Hi").await;
    assert_eq!(chat::text(&events), "Hello.", "{events:?}");

    let seen = proxy.seen();
    for expected in [
        "POST http://plain.test/mcp",
        "CONNECT secure.test:443",
        "CONNECT issuer.test:443",
        "POST http://model.test/v1/messages",
    ] {
        assert!(seen.iter().any(|seen| seen == expected), "{seen:?}");
    }
    checks::lacks(seen.join("\n"), &["127.0.0.1"]);
    let state = chat::told(&gateway, "/mcp/servers").await;
    checks::lacks(gateway.process.stderr() + &state.to_string(), &["hunter2"]);
}

/// What keeps a server from being reached, with the proxy and its variable but without credentials.
#[tokio::test]
async fn a_server_that_the_proxy_does_not_reach_says_why() {
    let (_server, server) = server().await;
    let authority = PrivateCa::new(&["secure.test"]);
    let (secure, _tls) = authority.serve(server).await;
    let proxy = ForwardProxy::start(None, &[("secure.test:443", secure)]).await;
    let locked = ForwardProxy::start(Some(CREDENTIALS), &[]).await;
    let https = format!("http://{}", proxy.address());
    let gateway = Setup::new()
        .server("locked", json!({"url": "http://locked.test/mcp"}))
        .server("refused", json!({"url": "https://refused.test/mcp"}))
        .server("foreign", json!({"url": "https://secure.test/mcp"}))
        .env(
            "HTTP_PROXY",
            &format!("http://me:hunter3@{}", locked.address()),
        )
        .env("HTTPS_PROXY", &https)
        .serve()
        .await;
    let why = reason(&gateway, "locked", "HTTP 407").await;
    let named = format!("the proxy `{}` (`HTTP_PROXY`)", locked.address());
    checks::contains(&why, &[&named, "does not accept the credentials"]);
    let why = reason(&gateway, "refused", "HTTP 403").await;
    let named = format!("the proxy `{}` (`HTTPS_PROXY`)", proxy.address());
    checks::contains(&why, &[&named, "refused to connect to refused.test:443"]);
    let why = reason(&gateway, "foreign", "UnknownIssuer").await;
    checks::contains(&why, &["`SSL_CERT_FILE`"]);
    let state: Value = chat::told(&gateway, "/mcp/servers").await;
    checks::lacks(gateway.process.stderr() + &state.to_string(), &["hunter3"]);
}

/// A project's server may lead to public addresses only. The proxy gets such an address, not a name.
#[tokio::test]
async fn a_project_server_reaches_only_checked_addresses_through_the_proxy() {
    let (_server, server) = server().await;
    let proxy = ForwardProxy::start(None, &[("93.184.216.34:80", server)]).await;
    let proxied = format!("http://{}", proxy.address());
    let setup = Setup::new().env("ALL_PROXY", &proxied);
    let gateway = setup.serve().await;
    chat::put(&gateway, "/projects/shop", json!({})).await;
    let path = "/keys?project=shop";
    let key = json!({"name": "k", "role": "manage"});
    let made = chat::ask(&gateway, "POST", path, &key);
    let made: Value = serde_json::from_slice(&made.await.body).unwrap();
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    for (name, url) in [
        ("open", "http://93.184.216.34/mcp"),
        ("inner", "http://10.0.0.1/mcp"),
    ] {
        let client = gateway.at(&format!("/api/v1/mcp/servers/{name}?project=shop"));
        let client = client.with("authorization", &bearer);
        let body = json!({"url": url}).to_string();
        let reply = client.try_send(http::Method::PUT, &[], body).await.unwrap();
        let reply = reply.collect(DEADLINE).await;
        assert!(reply.status.is_success(), "{name}: {}", reply.text());
    }
    let client = gateway.at("/mcp/shop/open");
    let client = client.with("authorization", &bearer);
    let mut peer = Peer::http(client, LEGACY, peer::all_capabilities()).await;
    echo(&mut peer, "echo", 1).await;
    let path = "/mcp/servers/inner/call?project=shop";
    chat::ask(&gateway, "POST", path, &json!({"method": "tools/list"})).await;
    reason(&gateway, "inner?project=shop", "not public").await;
    let seen = proxy.seen();
    assert!(!seen.is_empty(), "the proxy was not used");
    assert!(
        seen.iter().all(|seen| seen == "CONNECT 93.184.216.34:80"),
        "{seen:?}"
    );
}

/// The environment of a server, as its tool `env` returns it. `None` while it is restarted.
async fn environment(gateway: &Gateway, path: &str) -> Option<Value> {
    let mut peer = Peer::http(gateway.at(path), LEGACY, peer::all_capabilities()).await;
    let outcome = peer.tool("env", json!({})).await;
    let variables = outcome.response["result"].get("structuredContent");
    variables.cloned()
}

/// A package registry behind a proxy that inspects TLS: its certificate comes from an authority of the company.
struct Company {
    _registry: Registry,
    authority: PrivateCa,
    proxy: ForwardProxy,
    _tls: tokio::task::JoinSet<()>,
}

impl Company {
    async fn new() -> Self {
        let registry = Registry::new().await;
        let tool = json!({"name": "hello", "inputSchema": {"type": "object"}});
        registry.publish("1.0.0", &json!([tool]));
        let authority = PrivateCa::new(&["pypi.test"]);
        let (secure, tls) = authority.serve(address(&registry.npm())).await;
        let proxy = ForwardProxy::start(None, &[("pypi.test:443", secure)]).await;
        Self {
            _registry: registry,
            authority,
            proxy,
            _tls: tls,
        }
    }

    fn proxy(&self) -> String {
        format!("http://{}", self.proxy.address())
    }

    /// A gateway with the variables of a shell in this company. `ca` is its CA file.
    fn setup(&self, ca: &std::path::Path) -> Setup {
        let uv = node_modules().with_file_name("venv").join("bin");
        assert!(
            uv.join("uvx").exists(),
            "uv is missing; run: cargo xtask setup"
        );
        let path = std::env::var("PATH").unwrap();
        let settings = "[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n\
             [hosting]\nproviders = [\"process\"]\n\
             [defaults]\npass_env = [\"UV_HTTP_RETRIES\"]\n";
        let package = json!({"command": "uvx", "args": [Registry::PACKAGE]});
        let mut boxed = package.clone();
        boxed["sandbox"] = true.into();
        Setup::new()
            .settings(settings)
            .env("PATH", &format!("{}:{path}", uv.display()))
            .env("HTTPS_PROXY", &self.proxy())
            .env("UV_DEFAULT_INDEX", "https://pypi.test/simple")
            .env("UV_HTTP_RETRIES", "0")
            .env("SSL_CERT_FILE", ca.to_str().unwrap())
            .server("plain", package)
            .server("boxed", boxed)
    }
}

#[tokio::test]
async fn u13_a_uvx_server_starts_behind_a_proxy_that_inspects_tls() {
    let company = Company::new().await;
    let ca = company.authority.file();
    // Its files and its network are those of the sandbox.
    let reads = json!({"command": "sh", "sandbox": true, "network": ["files.test"],
        "args": ["-c", "grep -q CERTIFICATE \"$SSL_CERT_FILE\" && exec \"$0\" --name reads", Bin::path("testkit-scripted")]});
    let gateway = company.setup(&ca).server("reads", reads).connected().await;
    let seen = company.proxy.seen();
    assert!(
        seen.iter().any(|seen| seen == "CONNECT pypi.test:443"),
        "{seen:?}"
    );
    let variables = environment(&gateway, "/mcp/-/reads").await.unwrap();
    assert_eq!(variables["SSL_CERT_FILE"], ca.to_str().unwrap());
    // The egress proxy of its allow-list is not the company's.
    assert_ne!(variables["HTTPS_PROXY"], company.proxy());
    assert!(variables["HTTPS_PROXY"].is_string(), "{variables}");
    assert!(variables.get("UV_DEFAULT_INDEX").is_some(), "{variables}");
}

#[tokio::test]
async fn u13_a_certificate_that_is_not_trusted_is_named_with_the_remedy() {
    let company = Company::new().await;
    let other = PrivateCa::new(&["other.test"]);
    let gateway = company.setup(&other.file()).serve().await;
    let remedy = "set `SSL_CERT_FILE` to the CA file of your network, in the `env` of its entry";
    for server in ["plain", "boxed"] {
        let why = reason(&gateway, server, "does not trust the TLS certificate").await;
        assert!(why.starts_with("it does not trust"), "{why}");
        checks::contains(&why, &[remedy]);
    }
    let listed = shell::on(&gateway, "ls").await.out;
    checks::contains(&listed, &[remedy]);
    assert_eq!(listed.matches(remedy).count(), 2, "{listed}");
    let report = shell::on(&gateway, "doctor --config mcp.json --config toolwharf.toml").await;
    assert_eq!(report.out.matches(remedy).count(), 2, "{report:?}");
    let shown = shell::on(&gateway, "get plain").await.out;
    let lines: Vec<&str> = shown.lines().take(3).collect();
    assert!(
        lines[0].starts_with("name") && lines[1].starts_with("state"),
        "{shown}"
    );
    checks::contains(lines[2], &["reason", "it does not trust", remedy]);

    // The remedy works at once.
    let settings = gateway.settings_file();
    let text = std::fs::read_to_string(&settings).unwrap();
    let ca = company.authority.file();
    let text = format!("{text}env = {{ SSL_CERT_FILE = \"{}\" }}\n", ca.display());
    gateway.replace(&settings, &text);
    for server in ["plain", "boxed"] {
        gateway.up(server).await;
    }
}

#[tokio::test]
async fn u13_default_variables_reach_all_launched_servers_and_entries_override_them() {
    let mut own = scripted("own", &[]);
    own["env"] = json!({"REGION": "own"});
    let gateway = Setup::new()
        .settings("[defaults]\npass_env = [\"PASSED\"]\n[defaults.env]\nREGION = \"${WHERE}\"\n")
        .env("WHERE", "here")
        .env("PASSED", "yes")
        .env("KEPT", "no")
        .server("own", own)
        .scripted("plain", &[])
        .connected()
        .await;
    chat::put(&gateway, "/projects/shop", json!({})).await;
    let path = "/mcp/servers/theirs?project=shop";
    chat::put(&gateway, path, scripted("theirs", &[])).await;
    let paths = ["/mcp/-/own", "/mcp/-/plain", "/mcp/shop/theirs"];
    for (path, region) in paths.into_iter().zip(["own", "here", "here"]) {
        let variables = environment(&gateway, path).await.unwrap();
        assert_eq!(variables["REGION"], region, "{path}");
        assert_eq!(variables["PASSED"], "yes", "{path}");
        assert_eq!(variables.get("KEPT"), None, "{path}");
    }
    let all = chat::told(&gateway, "/settings").await.to_string();
    checks::lacks(&all, &["${WHERE}x", "\"here\""]);
    let settings = gateway.settings_file();
    gateway.replace(&settings, "[defaults.env]\nREGION = \"there\"\n");
    for (path, region) in paths.into_iter().zip(["own", "there", "there"]) {
        wait_for(&format!("{region} at {path}"), DEADLINE, async || {
            let variables = environment(&gateway, path).await;
            variables.is_some_and(|all| all["REGION"] == region && all.get("PASSED").is_none())
        })
        .await;
    }
}

#[tokio::test]
async fn u13_invalid_default_variables_are_reported_without_their_values() {
    let settings = "[defaults]\npass_env = [\"A=B\", \"TOOLWHARF_MASTER_KEY\"]\n\
         env = { A = \"hunter2${NOT_SET}\", B = [\"hunter2\"] }\n";
    let said = Setup::new().settings(settings).refused().await;
    checks::contains(
        &said,
        &[
            "`NOT_SET` is not set (`A`)",
            "`B` is not a string",
            "invalid `pass_env`",
        ],
    );
    checks::lacks(&said, &["hunter2"]);
}
