//! Relevance: which visible tools have the words of a query, or related words.
//!
//! The score is BM25 over weighted fields. A *group* is a word of the query with its related words, which count as
//! further, lighter occurrences of the word.
//!
//! Invariants: the number of tools that have a word counts visible tools only.

use crate::{
    part::Part,
    postings::Posting,
    related::related,
    segment::{FIELDS, Field},
    words::{Term, each_stem},
};

/// Distinct words of a query that are used. Words after them are ignored.
const MAX_GROUPS: usize = 40;

/// Further repetitions of a word in the query do not count.
const MAX_REPEATS: f32 = 2.0;

/// How soon further occurrences of a word stop to increase the score.
const SATURATION: f32 = 1.2;

/// Terms of all groups of a query. It is divided among the groups, so a longer query has fewer related words per word.
const MAX_TERMS: usize = 400;

/// Pairs of a term and a tool that a search visits. When they are used up, further related words are left out; the words
/// of the query itself are not counted. Hidden tools count, so in this case alone they can influence a search.
const MAX_RELATED_VISITS: usize = 50_000;

/// A word of a query.
pub(crate) struct Word {
    stem: String,
    repeats: f32,
}

/// The words of a query.
pub(crate) fn words(query: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    each_stem(query, |stem| {
        match words.iter_mut().find(|word| word.stem == stem) {
            Some(word) => word.repeats = (word.repeats + 1.0).min(MAX_REPEATS),
            None => words.push(Word { stem, repeats: 1.0 }),
        }
        words.len() < MAX_GROUPS
    });
    words
}

/// A term of a group: a word of the query, or a related word.
struct Wanted {
    group: usize,
    term: Term,
    /// 1 for a word of the query, less for a related one.
    weight: f32,
    /// The number of visible tools that have the term.
    with: usize,
    /// The number of tools to visit for it.
    visits: usize,
}

/// The tools of one part that have a term.
struct Found<'s> {
    part: usize,
    postings: &'s [Posting],
    /// The weight in the server's fields, for all tools of the part.
    server: f32,
    weight: f32,
    /// True if earlier searches have the term, false if definitions have it.
    is_past: bool,
}

/// A word of the query with its related words, and where they occur.
struct Group<'s> {
    repeats: f32,
    /// How rare the word is: that of the nearest related word if the word itself does not occur.
    rarity: f32,
    /// In the order of parts.
    found: Vec<Found<'s>>,
}

/// A query, resolved in the parts of a search.
pub(crate) struct Ranking<'s> {
    /// The number of the first tool of each part among all tools, and their number at the end.
    bases: Vec<usize>,
    /// True for visible tools, by their number among all tools.
    visible: Vec<bool>,
    groups: Vec<Group<'s>>,
}

/// The terms to search for: first the words of the query, then related words, nearest first for each word.
fn wanted(words: &[Word], related_weight: f32) -> Vec<Wanted> {
    let wanted = |group, (term, weight)| Wanted {
        group,
        term,
        weight,
        with: 0,
        visits: 0,
    };
    let terms: Vec<Term> = words.iter().map(|word| Term::of(&word.stem)).collect();
    let own = terms.iter().enumerate();
    let mut all: Vec<Wanted> = own
        .map(|(group, term)| wanted(group, (*term, 1.0)))
        .collect();
    let share = MAX_TERMS / words.len().max(1);
    for (group, term) in terms.iter().enumerate() {
        all.extend(
            related(*term)
                .take(share)
                .map(|(term, near)| wanted(group, (term, related_weight * near))),
        );
    }
    all
}

