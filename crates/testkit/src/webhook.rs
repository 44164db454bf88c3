//! A receiver of webhooks.

use std::sync::Arc;

use axum::{Json, Router, extract::State};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    serve::serve,
    wait::{DEADLINE, wait_for_some},
};

/// A receiver of webhooks, which keeps what it gets. Dropping it stops it.
pub struct Webhook {
    url: String,
    received: Arc<Mutex<Vec<Value>>>,
    _tasks: JoinSet<()>,
}

impl Webhook {
    pub async fn start() -> Self {
        let received = Arc::<Mutex<Vec<Value>>>::default();
        let kept = received.clone();
        let keep = async |State(kept): State<Arc<Mutex<Vec<Value>>>>, Json(body): Json<Value>| {
            kept.lock().push(body);
        };
        let router = Router::new().fallback(keep).with_state(kept);
        let (url, tasks) = serve(|_| router).await;
        Self {
            url,
            received,
            _tasks: tasks,
        }
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns what was received so far, the oldest first.
    #[must_use]
    pub fn received(&self) -> Vec<Value> {
        self.received.lock().clone()
    }

    /// Waits for a warning of this kind about this server, and returns it.
    ///
    /// # Panics
    /// If none arrives.
    pub async fn warning(&self, server: &str, kind: &str) -> Value {
        wait_for_some(&format!("{kind} of {server}"), DEADLINE, async || {
            self.warnings(server, kind).into_iter().next()
        })
        .await
    }

    /// Returns the warnings of this kind about this server.
    #[must_use]
    pub fn warnings(&self, server: &str, kind: &str) -> Vec<Value> {
        let mut all = self.received();
        all.retain(|one| one["server"]["name"] == server && one["kind"] == kind);
        all
    }
}
