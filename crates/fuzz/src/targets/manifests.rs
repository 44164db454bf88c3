//! Manifests: of a bundle, and of a product, whose servers are entries of a project.
//!
//! An input has a manifest, and after a line of `--` the values of its inputs.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

use install::{Document, plans};
use model::{ProjectId, ServerName};
use serde_json::{Value, json};

use super::{mcpb::Scratch, registry};
use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "\"server\":{",
    "\"type\":\"node\"",
    "\"type\":\"python\"",
    "\"type\":\"binary\"",
    "\"mcp_config\":{",
    "\"command\":\"node\"",
    "\"command\":\"${__dirname}/server/run\"",
    "\"args\":[",
    "\"env\":{",
    "${user_config.",
    "${__dirname}",
    "\"platform_overrides\":{\"linux\":{",
    "\"user_config\":{",
    "\"sensitive\":true",
    "\"required\":true",
    "\"multiple\":true",
    "\"default\":",
    "\"compatibility\":{\"platforms\":[\"linux\"]}",
    "\"mcpServers\":{",
    "\"url\":\"https://example.com/mcp\"",
    "\"headers\":{",
    "\"toolwharf\":{\"sandbox\":true",
    "\"mounts\":[",
    "\"network\":",
    "${SECRET}",
    "${SECRET:-x}",
    "\"login\":{",
];

const SECRET: &str = "a-secret-of-the-project";

pub(crate) fn run(input: &[u8]) {
    if pieces::mentions(input, SECRET) {
        return;
    }
    let (manifest, values) = pieces::split(input);
    of_bundle(manifest, values);
    if let Ok(Value::Object(manifest)) = serde_json::from_slice(manifest) {
        let servers = manifest.get("mcpServers").and_then(Value::as_object);
        for (name, entry) in servers.into_iter().flatten().take(8) {
            of_project(name, entry);
        }
    }
}

fn of_bundle(manifest: &[u8], values: &[u8]) {
    let scratch = Scratch::new();
    let folder = scratch.path().join("server");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("run"), b"#!/bin/sh").expect("a file");
    fs::write(scratch.path().join("manifest.json"), manifest).expect("a file");
    let entry = json!({
        "name": "com.example/weather", "version": "1.0.0", "packages": [{
            "registryType": "mcpb", "identifier": "https://example.com/a.mcpb", "version": "1.0.0",
            "fileSha256": "0".repeat(64), "transport": {"type": "stdio"},
        }],
    });
    let document = Document::read(&entry).expect("an entry");
    let mut plan = plans(&document).remove(0);
    plan.unpacked(scratch.path().to_owned());
    let values: BTreeMap<String, Value> = serde_json::from_slice(values).unwrap_or_default();
    registry::filled(&plan, &values);
}

/// Errors and the form of an entry do not show the secret that it uses.
fn of_project(name: &str, entry: &Value) {
    let Ok(name) = ServerName::parse(name) else {
        return;
    };
    let project = ProjectId::parse("demo").expect("an id");
    let secrets = HashMap::from([("SECRET".to_owned(), SECRET.to_owned())]);
    let said = match config::check_project(&project, &name, entry, &secrets) {
        Ok(spec) => format!("{:?} {:?}", spec.unusable, spec.name),
        Err(unfit) => {
            assert!(!unfit.problems.is_empty());
            assert_eq!(unfit.problems.len(), unfit.wrong.len());
            format!("{:?} {:?}", unfit.problems, unfit.wrong)
        }
    };
    assert!(!said.contains(SECRET), "{said}");
    let _ = config::misplaced(entry);
}
