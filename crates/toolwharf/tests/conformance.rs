//! The official conformance suite, through the gateway and with the gateway as the client.
//!
//! Server leg: whatever the suite finds at `testkit-conformance` itself it has to find through the
//! gateway, scenario by scenario, for upstreams of every era and transport. Where the protocol
//! allows another outcome, [`Difference`] says which and why. Client leg: the suite's servers, with
//! the gateway between them and a host; `conformance-baseline.yml` lists what does not pass yet.

mod common;

use std::{cell::RefCell, collections::BTreeMap};

use common::{Gateway, LEGACY, Setup, with};
use serde_json::{Value, json};
use testkit::{
    Bin, Process,
    conformance::{self, Counts, Summary},
    peer::MODERN,
};

/// A scenario that comes out differently through the gateway, as it may.
struct Difference {
    scenario: &'static str,
    through: Counts,
    /// Why this is not a fault.
    _why: &'static str,
}

const fn difference(
    scenario: &'static str,
    [passed, failed, warnings]: [usize; 3],
    why: &'static str,
) -> Difference {
    let through = Counts {
        passed,
        failed,
        warnings,
        skipped: 0,
    };
    Difference {
        scenario,
        through,
        _why: why,
    }
}

/// What the gateway never does: one check of a scenario that is not scored is only made of servers that hang up
/// in mid-call.
const STAYS_CONNECTED: [Difference; 1] = [difference(
    "server-sse-polling",
    [2, 0, 0],
    "the connection is kept open, so the answer comes on it and nothing has to be taken up again",
)];

const TASKS: &str =
    "a legacy server has no tasks extension: its calls are answered, no task is made";

/// What a modern client cannot have from a legacy server.
const LEGACY_SERVER: [Difference; 12] = [
    difference(
        "input-required-result-basic-elicitation",
        [1, 1, 0],
        "the suite wants the key that its server chose; a legacy request carries none",
    ),
    difference(
        "input-required-result-ignore-extra-params",
        [1, 0, 1],
        "it answers under the same key without looking",
    ),
    difference(
        "input-required-result-multiple-input-requests",
        [1, 1, 0],
        "a legacy server asks one thing after the other, so they come one by one",
    ),
    difference(
        "server-stateless",
        [28, 2, 0],
        "a legacy server knows the capabilities of the session, which is the gateway's, and does not \
         refuse at once; what the client cannot do is refused when it is asked for",
    ),
    difference("tasks-capability-negotiation", [3, 2, 0], TASKS),
    difference("tasks-dispatch-and-envelope", [5, 4, 0], TASKS),
    difference("tasks-lifecycle", [2, 7, 0], TASKS),
    difference("tasks-mrtr-composition", [1, 1, 0], TASKS),
    difference("tasks-mrtr-input", [1, 3, 0], TASKS),
    difference("tasks-request-headers", [3, 2, 0], TASKS),
    difference("tasks-request-state-removal", [1, 1, 0], TASKS),
    difference("tasks-wire-fields", [1, 3, 0], TASKS),
];

/// The one server that the tests put behind the gateway.
const NAME: &str = "suite";

/// A gateway in front of one conformance server over HTTP; `direct` is that server's URL.
struct OverHttp {
    gateway: Gateway,
    direct: String,
    _server: Process,
}

async fn over_http(arguments: &[&str]) -> OverHttp {
    let mut all = vec!["--listen", "127.0.0.1:0"];
    all.extend(arguments);
    let mut server = Process::bin("testkit-conformance", all);
    let direct = server.url().await;
    let gateway = gateway(json!({ "type": "http", "url": direct }), json!({})).await;
    OverHttp {
        gateway,
        direct,
        _server: server,
    }
}

async fn over_stdio(arguments: &[&str], options: Value) -> Gateway {
    let mut all = vec!["--stdio"];
    all.extend(arguments);
    let command = Bin::path("testkit-conformance");
    gateway(json!({ "command": command, "args": all }), options).await
}

