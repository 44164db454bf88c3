//! Concurrent inspections of bundles, served from loopback.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, future::join_all, stream};
use http::StatusCode;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time::timeout};

use super::{
    alone,
    bundles::{archive, directory},
    entry, npm, peak, reset_peak,
};
use crate::sources::Catalogue;

/// Deadline for every wait in this file.
const DEADLINE: Duration = Duration::from_secs(30);

/// A registry with the bundles that it lists, by name, with their hashes.
#[derive(Clone)]
struct Site {
    url: String,
    files: Arc<Mutex<BTreeMap<String, (Bytes, String)>>>,
    /// Gets a permit for each download that began and never ends.
    stuck: Arc<Semaphore>,
}

impl Site {
    async fn serve() -> (Self, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let site = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            files: Arc::default(),
            stuck: Arc::new(Semaphore::new(0)),
        };
        let app = Router::new().fallback(answer).with_state(site.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        (site, serving)
    }

    fn put(&self, name: &str, file: impl Into<Bytes>) {
        let file = file.into();
        let sum = hex::encode(Sha256::digest(&file));
        let mut files = self.files.lock().unwrap();
        files.insert(name.to_owned(), (file, sum));
    }
}

/// The download of an unknown bundle never ends.
async fn answer(State(site): State<Site>, request: Request) -> Response {
    let path = request.uri().path();
    let files = || site.files.lock().unwrap();
    if let Some(name) = path.strip_prefix("/files/") {
        if let Some((file, _)) = files().get(name).cloned() {
            return Body::from(file).into_response();
        }
        site.stuck.add_permits(1);
        let first = stream::once(async { Ok::<_, std::io::Error>("PK") });
        return Body::from_stream(first.chain(stream::pending())).into_response();
    }
    let name = path.strip_prefix("/v0.1/servers/com.example%2F");
    let Some(name) = name.and_then(|name| name.strip_suffix("/versions/latest")) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let sum = match files().get(name) {
        Some((_, sum)) => sum.clone(),
        None => "0".repeat(64),
    };
    let identifier = format!("{}/files/{name}", site.url);
    let mut package = npm(json!({"identifier": identifier, "fileSha256": sum}));
    package["registryType"] = "mcpb".into();
    let mut server = entry(package);
    server["name"] = format!("com.example/{name}").into();
    axum::Json(json!({"server": server})).into_response()
}

/// Inspects the bundle with this name. Returns why it is refused, or `None`.
async fn inspect(catalogue: &Catalogue, site: &Site, name: &str) -> Option<String> {
    let known = BTreeMap::from([("test".to_owned(), site.url.clone())]);
    let name = format!("com.example/{name}");
    let listing = catalogue.get(&known, Some("test"), &name).await.unwrap();
    let plans = catalogue.plans(&listing).await;
    plans[0].refused.first().map(|wrong| wrong.detail.clone())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn five_hostile_bundles_at_a_time_are_all_refused_in_bounded_memory() {
    const NAME: &str = "five_hostile_bundles_at_a_time_are_all_refused_in_bounded_memory";
    alone(&format!("inspections::{NAME}"), || {
        runtime().block_on(async {
            const MANY: u64 = 2_000_000;
            let (site, _serving) = Site::serve().await;
            site.put("big", directory(MANY, MANY, true, 0));
            let folder = tempfile::tempdir().unwrap();
            let catalogue = Catalogue::new(folder.path());
            let before = reset_peak();
            let all = join_all((0..5).map(|_| inspect(&catalogue, &site, "big")));
            for why in timeout(4 * DEADLINE, all).await.unwrap() {
                let why = why.unwrap();
                assert!(why.contains("contains 2000000 files"), "{why}");
            }
            // This is enough for one file of 92 MiB at a time, in a buffer that doubles as it grows. Five inspections
            // at the same time took 3.45 GiB.
            let more = peak() - before;
            assert!(more < 256 << 10, "{more} KiB");
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_download_holds_up_nobody_until_there_are_sixteen() {
    let (site, _serving) = Site::serve().await;
    let manifest: &[u8] = br#"{"server": {"type": "node", "mcp_config": {"command": "node", "args": ["${__dirname}/x.js"]}}}"#;
    for name in ["first", "second"] {
        let files = [("manifest.json", manifest, 0o644), (name, &b""[..], 0o644)];
        site.put(name, archive(&files).0);
    }
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Arc::new(Catalogue::new(folder.path()));
    let mut waiting = JoinSet::new();
    let mut stick = async |count: u32| {
        for _ in 0..count {
            let (catalogue, site) = (catalogue.clone(), site.clone());
            waiting.spawn(async move { inspect(&catalogue, &site, "slow").await });
        }
        let arrived = timeout(DEADLINE, site.stuck.acquire_many(count)).await;
        arrived.unwrap().unwrap().forget();
    };
    let inspected = async |name: &str| {
        let inspected = timeout(DEADLINE, inspect(&catalogue, &site, name)).await;
        inspected.expect("nobody waits for a slow download")
    };
    stick(15).await;
    assert_eq!(inspected("first").await, None);
    stick(1).await;
    let why = inspected("second").await.unwrap();
    assert!(
        why.contains("16 other bundles are being inspected; try again later"),
        "{why}"
    );
    // When callers disconnect, another bundle can be inspected.
    waiting.shutdown().await;
    assert_eq!(inspected("second").await, None);
    // Only the two complete bundles remain, and no partial downloads.
    let bundles = std::fs::read_dir(folder.path().join("bundles")).unwrap();
    assert_eq!(bundles.count(), 2);
}
