//! One server's part of a view: its items, under their exposed names. Parts are shared by successive snapshots.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use catalog::ListKind;
use discovery::{Segment, Vector};
use model::{NamingPolicy, NativeName, ProjectId, naming::Named};
use parking_lot::Mutex;
use relevance::{Meanings, Past};
use tokio::task::spawn_blocking;

use crate::views::{
    entry::Entry,
    index::{self, Index},
    source::Source,
};

/// One server's part of a view.
pub(crate) struct Part {
    pub(crate) source: Source,
    entries: [Arc<[Entry]>; 4],
    /// Tools that are kept back.
    pub(crate) kept: Arc<[Entry]>,
    /// True if a tool has an App.
    pub(crate) has_apps: bool,
    /// The index of its tools, in the order of the entries.
    index: OnceLock<Index>,
    /// The meanings of its tools, in the order of the entries.
    vectors: OnceLock<Vec<Vector>>,
    /// True if the meanings are there, or are being computed.
    is_claimed: AtomicBool,
    /// Words of earlier searches, with their version.
    past: Mutex<Option<(u64, Arc<discovery::Past>)>>,
    /// The approximate length of the definitions of its tools, in tokens.
    tokens: OnceLock<usize>,
}

impl Part {
    /// A part without items.
    pub(crate) fn empty(source: Source) -> Self {
        Self {
            source,
            entries: Default::default(),
            kept: Arc::default(),
            has_apps: false,
            index: OnceLock::new(),
            vectors: OnceLock::new(),
            is_claimed: AtomicBool::new(false),
            past: Mutex::default(),
            tokens: OnceLock::new(),
        }
    }

    pub(crate) fn entries(&self, kind: ListKind) -> &Arc<[Entry]> {
        &self.entries[kind as usize]
    }

    /// Replaces a list. Tools that are kept back are not offered.
    pub(crate) fn set(&mut self, kind: ListKind, mut entries: Vec<Entry>) {
        if kind == ListKind::Tools {
            let kept = entries.extract_if(.., |entry| entry.kept_back.is_some());
            self.kept = kept.collect();
            self.has_apps = entries.iter().any(Entry::has_app);
            self.index = OnceLock::new();
            self.vectors = OnceLock::new();
            self.is_claimed = AtomicBool::new(false);
            self.past = Mutex::default();
            self.tokens = OnceLock::new();
        }
        self.entries[kind as usize] = entries.into();
    }

    /// A part with the same items.
    pub(crate) fn copy(&self) -> Self {
        Self {
            source: self.source.clone(),
            entries: self.entries.clone(),
            kept: self.kept.clone(),
            has_apps: self.has_apps,
            index: OnceLock::new(),
            vectors: OnceLock::new(),
            is_claimed: AtomicBool::new(false),
            past: Mutex::default(),
            tokens: OnceLock::new(),
        }
    }

    /// The index of its tools. Computed at its first use.
    fn index(&self) -> &Index {
        self.index
            .get_or_init(|| index::index(&self.source, self.entries(ListKind::Tools)))
    }

    /// Its tools, for a search.
    pub(crate) fn segment(&self) -> &Segment {
        &self.index().segment
    }

    /// The exposed names of its tools, in the order of the segment. `None`: a tool that only an App may call.
    pub(crate) fn found_names(&self) -> Vec<Option<&str>> {
        let entries = self.entries(ListKind::Tools).iter();
        let entries = entries.zip(&*self.index().are_for_models);
        let names = entries.map(|(entry, is_for_models)| is_for_models.then_some(&*entry.exposed));
        names.collect()
    }

    /// The meanings of its tools. Empty until they are computed.
    pub(crate) fn vectors(&self) -> &[Vector] {
        self.vectors.get().map_or(&[], |vectors| vectors)
    }

    /// Returns whether the meanings of its tools have to be computed.
    pub(crate) fn is_unclaimed(&self) -> bool {
        !self.is_claimed.load(Ordering::Relaxed)
    }

