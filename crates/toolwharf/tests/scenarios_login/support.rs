//! What every scenario needs: an issuer, a server behind it, and a gateway in front of that.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Issuer, Peer, Process, Protected, RawClient, Reply, form_token, peer, protected,
    wait_for,
};
use tokio::process::Command;

use crate::{
    cli::toolwharf,
    kept::{Kept, Running},
};

/// The protected server's name.
pub(crate) const NAME: &str = "files";
/// Longer than a process may have a sign-in for itself after it died.
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// An issuer and a server that takes its tokens.
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

    /// A gateway in front of it.
    pub(crate) async fn serve(&self) -> (Kept, Running) {
        let kept = Kept::sqlite().await;
        kept.servers(json!({ NAME: self.entry() }));
        let running = kept.start().await;
        (kept, running)
    }

    /// A gateway that somebody has signed in with.
    pub(crate) async fn signed_in(&self, account: &str) -> (Kept, Running) {
        let (kept, running) = self.serve().await;
        self.sign_in(&running, account).await;
        (kept, running)
    }

    /// Signs in as the administrator does without a browser, and waits until the server is there.
    pub(crate) async fn sign_in(&self, running: &Running, account: &str) {
        sign_in(&self.issuer, running, account).await;
    }

    /// Does what a browser does with a link, signs in as `account`, and comes back; the page that it ends at.
    pub(crate) async fn follow(&self, link: &str, account: &str, form: &str) -> Reply {
        follow(&self.issuer, link, account, form).await
    }
}

/// Signs in as the administrator does without a browser, and waits until the server is there.
pub(crate) async fn sign_in(issuer: &Issuer, running: &Running, account: &str) {
    // Before the server has refused a request it has not said which scopes it wants.
    state(running, "needs_login").await;
    let place = format!("/mcp/servers/{NAME}/login");
    let begun = running.ok("POST", &place, json!({ "way": "paste" })).await;
    let url = begun["authorize_url"].as_str().unwrap();
    let redirect = issuer.sign_in(url, account).await;
    let place = format!("{place}/finish");
    running
        .ok("POST", &place, json!({ "redirect": redirect }))
        .await;
    state(running, "running").await;
}

/// Does what a browser does with a link, signs in as `account`, and comes back; the page that it ends at.
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

/// Presses the button of a link's page.
pub(crate) async fn depart(link: &str, form: &str) -> Reply {
    let shown = RawClient::new(link).get(&[]).await.collect(DEADLINE).await;
    let token = form_token(&shown.text()).unwrap_or_default();
    post(link, &format!("{form}&form={token}")).await
}

/// Posts a form to a link's page.
pub(crate) async fn post(link: &str, form: &str) -> Reply {
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    RawClient::new(link).post_with(&kind, form.to_owned()).await
}

/// The cookie that a reply sets.
pub(crate) fn cookie(reply: &Reply) -> String {
    let cookie = reply.header("set-cookie").unwrap_or_default();
    cookie.split(';').next().unwrap_or_default().to_owned()
}

/// Opens the address that an issuer sends a browser to.
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

/// What the REST API tells of the server.
pub(crate) async fn told(running: &Running) -> Value {
    let path = format!("/mcp/servers/{NAME}");
    running.ok("GET", &path, Value::Null).await
}

/// The product's command line, as the administrator of a gateway.
pub(crate) fn command(running: &Running, arguments: &[&str]) -> Command {
    let mut command = toolwharf();
    command
        .args(arguments)
        .env("TOOLWHARF_URL", &running.url)
        .env("TOOLWHARF_TOKEN", &running.token)
        .env_remove("BROWSER");
    command
}

/// A call of a tool of the server by a client that can be asked nothing.
pub(crate) async fn call(running: &Running, tool: &str) -> Value {
    let params = json!({ "name": format!("{NAME}__{tool}"), "arguments": {} });
    running.mcp("", "tools/call", params).await.response()
}

/// The text that a call came to.
#[track_caller]
pub(crate) fn text(response: &Value) -> &str {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{response}"))
}

/// A client that opens URLs, and does with them what `open` does.
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

/// A gateway that all of the network could connect to, so that everybody needs a key.
pub(crate) async fn open(entry: Value) -> (Kept, Running) {
    open_with(entry, "").await
}

/// The same, with settings.
pub(crate) async fn open_with(entry: Value, settings: &str) -> (Kept, Running) {
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
