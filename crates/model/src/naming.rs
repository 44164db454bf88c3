//! Exposed names: the names under which clients see the tools and prompts of all servers.
//!
//! Invariants, for every policy except `Preserve`:
//! - Names are unique, consist of `[A-Za-z0-9_-]` and have at least one character and at most as many as the caller
//!   allows (`max_len`).
//! - They depend only on *which* servers and tools exist, so they survive restarts. They do not depend on the order
//!   (except under `LastWins`, where the order is the policy), the time or random numbers.
//! - A legal name without a clash is unchanged.
//! - Within [`MAX_LEN`], a tool always has the same name. If a smaller or larger bound gives it another one, that name is
//!   its [`Named::former`] name.
//!
//! `Preserve` leaves every name as the server gave it, legal or not, unless it belongs to another server.
//!
//! No server can take another server's name. A name that begins with `server__` belongs to that server alone (if both
//! `a` and `a__b` fit, to the server with the longer name). A tool of another server never gets such a name, even if
//! the owner has no such tool. So `server__tool` always leads to that server, whatever other servers list, and under
//! `AlwaysPrefix` a name depends only on the server, its tool, and the names of the other servers.
//!
//! The algorithm gives each name a rung on a ladder:
//! 1. the native name
//! 2. `server__tool`
//! 3. `server__tool` with 8 hex digits of a hash
//! 4. `server_tool` with 16 hex digits of a hash, without any `__`, so that it belongs to no server
//! 5. the hash alone
//!
//! All names that clash climb by one rung until no two clash. If a native name clashes with a name on another rung,
//! only the native name climbs. A rung whose name would belong to another server is skipped.
//!
//! The hash covers the server and the tool. On the first rung it covers only the tool, so that the same name of two
//! servers still counts as a clash. A name also gets a hash if it was truncated or if characters were replaced.
//! Otherwise the names of `a.b` and `a/b` would depend on whether both exist.
//!
//! Names are truncated at the end. Under another bound than [`MAX_LEN`], a long server name does not displace the tool's:
//! its tools get names on rung 4, in which the server's name is truncated first.
//!
//! Deliberately absent: enabled and disabled tools, projects, and what the names are used for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;

use sha2::{Digest, Sha256};

use crate::{ExposedName, NamingPolicy, NativeName, ServerName};

mod table;

pub use self::table::{NameTable, Renamed};

/// Maximum length of a tool's name in many model APIs, in characters.
pub const MAX_LEN: usize = 64;
/// The longest prefix that usual clients add to names: with the name that `toolwharf connect` gives to its entry.
pub const CLIENT_PREFIX: &str = "mcp__toolwharf__";
/// The bounds that can be set. On the last rung, the smallest one leaves 128 bits of the hash. MCP recommends at most
/// 128 characters (2025-11-25 server/tools "Tool Names").
pub const BOUNDS: std::ops::RangeInclusive<usize> = 32..=128;
/// Characters that the longer hash adds to a name, with the `_` before it.
const LONG_HASH: usize = 17;
/// Separates the server's name from the tool's.
pub const SEPARATOR: &str = "__";

/// An exposed name and the tool that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub exposed: ExposedName,
    pub server: ServerName,
    pub native: NativeName,
    /// The name within [`MAX_LEN`], if it is another one and no tool is exposed under it. Calls may still use it.
    pub former: Option<ExposedName>,
}

impl Named {
    /// Returns false if the name is the same within all bounds from `max_len` on.
    fn may_be_truncated(&self, max_len: usize) -> bool {
        let (server, native) = (self.server.as_str(), self.native.as_str());
        let prefixed = server.len() + SEPARATOR.len() + native.len();
        let name = self.exposed.as_str();
        let is_whole = name.ends_with(native) && [native.len(), prefixed].contains(&name.len());
        let fits = is_whole && name.len() <= max_len;
        !fits && prefixed + LONG_HASH > max_len
    }
}

/// A tool that is not offered because a later server has one with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replaced {
    pub native: NativeName,
    /// The server whose tool is hidden.
    pub loser: ServerName,
    /// The server whose tool is offered instead.
    pub winner: ServerName,
}

