//! Keeping what is remembered of servers in the store, behind everybody's back: nobody waits for it, and a
//! store that is away costs nothing but the memory of the next start.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::{ServerKey, ServerName};
use sha2::{Digest, Sha256};
use store::{NewSnapshot, PinDigest, SnapshotRow, Store};

use crate::{
    catalog::Catalog,
    remember::{Pin, Pins, Seen},
    secrets::hex,
};

/// How often something that could not be kept is tried again, and how many times.
const RETRY: (Duration, u32) = (Duration::from_secs(5), 12);
/// Pins of one write: a definition can be long.
const PINS: usize = 200;

pub(crate) struct Memory {
    store: Store,
    /// The digest of what is kept of each server, so that the same is not written again.
    kept: Mutex<HashMap<ServerKey, [u8; 32]>>,
}

/// What is known of a server when it is described: by an earlier run.
#[derive(Clone, Default)]
pub struct Remembered {
    pub catalog: Option<Catalog>,
    pub pins: Pins,
}

impl Memory {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            kept: Mutex::default(),
        }
    }

    /// Keeps a catalog, unless it is what was kept last.
    pub(crate) async fn catalog(&self, key: &ServerKey, config_digest: &str, catalog: &Catalog) {
        let Some(text) = catalog.to_snapshot() else {
            return;
        };
        let digest: [u8; 32] = Sha256::new()
            .chain_update(config_digest)
            .chain_update(&text)
            .finalize()
            .into();
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.insert(key.clone(), digest) == Some(digest) {
                return;
            }
        }
        for _ in 0..RETRY.1 {
            let snapshot = NewSnapshot {
                server: &key.name,
                config_digest,
                catalog: &text,
            };
            let wrote = self.store.snapshot_put(key.owner.as_ref(), snapshot).await;
            match is_kept(key, &wrote) {
                Some(true) => return,
                Some(false) => break,
                None => tokio::time::sleep(RETRY.0).await,
            }
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(key);
    }

    /// Keeps definitions of tools.
    pub(crate) async fn pins(&self, key: &ServerKey, seen: &[Seen]) {
        let seen: Vec<store::Seen> = seen
            .iter()
            .map(|seen| store::Seen {
                tool: seen.tool.to_string(),
                digest: seen.digest.to_string(),
                definition: seen.definition.clone(),
            })
            .collect();
        for part in seen.chunks(PINS) {
            for _ in 0..RETRY.1 {
                let owner = key.owner.as_ref();
                let wrote = self.store.pins_seen(owner, &key.name, part).await;
                if is_kept(key, &wrote).is_some() {
                    break;
                }
                tokio::time::sleep(RETRY.0).await;
            }
        }
    }
}

/// Whether something was written; `None`: it may be if it is tried again.
fn is_kept<T>(key: &ServerKey, wrote: &store::Result<T>) -> Option<bool> {
    match wrote {
        Ok(_) => Some(true),
        Err(store::Error::Unavailable { .. }) => None,
        Err(error) => {
            tracing::warn!(server = %key, "what it offers cannot be remembered: {error}");
            Some(false)
        }
    }
}

impl Remembered {
    /// What rows say of each server. A catalog that was taken under another configuration does not count.
    #[must_use]
    pub fn of_rows(
        snapshots: Vec<SnapshotRow>,
        pins: Vec<PinDigest>,
        config_digest: impl Fn(&ServerName) -> Option<String>,
        max_depth: usize,
    ) -> HashMap<ServerName, Self> {
        let mut all: HashMap<ServerName, Self> = HashMap::new();
        for row in snapshots {
            if config_digest(&row.server).as_deref() == Some(&row.config_digest) {
                let catalog = Catalog::from_snapshot(&row.catalog, max_depth);
                all.entry(row.server).or_default().catalog = catalog;
            }
        }
        for row in pins {
            let pin = Pin {
                digest: row.digest.into(),
                pending: row.pending_digest.map(Arc::from),
            };
            let known = all.entry(row.server).or_default();
            known.pins.insert(model::NativeName::new(row.tool), pin);
        }
        all
    }
}

/// What a server is reached by: catalogs taken under another are not its own.
#[must_use]
pub fn config_digest(spec: &model::ServerSpec) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    part(spec.transport.kind());
    match &spec.transport {
        model::Transport::Stdio { command, args, .. } => {
            part(command);
            args.iter().for_each(|arg| part(&spec.redact(arg)));
        }
        model::Transport::Http { url, .. } | model::Transport::Sse { url, .. } => {
            part(&spec.redact(url))
        }
    }
    hex(&hash.finalize()[..16])
}
