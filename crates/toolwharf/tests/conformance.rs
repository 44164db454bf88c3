//! Runs the official conformance suite through the gateway, and with the gateway as the client.
//!
//! Server leg: the suite must find the same results through the gateway as at the server itself, scenario by scenario, for
//! upstreams of every era and transport, and for a server of both eras on each of two SDKs. A table lists the differences that the protocol allows, with the
//! reasons. Client leg: the gateway is between a host and each server of the suite.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{
    Gateway, LEGACY, Setup, names,
    replicas::Balancer,
    steps::{conformant_http, conformant_stdio},
    with,
};
use serde_json::{Value, json};
use testkit::{
    Bin, Peer, Process,
    conformance::{self, Summary},
    peer::{MODERN, all_capabilities},
    postgres::Database,
};

/// Checks whose outcome may differ through the gateway: scenario, check and outcome (`-`: the check does not run). The
/// line above says why the difference is not a bug.
type Differences = &'static str;

/// One check of an unscored scenario only runs if the server disconnects during a call, which the gateway never does.
const STAYS_CONNECTED: Differences = "
    # The connection stays open, so the response arrives on it and nothing is resumed.
    server-sse-polling server-sse-disconnect-resume -
";

/// The TypeScript SDK answers modern requests with JSON if it can, the gateway with a stream.
const STREAMS: Differences = "
    # The suite checks streams, and accepts JSON without a check.
    server-sse-multiple-streams server-sse-streams-functional SUCCESS
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
    let (_server, direct) = conformant_http(arguments).await;
    let gateway = gateway(json!({ "type": "http", "url": direct })).await;
    OverHttp {
        gateway,
        direct,
        _server,
    }
}

async fn gateway(entry: Value) -> Gateway {
    setup(entry).connected().await
}

fn setup(entry: Value) -> Setup {
    // The suite sends calls that wait for each other.
    let entry = with(entry, json!({ "maxConcurrency": 64 }));
    Setup::new().server(NAME, entry)
}

/// The view of the single server, with its native names and URIs.
fn single(gateway: &Gateway) -> String {
    format!("{}/mcp/-/{NAME}", gateway.url)
}

/// The results at `testkit-conformance` itself.
async fn direct(requirements: &str, url: &str) -> Summary {
    let passed = if requirements == MODERN { 197 } else { 84 };
    direct_with(requirements, url, passed).await
}

/// The results at the server itself. Every scored check passes.
async fn direct_with(requirements: &str, url: &str, passed: usize) -> Summary {
    let summary = conformance::run(requirements, url, &[]).await;
    assert_eq!(summary.total.passed, passed, "{:?}", summary.complaints);
    assert_eq!(summary.scored().failed, 0, "{:?}", summary.complaints);
    summary
}

/// Runs the requirement set at `url` and compares each check with the direct result, apart from [`STAYS_CONNECTED`] and
/// `differ`.
async fn compare(what: &str, requirements: &str, url: &str, direct: &Summary, differ: Differences) {
    let through = conformance::run(requirements, url, &[]).await;
    let mut expected = direct.checks.clone();
    let lines = STAYS_CONNECTED.lines().chain(differ.lines());
    for line in lines.map(str::trim).filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let [scenario, check, outcome] = words[..] else {
            assert!(line.is_empty(), "not three words: {line:?}");
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
                let line = format!("{scenario:?}, {check:?}: {found:?} instead of {wanted:?}");
                wrong.push(line);
            }
        }
    }
    let (wrong, complaints) = (wrong.join("\n"), through.complaints.join("\n"));
    assert!(
        wrong.is_empty(),
        "{requirements}, {what}:\n{wrong}\n{complaints}"
    );
}

/// The gateway talks to a server of both eras over HTTP in the era of each client. Everything has its default setting.
/// `passed` is the number of checks that pass directly, for [`LEGACY`] and [`MODERN`].
async fn both_eras(server: (Process, String), passed: [usize; 2], differ: Differences) {
    let (_server, url) = server;
    let entry = json!({ "type": "http", "url": url });
    let gateway = Setup::new().server(NAME, entry).connected().await;
    gateway.logged("version=2026-07-28").await;
    for (requirements, passed) in [LEGACY, MODERN].into_iter().zip(passed) {
        let direct = direct_with(requirements, &url, passed).await;
        compare("single", requirements, &single(&gateway), &direct, differ).await;
        // In the aggregated view, resources have gateway URIs, but their native URIs also work as long as no other
        // server has them.
        let aggregated = format!("{}/mcp", gateway.url);
        compare("aggregated", requirements, &aggregated, &direct, differ).await;
    }
    gateway.logged("connected for legacy clients, too").await;
}

#[tokio::test]
async fn u14_conformance_of_both_eras_with_the_rust_sdk() {
    both_eras(conformant_http(&[]).await, [84, 197], "").await;
}

/// The unscored scenarios for tasks fail, because the SDK has no tasks.
#[tokio::test]
async fn u14_conformance_of_both_eras_with_the_typescript_sdk() {
    both_eras(conformance::typescript_server().await, [84, 167], STREAMS).await;
}

/// A server that speaks only the modern era; legacy clients cross the bridge.
#[tokio::test]
async fn conformance_modern_server() {
    let http = over_http(&["--era", "modern"]).await;
    let (_twin, its_url) = conformant_http(&[]).await;
    let old = direct(LEGACY, &its_url).await;
    compare("modern HTTP", LEGACY, &single(&http.gateway), &old, "").await;
}