async fn gateway(entry: Value, mut options: Value) -> Gateway {
    // The suite sends calls that wait for each other.
    options["maxConcurrency"] = json!(64);
    let gateway = Setup::new()
        .server(NAME, with(entry, options))
        .serve()
        .await;
    gateway.up(NAME).await;
    gateway
}

/// The server as it is: its own names and URIs.
fn single(gateway: &Gateway) -> String {
    format!("{}/mcp/-/{NAME}", gateway.url)
}

async fn direct(requirements: &str, url: &str) -> Summary {
    let summary = conformance::run(requirements, url, &[]).await;
    let passed = if requirements == MODERN { 197 } else { 84 };
    assert_eq!(summary.total.passed, passed, "{:?}", summary.complaints);
    summary
}

/// Runs the requirement set at `url` and compares with what it found directly.
async fn compare(
    what: &str,
    requirements: &str,
    url: &str,
    direct: &Summary,
    differ: &[&[Difference]],
) {
    let through = conformance::run(requirements, url, &[]).await;
    let mut expected: BTreeMap<&str, Counts> = BTreeMap::new();
    for (scenario, counts) in &direct.scenarios {
        expected.insert(scenario, *counts);
    }
    for difference in differ.iter().copied().flatten() {
        // Not every set has every scenario.
        if let Some(counts) = expected.get_mut(difference.scenario) {
            *counts = difference.through;
        }
    }
    let found: BTreeMap<&str, Counts> = through
        .scenarios
        .iter()
        .map(|(scenario, counts)| (&**scenario, *counts))
        .collect();
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(scenario, counts)| found.get(*scenario) != Some(counts))
        .map(|(scenario, counts)| {
            format!(
                "{scenario}: {:?} instead of {counts:?}",
                found.get(scenario)
            )
        })
        .collect();
    assert!(
        wrong.is_empty() && found.len() == expected.len(),
        "{what}:\n{}\n{}",
        wrong.join("\n"),
        through.complaints.join("\n")
    );
}

/// A server of both eras over HTTP is spoken to in the modern one: legacy clients cross the bridge.
#[tokio::test]
async fn conformance_http() {
    let http = over_http(&[]).await;
    http.gateway.logged("version=2026-07-28").await;
    for requirements in [LEGACY, MODERN] {
        let direct = direct(requirements, &http.direct).await;
        let what = format!("{requirements}, HTTP upstream");
        compare(
            &what,
            requirements,
            &single(&http.gateway),
            &direct,
            &[&STAYS_CONNECTED],
        )
        .await;
        // The same server under the gateway's own names: resources have other URIs there, and its own lead
        // to it all the same as long as nobody else has them.
        let what = format!("{requirements}, HTTP upstream, aggregated");
        let url = format!("{}/mcp", http.gateway.url);
        compare(&what, requirements, &url, &direct, &[&STAYS_CONNECTED]).await;
    }
}

/// The same over pipes, in both eras.
#[tokio::test]
async fn conformance_stdio() {
    let mut server = Process::bin("testkit-conformance", ["--listen", "127.0.0.1:0"]);
    let url = server.url().await;
    let modern = over_stdio(&["--era", "modern"], json!({})).await;
    modern.logged("version=2026-07-28").await;
    let legacy = over_stdio(&["--era", "legacy"], json!({})).await;
    legacy.logged("version=2025-11-25").await;
    let old = direct(LEGACY, &url).await;
    let new = direct(MODERN, &url).await;
    for (what, gateway) in [("modern", &modern), ("legacy", &legacy)] {
        let what = format!("{LEGACY}, {what} stdio upstream");
        compare(&what, LEGACY, &single(gateway), &old, &[&STAYS_CONNECTED]).await;
    }
    let what = format!("{MODERN}, modern stdio upstream");
    compare(&what, MODERN, &single(&modern), &new, &[&STAYS_CONNECTED]).await;
}