/// The result. `names` are in the order of the input, with each pair of server and tool once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub names: Vec<Named>,
    /// Only under [`NamingPolicy::LastWins`]: the tools to warn about.
    pub replaced: Vec<Replaced>,
}

/// A name that two servers offer under [`NamingPolicy::Preserve`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("servers `{first}` and `{second}` both offer `{name}`")]
pub struct Clash {
    pub name: NativeName,
    pub first: ServerName,
    pub second: ServerName,
}

/// All clashes, in the order of the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Clashes(pub Vec<Clash>);

/// Assigns an exposed name to each tool (or prompt) of each server. A name that a server lists twice counts once.
/// `max_len`: the maximum length of a name, within [`BOUNDS`]. It does not apply to names that are preserved.
///
/// # Errors
/// Under [`NamingPolicy::Preserve`], if two servers offer the same name.
pub fn assign(
    servers: &[(ServerName, Vec<NativeName>)],
    policy: NamingPolicy,
    max_len: usize,
) -> Result<Assignment, Clashes> {
    let labels = Labels::of(servers);
    with_former(max_len, |max_len| {
        let pairs = pairs(servers);
        Ok(match policy {
            NamingPolicy::PrefixOnConflict => {
                let native = |native: &NativeName| legal(native, max_len);
                Ladder::new(pairs, &labels, max_len, native).climb().into()
            }
            NamingPolicy::AlwaysPrefix => Ladder::prefixed(pairs, &labels, max_len).climb().into(),
            NamingPolicy::LastWins => last_wins(pairs, &labels, max_len),
            NamingPolicy::Preserve => preserve(pairs, &labels, max_len)?,
        })
    })
}

/// The fallback if names cannot be preserved: names that clash get a prefix, and the others are unchanged.
#[must_use]
pub fn assign_apart(servers: &[(ServerName, Vec<NativeName>)], max_len: usize) -> Assignment {
    let labels = Labels::of(servers);
    let assigned: Result<_, Infallible> = with_former(max_len, |max_len| {
        Ok(verbatim(pairs(servers), &labels, max_len))
    });
    let Ok(assigned) = assigned;
    assigned
}

/// Assigns names within `max_len`, and adds those within [`MAX_LEN`] that differ.
fn with_former<E>(
    max_len: usize,
    assign: impl Fn(usize) -> Result<Assignment, E>,
) -> Result<Assignment, E> {
    let mut assigned = assign(max_len)?;
    let mut names = assigned.names.iter();
    if max_len == MAX_LEN || !names.any(|named| named.may_be_truncated(max_len.min(MAX_LEN))) {
        return Ok(assigned);
    }
    let key = |named: &Named| (named.server.clone(), named.native.clone());
    let former = assign(MAX_LEN)?.names.into_iter();
    let mut former: HashMap<_, _> = former.map(|named| (key(&named), named.exposed)).collect();
    let exposed: HashSet<ExposedName> = (assigned.names.iter())
        .map(|named| named.exposed.clone())
        .collect();
    for named in &mut assigned.names {
        let name = former.remove(&key(named));
        named.former = name.filter(|name| !exposed.contains(name));
    }
    Ok(assigned)
}

fn pairs(servers: &[(ServerName, Vec<NativeName>)]) -> Vec<Pair<'_>> {
    let mut seen = HashSet::new();
    servers
        .iter()
        .flat_map(|(server, natives)| natives.iter().map(move |native| Pair { server, native }))
        .filter(|pair| seen.insert(*pair))
        .collect()
}

/// The names of all servers. They determine to which server an exposed name belongs.
#[derive(Clone, Debug, Default)]
pub struct Labels(HashSet<ServerName>);

