//! Registries on loopback: the official API and ToolHive's file; valid, broken and unreachable.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode, header},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use super::{entry, npm};
use crate::sources::{Catalogue, Error};

/// Responses by path and query. All other requests get 404.
type Answers = BTreeMap<String, (StatusCode, String)>;

/// A path, and the ETag that was sent with it.
type Asked = (String, Option<String>);

#[derive(Clone, Default)]
struct Site {
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Site {
    async fn serve(self) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(self);
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        (url, serving)
    }

    fn put(&self, path: &str, answer: &Value) {
        self.answer(path, StatusCode::OK, answer.to_string());
    }

    fn answer(&self, path: &str, status: StatusCode, text: String) {
        let mut answers = self.answers.lock().unwrap();
        answers.insert(path.to_owned(), (status, text));
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

async fn answer(State(site): State<Site>, request: Request) -> Response<Body> {
    let path = request.uri().path_and_query().unwrap().to_string();
    let tag = request.headers().get(header::IF_NONE_MATCH);
    let tag = tag.map(|tag| tag.to_str().unwrap().to_owned());
    let found = site.answers.lock().unwrap().get(&path).cloned();
    let own = found
        .as_ref()
        .map(|(_, text)| format!("\"{}\"", text.len()));
    site.asked.lock().unwrap().push((path, tag.clone()));
    let (status, text) = match found {
        Some(_) if tag.is_some() && tag == own => (StatusCode::NOT_MODIFIED, String::new()),
        Some(found) => found,
        None => (StatusCode::NOT_FOUND, String::new()),
    };
    let response = Response::builder().status(status);
    let response = match own {
        Some(own) => response.header(header::ETAG, own),
        None => response,
    };
    response.body(Body::from(text)).unwrap()
}

fn named(name: &str) -> Value {
    let mut entry = entry(npm(json!({})));
    entry["name"] = name.into();
    entry
}

fn registries(url: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("test".to_owned(), url.to_owned())])
}

fn failed<T>(result: Result<T, Error>) -> Error {
    result.err().expect("it fails")
}

const FIRST: &str = "/v0.1/servers?version=latest&limit=100&search=weather";

#[tokio::test]
async fn c07_the_official_api_is_read_page_by_page_and_from_the_cache() {
    let site = Site::default();
    let official = |status: &str| json!({"io.modelcontextprotocol.registry/official": {"status": status, "isLatest": true}});
    site.put(
        FIRST,
        &json!({
            "servers": [
                {"server": named("com.example/weather"), "_meta": official("active")},
                {"server": named("com.example/gone"), "_meta": official("deleted")},
                {"server": named("com.example/\u{202e}evil"), "_meta": official("active")},
            ],
            "metadata": {"count": 3, "nextCursor": "com.example/x:1.0"},
        }),
    );
    let second = format!("{FIRST}&cursor=com.example%2Fx%3A1.0");
    site.put(
        &second,
        &json!({"servers": [{"server": named("org.example/weather")}], "metadata": {"count": 1}}),
    );
    let latest = "/v0.1/servers/com.example%2Fweather/versions/latest";
    site.put(
        latest,
        &json!({"server": named("com.example/weather"), "_meta": official("active")}),
    );
    let (url, serving) = site.clone().serve().await;
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::never_fresh(folder.path());
    let known = registries(&url);
    let names = async |asked: Option<&str>| {
        let (servers, notices) = catalogue.search(&known, asked, "weather").await.unwrap();
        let names: Vec<String> = servers
            .into_iter()
            .map(|it| format!("{} {}", it.name, it.registry))
            .collect();
        (names, notices)
    };
    let (found, notices) = names(Some("test")).await;
    assert_eq!(
        found,
        ["com.example/weather test", "org.example/weather test"]
    );
    assert!(
        notices.len() == 1 && notices[0].contains("/name"),
        "{notices:?}"
    );
    let paths: Vec<String> = site.asked().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [FIRST.to_owned(), second.clone()]);

    // The registry does not send an unchanged response twice.
    assert_eq!(names(Some("test")).await.0, found);
    assert!(site.asked().iter().all(|(_, tag)| tag.is_some()));
    let name = "com.example/weather";
    let listing = catalogue.get(&known, None, name).await.unwrap();
    assert_eq!(listing.document.version, "1.2.3");
    // A short name that two publishers have is ambiguous.
    let error = failed(catalogue.get(&known, Some("test"), "weather").await);
    assert!(matches!(error, Error::Ambiguous(..)), "{error}");

    // Without the registry, the results stay the same.
    drop(serving);
    let (found, notices) = names(Some("test")).await;
    assert_eq!(found.len(), 2);
    let tells = |notices: &[String], part: &str| {
        let told = notices.iter().any(|notice| notice.contains(part));
        assert!(told, "{notices:?}");
    };
    tells(&notices, "this is its cached response from");
    assert!(catalogue.get(&known, None, name).await.is_ok());
    let other = Catalogue::never_fresh(tempfile::tempdir().unwrap().path());
    let error = failed(other.get(&known, None, name).await);
    assert!(matches!(error, Error::Down(_)), "{error}");
    let (_, notices) = other.search(&known, None, "weather").await.unwrap();
    tells(&notices, "registry `test`");
}

