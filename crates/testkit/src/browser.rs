//! Browsers for sign-ins and pages: Chromium, and one without a user interface.

use std::{collections::BTreeMap, path::Path};

use http::{Method, StatusCode, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Command, sync::Mutex};

use crate::{
    DEADLINE, StdioClient,
    conformance::node_modules,
    raw::{RawClient, Reply, form_token},
};

const MAX_REDIRECTS: usize = 10;
/// The same path as in `web/tests/launch.mjs`.
const CHROMIUM: &str = "/usr/bin/chromium-headless-shell";
/// The key Enter, in text for [`Browser::type_into`].
pub const ENTER: &str = "\n";

/// Headless Chromium with one tab and a separate profile, driven by Playwright (`web/tests/browser.mjs`). Dropping it
/// ends the browser.
///
/// # Panics
/// Every step panics if it fails or takes too long, with the text of the page.
pub struct Browser {
    driver: Mutex<StdioClient>,
    _folder: TempDir,
}

impl Browser {
    /// Starts a browser.
    ///
    /// # Panics
    /// If Node, Playwright or Chromium is missing (`cargo xtask setup`).
    pub async fn open() -> Self {
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
        let folder = tempfile::tempdir().expect("a test can make a directory");
        for needed in [
            &*web.join("node_modules/playwright-core"),
            Path::new(CHROMIUM),
        ] {
            let is_there = needed.exists();
            assert!(
                is_there,
                "{} is missing; run: cargo xtask setup",
                needed.display()
            );
        }
        let mut command = Command::new(node_modules().join("node/bin/node"));
        command
            .arg(web.join("tests/browser.mjs"))
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path());
        let this = Self {
            driver: Mutex::new(StdioClient::spawn(command)),
            _folder: folder,
        };
        this.go("about:blank").await;
        this
    }

    async fn step(&self, method: &str, params: Value) -> Value {
        let request = json!({ "id": method, "method": method, "params": params });
        let mut answer = self.driver.lock().await.ask(request).await;
        assert_eq!(answer.get("error"), None, "{method} with {params} failed");
        answer["result"].take()
    }

    pub async fn go(&self, url: &str) {
        self.step("go", json!([url])).await;
    }

    /// Evaluates an expression in the page, and awaits it if it is a promise.
    pub async fn eval(&self, expression: &str) -> Value {
        self.step("eval", json!([expression])).await
    }

    /// Returns the texts of all elements that match the selector.
    pub async fn texts(&self, css: &str) -> Vec<String> {
        let all =
            format!("[...document.querySelectorAll({css:?})].map((one) => one.textContent.trim())");
        serde_json::from_value(self.eval(&all).await).expect("texts")
    }

    /// Waits until the expression is true in the page.
    pub async fn wait(&self, expression: &str) {
        self.step("wait", json!([expression])).await;
    }

    /// Waits until the page contains `text`.
    pub async fn shows(&self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({text:?})"))
            .await;
    }

    /// Clicks an element as a user would, as soon as no other element covers it.
    pub async fn click(&self, css: &str) {
        self.step("click", json!([css])).await;
    }

    /// Types into an input element, after the text that it has.
    pub async fn type_into(&self, css: &str, text: &str) {
        self.step("type", json!([css, text])).await;
    }

    /// Emulates a screen of the given width, with the color scheme `dark` or `light`, from now on.
    pub async fn screen(&self, width: u32, scheme: &str) {
        self.step("screen", json!([width, scheme])).await;
    }

    /// Writes a screenshot to a file.
    pub async fn screenshot(&self, file: &Path) {
        self.step("screenshot", json!([file])).await;
    }

    /// Returns errors of scripts and of the browser since the last call.
    pub async fn complaints(&self) -> Vec<String> {
        let complaints = self.step("complaints", json!([])).await;
        serde_json::from_value(complaints).expect("lines")
    }

    /// Quits the browser gracefully.
    pub async fn quit(self) {
        self.driver.into_inner().finish(DEADLINE).await;
    }
}

/// Signs in where no user input is needed, following redirects and keeping cookies: opens a sign-in link, presses the
/// page's button, and returns the final page.
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