impl Labels {
    pub fn new<'a>(names: impl IntoIterator<Item = &'a ServerName>) -> Self {
        Self(names.into_iter().cloned().collect())
    }

    fn of(servers: &[(ServerName, Vec<NativeName>)]) -> Self {
        Self::new(servers.iter().map(|(name, _)| name))
    }

    /// The server that a name belongs to, and the part after its prefix.
    #[must_use]
    pub fn owner<'n>(&self, name: &'n str) -> Option<(&'n str, &'n str)> {
        let mut end = name.len();
        // Searches from the end, because the longest server name counts. Separators may overlap, as in `___`.
        while let Some(at) = name[..end].rfind(SEPARATOR) {
            let (label, rest) = (&name[..at], &name[at + SEPARATOR.len()..]);
            if self.0.contains(label) {
                return Some((label, rest));
            }
            end = at + SEPARATOR.len() - 1;
        }
        None
    }
}

/// Returns whether a name can be shown to clients unchanged.
#[must_use]
pub fn is_legal(name: &str, max_len: usize) -> bool {
    (1..=max_len).contains(&name.len()) && name.chars().all(is_legal_char)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair<'a> {
    server: &'a ServerName,
    native: &'a NativeName,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rung {
    Native,
    Prefixed,
    ShortHash,
    LongHash,
    OnlyHash,
}

impl Rung {
    fn next(self) -> Self {
        match self {
            Self::Native => Self::Prefixed,
            Self::Prefixed => Self::ShortHash,
            Self::ShortHash => Self::LongHash,
            Self::LongHash | Self::OnlyHash => Self::OnlyHash,
        }
    }
}

impl Pair<'_> {
    fn named(self, exposed: String) -> Named {
        let is_native = exposed == self.native.as_str();
        Named {
            exposed: match is_native {
                true => ExposedName::new(self.native),
                false => ExposedName::new(exposed),
            },
            server: self.server.clone(),
            native: self.native.clone(),
            former: None,
        }
    }

    /// The name on any rung except the first.
    fn on(self, rung: Rung, max_len: usize) -> String {
        let prefixed = || format!("{}{SEPARATOR}{}", self.server, self.native);
        match rung {
            Rung::Native | Rung::Prefixed => legal_or_hashed(&prefixed(), max_len, || self.hash()),
            Rung::ShortHash => with_suffix(&prefixed(), &self.hash()[..8], max_len),
            Rung::LongHash => nobodys(&self.short(max_len), &self.hash()[..16], max_len),
            Rung::OnlyHash => {
                let mut hash = self.hash();
                hash.truncate(max_len);
                hash
            }
        }
    }

    /// `server__tool`, in which the server's name leaves most of the space to the tool's. Within [`MAX_LEN`], names
    /// stay as they always were.
    fn short(self, max_len: usize) -> String {
        let (server, native) = (self.server.as_str(), self.native.as_str());
        let least = match max_len {
            MAX_LEN => usize::MAX,
            _ => max_len / 6,
        };
        let room = max_len.saturating_sub(LONG_HASH + 1 + native.len());
        let server: String = server.chars().take(room.max(least)).collect();
        format!("{server}{SEPARATOR}{native}")
    }

    /// Returns whether `server__tool` still shows enough of the tool's name after it was truncated.
    fn shows_tool(self, max_len: usize) -> bool {
        let (server, native) = (self.server.as_str().len(), self.native.as_str().len());
        let fits = server + SEPARATOR.len() + native <= max_len;
        max_len == MAX_LEN || fits || server <= max_len / 2
    }

    fn hash(self) -> String {
        hash(&[self.server.as_str(), self.native.as_str()])
    }
}

/// Pairs of server and tool, with the names that they have so far.
struct Ladder<'a> {
    pairs: Vec<Pair<'a>>,
    labels: &'a Labels,
    max_len: usize,
    /// The rung of each pair, and its name there.
    places: Vec<(Rung, String)>,
}

impl<'a> Ladder<'a> {
    /// Starts all pairs with their native names, converted by `native`. A name that belongs to another server is
    /// prefixed.
    fn new(
        pairs: Vec<Pair<'a>>,
        labels: &'a Labels,
        max_len: usize,
        native: impl Fn(&NativeName) -> String,
    ) -> Self {
        let known: HashSet<Pair<'_>> = pairs.iter().copied().collect();
        let mut ladder = Self::prefixed(pairs, labels, max_len);
        for (pair, place) in ladder.pairs.iter().zip(&mut ladder.places) {
            let name = native(pair.native);
            if is_free(*pair, &name, labels, &known) {
                *place = (Rung::Native, name);
            }
        }
        ladder
    }

