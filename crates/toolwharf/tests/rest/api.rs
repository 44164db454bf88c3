//! A client of the REST API of a gateway under test.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use serde_json::{Value, json};
use testkit::{DEADLINE, Reply, Streaming, wait_for};

use crate::common::{self, Gateway, scripted};

/// The number of keys that were created. Names of keys are unique.
static KEYS: AtomicUsize = AtomicUsize::new(0);

/// The roles of keys, each with the permissions of those before it.
pub(crate) const ROLES: [&str; 4] = ["read", "call", "manage", "admin"];

pub(crate) fn rank(role: &str) -> usize {
    let found = ROLES.iter().position(|known| *known == role);
    found.expect("a role")
}

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
        let text = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let reply = self.ask(method, &format!("/api/v1{path}"), text, &[]).await;
        let what = format!("{method} {path}: {} {}", reply.status, reply.text());
        assert!(reply.status.is_success(), "{what}");
        if reply.body.is_empty() {
            return Value::Null;
        }
        common::body(&reply)
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

    pub(crate) async fn project(&self, id: &str) -> Value {
        self.put(&format!("/projects/{id}"), json!({})).await
    }

    /// Adds a server to a project, or changes it.
    pub(crate) async fn server(&self, project: &str, name: &str, entry: Value) -> Value {
        let path = format!("/mcp/servers/{name}?project={project}");
        self.put(&path, entry).await
    }

    /// Creates projects that each have this scripted server.
    pub(crate) async fn projects(&self, ids: &[&str], server: &str, options: &[&str]) {
        for id in ids {
            self.project(id).await;
            self.server(id, server, scripted(server, options)).await;
        }
    }

    /// Calls a tool of a server by its native name.
    pub(crate) async fn call(&self, server: &str, tool: &str, arguments: Value) -> Reply {
        let params = json!({"name": tool, "arguments": arguments});
        let body = json!({"method": "tools/call", "params": params}).to_string();
        let path = format!("/api/v1/mcp/servers/{server}/call");
        self.ask("POST", &path, body, &[]).await
    }

    /// Sends a request that must be refused. Returns the problem.
    pub(crate) async fn refused(&self, method: &str, path: &str, body: &str, status: u16) -> Value {
        let path = format!("/api/v1{path}");
        let reply = self.ask(method, &path, body.to_owned(), &[]).await;
        problem(&reply, status)
    }

    /// Sends a request that must be refused because of the value at this JSON pointer.
    pub(crate) async fn mistaken(&self, method: &str, path: &str, body: &Value, pointer: &str) {
        let problem = self.refused(method, path, &body.to_string(), 422).await;
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }

    /// Sends the requests of a table, which must all be refused. Each line is `METHOD path status expected | body`.
    /// `expected` is part of the detail, or `@` with the JSON pointer of the first error, or `-` if there is none.
    /// Returns the problems.
    pub(crate) async fn refuses(&self, table: &str) -> Value {
        let mut problems = Vec::new();
        for (method, path, status, expected, body) in requests(table) {
            let problem = self.refused(method, path, body, status).await;
            let pointer = problem["errors"][0]["pointer"].as_str();
            let holds = match expected.strip_prefix('@') {
                Some(wanted) => pointer == Some(wanted),
                None if expected == "-" => pointer.is_none(),
                None => problem["detail"].as_str().unwrap().contains(expected),
            };
            assert!(holds, "{method} {path}: {expected}: {problem}");
            problems.push(problem);
        }
        problems.into()
    }

    /// Creates two keys of project `a` that are not valid any more: a revoked and an expired one.
    pub(crate) async fn lost_keys(&self) -> [String; 2] {
        let (id, revoked) = self.key("a", "manage").await;
        self.delete(&format!("/keys/{id}?project=a")).await;
        let soon = chrono::Utc::now() + chrono::Duration::milliseconds(500);
        let wanted = json!({"name": "expiring", "role": "manage", "expires_at": soon});
        let made = self.ok("POST", "/keys?project=a", wanted).await;
        let expired = made["token"].as_str().unwrap().to_owned();
        let api = Self::with(self.gateway, &expired);
        wait_for("the expiry", DEADLINE, async || {
            api.ask("GET", "/api/v1/projects/a", "", &[]).await.status == 401
        })
        .await;
        [revoked, expired]
    }

    /// Creates a key of a project. Returns its id and the key.
    pub(crate) async fn key(&self, project: &str, role: &str) -> (String, String) {
        let path = format!("/keys?project={project}");
        let name = format!("{role} {}", KEYS.fetch_add(1, Ordering::Relaxed));
        let wanted = json!({"name": name, "role": role});
        let made = self.ok("POST", &path, wanted).await;
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    /// A caller with a new key of a project.
    pub(crate) async fn keyed(&self, project: &str, role: &str) -> Self {
        let (_, token) = self.key(project, role).await;
        Self::with(self.gateway, &token)
    }
}

/// Returns the problem details of a refusal.
pub(crate) fn problem(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status, status, "{}", reply.text());
    let kind = reply.header("content-type");
    assert_eq!(kind, Some("application/problem+json"));
    let problem = common::body(reply);
    assert_eq!(problem["status"], status);
    assert!(problem["type"].is_string() && problem["title"].is_string());
    assert!(!problem["detail"].as_str().unwrap().is_empty());
    problem
}

/// Returns the requests of a table: method, path, status, what is expected, and body.
fn requests(table: &str) -> Vec<(&str, &str, u16, &str, &str)> {
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