    /// The right to compute the meanings of its tools. `None` if they are computed, or another task has it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Claim> {
        let is_claimed = self.is_claimed.swap(true, Ordering::Relaxed);
        (!is_claimed).then(|| Claim(self.clone()))
    }

    /// Words of earlier searches in its scope, for its tools.
    pub(crate) fn past(
        &self,
        past: &Past,
        project: Option<&ProjectId>,
    ) -> Option<Arc<discovery::Past>> {
        let server = self.source.server.key();
        let version = past.version(project, server)?;
        let mut known = self.past.lock();
        match &*known {
            Some((at, words)) if *at == version => Some(words.clone()),
            _ => {
                let natives = self.entries(ListKind::Tools).iter();
                let natives = natives.map(|entry| &*entry.item.native);
                let words = Arc::new(past.of(project, server, natives));
                *known = Some((version, words.clone()));
                Some(words)
            }
        }
    }

    /// Its tools that models may call.
    pub(crate) fn for_models(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.entries(ListKind::Tools).iter();
        let entries = entries.zip(&*self.index().are_for_models);
        entries.filter_map(|(entry, is_for_models)| is_for_models.then_some(entry))
    }

    /// The approximate length of the definitions of its tools, in tokens. Computed at its first use.
    pub(crate) fn tokens(&self) -> usize {
        let entries = || self.entries(ListKind::Tools).iter();
        let tokens = || {
            entries()
                .map(|entry| discovery::tokens(&entry.item.raw))
                .sum()
        };
        *self.tokens.get_or_init(tokens)
    }

    /// The entries that names lead to.
    pub(crate) fn routes(&self, kind: ListKind) -> HashMap<&Arc<str>, &Entry> {
        let entries = self.entries(kind).iter();
        let named = entries.flat_map(|entry| {
            let former = entry.former.as_ref().map(|former| (former, entry));
            former.into_iter().chain([(&entry.exposed, entry)])
        });
        named.collect()
    }

    /// Returns whether `now` has the same list for a client. `told`: clients may have this one, so it differs if it was
    /// stale and is fresh now.
    pub(crate) fn has_same(&self, now: &Self, kind: ListKind, told: bool) -> bool {
        let (before, after) = (self.entries(kind), now.entries(kind));
        let refreshed = told && self.source.is_stale && !now.source.is_stale;
        (before.is_empty() || !refreshed)
            && (Arc::ptr_eq(before, after)
                || before.len() == after.len()
                    && before
                        .iter()
                        .zip(&**after)
                        .all(|(one, two)| one.is_same(two)))
    }
}

/// The right to compute the meanings of a part's tools. If it is dropped before, they can be claimed again.
pub(crate) struct Claim(Arc<Part>);

impl Claim {
    /// Computes them. Takes milliseconds for each new tool. Returns false if that is impossible now.
    pub(crate) async fn embed(self, meanings: &Meanings) -> bool {
        let part = self.0.clone();
        let passages =
            spawn_blocking(move || index::passages(&part.source, part.entries(ListKind::Tools)));
        let Ok(passages) = passages.await else {
            return false;
        };
        let vectors = meanings.of_passages(&passages).await;
        vectors.is_some_and(|vectors| self.0.vectors.set(vectors).is_ok())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let is_done = self.0.vectors.get().is_some();
        self.0.is_claimed.store(is_done, Ordering::Relaxed);
    }
}

/// Returns whether an entry gets a name. Kept-back tools also get names, so that approving one does not rename others.
/// Exception: with the policy last-wins they stay unnamed, so that they do not replace another server's tool.
fn is_named(entry: &Entry, policy: NamingPolicy) -> bool {
    policy != NamingPolicy::LastWins || entry.kept_back.is_none()
}

/// The names of the entries before they are made unique.
pub(crate) fn natives(entries: &[Entry], policy: NamingPolicy) -> Vec<NativeName> {
    let entries = entries.iter().filter(|entry| is_named(entry, policy));
    entries.map(Entry::native_name).collect()
}

/// Gives entries their exposed names, which are in the order of the entries. Entries that should have a name and have
/// none are left out.
pub(crate) fn named(entries: Vec<Entry>, names: &[Named], policy: NamingPolicy) -> Vec<Entry> {
    let mut names = names.iter().peekable();
    let named = entries.into_iter().filter_map(|mut entry| {
        if is_named(&entry, policy) {
            let named = names.next_if(|named| named.native.as_str() == entry.name())?;
            entry.exposed = (&named.exposed).into();
            entry.former = named.former.as_ref().map(Arc::from);
        }
        Some(entry)
    });
    named.collect()
}
