//! API keys.
//!
//! Invariants: a key itself exists only in the response that creates it (the administrator's first key is also in the
//! data directory). The database and this process have SHA-256 digests. Identifying a key takes no lock and no database
//! query. A key revoked at this replica is refused immediately, a key revoked at another one within a second; the key's
//! sessions and streams end at the same time ([`Ended`]). While the database is unavailable, a single gateway continues
//! with the known keys; several replicas do so for [`STALE_AFTER`] only. Deliberately absent: the role that a route
//! needs (`rest`), and whether a request needs a key (`gateway::Guard`).

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use model::ProjectId;
use runtime::sentinel::monotonic_nanos;
use sha2::{Digest as _, Sha256};
use store::{HashedKey, KeyRow, NewKey, Store, Time};
use tokio::{sync::Mutex, time::Instant};

use super::{Principal, Role, ended::Ended};
use crate::admin_token::TOKEN_FILE;

/// Prefix of every Toolwharf key.
pub const PREFIX: &str = "twh_";
/// Interval between updates of the keys and of their last use in the database.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a replica accepts keys without an update. Another replica may have revoked them since.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Interval between checks for expired keys, and between updates if there are several replicas.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// The name of the key created by the first run.
const FIRST_KEY_NAME: &str = "administrator (first run)";

pub(super) type Digest = [u8; 32];

/// All valid keys.
#[derive(Debug, Default)]
pub struct Keys {
    known: ArcSwap<HashMap<Digest, Arc<Key>>>,
    /// The revision of the known keys. The lock holder may replace them.
    revision: Mutex<Option<String>>,
    /// Principals whose keys ended.
    ended: Arc<Ended>,
    /// Until when the known keys are accepted, in nanoseconds of the monotonic clock; 0: indefinitely.
    good_until: AtomicU64,
}

#[derive(Debug)]
struct Key {
    principal: Arc<Principal>,
    id: String,
    expires_at: Option<Time>,
    /// Last use that is not in the database yet, in microseconds since 1970; 0: none.
    used: AtomicI64,
    /// True after the end of the key was reported.
    ended: AtomicBool,
}

