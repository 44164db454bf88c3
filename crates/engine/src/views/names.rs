//! Names of the tools and prompts in a merged view.

use std::{collections::HashMap, sync::Arc};

use model::{NamingPolicy, NativeName, ServerName, naming};

use crate::{catalog::ListKind, scope::Scope, server::Server, views::entry::Entry};

/// Gives the entries their exposed names. Kept-back tools also get names, so that approving one does not rename others.
/// Exception: with the policy last-wins they stay unnamed, so that they do not replace another server's tool.
pub(crate) fn named(
    servers: &[Arc<Server>],
    mut entries: Vec<Entry>,
    policy: NamingPolicy,
    max_len: usize,
    kind: ListKind,
    scope: &Scope,
) -> Vec<Entry> {
    let mut unnamed = Vec::new();
    if policy == NamingPolicy::LastWins {
        let is_kept_back = |entry: &mut Entry| entry.kept_back.is_some();
        unnamed = entries.extract_if(.., is_kept_back).collect();
    }
    // All servers, even those that offer nothing now: a name must not change when a server starts or stops.
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
    let assignment = naming::assign(&input, policy, max_len).unwrap_or_else(|clashes| {
        // The view must not fail because of a clash. The clash is logged, and both items remain reachable.
        tracing::error!(
            "{}: {clashes}; each of these items is offered with its server's name as a prefix",
            kind.key()
        );
        naming::assign_apart(&input, max_len)
    });
    for replaced in &assignment.replaced {
        tracing::warn!(
            "{}: `{}` of server `{}` replaces the one of server `{}` (naming policy last-wins)",
            kind.key(),
            replaced.native,
            replaced.winner,
            replaced.loser
        );
    }
    let named = assignment.names.into_iter().filter_map(|named| {
        let mut entry = by_key.remove(&(named.server, named.native.as_str().into()))?;
        entry.exposed = named.exposed.as_str().into();
        entry.former = named.former.map(|former| former.as_str().into());
        Some(entry)
    });
    named.chain(unnamed).collect()
}
