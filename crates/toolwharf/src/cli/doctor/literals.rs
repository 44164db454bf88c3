//! Secrets that stand as plain text in the files of servers.
//!
//! Invariant: a finding names the field and never shows the value.

use api::{Finding, Level};
use config::{Config, Sources, is_variable};
use model::ServerName;

use crate::{
    entries::{Found, found},
    registry,
};

/// A warning for each secret that is written into an entry itself.
pub(super) fn literals(sources: &Sources, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for spec in &config.servers {
        let Ok((file, entry)) = registry::entry(sources, &spec.name) else {
            continue;
        };
        let evident = found(&entry).into_iter().filter(|found| found.is_evident);
        for found in evident {
            let name = &spec.name;
            let field = found.pointer.trim_start_matches('/').replace('/', ".");
            let variable = variable(name, &found);
            findings.push(Finding {
                level: Level::Warning,
                what: format!(
                    "`{field}` of server `{name}` holds a secret as plain text ({})",
                    file.display()
                ),
                help: Some(format!(
                    "write `${{{variable}}}` in its place, and set {variable} in the environment of `toolwharf serve`; or \
                     keep it sealed in the secret store of a project: `toolwharf secret set {variable} --project PROJECT`, \
                     then declare the server there with `${{{variable}}}` (`toolwharf add {name} --project PROJECT …`) and \
                     remove this one (`toolwharf rm {name}`)"
                )),
            });
        }
    }
    findings
}

/// A variable for a secret: its own name if it is one already, else one made of the server's name and its own.
fn variable(server: &ServerName, found: &Found) -> String {
    let name = found.name.as_deref().unwrap_or("secret");
    let is_one = is_variable(name) && !name.bytes().any(|byte| byte.is_ascii_lowercase());
    if is_one {
        return name.to_owned();
    }
    let mut words = String::new();
    for letter in format!("{server}_{name}").chars() {
        match letter.is_ascii_alphanumeric() {
            true => words.push(letter.to_ascii_uppercase()),
            false if !words.ends_with('_') => words.push('_'),
            false => {}
        }
    }
    match words.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("_{words}"),
        false => words,
    }
}
