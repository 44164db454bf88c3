//! The checks, tests, soak tests and benchmarks, and their order.
//!
//! The fastest checks come first. The test runner comes last, so that its summary is the last output on the terminal
//! and its exit code is that of the command.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Result, ensure};

use crate::{
    before, daemon, dist, docker, graph, kubernetes, lengths, modules, postgres, setup,
    shell::{Cmd, heading},
    swarm, undeclared, web,
    workspace::{FEATURES, Workspace, files},
};

/// Excludes tests that need a Kubernetes node: see [`soak_kubernetes`].
const WITHOUT_NODES: &str = "not (binary(/^scenarios_(hosting|replicas)$/) & test(/kubernetes/)) \
                             & not (package(containers) & binary(kubernetes)) & not test(/::d07_kubernetes/)";

/// Runs everything: set-up, checks, one build with lints, all tests.
pub(crate) fn test(workspace: &Workspace, nextest: &[String]) -> Result<ExitCode> {
    heading("set-up");
    setup::run(workspace)?;
    fmt(workspace)?;
    structure(workspace)?;
    deny(workspace)?;
    api_document(workspace)?;
    web::check(workspace)?;
    let workspace = &workspace.linting();
    lint_without_features(workspace)?;
    build(workspace)?;
    heading("examples in documentation");
    with_test_env(
        workspace,
        workspace.cargo(&["test", "--workspace", FEATURES, "--doc", "--quiet"]),
    )
    .run()?;
    heading("tests");
    with_services(workspace, run_nextest(workspace, &[], nextest))
}

/// Runs the same tests with full-length loops. Tests with long loops choose their count by `TOOLWHARF_SOAK`.
pub(crate) fn soak(workspace: &Workspace, nextest: &[String]) -> Result<ExitCode> {
    heading("set-up");
    setup::run(workspace)?;
    build(workspace)?;
    heading("soak");
    let run = run_nextest(workspace, &["--profile", "soak"], nextest);
    with_services(workspace, run.env("TOOLWHARF_SOAK", "1"))
}

/// Builds the programs that the hosting tests on a cluster start: the gateway and the test servers.
fn set_up_and_build(workspace: &Workspace) -> Result<()> {
    heading("set-up");
    setup::run(workspace)?;
    heading("build");
    let bins = [
        "build",
        "--package=toolwharf",
        "--package=testkit",
        "--bins",
    ];
    workspace.cargo(&bins).arg(FEATURES).run()
}

/// Runs the hosting scenarios on a private cluster, the scenarios with replicas, and the measurements.
pub(crate) fn soak_kubernetes(workspace: &Workspace) -> Result<ExitCode> {
    set_up_and_build(workspace)?;
    // Measurements use the release build.
    let release = [
        "build",
        "--release",
        "--package=toolwharf",
        "--bin=toolwharf",
    ];
    workspace.cargo(&release).arg(FEATURES).run()?;
    let interrupted = daemon::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let cluster = kubernetes::Cluster::start(workspace, kubernetes::Parts::All, &interrupted)?;
    heading("hosting on Kubernetes");
    let run = ["nextest", "run", "--profile=soak"];
    let tests = workspace
        .cargo(&run)
        .args(["--package=toolwharf", "--package=containers"])
        .arg("--features=toolwharf/kubernetes,containers/kubernetes")
        .args(["--filterset", "test(/kubernetes/)"])
        .env("TOOLWHARF_SOAK", "1")
        .env(
            "TOOLWHARF_TEST_PRODUCT",
            workspace.target()?.join("release/toolwharf"),
        )
        .env(postgres::VARIABLE, &postgres.url);
    let tests = with_test_env(workspace, cluster.tell(tests));
    daemon::supervise(tests, &interrupted)
}

