//! S01 and S02: `toolwharf login`, with and without a browser.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use testkit::{Browser, DEADLINE, Process, wait_for_some, within};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{
    common::{checks, cli::said},
    kept::{Kept, Running},
    support::{LOGIN, NAME, World, call, command, login, state, text},
};

const SECRET: &str = "client-secret-4c1e90d7";

/// A fake browser that writes the page's URL to a file, for Chromium to open.
fn browser(folder: &Path) -> (PathBuf, PathBuf) {
    let (script, page) = (folder.join("browser"), folder.join("page"));
    let shown = page.display();
    let text = format!("#!/bin/sh\nprintf %s \"$1\" > {shown}.new && mv {shown}.new {shown}\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (script, page)
}

/// Takes screenshots in two widths, dark and light, if `TOOLWHARF_SHOTS` names a directory.
async fn pictures(chromium: &Browser, name: &str) {
    let Some(folder) = std::env::var_os("TOOLWHARF_SHOTS") else {
        return;
    };
    for width in [390, 1440] {
        for scheme in ["light", "dark"] {
            chromium.screen(width, scheme).await;
            let file = Path::new(&folder).join(format!("{name}-{width}-{scheme}.png"));
            chromium.screenshot(&file).await;
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    let each = paths.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    each.collect()
}

/// Returns the command lines of all processes except the issuer's, whose options include its clients.
fn command_lines() -> Vec<u8> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let ours = lines.filter(|line| memchr::memmem::find(line, b"issuer.mjs").is_none());
    ours.flatten().collect()
}

/// Asserts that none of `secrets` is in `bytes`.
#[track_caller]
fn without(place: &str, bytes: &[u8], secrets: &[String]) {
    for secret in secrets {
        let is_there = memchr::memmem::find(bytes, secret.as_bytes()).is_some();
        assert!(!is_there, "{secret} is in {place}");
    }
}

/// Asserts that none of `secrets` is in a command line or a response of the REST API.
pub(crate) async fn no_page_with(running: &Running, secrets: &[String]) {
    without("a command line", &command_lines(), secrets);
    for path in [
        "/calls",
        "/mcp/servers",
        "/mcp/servers/files",
        "/mcp/servers/files/events",
        "/logins",
        "/settings",
    ] {
        let answer = running.rest("GET", path, Value::Null).await;
        without(path, &answer.body, secrets);
    }
}

/// Stops the gateway. Asserts that none of `secrets` is in its log, at any level, or in a file of its data directory.
pub(crate) async fn stop_without(kept: &Kept, running: Running, secrets: &[String]) {
    let said = running.stop().await;
    assert!(said.contains("TRACE"), "{said}");
    without("the log", said.as_bytes(), secrets);
    for file in files(&kept.data("")) {
        let bytes = std::fs::read(&file).unwrap();
        without(&file.display().to_string(), &bytes, secrets);
    }
}

#[tokio::test]
async fn s01_a_browser_opens_and_nothing_secret_is_seen() {
    let client = json!({
        "client_id": "toolwharf", "client_secret": SECRET, "application_type": "native",
        "redirect_uris": ["http://127.0.0.1/login/callback"], "grant_types": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_method": "client_secret_basic",
    });
    let world = World::new(json!({ "clients": [client] })).await;
    let mut kept = Kept::sqlite().await;
    kept.set_env("RUST_LOG", Some("trace"));
    kept.settings("[audit]\nbodies = \"full\"\n");
    let mut entry = world.entry();
    entry["login"]["clientId"] = json!("toolwharf");
    entry["login"]["clientSecret"] = json!(SECRET);
    kept.servers(json!({ NAME: entry }));
    let running = kept.start().await;
    state(&running, "needs_login").await;
    let (script, page) = browser(kept.dir.path());
    let mut login = command(&running, &["login", NAME]);
    login.env("BROWSER", script);
    let mut login = Process::spawn(login);
    let page = wait_for_some("the browser's page", DEADLINE, async || {
        std::fs::read_to_string(&page).ok()
    })
    .await;
    let link = std::fs::read_to_string(&page).unwrap();
    let link = link.split("/login/").nth(1).unwrap();
    let link = link.split('"').next().unwrap().to_owned();
    let secret = std::slice::from_ref(&link);
    without("a command line", &command_lines(), secret);
    let chromium = Browser::open().await;
    chromium.go(&format!("file://{page}")).await;
    chromium.shows(&format!("Sign in to {NAME}")).await;
    pictures(&chromium, "link").await;
    chromium.click("button").await;
    chromium.type_into("input[name=account]", "ann").await;
    chromium.click("#login").await;
    chromium.click("#allow").await;
    chromium.shows("You are signed in to files").await;
    pictures(&chromium, "signed-in").await;
    let callback = chromium.eval("location.href").await;
    let status = login.ended(DEADLINE).await;
    assert!(status.success(), "{}", login.stderr());
    state(&running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    // The link can be used only once.
    chromium.go(&format!("{}/login/{link}", running.url)).await;
    chromium.shows("This link has expired").await;
    pictures(&chromium, "gone").await;

    let mut secrets = world.issuer.secrets().await;
    let code = callback.as_str().unwrap().split("code=").nth(1).unwrap();
    let code = code.split('&').next().unwrap();
    assert!(secrets.iter().any(|secret| secret == code), "{secrets:?}");
    let tokens = world.protected.tokens();
    assert!(tokens.iter().all(|token| secrets.contains(token)));
    secrets.push(SECRET.to_owned());
    for arguments in [
        &["ls", "-o", "json"][..],
        &["get", NAME, "-o", "json"],
        &["login", "-o", "json"],
        &["events", NAME, "-o", "json"],
        &["logs", NAME],
        &["calls", "-o", "json"],
    ] {
        let said = said(command(&running, arguments), "").await;
        let place = format!("{arguments:?}");
        without(&place, format!("{said:?}").as_bytes(), &secrets);
    }
    no_page_with(&running, &secrets).await;
    without("the login command", login.stderr().as_bytes(), &secrets);
    stop_without(&kept, running, &secrets).await;
}

#[tokio::test]
async fn s02_a_code_is_typed_on_another_machine() {
    let (world, _kept, running) = World::signed_out().await;
    let mut login = Process::spawn(command(&running, &["login", NAME, "--device"]));
    let url = login.announced(|line| {
        let line = line.strip_prefix("open ")?;
        let (url, _) = line.split_once(" and enter the code ")?;
        Some(url.to_owned())
    });
    let url = url.await;
    let shown = world.issuer.browse(&url, "ann", false).await;
    checks::string(&shown["html"], &["id=\"done\""]);
    let status = login.ended(DEADLINE).await;
    assert!(status.success(), "{}", login.stderr());
    state(&running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
}

#[tokio::test]
async fn s02_the_redirect_is_pasted() {
    let (world, _kept, running) = World::signed_out().await;
    let mut login = command(&running, &["login", NAME, "--no-browser"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(login.stderr.take().unwrap()).lines();
    let url = within("the issuer's page", DEADLINE, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("a URL");
            if line.starts_with("http://") {
                return line;
            }
        }
    })
    .await;
    let redirect = world.issuer.sign_in(&url, "ann").await;
    let mut stdin = login.stdin.take().unwrap();
    let line = format!("{redirect}\n");
    stdin.write_all(line.as_bytes()).await.unwrap();
    let status = within("the end of the login", DEADLINE, login.wait()).await;
    assert!(status.unwrap().success());
    state(&running, "running").await;
    assert_eq!(text(&call(&running, "whoami").await), "ann");
    // The redirect is valid once.
    let again = json!({ "redirect": redirect });
    let again = running
        .rest("POST", &format!("{LOGIN}/finish"), again)
        .await;
    checks::reply(&again, 400, &["wrong_redirect"]);
}

/// A user who denies access at the issuer sees that, and the server stays signed out.
#[tokio::test]
async fn s02_a_refusal_is_told() {
    let world = World::new(json!({})).await;
    let (_kept, running) = world.serve().await;
    let begun = running.ok("POST", LOGIN, json!({ "way": "paste" })).await;
    let url = begun["authorize_url"].as_str().unwrap();
    let refused = world.issuer.browse(url, "ann", true).await;
    let redirect = json!({ "redirect": refused["location"] });
    let finish = format!("{LOGIN}/finish");
    let answer = running.rest("POST", &finish, redirect).await;
    checks::reply(&answer, 409, &["login_denied"]);
    let login = login(&running).await;
    assert_eq!(login["state"], "absent", "{login}");
}
