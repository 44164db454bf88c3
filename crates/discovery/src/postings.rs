//! The tools that have a term.

use crate::words::Term;

/// Number of fields of a tool itself.
pub(crate) const TOOL_FIELDS: usize = 4;

/// A term of a tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posting {
    pub(crate) tool: u32,
    /// The sum of the weights of all fields.
    pub(crate) weight: f32,
    /// The share of each field of the tool in it, of 255.
    pub(crate) shares: [u8; TOOL_FIELDS],
}

/// Postings by term.
#[derive(Debug)]
pub(crate) struct Postings {
    /// In ascending order.
    terms: Vec<Term>,
    /// The first posting of each term, and their number at the end.
    starts: Vec<u32>,
    all: Vec<Posting>,
}

impl Postings {
    pub(crate) fn new(mut postings: Vec<(Term, Posting)>) -> Self {
        postings.sort_unstable_by_key(|(term, posting)| (*term, posting.tool));
        let mut new = Self {
            terms: Vec::new(),
            starts: Vec::new(),
            all: Vec::with_capacity(postings.len()),
        };
        for (number, (term, posting)) in (0_u32..).zip(postings) {
            if new.terms.last() != Some(&term) {
                new.terms.push(term);
                new.starts.push(number);
            }
            new.all.push(posting);
        }
        new.starts
            .push(u32::try_from(new.all.len()).unwrap_or(u32::MAX));
        new.terms.shrink_to_fit();
        new.starts.shrink_to_fit();
        new
    }

    /// In ascending order.
    pub(crate) fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The postings of a term, by the number of the tool.
    pub(crate) fn find(&self, term: Term) -> &[Posting] {
        match self.terms.binary_search(&term) {
            Ok(at) => &self.all[self.starts[at] as usize..self.starts[at + 1] as usize],
            Err(_) => &[],
        }
    }

    /// The memory of its lists, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.terms.capacity() * size_of::<Term>()
            + self.starts.capacity() * size_of::<u32>()
            + self.all.capacity() * size_of::<Posting>()
    }
}
