//! The checks, the tests, the soak and the benchmarks: what runs, and in which order.
//!
//! The cheapest comes first. The test runner comes last, so that its summary is the last thing on
//! the terminal, and its exit code is the command's.

use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::{
    before, docker, graph, kubernetes, lengths, modules, postgres, setup,
    shell::{Cmd, heading},
    swarm, web,
    workspace::Workspace,
};

/// Everything is built with it, so that nothing is built twice; lints are made without it as well.
pub(crate) const FEATURES: &str = "--features=toolwharf/kubernetes";
/// What needs a node of Kubernetes: [`soak_kubernetes`].
const WITHOUT_NODES: &str = "not (binary(/^scenarios_(hosting|replicas)$/) & test(/kubernetes/)) \
                             & not (package(runtime) & binary(kubernetes)) & not test(/::d07_kubernetes/)";

/// Everything: set-up, checks, one build, all tests.
pub(crate) fn test(workspace: &Workspace, nextest: &[String]) -> Result<ExitCode> {
    heading("set-up");
    setup::run(workspace)?;
    fmt(workspace)?;
    structure(workspace)?;
    deny(workspace)?;
    api_document(workspace)?;
    web::check(workspace)?;
    clippy(workspace)?;
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

/// The same tests with their loops at full length: those that have a heavy loop read
/// `TOOLWHARF_SOAK` and choose its count by it.
pub(crate) fn soak(workspace: &Workspace, nextest: &[String]) -> Result<ExitCode> {
    heading("set-up");
    setup::run(workspace)?;
    build(workspace)?;
    heading("soak");
    let run = run_nextest(workspace, &["--profile", "soak"], nextest);
    with_services(workspace, run.env("TOOLWHARF_SOAK", "1"))
}

/// What tests of hosting on a cluster start: the product, and servers of ours and of others.
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

/// The scenarios of hosting on a cluster of their own, what replicas do with it, and what it costs.
pub(crate) fn soak_kubernetes(workspace: &Workspace) -> Result<ExitCode> {
    set_up_and_build(workspace)?;
    // What is measured is what is released.
    let release = [
        "build",
        "--release",
        "--package=toolwharf",
        "--bin=toolwharf",
    ];
    workspace.cargo(&release).arg(FEATURES).run()?;
    let interrupted = postgres::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let cluster = kubernetes::Cluster::start(workspace, kubernetes::Parts::All, &interrupted)?;
    heading("hosting on Kubernetes");
    let run = ["nextest", "run", "--profile=soak"];
    let tests = workspace
        .cargo(&run)
        .args(["--package=toolwharf", "--package=runtime"])
        .arg("--features=toolwharf/kubernetes,runtime/kubernetes")
        .args(["--filterset", "test(/kubernetes/)"])
        .env("TOOLWHARF_SOAK", "1")
        .env(
            "TOOLWHARF_TEST_PRODUCT",
            workspace.target()?.join("release/toolwharf"),
        )
        .env(postgres::VARIABLE, &postgres.url);
    let tests = with_test_env(workspace, cluster.tell(tests));
    postgres::supervise(tests, &interrupted)
}

/// The same on a swarm of their own.
pub(crate) fn soak_swarm(workspace: &Workspace) -> Result<ExitCode> {
    set_up_and_build(workspace)?;
    let interrupted = postgres::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let swarm = swarm::Swarm::start(workspace, &interrupted)?;
    heading("hosting on Docker Swarm");
    let run = ["nextest", "run", "--profile=soak", FEATURES];
    let tests = workspace
        .cargo(&run)
        .args(["--package=toolwharf", "--package=runtime"])
        .args(["--filterset", "test(/swarm/) | binary(swarm)"])
        .env("TOOLWHARF_SOAK", "1")
        .env(postgres::VARIABLE, &postgres.url)
        .env(swarm::VARIABLE, &swarm.dir.path);
    postgres::supervise(with_test_env(workspace, tests), &interrupted)
}

/// What needs no test to run. Wants the Rust toolchain, cargo-deny, and the packages of npm that `cargo xtask setup` installs.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    fmt(workspace)?;
    structure(workspace)?;
    deny(workspace)?;
    api_document(workspace)?;
    web::check(workspace)?;
    clippy(workspace)
}

/// The benchmarks; their numbers mean something only in a release build.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    release(workspace, &["--bin=toolwharf", "--bin=bench"])?;
    heading("benchmarks");
    let bench = workspace.target()?.join("release/bench");
    Cmd::new(bench).args(args).dir(workspace.root()).become_it()
}

