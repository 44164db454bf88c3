//! Finds tools by a description of the task.
//!
//! A [`Segment`] holds the analysed tools of one server. It is built once per catalog and shared by all views. [`search`]
//! ranks the visible tools of several segments: exact names first, then prefixes and small typing errors, then
//! relevance.
//!
//! Invariants:
//! - All functions are pure. They do no I/O, keep no state between calls, and never panic on outside input.
//! - Work and memory are bounded for every input. The documentation of each bound says what happens when it is reached.
//! - Results and scores do not depend on hidden tools of a segment, as long as the search stays within its bound on work.
//! - Deliberately absent: permissions. The caller passes the exposed name of each visible tool.

mod clauses;
mod fusion;
mod names;
mod part;
mod passage;
mod past;
mod postings;
mod ranking;
mod related;
mod schema;
mod search;
mod segment;
mod signature;
mod stem;
mod tokens;
mod vector;
mod words;

pub use self::{
    clauses::{MAX_CLAUSES, clauses, is_meaningful},
    names::Tier,
    part::Part,
    passage::passage,
    past::{Past, Word, query_words},
    search::{FieldScores, Hit, Query, search},
    segment::{Segment, Server, Tool},
    signature::signature,
    tokens::{beginning, has_at_most, tokens},
    vector::Vector,
};