/// The suite has the same results with the server on stdio, in both eras.
#[tokio::test]
async fn conformance_stdio() {
    let (_server, url) = conformant_http(&[]).await;
    let modern = gateway(conformant_stdio("modern")).await;
    modern.logged("version=2026-07-28").await;
    let legacy = gateway(conformant_stdio("legacy")).await;
    legacy.logged("version=2025-11-25").await;
    let old = direct(LEGACY, &url).await;
    let new = direct(MODERN, &url).await;
    compare("modern stdio", LEGACY, &single(&modern), &old, "").await;
    compare("legacy stdio", LEGACY, &single(&legacy), &old, "").await;
    compare("modern stdio", MODERN, &single(&modern), &new, "").await;
}

/// A server whose newest version is 2025-11-25; modern clients cross the bridge.
#[tokio::test]
async fn conformance_legacy_server() {
    let http = over_http(&["--era", "legacy"]).await;
    http.gateway.logged("version=2025-11-25").await;
    let old = direct(LEGACY, &http.direct).await;
    let url = single(&http.gateway);
    compare("legacy HTTP", LEGACY, &url, &old, "").await;
    // The server supports none of the modern scenarios, so the expected results come from a second, modern server.
    let (_twin, its_url) = conformant_http(&[]).await;
    let new = direct(MODERN, &its_url).await;
    compare("legacy HTTP", MODERN, &url, &new, LEGACY_SERVER).await;
}

/// Requests alternate between three replicas. The results equal those without the gateway, for a server of each era.
#[tokio::test]
async fn d01_conformance_through_three_replicas() {
    let (_server, url) = conformant_http(&[]).await;
    let (old, new) = (direct(LEGACY, &url).await, direct(MODERN, &url).await);
    for era in ["modern", "legacy"] {
        let (_process, upstream) = conformant_http(&["--era", era]).await;
        let upstream = json!({ "type": "http", "url": upstream });
        let database = Database::create().await;
        let mut replicas: Vec<Gateway> = Vec::new();
        for _ in 0..3 {
            let setup = setup(upstream.clone());
            let setup = setup.of_replica(database.url(), replicas.first());
            replicas.push(setup.serve().await);
        }
        for replica in &replicas {
            replica.up(NAME).await;
        }
        let balancer = Balancer::before(&replicas).await;
        let url = format!("{}/mcp/-/{NAME}", balancer.url);
        let what = format!("{era} upstream, three replicas");
        // The gateway speaks the modern era to a modern server, whatever the client speaks, so one client version is
        // enough.
        let mut differ = "";
        if era == "legacy" {
            compare(&what, LEGACY, &url, &old, "").await;
            differ = LEGACY_SERVER;
        }
        compare(&what, MODERN, &url, &new, differ).await;
    }
}

/// The aggregated view keeps the names of a single server, and gives its resources gateway URIs.
#[tokio::test]
async fn conformance_names_in_the_aggregated_view() {
    let command = Bin::path("testkit-conformance");
    let gateway = gateway(json!({ "command": command, "args": ["--stdio"] })).await;
    let mut all = gateway.modern().await;
    let single = gateway.at(&format!("/mcp/-/{NAME}"));
    let mut one = Peer::http(single, MODERN, all_capabilities()).await;
    let (templates, template) = ("resourceTemplates", "uriTemplate");
    for (method, list, member) in [
        ("tools/list", "tools", "name"),
        ("prompts/list", "prompts", "name"),
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", templates, template),
    ] {
        let exposed = names(&mut all, method, list, member).await;
        let native = names(&mut one, method, list, member).await;
        if member == "name" {
            assert_eq!(exposed, native);
            continue;
        }
        assert_eq!(native.len(), exposed.len());
        let is_exposed = |uri: &String| uri.starts_with("resource://suite/");
        assert!(exposed.iter().all(is_exposed), "{exposed:?}");
        let is_native = |uri: &String| uri.starts_with("test://");
        assert!(native.iter().all(is_native), "{native:?}");
    }
}

/// Runs the client leg of both requirement sets, with a host of version `host`.
async fn client_leg(host: &str) {
    let client = Bin::path("testkit-conformance-client");
    let command = format!("{} --host {host}", client.display());
    // The two hosts differ only in how the gateway asks them to sign in, so each runs only the sign-in scenarios of its
    // version.
    for (requirements, scenarios, of_login) in [(LEGACY, 5, 20), (MODERN, 8, 31)] {
        // Otherwise the gateway would also send `initialize` for a legacy host, which the modern set counts as a fault
        // (0020).
        let era = match host == LEGACY && requirements == MODERN {
            true => " --era modern",
            false => "",
        };
        let command = format!("{command}{era}");
        let has_logins = requirements == host;
        let scenarios = scenarios + if has_logins { of_login } else { 0 };
        let wanted = |scenario: &str| has_logins || !scenario.starts_with("auth/");
        let summary = conformance::run_client(requirements, &command, wanted).await;
        let complaints = summary.complaints.join("\n");
        assert_eq!(complaints, "", "host of {host}, {requirements}");
        let all = &summary.scenarios;
        assert_eq!(all.len(), scenarios, "{all:?}");
        for (scenario, counts) in all {
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
