//! The official conformance suite, through the gateway and with the gateway as the client.
//!
//! Server leg: whatever the suite finds at `testkit-conformance` itself it has to find through the
//! gateway, scenario by scenario, for upstreams of every era and transport. Where the protocol
//! allows another outcome, [`Difference`] says which and why. Client leg: the suite's servers, with
//! the gateway between them and a host, all of them.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Gateway, LEGACY, Setup, replicas::Balancer, with};
use serde_json::{Value, json};
use testkit::{
    Bin, Process,
    conformance::{self, Summary},
    peer::MODERN,
    postgres::Database,
};

/// A check that comes out differently through the gateway, as it may.
struct Difference {
    scenario: &'static str,
    check: &'static str,
    /// What comes of it through the gateway, as often as it is made.
    through: &'static [&'static str],
    /// Why this is not a fault.
    _why: &'static str,
}

const fn difference(
    scenario: &'static str,
    check: &'static str,
    through: &'static [&'static str],
    why: &'static str,
) -> Difference {
    Difference {
        scenario,
        check,
        through,
        _why: why,
    }
}

/// What the gateway never does: one check of a scenario that is not scored is only made of servers that hang up
/// in mid-call.
const STAYS_CONNECTED: [Difference; 1] = [difference(
    "server-sse-polling",
    "server-sse-disconnect-resume",
    &[],
    "the connection is kept open, so the answer comes on it and nothing has to be taken up again",
)];

const TASKS: &str = "this legacy server has no tasks: its calls are answered, no task is made";
const KEY: &str = "the suite wants the key that its server chose; a legacy request carries none";
const EXTRA: &str = "it answers under the same key without looking";
const ONE_BY_ONE: &str = "a legacy server asks one thing after the other, so they come one by one";
const STATELESS: &str = "a legacy server knows the capabilities of the session, which is the gateway's, and does not \
                         refuse at once; what the client cannot do is refused when it is asked for";

