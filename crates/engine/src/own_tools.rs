//! The tools of an instance of a session's own: what a client lists that has such an instance.
//!
//! A server may offer more tools to a client that can do more. The common instance is told that everything is possible,
//! so its list is the longest; a session with an instance of its own is shown only what that one lists. Names stay those
//! of the common list, for calls are routed by it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use mcp::{Frame, outbox::Weight, protocol::method, server::Session};
use model::Sharing;
use tokio::sync::oneshot;

use crate::{
    catalog::{ListKind, fetch_list},
    server::{FIRST_START, Server},
    shared::Shared,
    view::View,
};

/// Native names of tools.
pub(crate) type Names = Arc<BTreeSet<Arc<str>>>;

/// The tools that one instance lists, as far as that is known.
#[derive(Default)]
pub(crate) struct OwnTools(Mutex<Known>);

#[derive(Default)]
struct Known {
    names: Option<Names>,
    /// How often the list has changed: what was asked for before that is out of date.
    changes: u64,
}

impl OwnTools {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list has changed: it is asked for when it is next wanted.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        known.names = None;
        known.changes += 1;
    }
}

/// Whether a session sees lists of its own in this view.
pub(crate) fn has_own(view: &View) -> bool {
    view.servers
        .iter()
        .any(|server| server.spec.sharing == Sharing::Session)
}

/// What the session's own instances list; those that are not there yet are started. A server whose instance cannot be had
/// is left out: of it, the common list is shown.
pub(crate) async fn own_tools(
    shared: &Arc<Shared>,
    view: &View,
    session: &Arc<Session>,
    capabilities: &Bytes,
) -> Vec<(Arc<Server>, Names)> {
    let own = view
        .servers
        .iter()
        .filter(|server| server.spec.sharing == Sharing::Session);
    let asked = own.map(
        async |server| match of_one(shared, server, session, capabilities).await {
            Ok(names) => Some((server.clone(), names)),
            Err(why) => {
                tracing::debug!(server = %server.key(), "the common list is shown: {why}");
                None
            }
        },
    );
    let known = futures_util::future::join_all(asked).await;
    known.into_iter().flatten().collect()
}

/// What one server's instance for the session lists. An instance that takes long to start goes on to do so: the session
/// is told of its list when it is there.
async fn of_one(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    capabilities: &Bytes,
) -> Result<Names, Arc<str>> {
    let existing = server.instances.existing(session.id());
    let known = existing.and_then(|instance| instance.own_tools.known().names.clone());
    if let Some(known) = known {
        return Ok(known);
    }
    let (done, told) = oneshot::channel();
    let (engine, server, session) = (shared.clone(), server.clone(), session.clone());
    let capabilities = capabilities.clone();
    shared.spawn(async move {
        let fetched = fetch(&engine, &server, &session, &capabilities).await;
        if let Err(Ok(_)) = done.send(fetched) {
            let changed = Frame::notification(method::TOOLS_CHANGED, None);
            let outbox = session.outbox();
            outbox.push(Weight::Signal, changed.text().clone());
        }
    });
    match tokio::time::timeout(FIRST_START, told).await {
        Ok(Ok(fetched)) => fetched,
        _ => Err("its instance is still starting".into()),
    }
}

async fn fetch(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
    capabilities: &[u8],
) -> Result<Names, Arc<str>> {
    let starting = server.instances.get(server, shared, session, capabilities);
    let instance = tokio::time::timeout(server.spec.start_timeout, starting);
    let instance = instance
        .await
        .map_err(|_| "its instance did not come up in time")?;
    let instance = instance.map_err(|error| error.to_string())?;
    let before = instance.own_tools.known().changes;
    let items = fetch_list(&instance.client, ListKind::Tools, server.name().as_str()).await;
    let (items, _) = items.map_err(|error| error.to_string())?;
    let names: Names = Arc::new(items.into_iter().map(|item| item.native).collect());
    let mut known = instance.own_tools.known();
    if known.changes == before {
        known.names = Some(names.clone());
    }
    Ok(names)
}
