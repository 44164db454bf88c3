//! Registry entries, from valid to hostile; registries on loopback; bundles.

mod bundles;
mod forms;
mod hostile;
mod inspections;
mod registries;

use std::{collections::BTreeMap, env, fs, process::Command};

use api::Wrong;
use model::ServerName;
use serde_json::{Value, json};

use super::{
    document::Document,
    fill::{Filled, Place},
    plan::{self, Plan},
};

/// An entry with one package.
fn entry(package: Value) -> Value {
    json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "com.example/weather",
        "description": "Tells the weather",
        "version": "1.2.3",
        "packages": [package],
    })
}

/// An npm package with these additional fields.
fn npm(more: Value) -> Value {
    let mut package = json!({
        "registryType": "npm", "identifier": "@example/weather", "version": "1.2.3", "transport": {"type": "stdio"},
    });
    for (key, value) in more.as_object().unwrap() {
        package[key] = value.clone();
    }
    package
}

/// An entry with a package of this kind.
fn of(kind: &str, more: Value) -> Value {
    let mut package = npm(more);
    package["registryType"] = kind.into();
    entry(package)
}

fn plan(entry: &Value) -> Result<Plan, Vec<Wrong>> {
    let mut plans = plan::plans(&Document::read(entry)?);
    let mut plan = plans.remove(0);
    plan.listed_by(Some(&"https://registry.example.com".parse().unwrap()));
    Ok(plan)
}

/// Fills the values into the entry's plan, for a project.
fn filled(entry: &Value, values: Value) -> Result<Filled, Vec<Wrong>> {
    filled_for(&plan(entry)?, values, &[], &Place::Project)
}

fn filled_for(
    plan: &Plan,
    values: Value,
    writable: &[String],
    place: &Place<'_>,
) -> Result<Filled, Vec<Wrong>> {
    let values: BTreeMap<String, Value> = serde_json::from_value(values).unwrap();
    let name = ServerName::parse("weather").unwrap();
    plan.fill(&name, &values, writable, place)
}

/// Runs a test in a separate process, so that other tests do not affect its peak memory. `name` is the path of the test
/// below this module.
fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "TOOLWHARF_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let done = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{name}: {said}"
    );
}

/// The peak memory of this process since [`reset_peak`], in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|it| it.parse().ok()).unwrap()
}

/// Resets the peak to the current memory use, and returns it.
fn reset_peak() -> u64 {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    peak()
}
