//! A client of the REST API of a gateway under test.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply, Streaming};

use crate::common::Gateway;

/// A caller with or without a key.
pub(crate) struct Api<'g> {
    gateway: &'g Gateway,
    token: Option<String>,
}

impl<'g> Api<'g> {
    pub(crate) fn admin(gateway: &'g Gateway) -> Self {
        Self::with(gateway, &gateway.token())
    }

    pub(crate) fn with(gateway: &'g Gateway, token: &str) -> Self {
        Self {
            gateway,
            token: Some(token.to_owned()),
        }
    }

    pub(crate) fn nobody(gateway: &'g Gateway) -> Self {
        Self {
            gateway,
            token: None,
        }
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: impl Into<bytes::Bytes>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let answer = self.open(method, path, body, headers).await;
        answer.collect(DEADLINE).await
    }

    /// Like [`Api::ask`], but returns before the end of the response.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        body: impl Into<bytes::Bytes>,
        headers: &[(&str, &str)],
    ) -> Streaming {
        let method: Method = method.parse().unwrap();
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut all = headers.to_vec();
        if let Some(bearer) = &bearer {
            all.push(("authorization", bearer));
        }
        let client = self.gateway.at(path);
        client.send(method, &all, body).await
    }

    /// Sends a request below `/api/v1` that must succeed. Returns the JSON body, or null.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let reply = self.ask(method, &format!("/api/v1{path}"), text, &[]).await;
        assert!(
            reply.status.is_success(),
            "{method} {path}: {} {}",
            reply.status,
            reply.text()
        );
        if reply.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&reply.body).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ok("GET", path, Value::Null).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Value {
        self.ok("PUT", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Value {
        self.ok("DELETE", path, Value::Null).await
    }

    /// Creates a project.
    pub(crate) async fn project(&self, id: &str) -> Value {
        self.put(&format!("/projects/{id}"), json!({})).await
    }

    /// Adds a server to a project, or changes it.
    pub(crate) async fn server(&self, project: &str, name: &str, entry: Value) -> Value {
        let path = format!("/mcp/servers/{name}?project={project}");
        self.put(&path, entry).await
    }

    /// Sends a request that must be refused. Returns the problem.
    pub(crate) async fn refused(&self, method: &str, path: &str, body: &str, status: u16) -> Value {
        let reply = self
            .ask(method, &format!("/api/v1{path}"), body.to_owned(), &[])
            .await;
        problem(&reply, status)
    }

    /// Creates a key of a project. Returns its id and the key.
    pub(crate) async fn key(&self, project: &str, role: &str) -> (String, String) {
        let path = format!("/keys?project={project}");
        let made = self
            .ok("POST", &path, json!({"name": role, "role": role}))
            .await;
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }
}

/// Returns the problem details of a refusal.
pub(crate) fn problem(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
    let problem: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(problem["status"], status);
    assert!(problem["type"].is_string() && problem["title"].is_string());
    assert!(!problem["detail"].as_str().unwrap().is_empty());
    problem
}

/// Returns the requests of a table with a line for each: `METHOD path status expected | body`, where `expected` is for the
/// test to compare.
pub(crate) fn requests(table: &str) -> Vec<(&str, &str, u16, &str, &str)> {
    fn row(line: &str) -> Option<(&str, &str, u16, &str, &str)> {
        let (words, body) = line.split_once('|')?;
        let mut words = words.trim().splitn(4, ' ');
        let (method, path) = (words.next()?, words.next()?);
        let status = words.next()?.parse().ok()?;
        Some((method, path, status, words.next()?, body.trim()))
    }

    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| row(line).unwrap_or_else(|| panic!("{line}")))
        .collect()
}
