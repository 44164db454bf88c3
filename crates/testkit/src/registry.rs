//! A local package registry for npm and uv. It has one package, and a test publishes versions as it needs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

/// Builds the package for npm and PyPI: an MCP server whose tools return its version.
const MAKE_SCRIPT: &str = include_str!("registry/make.py");

/// A registry with the package [`Registry::PACKAGE`]. Dropping it stops the registry.
pub struct Registry {
    url: String,
    folder: Arc<TempDir>,
    _tasks: JoinSet<()>,
}

impl Registry {
    /// The name of the package, its only program and the server.
    pub const PACKAGE: &str = "toolwharf-tiny";

    /// Starts a registry whose package has no version yet.
    ///
    /// # Panics
    /// If no port is free or no temporary directory can be created.
    pub async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let (mut tasks, here) = (JoinSet::new(), (folder.clone(), url.clone()));
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 8192];
                let read = stream.read(&mut head).await.unwrap_or_default();
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let mut words = head.split(' ');
                let (method, path) = (words.next(), words.next().unwrap_or_default());
                let (status, kind, body) = answer(here.0.path(), &here.1, path);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                // The client may have disconnected.
                let _ = stream.write_all(head.as_bytes()).await;
                if method != Some("HEAD") {
                    let _ = stream.write_all(&body).await;
                }
            }
        });
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
            ])
            .current_dir(self.folder.path())
            .status()
            .expect("python3, which makes packages: apt-get install python3");
        assert!(made.success(), "version {version} could not be made");
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

fn answer(folder: &Path, url: &str, path: &str) -> (&'static str, &'static str, Vec<u8>) {
    let named = |end: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.retain(|file| file.to_string_lossy().ends_with(end));
        files.sort();
        files
    };
    let name = |file: &Path| {
        let name = file.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    if path.trim_start_matches('/') == Registry::PACKAGE {
        let mut versions = serde_json::Map::new();
        let mut latest = Value::Null;
        for file in named(".json") {
            let text = fs::read_to_string(file).unwrap_or_default();
            let text = text.replace("REGISTRY", url);
            let version: Value = serde_json::from_str(&text).unwrap_or_default();
            latest = version["version"].clone();
            versions.insert(latest.as_str().unwrap_or_default().to_owned(), version);
        }
        let package = json!({"name": Registry::PACKAGE, "dist-tags": {"latest": latest}, "versions": versions});
        return ("200 OK", "application/json", package.to_string().into());
    }
    if path.trim_matches('/') == format!("simple/{}", Registry::PACKAGE) {
        let links = named(".whl").into_iter().map(|file| {
            let name = name(&file);
            format!("<a href=\"/files/{name}\">{name}</a>\n")
        });
        let page = format!(
            "<!DOCTYPE html><html><body>\n{}</body></html>",
            links.collect::<String>()
        );
        return ("200 OK", "text/html", page.into());
    }
    let file = path.strip_prefix("/files/").and_then(|wanted| {
        let mut files = named("").into_iter();
        files.find(|file| name(file) == wanted)
    });
    match file.and_then(|file| fs::read(file).ok()) {
        Some(bytes) => ("200 OK", "application/octet-stream", bytes),
        None => ("404 Not Found", "text/plain", b"there is none".to_vec()),
    }
}
