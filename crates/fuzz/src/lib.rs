//! Fuzz targets: the parsers of outside input, and what must hold for every input.
//!
//! A [`Target`] is a function that gives any bytes to a parser of the product and panics if a property does not hold.
//! [`Target::check`] also panics if an input takes too long, needs too much memory, or leaves memory behind. Each target
//! has a folder of inputs in `corpus`. Two drivers make more inputs from them:
//!
//! - [`short`] changes them at random, the same way in every run. It needs no instrumented build, so CI uses it.
//! - `fuzz-target` links libFuzzer, which keeps the inputs that reach new code. `cargo xtask soak fuzz` uses it.
//!
//! Deliberately absent: parsers, and knowledge of how they work. A target may use what any crate of the workspace may
//! use.

mod budget;
mod corpus;
mod mutate;
mod pieces;
mod random;
pub mod short;
mod target;
mod targets;

pub use self::{
    corpus::{folder, inputs},
    target::{MAX_INPUT_BYTES, TARGETS, Target},
};
