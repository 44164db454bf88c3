//! Saves catalogs and tool definitions of servers to the store, in the background. No caller waits for the store. If the
//! store is unavailable, only the data for the next start is affected.
//!
//! Invariant: the writes for one server happen one after the other, in the order in which they were submitted, even if
//! they are delayed. Otherwise a later definition could become the approved one.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use model::{NativeName, Origin, ServerKey, ServerName};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use store::{NewSnapshot, PinDigest, PinRow, SnapshotRow, Store};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::Catalog,
    remember::{Pin, Pins, Seen},
};

/// Delay between attempts to save data, and the number of attempts. Definitions are retried for as long as the
/// gateway runs; after that many attempts, their tools are kept back until the write succeeds.
const STORE_RETRY: (Duration, u32) = (Duration::from_secs(5), 12);
/// Maximum pins per write, since a definition can be long.
const PINS_PER_WRITE: usize = 200;

pub struct ServerCache {
    store: Store,
    /// Cancelled when the gateway stops. Endless retries end then.
    over: CancellationToken,
    notes: Mutex<HashMap<ServerKey, Notes>>,
}

/// For each tool the first definition seen, which may become the approved one, and the latest.
type Definitions = BTreeMap<NativeName, (Seen, Option<Seen>)>;
/// A catalog, with the digest of the configuration under which it was fetched.
type Taken = (String, Arc<Catalog>);

/// Data of one server that is not saved yet.
#[derive(Default)]
struct Notes {
    catalog: Option<Taken>,
    seen: Definitions,
    /// The digest of the catalog saved last. The same catalog is not written again.
    kept: Option<[u8; 32]>,
    /// True if a task is writing. Only one task writes at a time, which keeps the order.
    in_hand: bool,
}

/// The outcome of saving definitions.
pub enum SaveOutcome<'t> {
    /// The definitions are saved. Includes the server's current pins.
    Kept(&'t [Seen], &'t [PinRow]),
    /// The definitions are not saved, or not yet.
    Unkept(&'t [Seen], Arc<str>),
}

/// Data of earlier runs about a server that is declared.
#[derive(Clone, Default)]
pub struct Remembered {
    pub catalog: Option<Catalog>,
    pub pins: Pins,
}

impl ServerCache {
    pub fn new(store: Store, over: CancellationToken) -> Self {
        Self {
            store,
            over,
            notes: Mutex::default(),
        }
    }

    /// Queues the server's catalog for saving. If this returns `true`, the caller has to call [`ServerCache::write`].
    #[must_use]
    pub fn catalog(&self, key: &ServerKey, digest: String, catalog: Arc<Catalog>) -> bool {
        let mut all = self.notes.lock();
        let notes = all.entry(key.clone()).or_default();
        notes.catalog = Some((digest, catalog));
        !std::mem::replace(&mut notes.in_hand, true)
    }

    /// Queues tool definitions for saving. If this returns `true`, the caller has to call [`ServerCache::write`].
    #[must_use]
    pub fn pins(&self, key: &ServerKey, seen: Vec<Seen>) -> bool {
        let mut all = self.notes.lock();
        let notes = all.entry(key.clone()).or_default();
        for seen in seen {
            match notes.seen.entry(seen.tool.clone()) {
                Entry::Vacant(none) => {
                    none.insert((seen, None));
                }
                Entry::Occupied(mut known) => known.get_mut().1 = Some(seen),
            }
        }
        !std::mem::replace(&mut notes.in_hand, true)
    }

