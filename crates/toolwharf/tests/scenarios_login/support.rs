//! Shared by all scenarios: an issuer, a protected server, and a gateway in front of it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Issuer, Peer, Process, Protected, RawClient, Reply, form_token, peer, protected,
    wait_for,
};
use tokio::process::Command;

use crate::{
    common::{checks, cli::toolwharf},
    kept::{Kept, Running},
};

pub(crate) const NAME: &str = "files";
/// The API path of the sign-in to the protected server.
pub(crate) const LOGIN: &str = "/mcp/servers/files/login";
/// A deadline that is longer than a dead process can hold the lease of a sign-in.
pub(crate) const LEASE_DEADLINE: Duration = Duration::from_secs(60);

/// An issuer, and a server that accepts its tokens.
pub(crate) struct World {
    pub(crate) issuer: Issuer,
    pub(crate) protected: Protected,
}

impl World {
    pub(crate) async fn new(mut options: Value) -> Self {
        options["scopes"] = json!(protected::SCOPES);
        let issuer = Issuer::start(options).await;
        let protected = Protected::start(&issuer).await;
        Self { issuer, protected }
    }

    /// The entry of the protected server.
    pub(crate) fn entry(&self) -> Value {
        json!({ "type": "http", "url": self.protected.url(), "login": { "mode": "shared" } })
    }

    /// Starts a gateway in front of the server.
    pub(crate) async fn serve(&self) -> (Kept, Running) {
        let kept = Kept::sqlite().await;
        kept.servers(json!({ NAME: self.entry() }));
        let running = kept.start().await;
        (kept, running)
    }

    /// A world with a gateway that needs a sign-in.
    pub(crate) async fn signed_out() -> (Self, Kept, Running) {
        let world = Self::new(json!({})).await;
        let (kept, running) = world.serve().await;
        state(&running, "needs_login").await;
        (world, kept, running)
    }

    /// A world with a gateway, with a sign-in as this account.
    pub(crate) async fn entered(account: &str, options: Value) -> (Self, Kept, Running) {
        let world = Self::new(options).await;
        let (kept, running) = world.signed_in(account).await;
        (world, kept, running)
    }

    /// Starts a gateway and signs in.
    pub(crate) async fn signed_in(&self, account: &str) -> (Kept, Running) {
        let (kept, running) = self.serve().await;
        sign_in(&self.issuer, &running, account).await;
        (kept, running)
    }
}

/// Follows a link, which must end with a sign-in as `account`.
pub(crate) async fn enter(issuer: &Issuer, link: &str, account: &str, form: &str) {
    checks::reply(&follow(issuer, link, account, form).await, 200, &[]);
}

/// Restarts the gateway, and waits until the server is in this state.
pub(crate) async fn restarted(kept: &Kept, running: Running, wanted: &str) -> Running {
    running.stop().await;
    let running = kept.start().await;
    state(&running, wanted).await;
    running
}

/// Asserts that a call was refused because a sign-in is needed.
#[track_caller]
pub(crate) fn needs_login(error: &Value) {
    assert_eq!(error["data"]["reason"], "needs_login", "{error}");
}

/// Like [`needs_login`]. Returns the link to the sign-in.
#[track_caller]
pub(crate) fn link_in(error: &Value) -> &str {
    needs_login(error);
    let link = error["data"]["url"].as_str();
    link.unwrap_or_else(|| panic!("no link: {error}"))
}

/// Begins a sign-in with a browser. Returns its link.
pub(crate) async fn link(running: &Running) -> String {
    let begun = running.ok("POST", LOGIN, json!({ "way": "browser" })).await;
    begun["link"].as_str().unwrap().to_owned()
}

/// Signs in as the administrator without a browser, and waits until the server is running.
pub(crate) async fn sign_in(issuer: &Issuer, running: &Running, account: &str) {
    // The required scopes are unknown until the server has refused a request.
    state(running, "needs_login").await;
    paste(issuer, running, NAME, "", account).await;
    state(running, "running").await;
}

/// Signs in to a server as the administrator by pasting the redirect. `query` may name a project.
pub(crate) async fn paste(
    issuer: &Issuer,
    running: &Running,
    server: &str,
    query: &str,
    account: &str,
) {
    let place = format!("/mcp/servers/{server}/login");
    let begin = format!("{place}{query}");
    let begun = running.ok("POST", &begin, json!({ "way": "paste" })).await;
    let url = begun["authorize_url"].as_str().unwrap();
    let redirect = json!({ "redirect": issuer.sign_in(url, account).await });
    let finish = format!("{place}/finish{query}");
    running.ok("POST", &finish, redirect).await;
}

/// Returns the sign-in to the server from the REST API.
pub(crate) async fn login(running: &Running) -> Value {
    running.ok("GET", LOGIN, Value::Null).await
}

