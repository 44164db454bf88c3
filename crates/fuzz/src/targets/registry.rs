//! Entries of registries: what is offered for installation can be installed, and contains nothing that the entry hides.

use std::collections::BTreeMap;

use install::{Document, Place, Plan, plans};
use model::{Origin, ServerName};
use serde_json::Value;
use url::Url;

use crate::pieces;

pub(crate) const WORDS: &[&str] = &[
    "\"name\":\"com.example/weather\"",
    "\"version\":\"1.0.0\"",
    "\"packages\":[{",
    "\"remotes\":[{",
    "\"registryType\":\"npm\"",
    "\"registryType\":\"pypi\"",
    "\"registryType\":\"oci\"",
    "\"registryType\":\"mcpb\"",
    "\"identifier\":\"",
    "\"transport\":{\"type\":\"stdio\"}",
    "\"type\":\"streamable-http\"",
    "\"url\":\"https://",
    "\"runtimeArguments\":[{",
    "\"packageArguments\":[{",
    "\"environmentVariables\":[{",
    "\"headers\":[{",
    "\"variables\":{",
    "\"type\":\"named\"",
    "\"type\":\"positional\"",
    "\"value\":\"",
    "\"default\":\"",
    "\"format\":\"filepath\"",
    "\"format\":\"number\"",
    "\"isRequired\":true",
    "\"isSecret\":true",
    "\"isRepeated\":true",
    "\"choices\":[",
    "\"_meta\":{\"io.modelcontextprotocol.registry/publisher-provided\":{\"dev.toolwharf\":{",
    "\"network\":[\"",
    "\"volumes\":[\"/",
    "{a}",
    "${HOME}",
];

/// The value of every variable of the gateway.
const OF_THE_GATEWAY: &str = "a-secret-of-the-gateway";

pub(crate) fn run(input: &[u8]) {
    if pieces::mentions(input, OF_THE_GATEWAY) {
        return;
    }
    let (entry, values) = pieces::split(input);
    let Ok(entry) = serde_json::from_slice::<Value>(entry) else {
        return;
    };
    let document = match Document::read(&entry) {
        Ok(document) => document,
        Err(wrong) => {
            assert!(!wrong.is_empty() && wrong.len() <= 25);
            return;
        }
    };
    let values: BTreeMap<String, Value> = serde_json::from_slice(values).unwrap_or_default();
    for mut plan in plans(&document).into_iter().take(8) {
        let registry: Url = "https://registry.example.com".parse().expect("a URL");
        plan.listed_by(Some(&registry));
        filled(&plan, &values);
    }
}

/// Fills a plan with values, and with none.
pub(crate) fn filled(plan: &Plan, values: &BTreeMap<String, Value>) {
    let told = plan.to_api();
    let name = ServerName::parse("weather").expect("a name");
    for values in [values, &BTreeMap::new()] {
        let Ok(filled) = plan.fill(&name, values, &[], &Place::Project) else {
            continue;
        };
        assert!(told.refused.is_empty(), "{:?}", told.refused);
        // Only the secrets that it stores are variables.
        let env = |variable: &str| match filled.secrets.get(variable) {
            Some(secret) => Some(secret.clone()),
            None => Some(OF_THE_GATEWAY.to_owned()),
        };
        let checked = config::check_entry(
            std::path::Path::new("/x"),
            &name,
            &filled.entry,
            &env,
            &Default::default(),
        );
        let Ok((spec, _)) = checked else { continue };
        let mut texts = vec![spec.name.as_str().to_owned()];
        if let Some(launch) = spec.launch() {
            texts.extend(launch.program.args().iter().cloned());
            texts.extend(
                launch
                    .env
                    .iter()
                    .map(|(name, value)| format!("{name}={value}")),
            );
            texts.extend(
                launch
                    .sandbox()
                    .iter()
                    .map(|sandbox| format!("{sandbox:?}")),
            );
            assert!(
                launch.sandbox().is_some(),
                "a server of a registry without a sandbox"
            );
        }
        if let Origin::Remote(remote) = &spec.origin {
            texts.push(remote.url.clone());
            texts.extend(remote.headers.values().cloned());
        }
        for text in texts {
            assert!(!text.contains(OF_THE_GATEWAY), "{}", filled.entry);
        }
    }
}
