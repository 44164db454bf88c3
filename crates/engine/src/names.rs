//! The names of a merged view's tools and prompts.

use std::{collections::HashMap, sync::Arc};

use model::{NamingPolicy, NativeName, ServerName, naming};

use crate::{catalog::ListKind, entry::Entry, scope::Scope, server::Server};

/// Gives the entries their exposed names. Those of tools that are kept back have theirs, too, so that nothing is called
/// otherwise when somebody agrees to them; save where the later server wins: there they stand in nobody's place.
pub(crate) fn named(
    servers: &[Arc<Server>],
    mut entries: Vec<Entry>,
    policy: NamingPolicy,
    kind: ListKind,
    scope: &Scope,
) -> Vec<Entry> {
    let mut unnamed = Vec::new();
    if policy == NamingPolicy::LastWins {
        let is_kept_back = |entry: &mut Entry| entry.kept_back.is_some();
        unnamed = entries.extract_if(.., is_kept_back).collect();
    }
    // All of them, also those that offer nothing now: what a name belongs to does not come and go.
    let mut input: Vec<(ServerName, Vec<NativeName>)> = Vec::with_capacity(servers.len());
    let mut places: HashMap<ServerName, usize> = HashMap::with_capacity(servers.len());
    for server in servers {
        let (label, _) = server.label(scope);
        places.entry(label.clone()).or_insert(input.len());
        input.push((label, Vec::new()));
    }
    let mut by_key: HashMap<(ServerName, Arc<str>), Entry> = HashMap::new();
    for entry in entries {
        let (server, _) = entry.server.label(scope);
        let name: Arc<str> = entry.name().into();
        if let Some(&at) = places.get(&server) {
            input[at].1.push(NativeName::new(name.clone()));
        }
        by_key.entry((server, name)).or_insert(entry);
    }
    let assignment = naming::assign(&input, policy).unwrap_or_else(|clashes| {
        // A view has to be something: the clash is said, and both stay reachable.
        tracing::error!(
            "{}: {clashes}; clients find them under names that begin with their server's",
            kind.key()
        );
        naming::assign_apart(&input)
    });
    for replaced in &assignment.replaced {
        tracing::warn!(
            "{}: `{}` of server `{}` takes the place of that of server `{}` (naming policy last-wins)",
            kind.key(),
            replaced.native,
            replaced.winner,
            replaced.loser
        );
    }
    let named = assignment.names.into_iter().filter_map(|named| {
        let mut entry = by_key.remove(&(named.server, named.native.as_str().into()))?;
        entry.exposed = named.exposed.as_str().into();
        Some(entry)
    });
    named.chain(unnamed).collect()
}
