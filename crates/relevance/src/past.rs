//! Words of searches that led to a successful call of a tool that they found.
//!
//! Searches of a caller are remembered for a few minutes. A successful call of a tool that one of them found credits the
//! words of the search to the tool, for searches of all callers in the same project.
//!
//! Invariants:
//! - Nothing of one project has an effect in another. Callers without a project are separate from those of every project.
//! - Words are kept as hashes, in memory only. A word has no effect before its second call.
//! - All tables are bounded. If one is full, its oldest entry is removed.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use discovery::Word;
use model::{ProjectId, ServerKey};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time after a search in which a call counts as its consequence.
const LEADS_WITHIN: Duration = Duration::from_secs(5 * 60);
/// Searches that are remembered of a caller, and callers.
const MAX_SEARCHES: usize = 4;
const MAX_CALLERS: usize = 1_000;
/// Tools with words, in all projects.
const MAX_TOOLS: usize = 10_000;
/// Words of a tool. Beyond it, those with the fewest calls are forgotten.
const MAX_WORDS: usize = 64;
/// Calls from which a word has an effect. A word that occurred once may name a person or a secret.
const LEAST_CALLS: f32 = 1.5;
/// With each credited call of a tool, the counts of its words become smaller by this factor. A word that led to two calls
/// loses its effect if the next 28 calls have other words.
const FADING: f32 = 0.99;

/// The caller of a search: the project that it addresses, its name, and its session if it has one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Searcher {
    pub project: Option<ProjectId>,
    pub principal: Arc<str>,
    pub session: Option<Box<str>>,
}

struct Search {
    at: Instant,
    words: Vec<Word>,
    /// The tools that it found, by their native names.
    found: Vec<(ServerKey, Box<str>)>,
}

/// A server, as one project sees it.
type Place = (Option<ProjectId>, ServerKey);

/// The words of a server's tools.
#[derive(Default)]
struct Server {
    /// Changes with every change of the words. No two states of any server have the same.
    version: u64,
    tools: HashMap<Box<str>, Tool>,
}

struct Tool {
    /// The number of the last credit.
    last: u64,
    words: Vec<(Word, f32)>,
}

#[derive(Default)]
struct Inner {
    searches: HashMap<Searcher, VecDeque<Search>>,
    servers: HashMap<Place, Server>,
    tools: usize,
    credits: u64,
}

/// Earlier searches and what they led to.
#[derive(Default)]
pub struct Past {
    inner: Mutex<Inner>,
}

impl Past {
    /// Notes a search with the tools that it found.
    pub fn searched(
        &self,
        who: Searcher,
        words: Vec<Word>,
        found: Vec<(ServerKey, Box<str>)>,
        now: Instant,
    ) {
        if words.is_empty() || found.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let searches = &mut inner.searches;
        if searches.len() >= MAX_CALLERS && !searches.contains_key(&who) {
            searches.retain(|_, all| all.back().is_some_and(|last| last.is_recent(now)));
            let times = searches
                .iter()
                .filter_map(|(who, all)| Some((all.back()?.at, who)));
            let oldest = times.min_by_key(|(at, _)| *at).map(|(_, who)| who.clone());
            if let Some(oldest) = oldest.filter(|_| searches.len() >= MAX_CALLERS) {
                searches.remove(&oldest);
            }
        }
        let own = searches.entry(who).or_default();
        if own.len() >= MAX_SEARCHES {
            own.pop_front();
        }
        own.push_back(Search {
            at: now,
            words,
            found,
        });
    }

    /// Returns whether a successful call of this tool would be credited to a search.
    #[must_use]
    pub fn expects(&self, who: &Searcher, server: &ServerKey, tool: &str, now: Instant) -> bool {
        let inner = self.inner.lock();
        let searches = inner.searches.get(who).into_iter().flatten();
        { searches }.any(|search| search.is_recent(now) && search.place_of(server, tool).is_some())
    }

    /// Notes a successful call: the latest search of the caller that found the tool is credited with it, once.
    pub fn called(&self, who: &Searcher, server: &ServerKey, tool: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let searches = inner.searches.get_mut(who).into_iter().flatten().rev();
        let led = { searches }.find_map(|search| {
            let place = search
                .place_of(server, tool)
                .filter(|_| search.is_recent(now))?;
            search.found.swap_remove(place);
            Some(search.words.clone())
        });
        if let Some(words) = led {
            inner.credit((who.project.clone(), server.clone()), tool, &words);
        }
    }

    /// The version of the words of a server's tools. `None` if they have no words.
    #[must_use]
    pub fn version(&self, project: Option<&ProjectId>, server: &ServerKey) -> Option<u64> {
        let inner = self.inner.lock();
        if inner.servers.is_empty() {
            return None;
        }
        let place = (project.cloned(), server.clone());
        Some(inner.servers.get(&place)?.version)
    }

