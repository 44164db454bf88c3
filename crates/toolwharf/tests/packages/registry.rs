//! A registry for npm with the packages of a release.

use std::{collections::BTreeMap, fs, path::Path, process::Command, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, Uri},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512};
use tokio::{net::TcpListener, task::JoinSet};

/// Dropping it stops the registry.
pub(crate) struct Registry {
    pub(crate) url: String,
    _tasks: JoinSet<()>,
}

impl Registry {
    /// A registry with the packages for npm in the folder.
    pub(crate) async fn new(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let mut answers: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in fs::read_dir(folder).expect("the packages") {
            let file = entry.expect("a package").path();
            let name = file
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if !name.ends_with(".tgz") || name.contains("-chart-") {
                continue;
            }
            let manifest = manifest(&file);
            let bytes = fs::read(&file).expect("a package");
            let digest = STANDARD.encode(Sha512::digest(&bytes));
            let tarball = json!({"tarball": format!("{url}/files/{name}"), "integrity": format!("sha512-{digest}")});
            publish(&mut answers, &manifest, &tarball);
            answers.insert(format!("files/{name}"), bytes);
            // The packages for other processors, which npm must leave out.
            for (other, version) in manifest["optionalDependencies"]
                .as_object()
                .into_iter()
                .flatten()
            {
                let (_, cpu) = other.rsplit_once('-').expect("a processor");
                if !answers.contains_key(other) && cpu != node_arch() {
                    let manifest =
                        json!({"name": other, "version": version, "os": ["linux"], "cpu": [cpu]});
                    publish(
                        &mut answers,
                        &manifest,
                        &json!({"tarball": format!("{url}/files/none")}),
                    );
                }
            }
        }
        let answers = Arc::new(answers);
        let router = Router::new().fallback(async move |uri: Uri| answer(&answers, &uri));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // It serves until the set is dropped.
            let _ = axum::serve(listener, router).await;
        });
        Self { url, _tasks: tasks }
    }
}

/// The architecture of this machine, as Node.js names it.
fn node_arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    }
}

/// Reads `package.json` in a package.
fn manifest(file: &Path) -> Value {
    let output = Command::new("tar")
        .args(["--extract", "--to-stdout", "--file"])
        .arg(file)
        .arg("package/package.json")
        .output()
        .expect("tar");
    serde_json::from_slice(&output.stdout).expect("package.json")
}

/// Adds the document that lists the versions of a package.
fn publish(answers: &mut BTreeMap<String, Vec<u8>>, manifest: &Value, tarball: &Value) {
    let (name, version) = (&manifest["name"], &manifest["version"]);
    let (name, version) = (
        name.as_str().expect("a name"),
        version.as_str().expect("a version"),
    );
    let mut manifest = manifest.clone();
    manifest["dist"] = tarball.clone();
    let document =
        json!({"name": name, "dist-tags": {"latest": version}, "versions": {version: manifest}});
    answers.insert(name.to_owned(), document.to_string().into_bytes());
}

fn answer(answers: &BTreeMap<String, Vec<u8>>, uri: &Uri) -> Response {
    // npm asks for `@scope%2fname`.
    let path = uri
        .path()
        .trim_start_matches('/')
        .replace("%2f", "/")
        .replace("%2F", "/");
    match answers.get(&path) {
        Some(bytes) => bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
