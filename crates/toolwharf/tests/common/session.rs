//! A browser session without a browser: it has the credentials of a console page, and sends the requests of the sign-in
//! page's script.

use testkit::{DEADLINE, RawClient, Reply, form_token};

use super::Gateway;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
/// The header in which a console page sends its secret.
pub(crate) const PAGE_SECRET: &str = "toolwharf-session";

/// The credentials of a signed-in browser.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) cookie: String,
    pub(crate) secret: String,
}

impl Session {
    /// Extracts the session from the response that opened it.
    ///
    /// # Panics
    /// If the response opens no session.
    pub(crate) fn of(reply: &Reply) -> Self {
        let set = reply.header("set-cookie");
        let set = set.unwrap_or_else(|| panic!("{}: {}", reply.status, reply.text()));
        assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
        let told = super::body(reply);
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

    /// Sends a GET request as a console page does.
    pub(crate) async fn get(&self, client: RawClient) -> Reply {
        let answer = client.send(http::Method::GET, &self.headers(), "").await;
        answer.collect(DEADLINE).await
    }
}

/// Returns the form token of one of this gateway's pages.
pub(crate) async fn token(client: RawClient) -> String {
    let page = client.get(&[]).await.collect(DEADLINE).await;
    form_token(&page.text()).unwrap_or_default()
}

/// Posts a form to `/sign-in`, with its token, from a page of that origin.
pub(crate) async fn enter(gateway: &Gateway, fields: &str, origin: &str) -> Reply {
    post(gateway, "/sign-in", fields, origin).await
}

/// Posts a form to another path of the sign-in page.
pub(crate) async fn post(gateway: &Gateway, path: &str, fields: &str, origin: &str) -> Reply {
    let token = token(gateway.at("/sign-in")).await;
    let body = format!("{fields}&form={token}");
    let headers = [FORM, ("origin", origin)];
    gateway.at(path).post_with(&headers, body).await
}

/// Starts a sign-in at an issuer. Returns the redirect target and the value that the browser tab stores.
pub(crate) async fn begin(gateway: &Gateway, issuer: &str, origin: &str) -> (String, String) {
    let path = format!("/sign-in/with/{issuer}");
    let reply = post(gateway, &path, "next=//evil.example", origin).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.header("set-cookie").is_none());
    let told = super::body(&reply);
    let text = |key: &str| told[key].as_str().unwrap().to_owned();
    (text("url"), text("browser"))
}

/// Posts the issuer's response parameters, as the redirect page does.
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
