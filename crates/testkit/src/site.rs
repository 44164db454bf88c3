//! A local web site, for servers that fetch pages.

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::IntoResponse,
};
use tokio::task::JoinSet;

use crate::serve::serve;

/// A web site. Dropping it stops the site.
///
/// | path | response |
/// | --- | --- |
/// | `/robots.txt` | forbids `/private` |
/// | `/missing` | 404 |
/// | `/huge` | two million characters of text |
/// | `/picture.png` | not HTML |
/// | all others | the page |
pub struct Site {
    url: String,
    _tasks: JoinSet<()>,
}

impl Site {
    /// Starts a site with one HTML page.
    pub async fn new(page: &'static str) -> Self {
        let answer = async move |uri: Uri| answer(uri.path(), page);
        let (url, tasks) = serve(|_| Router::new().fallback(answer)).await;
        Self { url, _tasks: tasks }
    }

    /// Returns the URL of `path`, for example `/soup`.
    #[must_use]
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

fn answer(path: &str, page: &'static str) -> impl IntoResponse + use<> {
    let (kind, body) = match path {
        "/robots.txt" => (
            "text/plain",
            "User-agent: *\nDisallow: /private\n".to_owned(),
        ),
        "/missing" => ("text/html", "<html>There is none.</html>".to_owned()),
        "/picture.png" => ("image/png", "\u{89}PNG\r\n\u{1a}\n".to_owned()),
        "/huge" => ("text/plain", "Stir, and stir again.".repeat(100_000)),
        _ => ("text/html", page.to_owned()),
    };
    let status = match path {
        "/missing" => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    (status, [(CONTENT_TYPE, kind)], body)
}
