//! Long results of tools: the preview that a model gets instead, and the tool that reads the rest in parts.
//!
//! The gateway and the agent keep the text of a long result in different places. Both show [`preview`] to a model, and
//! answer it with [`read`]. The gateway replaces parts of a response: [`Long`] and [`compacted`].
//!
//! Invariants: every answer is within a [`Bound`]. A text that is no JSON, any arguments and any path are an error for the
//! model to read, never a panic. No JSON value is built: parts of the text are only skipped.
//!
//! Deliberately absent: where results are kept, and who may read them.

mod bound;
mod compact;
mod document;
mod find;
mod long;
mod path;
mod range;
mod read;
mod shape;
mod table;
mod tool;

pub use self::{
    bound::Bound,
    compact::compacted,
    document::{Document, preview},
    long::{Long, mime_of},
    read::read,
    tool::{READ_RESULT, URI_PREFIX, definition, description, schema},
};
