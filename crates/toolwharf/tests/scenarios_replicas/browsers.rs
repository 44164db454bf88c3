//! D01: browsers and sign-ins at issuers need no sticky sessions: each request may go to a different replica.

use http::Method;
use serde_json::{Value, json};
use testkit::{
    Browser, DEADLINE, Issuer, Protected, RawClient, Reply, browser::ENTER, postgres::Database,
    protected, wait_for,
};

use crate::{
    api::Api,
    common::{
        Gateway, Setup, checks,
        replicas::Balancer,
        session::{Session, begin, come_back, enter, token},
    },
    support::{database, replica_with},
};

/// Requests the status from a script of the page, with the cookie and the page's secret.
const STATUS: &str = "fetch('/api/v1/status', { headers: { 'toolwharf-session': localStorage.getItem('toolwharf-session') } })\
                      .then((reply) => reply.status)";

/// Three replicas behind a load balancer with a public address.
struct Installation {
    replicas: Vec<Gateway>,
    balancer: Balancer,
    _database: Database,
}

impl Installation {
    /// `more` finishes each replica's setup after `settings` were applied.
    async fn start(settings: &str, more: impl Fn(Setup) -> Setup) -> Self {
        let database = database().await;
        let address = Balancer::free();
        let settings = format!(
            "public_url = \"http://{address}\"\n{settings}[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n"
        );
        let mut replicas: Vec<Gateway> = Vec::new();
        for _ in 0..3 {
            let more = |setup: Setup| more(setup.settings(&settings));
            let next = replica_with(database.url(), replicas.first(), more).await;
            replicas.push(next);
        }
        let balancer = Balancer::at(address, &replicas).await;
        Self {
            replicas,
            balancer,
            _database: database,
        }
    }

    fn at(&self, path: &str) -> RawClient {
        RawClient::new(&format!("{}{path}", self.balancer.url))
    }
}

fn cookie(reply: &Reply) -> String {
    let set = reply.header("set-cookie");
    let set = set.unwrap_or_else(|| panic!("{}: {}", reply.status, reply.text()));
    set.split(';').next().unwrap().to_owned()
}

async fn get(client: RawClient, cookie: &str) -> Reply {
    let answer = client.send(Method::GET, &[("cookie", cookie)], "").await;
    answer.collect(DEADLINE).await
}

#[tokio::test]
async fn d01_a_browser_is_signed_in_at_all_replicas() {
    let mut all = Installation::start("", |setup| setup).await;
    // One replica issues the link; its page and requests may go to any.
    let admin = Api::admin(&all.replicas[0]);
    let link = admin.ok("POST", "/browser-links", Value::Null).await;
    let link = link["url"].as_str().unwrap().to_owned();
    assert!(link.starts_with(&all.balancer.url), "{link}");
    let browser = Browser::open().await;
    browser.go(&link).await;
    browser.wait("location.pathname === '/servers'").await;
    let other = Browser::open().await;
    other.go(&link).await;
    other
        .wait("document.body.innerText.includes('used before')")
        .await;
    other.quit().await;
    for _ in 0..6 {
        assert_eq!(browser.eval(STATUS).await, 200);
    }
    // Kills the replica that issued the link, or another one.
    drop(all.replicas.remove(0));
    wait_for("the balancer to notice", DEADLINE, async || {
        browser.eval(STATUS).await == 200
    })
    .await;
    // A sign-out at one replica takes effect at all within a second.
    let [one, two] = &all.replicas[..] else {
        panic!("two are left");
    };
    let origin = all.balancer.url.as_str();
    let key = format!("key={}", one.token());
    let session = Session::of(&enter(one, &key, origin).await);
    for replica in [one, two] {
        let status = replica.at("/api/v1/status");
        checks::reply(&session.get(status.clone()).await, 200, &[]);
        // The cookie alone is refused everywhere.
        checks::reply(&get(status, &session.cookie).await, 401, &[]);
    }
    let form = [&session.headers()[..], &[("origin", origin)]].concat();
    let left = one.at("/sign-out").post_with(&form, "").await;
    assert_eq!(left.status, 204, "{}", left.text());
    let there = session.get(one.at("/api/v1/status")).await;
    assert_eq!(there.status, 401);
    wait_for("the end of the session there", DEADLINE, async || {
        session.get(two.at("/api/v1/status")).await.status == 401
    })
    .await;
    assert_eq!(browser.eval(STATUS).await, 200);
    browser.quit().await;
}