    /// The words of a server's tools. `natives` are the tools' native names, in the order of the segment.
    #[must_use]
    pub fn of<'n>(
        &self,
        project: Option<&ProjectId>,
        server: &ServerKey,
        natives: impl Iterator<Item = &'n str>,
    ) -> discovery::Past {
        let inner = self.inner.lock();
        let found = inner.servers.get(&(project.cloned(), server.clone()));
        let tools = natives.enumerate().filter_map(|(number, native)| {
            let tool = found?.tools.get(native)?;
            Some(
                tool.words
                    .iter()
                    .map(move |(word, count)| (number, *word, *count)),
            )
        });
        let words = tools
            .flatten()
            .filter(|(_, _, count)| *count >= LEAST_CALLS);
        discovery::Past::new(words)
    }

    /// Forgets everything about a project.
    pub fn forget(&self, project: &ProjectId) {
        let is_other = |one: &Option<ProjectId>| one.as_ref() != Some(project);
        let mut inner = self.inner.lock();
        inner.searches.retain(|who, _| is_other(&who.project));
        inner.servers.retain(|(project, _), _| is_other(project));
        inner.tools = inner
            .servers
            .values()
            .map(|server| server.tools.len())
            .sum();
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        let credits = inner.credits;
        *inner = Inner {
            credits,
            ..Inner::default()
        };
    }
}

impl Search {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) <= LEADS_WITHIN
    }

    fn place_of(&self, server: &ServerKey, tool: &str) -> Option<usize> {
        let is_same = |(one, name): &(ServerKey, Box<str>)| one == server && **name == *tool;
        self.found.iter().position(is_same)
    }
}

impl Inner {
    fn credit(&mut self, place: Place, tool: &str, words: &[Word]) {
        self.credits += 1;
        let credits = self.credits;
        let is_known = self
            .servers
            .get(&place)
            .is_some_and(|server| server.tools.contains_key(tool));
        if !is_known {
            if self.tools >= MAX_TOOLS {
                self.forget_oldest();
            }
            self.tools += 1;
        }
        let server = self.servers.entry(place).or_default();
        server.version = credits;
        let tool = server.tools.entry(tool.into()).or_insert_with(|| Tool {
            last: credits,
            words: Vec::new(),
        });
        tool.last = credits;
        tool.credit(words);
    }

    /// Forgets the tool whose last credit is the longest ago.
    fn forget_oldest(&mut self) {
        let tools = self.servers.iter().flat_map(|(place, server)| {
            let tools = server.tools.iter();
            tools.map(move |(name, tool)| (tool.last, place, name))
        });
        let oldest = tools.min_by_key(|(last, ..)| *last);
        let Some((place, name)) = oldest.map(|(_, place, name)| (place.clone(), name.clone()))
        else {
            return;
        };
        if let Some(server) = self.servers.get_mut(&place) {
            server.tools.remove(&name);
            self.tools -= 1;
            server.version = self.credits;
            if server.tools.is_empty() {
                self.servers.remove(&place);
            }
        }
    }
}

impl Tool {
    fn credit(&mut self, words: &[Word]) {
        for (_, count) in &mut self.words {
            *count *= FADING;
        }
        for word in words {
            match self.words.iter_mut().find(|(known, _)| known == word) {
                Some((_, count)) => *count += 1.0,
                None => self.words.push((*word, 1.0)),
            }
        }
        if self.words.len() > MAX_WORDS {
            self.words.sort_by(|one, other| other.1.total_cmp(&one.1));
            self.words.truncate(MAX_WORDS);
        }
    }
}

#[cfg(test)]
mod tests {
    use discovery::{Part, Query, Segment, Server, Tool, query_words, search};
    use model::ServerName;

    use super::*;

    const TOOLS: [&str; 2] = ["alpha", "beta"];

    fn server() -> ServerKey {
        ServerKey {
            owner: None,
            name: ServerName::parse("things").expect("a name"),
        }
    }

    fn who(project: Option<&str>, principal: &str) -> Searcher {
        Searcher {
            project: project.map(|id| ProjectId::parse(id).expect("an id")),
            principal: principal.into(),
            session: None,
        }
    }

    fn searched(past: &Past, who: &Searcher, query: &str, now: Instant) {
        let found = TOOLS.map(|tool| (server(), tool.into())).to_vec();
        past.searched(who.clone(), query_words(query), found, now);
    }

    fn led(past: &Past, who: &Searcher, query: &str, tool: &str, now: Instant) {
        searched(past, who, query, now);
        past.called(who, &server(), tool, now);
    }

    /// The tools that a search finds by earlier searches alone.
    fn found(past: &Past, project: Option<&str>, query: &str) -> Vec<usize> {
        let tools = TOOLS.map(|name| Tool {
            name,
            ..Tool::default()
        });
        let segment = Segment::new(&Server::default(), &tools);
        let names = TOOLS.map(Some);
        let project = who(project, "").project;
        let past = past.of(project.as_ref(), &server(), TOOLS.into_iter());
        let part = Part::new(&segment, &names).with_past(Some(&past));
        let hits = search(&[part], &Query::new(query), 10);
        hits.iter().map(|hit| hit.tool).collect()
    }

