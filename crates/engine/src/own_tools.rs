//! The tools of an instance of a session's own: what a client lists that has such an instance.
//!
//! A server may offer more tools to a client that can do more. The common instance is told that everything is possible,
//! so its list is the longest; a session with an instance of its own is shown only what that one lists. Names stay those
//! of the common list, for calls are routed by it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use mcp::server::Session;
use model::Sharing;

use crate::{
    catalog::{ListKind, fetch_list},
    server::{Server, Unavailable},
    shared::Shared,
    view::View,
};

/// Native names of tools.
pub(crate) type Names = Arc<BTreeSet<Arc<str>>>;

/// The tools that one instance lists, as far as that is known.
#[derive(Default)]
pub(crate) struct OwnTools(Mutex<Option<Names>>);

impl OwnTools {
    fn known(&self) -> std::sync::MutexGuard<'_, Option<Names>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list has changed: it is asked for when it is next wanted.
    pub(crate) fn forget(&self) {
        *self.known() = None;
    }
}

/// Whether a session sees lists of its own in this view.
pub(crate) fn has_own(view: &View) -> bool {
    view.servers
        .iter()
        .any(|server| server.spec.sharing == Sharing::Session)
}

/// What the session's own instances list, by their places among the view's servers; `None` where there is no instance, or
/// none can be had: then the common list is shown. Instances that are not there yet are started.
pub(crate) async fn own_tools(
    shared: &Arc<Shared>,
    view: &View,
    session: &Arc<Session>,
) -> Vec<(Arc<Server>, Names)> {
    let own = view
        .servers
        .iter()
        .filter(|server| server.spec.sharing == Sharing::Session);
    let asked = own.map(async |server| match of_one(shared, server, session).await {
        Ok(names) => Some((server.clone(), names)),
        Err(why) => {
            tracing::debug!(server = %server.key(), "the common list is shown: {why}");
            None
        }
    });
    let known = futures_util::future::join_all(asked).await;
    known.into_iter().flatten().collect()
}

async fn of_one(
    shared: &Arc<Shared>,
    server: &Arc<Server>,
    session: &Arc<Session>,
) -> Result<Names, Unavailable> {
    let down = |reason: String| Unavailable::Down {
        server: server.name().clone(),
        reason: reason.into(),
        retry_ms: None,
    };
    let limit = server.spec.start_timeout;
    let instance = tokio::time::timeout(limit, server.instances.get(server, shared, session));
    let instance = instance
        .await
        .map_err(|_| down("its instance did not come up in time".to_owned()))??;
    if let Some(known) = instance.own_tools.known().clone() {
        return Ok(known);
    }
    let items = fetch_list(&instance.client, ListKind::Tools, server.name().as_str()).await;
    let items = items.map_err(|error| down(error.to_string()))?;
    let names: Names = Arc::new(items.into_iter().map(|item| item.native).collect());
    *instance.own_tools.known() = Some(names.clone());
    Ok(names)
}
