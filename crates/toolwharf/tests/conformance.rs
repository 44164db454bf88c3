//! The official conformance suite, through the gateway and with the gateway as the client.
//!
//! Server leg: the suite must find the same results through the gateway as at `testkit-conformance` itself, scenario by
//! scenario, for upstreams of every era and transport. A table lists the differences that the protocol allows, with the
//! reasons. Client leg: the gateway is between a host and each server of the suite.

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

/// Checks whose outcome may differ through the gateway, each below the reason why this is not a bug: scenario, check and
/// outcome (`-`: the check does not run).
type Differences = &'static str;

/// One check of an unscored scenario only runs if the server disconnects during a call, which the gateway never does.
const STAYS_CONNECTED: Differences = "
    # The connection stays open, so the response arrives on it and nothing is resumed.
    server-sse-polling server-sse-disconnect-resume -
";

/// Features that a modern client cannot get from a legacy server.
const LEGACY_SERVER: Differences = "
    # The suite expects the key that its server chose; a legacy request has none.
    input-required-result-basic-elicitation sep-2322-elicitation-complete -
    input-required-result-basic-elicitation sep-2322-elicitation-incomplete FAILURE
    # The suite answers under the same key without checking it.
    input-required-result-ignore-extra-params sep-2322-ignore-unexpected-params WARNING
    # A legacy server sends one request after the other, so they arrive one by one.
    input-required-result-multiple-input-requests sep-2322-multiple-inputs-complete -
    input-required-result-multiple-input-requests sep-2322-multiple-inputs-incomplete FAILURE
    # A legacy server knows the capabilities of the session, which are the gateway's, and does not refuse at
    # once; a request that the client does not support is refused when it is sent.
    server-stateless sep-2575-missing-capability-http-400 FAILURE
    server-stateless sep-2575-server-rejects-undeclared-capability FAILURE
    # This legacy server has no tasks: its calls are answered directly.
    tasks-capability-negotiation sep-2663-tasks-methods-non-declaring FAILURE
    tasks-capability-negotiation tasks-per-request-meta-opt-in FAILURE
    tasks-dispatch-and-envelope sep-2663-durable-create-strong-consistency FAILURE
    tasks-dispatch-and-envelope sep-2663-tasks-get-invalid-task-id-32602 FAILURE
    tasks-dispatch-and-envelope tasks-result-type-complete-on-non-task-responses FAILURE
    tasks-dispatch-and-envelope tasks-server-directed-creation-no-hint FAILURE
    tasks-lifecycle sep-2663-cancel-ack-empty-result FAILURE
    tasks-lifecycle sep-2663-result-type-task-on-create FAILURE
    tasks-lifecycle sep-2663-tasks-get-status-completed FAILURE
    tasks-lifecycle sep-2663-tasks-get-status-failed FAILURE
    tasks-lifecycle sep-2663-tasks-get-status-working FAILURE
    tasks-lifecycle sep-2663-tool-error-uses-completed-status FAILURE
    tasks-lifecycle tasks-cancel-terminal-idempotent-ack FAILURE
    tasks-mrtr-composition sep-2663-mrtr-synchronous-before-task-creation FAILURE
    tasks-mrtr-input sep-2663-tasks-get-status-input-required FAILURE
    tasks-mrtr-input tasks-mrtr-partial-fulfillment FAILURE
    tasks-mrtr-input tasks-mrtr-tasks-update-resumes FAILURE
    tasks-request-headers sep-2663-routing-headers-accepted-on-tasks-get FAILURE
    tasks-request-headers sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get FAILURE
    tasks-request-state-removal tasks-create-result-no-request-state -
    tasks-request-state-removal tasks-get-detailed-no-request-state -
    tasks-request-state-removal tasks-request-state-removal-setup FAILURE
    tasks-wire-fields tasks-no-early-ttl-expiry FAILURE
    tasks-wire-fields tasks-no-related-task-meta-on-inlined-result FAILURE
    tasks-wire-fields tasks-wire-field-renames FAILURE
";

/// The server behind the gateway.
const NAME: &str = "suite";

/// A gateway in front of one conformance server over HTTP. `direct` is the server's URL.
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

