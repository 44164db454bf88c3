//! A minimal browser for sign-ins that need no user input: it follows redirects and keeps cookies. For pages with a
//! user interface see [`Chromium`](crate::Chromium).

use std::collections::BTreeMap;

use http::{Method, StatusCode, header};

use crate::{
    DEADLINE,
    raw::{RawClient, Reply, form_token},
};

const MAX_REDIRECTS: usize = 10;

/// Opens a sign-in link, presses the page's button, and returns the final page.
///
/// # Panics
/// If there are too many redirects, or one has no target.
pub async fn sign_in(link: &str) -> Reply {
    let mut cookies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let page = RawClient::new(link).get(&[]).await.collect(DEADLINE).await;
    let token = form_token(&page.text()).unwrap_or_default();
    let (mut method, mut at) = (Method::POST, link.to_owned());
    let mut body = format!("form={token}");
    for _ in 0..MAX_REDIRECTS {
        let client = RawClient::new(&at);
        let origin = origin(&at);
        let kept = cookies
            .get(&origin)
            .map(|all| all.join("; "))
            .unwrap_or_default();
        let mut headers = vec![("content-type", "application/x-www-form-urlencoded")];
        if !kept.is_empty() {
            headers.push(("cookie", kept.as_str()));
        }
        let answer = client
            .send(method, &headers, std::mem::take(&mut body))
            .await;
        let reply = answer.collect(DEADLINE).await;
        for cookie in reply.headers.get_all(header::SET_COOKIE) {
            let cookie = cookie.to_str().expect("a cookie is text");
            let pair = cookie.split(';').next().unwrap_or_default();
            cookies
                .entry(origin.clone())
                .or_default()
                .push(pair.to_owned());
        }
        let is_redirect = matches!(reply.status, StatusCode::SEE_OTHER | StatusCode::FOUND);
        let Some(next) = reply.headers.get(header::LOCATION).filter(|_| is_redirect) else {
            return reply;
        };
        let next = next.to_str().expect("a location is text");
        at = if next.starts_with('/') {
            format!("{origin}{next}")
        } else {
            next.to_owned()
        };
        method = Method::GET;
    }
    panic!("{link}: more than {MAX_REDIRECTS} redirects");
}

fn origin(url: &str) -> String {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    url[..end].to_owned()
}
