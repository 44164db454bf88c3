//! Runs the official conformance suite and counts the results. Also starts the server that is built on the TypeScript
//! SDK; the one that is built on the Rust SDK is the binary `testkit-conformance`.
//!
//! The suite is an npm package. `cargo xtask setup` installs it under `.work/node_modules` of the workspace, with a
//! matching Node.js; `TOOLWHARF_NODE_MODULES` names another directory. Scenarios run one after the other. Counts come
//! from the suite's result files, not from its console output.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;
use tokio::{io::AsyncReadExt, process::Command};

use crate::{process::Process, wait::within};

/// The timeout of one run of the suite. A run takes seconds; the rest is for a machine that stalls.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// The suite's own timeout for one scenario, in milliseconds.
const SCENARIO_TIMEOUT_MS: &str = "30000";

/// The number of checks of one scenario, or of a whole run, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Recommendations that were not met.
    pub warnings: usize,
    /// Checks that did not apply.
    pub skipped: usize,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The sum over all scenarios, including those that are not scored.
    pub total: Counts,
    /// Counts for each scenario.
    pub scenarios: BTreeMap<String, Counts>,
    /// The outcomes of each check, by scenario and check id. A check that ran several times has several outcomes,
    /// sorted alphabetically.
    pub checks: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// Scenarios that the requirement set runs without scoring them.
    pub not_scored: Vec<String>,
    /// Each failed check or warning, as `scenario: check: message`.
    pub complaints: Vec<String>,
}

impl Summary {
    /// Sums the counts of the scored scenarios.
    pub fn scored(&self) -> Counts {
        let mut sum = Counts::default();
        for (name, counts) in &self.scenarios {
            if !self.not_scored.contains(name) {
                sum.add(*counts);
            }
        }
        sum
    }

    fn read(&mut self, scenario: &str, checks: &Path) {
        let text = fs::read_to_string(checks)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", checks.display()));
        let checks: Vec<Value> = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("cannot parse the results of {scenario}: {error}"));
        let mut counts = Counts::default();
        let by_id = self.checks.entry(scenario.to_owned()).or_default();
        for check in checks {
            let status = check["status"].as_str().unwrap_or_default();
            let id = check["id"].as_str().unwrap_or_default();
            match status {
                "SUCCESS" => counts.passed += 1,
                "FAILURE" => counts.failed += 1,
                "WARNING" => counts.warnings += 1,
                "SKIPPED" => counts.skipped += 1,
                _ => continue,
            }
            let outcomes = by_id.entry(id.to_owned()).or_default();
            outcomes.push(status.to_owned());
            outcomes.sort();
            if matches!(status, "FAILURE" | "WARNING") {
                let message = check["errorMessage"].as_str().unwrap_or_default();
                let complaint: String = format!("{scenario}: {id}: {message}")
                    .chars()
                    .take(500)
                    .collect();
                self.complaints.push(complaint);
            }
        }
        self.total.add(counts);
        self.scenarios
            .entry(scenario.to_owned())
            .or_default()
            .add(counts);
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.warnings += other.warnings;
        self.skipped += other.skipped;
    }
}

/// Returns the directory of the npm packages that tests use.
///
/// # Panics
/// If it does not exist. The message gives the command that creates it.
pub fn node_modules() -> PathBuf {
    let modules = std::env::var_os("TOOLWHARF_NODE_MODULES").map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../..")
                .join(".work/node_modules")
        },
        PathBuf::from,
    );
    for needed in [NODE, SUITE] {
        assert!(
            modules.join(needed).is_file(),
            "{} is missing; run: cargo xtask setup",
            modules.join(needed).display()
        );
    }
    modules
}

const NODE: &str = "node/bin/node";
const SUITE: &str = "@modelcontextprotocol/conformance/dist/index.js";
const TYPESCRIPT_SDK: &str = "@modelcontextprotocol/server";
const REQUIREMENTS: &str = "@modelcontextprotocol/conformance/requirements";

/// Starts the conformance server of both eras that is built on the TypeScript SDK (`typescript/server.mjs`), and returns
/// its URL.
///
/// # Panics
/// If the SDK is not installed (`cargo xtask setup`) or the server does not start.
pub async fn typescript_server() -> (Process, String) {
    let modules = node_modules();
    assert!(
        modules.join(TYPESCRIPT_SDK).is_dir(),
        "{} is missing; run: cargo xtask setup",
        modules.join(TYPESCRIPT_SDK).display()
    );
    let mut command = Command::new(modules.join(NODE));
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("typescript/server.mjs"))
        .arg(modules);
    let mut process = Process::spawn(command);
    let url = process.url().await;
    (process, url)
}

/// Runs the server scenarios of `requirements` (a revision such as `2026-07-28`) against `url`.
///
/// # Panics
/// If the suite is missing, cannot run, or takes longer than five minutes.
pub async fn run(requirements: &str, url: &str, extra: &[&str]) -> Summary {
    let mut arguments = vec!["server", "--url", url, "--requirements", requirements];
    arguments.extend(extra);
    let set = Requirements::read(requirements);
    let mut summary = set.summary("server");
    let scenarios = [set.server, summary.not_scored.clone()].concat();
    suite(&arguments, "server-", &scenarios, &mut summary).await;
    summary
}