/// A server that speaks nothing newer than 2025-11-25: modern clients cross the bridge.
#[tokio::test]
async fn conformance_legacy_server() {
    let http = over_http(&["--era", "legacy"]).await;
    http.gateway.logged("version=2025-11-25").await;
    let old = direct(LEGACY, &http.direct).await;
    let what = format!("{LEGACY}, legacy HTTP upstream");
    compare(
        &what,
        LEGACY,
        &single(&http.gateway),
        &old,
        &[&STAYS_CONNECTED],
    )
    .await;
    // Of itself it answers none of these: the count is that of its modern twin.
    let mut twin = Process::bin("testkit-conformance", ["--listen", "127.0.0.1:0"]);
    let new = direct(MODERN, &twin.url().await).await;
    let what = format!("{MODERN}, legacy HTTP upstream");
    let differ: [&[Difference]; 2] = [&STAYS_CONNECTED, &LEGACY_SERVER];
    compare(&what, MODERN, &single(&http.gateway), &new, &differ).await;
}

/// In the view of all servers, one server's names stay and its resources get URIs of the gateway's own.
#[tokio::test]
async fn conformance_names_in_the_aggregated_view() {
    let gateway = over_stdio(&[], json!({})).await;
    let mut all = gateway.modern().await;
    let mut one = testkit::Peer::http(
        gateway.at(&format!("/mcp/-/{NAME}")),
        MODERN,
        testkit::peer::all_capabilities(),
    )
    .await;
    for (method, list, member) in [
        ("tools/list", "tools", "name"),
        ("prompts/list", "prompts", "name"),
    ] {
        let native = common::names(&mut one, method, list, member).await;
        assert_eq!(common::names(&mut all, method, list, member).await, native);
    }
    for (method, list, member) in [
        ("resources/list", "resources", "uri"),
        (
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
        ),
    ] {
        let exposed = common::names(&mut all, method, list, member).await;
        for uri in &exposed {
            assert!(uri.starts_with("resource://suite/"), "{uri}");
        }
        let native = common::names(&mut one, method, list, member).await;
        assert_eq!(native.len(), exposed.len());
        for uri in native {
            assert!(uri.starts_with("test://"), "{uri}");
        }
    }
}

/// The scenarios that the gateway does not pass as a client yet.
fn baseline() -> Vec<String> {
    let text = include_str!("conformance-baseline.yml");
    let entries = text.lines().filter_map(|line| line.strip_prefix("  - "));
    entries.map(|entry| entry.trim().to_owned()).collect()
}

/// Runs the client leg of both requirement sets with a host of revision `host` in front of the gateway.
async fn client_leg(host: &str) {
    let known = baseline();
    let seen = RefCell::new(Vec::new());
    let command = format!(
        "{} --host {host}",
        Bin::path("testkit-conformance-client").display()
    );
    for (requirements, scenarios) in [(LEGACY, 5), (MODERN, 8)] {
        let wanted = |scenario: &str| {
            seen.borrow_mut().push(scenario.to_owned());
            !known.iter().any(|known| known == scenario)
        };
        let summary = conformance::run_client(requirements, &command, wanted).await;
        let complaints = summary.complaints.join("\n");
        assert!(
            complaints.is_empty(),
            "host of {host}, {requirements}:\n{complaints}"
        );
        assert_eq!(
            summary.scenarios.len(),
            scenarios,
            "{:?}",
            summary.scenarios
        );
        for (scenario, counts) in &summary.scenarios {
            assert!(counts.passed > 0, "{scenario}: {counts:?}");
        }
    }
    for scenario in known {
        let is_known = seen.borrow().contains(&scenario);
        assert!(
            is_known,
            "conformance-baseline.yml: no set has `{scenario}`"
        );
        assert!(scenario.starts_with("auth/"), "{scenario} has to pass");
    }
}

/// The host retries modern calls itself.
#[tokio::test]
async fn conformance_client_with_a_modern_host() {
    client_leg(MODERN).await;
}

/// The host is asked in mid-call, and the gateway makes the retry.
#[tokio::test]
async fn conformance_client_with_a_legacy_host() {
    client_leg(LEGACY).await;
}