#[tokio::test]
async fn c07_toolhive_s_file_is_read_as_a_whole() {
    let site = Site::default();
    site.put("/registry.json", &json!({
        "version": "1.0.0",
        "meta": {"last_updated": "2026-11-23T00:00:00Z"},
        "data": {"servers": [named("io.github.stacklok/weather"), named("io.github.stacklok/other")], "groups": []},
    }));
    let (url, _serving) = site.clone().serve().await;
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::new(folder.path());
    let known = registries(&format!("{url}/registry.json"));
    let found = catalogue
        .search(&known, Some("test"), "WEATHER tells")
        .await;
    let (servers, notices) = found.unwrap();
    assert_eq!((servers.len(), notices.len()), (2, 0), "{notices:?}");
    let listing = catalogue
        .get(&known, Some("test"), "weather")
        .await
        .unwrap();
    assert_eq!(listing.document.name, "io.github.stacklok/weather");
    // The file can also be named by its URL. A fresh response is fetched only once.
    let by_url = format!("{url}/registry.json");
    let none = BTreeMap::new();
    let found = catalogue.get(&none, Some(&by_url), "other").await;
    assert!(found.is_ok());
    assert_eq!(site.asked().len(), 1);
}

#[tokio::test]
async fn c07_a_registry_that_lies_or_rambles_is_no_harm() {
    let site = Site::default();
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::never_fresh(folder.path());
    let (url, _serving) = site.clone().serve().await;
    let known = registries(&url);
    let path = "/v0.1/servers?version=latest&limit=100";
    let page = "<!doctype html><title>Sign in</title>".to_owned();
    let no_registry = "not valid JSON";
    for (text, status, part) in [
        (page, StatusCode::OK, no_registry),
        ("[".repeat(5000), StatusCode::OK, no_registry),
        (" ".repeat(20 << 20), StatusCode::OK, "longer than"),
        ("{}".to_owned(), StatusCode::INTERNAL_SERVER_ERROR, "500"),
        ("{}".to_owned(), StatusCode::FOUND, "302"),
    ] {
        site.answer(path, status, text);
        let (servers, notices) = catalogue.search(&known, Some("test"), "").await.unwrap();
        assert!(
            servers.is_empty() && notices[0].contains(part),
            "{part}: {notices:?}"
        );
    }
    // A registry with endless pages is cut off after ten.
    for page in 0..20 {
        let at = match page {
            0 => path.to_owned(),
            page => format!("{path}&cursor={page}"),
        };
        site.put(&at, &json!({"servers": [named(&format!("com.example/w{page}"))], "metadata": {"nextCursor": (page + 1).to_string()}}));
    }
    let (servers, notices) = catalogue.search(&known, Some("test"), "").await.unwrap();
    assert_eq!(servers.len(), 10);
    assert!(notices[0].contains("has more"), "{notices:?}");
    // The registry returns another entry than requested.
    site.put(
        "/v0.1/servers/com.example%2Fa/versions/latest",
        &json!({"server": named("com.example/b")}),
    );
    let found = catalogue.get(&known, Some("test"), "com.example/a").await;
    assert!(found.is_err());
    for url in [
        "http://example.com",
        "ftp://127.0.0.1",
        "https://user:pass@example.com",
        "https://",
        "file:///etc",
    ] {
        let none = BTreeMap::new();
        let error = failed(catalogue.search(&none, Some(url), "").await);
        assert!(
            matches!(error, Error::Url(_) | Error::NoRegistry(_)),
            "{url}"
        );
    }
    let error = failed(catalogue.get(&known, Some("test"), "../../admin").await);
    assert!(matches!(error, Error::NotFound(..)), "{error}");
}

