//! Secrets in plain text in server files.
//!
//! Invariant: a finding names the field and never shows the value.

use api::{Finding, Level};
use config::{Config, Sources, is_variable};
use model::ServerName;

use backend::{
    entries::{Found, found},
    server_files,
};

/// Returns a warning for each secret that an entry contains.
pub(super) fn literals(sources: &Sources, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for spec in &config.servers {
        let Ok((file, entry)) = server_files::entry(sources, &spec.name) else {
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
                    "`{field}` of server `{name}` contains a secret in plain text ({})",
                    file.display()
                ),
                help: Some(format!(
                    "run `toolwharf secret set {variable}`, which stores it encrypted, and replace it with `${{{variable}}}` \
                     in the entry"
                )),
            });
        }
    }
    findings
}

/// Returns a variable for a secret: its name if it is a valid variable, otherwise one made from the server's name and
/// the field.
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
