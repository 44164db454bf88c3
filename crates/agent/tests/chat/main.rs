//! The chat loop: real HTTP to a scripted model, and servers whose tools are functions.

mod support;

#[path = "../shared/mod.rs"]
mod shared;

mod content;
mod dropping;
mod keeping;
mod questions;
mod routing;
mod servers;
mod turns;