/// Every entry of the built-in catalogue is valid and can be installed.
#[tokio::test]
async fn c07_the_built_in_catalogue_is_usable_and_asks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::new(folder.path());
    let known = registries("http://127.0.0.1:9");
    let found = catalogue.search(&known, Some("built-in"), "").await;
    let (all, notices) = found.unwrap();
    assert!(
        all.len() >= 60 && notices.is_empty(),
        "{} {notices:?}",
        all.len()
    );
    for wanted in ["playwright", "postgres", "sentry", "weather"] {
        let is_there = all
            .iter()
            .any(|it| it.name == format!("dev.toolwharf/{wanted}"));
        assert!(is_there, "{wanted}");
    }
    for server in &all {
        let short = server.name.rsplit('/').next().unwrap();
        let listing = catalogue
            .get(&known, None, short)
            .await
            .unwrap_or_else(|error| panic!("{short}: {error}"));
        let plans = catalogue.plans(&listing).await;
        assert!(
            plans[0].refused.is_empty(),
            "{short}: {:?}",
            plans[0].refused
        );
        assert!(
            (20..=110).contains(&server.description.len()),
            "{short}: {}",
            server.description
        );
    }
    assert!(!folder.path().join("registries").exists());
}

/// Every entry has its own name and package, its source, and the date on which the source was checked. None is archived.
#[test]
fn u13_the_built_in_catalogue_says_where_each_server_is_from() {
    let text = include_str!("../catalogue.json");
    let entries: Vec<Value> = serde_json::from_str(text).unwrap();
    let names: Vec<_> = entries
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    let mut targets = std::collections::BTreeSet::new();
    for entry in &entries {
        let name = &entry["name"];
        let target = match entry["packages"][0]["identifier"].as_str() {
            Some(package) => package,
            None => entry["remotes"][0]["url"].as_str().unwrap(),
        };
        assert!(targets.insert(target), "{name}: {target} is there twice");
        assert!(entry["title"].is_string(), "{name}");
        let source = entry["repository"]["url"]
            .as_str()
            .or(entry["websiteUrl"].as_str());
        let source = source.unwrap_or_else(|| panic!("{name} has no source"));
        assert!(source.starts_with("https://"), "{name}: {source}");
        assert!(!source.contains("archived"), "{name}: {source}");
        let own =
            &entry["_meta"]["io.modelcontextprotocol.registry/publisher-provided"]["dev.toolwharf"];
        let checked = own["checked"].as_str().unwrap_or_default();
        let is_date = checked.len() == 10
            && checked.split('-').map(str::len).eq([4, 2, 2])
            && checked
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'-');
        assert!(is_date && checked >= "2026-11-28", "{name}: {checked:?}");
        assert_ne!(own["archived"], true, "{name}");
        for package in entry["packages"].as_array().into_iter().flatten() {
            for variable in package["environmentVariables"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let is_explained =
                    variable["description"].is_string() || variable["value"].is_string();
                assert!(is_explained, "{name}: {variable}");
            }
        }
    }
}

/// A search that finds nothing, and a name that no registry lists, say how to use the official registry.
#[tokio::test]
async fn u13_an_empty_result_says_how_to_use_the_official_registry() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::new(folder.path());
    let none = BTreeMap::new();
    let hint = "[registries.official] and, on the next line, url = \"https://registry.modelcontextprotocol.io\"";
    let (servers, notices) = catalogue
        .search(&none, None, "no such server")
        .await
        .unwrap();
    assert!(servers.is_empty());
    assert!(
        notices.len() == 1 && notices[0].contains(hint),
        "{notices:?}"
    );
    let error = failed(catalogue.get(&none, None, "no-such-server").await);
    assert!(error.to_string().contains(hint), "{error}");
    let (_, notices) = catalogue.search(&none, None, "time").await.unwrap();
    assert!(notices.is_empty(), "{notices:?}");
    // Nothing is suggested that is used already. The built-in catalogue alone is asked here, so nothing is contacted.
    let official = "https://registry.modelcontextprotocol.io".to_owned();
    let known = BTreeMap::from([("official".to_owned(), official)]);
    let found = catalogue
        .search(&known, Some("built-in"), "no such server")
        .await;
    assert_eq!(found.unwrap().1, [""; 0]);
}