    #[test]
    fn a_word_counts_from_the_second_call_in_its_project_only() {
        let (past, now) = (Past::default(), Instant::now());
        let (one, other) = (who(Some("p"), "one"), who(Some("p"), "other"));
        led(&past, &one, "zorp it", "beta", now);
        assert_eq!(found(&past, Some("p"), "zorp"), [0; 0]);
        let version = past.version(one.project.as_ref(), &server());
        led(&past, &other, "zorps", "beta", now);
        assert_eq!(found(&past, Some("p"), "a zorp"), [1]);
        assert_ne!(past.version(one.project.as_ref(), &server()), version);
        for project in [None, Some("q")] {
            assert_eq!(found(&past, project, "zorp"), [0; 0]);
            let project = who(project, "").project;
            assert_eq!(past.version(project.as_ref(), &server()), None);
        }
        past.forget(&ProjectId::parse("q").expect("an id"));
        assert_eq!(found(&past, Some("p"), "zorp"), [1]);
        past.forget(&ProjectId::parse("p").expect("an id"));
        assert_eq!(found(&past, Some("p"), "zorp"), [0; 0]);
        assert_eq!(past.inner.lock().tools, 0);
    }

    #[test]
    fn only_calls_that_follow_a_search_count_once() {
        let (past, now) = (Past::default(), Instant::now());
        let one = who(None, "one");
        let in_session = Searcher {
            session: Some("s".into()),
            ..one.clone()
        };
        let late = now + LEADS_WITHIN + Duration::from_secs(1);
        searched(&past, &one, "zorp", now);
        assert!(past.expects(&one, &server(), "beta", now));
        for (caller, tool, at) in [
            (&who(None, "other"), "beta", now),
            (&who(Some("p"), "one"), "beta", now),
            (&in_session, "beta", now),
            (&one, "gamma", now),
            (&one, "beta", late),
        ] {
            assert!(!past.expects(caller, &server(), tool, at), "{tool}");
            past.called(caller, &server(), tool, at);
        }
        past.called(&one, &server(), "beta", now);
        assert!(!past.expects(&one, &server(), "beta", now));
        past.called(&one, &server(), "beta", now);
        assert_eq!(found(&past, None, "zorp"), [0; 0], "one call was credited");
        led(&past, &one, "zorp", "beta", now);
        assert_eq!(found(&past, None, "zorp"), [1]);
        past.clear();
        assert_eq!(found(&past, None, "zorp"), [0; 0]);
    }

    #[test]
    fn words_fade() {
        let (past, now) = (Past::default(), Instant::now());
        let one = who(None, "one");
        led(&past, &one, "zorp", "beta", now);
        led(&past, &one, "zorp", "beta", now);
        for _ in 0..40 {
            led(&past, &one, "quux", "alpha", now);
        }
        assert_eq!(found(&past, None, "zorp"), [1]);
        for _ in 0..40 {
            led(&past, &one, "quux", "beta", now);
        }
        assert_eq!(found(&past, None, "zorp"), [0; 0]);
        assert_eq!(found(&past, None, "quux").len(), 2);
    }

    #[test]
    fn every_table_is_bounded() {
        let (past, now) = (Past::default(), Instant::now());
        // Words without digits.
        let word = |number: usize| -> String {
            let letters = number.to_string().into_bytes();
            let letters = letters.into_iter().map(|digit| char::from(digit + 49));
            letters.collect()
        };
        let one = who(None, "one");
        for number in 0..MAX_TOOLS + 10 {
            let tool = word(number);
            let found = vec![(server(), tool.as_str().into())];
            past.searched(one.clone(), query_words("zorp"), found, now);
            past.called(&one, &server(), &tool, now);
        }
        for number in 0..MAX_CALLERS + 10 {
            searched(&past, &who(None, &word(number)), "zorp", now);
        }
        for query in ["one", "two", "three", "four", "five"] {
            searched(&past, &who(None, "last"), query, now);
        }
        let inner = past.inner.lock();
        assert_eq!(inner.searches.len(), MAX_CALLERS);
        assert_eq!(inner.searches[&who(None, "last")].len(), MAX_SEARCHES);
        assert_eq!(inner.tools, MAX_TOOLS);
        let tools = &inner.servers[&(None, server())].tools;
        assert_eq!(tools.len(), MAX_TOOLS);
        assert!(!tools.contains_key(&*word(9)) && tools.contains_key(&*word(10)));
        drop(inner);
        let past = Past::default();
        for number in 0..200 {
            let query = format!("often {}", word(number));
            led(&past, &who(None, "one"), &query, "beta", now);
        }
        let inner = past.inner.lock();
        let words = &inner.servers[&(None, server())].tools["beta"].words;
        assert_eq!(words.len(), MAX_WORDS);
        assert_eq!(words.iter().filter(|(_, count)| *count > 10.0).count(), 1);
    }
}