impl<'s> Ranking<'s> {
    /// `related_weight` is the weight of a related word with the same meaning, as a share of that of the word itself.
    pub(crate) fn new(parts: &[Part<'s>], words: &[Word], related_weight: f32) -> Self {
        let mut wanted = wanted(words, related_weight);
        let mut bases = vec![0];
        let mut visible = Vec::new();
        let mut all = 0;
        // Part by part, so that the part's memory is near.
        let mut found: Vec<(usize, Found<'s>)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let first = visible.len();
            visible.extend((0..part.segment.len()).map(|tool| part.exposed(tool).is_some()));
            bases.push(visible.len());
            let visible = &visible[first..];
            let count = visible.iter().filter(|visible| **visible).count();
            if count == 0 {
                continue;
            }
            all += count;
            for (index, wanted) in wanted.iter_mut().enumerate() {
                let (postings, server) = part.segment.find(wanted.term);
                let past = part.past.map_or(&[][..], |past| past.find(wanted.term));
                // Of an older list of tools, for instance.
                let past = &past
                    [..past.partition_point(|posting| (posting.tool as usize) < visible.len())];
                let is_new = |posting: &&Posting| {
                    let find = postings.binary_search_by_key(&posting.tool, |posting| posting.tool);
                    server == 0.0 && visible[posting.tool as usize] && find.is_err()
                };
                if !past.is_empty() {
                    wanted.with += past.iter().filter(is_new).count();
                    wanted.visits += past.len();
                }
                if server > 0.0 {
                    wanted.with += count;
                    wanted.visits += visible.len();
                } else if !postings.is_empty() {
                    wanted.with += if count == visible.len() {
                        postings.len()
                    } else {
                        let shown = |posting: &&Posting| visible[posting.tool as usize];
                        postings.iter().filter(shown).count()
                    };
                    wanted.visits += postings.len();
                }
                let weight = wanted.weight;
                let mut push = |postings, server, is_past| {
                    let found_here = Found {
                        part: number,
                        postings,
                        server,
                        weight,
                        is_past,
                    };
                    found.push((index, found_here));
                };
                if server > 0.0 || !postings.is_empty() {
                    push(postings, server, false);
                }
                if !past.is_empty() {
                    push(past, 0.0, true);
                }
            }
        }
        let mut groups: Vec<Group<'s>> = words
            .iter()
            .map(|word| Group {
                repeats: word.repeats,
                rarity: 0.0,
                found: Vec::new(),
            })
            .collect();
        let mut visits = 0;
        let is_used: Vec<bool> = wanted
            .iter()
            .enumerate()
            .map(|(index, wanted)| {
                if index >= words.len() {
                    visits += wanted.visits;
                }
                let group = &mut groups[wanted.group];
                let is_used = wanted.with > 0 && visits <= MAX_RELATED_VISITS;
                if is_used && group.rarity == 0.0 {
                    group.rarity = rarity(wanted.with, all);
                }
                is_used
            })
            .collect();
        for (index, found) in found {
            if is_used[index] {
                groups[wanted[index].group].found.push(found);
            }
        }
        Self {
            bases,
            visible,
            groups,
        }
    }

    /// The number of all tools, hidden ones included.
    pub(crate) fn len(&self) -> usize {
        self.visible.len()
    }

    /// The part and the number in it of a tool.
    pub(crate) fn place(&self, tool: usize) -> (usize, usize) {
        let part = self.bases.partition_point(|base| *base <= tool) - 1;
        (part, tool - self.bases[part])
    }

    /// The score of each tool: 0 for hidden tools, and for those that have none of the words.
    pub(crate) fn scores(&self) -> Vec<f32> {
        let mut scores = vec![0.0; self.len()];
        let mut weights = vec![0.0_f32; self.len()];
        for group in self.groups.iter().filter(|group| !group.found.is_empty()) {
            self.each(group, |tool, weight| weights[tool] += weight);
            for (score, weight) in scores.iter_mut().zip(&mut weights) {
                *score += group.score(*weight);
                *weight = 0.0;
            }
        }
        scores
    }

    /// The scores of some tools by field.
    pub(crate) fn by_field(&self, tools: &[usize]) -> Vec<[f32; FIELDS]> {
        let of_tool = |tool: &usize| {
            let (part, number) = self.place(*tool);
            let mut scores = [0.0; FIELDS];
            for group in &self.groups {
                let weights = group.weights(part, number);
                let sum: f32 = weights.iter().sum();
                if sum > 0.0 {
                    let per_weight = group.score(sum) / sum;
                    for (score, weight) in scores.iter_mut().zip(weights) {
                        *score += weight * per_weight;
                    }
                }
            }
            scores
        };
        tools.iter().map(of_tool).collect()
    }

    /// Calls `found` with each visible tool that has a word of the group: its number, and the weight of the word.
    fn each(&self, group: &Group<'s>, mut each: impl FnMut(usize, f32)) {
        for found in &group.found {
            let tools = self.bases[found.part]..self.bases[found.part + 1];
            let first = tools.start;
            if found.server == 0.0 {
                for posting in found.postings {
                    let tool = first + posting.tool as usize;
                    if self.visible[tool] {
                        each(tool, found.weight * posting.weight);
                    }
                }
                continue;
            }
            let mut postings = found.postings.iter().peekable();
            for tool in tools {
                let posting = postings.next_if(|posting| first + posting.tool as usize == tool);
                if self.visible[tool] {
                    let weight = posting.map_or(0.0, |posting| posting.weight);
                    each(tool, found.weight * (weight + found.server));
                }
            }
        }
    }
}

impl Group<'_> {
    /// The weights of the group's words in the fields of a tool.
    fn weights(&self, part: usize, tool: usize) -> [f32; FIELDS] {
        let mut weights = [0.0; FIELDS];
        let start = self.found.partition_point(|found| found.part < part);
        for found in self.found[start..]
            .iter()
            .take_while(|found| found.part == part)
        {
            weights[Field::Server as usize] += found.weight * found.server;
            let at = found
                .postings
                .binary_search_by_key(&tool, |posting| posting.tool as usize);
            if let Ok(at) = at {
                let posting = &found.postings[at];
                if found.is_past {
                    weights[Field::Past as usize] += found.weight * posting.weight;
                    continue;
                }
                for (sum, share) in weights.iter_mut().zip(posting.shares) {
                    *sum += found.weight * posting.weight * f32::from(share) / 255.0;
                }
            }
        }
        weights
    }

    fn score(&self, weight: f32) -> f32 {
        self.repeats * self.rarity * weight * (SATURATION + 1.0) / (SATURATION + weight)
    }
}

/// Inverse document frequency of a term that `with` of `all` tools have.
fn rarity(with: usize, all: usize) -> f32 {
    let without = (all - with) as f32;
    (1.0 + (without + 0.5) / (with as f32 + 0.5)).ln()
}