/// Runs the hosting scenarios and the swarm tests on a private swarm.
pub(crate) fn soak_swarm(workspace: &Workspace) -> Result<ExitCode> {
    set_up_and_build(workspace)?;
    let interrupted = daemon::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let swarm = swarm::Swarm::start(workspace, &interrupted)?;
    heading("hosting on Docker Swarm");
    let run = ["nextest", "run", "--profile=soak", FEATURES];
    let tests = workspace
        .cargo(&run)
        .args(["--package=toolwharf", "--package=containers"])
        .args(["--filterset", "test(/swarm/) | binary(swarm)"])
        .env("TOOLWHARF_SOAK", "1")
        .env(postgres::VARIABLE, &postgres.url)
        .env(swarm::VARIABLE, &swarm.dir.path);
    daemon::supervise(with_test_env(workspace, tests), &interrupted)
}

/// Runs the checks that need no tests. Requires the Rust toolchain, cargo-deny, and the npm packages that `cargo xtask
/// setup` installs.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    fmt(workspace)?;
    structure(workspace)?;
    deny(workspace)?;
    api_document(workspace)?;
    web::check(workspace)?;
    clippy(workspace)
}

/// Runs the benchmarks. The figures are meaningful only for a release build.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    release(workspace)?;
    heading("benchmarks");
    let bench = workspace.target()?.join("release/bench");
    Cmd::new(bench).args(args).dir(workspace.root()).become_it()
}

/// Runs the chaos test: failures under load, and the check of all accounts.
pub(crate) fn chaos(workspace: &Workspace, args: &[String]) -> Result<()> {
    release(workspace)?;
    heading("chaos");
    let bench = workspace.target()?.join("release/bench");
    let chaos = Cmd::new(bench).args(["chaos"]).args(args);
    chaos.dir(workspace.root()).become_it()
}

/// Builds the gateway, the load generator and the server that both benchmarks and chaos tests host.
///
/// # Errors
///
/// If the build fails.
pub(crate) fn release(workspace: &Workspace) -> Result<()> {
    heading("release build");
    let packages = [
        "--package=toolwharf",
        "--package=bench",
        "--package=testkit",
    ];
    let binaries = ["--bin=toolwharf", "--bin=bench", "--bin=testkit-scripted"];
    let build = workspace.cargo(&["build", "--release"]);
    build.args(packages).args(binaries).run()
}

fn fmt(workspace: &Workspace) -> Result<()> {
    heading("formatting");
    workspace.cargo(&["fmt", "--all", "--check"]).run()
}

/// Runs Clippy with and without the features that are off by default.
fn clippy(workspace: &Workspace) -> Result<()> {
    heading("lints");
    for features in [&[][..], &[FEATURES]] {
        workspace
            .cargo(&["clippy", "--workspace", "--all-targets"])
            .args(features)
            .args(["--", "--deny=warnings"])
            .run()?;
    }
    Ok(())
}

/// Lints the code that differs without the optional features: all crates, and the tests that mention a feature.
/// [`build`] lints everything else.
fn lint_without_features(workspace: &Workspace) -> Result<()> {
    heading("lints of code without optional features");
    let mut tests = Vec::new();
    for package in fs::read_dir(workspace.root().join("crates"))? {
        let folder = package?.path().join("tests");
        for file in files(&folder).unwrap_or_default() {
            let test = file.strip_prefix(&folder)?.iter().next();
            let test = test.map(|test| Path::new(test).with_extension(""));
            if String::from_utf8_lossy(&fs::read(&file)?).contains("feature = ") {
                tests.extend(test.map(|test| format!("--test={}", test.display())));
            }
        }
    }
    tests.dedup();
    ensure!(!tests.is_empty(), "no test asks for a feature");
    let lints = workspace.cargo(&["test", "--no-run", "--workspace"]);
    lints.args(["--lib", "--bins"]).args(tests).run()
}

