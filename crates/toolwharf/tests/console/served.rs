//! How the console is served: its policy, files and size.

use std::{
    io::{Read as _, Write as _},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};

use testkit::{DEADLINE, Reply};

use crate::common::{Setup, holds};

/// Limit for the first page, compressed, with its styles and without fonts, in bytes.
const MAX_FIRST_LOAD_BYTES: usize = 250_000;

fn policy_of(reply: &Reply) -> &str {
    reply.header("content-security-policy").expect("a policy")
}

#[tokio::test]
async fn the_page_is_the_same_at_all_of_its_paths_with_a_nonce_of_its_own() {
    let gateway = Setup::new().serve().await;
    let mut nonces = std::collections::HashSet::new();
    for path in ["/", "/servers", "/servers/a%2Fb", "/tools", "/calls/01a2"] {
        let reply = gateway.page(path).await;
        assert_eq!(reply.status, 200, "{path}");
        let policy = policy_of(&reply);
        assert!(!policy.contains("unsafe"), "{policy}");
        holds(policy, &["default-src 'none'", "script-src 'self';"]);
        holds(policy, &["frame-ancestors 'none'"]);
        holds(policy, &["require-trusted-types-for 'script'"]);
        let (_, nonce) = policy.split_once("'nonce-").unwrap();
        let (nonce, _) = nonce.split_once('\'').unwrap();
        assert!(reply.text().contains(&format!("nonce=\"{nonce}\"")));
        assert!(nonces.insert(nonce.to_owned()), "{nonce} was used twice");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    // Paths outside the console still get 404. Browsers also get the page, which says so.
    for path in ["/nothing", "/assets/nothing.js", "/serverss", "/a/b/c"] {
        let reply = gateway.at(path).get(&[]).await.collect(DEADLINE).await;
        assert_eq!(
            (reply.status.as_u16(), reply.text().as_str()),
            (404, ""),
            "{path}"
        );
        let accepted = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        let reply = gateway.at(path).get(&[accepted]).await;
        let reply = reply.collect(DEADLINE).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(policy_of(&reply).contains("'nonce-"), "{path}");
        holds(&reply.text(), &["<div id=\"root\">"]);
    }
}

#[tokio::test]
async fn files_are_compressed_and_kept_by_browsers() {
    let gateway = Setup::new().serve().await;
    let page = gateway.page("/").await.text();
    let mut parts = page.split('"');
    let script = parts.find(|part| part.starts_with("./assets/index-") && part.ends_with(".js"));
    let script = &script.unwrap()[1..];
    let reply = gateway.page(script).await;
    for (name, value) in [
        ("content-encoding", "gzip"),
        ("content-type", "text/javascript; charset=utf-8"),
        ("cache-control", "public, max-age=31536000, immutable"),
    ] {
        assert_eq!(reply.header(name), Some(value));
    }
    // The sign-in page does not know the digest of the typeface.
    let font = gateway.page("/inter.woff2").await;
    assert_eq!(font.header("content-type"), Some("font/woff2"));
    assert_eq!(font.header("cache-control"), Some("no-cache"));
    let tag = reply.header("etag").unwrap();
    let again = gateway.at(script).get(&[("if-none-match", tag)]).await;
    assert_eq!(again.status, 304);
}

/// The page has the same path as seen by the browser, whether a proxy removes the prefix or not.
#[tokio::test]
async fn a_page_names_its_files_at_any_depth() {
    let plain = Setup::new().serve().await;
    let below = "public_url = \"https://example.com/x/y\"\n";
    let below = Setup::new().settings(below).serve().await;
    for (gateway, path, root) in [
        (&plain, "/", "./"),
        (&plain, "/servers/a%2Fb", "../"),
        (&below, "/", "/x/y/"),
        (&below, "/servers/a", "/x/y/"),
        (&below, "/x/y", "/x/y/"),
        (&below, "/x/y/servers/a", "/x/y/"),
    ] {
        let page = gateway.page(path).await;
        assert_eq!(page.status, 200, "{path}");
        let page = page.text();
        holds(&page, &[&format!("src=\"{root}theme.js\"")]);
        holds(&page, &[&format!("src=\"{root}assets/index-")]);
        holds(&page, &[&format!("href=\"{root}icon.svg\"")]);
    }
    let sign_in = plain.page("/sign-in/callback").await.text();
    holds(&sign_in, &["src=\"../sign-in/sign-in.js\""]);
    // It has the theme and the icon of the console.
    holds(&sign_in, &["src=\"../theme.js\"", "src=\"../icon.svg\""]);
    let sign_in = below.page("/x/y/sign-in").await.text();
    holds(&sign_in, &["src=\"/x/y/sign-in/sign-in.js\""]);
}

/// The limit covers everything that the page references, plus the page that opens first.
#[test]
fn the_first_load_is_small() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
    let page = std::fs::read_to_string(dist.join("index.html")).unwrap();
    let parts = page.split('"');
    let parts = parts.filter_map(|part| part.strip_prefix('.'));
    let parts = parts.filter(|part| part.starts_with("/assets/") || *part == "/theme.js");
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    for file in dist.join("assets").read_dir().unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name.starts_with("servers-") {
            parts.push(format!("/assets/{name}"));
        }
    }
    let sizes = parts.iter().map(|part| {
        let bytes = std::fs::read(dist.join(&part[1..])).unwrap();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&bytes).unwrap();
        gzip.finish().unwrap().len()
    });
    let total: usize = sizes.sum();
    eprintln!("{total} bytes in {} files", parts.len());
    assert!(parts.len() > 3, "{parts:?}");
    assert!(total <= MAX_FIRST_LOAD_BYTES, "{total} bytes: {parts:?}");
}