/// What a modern client cannot have from a legacy server.
const LEGACY_SERVER: [Difference; 32] = [
    difference(
        "input-required-result-basic-elicitation",
        "sep-2322-elicitation-complete",
        &[],
        KEY,
    ),
    difference(
        "input-required-result-basic-elicitation",
        "sep-2322-elicitation-incomplete",
        &["FAILURE"],
        KEY,
    ),
    difference(
        "input-required-result-ignore-extra-params",
        "sep-2322-ignore-unexpected-params",
        &["WARNING"],
        EXTRA,
    ),
    difference(
        "input-required-result-multiple-input-requests",
        "sep-2322-multiple-inputs-complete",
        &[],
        ONE_BY_ONE,
    ),
    difference(
        "input-required-result-multiple-input-requests",
        "sep-2322-multiple-inputs-incomplete",
        &["FAILURE"],
        ONE_BY_ONE,
    ),
    difference(
        "server-stateless",
        "sep-2575-missing-capability-http-400",
        &["FAILURE"],
        STATELESS,
    ),
    difference(
        "server-stateless",
        "sep-2575-server-rejects-undeclared-capability",
        &["FAILURE"],
        STATELESS,
    ),
    difference(
        "tasks-capability-negotiation",
        "sep-2663-tasks-methods-non-declaring",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-capability-negotiation",
        "tasks-per-request-meta-opt-in",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-dispatch-and-envelope",
        "sep-2663-durable-create-strong-consistency",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-dispatch-and-envelope",
        "sep-2663-tasks-get-invalid-task-id-32602",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-dispatch-and-envelope",
        "tasks-result-type-complete-on-non-task-responses",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-dispatch-and-envelope",
        "tasks-server-directed-creation-no-hint",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-cancel-ack-empty-result",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-result-type-task-on-create",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-tasks-get-status-completed",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-tasks-get-status-failed",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-tasks-get-status-working",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "sep-2663-tool-error-uses-completed-status",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-lifecycle",
        "tasks-cancel-terminal-idempotent-ack",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-mrtr-composition",
        "sep-2663-mrtr-synchronous-before-task-creation",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-mrtr-input",
        "sep-2663-tasks-get-status-input-required",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-mrtr-input",
        "tasks-mrtr-partial-fulfillment",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-mrtr-input",
        "tasks-mrtr-tasks-update-resumes",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-request-headers",
        "sep-2663-routing-headers-accepted-on-tasks-get",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-request-headers",
        "sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-request-state-removal",
        "tasks-create-result-no-request-state",
        &[],
        TASKS,
    ),
    difference(
        "tasks-request-state-removal",
        "tasks-get-detailed-no-request-state",
        &[],
        TASKS,
    ),
    difference(
        "tasks-request-state-removal",
        "tasks-request-state-removal-setup",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-wire-fields",
        "tasks-no-early-ttl-expiry",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-wire-fields",
        "tasks-no-related-task-meta-on-inlined-result",
        &["FAILURE"],
        TASKS,
    ),
    difference(
        "tasks-wire-fields",
        "tasks-wire-field-renames",
        &["FAILURE"],
        TASKS,
    ),
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

/// Runs the requirement set at `url` and compares, check by check, with what it found directly.
async fn compare(
    what: &str,
    requirements: &str,
    url: &str,
    direct: &Summary,
    differ: &[&[Difference]],
) {
    let through = conformance::run(requirements, url, &[]).await;
    let mut expected = direct.checks.clone();
    for difference in differ.iter().copied().flatten() {
        // Not every set has every scenario.
        let Some(checks) = expected.get_mut(difference.scenario) else {
            continue;
        };
        let outcomes: Vec<String> = difference.through.iter().map(|&text| text.into()).collect();
        if outcomes.is_empty() {
            checks.remove(difference.check);
        } else {
            checks.insert(difference.check.to_owned(), outcomes);
        }
    }
    let scenarios: BTreeSet<&String> = expected.keys().chain(through.checks.keys()).collect();
    let none = BTreeMap::new();
    let mut wrong = Vec::new();
    for scenario in scenarios {
        let wanted = expected.get(scenario).unwrap_or(&none);
        let found = through.checks.get(scenario).unwrap_or(&none);
        for check in wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
            let (wanted, found) = (wanted.get(check), found.get(check));
            if wanted != found {
                wrong.push(format!(
                    "{scenario:?}, {check:?}: {found:?} instead of {wanted:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
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

/// Three replicas take turns, request by request: the suite finds what it finds at one, with a server of each era.
#[tokio::test]
async fn d01_conformance_through_three_replicas() {
    let mut server = Process::bin("testkit-conformance", ["--listen", "127.0.0.1:0"]);
    let url = server.url().await;
    let (old, new) = (direct(LEGACY, &url).await, direct(MODERN, &url).await);
    for era in ["modern", "legacy"] {
        let mut process = Process::bin(
            "testkit-conformance",
            ["--listen", "127.0.0.1:0", "--era", era],
        );
        let upstream = json!({ "type": "http", "url": process.url().await });
        let database = Database::create().await;
        let mut replicas: Vec<Gateway> = Vec::new();
        for _ in 0..3 {
            let entry = with(upstream.clone(), json!({ "maxConcurrency": 64 }));
            let setup = Setup::new().server(NAME, entry);
            let setup = setup.of_replica(database.url(), replicas.first());
            replicas.push(setup.serve().await);
        }
        for replica in &replicas {
            replica.up(NAME).await;
        }
        let balancer = Balancer::before(&replicas).await;
        let url = format!("{}/mcp/-/{NAME}", balancer.url);
        // A modern server is spoken to in the modern era, whatever its client speaks: one of both shows it.
        if era == "legacy" {
            let what = format!("{LEGACY}, {era} upstream, three replicas");
            compare(&what, LEGACY, &url, &old, &[&STAYS_CONNECTED]).await;
        }
        let what = format!("{MODERN}, {era} upstream, three replicas");
        let differ: &[&[Difference]] = match era {
            "modern" => &[&STAYS_CONNECTED],
            _ => &[&STAYS_CONNECTED, &LEGACY_SERVER],
        };
        compare(&what, MODERN, &url, &new, differ).await;
    }
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

/// The command of a host of revision `host` with the gateway in front of it.
fn client(host: &str) -> String {
    format!(
        "{} --host {host}",
        Bin::path("testkit-conformance-client").display()
    )
}

/// Runs the client leg of both requirement sets with a host of revision `host` in front of the gateway.
async fn client_leg(host: &str) {
    let command = client(host);
    // Signing in is the same for both hosts, but for how they are asked to: each has the scenarios of its revision.
    for (requirements, scenarios, of_login) in [(LEGACY, 5, 20), (MODERN, 8, 31)] {
        let has_logins = requirements == host;
        let scenarios = scenarios + if has_logins { of_login } else { 0 };
        let wanted = |scenario: &str| has_logins || !scenario.starts_with("auth/");
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