    fn prefixed(pairs: Vec<Pair<'a>>, labels: &'a Labels, max_len: usize) -> Self {
        let places = pairs
            .iter()
            .map(|pair| place(*pair, Rung::Prefixed, labels, max_len));
        Self {
            places: places.collect(),
            pairs,
            labels,
            max_len,
        }
    }

    /// Moves all clashing names up by one rung until no two clash. This terminates, because each round moves at least
    /// one name up. The last rung is the hash of a unique pair, and any other name that equals it climbs.
    fn climb(mut self) -> Vec<Named> {
        self.settle(|_| false, |_| {});
        self.named()
    }

    /// Like [`Ladder::climb`], for the pairs of one server. A native name for which `is_contested` returns true clashes too. Passes each
    /// name on the last two rungs to `saw`, even if it climbs from there.
    fn settle(&mut self, is_contested: impl Fn(&str) -> bool, mut saw: impl FnMut(&str)) {
        let mut see = |(rung, name): &(Rung, String)| {
            if *rung >= Rung::LongHash {
                saw(name);
            }
        };
        self.places.iter().for_each(&mut see);
        loop {
            // The number of pairs with a name, and how many of these use their native name.
            let mut count: HashMap<&str, (usize, usize)> =
                HashMap::with_capacity(self.places.len());
            for (rung, name) in &self.places {
                let (all, native) = count.entry(name).or_default();
                *all += 1;
                *native += usize::from(*rung == Rung::Native);
            }
            let climbs = |(rung, name): &(Rung, String)| match (rung, count[name.as_str()]) {
                (Rung::Native, _) if is_contested(name) => true,
                (Rung::OnlyHash, _) | (_, (1, _)) => false,
                (Rung::Native, _) => true,
                // A name on another rung climbs only if none of the names that it clashes with is native: otherwise the
                // native name climbs.
                (_, (_, native)) => native == 0,
            };
            let clashing: Vec<usize> = (0..self.places.len())
                .filter(|&at| climbs(&self.places[at]))
                .collect();
            if clashing.is_empty() {
                break;
            }
            for at in clashing {
                let next = self.places[at].0.next();
                self.places[at] = place(self.pairs[at], next, self.labels, self.max_len);
                see(&self.places[at]);
            }
        }
    }

    fn named(self) -> Vec<Named> {
        let names = self.pairs.into_iter().zip(self.places);
        names.map(|(pair, (_, name))| pair.named(name)).collect()
    }
}

/// Returns whether the pair can start with this form of its native name. A name that belongs to a server is free only for
/// a tool of that server, unless another of its tools needs it. `known`: at least all pairs of that server.
fn is_free(pair: Pair<'_>, name: &str, labels: &Labels, known: &HashSet<Pair<'_>>) -> bool {
    labels.owner(name).is_none_or(|(owner, rest)| {
        let native = &NativeName::new(rest);
        let server = pair.server;
        owner == server.as_str() && !known.contains(&Pair { server, native })
    })
}

/// Finds the first rung, from `rung` on, whose name belongs to the pair's own server, or to no server by construction.
fn place(pair: Pair<'_>, mut rung: Rung, labels: &Labels, max_len: usize) -> (Rung, String) {
    loop {
        let name = pair.on(rung, max_len);
        let is_own = || {
            labels
                .owner(&name)
                .is_some_and(|(owner, _)| owner == pair.server.as_str())
        };
        if rung >= Rung::LongHash || pair.shows_tool(max_len) && is_own() {
            return (rung, name);
        }
        rung = rung.next();
    }
}