impl Keys {
    /// A single administrator's key.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn administrator(token: &str) -> Arc<Self> {
        let principal = Principal::new("key:administrator", Role::Admin, None);
        let key = Key {
            principal: Arc::new(principal),
            id: String::new(),
            expires_at: None,
            used: AtomicI64::new(0),
            ended: AtomicBool::new(false),
        };
        let keys = Self::default();
        let known = HashMap::from([(digest(token), Arc::new(key))]);
        keys.known.store(Arc::new(known));
        Arc::new(keys)
    }

    /// Reports ended keys to `ended`.
    pub(super) fn new(ended: Arc<Ended>) -> Self {
        Self {
            ended,
            ..Self::default()
        }
    }

    /// Call this if other replicas may change the keys. From then on, keys are refused if no update has succeeded for
    /// [`STALE_AFTER`].
    pub fn share(&self) {
        self.trust(monotonic_nanos());
    }

    fn is_shared(&self) -> bool {
        self.good_until.load(Ordering::Relaxed) > 0
    }

    /// Records that the keys were up to date at this time.
    fn trust(&self, at: u64) {
        let trust = u64::try_from(STALE_AFTER.as_nanos()).unwrap_or(u64::MAX);
        self.good_until
            .store(at.saturating_add(trust), Ordering::Relaxed);
    }

    /// Returns true if the last update is so old that keys may have been revoked since.
    pub fn are_stale(&self) -> bool {
        let until = self.good_until.load(Ordering::Relaxed);
        until > 0 && until < monotonic_nanos()
    }

    /// The principal of a valid key.
    pub fn identify(&self, token: &str) -> Option<Arc<Principal>> {
        (!self.are_stale()).then(|| self.of(&digest(token)))?
    }

    /// The principal with this id, if its key is valid.
    pub(super) fn holder(&self, id: &str) -> Option<Arc<Principal>> {
        let now = store::now();
        let known = self.known.load();
        let mut living = known
            .values()
            .filter(|key| key.expires_at.is_none_or(|end| end > now));
        let key = living.find(|key| *key.principal.id == *id);
        key.map(|key| key.principal.clone())
    }

    pub(super) fn of(&self, digest: &Digest) -> Option<Arc<Principal>> {
        let known = self.known.load();
        let key = known.get(digest)?;
        let now = store::now();
        if key.expires_at.is_some_and(|end| end <= now) {
            return None;
        }
        key.used.store(now.timestamp_micros(), Ordering::Relaxed);
        Some(key.principal.clone())
    }

    /// Loads the keys from the database if they changed.
    ///
    /// # Errors
    /// Database errors. The known keys stay.
    pub async fn refresh(&self, store: &Store) -> Result<(), store::Error> {
        let mut seen = self.revision.lock().await;
        let now = monotonic_nanos();
        if self.is_shared() {
            store.check_writable().await?;
        }
        let revision = Some(store.keys_revision().await?);
        if *seen == revision {
            if self.is_shared() {
                self.trust(now);
            }
            return Ok(());
        }
        let rows = store.keys_hashed().await?;
        let before = self.known.load_full();
        let mut known = HashMap::with_capacity(rows.len());
        for row in rows {
            let Some(digest) = from_hex(&row.hash) else {
                tracing::warn!(
                    "key {} is ignored: its stored digest is invalid; revoke it and create another key",
                    row.key.id
                );
                continue;
            };
            // Keep the known key, because it records its last use.
            let Some(fresh) = Key::of(&row) else {
                continue;
            };
            let key = match before.get(&digest) {
                Some(key) if key.is_same(&fresh) => key.clone(),
                _ => Arc::new(fresh),
            };
            known.insert(digest, key);
        }
        let gone = before
            .iter()
            .filter(|(digest, key)| known.get(*digest).is_none_or(|kept| !kept.is_same(key)));
        let gone: Vec<_> = gone.map(|(_, key)| key.clone()).collect();
        self.known.store(Arc::new(known));
        *seen = revision;
        if self.is_shared() {
            self.trust(now);
        }
        self.end(gone);
        Ok(())
    }

    fn end(&self, keys: impl IntoIterator<Item = Arc<Key>>) {
        let ending = keys.into_iter();
        let ending = ending.filter(|key| !key.ended.swap(true, Ordering::Relaxed));
        self.ended.tell(ending.map(|key| key.principal.id.clone()));
    }

    /// Reports keys that have expired.
    fn expire(&self) {
        let now = store::now();
        let known = self.known.load();
        let expired = known
            .values()
            .filter(|key| key.expires_at.is_some_and(|end| end <= now))
            .filter(|key| !key.ended.load(Ordering::Relaxed));
        let expired: Vec<_> = expired.cloned().collect();
        if !expired.is_empty() {
            self.end(expired);
        }
    }

    /// Keeps the keys up to date and records in the database which were used, in a loop.
    pub async fn follow(&self, store: &Store) {
        let mut tick = tokio::time::interval(EXPIRY_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut away = false;
        let mut touched: Option<Instant> = None;
        loop {
            tick.tick().await;
            self.expire();
            let is_due = touched.is_none_or(|at| at.elapsed() >= REFRESH_INTERVAL);
            if !is_due && !self.is_shared() {
                continue;
            }
            let failed = self.refresh(store).await.err();
            if is_due {
                touched = Some(Instant::now());
                self.touch(store).await;
            }
            if let Some(error) = &failed
                && !away
            {
                let how_long = if self.is_shared() { " for 5 s" } else { "" };
                tracing::warn!(
                    "cannot read the keys from the database; the known keys stay valid{how_long}: {error}"
                );
            }
            away = failed.is_some();
        }
    }

    /// Writes the last use of keys to the database. If that fails, it is written later.
    pub async fn touch(&self, store: &Store) {
        let known = self.known.load_full();
        let mut used = Vec::new();
        for key in known.values() {
            let at = key.used.swap(0, Ordering::Relaxed);
            if at != 0
                && let Some(time) = Time::from_timestamp_micros(at)
            {
                used.push((key.clone(), (key.id.clone(), time)));
            }
        }
        if used.is_empty() {
            return;
        }
        let (keys, rows): (Vec<_>, Vec<_>) = used.into_iter().unzip();
        if store.keys_touch(&rows).await.is_err() {
            for (key, (_, at)) in keys.iter().zip(rows) {
                key.used.fetch_max(at.timestamp_micros(), Ordering::Relaxed);
            }
        }
    }
}

impl Key {
    /// Returns whether this is the same key with the same projects. A key loses a project that is deleted.
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.principal == other.principal
    }

    fn of(row: &HashedKey) -> Option<Self> {
        let projects = row.key.projects().map(ProjectId::parse);
        let projects = projects
            .collect::<Result<BTreeSet<ProjectId>, _>>()
            .inspect_err(|error| {
                tracing::warn!("key {} is ignored: invalid project id: {error}", row.key.id);
            })
            .ok()?;
        let id = format!("key:{}", row.key.id);
        let principal = Principal {
            // A later version may know more words.
            tools: row.key.tools.as_deref().and_then(|word| word.parse().ok()),
            ..Principal::within(id, role(row.key.role), &projects)
        };
        Some(Self {
            principal: Arc::new(principal),
            id: row.key.id.clone(),
            expires_at: row.key.expires_at,
            used: AtomicI64::new(0),
            ended: AtomicBool::new(false),
        })
    }
}

