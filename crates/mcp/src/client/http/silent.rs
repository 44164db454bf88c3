//! URLs that do not answer `server/discover`.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use http::Uri;

/// Maximum remembered URLs.
const MAX_SILENT_URLS: usize = 1024;

/// URLs whose servers accept `initialize` but never answer `server/discover`.
#[derive(Clone, Default)]
pub(super) struct SilentUrls(Arc<Mutex<HashSet<String>>>);

impl SilentUrls {
    fn with<T>(&self, change: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn contain(&self, uri: &Uri) -> bool {
        self.with(|known| known.contains(&uri.to_string()))
    }

    pub(super) fn add(&self, uri: &Uri) {
        self.with(|known| {
            if known.len() >= MAX_SILENT_URLS {
                known.clear();
            }
            known.insert(uri.to_string())
        });
    }

    pub(super) fn remove(&self, uri: &Uri) {
        self.with(|known| known.remove(&uri.to_string()));
    }
}