/// Runs one server scenario against `url`, in the version of a revision such as `2026-07-28`.
///
/// # Panics
/// If the suite is missing, cannot run, or takes longer than five minutes.
pub async fn run_scenario(scenario: &str, version: &str, url: &str) -> Summary {
    let arguments = ["server", "--url", url, "--scenario", scenario];
    let version = ["--spec-version", version, "--force"];
    let arguments = [&arguments[..], &version].concat();
    let mut summary = Summary::default();
    suite(&arguments, "server-", &[scenario.to_owned()], &mut summary).await;
    summary
}

/// Runs the client scenarios of `requirements` one after the other. `command` is the client: a shell command line to
/// which the suite appends the server's URL. `wanted` selects scenarios.
///
/// # Panics
/// If the suite is missing, cannot run, or takes longer than five minutes for one scenario.
pub async fn run_client(
    requirements: &str,
    command: &str,
    wanted: impl Fn(&str) -> bool,
) -> Summary {
    let set = Requirements::read(requirements);
    let mut summary = set.summary("client");
    let scenarios = set.client.iter().chain(&summary.not_scored);
    let scenarios: Vec<_> = scenarios.filter(|name| wanted(name)).cloned().collect();
    for scenario in scenarios {
        let arguments = ["client", "--command", command, "--scenario", &scenario];
        // Extension scenarios belong to no version and would be skipped without `--force`.
        let version = ["--spec-version", requirements, "--force"];
        let arguments = [&arguments[..], &version].concat();
        suite(
            &arguments,
            "",
            std::slice::from_ref(&scenario),
            &mut summary,
        )
        .await;
    }
    summary
}

/// Runs the suite to its end, whatever the results, and reads the results of `scenarios`. The names of their result
/// folders begin with `prefix`.
async fn suite(arguments: &[&str], prefix: &str, scenarios: &[String], summary: &mut Summary) {
    let results = tempfile::tempdir().expect("a test can make a directory");
    let modules = node_modules();
    let mut command = Command::new(modules.join(NODE));
    command
        .arg(modules.join(SUITE))
        .args(arguments)
        .args(["--timeout", SCENARIO_TIMEOUT_MS, "--output-dir"])
        .arg(results.path())
        // Node.js compiles the suite's megabyte of source once, not at each of a hundred starts.
        .env("NODE_COMPILE_CACHE", modules.join(".cache/compiled"))
        .env("NO_COLOR", "1");
    let (mut process, stdin, mut stdout) = Process::spawn_piped(command);
    drop(stdin);
    let what = format!("conformance {}", arguments.join(" "));
    within(&what, RUN_LIMIT, async {
        let mut discarded = vec![0; 64 * 1024];
        while let Ok(1..) = stdout.read(&mut discarded).await {}
    })
    .await;
    let status = process.wait(Duration::from_secs(10)).await;
    // Exit code 1 means that checks failed; the caller judges that.
    assert!(
        matches!(status.code(), Some(0 | 1)),
        "{what} ended with {status}: {}",
        process.stderr()
    );
    for scenario in scenarios {
        let checks = results_of(results.path(), &format!("{prefix}{scenario}"));
        let checks = checks.unwrap_or_else(|| panic!("the suite did not run {scenario}"));
        summary.read(scenario, &checks);
    }
}

/// Finds the result file of scenario `name` in `directory`: `name-<time>/checks.json`.
fn results_of(directory: &Path, name: &str) -> Option<PathBuf> {
    let (parent, name) = match name.rsplit_once('/') {
        Some((parent, name)) => (directory.join(parent), name),
        None => (directory.to_owned(), name),
    };
    let is_time = |rest: &str| rest.starts_with("-2") && rest.ends_with('Z') && rest.contains('T');
    fs::read_dir(parent)
        .ok()?
        .flatten()
        .find(|entry| {
            let file = entry.file_name();
            let file = file.to_string_lossy();
            file.strip_prefix(name).is_some_and(is_time)
        })
        .map(|entry| entry.path().join("checks.json"))
}

/// A requirement set of the suite.
#[derive(Deserialize)]
struct Requirements {
    server: Vec<String>,
    client: Vec<String>,
    not_scored: Vec<NotScored>,
}

#[derive(Deserialize)]
struct NotScored {
    scenario: String,
    /// `server` or `client`.
    leg: String,
}

impl Requirements {
    fn read(revision: &str) -> Self {
        let file = node_modules().join(format!("{REQUIREMENTS}/{revision}.yaml"));
        let text = fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        let this: Self = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("cannot parse {}: {error}", file.display()));
        assert!(!this.server.is_empty() && !this.client.is_empty());
        this
    }

    /// An empty summary that lists the scenarios that are not scored.
    fn summary(&self, leg: &str) -> Summary {
        let not_scored = self.not_scored.iter().filter(|one| one.leg == leg);
        Summary {
            not_scored: not_scored.map(|one| one.scenario.clone()).collect(),
            ..Summary::default()
        }
    }
}
