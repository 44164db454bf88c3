//! The units for packages (`deploy/systemd`): checked by systemd's tools, and run by a real systemd in its own namespaces.

#[path = "../common/mod.rs"]
mod common;
mod machine;

use std::{fs, path::Path, process::Command};

use common::{body, holds, scripted, with};
use machine::{Machine, units};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, wait_for, wait_for_some};

/// The highest exposure that `systemd-analyze security` may find, in tenths.
const MAX_EXPOSURE: u32 = 30;

/// Runs systemd-analyze, and returns what it prints.
fn analyzed(args: &[&str], files: &[&Path]) -> String {
    let output = Command::new("systemd-analyze")
        .args(args)
        .args(files)
        .output()
        .expect("systemd-analyze is missing; run: cargo xtask setup");
    let [out, err] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out + &err
}

/// Copies of the units that run the tested binary.
fn copies() -> TempDir {
    let folder = common::folder();
    let program = Bin::path("toolwharf").display().to_string();
    for (name, text) in units() {
        let text = text.replace("/usr/bin/toolwharf", &program);
        fs::write(folder.path().join(name), text).expect("a unit");
    }
    folder
}

#[test]
fn o02_the_units_are_valid() {
    let folder = copies();
    let files = units().map(|(name, _)| folder.path().join(name));
    let files: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
    let said = analyzed(&["verify", "--man=no"], &files);
    assert_eq!(said, "");
}

#[test]
fn the_service_is_hardened() {
    let folder = copies();
    let file = folder.path().join("toolwharf.service");
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let args = ["security", "--offline=true", "--no-pager", &threshold];
    let said = analyzed(&args, &[&file]);
    assert!(!said.contains("ignoring"), "{said}");
}

#[test]
fn the_units_fit_the_defaults() {
    let [(_, service), (_, socket)] = units();
    let sample = include_str!("../../../../docs/configuration.md");
    let listen = sample
        .lines()
        .find_map(|line| line.strip_prefix("listen = "));
    let listen = listen.expect("the default address").trim_matches('"');
    holds(&socket, &[&format!("ListenStream={listen}\n")]);
    holds(
        &service,
        &[
            "Type=notify\n",
            "WatchdogSec=",
            "User=toolwharf\n",
            "StateDirectory=toolwharf\n",
        ],
    );
}

/// The state of the server `one`.
async fn running(machine: &Machine) -> Value {
    let what = "the server to run under the unit";
    wait_for_some(what, DEADLINE * 2, async || {
        let state = machine.server("one").await?;
        (state["status"] == "running").then_some(state)
    })
    .await
}

#[tokio::test]
async fn o02_the_unit_is_back_after_a_restart_with_a_server_in_a_sandbox() {
    let entry = with(scripted("one", &[]), json!({"sandbox": true}));
    let mut machine = Machine::new(&json!({"one": entry})).await;
    machine.boot().await;
    assert_eq!(machine.state().await, "inactive");
    machine
        .systemctl(&["enable", "--now", "toolwharf.service"])
        .await;
    assert_eq!(machine.state().await, "active");
    let state = running(&machine).await;
    assert_eq!(state["sandbox"], "process", "{state}");
    // The restrictions of the unit are in force, for the gateway and for its server.
    for pid in [machine.pid().await, server_pid(&state)] {
        let status = machine.status_of(pid);
        holds(&status, &["NoNewPrivs:\t1\n", "Seccomp:\t2\n"]);
    }
    holds(
        &machine.status_of(machine.pid().await),
        &["CapBnd:\t0000000000000000\n", "Uid:\t64123\t"],
    );
    let reply = machine.call("one", "echo", json!({"n": 1})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        body(&reply)["result"]["structuredContent"]["n"],
        1,
        "{}",
        reply.text()
    );

    // A restart refuses no connection.
    tokio::select! {
        _ = machine.systemctl(&["restart", "toolwharf"]) => {}
        () = machine.keeps_accepting() => {}
    }
    assert_eq!(machine.health().await, 200);
    // The API can add servers, because the service may write to its configuration folder.
    let added = machine.put("two", scripted("two", &[])).await;
    assert!(added.status.is_success(), "{}", added.text());

    machine.cut_power();
    machine.boot().await;
    wait_for("the service to start at boot", DEADLINE, async || {
        machine.state().await == "active"
    })
    .await;
    running(&machine).await;
    assert!(machine.server("two").await.is_some());
}

/// The process id of a server, as this machine sees it.
fn server_pid(state: &Value) -> u32 {
    let pid = state["pid"].as_u64().expect("a process id");
    u32::try_from(pid).expect("a process id")
}
