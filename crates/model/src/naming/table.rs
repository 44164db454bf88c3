//! Names that are kept up to date as the list of one server after another changes.
//!
//! Invariant: the names are those of [`assign`] for the current lists, or of [`assign_apart`] if names cannot be
//! preserved. A change costs time in proportion to the lists of the servers whose names it can affect, for these reasons:
//!
//! - Names on the second and third rung belong to their own server, so only tools of that server can have them.
//! - Two servers therefore clash only on the first rung, where all tools with the same name climb at once. A further
//!   server with that name changes nothing for the others. Only the second one does, and the first one then climbs.
//! - Names on the last two rungs contain a hash. While a list contains such a name of another tool, each change assigns
//!   all names ([`Slot::collides`]). This does not happen by accident.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::{
    Clash, LONG_HASH, Labels, Ladder, MAX_LEN, Named, Pair, Replaced, SEPARATOR, assign,
    assign_apart, is_free, legal,
};
use crate::{NamingPolicy, NativeName, ServerName};

/// The exposed names of the tools (or prompts) of several servers.
#[derive(Debug)]
pub struct NameTable {
    policy: NamingPolicy,
    labels: Labels,
    servers: Vec<Listed>,
    /// The first server with each name. Another one with the same name gets no names.
    places: HashMap<ServerName, usize>,
    /// The names within the bound and, for former names, within [`MAX_LEN`].
    levels: Vec<Level>,
    /// The smaller bound. A name that is shorter is claimed within both or within none, so only the first level has it.
    least: usize,
    /// True if the current names are those of [`assign`] for all lists.
    is_whole: bool,
    visited: u64,
}

/// The result of a change of lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// The places of the servers whose names differ now.
    pub servers: Vec<usize>,
    /// Only under [`NamingPolicy::LastWins`]: the tools that are newly hidden.
    pub replaced: Vec<Replaced>,
    /// Only under [`NamingPolicy::Preserve`]: the new clashes of the servers whose lists were replaced.
    pub clashes: Vec<Clash>,
}

#[derive(Debug)]
struct Listed {
    server: ServerName,
    natives: Vec<NativeName>,
    names: Vec<Named>,
    replaced: Vec<Replaced>,
    clashes: Vec<Clash>,
    /// The server's entries in each level.
    entered: [Entered; 2],
}

#[derive(Debug, Default)]
struct Entered {
    claims: BTreeSet<Arc<str>>,
    hashed: Vec<Arc<str>>,
    former: Vec<Arc<str>>,
}

/// The names within one bound.
#[derive(Debug)]
struct Level {
    max_len: usize,
    slots: HashMap<Arc<str>, Slot>,
    /// The number of slots that collide.
    collisions: usize,
}

/// The uses of one name.
#[derive(Debug, Default)]
struct Slot {
    /// The servers with a tool that begins on the first rung with this name. Under [`NamingPolicy::LastWins`], all
    /// servers with such a tool.
    claims: Claims,
    /// The number of tools that pass the last two rungs with this name.
    hashed: u32,
    /// The number of tools with this former name, or with this hashed name within [`MAX_LEN`].
    former: u32,
}

/// The servers that claim a name, by place. Most names have one.
#[derive(Debug, Default)]
enum Claims {
    #[default]
    None,
    One(usize),
    Several(BTreeSet<usize>),
}