fn last_wins(pairs: Vec<Pair<'_>>, labels: &Labels, max_len: usize) -> Assignment {
    let legal = |native: &NativeName| legal(native, max_len);
    // Compares exposed names, because `a.b` may be exposed like another server's name.
    let names: Vec<String> = pairs.iter().map(|pair| legal(pair.native)).collect();
    let winners: HashMap<&str, &ServerName> = names
        .iter()
        .zip(&pairs)
        .map(|(name, pair)| (name.as_str(), pair.server))
        .collect();
    let mut kept = Vec::with_capacity(pairs.len());
    let mut replaced = Vec::new();
    for (pair, name) in pairs.iter().zip(&names) {
        let winner = winners[name.as_str()];
        if winner == pair.server {
            kept.push(*pair);
        } else {
            replaced.push(Replaced {
                native: pair.native.clone(),
                loser: pair.server.clone(),
                winner: winner.clone(),
            });
        }
    }
    Assignment {
        names: Ladder::new(kept, labels, max_len, legal).climb(),
        replaced,
    }
}

fn preserve(pairs: Vec<Pair<'_>>, labels: &Labels, max_len: usize) -> Result<Assignment, Clashes> {
    let mut first: BTreeMap<&NativeName, &ServerName> = BTreeMap::new();
    let known: HashSet<(&str, &str)> = pairs
        .iter()
        .map(|pair| (pair.server.as_str(), pair.native.as_str()))
        .collect();
    let mut clashes = Vec::new();
    for pair in &pairs {
        // A name with another server's prefix also leads to that server's tool.
        let owner = labels.owner(pair.native.as_str());
        let owner = owner.filter(|owner| owner.0 != pair.server.as_str() && known.contains(owner));
        let owner =
            owner.and_then(|owner| pairs.iter().find(|pair| pair.server.as_str() == owner.0));
        let holder = first.get(pair.native).copied();
        if let Some(holder) = holder.or(owner.map(|owner| owner.server)) {
            clashes.push(Clash {
                name: pair.native.clone(),
                first: holder.clone(),
                second: pair.server.clone(),
            });
        } else {
            first.insert(pair.native, pair.server);
        }
    }
    if !clashes.is_empty() {
        return Err(Clashes(clashes));
    }
    Ok(verbatim(pairs, labels, max_len))
}

/// Native names unchanged, legal or not, unless they belong to another server.
fn verbatim(pairs: Vec<Pair<'_>>, labels: &Labels, max_len: usize) -> Assignment {
    let native = |native: &NativeName| native.as_str().to_owned();
    Ladder::new(pairs, labels, max_len, native).climb().into()
}

impl From<Vec<Named>> for Assignment {
    fn from(names: Vec<Named>) -> Self {
        Self {
            names,
            replaced: Vec::new(),
        }
    }
}

impl Clashes {
    fn sentence(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Clash::to_string).collect();
        all.join("; ")
    }
}

fn is_legal_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// A native name in a form that clients accept.
#[must_use]
pub fn legal(native: &NativeName, max_len: usize) -> String {
    legal_or_hashed(native.as_str(), max_len, || hash(&[native.as_str()]))
}

fn legal_or_hashed(name: &str, max_len: usize, hash: impl FnOnce() -> String) -> String {
    if is_legal(name, max_len) {
        name.to_owned()
    } else {
        with_suffix(name, &hash()[..8], max_len)
    }
}

/// Replaces illegal characters and truncates the name, so that `_` and the suffix fit.
fn with_suffix(name: &str, suffix: &str, max_len: usize) -> String {
    let room = max_len - suffix.len() - 1;
    let mut out: String = name
        .chars()
        .map(|c| if is_legal_char(c) { c } else { '_' })
        .take(room)
        .collect();
    out.push('_');
    out.push_str(suffix);
    out
}

/// Like [`with_suffix`], but without `__` in the result: such a name belongs to no server.
fn nobodys(name: &str, suffix: &str, max_len: usize) -> String {
    let room = max_len - suffix.len() - 1;
    let mut out = String::with_capacity(max_len);
    for c in name.chars() {
        let c = if is_legal_char(c) { c } else { '_' };
        if out.len() < room && !(c == '_' && out.ends_with('_')) {
            out.push(c);
        }
    }
    if !out.ends_with('_') {
        out.push('_');
    }
    out + suffix
}

/// SHA-256 in hexadecimal. Each part is preceded by its length, to distinguish `("a", "bc")` from `("ab", "c")`.
fn hash(parts: &[&str]) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part.as_bytes());
    }
    hex::encode(sha.finalize())
}
