//! The servers that are missing in a view, and the reports about them to callers.

use std::sync::Arc;

use catalog::{Fate, ListKind};
use mcp::json::quote;
use model::{ServerName, naming};

use crate::{scope::Scope, server::Server, views::sign_ins};

/// The `_meta` key of a list that names the servers whose remembered catalog was used.
pub(crate) const STALE_KEY: &str = "dev.toolwharf/stale";
/// The `_meta` key of a list that names the servers whose items are missing because they have not been connected yet.
pub(crate) const MISSING_KEY: &str = "dev.toolwharf/missing";

/// Servers named in [`STALE_KEY`] or [`MISSING_KEY`].
const MAX_NAMED: usize = 100;
/// Servers named in the error for an unknown name.
const MAX_LACKING: usize = 5;
/// A list over all projects starts project-owned servers only if there are at most this many.
const MAX_WOKEN_SERVERS: usize = 64;

/// Returns whether lists of this scope start and await the servers that projects own.
pub(crate) fn awaits_owned(servers: &[Arc<Server>], scope: &Scope) -> bool {
    let owned = servers.iter().filter(|server| server.spec.owner.is_some());
    scope.project.is_some() || owned.count() <= MAX_WOKEN_SERVERS
}

/// The members of a list's `_meta` that name servers whose cached catalog is served, and servers without a catalog.
pub(crate) fn list_meta<'s>(
    mut stale: impl Iterator<Item = &'s Arc<Server>>,
    mut missing: impl Iterator<Item = &'s Arc<Server>>,
    scope: &Scope,
) -> Option<String> {
    let named = |servers: &mut dyn Iterator<Item = &Arc<Server>>, key: &str| {
        let names = servers.take(MAX_NAMED);
        let names: Vec<String> = names
            .map(|server| quote(server.label(scope).0.as_str()))
            .collect();
        (!names.is_empty()).then(|| format!("{}:[{}]", quote(key), names.join(",")))
    };
    let members = [
        named(&mut stale, STALE_KEY),
        named(&mut missing, MISSING_KEY),
    ];
    let members: Vec<String> = members.into_iter().flatten().collect();
    (!members.is_empty()).then(|| members.join(","))
}

/// Explains why a name may be unknown: the servers that are starting or failing, and a definition of this name that is
/// left out. If the name has a server's prefix, only that server counts. Empty if nothing is known.
pub(crate) fn lacking(
    servers: &[Arc<Server>],
    scope: &Scope,
    kind: ListKind,
    name: Option<&str>,
) -> String {
    let labels: Vec<ServerName> = servers.iter().map(|one| one.label(scope).0).collect();
    let known = naming::Labels::new(&labels);
    let prefixed = name.and_then(|name| known.owner(name));
    let native = prefixed.map(|(_, rest)| rest).or(name);
    let mut found = Vec::new();
    for (server, label) in servers.iter().zip(&labels) {
        if prefixed.is_some_and(|(owner, _)| owner != label.as_str()) {
            continue;
        }
        let catalog = server.catalog();
        let left_out = native.and_then(|native| {
            let mut flaws = catalog.flaws(kind, native);
            flaws.find(|flaw| flaw.fate != Fate::Repaired)
        });
        if kind == ListKind::Tools && !scope.is_bare && server.awaits_sign_in() {
            let tool = sign_ins::name(server, scope);
            found.push(format!(
                "server `{label}` needs a sign-in: call the tool `{tool}`"
            ));
        } else if let Some(why) = server.lacks(kind) {
            found.push(format!("server `{label}`: {why}"));
        } else if let Some(flaw) = left_out {
            found.push(format!("server `{label}`: {flaw}"));
        }
    }
    let more = found.len().saturating_sub(MAX_LACKING);
    found.truncate(MAX_LACKING);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    match found.as_slice() {
        [] => String::new(),
        found => format!(" ({})", found.join("; ")),
    }
}