impl Claims {
    fn insert(&mut self, at: usize) {
        match self {
            Self::None => *self = Self::One(at),
            Self::One(known) => *self = Self::Several([*known, at].into()),
            Self::Several(all) => {
                all.insert(at);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        if let Self::Several(all) = self {
            all.remove(&at);
            if let (1, Some(last)) = (all.len(), all.last()) {
                *self = Self::One(*last);
            }
        } else {
            *self = Self::None;
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The last server, and another one if there are several.
    fn last_two(&self) -> (Option<usize>, Option<usize>) {
        match self {
            Self::None => (None, None),
            Self::One(at) => (Some(*at), None),
            Self::Several(all) => {
                let mut all = all.iter().rev().copied();
                (all.next(), all.next())
            }
        }
    }

    /// A server other than this one.
    fn other(&self, at: usize) -> Option<usize> {
        let (last, other) = self.last_two();
        last.filter(|last| *last != at).or(other)
    }
}

impl Slot {
    /// Returns whether tools of several servers may need the name in a way that only [`assign`] resolves.
    fn collides(&self) -> bool {
        let claims = u32::from(!self.claims.is_empty());
        let former = u32::from(self.former > 0);
        self.hashed + former > 0 && claims + self.hashed + former > 1
    }

    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.hashed + self.former == 0
    }
}

impl Level {
    fn edit(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Slot)) {
        let slot = self.slots.entry(name.clone()).or_default();
        self.collisions -= usize::from(slot.collides());
        change(slot);
        self.collisions += usize::from(slot.collides());
        if slot.is_empty() {
            self.slots.remove(name);
        }
    }

    /// Adds a claim, and adds the servers whose names depend on it to `affected`.
    fn claim(&mut self, name: &Arc<str>, at: usize, wins: bool, affected: &mut BTreeSet<usize>) {
        self.edit(name, |slot| {
            affected.extend(affected_by(slot, wins));
            slot.claims.insert(at);
        });
    }

    fn release(&mut self, name: &Arc<str>, at: usize, wins: bool, affected: &mut BTreeSet<usize>) {
        self.edit(name, |slot| {
            slot.claims.remove(at);
            affected.extend(affected_by(slot, wins));
        });
    }

    /// Returns whether another server claims the name.
    fn is_contested(&self, name: &str, at: usize) -> bool {
        let slot = self.slots.get(name);
        slot.is_some_and(|slot| slot.claims.other(at).is_some())
    }

    /// The last server that claims the name.
    fn last(&self, name: &str) -> Option<usize> {
        self.slots.get(name)?.claims.last_two().0
    }
}

/// The other server, if any, whose names change when a claim is added or removed.
fn affected_by(slot: &Slot, wins: bool) -> Option<usize> {
    let (last, other) = slot.claims.last_two();
    last.filter(|_| wins || other.is_none())
}

/// The names of one server, and its tools that are hidden.
type Outcome = (Vec<Named>, Vec<Replaced>);

/// The names of one server within one bound.
struct Worked {
    names: Vec<Named>,
    replaced: Vec<Replaced>,
    hashed: Vec<Arc<str>>,
}

impl NameTable {
    /// A table of servers that list nothing yet.
    #[must_use]
    pub fn new(
        servers: impl IntoIterator<Item = ServerName>,
        policy: NamingPolicy,
        max_len: usize,
    ) -> Self {
        let listed = |server| Listed {
            server,
            natives: Vec::new(),
            names: Vec::new(),
            replaced: Vec::new(),
            clashes: Vec::new(),
            entered: Default::default(),
        };
        let servers: Vec<Listed> = servers.into_iter().map(listed).collect();
        let mut places = HashMap::with_capacity(servers.len());
        for (at, listed) in servers.iter().enumerate() {
            places.entry(listed.server.clone()).or_insert(at);
        }
        let mut bounds = vec![max_len, MAX_LEN];
        bounds.dedup();
        let least = max_len.min(MAX_LEN);
        let level = |max_len| Level {
            max_len,
            slots: HashMap::new(),
            collisions: 0,
        };
        Self {
            policy,
            labels: Labels::new(places.keys()),
            servers,
            places,
            levels: bounds.into_iter().map(level).collect(),
            least,
            is_whole: false,
            visited: 0,
        }
    }

    /// The names of one server's tools, in the order of its list, each tool once.
    #[must_use]
    pub fn names(&self, at: usize) -> &[Named] {
        &self.servers[at].names
    }

    /// The number of tools named so far. It shows the cost of a change.
    #[must_use]
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// Replaces the lists of these servers.
    pub fn set(&mut self, lists: impl IntoIterator<Item = (usize, Vec<NativeName>)>) -> Renamed {
        let mut affected = BTreeSet::new();
        let mut listed = Vec::new();
        for (at, mut natives) in lists {
            if self.places[&self.servers[at].server] != at {
                continue;
            }
            let mut known = HashSet::new();
            natives.retain(|native| known.insert(native.clone()));
            self.servers[at].natives = natives;
            for level in 0..self.levels.len() {
                self.claim(at, level, &mut affected);
            }
            affected.insert(at);
            listed.push(at);
        }
        let mut renamed = Renamed::default();
        let mut names = Vec::with_capacity(affected.len());
        for at in affected {
            names.push((at, self.work_out(at)));
        }
        let collides = self.levels.iter().any(|level| level.collisions > 0);
        if collides || self.is_whole {
            names = self.whole();
        }
        self.is_whole = collides;
        for (at, (names, replaced)) in names {
            let listed = &mut self.servers[at];
            renamed.replaced.extend(new(&listed.replaced, &replaced));
            listed.replaced = replaced;
            if listed.names != names {
                listed.names = names;
                renamed.servers.push(at);
            }
        }
        if self.policy == NamingPolicy::Preserve {
            for at in listed {
                let clashes = self.clashes(at);
                renamed
                    .clashes
                    .extend(new(&self.servers[at].clashes, &clashes));
                self.servers[at].clashes = clashes;
            }
        }
        renamed
    }

    /// The form in which a tool is named on the first rung.
    fn native(&self, native: &NativeName, max_len: usize) -> String {
        match self.policy {
            NamingPolicy::Preserve => native.as_str().to_owned(),
            _ => legal(native, max_len),
        }
    }

    /// Replaces what a server claims in a level.
    fn claim(&mut self, at: usize, level: usize, affected: &mut BTreeSet<usize>) {
        let listed = &self.servers[at];
        let pairs: Vec<Pair<'_>> = listed.pairs();
        let max_len = self.levels[level].max_len;
        let wins = self.policy == NamingPolicy::LastWins;
        let known: HashSet<Pair<'_>> = pairs.iter().copied().collect();
        let claimed = |pair: &Pair<'_>| -> Option<Arc<str>> {
            let name = self.native(pair.native, max_len);
            let is_here = level == 0 || name.len() >= self.least;
            let is_claimed = || wins || is_free(*pair, &name, &self.labels, &known);
            let is_native = name == pair.native.as_str();
            (is_here && is_claimed()).then(|| match is_native {
                true => pair.native.into(),
                false => name.into(),
            })
        };
        let claims: BTreeSet<Arc<str>> = match self.policy {
            NamingPolicy::AlwaysPrefix => BTreeSet::new(),
            _ => pairs.iter().filter_map(claimed).collect(),
        };
        let before = std::mem::take(&mut self.servers[at].entered[level].claims);
        let level_of = &mut self.levels[level];
        for name in before.difference(&claims) {
            level_of.release(name, at, wins, affected);
        }
        for name in claims.difference(&before) {
            level_of.claim(name, at, wins, affected);
        }
        self.servers[at].entered[level].claims = claims;
    }

    /// Names the tools of one server, and enters the names in the levels.
    fn work_out(&mut self, at: usize) -> Outcome {
        self.visited += self.servers[at].natives.len() as u64;
        let first = self.worked(at, &self.levels[0]);
        let differs = self.servers[at].may_differ(self.least);
        let second = self.levels.get(1).filter(|_| differs);
        let second = second.map(|level| self.worked(at, level));
        let mut names = first.names;
        let mut former = Vec::new();
        if let Some(second) = &second {
            let own: HashSet<&str> = names.iter().map(|named| named.exposed.as_str()).collect();
            let theirs = second.names.iter();
            let theirs: HashMap<&NativeName, &Named> =
                theirs.map(|named| (&named.native, named)).collect();
            let found: Vec<_> = names
                .iter()
                .map(|named| {
                    let name = &theirs.get(&named.native)?.exposed;
                    (!own.contains(name.as_str())).then(|| name.clone())
                })
                .collect();
            for (named, name) in names.iter_mut().zip(found) {
                former.extend(name.as_ref().map(|name| Arc::from(name.as_str())));
                named.former = name;
            }
        }
        let second = second.map(|second| second.hashed).unwrap_or_default();
        let short = second.iter().filter(|name| name.len() < self.least);
        former.extend(short.cloned());
        self.enter(at, [first.hashed, second], former);
        (names, first.replaced)
    }

    fn worked(&self, at: usize, level: &Level) -> Worked {
        let (listed, labels, max_len) = (&self.servers[at], &self.labels, level.max_len);
        let pairs = listed.pairs();
        let native = |native: &NativeName| self.native(native, max_len);
        let level_of = |name: &str| match name.len() < self.least {
            true => &self.levels[0],
            false => level,
        };
        let mut replaced = Vec::new();
        let mut ladder = match self.policy {
            NamingPolicy::PrefixOnConflict | NamingPolicy::Preserve => {
                Ladder::new(pairs, labels, max_len, native)
            }
            NamingPolicy::AlwaysPrefix => Ladder::prefixed(pairs, labels, max_len),
            NamingPolicy::LastWins => {
                let mut kept = Vec::with_capacity(pairs.len());
                for pair in pairs {
                    let name = native(pair.native);
                    match level_of(&name).last(&name) {
                        Some(winner) if winner != at => replaced.push(Replaced {
                            native: pair.native.clone(),
                            loser: listed.server.clone(),
                            winner: self.servers[winner].server.clone(),
                        }),
                        _ => kept.push(pair),
                    }
                }
                Ladder::new(kept, labels, max_len, native)
            }
        };
        let mut hashed = Vec::new();
        let wins = self.policy == NamingPolicy::LastWins;
        ladder.settle(
            |name| !wins && level_of(name).is_contested(name, at),
            |name| hashed.push(name.into()),
        );
        Worked {
            names: ladder.named(),
            replaced,
            hashed,
        }
    }

    /// Replaces the names with a hash, and the former names, that a server has entered in the levels.
    fn enter(&mut self, at: usize, hashed: [Vec<Arc<str>>; 2], former: Vec<Arc<str>>) {
        let entered = &mut self.servers[at].entered;
        for ((level, entered), hashed) in self.levels.iter_mut().zip(entered).zip(hashed) {
            for name in &entered.hashed {
                level.edit(name, |slot| slot.hashed -= 1);
            }
            for name in &hashed {
                level.edit(name, |slot| slot.hashed += 1);
            }
            entered.hashed = hashed;
        }
        let (entered, level) = (&mut self.servers[at].entered[0], &mut self.levels[0]);
        for name in &entered.former {
            level.edit(name, |slot| slot.former -= 1);
        }
        for name in &former {
            level.edit(name, |slot| slot.former += 1);
        }
        entered.former = former;
    }

    /// Assigns all names anew.
    fn whole(&mut self) -> Vec<(usize, Outcome)> {
        let lists = self.servers.iter();
        let lists: Vec<_> = lists
            .map(|listed| (listed.server.clone(), listed.natives.clone()))
            .collect();
        self.visited += lists.iter().map(|(_, list)| list.len() as u64).sum::<u64>();
        let max_len = self.levels[0].max_len;
        let assigned = assign(&lists, self.policy, max_len);
        let assigned = assigned.unwrap_or_else(|_| assign_apart(&lists, max_len));
        let mut all: Vec<Outcome> = vec![Default::default(); lists.len()];
        for named in assigned.names {
            all[self.places[&named.server]].0.push(named);
        }
        for replaced in assigned.replaced {
            all[self.places[&replaced.loser]].1.push(replaced);
        }
        all.into_iter().enumerate().collect()
    }

    /// The names of a server that cannot be preserved, each with one other server.
    fn clashes(&self, at: usize) -> Vec<Clash> {
        let listed = &self.servers[at];
        let mut lists: HashMap<usize, HashSet<&str>> = HashMap::new();
        let mut other = |native: &NativeName| {
            if let Some(slot) = self.levels[0].slots.get(native.as_str()) {
                return slot.claims.other(at);
            }
            let (owner, rest) = self.labels.owner(native.as_str())?;
            let owner = *self.places.get(owner).filter(|owner| **owner != at)?;
            let list = || {
                let natives = self.servers[owner].natives.iter();
                natives.map(NativeName::as_str).collect()
            };
            let list = lists.entry(owner).or_insert_with(list);
            list.contains(rest).then_some(owner)
        };
        let mut clash = |native: &NativeName| {
            Some(Clash {
                name: native.clone(),
                first: self.servers[other(native)?].server.clone(),
                second: listed.server.clone(),
            })
        };
        listed.natives.iter().filter_map(&mut clash).collect()
    }
}

/// The elements of `now` that are not in `before`.
fn new<T: Clone + Eq + Hash>(before: &[T], now: &[T]) -> Vec<T> {
    let before: HashSet<&T> = before.iter().collect();
    let new = now.iter().filter(|one| !before.contains(one));
    new.cloned().collect()
}

impl Listed {
    fn pairs(&self) -> Vec<Pair<'_>> {
        let server = &self.server;
        let pairs = self.natives.iter().map(|native| Pair { server, native });
        pairs.collect()
    }

    /// Returns false if each tool has the same name on each rung within all bounds from `least` on.
    fn may_differ(&self, least: usize) -> bool {
        let around = self.server.as_str().len() + SEPARATOR.len() + LONG_HASH;
        let mut natives = self.natives.iter();
        natives.any(|native| around + native.as_str().len() > least)
    }
}
