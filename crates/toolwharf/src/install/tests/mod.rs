//! Entries of registries, from good ones to hostile ones; registries on loopback; bundles.

mod bundles;
mod forms;
mod hostile;
mod registries;

use std::collections::BTreeMap;

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

/// A package of npm with this besides.
fn npm(more: Value) -> Value {
    let mut package = json!({
        "registryType": "npm", "identifier": "@example/weather", "version": "1.2.3", "transport": {"type": "stdio"},
    });
    for (key, value) in more.as_object().unwrap() {
        package[key] = value.clone();
    }
    package
}

fn plan(entry: &Value) -> Result<Plan, Vec<Wrong>> {
    let mut plans = plan::plans(&Document::read(entry)?);
    let mut plan = plans.remove(0);
    plan.listed_by(Some(&"https://registry.example.com".parse().unwrap()));
    Ok(plan)
}

/// Put in, for a project.
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
