//! A gateway that is started repeatedly with the same directory and database.

#![expect(dead_code, reason = "each test binary uses only a part of it")]
#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::{path::PathBuf, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    Bin, DEADLINE, Process, RawClient, Reply, Streaming, peer::MODERN, postgres::Database,
};
use tokio::{process::Command, task::JoinSet};

use crate::common::{self, rpc};

/// The parts that outlive the gateway.
pub(crate) struct Kept {
    pub(crate) dir: TempDir,
    pub(crate) database: Option<Database>,
    env: Vec<(String, String)>,
}

impl Kept {
    pub(crate) async fn sqlite() -> Self {
        let kept = Self {
            dir: common::folder(),
            database: None,
            env: Vec::new(),
        };
        std::fs::write(kept.dir.path().join("mcp.json"), r#"{"mcpServers":{}}"#).unwrap();
        kept.settings(common::SETTINGS);
        kept
    }

    pub(crate) async fn postgres() -> Self {
        Self {
            database: Some(Database::create().await),
            ..Self::sqlite().await
        }
    }

    /// Sets or removes an environment variable for the next starts.
    pub(crate) fn set_env(&mut self, name: &str, value: Option<&str>) {
        self.env.retain(|(known, _)| known != name);
        if let Some(value) = value {
            self.env.push((name.to_owned(), value.to_owned()));
        }
    }

    pub(crate) fn settings(&self, text: &str) {
        std::fs::write(self.dir.path().join("toolwharf.toml"), text).unwrap();
    }

    pub(crate) fn servers(&self, servers: Value) {
        let text = json!({ "mcpServers": servers }).to_string();
        std::fs::write(self.dir.path().join("mcp.json"), text).unwrap();
    }

    pub(crate) fn data(&self, file: &str) -> PathBuf {
        self.dir.path().join("data").join(file)
    }

    pub(crate) fn command(&self, verb: &str) -> Command {
        let mut command = common::configured(&Bin::path("toolwharf"), self.dir.path());
        command
            .arg(verb)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(database) = &self.database {
            command.env("TOOLWHARF_DATABASE_URL", database.url());
        }
        command
    }

    pub(crate) fn spawn(&self) -> Process {
        let mut command = self.command("serve");
        command
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(self.dir.path().join("data"));
        Process::spawn(command)
    }

    pub(crate) async fn start(&self) -> Running {
        self.running(self.spawn()).await
    }

    pub(crate) async fn running(&self, mut process: Process) -> Running {
        let url = common::ready(&mut process).await;
        let token = std::fs::read_to_string(self.data("admin-token")).unwrap();
        Running {
            process,
            url,
            token: token.trim().to_owned(),
        }
    }

    /// Starts the gateway, which must refuse to start. Returns its stderr.
    pub(crate) async fn refused(&self) -> String {
        let mut process = self.spawn();
        let status = process.ended(DEADLINE).await;
        let said = process.stderr();
        assert!(!status.success(), "{said}");
        said
    }
}

/// A running gateway.
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) url: String,
    pub(crate) token: String,
}

impl Running {
    pub(crate) fn raw(&self, path: &str) -> RawClient {
        RawClient::new(&format!("{}{path}", self.url))
    }

    /// A client of the REST API with the administrator's token.
    pub(crate) fn admin(&self, path: &str) -> RawClient {
        self.raw(&format!("/api/v1{path}"))
            .with("authorization", &format!("Bearer {}", self.token))
    }

    /// Sends a REST request as the administrator and returns the response.
    pub(crate) async fn rest(&self, method: &str, path: &str, body: Value) -> Reply {
        self.try_rest(method, path, body).await.unwrap()
    }

    /// Like [`Running::rest`], for a gateway that may be killed in the meantime.
    pub(crate) async fn try_rest(
        &self,
        method: &str,
        path: &str,
        body: Value,
    ) -> Result<Reply, String> {
        let method: Method = method.parse().unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let streaming = self.admin(path).try_send(method, &[], body).await?;
        collected(streaming).await
    }

    /// Sends a REST request that must succeed.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.rest(method, path, body).await;
        let text = reply.text();
        assert!(
            reply.status.is_success(),
            "{method} {path}: {} {text}",
            reply.status
        );
        if text.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{method} {path}: {why}: {text}"))
    }

    /// A modern request to `/mcp/{project}`.
    pub(crate) async fn try_mcp(
        &self,
        project: &str,
        method: &str,
        mut params: Value,
    ) -> Result<Reply, String> {
        params["_meta"] = rpc::meta();
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let body = rpc::message(1, method, params);
        let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
        if !name.is_empty() {
            headers.push(("mcp-name", name.as_str()));
        }
        let path = if project.is_empty() {
            "/mcp".to_owned()
        } else {
            format!("/mcp/{project}")
        };
        let client = self.raw(&path);
        let streaming = client
            .try_send(Method::POST, &headers, body.to_string())
            .await?;
        collected(streaming).await
    }

    pub(crate) async fn mcp(&self, project: &str, method: &str, params: Value) -> Reply {
        self.try_mcp(project, method, params).await.unwrap()
    }

    /// Kills the gateway with SIGKILL and waits for its exit.
    pub(crate) async fn kill(mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.wait(DEADLINE).await;
    }

    /// Stops the gateway as a service manager does. Returns its log.
    pub(crate) async fn stop(self) -> String {
        self.stop_within(DEADLINE).await
    }

    pub(crate) async fn stop_within(self, limit: Duration) -> String {
        self.process.signal(rustix::process::Signal::TERM);
        self.ended(limit).await
    }

    /// Waits until the gateway has exited without an error. Returns its log.
    pub(crate) async fn ended(mut self, limit: Duration) -> String {
        let status = self.process.wait(limit).await;
        assert!(status.success(), "{status}: {}", self.process.stderr());
        self.process.stderr()
    }
}

/// Returns the whole response, or an error if the gateway died.
async fn collected(streaming: Streaming) -> Result<Reply, String> {
    let mut task = JoinSet::new();
    task.spawn(streaming.collect(DEADLINE));
    let joined = task.join_next().await.expect("there is one");
    joined.map_err(|error| error.to_string())
}