/// Checks the dependencies between crates and modules, and the lengths of files.
pub(crate) fn structure(workspace: &Workspace) -> Result<()> {
    heading("dependency graph");
    graph::run(workspace)?;
    heading("lengths of files");
    lengths::run(workspace)?;
    heading("modules");
    modules::run(workspace)?;
    undeclared::run(workspace)
}

fn deny(workspace: &Workspace) -> Result<()> {
    heading("licences, banned crates and sources");
    ensure!(
        setup::has_subcommand("cargo-deny"),
        "cargo-deny is not installed, so this check cannot run: run `cargo xtask setup`"
    );
    // Advisories are not checked, since they need a database from the network: use `cargo deny check`.
    workspace
        .cargo(&[
            "deny",
            "--workspace",
            "check",
            "licenses",
            "bans",
            "sources",
        ])
        .run()
}

/// Runs Redocly's lint on the REST API document. A test compares the document with the routes.
fn api_document(workspace: &Workspace) -> Result<()> {
    heading("lint of docs/openapi.json");
    let modules = workspace.node_modules();
    let redocly = modules.join("@redocly/cli/bin/cli.js");
    ensure!(
        redocly.exists(),
        "@redocly/cli is not installed, so docs/openapi.json cannot be checked: run `cargo xtask setup`"
    );
    Cmd::new(modules.join("node/bin/node"))
        .arg(redocly)
        .args([
            "lint",
            "--config=xtask/deps/redocly.yaml",
            "docs/openapi.json",
        ])
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .dir(workspace.root())
        .run()
}

/// Builds all targets, including every binary, since tests of one crate start the binaries of another.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    heading("build");
    workspace
        .cargo(&["build", "--workspace", FEATURES, "--all-targets"])
        .run()
}

/// Runs nextest. If `theirs`, the arguments that may contain a filter, are empty, tests that need a Kubernetes node are
/// left out.
pub(crate) fn run_nextest(workspace: &Workspace, ours: &[&str], theirs: &[String]) -> Cmd {
    // Tests mostly wait for processes, containers and timeouts of up to half a minute. With more tests in parallel,
    // some would exceed deadlines of five seconds.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let usual = ["--filterset", WITHOUT_NODES];
    let run = workspace
        .cargo(&["nextest", "run", "--workspace", FEATURES])
        .env(
            "NEXTEST_TEST_THREADS",
            (cores + cores.div_ceil(2)).to_string(),
        )
        .args(ours)
        .args(usual.iter().filter(|_| theirs.is_empty()))
        .args(theirs);
    with_test_env(workspace, run)
}

/// Runs tests with a Postgres, a Docker daemon, a swarm and a Kubernetes API server.
fn with_services(workspace: &Workspace, tests: Cmd) -> Result<ExitCode> {
    let before = before::build(workspace)?;
    let interrupted = daemon::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let docker = docker::Daemon::start(workspace, &interrupted)?;
    let packages = dist::for_tests(workspace, &docker)?;
    let swarm = swarm::Swarm::start(workspace, &interrupted)?;
    let kubernetes =
        kubernetes::Cluster::start(workspace, kubernetes::Parts::ControlPlane, &interrupted)?;
    let tests = tests
        .env(before::VARIABLE, before)
        .env(postgres::VARIABLE, &postgres.url)
        .env(postgres::PROGRAMS, &postgres.programs)
        .env(docker::VARIABLE, &docker.host)
        .env(dist::VARIABLE, &packages.packages)
        .env(dist::root::VARIABLE, &packages.root)
        .env(swarm::VARIABLE, &swarm.dir.path);
    daemon::supervise(kubernetes.tell(tests), &interrupted)
}

/// Sets the environment variables with the locations of the installed packages, for tests.
fn with_test_env(workspace: &Workspace, cmd: Cmd) -> Cmd {
    cmd.env("TOOLWHARF_NODE_MODULES", workspace.node_modules())
        .env("TOOLWHARF_VENV", workspace.venv())
        .env("UV_PYTHON_DOWNLOADS", "never")
}
