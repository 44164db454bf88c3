//! Runs the driver with the baseline proxy in place of the gateway. Nothing here depends on the speed of the machine:
//! the tests check that everything ran and that every response was correct.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_floor_is_measured_against_itself_in_every_case() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--smoke", "--product", "floor", "--json"])
        .arg(&file)
        .output()
        .expect("bench is started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    // Exit code 1 only means that a bound was exceeded, as a debug build may do.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{stderr}");
    let figures: Value = serde_json::from_slice(&std::fs::read(&file).expect("the figures"))
        .expect("the figures are JSON");
    let rows = figures["rows"].as_array().expect("rows");
    for case in [
        "stdio-legacy-legacy",
        "http-legacy-legacy",
        "stdio-modern-legacy",
        "http-legacy-modern",
        "http-modern-modern",
        "stdio-default-legacy",
        "stdio-default-modern",
        "list",
        "audit-sqlite",
        "projects",
        "idle-servers",
        "idle-streams",
        "start",
        "hosted-bridge",
        "hosted-mcp",
        "hosted-recovery",
        "hosted-neighbours",
        "hosted-many",
    ] {
        assert!(
            rows.iter().any(|row| row["case"] == case),
            "{case}: {figures:#}"
        );
    }
    for row in rows {
        assert!(
            row["product"].as_f64().is_some_and(|figure| figure >= 0.0),
            "{row}"
        );
    }
    // Seven cases, two sides: a warm-up of half a round and a round, with 32 clients and with one.
    assert!(
        figures["answersChecked"].as_u64() >= Some(7 * 2 * 500),
        "{figures:#}"
    );
}

/// Compares three replicas with one gateway, in alternating rounds. A debug build slows both, so the ratio is about that of
/// a release build.
#[test]
fn d10_a_call_costs_no_more_with_three_replicas() {
    assert!(
        std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_some(),
        "there is no Postgres; `cargo xtask postgres -- cargo nextest run` has one"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--quick", "--only", "in-turn"])
        .output()
        .expect("bench is started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    println!("{stdout}");
    // One row for each combination: with and without sessions, with and without records.
    assert_eq!(stdout.matches("≤ ×1.10  ok").count(), 4, "{stdout}{stderr}");
    assert!(output.status.success(), "{stdout}{stderr}");
}

/// The scripts of the worked tasks reach their results, through the gateway, and the document has a place for each table.
#[test]
fn the_tables_of_discovery_are_written_into_a_document() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let document = dir.path().join("context.md");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(folder.join("../../docs/context.md"), &document).expect("a copy");
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("context")
        .arg(folder.join("../discovery/data"))
        .args(["--quick", "--only", "recall", "--only", "tasks", "--into"])
        .arg(&document)
        .output()
        .expect("bench is started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(!stderr.contains("has no place"), "{stderr}");
    let document = std::fs::read_to_string(&document).expect("the document");
    for line in stdout.lines().filter(|line| line.starts_with('|')) {
        assert!(document.contains(line), "{line}: {stdout}");
    }
    for name in ["BM25 alone", "three servers", "read for all"] {
        assert!(stdout.contains(name), "{name}: {stdout}");
    }
}

#[test]
fn an_unknown_case_and_a_missing_product_are_errors() {
    for (arguments, says) in [
        (
            ["--only", "nothing", "--product", "floor"],
            "no case is named nothing",
        ),
        (
            ["--only", "start", "--toolwharf", "/nowhere"],
            "/nowhere is missing",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_bench"))
            .arg("run")
            .args(arguments)
            .output()
            .expect("bench is started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}
