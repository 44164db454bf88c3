//! A session of a browser without a browser: what the console's page has, and the script of the page that signs in does.

use serde_json::Value;
use testkit::{DEADLINE, RawClient, Reply, form_token};

use super::Gateway;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
/// The header that a page of the console sends its secret in.
pub(crate) const PAGE_SECRET: &str = "toolwharf-session";

/// What a browser that signed in has.
#[derive(Clone)]
pub(crate) struct Session {
    /// `name=value`.
    pub(crate) cookie: String,
    pub(crate) secret: String,
}

impl Session {
    /// Of the answer that opened it.
    ///
    /// # Panics
    /// If the answer is another one.
    pub(crate) fn of(reply: &Reply) -> Self {
        let set = reply.header("set-cookie");
        let set = set.unwrap_or_else(|| panic!("{}: {}", reply.status, reply.text()));
        assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
        let told: Value = serde_json::from_slice(&reply.body).unwrap();
        Self {
            cookie: set.split(';').next().unwrap().to_owned(),
            secret: told["session"].as_str().unwrap().to_owned(),
        }
    }

    /// Signs in with a key.
    pub(crate) async fn enter(gateway: &Gateway, key: &str) -> Self {
        let reply = enter(gateway, &format!("key={key}"), &gateway.url).await;
        Self::of(&reply)
    }

    pub(crate) fn headers(&self) -> [(&str, &str); 2] {
        [("cookie", &self.cookie), (PAGE_SECRET, &self.secret)]
    }

    /// Asks as a page does that reads.
    pub(crate) async fn get(&self, client: RawClient) -> Reply {
        let answer = client.send(http::Method::GET, &self.headers(), "").await;
        answer.collect(DEADLINE).await
    }
}

/// The form token of a page of this gateway.
pub(crate) async fn token(client: RawClient) -> String {
    let page = client.get(&[]).await.collect(DEADLINE).await;
    form_token(&page.text()).unwrap_or_default()
}

/// Posts a form of `/sign-in`, with its token, as a page of that origin.
pub(crate) async fn enter(gateway: &Gateway, fields: &str, origin: &str) -> Reply {
    post(gateway, "/sign-in", fields, origin).await
}

/// The same to another place of the page.
pub(crate) async fn post(gateway: &Gateway, path: &str, fields: &str, origin: &str) -> Reply {
    let token = token(gateway.at("/sign-in")).await;
    let body = format!("{fields}&form={token}");
    let headers = [FORM, ("origin", origin)];
    gateway.at(path).post_with(&headers, body).await
}

/// Begins a sign-in at an issuer: where the browser has to go, and what its tab keeps.
pub(crate) async fn begin(gateway: &Gateway, issuer: &str, origin: &str) -> (String, String) {
    let path = format!("/sign-in/with/{issuer}");
    let reply = post(gateway, &path, "next=//evil.example", origin).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.header("set-cookie").is_none());
    let told: Value = serde_json::from_slice(&reply.body).unwrap();
    let text = |key: &str| told[key].as_str().unwrap().to_owned();
    (text("url"), text("browser"))
}

/// Posts what an issuer sent the browser back with, as the page of the redirect does.
pub(crate) async fn come_back(
    gateway: &Gateway,
    redirect: &str,
    browser: &str,
    origin: &str,
) -> Reply {
    let (_, query) = redirect.split_once('?').unwrap();
    let headers = [FORM, ("origin", origin)];
    let body = format!("{query}&browser={browser}");
    gateway
        .at("/sign-in/callback")
        .post_with(&headers, body)
        .await
}