fn role(role: store::Role) -> Role {
    match role {
        store::Role::Read => Role::Read,
        store::Role::Call => Role::Call,
        store::Role::Manage => Role::Manage,
        store::Role::Admin => Role::Admin,
    }
}

pub fn new_token() -> String {
    let random: [u8; 24] = rand::random();
    format!("{PREFIX}{}", hex::encode(random))
}

/// Makes sure that the token in the data directory is an administrator's key; the first run creates both. The second
/// return value is true if the token was created now.
///
/// # Errors
/// If the database has administrators and the token is not the key of one. The error says what to do.
pub async fn bootstrap(store: &Store, dir: &Path) -> anyhow::Result<(Arc<str>, bool)> {
    let (token, new) = crate::admin_token::admin_token(dir)?;
    let path = dir.join(TOKEN_FILE);
    let place = crate::admin_token::token_place(dir);
    let hash = hash(&token);
    let keys = store.keys_hashed().await?;
    // Query the key after the list, because another replica may be registering the same token.
    let known = store.key_by_hash(&hash).await?;
    let now = store::now();
    let is_admins = |key: &KeyRow| key.role == store::Role::Admin && key.is_living(now);
    if known.as_ref().is_some_and(is_admins) {
        crate::admin_token::keep_token(dir, &token)?;
        return Ok((token, new));
    }
    if keys.iter().any(|row| is_admins(&row.key)) {
        if new {
            // The new token is not a valid key. If its file stayed, the remedy in the error would not work.
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        bail!(
            "the database has administrators, but {place} holds no valid administrator's key: put such a key there, or run \
             `toolwharf key recover` to make a new one"
        );
    }
    if known.is_some() {
        bail!(
            "{place} holds a key that is revoked, expired or not an administrator's: remove the key, and the next start \
             makes a new one"
        );
    }
    register(store, &token, FIRST_KEY_NAME).await?;
    crate::admin_token::keep_token(dir, &token)?;
    Ok((token, new))
}

/// Registers this token as an administrator's key.
pub async fn register(store: &Store, token: &str, name: &str) -> Result<(), store::Error> {
    let key = NewKey {
        projects: &[],
        name,
        visible: None,
        role: store::Role::Admin,
        hash: &hash(token),
        hint: hint(token),
        expires_at: None,
        tools: None,
    };
    match store.key_put_numbered(key).await {
        // Another process with the same token registered it first.
        Ok(_) | Err(store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn digest(token: impl AsRef<[u8]>) -> Digest {
    Sha256::digest(token).into()
}

/// The digest under which the database stores a key.
pub fn hash(token: &str) -> String {
    hex::encode(digest(token))
}

/// The last characters of a key, by which its owner can recognise it.
pub fn hint(token: &str) -> &str {
    let from = token.char_indices().rev().nth(3).map_or(0, |(at, _)| at);
    &token[from..]
}

fn from_hex(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    hex::decode_to_slice(text, &mut digest).ok()?;
    Some(digest)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, slice};

    use store::Location;
    use tokio::task::JoinSet;

    use super::*;

    async fn open(dir: &Path) -> Store {
        let location = Location::Sqlite(dir.join("wharf.db"));
        Store::open(&location).await.expect("a new database")
    }

    async fn put(
        store: &Store,
        token: &str,
        role: store::Role,
        expires_at: Option<Time>,
    ) -> String {
        let project = ProjectId::parse("a").expect("an id");
        let ids = slice::from_ref(&project);
        store.project_ensure(ids).await.expect("a project");
        let hash = hash(token);
        let key = NewKey {
            projects: match role {
                store::Role::Admin => &[],
                _ => ids,
            },
            name: &hash,
            visible: None,
            role,
            hash: &hash,
            hint: hint(token),
            expires_at,
            tools: None,
        };
        store.key_put(key).await.expect("a key").id
    }

    #[tokio::test]
    async fn a_key_opens_until_it_expires_or_is_revoked() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path()).await;
        let keys = Keys::default();
        let soon = store::now() + Duration::from_millis(300);
        let (lasting, short) = (new_token(), new_token());
        let id = put(&store, &lasting, store::Role::Call, None).await;
        put(&store, &short, store::Role::Read, Some(soon)).await;
        assert!(keys.identify(&lasting).is_none());
        keys.refresh(&store).await.expect("refreshed");

        let who = keys.identify(&lasting).expect("known");
        assert_eq!(*who.id, *format!("key:{id}"));
        let (a, b) = (ProjectId::parse("a").ok(), ProjectId::parse("b").ok());
        assert!(who.may(Role::Read, a.as_ref()) && who.may(Role::Call, a.as_ref()));
        assert!(!who.may(Role::Manage, a.as_ref()));
        assert!(!who.may(Role::Read, b.as_ref()) && !who.may(Role::Read, None));
        testkit::wait_for("the expiry", Duration::from_secs(5), async || {
            keys.identify(&short).is_none()
        })
        .await;

        // The last use is written once, and only for keys that were identified.
        keys.touch(&store).await;
        let rows = store.key_list(None, &store::Page::default()).await;
        let row = rows.expect("keys").into_iter().find(|row| row.id == id);
        assert!(row.expect("the key").last_used_at.is_some());

        store.key_revoke(None, &id).await.expect("revoked");
        keys.refresh(&store).await.expect("refreshed");
        assert!(keys.identify(&lasting).is_none());
    }

    #[tokio::test]
    async fn without_the_database_keys_go_on_as_they_were() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path()).await;
        let token = new_token();
        put(&store, &token, store::Role::Admin, None).await;
        let keys = Keys::default();
        keys.refresh(&store).await.expect("refreshed");
        store.close().await;
        assert!(keys.identify(&token).is_some());
        keys.touch(&store).await;
        keys.refresh(&store).await.expect_err("no database");
        assert!(keys.identify(&token).is_some());
    }

    #[tokio::test]
    async fn removing_a_project_removes_its_keys() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path()).await;
        let token = new_token();
        put(&store, &token, store::Role::Manage, None).await;
        let keys = Keys::default();
        keys.refresh(&store).await.expect("refreshed");
        assert!(keys.identify(&token).is_some());
        let project = ProjectId::parse("a").expect("an id");
        store.project_delete(&project).await.expect("deleted");
        keys.refresh(&store).await.expect("refreshed");
        assert!(keys.identify(&token).is_none());
    }

    #[tokio::test]
    async fn the_first_run_makes_the_administrators_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path()).await;
        let (token, new) = bootstrap(&store, dir.path()).await.expect("a key");
        assert!(new && token.starts_with(PREFIX) && token.len() == 52);
        let file = dir.path().join(TOKEN_FILE);
        let mode = fs::metadata(&file).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            bootstrap(&store, dir.path()).await.expect("the same"),
            (token.clone(), false)
        );
        let keys = Keys::default();
        keys.refresh(&store).await.expect("refreshed");
        let who = keys.identify(&token).expect("known");
        assert!(who.may(Role::Admin, None));

        // This token file is older than the database.
        let older = tempfile::tempdir().expect("a directory");
        fs::write(older.path().join(TOKEN_FILE), "twh_0123456789abcdef\n").expect("written");
        let others = open(older.path()).await;
        let (token, new) = bootstrap(&others, older.path()).await.expect("a key");
        assert_eq!((&*token, new), ("twh_0123456789abcdef", false));
    }

    /// Replicas that start at the same time share one `TOOLWHARF_ADMIN_TOKEN`.
    #[tokio::test(flavor = "multi_thread")]
    async fn starts_at_the_same_time_agree_on_the_administrator() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("a directory");
            let store = open(dir.path()).await;
            let token = new_token();
            let mut starts = JoinSet::new();
            for _ in 0..4 {
                let (store, token) = (store.clone(), token.clone());
                starts.spawn(async move {
                    let own = tempfile::tempdir().expect("a directory");
                    fs::write(own.path().join(TOKEN_FILE), &token).expect("written");
                    bootstrap(&store, own.path()).await
                });
            }
            for start in starts.join_all().await {
                start.expect("the administrator");
            }
        }
    }

    #[tokio::test]
    async fn a_token_that_is_no_administrators_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path()).await;
        let file = dir.path().join(TOKEN_FILE);
        bootstrap(&store, dir.path()).await.expect("a key");
        let refused = async |store: &Store| {
            let outcome = bootstrap(store, dir.path()).await;
            outcome.expect_err("refused").to_string()
        };

        let lost = fs::read_to_string(&file).expect("the token");
        fs::remove_file(&file).expect("removed");
        assert!(refused(&store).await.contains("toolwharf key recover"));
        assert!(!file.exists(), "a token that opens nothing is left behind");

        fs::write(&file, "twh_0123456789abcdef").expect("written");
        assert!(refused(&store).await.contains("toolwharf key recover"));

        fs::write(&file, lost).expect("written");
        bootstrap(&store, dir.path()).await.expect("the key");

        // The last administrator cannot be revoked, but can expire.
        let other = tempfile::tempdir().expect("a directory");
        let store = open(other.path()).await;
        let past = store::now() - Duration::from_secs(1);
        let token = fs::read_to_string(&file).expect("the token");
        put(&store, token.trim(), store::Role::Admin, Some(past)).await;
        assert!(refused(&store).await.contains("remove the key"));
        fs::remove_file(&file).expect("removed");
        let (_, new) = bootstrap(&store, dir.path()).await.expect("a new key");
        assert!(new);
    }
}
