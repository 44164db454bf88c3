//! Headless Chromium, driven over the WebDriver protocol (<https://www.w3.org/TR/webdriver2/>).
//!
//! It has only what the tests need, which is a few requests. The lightweight crates for this depend on a package whose
//! licence `deny.toml` does not allow.

use std::{path::Path, time::Duration};

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{DEADLINE, Process, RawClient, wait_for};

const INSTALL_HINT: &str =
    "run: cargo xtask setup (or, as root: apt-get install -y chromium chromium-driver)";
/// The JSON key of an element's id (WebDriver, section 12).
const ELEMENT_KEY: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The code of the key `Enter` in typed text (WebDriver, "Keyboard actions").
pub(crate) const ENTER: &str = "\u{e007}";

/// A browser with one tab and a separate profile. Dropping it ends the browser.
pub(crate) struct Browser {
    driver: RawClient,
    /// The path of the WebDriver session.
    session: String,
    chromium: Option<Pid>,
    // Kept for their drops.
    _process: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser.
    ///
    /// # Panics
    /// If Chromium or its driver is missing. The message gives the command that installs them.
    pub(crate) async fn open() -> Self {
        let driver = program("chromedriver");
        let chromium = program("chromium");
        let profile = tempfile::tempdir().expect("a folder");
        let mut command = tokio::process::Command::new(driver);
        command.arg("--port=0").env("HOME", profile.path());
        let mut process = Process::spawn(command);
        let port = process
            .announced(|line| {
                let (_, port) = line.split_once("started successfully on port ")?;
                Some(port.strip_suffix('.')?.to_owned())
            })
            .await;
        let driver = RawClient::new(&format!("http://127.0.0.1:{port}/"));
        let arguments = [
            "--headless",
            // Tests run as root, where Chromium refuses to use its sandbox.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-breakpad",
            "--window-size=1200,900",
        ];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        arguments.push(format!(
            "--user-data-dir={}",
            profile.path().join("profile").display()
        ));
        let options = json!({ "binary": chromium, "args": arguments });
        let capabilities = json!({ "alwaysMatch": {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        }});
        let asked = json!({ "capabilities": capabilities });
        let told = value(&driver, Method::POST, "/session", &asked).await;
        let id = told["sessionId"].as_str().expect("a session");
        let pid = told["capabilities"]["goog:processID"].as_i64();
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        Self {
            session: format!("/session/{id}"),
            driver,
            chromium: pid,
            _process: process,
            _profile: profile,
        }
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        value(
            &self.driver,
            method,
            &format!("{}{path}", self.session),
            body,
        )
        .await
    }

    pub(crate) async fn go(&self, url: &str) {
        self.ask(Method::POST, "/url", &json!({ "url": url })).await;
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn eval(&self, expression: &str) -> Value {
        let script = json!({ "script": format!("return ({expression});"), "args": [] });
        self.ask(Method::POST, "/execute/sync", &script).await
    }

    /// Returns the texts of all elements that match the selector.
    pub(crate) async fn texts(&self, css: &str) -> Vec<String> {
        let all =
            format!("[...document.querySelectorAll({css:?})].map((one) => one.textContent.trim())");
        let all = self.eval(&all).await;
        serde_json::from_value(all).expect("texts")
    }

    /// Waits until the expression is true in the page.
    ///
    /// # Panics
    /// After [`DEADLINE`], with the text of the page.
    pub(crate) async fn wait(&self, expression: &str) {
        let waited = wait_for(expression, DEADLINE, async || {
            self.eval(&format!("Boolean({expression})")).await == true
        });
        let late = tokio::time::timeout(DEADLINE - Duration::from_secs(1), waited).await;
        if late.is_err() {
            let page = self.eval("document.body.innerText").await;
            panic!("timed out waiting for {expression}; the page: {page}");
        }
    }

    async fn element(&self, css: &str) -> String {
        let asked = json!({ "using": "css selector", "value": css });
        let found = self.ask(Method::POST, "/element", &asked).await;
        found[ELEMENT_KEY].as_str().expect("an element").to_owned()
    }

    /// Clicks an element as a user would. It is an error if another element covers it.
    pub(crate) async fn click(&self, css: &str) {
        let path = format!("/element/{}/click", self.element(css).await);
        self.ask(Method::POST, &path, &json!({})).await;
    }

    /// Types into an input element.
    pub(crate) async fn type_into(&self, css: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(css).await);
        self.ask(Method::POST, &path, &json!({ "text": text }))
            .await;
    }

    /// Returns errors of scripts and of the browser since the last call.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self
            .ask(Method::POST, "/se/log", &json!({ "type": "browser" }))
            .await;
        let lines = log.as_array().expect("lines").iter();
        lines
            .filter_map(|line| line["message"].as_str().map(str::to_owned))
            .collect()
    }

    /// Quits the browser gracefully.
    pub(crate) async fn quit(mut self) {
        self.ask(Method::DELETE, "", &Value::Null).await;
        self.chromium = None;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(pid) = self.chromium {
            // An error means that the process has exited.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

async fn value(driver: &RawClient, method: Method, path: &str, body: &Value) -> Value {
    let text = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let reply = driver.at(path).send(method, &[], text).await;
    let reply = reply.collect(DEADLINE).await;
    assert_eq!(
        reply.status,
        200,
        "{path} with {body} failed: {}",
        reply.text()
    );
    let mut told: Value = serde_json::from_slice(&reply.body).expect("JSON");
    told["value"].take()
}

/// Finds a program in the `PATH`.
fn program(name: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| Path::is_file(file));
    found.unwrap_or_else(|| panic!("{name} is not on the PATH; {INSTALL_HINT}"))
}
