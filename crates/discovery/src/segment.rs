//! The analysed tools of one server.
//!
//! Invariants:
//! - The data of a tool depend on this tool and its server only, not on other tools: lengths are compared
//!   with typical ones ([`Field::TYPICAL_WORDS`]), not with averages of the segment.
//! - A tool takes at most 4 KB.

use std::collections::HashMap;

use crate::{
    names::Name,
    postings::{Posting, Postings, TOOL_FIELDS},
    schema,
    words::{Term, each_stem},
};

/// Distinct terms that are stored per tool. The name comes first, then title, description, parameters and the text of
/// parameters; terms beyond the limit are left out.
const MAX_TERMS_PER_TOOL: usize = 128;

/// Distinct terms that are stored of a server's name, description and instructions.
const MAX_TERMS_PER_SERVER: usize = 96;

/// Words of one field that are read.
const MAX_WORDS_PER_FIELD: usize = 2000;

/// The data of a server that the ranking uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Server<'t> {
    pub name: &'t str,
    pub description: Option<&'t str>,
    /// The instructions in the response to the handshake.
    pub instructions: Option<&'t str>,
}

/// The data of a tool that the ranking uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tool<'t> {
    /// The native name.
    pub name: &'t str,
    pub title: Option<&'t str>,
    pub description: Option<&'t str>,
    /// The JSON Schema of its arguments, as text.
    pub input_schema: Option<&'t [u8]>,
    /// The object `annotations`, as JSON text.
    pub annotations: Option<&'t [u8]>,
}

/// A part of a definition, with its own weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    /// The title, the description and the annotations.
    Description,
    Parameters,
    /// Descriptions and allowed values of parameters.
    ParameterText,
    /// The server's name, description and instructions.
    Server,
    /// Words of earlier searches, which are not part of the definition ([`Past`](crate::Past)).
    Past,
}

pub(crate) const FIELDS: usize = TOOL_FIELDS + 2;

impl Field {
    const OF_TOOL: [Self; TOOL_FIELDS] = [
        Self::Name,
        Self::Description,
        Self::Parameters,
        Self::ParameterText,
    ];

    /// The weight of a word in this field, for fields of a definition.
    const WEIGHTS: [f32; TOOL_FIELDS + 1] = [3.0, 1.0, 1.0, 1.0, 1.0];

    /// The number of words at which the weight is not corrected.
    const TYPICAL_WORDS: [f32; TOOL_FIELDS + 1] = [3.0, 20.0, 4.0, 24.0, 3.0];

    /// The effect of the length of the field on the weight of a word: 0 not at all, 1 in proportion.
    const LENGTH_EFFECT: f32 = 0.5;

    /// The weight of a word that occurs `count` times in a field of `length` words.
    fn weight(self, count: f32, length: usize) -> f32 {
        let field = self as usize;
        let ratio = length as f32 / Self::TYPICAL_WORDS[field];
        Self::WEIGHTS[field] * count / (1.0 - Self::LENGTH_EFFECT + Self::LENGTH_EFFECT * ratio)
    }
}

/// The analysed tools of one server. See the [crate's documentation](crate).
#[derive(Debug)]
pub struct Segment {
    /// One bit per term, to exclude most terms without a search.
    filter: [u64; FILTER_WORDS],
    postings: Postings,
    /// The terms of the server with their weights, in ascending order.
    server: Vec<(Term, f32)>,
    names: Vec<Name>,
}

const FILTER_WORDS: usize = 64;

/// The word and the bit of a term in the filter.
fn filter_bit(term: Term) -> (usize, u64) {
    let index = term.0 >> 48;
    (
        usize::try_from(index >> 6).unwrap_or_default() % FILTER_WORDS,
        1 << (index & 63),
    )
}

