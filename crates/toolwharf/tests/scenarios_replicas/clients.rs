//! Official SDK clients, while replicas die.

use std::process::Command;

use rustix::process::Signal;
use testkit::{DEADLINE, Process, conformance::node_modules, wait_for};

use crate::{
    common::{real::venv, replicas::Balancer},
    sessions::three,
    support::end,
};

/// Calls to wait for before a replica dies, and after it.
const CALLS_PER_PHASE: usize = 30;

fn count(client: &Process, what: &str) -> usize {
    let lines = client.stdout_lines();
    lines.iter().filter(|line| line.starts_with(what)).count()
}

async fn answered(client: &Process, calls: usize) {
    wait_for("calls of the client", DEADLINE, async || {
        count(client, "ok") >= calls
    })
    .await;
}

/// Kills the replica that has the client's session, then another one. The client must continue. Two calls may fail per
/// killed replica: the one in progress, and one sent before the closed connection is noticed.
async fn goes_on(mut command: Command) {
    let (_database, replicas) = three().await;
    let mut replicas = Vec::from(replicas);
    let balancer = Balancer::before(&replicas).await;

    command.arg(format!("{}/mcp", balancer.url));
    let client = Process::spawn(command.into());
    for deaths in 1..=2 {
        answered(&client, CALLS_PER_PHASE + count(&client, "ok")).await;
        let mut at = 0;
        for (index, replica) in replicas.iter().enumerate() {
            if replica.metric("sessions", None).await.unwrap_or(0) > 0 {
                at = index;
            }
        }
        let mut lost = replicas.remove(at);
        end(&mut lost, Signal::KILL).await;
        answered(&client, CALLS_PER_PHASE + count(&client, "ok")).await;
        let failed = count(&client, "failed");
        assert!(failed <= 2 * deaths, "{:#?}", client.stdout_lines());
    }
    assert_eq!(count(&client, "wrong"), 0, "{:#?}", client.stdout_lines());
}

fn script(name: &str) -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    format!("{folder}/tests/scenarios_replicas/{name}")
}

fn typescript(sdk: &str) -> Command {
    let modules = node_modules();
    let mut command = Command::new(modules.join("node/bin/node"));
    command.arg(script("client.mjs")).arg(modules).arg(sdk);
    command
}

fn python(mode: &str) -> Command {
    let mut command = Command::new(venv().join("bin/python"));
    command.arg(script("client.py")).arg(mode);
    command
}

#[tokio::test]
async fn d02_the_typescript_sdk_goes_on() {
    goes_on(typescript("sdk")).await;
}

#[tokio::test]
async fn d02_the_typescript_client_goes_on() {
    goes_on(typescript("client")).await;
}

#[tokio::test]
async fn d02_the_python_client_goes_on() {
    goes_on(python("auto")).await;
}

#[tokio::test]
async fn d02_the_python_client_with_sessions_goes_on() {
    goes_on(python("legacy")).await;
}