/// Users did not understand these phrases.
#[test]
fn u13_phrases_of_the_first_console_are_gone() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist/assets");
    let mut scripts = 0;
    for file in assets.read_dir().unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|end| end != "js") {
            continue;
        }
        scripts += 1;
        let text = std::fs::read_to_string(&file).unwrap();
        for phrase in [
            "At rest",
            "Restarting later",
            "In line, and its intent",
            "The client's frame",
            "Who has it",
            "args-1",
        ] {
            assert!(!text.contains(phrase), "{}: {phrase}", file.display());
        }
    }
    assert!(scripts > 3, "{scripts} scripts");
}

/// The licences of bundled packages require that their texts are distributed.
#[tokio::test]
async fn licences_of_packages_and_typefaces_are_served() {
    let gateway = Setup::new().serve().await;
    for (path, words) in [
        ("npm", "react-dom 19"),
        ("npm", "Copyright (c) Meta Platforms"),
        ("inter", "SIL OPEN FONT LICENSE"),
        ("jetbrains-mono", "SIL OPEN FONT LICENSE"),
    ] {
        let reply = gateway.page(&format!("/licenses/{path}.txt")).await;
        let kind = reply.header("content-type");
        assert_eq!(kind, Some("text/plain; charset=utf-8"));
        let mut text = String::new();
        let mut unpacked = flate2::read::GzDecoder::new(reply.body.as_ref());
        unpacked.read_to_string(&mut text).unwrap();
        assert!(text.contains(words), "{path} has no {words}");
    }
}

#[tokio::test]
async fn apps_are_drawn_on_an_origin_that_serves_nothing_else() {
    let gateway = Setup::new().serve().await;
    let page = gateway.page("/").await;
    let (_, frames) = policy_of(&page).split_once("frame-src ").unwrap();
    let (origin, _) = frames.split_once(';').unwrap();
    let text = page.text();
    assert!(text.contains(&format!(r#"<meta name="apps-origin" content="{origin}">"#)));
    let at = |path: &str| testkit::RawClient::new(&format!("{origin}{path}"));
    let sandbox = at("/?host=http%3A%2F%2F127.0.0.1%3A1").get(&[]).await;
    assert_eq!(sandbox.status, 200);
    let policy = sandbox.header("content-security-policy").unwrap();
    let ancestors = "frame-ancestors http://127.0.0.1:1";
    assert!(policy.ends_with(ancestors), "{policy}");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    for path in [
        "/",
        "/mcp",
        "/api/v1/status",
        "/healthz",
        "/sign-in",
        "/page.html",
    ] {
        assert_eq!(at(path).get(&[]).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn no_app_is_drawn_where_no_second_address_is_known() {
    let public = "public_url = \"https://tools.example.com\"\n";
    let gateway = Setup::new().settings(public).serve().await;
    let page = gateway.page("/").await;
    holds(policy_of(&page), &["frame-src 'none';"]);
    let with = format!("{public}[console]\napps_url = \"https://apps.example.com/\"\n");
    let gateway = Setup::new().settings(&with).serve().await;
    let page = gateway.page("/").await;
    let apps = "frame-src https://apps.example.com;";
    holds(policy_of(&page), &[apps]);
}