impl Segment {
    /// Analyses the tools of a server. The order of `tools` gives them their numbers.
    pub fn new(server: &Server<'_>, tools: &[Tool<'_>]) -> Self {
        let mut all: Vec<(Term, Posting)> = Vec::new();
        for (number, tool) in (0_u32..).zip(tools) {
            all.extend(postings(number, tool));
        }
        let mut segment = Self {
            filter: [0; FILTER_WORDS],
            postings: Postings::new(all),
            server: server_terms(server),
            names: tools.iter().map(|tool| Name::new(tool.name)).collect(),
        };
        let own = segment.postings.terms().iter().copied();
        for term in own.chain(segment.server.iter().map(|(term, _)| *term)) {
            let (word, bit) = filter_bit(term);
            segment.filter[word] |= bit;
        }
        segment
    }

    /// The number of tools.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The memory that the segment takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.postings.bytes()
            + self.server.capacity() * size_of::<(Term, f32)>()
            + self.names.capacity() * size_of::<Name>()
            + self.names.iter().map(Name::bytes).sum::<usize>()
    }

    /// Native names, by the number of the tool.
    pub(crate) fn names(&self) -> &[Name] {
        &self.names
    }

    /// The postings of a term, by the number of the tool, and the term's weight in the server's fields.
    pub(crate) fn find(&self, term: Term) -> (&[Posting], f32) {
        let (word, bit) = filter_bit(term);
        if self.filter[word] & bit == 0 {
            return (&[], 0.0);
        }
        let postings = self.postings.find(term);
        let server = match self.server.binary_search_by_key(&term, |(term, _)| *term) {
            Ok(at) => self.server[at].1,
            Err(_) => 0.0,
        };
        (postings, server)
    }
}

/// Counts of terms by field.
struct Counts<const N: usize> {
    terms: HashMap<Term, [u16; N]>,
    lengths: [usize; N],
    limit: usize,
}

impl<const N: usize> Counts<N> {
    fn new(limit: usize) -> Self {
        Self {
            terms: HashMap::new(),
            lengths: [0; N],
            limit,
        }
    }

    fn add(&mut self, field: usize, text: &str) {
        each_stem(text, |stem| {
            self.lengths[field] += 1;
            let term = Term::of(&stem);
            if let Some(counts) = self.terms.get_mut(&term) {
                counts[field] = counts[field].saturating_add(1);
            } else if self.terms.len() < self.limit {
                let mut counts = [0; N];
                counts[field] = 1;
                self.terms.insert(term, counts);
            }
            self.lengths[field] < MAX_WORDS_PER_FIELD
        });
    }
}

fn postings(number: u32, tool: &Tool<'_>) -> Vec<(Term, Posting)> {
    let mut counts = Counts::<TOOL_FIELDS>::new(MAX_TERMS_PER_TOOL);
    counts.add(Field::Name as usize, tool.name);
    let annotations: serde_json::Value = tool
        .annotations
        .and_then(|json| serde_json::from_slice(json).ok())
        .unwrap_or_default();
    let mut titles = [
        tool.title,
        annotations.get("title").and_then(|title| title.as_str()),
    ];
    if titles[0] == titles[1] {
        titles[1] = None;
    }
    for text in titles.into_iter().chain([tool.description]).flatten() {
        counts.add(Field::Description as usize, text);
    }
    for (hint, words) in [
        ("readOnlyHint", "read only"),
        ("destructiveHint", "destructive"),
    ] {
        if annotations.get(hint) == Some(&true.into()) {
            counts.add(Field::Description as usize, words);
        }
    }
    let parameters = tool.input_schema.map(schema::words).unwrap_or_default();
    counts.add(Field::Parameters as usize, &parameters.names);
    counts.add(Field::ParameterText as usize, &parameters.text);
    let lengths = counts.lengths;
    let posting = |(term, counts): (Term, [u16; TOOL_FIELDS])| {
        let weights = Field::OF_TOOL
            .map(|field| field.weight(f32::from(counts[field as usize]), lengths[field as usize]));
        let weight: f32 = weights.iter().sum();
        let shares = weights.map(|share| (share / weight * 255.0) as u8);
        (
            term,
            Posting {
                tool: number,
                weight,
                shares,
            },
        )
    };
    counts.terms.into_iter().map(posting).collect()
}

fn server_terms(server: &Server<'_>) -> Vec<(Term, f32)> {
    let mut counts = Counts::<2>::new(MAX_TERMS_PER_SERVER);
    counts.add(0, server.name);
    for text in [server.description, server.instructions]
        .into_iter()
        .flatten()
    {
        counts.add(1, text);
    }
    let [name, text] = counts.lengths;
    let mut terms: Vec<(Term, f32)> = counts
        .terms
        .into_iter()
        .map(|(term, [in_name, in_text])| {
            let weight = Field::Server.weight(f32::from(in_name), name)
                + Field::Server.weight(f32::from(in_text), text);
            (term, weight)
        })
        .collect();
    terms.sort_unstable_by_key(|(term, _)| *term);
    terms
}