/// Creates a key of project `p`.
pub(crate) async fn key(running: &Running, role: &str) -> String {
    static KEYS: AtomicUsize = AtomicUsize::new(0);
    // Names of keys are unique.
    let name = format!("{role} {}", KEYS.fetch_add(1, Ordering::Relaxed));
    let key = json!({ "name": name, "role": role });
    let key = running.ok("POST", "/keys?project=p", key).await;
    key["token"].as_str().unwrap().to_owned()
}

/// Follows a link as a browser does, signs in as `account`, and returns the final page.
pub(crate) async fn follow(issuer: &Issuer, link: &str, account: &str, form: &str) -> Reply {
    let departed = depart(link, form).await;
    let Some(url) = departed.header("location") else {
        return departed;
    };
    let redirect = issuer.sign_in(url, account).await;
    let page = arrive(&redirect, &cookie(&departed)).await;
    if !page.status.is_success() {
        eprintln!("{}", page.text());
    }
    page
}

/// Opens a link.
pub(crate) async fn page(link: &str) -> Reply {
    RawClient::new(link).get(&[]).await.collect(DEADLINE).await
}

/// Presses the button on a link's page.
pub(crate) async fn depart(link: &str, form: &str) -> Reply {
    let shown = page(link).await;
    let token = form_token(&shown.text()).unwrap_or_default();
    post(link, &format!("{form}&form={token}")).await
}

/// Posts a form to a link's page.
pub(crate) async fn post(link: &str, form: &str) -> Reply {
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    RawClient::new(link).post_with(&kind, form.to_owned()).await
}

pub(crate) fn cookie(reply: &Reply) -> String {
    let cookie = reply.header("set-cookie").unwrap_or_default();
    cookie.split(';').next().unwrap_or_default().to_owned()
}

/// Opens the redirect of an issuer.
pub(crate) async fn arrive(redirect: &str, cookie: &str) -> Reply {
    let client = RawClient::new(redirect);
    let answer = client.send(Method::GET, &[("cookie", cookie)], "").await;
    answer.collect(DEADLINE).await
}

/// Waits until the server is in that state.
pub(crate) async fn state(running: &Running, wanted: &str) {
    wait_for(&format!("{NAME} {wanted}"), DEADLINE, async || {
        told(running).await["status"] == wanted
    })
    .await;
}

/// Returns the server's status from the REST API.
pub(crate) async fn told(running: &Running) -> Value {
    let path = format!("/mcp/servers/{NAME}");
    running.ok("GET", &path, Value::Null).await
}

/// A command of the product's command line, as the gateway's administrator.
pub(crate) fn command(running: &Running, arguments: &[&str]) -> Command {
    let mut command = toolwharf();
    command
        .args(arguments)
        .env("TOOLWHARF_URL", &running.url)
        .env("TOOLWHARF_TOKEN", &running.token)
        .env_remove("BROWSER");
    command
}

/// Calls a tool from a client that cannot be asked for input.
pub(crate) async fn call(running: &Running, tool: &str) -> Value {
    let params = json!({ "name": format!("{NAME}__{tool}"), "arguments": {} });
    running.mcp("", "tools/call", params).await.response()
}

/// Returns the text of a call's result.
#[track_caller]
pub(crate) fn text(response: &Value) -> &str {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{response}"))
}

/// Returns the text of a call's result, or its error.
pub(crate) fn outcome(response: &Value) -> Result<String, Value> {
    match &response["error"] {
        Value::Null => Ok(text(response).to_owned()),
        error => Err(error.clone()),
    }
}

/// A client that passes URLs to `open`.
pub(crate) async fn client(
    running: &Running,
    version: &str,
    open: impl Fn(String) + Send + Sync + 'static,
) -> Peer {
    let mut capabilities = peer::all_capabilities();
    capabilities["elicitation"] = json!({ "form": {}, "url": {} });
    let client = running.raw("/mcp");
    let peer = Peer::http(client, version, capabilities).await;
    peer.answering(move |method, params| {
        if method != "elicitation/create" || params["mode"] != "url" {
            return peer::answer(method);
        }
        open(params["url"].as_str().unwrap_or_default().to_owned());
        json!({ "action": "accept" })
    })
}

/// A gateway that listens on all addresses, so that every client needs a key.
pub(crate) async fn open(entry: Value, settings: &str) -> (Kept, Running) {
    let kept = Kept::sqlite().await;
    kept.settings(settings);
    kept.servers(json!({ NAME: entry }));
    let mut command = kept.command("serve");
    command
        .args(["--listen", "0.0.0.0:0", "--data-dir"])
        .arg(kept.dir.path().join("data"));
    let running = kept.running(Process::spawn(command)).await;
    state(&running, "needs_login").await;
    (kept, running)
}
