//! Information for searches that is not in the definitions of tools.
//!
//! [`Meanings`] are the vectors of texts, from a sentence model that runs in the process, or from an endpoint that an
//! administrator configured. [`Past`] has the words of earlier searches that led to a call.
//!
//! Invariants:
//! - A search never waits for the vectors of tools. It waits for those of its query for a bounded time. Without vectors, it
//!   compares words.
//! - The key to the endpoint appears in no error and no log. Neither do texts that the endpoint sent.
//!
//! Deliberately absent: views, and who may see a tool.

mod circuit;
mod endpoint;
mod meanings;
mod past;

pub use self::{
    endpoint::InvalidEndpoint,
    meanings::{LoadError, Meanings},
    past::{Past, Searcher},
};

#[cfg(test)]
mod tests;