    /// Writes all pending data of a server, including data that is added during the write. Calls `tell` with the
    /// outcome for its definitions.
    pub async fn write(&self, key: &ServerKey, tell: &(dyn Fn(SaveOutcome<'_>) + Sync)) {
        while let Some((seen, catalog)) = self.next(key) {
            let (first, last): (Vec<Seen>, Vec<Option<Seen>>) = seen.into_values().unzip();
            let last: Vec<Seen> = last.into_iter().flatten().collect();
            // Before the catalog: a tool that has to be kept back must not be offered at the next start.
            let pinned =
                self.write_pins(key, &first, tell).await && self.write_pins(key, &last, tell).await;
            if let Some((digest, catalog)) = catalog.filter(|_| pinned) {
                self.write_catalog(key, &digest, &catalog).await;
            }
        }
    }

    /// Saves approved definitions as the valid ones.
    pub async fn agree(&self, key: &ServerKey, seen: &[Seen]) -> store::Result<()> {
        let owner = key.owner.as_ref();
        for part in seen.chunks(PINS_PER_WRITE) {
            let pins = self.store.pins_seen(owner, &key.name, &rows(part)).await?;
            let waits = |seen: &&Seen| {
                pins.iter().any(|pin| {
                    pin.tool == seen.tool.as_str()
                        && pin.pending_digest.as_deref() == Some(&*seen.digest)
                })
            };
            let waiting: Vec<_> = part
                .iter()
                .filter(waits)
                .map(|seen| (seen.tool.as_str(), &*seen.digest))
                .collect();
            let approved = self.store.pins_approve(owner, &key.name, &waiting, None);
            approved.await?;
        }
        Ok(())
    }

    fn next(&self, key: &ServerKey) -> Option<(Definitions, Option<Taken>)> {
        let mut all = self.notes.lock();
        let notes = all.get_mut(key)?;
        let (seen, catalog) = (std::mem::take(&mut notes.seen), notes.catalog.take());
        notes.in_hand = !seen.is_empty() || catalog.is_some();
        notes.in_hand.then_some((seen, catalog))
    }

    /// Saves a catalog, unless it equals the one saved last.
    async fn write_catalog(&self, key: &ServerKey, config_digest: &str, catalog: &Catalog) {
        let Some(text) = catalog.to_snapshot() else {
            return;
        };
        let digest: [u8; 32] = Sha256::new()
            .chain_update(config_digest)
            .chain_update(&text)
            .finalize()
            .into();
        let kept = |kept| {
            let mut all = self.notes.lock();
            let notes = all.entry(key.clone()).or_default();
            std::mem::replace(&mut notes.kept, kept)
        };
        if kept(Some(digest)) == Some(digest) {
            return;
        }
        for _ in 0..STORE_RETRY.1 {
            let snapshot = NewSnapshot {
                server: &key.name,
                config_digest,
                catalog: &text,
            };
            let wrote = self.store.snapshot_put(key.owner.as_ref(), snapshot).await;
            match is_kept(key, &wrote) {
                Some(true) => return,
                Some(false) => break,
                None => tokio::time::sleep(STORE_RETRY.0).await,
            }
        }
        kept(None);
    }

    /// Saves tool definitions. Returns whether all of them were saved.
    async fn write_pins(
        &self,
        key: &ServerKey,
        seen: &[Seen],
        tell: &(dyn Fn(SaveOutcome<'_>) + Sync),
    ) -> bool {
        let mut all = true;
        for part in seen.chunks(PINS_PER_WRITE) {
            if self.write_part(key, part, tell).await {
                continue;
            }
            // One definition that cannot be saved must not affect the others.
            for one in part.chunks(1) {
                all &= part.len() > 1 && self.write_part(key, one, tell).await;
            }
        }
        all
    }

    async fn write_part(
        &self,
        key: &ServerKey,
        part: &[Seen],
        tell: &(dyn Fn(SaveOutcome<'_>) + Sync),
    ) -> bool {
        let rows = rows(part);
        let mut attempts = 0u32;
        loop {
            let owner = key.owner.as_ref();
            match self.store.pins_seen(owner, &key.name, &rows).await {
                Ok(pins) => {
                    tell(SaveOutcome::Kept(part, &pins));
                    return true;
                }
                Err(error @ store::Error::Unavailable { .. }) => {
                    attempts = attempts.saturating_add(1);
                    if attempts == STORE_RETRY.1 {
                        tracing::warn!(server = %key, "the server's new tools are not offered (kept back) until their definitions can be saved: {error}");
                        tell(SaveOutcome::Unkept(
                            part,
                            "the database does not answer".into(),
                        ));
                    }
                    if attempts >= STORE_RETRY.1 && self.over.is_cancelled() {
                        return false;
                    }
                    tokio::time::sleep(STORE_RETRY.0).await;
                }
                Err(_) if part.len() > 1 => return false,
                Err(error) => {
                    let tool = part.first().map(|seen| &seen.tool);
                    tracing::warn!(server = %key, tool = ?tool, "the tool is not offered (kept back), because its definition cannot be saved: {error}");
                    tell(SaveOutcome::Unkept(part, "the database refuses it".into()));
                    return false;
                }
            }
        }
    }
}

fn rows(seen: &[Seen]) -> Vec<store::Seen> {
    let row = |seen: &Seen| store::Seen {
        tool: seen.tool.to_string(),
        digest: seen.digest.to_string(),
        definition: seen.definition.clone(),
        config_digest: seen.config.to_string(),
    };
    seen.iter().map(row).collect()
}

/// Returns whether a write succeeded. `None`: a retry may succeed.
fn is_kept<T>(key: &ServerKey, wrote: &store::Result<T>) -> Option<bool> {
    match wrote {
        Ok(_) => Some(true),
        Err(store::Error::Unavailable { .. }) => None,
        Err(error) => {
            tracing::warn!(server = %key, "the catalog cannot be saved: {error}");
            Some(false)
        }
    }
}

impl Remembered {
    /// Builds the remembered state of each server from database rows. A catalog fetched under another configuration is
    /// ignored.
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
                config: row.config_digest.into(),
                unkept: None,
            };
            let known = all.entry(row.server).or_default();
            known.pins.insert(NativeName::new(row.tool), pin);
        }
        all
    }

    /// Takes over the pins and the catalog of the server's previous declaration. The stored ones may be older.
    pub fn renew(&mut self, pins: &Pins, catalog: Option<&Catalog>) {
        if !pins.is_empty() {
            self.pins = pins.clone();
        }
        if let Some(catalog) = catalog.filter(|catalog| catalog.info.is_some()) {
            self.catalog = Some(catalog.clone());
        }
    }
}

/// A digest of how a server is reached or launched. Catalogs and approvals are valid for one configuration only.
/// Secrets are left out: replacing a key does not invalidate an approval.
#[must_use]
pub fn config_digest(spec: &model::ServerSpec) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    let mut named = |what: &str, values: &BTreeMap<String, String>| {
        part(what);
        for (name, value) in values {
            part(name);
            part(&spec.redact_value(name, value));
        }
    };
    match &spec.origin {
        Origin::Remote(remote) => {
            named("headers", &remote.headers);
            if !remote.caller_headers.is_empty() {
                let sources = remote.caller_headers.iter();
                let sources = sources.map(|(name, template)| (name.clone(), template.source()));
                named("caller headers", &sources.collect());
            }
        }
        Origin::Launch(launch) => named("env", &launch.env),
    }
    // The word `hosted` was in use when the first pins were stored. It stays, so that their digests remain valid.
    part(match spec.sandbox() {
        Some(_) => "hosted",
        None => spec.origin.transport(),
    });
    match &spec.origin {
        Origin::Remote(remote) => part(&spec.redact(&remote.url)),
        // The digest leaves out the sandbox and its id, so that a server that is registered again counts as unchanged
        // if the rest is equal.
        Origin::Launch(launch) => {
            part(launch.program.target());
            let args = launch.program.args();
            args.iter().for_each(|arg| part(&spec.redact(arg)));
            if let Some(cwd) = &launch.cwd {
                part("cwd");
                part(&cwd.to_string_lossy());
            }
        }
    }
    hex::encode(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use model::{Launch, Place, Program, Remote, Sandbox, ServerSpec};
    use store::Location;

    use super::*;
    use crate::remember::News;

    fn seen(tool: &str, digest: &str) -> Seen {
        Seen {
            tool: NativeName::new(tool),
            digest: digest.into(),
            definition: format!("{{\"name\":\"{tool}\"}}"),
            config: "c".into(),
            news: News::Tool,
        }
    }

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Pins and snapshots in users' databases depend on these values. A different digest would keep every tool back.
    #[test]
    fn digests_of_configurations_never_change() {
        let env = || texts(&[("API_KEY", "hunter2"), ("REGION", "europe")]);
        let args = || vec!["-y".to_owned(), "--token=filled-in".to_owned()];
        let check = |origin: Origin, expected: &str| {
            let mut spec = ServerSpec::new(ServerName::parse("s").expect("a name"), origin);
            spec.secrets.0.insert("filled-in".to_owned());
            assert_eq!(config_digest(&spec), expected, "{spec:?}");
        };
        let sandbox = || {
            let mut sandbox = Sandbox::new("one-0");
            sandbox.volumes = vec!["/data".to_owned()];
            Place::Sandbox(sandbox)
        };
        let command = || Program::Command {
            program: "npx".to_owned(),
            args: args(),
        };
        let image = || Program::Image {
            image: "notes:1".to_owned(),
            command: args(),
        };
        for (program, cwd, place, expected) in [
            (
                command(),
                None,
                Place::Host,
                "590730af7a558bd649563fe7df3f7392",
            ),
            (
                command(),
                Some("/srv/data"),
                Place::Host,
                "4e076977ca7c7a2f82401c8c98f98243",
            ),
            (
                command(),
                None,
                sandbox(),
                "0d9fce1353ab24883eeacf4e4a82b377",
            ),
            (image(), None, sandbox(), "59169cc6beb1e18103a6a28285e8a679"),
        ] {
            let launch = Launch {
                env: env(),
                cwd: cwd.map(Into::into),
                ..Launch::new(program, place)
            };
            check(Origin::Launch(launch.into()), expected);
        }
        let headers = || texts(&[("Authorization", "Bearer x"), ("X-Team", "filled-in blue")]);
        for (sse, expected) in [
            (false, "f86b4c585e891cd4a8dd5812e5484da4"),
            (true, "292c87837f1aef3ee17168f1e0b8f322"),
        ] {
            let remote = Remote {
                headers: headers(),
                sse,
                ..Remote::new("https://example.com/mcp?key=filled-in".to_owned())
            };
            check(Origin::Remote(remote.into()), expected);
        }
    }

    /// The first definition remains the approved one, even if the next one follows immediately.
    #[tokio::test(flavor = "multi_thread")]
    async fn definitions_are_kept_in_the_order_of_their_coming() {
        let dir = tempfile::tempdir().expect("a directory");
        let location = Location::Sqlite(dir.path().join("wharf.db"));
        let store = Store::open(&location).await.expect("a new database");
        let memory = Arc::new(ServerCache::new(store.clone(), CancellationToken::new()));
        let mut writing = tokio::task::JoinSet::new();
        let keys: Vec<ServerKey> = (0..20)
            .map(|n| ServerKey {
                owner: None,
                name: ServerName::parse(&format!("server-{n}")).expect("a name"),
            })
            .collect();
        for (key, pause) in keys.iter().zip([true, false].into_iter().cycle()) {
            for digest in ["a", "b", "c"] {
                if memory.pins(key, vec![seen("changes", digest), seen("stays", "a")]) {
                    let (memory, key) = (memory.clone(), key.clone());
                    writing.spawn(async move { memory.write(&key, &|_| {}).await });
                }
                if pause {
                    tokio::task::yield_now().await;
                }
            }
        }
        writing.join_all().await;
        let pins = store.pin_digest_list(None).await.expect("the pins");
        let digest = |_: &ServerName| None;
        let all = Remembered::of_rows(Vec::new(), pins, digest, 10);
        assert_eq!(all.len(), keys.len());
        for key in keys {
            let pins = &all[&key.name].pins;
            let pin = |tool: &str| &pins[&NativeName::new(tool)];
            assert_eq!(&*pin("changes").digest, "a");
            assert_eq!(pin("changes").pending.as_deref(), Some("c"));
            assert_eq!((&*pin("stays").digest, &pin("stays").pending), ("a", &None));
        }
    }
}