/// Misfortune under load, and whether the books balance.
pub(crate) fn chaos(workspace: &Workspace, args: &[String]) -> Result<()> {
    let binaries = ["--bin=toolwharf", "--bin=bench", "--bin=testkit-scripted"];
    release(workspace, &binaries)?;
    heading("chaos");
    let bench = workspace.target()?.join("release/bench");
    let chaos = Cmd::new(bench).args(["chaos"]).args(args);
    chaos.dir(workspace.root()).become_it()
}

fn release(workspace: &Workspace, binaries: &[&str]) -> Result<()> {
    heading("release build");
    let packages = [
        "--package=toolwharf",
        "--package=bench",
        "--package=testkit",
    ];
    let build = workspace.cargo(&["build", "--release"]);
    build.args(packages).args(binaries).run()
}

fn fmt(workspace: &Workspace) -> Result<()> {
    heading("formatting");
    workspace.cargo(&["fmt", "--all", "--check"]).run()
}

fn clippy(workspace: &Workspace) -> Result<()> {
    heading("lints");
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny=warnings",
    ];
    workspace.cargo(&lints).run()?;
    // What the default build leaves out.
    let optional = workspace.cargo(&["clippy", "--package=toolwharf", "--package=runtime"]);
    optional
        .arg("--features=toolwharf/kubernetes,runtime/kubernetes")
        .args(["--all-targets", "--", "--deny=warnings"])
        .run()
}

/// What depends on what, crates and modules, and how long files are.
pub(crate) fn structure(workspace: &Workspace) -> Result<()> {
    heading("dependency graph");
    graph::run(workspace)?;
    heading("lengths of files");
    lengths::run(workspace)?;
    heading("modules");
    modules::run(workspace)
}

fn deny(workspace: &Workspace) -> Result<()> {
    heading("licences, banned crates and sources");
    ensure!(
        setup::has_subcommand("cargo-deny"),
        "cargo-deny is not installed, so nothing of this was checked; `cargo xtask setup` installs it"
    );
    // Advisories are left out: they need a database from the network. `cargo deny check` has them.
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

/// Redocly's lint over the document of the REST API; a test holds that document against the routes.
fn api_document(workspace: &Workspace) -> Result<()> {
    heading("lint of docs/openapi.json");
    let modules = workspace.node_modules();
    let redocly = modules.join("@redocly/cli/bin/cli.js");
    ensure!(
        redocly.exists(),
        "@redocly/cli is not installed, so docs/openapi.json was not checked; `cargo xtask setup` installs it"
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

/// Builds every binary too: tests of one crate start the binaries of another.
fn build(workspace: &Workspace) -> Result<()> {
    heading("build");
    workspace
        .cargo(&["build", "--workspace", FEATURES, "--all-targets"])
        .run()
}

fn run_nextest(workspace: &Workspace, ours: &[&str], theirs: &[String]) -> Cmd {
    // Most of their time tests wait: for processes, for containers, for what has to happen in half a minute. With more of
    // them at a time, what has to happen in five seconds takes longer.
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

/// With a Postgres, a Docker daemon and a Kubernetes API server for the time that it takes.
fn with_services(workspace: &Workspace, tests: Cmd) -> Result<ExitCode> {
    let before = before::build(workspace)?;
    let interrupted = postgres::interruption()?;
    let postgres = postgres::Server::start(&interrupted)?;
    let docker = docker::Daemon::start(workspace, &interrupted)?;
    let swarm = swarm::Swarm::start(workspace, &interrupted)?;
    let kubernetes =
        kubernetes::Cluster::start(workspace, kubernetes::Parts::ControlPlane, &interrupted)?;
    let tests = tests
        .env(before::VARIABLE, before)
        .env(postgres::VARIABLE, &postgres.url)
        .env(postgres::PROGRAMS, &postgres.programs)
        .env(docker::VARIABLE, &docker.host)
        .env(swarm::VARIABLE, &swarm.dir.path);
    postgres::supervise(kubernetes.tell(tests), &interrupted)
}

/// Where tests find what set-up installed.
fn with_test_env(workspace: &Workspace, cmd: Cmd) -> Cmd {
    cmd.env("TOOLWHARF_NODE_MODULES", workspace.node_modules())
        .env("TOOLWHARF_VENV", workspace.venv())
        .env("UV_PYTHON_DOWNLOADS", "never")
}
