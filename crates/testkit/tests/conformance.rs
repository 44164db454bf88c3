//! The conformance server passes the whole official suite in every configuration.
//!
//! The numbers are pinned, so that a change of the suite or the SDK is noticed. The gateway's tests compare their
//! results with these.

use testkit::{
    Process,
    conformance::{self, Counts},
};

async fn check(requirements: &str, arguments: &[&str], expected: Counts) {
    let mut all = vec!["--listen", "127.0.0.1:0"];
    all.extend(arguments);
    let mut server = Process::bin("testkit-conformance", all);
    let url = server.url().await;
    let summary = conformance::run(requirements, &url, &[]).await;
    let complaints = summary.complaints.join("\n");
    assert_eq!(summary.scored().failed, 0, "{complaints}");
    assert_eq!(summary.total, expected, "{complaints}");
}

#[tokio::test]
async fn legacy_requirements() {
    let expected = Counts {
        passed: 84,
        ..Counts::default()
    };
    check("2025-11-25", &[], expected).await;
    check("2025-11-25", &["--era", "legacy"], expected).await;
}

#[tokio::test]
async fn modern_requirements() {
    let expected = Counts {
        passed: 197,
        skipped: 1,
        ..Counts::default()
    };
    check("2026-07-28", &[], expected).await;
    check("2026-07-28", &["--era", "modern"], expected).await;
}

#[tokio::test]
async fn a_client_that_does_nothing_fails() {
    let wanted = |scenario: &str| scenario == "tools_call";
    let summary = conformance::run_client("2025-11-25", "true", wanted).await;
    let expected = Counts {
        failed: 1,
        ..Counts::default()
    };
    assert_eq!(summary.total, expected, "{:?}", summary.complaints);
    assert_eq!(summary.scenarios.len(), 1);
}
