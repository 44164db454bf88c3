//! Resolves tool calls made by MCP Apps (SEP-1865).
//!
//! An App calls its server's tools by their native names, since it does not know about the gateway. If several servers
//! have a tool of this name, the call goes to the server whose App the client has opened. If that is not exactly one
//! server, the call is refused. Deliberately absent: inspecting the contents of Apps.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use mcp::Frame;
use model::ServerKey;

use crate::{
    exchange::{Caller, Owner},
    server::Server,
    views::view::View,
};
use parking_lot::Mutex;

/// Clients whose opened views are remembered.
const MAX_CLIENTS: usize = 4_096;
/// Servers remembered per client.
const MAX_SERVERS: usize = 64;

#[derive(Default)]
struct Inner {
    /// For each client, the servers whose Apps it has opened: `true` if a tool call showed an App, `false` if the client
    /// only read one.
    clients: HashMap<Owner, Vec<(ServerKey, bool)>>,
    order: VecDeque<Owner>,
}

/// The Apps that clients have opened.
#[derive(Default)]
pub(crate) struct Opened {
    inner: Mutex<Inner>,
}

impl Opened {
    /// Records that a tool call showed an App of a server (`called`), or that the client read one.
    pub(crate) fn note(&self, caller: &Caller, server: &Server, called: bool) {
        let owner = Owner::of(caller);
        if owner == Owner::Bearer {
            return;
        }
        let mut inner = self.inner.lock();
        let Inner { clients, order } = &mut *inner;
        let servers = clients.entry(owner.clone()).or_insert_with(|| {
            order.push_back(owner);
            Vec::new()
        });
        match servers.iter().position(|(key, _)| key == server.key()) {
            Some(at) => servers[at].1 |= called,
            None if servers.len() < MAX_SERVERS => servers.push((server.key().clone(), called)),
            None => {}
        }
        while order.len() > MAX_CLIENTS {
            if let Some(oldest) = order.pop_front() {
                clients.remove(&oldest);
            }
        }
    }

    /// Returns the server among `servers` whose App this client is using. `None` unless exactly one is possible.
    fn only<'s>(&self, caller: &Caller, servers: &[&'s Arc<Server>]) -> Option<&'s Arc<Server>> {
        let inner = self.inner.lock();
        let known = inner.clients.get(&Owner::of(caller))?;
        let one = |called: bool| {
            let mut open = servers.iter().filter(|server| {
                known
                    .iter()
                    .any(|(key, shown)| key == server.key() && (*shown || !called))
            });
            match (open.next(), open.next()) {
                (first, None) => Some(first),
                _ => None,
            }
        };
        // Clients may prefetch Apps, so an App shown by a call is stronger evidence than one that was only read.
        match one(true) {
            Some(Some(server)) => Some(*server),
            Some(None) => one(false)?.copied(),
            None => None,
        }
    }

    /// Returns the server whose App makes this call. `name`: a tool name that several servers have.
    pub(crate) fn server_of(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
        name: &str,
    ) -> Option<Arc<Server>> {
        let servers = view.servers_with_tool(name);
        // A client may say which App the call comes from.
        let own = frame.meta();
        let said = own.and_then(|own| {
            let ui = own.object("ui").and_then(|ui| ui.string("resourceUri"));
            ui.or_else(|| own.string("ui/resourceUri"))
        });
        if let Some(said) = said {
            let (server, _) = view.resource(&said, caller.era).ok()?;
            return servers
                .iter()
                .any(|own| Arc::ptr_eq(own, &server))
                .then_some(server);
        }
        self.only(caller, &servers).cloned()
    }
}
