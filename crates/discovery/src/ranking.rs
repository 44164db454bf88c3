//! Relevance: which visible tools have the words of a query, or related words.
//!
//! The score is BM25 over weighted fields. A *group* is a word of the query with its related words, which count as
//! further, lighter occurrences of the word.
//!
//! Invariants: the number of tools that have a word counts visible tools only.

use crate::{
    part::Part,
    related::related,
    segment::{FIELDS, Field, Posting},
    words::{Term, each_stem},
};

/// Distinct words of a query that are used. Words after them are ignored.
const MAX_GROUPS: usize = 48;

/// How often a word of the query counts.
const MAX_REPEATS: f32 = 2.0;

/// How soon further occurrences of a word stop to increase the score.
const SATURATION: f32 = 1.2;

/// Terms of all groups of a query. It is divided among the groups, so a longer query has fewer related words per word.
const MAX_TERMS: usize = 640;

/// Pairs of a term and a tool that a search visits. When they are used up, further related words are left out; the words
/// of the query itself are not counted.
const MAX_RELATED_VISITS: usize = 100_000;

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

/// The tools of one part that have a term.
struct Found<'s> {
    part: usize,
    postings: &'s [Posting],
    /// The weight in the server's fields, for all tools of the part.
    server: f32,
    /// 1 for a word of the query, less for a related one.
    weight: f32,
}

/// A word of the query with its related words, and where they occur.
#[derive(Default)]
struct Group<'s> {
    repeats: f32,
    /// How rare the word is: that of the nearest related word if the word itself does not occur.
    rarity: f32,
    found: Vec<Found<'s>>,
}

/// A query, resolved in the parts of a search.
pub(crate) struct Ranking<'s> {
    /// The number of the first tool of each part among all tools, and their number at the end.
    bases: Vec<usize>,
    /// Whether a tool is visible, by its number among all tools.
    visible: Vec<bool>,
    groups: Vec<Group<'s>>,
}

impl<'s> Ranking<'s> {
    pub(crate) fn new(parts: &[Part<'s>], words: &[Word]) -> Self {
        let mut bases = vec![0];
        let mut visible = Vec::new();
        let mut visible_of = Vec::with_capacity(parts.len());
        for part in parts {
            let before = visible.len();
            visible.extend((0..part.segment.len()).map(|tool| part.exposed(tool).is_some()));
            bases.push(visible.len());
            visible_of.push(visible[before..].iter().filter(|visible| **visible).count());
        }
        let mut ranking = Self {
            bases,
            visible,
            groups: Vec::with_capacity(words.len()),
        };
        for word in words {
            let mut group = Group {
                repeats: word.repeats,
                ..Group::default()
            };
            ranking.add(parts, &visible_of, Term::of(&word.stem), 1.0, &mut group);
            ranking.groups.push(group);
        }
        let mut visits = 0;
        for (number, word) in words.iter().enumerate() {
            let mut group = std::mem::take(&mut ranking.groups[number]);
            for (term, weight) in related(Term::of(&word.stem)).take(MAX_TERMS / words.len()) {
                if visits < MAX_RELATED_VISITS {
                    visits += ranking.add(parts, &visible_of, term, weight, &mut group);
                }
            }
            ranking.groups[number] = group;
        }
        ranking
    }

    /// Adds a term to a group. Returns the number of tools to visit for it.
    fn add(
        &self,
        parts: &[Part<'s>],
        visible_of: &[usize],
        term: Term,
        weight: f32,
        group: &mut Group<'s>,
    ) -> usize {
        let (mut with, mut visits) = (0, 0);
        for (number, part) in parts.iter().enumerate() {
            let (postings, server) = part.segment.find(term);
            if visible_of[number] == 0 || postings.is_empty() && server == 0.0 {
                continue;
            }
            if server > 0.0 {
                with += visible_of[number];
                visits += part.segment.len();
            } else {
                let visible = &self.visible[self.bases[number]..];
                with += postings
                    .iter()
                    .filter(|posting| visible[posting.tool as usize])
                    .count();
                visits += postings.len();
            }
            group.found.push(Found {
                part: number,
                postings,
                server,
                weight,
            });
        }
        if with > 0 && group.rarity == 0.0 {
            group.rarity = rarity(with, visible_of.iter().sum());
        }
        visits
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
        let mut touched = Vec::new();
        for group in &self.groups {
            self.each(group, |tool, weight, _, _| {
                if weights[tool] == 0.0 {
                    touched.push(tool);
                }
                weights[tool] += weight;
            });
            for tool in touched.drain(..) {
                scores[tool] += group.score(std::mem::take(&mut weights[tool]));
            }
        }
        scores
    }

    /// The scores of some tools by field.
    pub(crate) fn by_field(&self, tools: &[usize]) -> Vec<[f32; FIELDS]> {
        let mut slots: Vec<usize> = vec![usize::MAX; self.len()];
        for (slot, tool) in tools.iter().enumerate() {
            slots[*tool] = slot;
        }
        let mut scores = vec![[0.0; FIELDS]; tools.len()];
        for group in &self.groups {
            let mut weights = vec![[0.0; FIELDS]; tools.len()];
            self.each(group, |tool, _, found, posting| {
                let Some(weights) = weights.get_mut(slots[tool]) else {
                    return;
                };
                weights[Field::Server as usize] += found.weight * found.server;
                let shares = posting.iter().flat_map(|posting| posting.shares);
                let weight = posting.map_or(0.0, |posting| posting.weight);
                for (sum, share) in weights.iter_mut().zip(shares) {
                    *sum += found.weight * weight * f32::from(share) / 255.0;
                }
            });
            for (scores, weights) in scores.iter_mut().zip(weights) {
                let sum: f32 = weights.iter().sum();
                if sum > 0.0 {
                    let per_weight = group.score(sum) / sum;
                    for (score, weight) in scores.iter_mut().zip(weights) {
                        *score += weight * per_weight;
                    }
                }
            }
        }
        scores
    }

    /// Calls `found` with each visible tool that has a word of the group: its number, the weight of the word, and what
    /// it is from.
    fn each(
        &self,
        group: &Group<'s>,
        mut each: impl FnMut(usize, f32, &Found<'s>, Option<&Posting>),
    ) {
        for found in &group.found {
            let tools = self.bases[found.part]..self.bases[found.part + 1];
            let first = tools.start;
            if found.server == 0.0 {
                for posting in found.postings {
                    let tool = first + posting.tool as usize;
                    if self.visible[tool] {
                        each(tool, found.weight * posting.weight, found, Some(posting));
                    }
                }
                continue;
            }
            let mut postings = found.postings.iter().peekable();
            for tool in tools {
                let posting = postings.next_if(|posting| first + posting.tool as usize == tool);
                if self.visible[tool] {
                    let weight = posting.map_or(0.0, |posting| posting.weight) + found.server;
                    each(tool, found.weight * weight, found, posting);
                }
            }
        }
    }
}

impl Group<'_> {
    fn score(&self, weight: f32) -> f32 {
        self.repeats * self.rarity * weight * (SATURATION + 1.0) / (SATURATION + weight)
    }
}

/// Inverse document frequency of a term that `with` of `all` tools have.
fn rarity(with: usize, all: usize) -> f32 {
    let without = (all - with) as f32;
    (1.0 + (without + 0.5) / (with as f32 + 0.5)).ln()
}
