//! Tools of the gateway in place of those of servers to which nobody has ever signed in.

use std::sync::Arc;

use bytes::Bytes;
use mcp::json::quote;
use model::{NativeName, naming};

use crate::{
    scope::Scope,
    server::Server,
    views::entry::{PROJECT_KEY, SERVER_KEY},
};

const PREFIX: &str = "sign_in_to_";

/// Bytes. Leaves room for the prefix that clients add, whatever limit is set for the names of tools.
const MAX_NAME_LEN: usize = naming::MAX_LEN - naming::CLIENT_PREFIX.len();

/// The name of the tool that signs in to this server.
pub(crate) fn name(server: &Server, scope: &Scope) -> String {
    let (label, _) = server.label(scope);
    naming::legal(&NativeName::new(format!("{PREFIX}{label}")), MAX_NAME_LEN)
}

/// The definitions of these tools, for the servers in `waiting`. `is_taken`: a server has a tool of this name,
/// which has precedence.
pub(crate) fn offered<'s>(
    waiting: impl Iterator<Item = &'s Arc<Server>>,
    scope: &Scope,
    is_taken: impl Fn(&str) -> bool,
) -> Vec<Bytes> {
    // In a bare scope, the calling gateway offers them.
    let waiting = waiting.filter(|_| !scope.is_bare);
    let named = waiting.map(|server| (name(server, scope), server));
    let free = named.filter(|(name, _)| !is_taken(name));
    free.map(|(name, server)| definition(&name, server, scope).into())
        .collect()
}

/// The server that a tool of this name signs in to.
pub(crate) fn server_of<'s>(
    servers: &'s [Arc<Server>],
    scope: &Scope,
    called: &str,
) -> Option<&'s Arc<Server>> {
    if scope.is_bare || !called.starts_with(PREFIX) {
        return None;
    }
    let mut servers = servers.iter();
    servers.find(|server| name(server, scope) == called)
}

fn definition(name: &str, server: &Server, scope: &Scope) -> String {
    let (label, _) = server.label(scope);
    let title = quote(&format!("Sign in to {label}"));
    let description = quote(&format!(
        "Signs the user in to the server `{label}`, with a link that they open in a browser. The server's tools are unknown \
         until then, and are listed afterwards."
    ));
    let project = match (&scope.project, &server.spec.owner) {
        (None, Some(owner)) => format!(",\"{PROJECT_KEY}\":{}", quote(owner.as_str())),
        _ => String::new(),
    };
    format!(
        "{{\"name\":{},\"title\":{title},\"description\":{description},\"inputSchema\":{{\"type\":\"object\",\"properties\":{{}}}},\
         \"_meta\":{{\"{SERVER_KEY}\":{}{project}}}}}",
        quote(name),
        quote(server.name().as_str())
    )
}
