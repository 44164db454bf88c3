//! The command line through the real binary: with a gateway and without one, its words, its exit codes.

mod support;

#[path = "../common/mod.rs"]
mod common;

mod files;
mod finding;
mod running;
