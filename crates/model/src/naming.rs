//! Exposed names: what clients call the tools and prompts of many servers.
//!
//! Invariants, for every policy but `Preserve`: names are unique, consist of `[A-Za-z0-9_-]`
//! and have 1 to 64 characters; they depend only on *which* servers and tools there are,
//! never on their order (`LastWins` apart, where the order is the policy), the time or a
//! random number, so that they survive restarts. A legal name without a clash is unchanged.
//! `Preserve` leaves every name as the server gave it, legal or not.
//!
//! How: each name stands on a rung of a ladder. Native → `server__tool` → the same with 8 hex
//! digits of a hash → with 16 → the whole hash. All that clash climb by one, until none does.
//! The hash is over server and tool (on the first rung over the tool alone, so that the same
//! name of two servers still counts as a clash), and a name also bears one if it had to be
//! cut or if characters had to be replaced: else `a.b` and `a/b` would need each other's
//! presence to decide what they are called.
//!
//! Deliberately absent: enabled and disabled, projects, and what the names are used for.

use std::collections::{BTreeMap, HashMap, HashSet};

use sha2::{Digest, Sha256};

use crate::{ExposedName, NamingPolicy, NativeName, ServerName};

/// Longest exposed name, in characters; what model APIs accept.
pub const MAX_LEN: usize = 64;
/// Between the server's name and the tool's.
pub const SEPARATOR: &str = "__";

/// One name as clients see it, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub exposed: ExposedName,
    pub server: ServerName,
    pub native: NativeName,
}

/// A tool that is not offered because a later server has one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub native: NativeName,
    /// The server whose tool is gone.
    pub loser: ServerName,
    /// The server whose tool is offered in its place.
    pub winner: ServerName,
}

/// The outcome: `names` in the order of the input, each pair of server and tool once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub names: Vec<Named>,
    /// Only under [`NamingPolicy::LastWins`]: what a warning has to name.
    pub replaced: Vec<Replaced>,
}

/// One name that two servers offer under [`NamingPolicy::Preserve`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("servers `{first}` and `{second}` both offer `{name}`")]
pub struct Clash {
    pub name: NativeName,
    pub first: ServerName,
    pub second: ServerName,
}

/// Every clash there is, in the order of the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Clashes(pub Vec<Clash>);

/// Gives each tool (or prompt) of each server its exposed name. A name that one server lists
/// twice counts once.
///
/// # Errors
/// Under [`NamingPolicy::Preserve`], when two servers offer the same name.
pub fn assign(
    servers: &[(ServerName, Vec<NativeName>)],
    policy: NamingPolicy,
) -> Result<Assignment, Clashes> {
    let mut seen = HashSet::new();
    let pairs: Vec<Pair<'_>> = servers
        .iter()
        .flat_map(|(server, natives)| natives.iter().map(move |native| Pair { server, native }))
        .filter(|pair| seen.insert(*pair))
        .collect();
    match policy {
        NamingPolicy::PrefixOnConflict => Ok(climb(pairs, Rung::Native).into()),
        NamingPolicy::AlwaysPrefix => Ok(climb(pairs, Rung::Prefixed).into()),
        NamingPolicy::LastWins => Ok(last_wins(pairs)),
        NamingPolicy::Preserve => preserve(pairs),
    }
}

/// Whether a name can be shown to clients as it is.
#[must_use]
pub fn is_legal(name: &str) -> bool {
    (1..=MAX_LEN).contains(&name.len()) && name.chars().all(is_legal_char)
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
        Named {
            exposed: ExposedName::new(exposed),
            server: self.server.clone(),
            native: self.native.clone(),
        }
    }

    fn on(self, rung: Rung) -> String {
        let prefixed = || format!("{}{SEPARATOR}{}", self.server, self.native);
        match rung {
            Rung::Native => legal_or_hashed(self.native.as_str(), || hash(&[self.native.as_str()])),
            Rung::Prefixed => legal_or_hashed(&prefixed(), || self.hash()),
            Rung::ShortHash => with_suffix(&prefixed(), &self.hash()[..8]),
            Rung::LongHash => with_suffix(&prefixed(), &self.hash()[..16]),
            Rung::OnlyHash => self.hash(),
        }
    }

    fn hash(self) -> String {
        hash(&[self.server.as_str(), self.native.as_str()])
    }
}

/// Moves all that clash up by one rung until none does. Ends, because each round moves at
/// least one name up and the last rung is unique: it is the whole hash of a unique pair, and
/// whoever was merely called like it climbs away.
fn climb(pairs: Vec<Pair<'_>>, first: Rung) -> Vec<Named> {
    let mut places: Vec<(Rung, String)> = pairs.iter().map(|p| (first, p.on(first))).collect();
    loop {
        let mut count: HashMap<&str, usize> = HashMap::with_capacity(places.len());
        for (_, name) in &places {
            *count.entry(name).or_default() += 1;
        }
        let clashing: Vec<usize> = (0..places.len())
            .filter(|&i| count[places[i].1.as_str()] > 1 && places[i].0 != Rung::OnlyHash)
            .collect();
        if clashing.is_empty() {
            break;
        }
        for i in clashing {
            let rung = places[i].0.next();
            places[i] = (rung, pairs[i].on(rung));
        }
    }
    pairs
        .into_iter()
        .zip(places)
        .map(|(pair, (_, name))| pair.named(name))
        .collect()
}

fn last_wins(pairs: Vec<Pair<'_>>) -> Assignment {
    let winners: HashMap<&NativeName, &ServerName> = pairs
        .iter()
        .map(|pair| (pair.native, pair.server))
        .collect();
    let (kept, lost): (Vec<_>, Vec<_>) = pairs
        .into_iter()
        .partition(|pair| winners[pair.native] == pair.server);
    Assignment {
        replaced: lost
            .into_iter()
            .map(|pair| Replaced {
                native: pair.native.clone(),
                loser: pair.server.clone(),
                winner: winners[pair.native].clone(),
            })
            .collect(),
        names: climb(kept, Rung::Native),
    }
}

fn preserve(pairs: Vec<Pair<'_>>) -> Result<Assignment, Clashes> {
    let mut first: BTreeMap<&NativeName, &ServerName> = BTreeMap::new();
    let mut clashes = Vec::new();
    for pair in &pairs {
        if let Some(holder) = first.get(pair.native) {
            clashes.push(Clash {
                name: pair.native.clone(),
                first: (*holder).clone(),
                second: pair.server.clone(),
            });
        } else {
            first.insert(pair.native, pair.server);
        }
    }
    if !clashes.is_empty() {
        return Err(Clashes(clashes));
    }
    let names = pairs
        .into_iter()
        .map(|pair| pair.named(pair.native.as_str().to_owned()))
        .collect::<Vec<_>>();
    Ok(names.into())
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

fn legal_or_hashed(name: &str, hash: impl FnOnce() -> String) -> String {
    if is_legal(name) {
        name.to_owned()
    } else {
        with_suffix(name, &hash()[..8])
    }
}

/// The name with everything illegal replaced, cut so that `_` and the suffix still fit.
fn with_suffix(name: &str, suffix: &str) -> String {
    let room = MAX_LEN - suffix.len() - 1;
    let mut out: String = name
        .chars()
        .map(|c| if is_legal_char(c) { c } else { '_' })
        .take(room)
        .collect();
    out.push('_');
    out.push_str(suffix);
    out
}

/// SHA-256 in hexadecimal; a length before each part keeps `("a", "bc")` from `("ab", "c")`.
fn hash(parts: &[&str]) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part.as_bytes());
    }
    sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