#[tokio::test]
async fn d01_a_sign_in_at_an_issuer_may_end_at_another_replica() {
    let accounts = json!({ "ann": { "groups": ["operators"] } });
    let issuer = Issuer::start(json!({ "accounts": accounts, "host": "localhost" })).await;
    let settings = format!(
        "[auth.oidc.corp]\nissuer = \"{}\"\nclient_id = \"wharf\"\n\
         access = [{{ claim = \"groups\", values = [\"operators\"], role = \"admin\" }}]\n",
        issuer.url()
    );
    let all = Installation::start(&settings, |setup| setup).await;
    let redirect = format!("{}/sign-in/callback", all.balancer.url);
    let client = json!({ "client_id": "wharf", "redirect_uris": [redirect] });
    issuer.set(json!({ "clients": [client] })).await;
    issuer.rotate().await;
    let [one, two, three] = &all.replicas[..] else {
        panic!("there are three");
    };
    let origin = all.balancer.url.as_str();
    let (url, tab) = begin(one, "corp", origin).await;
    let back = issuer.sign_in(&url, "ann").await;
    let entered = come_back(two, &back, &tab, origin).await;
    let found = Session::of(&entered).get(three.at("/api/v1/status")).await;
    assert_eq!(found.status, 200, "{}", found.text());
    // The redirect is valid once, at any replica.
    for replica in [one, two] {
        let again = come_back(replica, &back, &tab, origin).await;
        assert_eq!(again.status, 400, "{}", again.text());
    }
    // The sign-in also works in a browser, through the load balancer.
    let browser = Browser::open().await;
    browser.go(&format!("{}/sign-in", all.balancer.url)).await;
    browser.click("button.issuer").await;
    let account = "[name=account]";
    browser
        .wait(&format!("document.querySelector('{account}')"))
        .await;
    browser.type_into(account, &format!("ann{ENTER}")).await;
    browser.wait("document.querySelector('#allow')").await;
    browser.click("#allow").await;
    browser.wait("location.pathname === '/servers'").await;
    assert_eq!(browser.eval(STATUS).await, 200);
    browser.quit().await;
}

#[tokio::test]
async fn d01_a_sign_in_to_a_server_may_end_at_another_replica() {
    let issuer = Issuer::start(json!({ "scopes": protected::SCOPES })).await;
    let protected = Protected::start(&issuer).await;
    let entry = json!({ "type": "http", "url": protected.url(), "login": { "mode": "shared" } });
    let all = Installation::start("", |setup| setup.server("files", entry.clone())).await;
    // Adds a project's server, which only the first replica knows at first.
    let admin = Api::admin(&all.replicas[0]);
    admin.put("/projects/shop", json!({})).await;
    let till = "/mcp/servers/till?project=shop";
    admin.put(till, entry.clone()).await;
    let login = "/mcp/servers/files/login";
    for place in [login, "/mcp/servers/till/login?project=shop"] {
        let begun = admin.ok("POST", place, json!({ "way": "browser" })).await;
        let link = begun["link"].as_str().unwrap();
        let link = link.strip_prefix(&all.balancer.url).unwrap();
        let key = format!("key={}", all.replicas[0].token());
        let form = [("content-type", "application/x-www-form-urlencoded")];
        // The page may come from one replica and its form go to another.
        let token = token(all.replicas[2].at(link)).await;
        let key = format!("{key}&form={token}");
        let departed = all.replicas[1].at(link).post_with(&form, key.clone()).await;
        assert_eq!(departed.status, 303, "{}", departed.text());
        // The link is used up at every replica.
        for replica in &all.replicas {
            let again = replica.at(link).post_with(&form, key.clone()).await;
            assert_eq!(again.status, 410, "{}", again.text());
        }
        let url = departed.header("location").unwrap();
        let back = issuer.sign_in(url, "ann").await;
        let back = back.strip_prefix(&all.balancer.url).unwrap();
        let foreign = get(all.replicas[2].at(back), "twh_login_x=y").await;
        assert_eq!(foreign.status, 400, "{}", foreign.text());
        let page = get(all.replicas[2].at(back), &cookie(&departed)).await;
        assert_eq!(page.status, 200, "{}", page.text());
        for replica in &all.replicas {
            wait_for("the sign-in", DEADLINE, async || {
                Api::admin(replica).get(place).await["state"] == "signed_in"
            })
            .await;
        }
    }
    // Without a browser, the redirect can be passed to a replica other than the one that started the sign-in.
    admin.delete(login).await;
    let way = json!({ "way": "paste" });
    let begun = admin.ok("POST", login, way).await;
    let url = begun["authorize_url"].as_str().unwrap();
    let redirect = json!({ "redirect": issuer.sign_in(url, "ann").await });
    let other = Api::admin(&all.replicas[2]);
    other.ok("POST", &format!("{login}/finish"), redirect).await;
    assert_eq!(all.at("/healthz").get(&[]).await.status, 200);
}