/// The view of the single server, with its native names and URIs.
fn single(gateway: &Gateway) -> String {
    format!("{}/mcp/-/{NAME}", gateway.url)
}

async fn direct(requirements: &str, url: &str) -> Summary {
    let summary = conformance::run(requirements, url, &[]).await;
    let passed = if requirements == MODERN { 197 } else { 84 };
    assert_eq!(summary.total.passed, passed, "{:?}", summary.complaints);
    summary
}

/// Runs the requirement set at `url` and compares each check with the direct result.
async fn compare(
    what: &str,
    requirements: &str,
    url: &str,
    direct: &Summary,
    differ: &[Differences],
) {
    let through = conformance::run(requirements, url, &[]).await;
    let mut expected = direct.checks.clone();
    let lines = differ.iter().flat_map(|table| table.lines());
    for line in lines.map(str::trim).filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let [scenario, check, outcome] = words[..] else {
            assert!(line.is_empty(), "{line:?} is not a difference");
            continue;
        };
        // Not every requirement set has every scenario.
        let Some(checks) = expected.get_mut(scenario) else {
            continue;
        };
        if outcome == "-" {
            checks.remove(check);
        } else {
            checks.insert(check.to_owned(), vec![outcome.to_owned()]);
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

/// The gateway talks to a server of both eras over HTTP in the modern era; legacy clients cross the bridge.
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
            &[STAYS_CONNECTED],
        )
        .await;
        // The same server in the aggregated view: resources have gateway URIs there, but their native URIs also work as
        // long as no other server has them.
        let what = format!("{requirements}, HTTP upstream, aggregated");
        let url = format!("{}/mcp", http.gateway.url);
        compare(&what, requirements, &url, &direct, &[STAYS_CONNECTED]).await;
    }
}

/// The same over stdio, in both eras.
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
        compare(&what, LEGACY, &single(gateway), &old, &[STAYS_CONNECTED]).await;
    }
    let what = format!("{MODERN}, modern stdio upstream");
    compare(&what, MODERN, &single(&modern), &new, &[STAYS_CONNECTED]).await;
}

/// A server whose newest version is 2025-11-25; modern clients cross the bridge.
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
        &[STAYS_CONNECTED],
    )
    .await;
    // This server itself supports none of the modern scenarios, so the expected results are those of a modern twin.
    let mut twin = Process::bin("testkit-conformance", ["--listen", "127.0.0.1:0"]);
    let new = direct(MODERN, &twin.url().await).await;
    let what = format!("{MODERN}, legacy HTTP upstream");
    let differ: [Differences; 2] = [STAYS_CONNECTED, LEGACY_SERVER];
    compare(&what, MODERN, &single(&http.gateway), &new, &differ).await;
}

/// Requests alternate between three replicas. The suite finds the same results as at one, for a server of each era.
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
        // The gateway uses the modern era with a modern server whatever the client speaks, so one client version is
        // enough there.
        if era == "legacy" {
            let what = format!("{LEGACY}, {era} upstream, three replicas");
            compare(&what, LEGACY, &url, &old, &[STAYS_CONNECTED]).await;
        }
        let what = format!("{MODERN}, {era} upstream, three replicas");
        let differ: &[Differences] = match era {
            "modern" => &[STAYS_CONNECTED],
            _ => &[STAYS_CONNECTED, LEGACY_SERVER],
        };
        compare(&what, MODERN, &url, &new, differ).await;
    }
}

/// The aggregated view keeps the names of a single server, and gives its resources gateway URIs.
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

/// The command of a host with protocol version `host` behind which the gateway runs.
fn client(host: &str) -> String {
    format!(
        "{} --host {host}",
        Bin::path("testkit-conformance-client").display()
    )
}

/// Runs the client leg of both requirement sets, with a host of version `host`.
async fn client_leg(host: &str) {
    let command = client(host);
    // Signing in works the same for both hosts except how they are asked, so each host runs the sign-in scenarios of
    // its version only.
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

/// A modern host retries calls itself.
#[tokio::test]
async fn conformance_client_with_a_modern_host() {
    client_leg(MODERN).await;
}

/// A legacy host is asked during the call, and the gateway retries.
#[tokio::test]
async fn conformance_client_with_a_legacy_host() {
    client_leg(LEGACY).await;
}
