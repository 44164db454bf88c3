//! A local package registry for npm and uv. It has one package, and a test publishes versions as it needs them.

use std::{fs, path::Path, process::Command, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::serve::serve;

/// Builds the package for npm and PyPI: an MCP server whose tools return its version.
const MAKE_SCRIPT: &str = include_str!("package_registry/make.py");

/// A registry with the package [`Registry::PACKAGE`]. Dropping it stops the registry.
pub struct Registry {
    url: String,
    folder: Arc<TempDir>,
    _tasks: JoinSet<()>,
}

impl Registry {
    /// The common name of the package, its only program and its MCP server.
    pub const PACKAGE: &str = "toolwharf-tiny";

    /// Starts a registry whose package has no version yet.
    pub async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let served = folder.clone();
        let answer = async move |uri: Uri| answer(served.path(), uri.path());
        let (url, tasks) = serve(|_| Router::new().fallback(answer)).await;
        Self {
            url,
            folder,
            _tasks: tasks,
        }
    }

    /// Publishes a version with these tools, in the format of `tools/list`.
    ///
    /// # Panics
    /// If the package cannot be built: `/usr/bin/python3` is needed.
    pub fn publish(&self, version: &str, tools: &Value) {
        let made = Command::new("/usr/bin/python3")
            .args([
                "-c",
                MAKE_SCRIPT,
                Self::PACKAGE,
                version,
                &tools.to_string(),
                &self.url,
            ])
            .current_dir(self.folder.path())
            .status()
            .expect("python3, which makes packages: apt-get install python3");
        assert!(made.success(), "version {version} could not be built");
    }

    /// The value for npm's `npm_config_registry`.
    #[must_use]
    pub fn npm(&self) -> String {
        self.url.clone()
    }

    /// The value for uv's `UV_DEFAULT_INDEX`.
    #[must_use]
    pub fn pypi(&self) -> String {
        format!("{}/simple", self.url)
    }
}

/// Returns the file that `make.py` wrote for a path.
fn answer(folder: &Path, path: &str) -> Response {
    let (path, kind) = match path.trim_matches('/') {
        path if path.starts_with("files/") => (path.to_owned(), "application/octet-stream"),
        path if path.starts_with("simple/") => (format!("{path}/index.html"), "text/html"),
        path => (path.to_owned(), "application/json"),
    };
    match fs::read(folder.join(path)) {
        Ok(bytes) => ([(CONTENT_TYPE, kind)], bytes).into_response(),
        Err(_) => (StatusCode::NOT_FOUND, "there is none").into_response(),
    }
}
