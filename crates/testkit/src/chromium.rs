//! Headless Chromium, driven over WebDriver (W3C), for tests of pages.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::FutureExt as _;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{DEADLINE, Process, RawClient, wait_for, wait_for_some};

const DRIVER: &str = "/usr/bin/chromedriver";
const BROWSER: &str = "/usr/bin/chromium";
/// The JSON key of an element's id (W3C WebDriver, 12.1).
const ELEMENT_KEY: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with a separate profile. Dropping it ends the browser.
pub struct Chromium {
    session: RawClient,
    path: String,
    _profile: TempDir,
    _driver: Process,
}

impl Chromium {
    /// Starts a browser.
    ///
    /// # Panics
    /// If Chromium is not installed (`cargo xtask setup`) or does not start.
    pub async fn start() -> Self {
        for program in [DRIVER, BROWSER] {
            let is_there = std::path::Path::new(program).is_file();
            assert!(is_there, "{program} is missing; run: cargo xtask setup");
        }
        let mut command = Command::new(DRIVER);
        command.arg("--port=0");
        let mut driver = Process::spawn(command);
        let port = driver
            .announced(|line| {
                let said = line.split_once("started successfully on port ")?.1;
                said.strip_suffix('.')?.parse::<u16>().ok()
            })
            .await;
        let client = RawClient::new(&format!("http://127.0.0.1:{port}/session"));
        let profile = tempfile::tempdir().expect("a test can make a directory");
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let options = json!({ "binary": BROWSER, "args": arguments });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let made = client.post(wanted.to_string()).await;
        let made: Value = serde_json::from_slice(&made.body).expect("JSON");
        let id = made["value"]["sessionId"].as_str();
        let id = id.unwrap_or_else(|| panic!("Chromium does not start: {made}"));
        Self {
            path: format!("/session/{id}"),
            session: client,
            _profile: profile,
            _driver: driver,
        }
    }

    pub async fn open(&self, url: &str) {
        self.post("/url", json!({ "url": url })).await;
    }

    /// Returns the current URL.
    pub async fn url(&self) -> String {
        let url = self.get("/url").await;
        url.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the text of the current page.
    pub async fn text(&self) -> String {
        let script =
            json!({ "script": "return document.body ? document.body.innerText : ''", "args": [] });
        let text = self.post("/execute/sync", script).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page contains `text`.
    ///
    /// # Panics
    /// After [`DEADLINE`], printing the page.
    pub async fn shows(&self, text: &str) {
        let is_there = wait_for(text, DEADLINE, async || self.text().await.contains(text));
        self.or_shown(is_there).await;
    }

    /// Types `text` into the element that a CSS selector matches.
    pub async fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        let place = format!("/element/{element}/value");
        self.post(&place, json!({ "text": text })).await;
    }

    /// Clicks the element that a CSS selector matches.
    pub async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.post(&format!("/element/{element}/click"), json!({}))
            .await;
    }

    /// Emulates a screen of the given width, dark or light, from now on.
    pub async fn screen(&self, width: u32, is_dark: bool) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", features).await;
    }

    /// Takes a screenshot, as PNG.
    pub async fn screenshot(&self) -> Vec<u8> {
        let shot = self.get("/screenshot").await;
        let shot = STANDARD.decode(shot.as_str().unwrap_or_default());
        shot.expect("a picture")
    }

    async fn element(&self, selector: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": selector });
        let found = wait_for_some(selector, DEADLINE, async || {
            let found = self
                .ask(Method::POST, "/element", Some(&wanted))
                .await
                .ok()?;
            Some(found[ELEMENT_KEY].as_str()?.to_owned())
        });
        self.or_shown(found).await
    }

    /// Awaits `waiting`, and prints the current page if it panics.
    async fn or_shown<T>(&self, waiting: impl Future<Output = T>) -> T {
        let waited = std::panic::AssertUnwindSafe(waiting).catch_unwind().await;
        match waited {
            Ok(value) => value,
            Err(panic) => {
                eprintln!("{}: {}", self.url().await, self.text().await);
                std::panic::resume_unwind(panic)
            }
        }
    }

    async fn command(&self, name: &str, params: Value) {
        let body = json!({ "cmd": name, "params": params });
        self.post("/goog/cdp/execute", body).await;
    }

    async fn get(&self, what: &str) -> Value {
        let answer = self.ask(Method::GET, what, None).await;
        answer.unwrap_or_else(|error| panic!("Chromium, {what}: {error}"))
    }

    async fn post(&self, what: &str, body: Value) -> Value {
        let answer = self.ask(Method::POST, what, Some(&body)).await;
        answer.unwrap_or_else(|error| panic!("Chromium, {what} {body}: {error}"))
    }

    async fn ask(&self, method: Method, what: &str, body: Option<&Value>) -> Result<Value, Value> {
        let client = self.session.at(&format!("{}{what}", self.path));
        let body = body.map_or_else(String::new, Value::to_string);
        let answer = client.send(method, &[], body).await.collect(DEADLINE).await;
        let mut said: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let value = said["value"].take();
        match answer.status.is_success() {
            true => Ok(value),
            false => Err(value),
        }
    }
}
