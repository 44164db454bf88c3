//! The recipe application of `examples/recipe-vault`, as its page has it started, and the pages of the gateway in a browser.

mod browser;
mod docs;
mod page;
mod vault;

#[path = "../common/mod.rs"]
mod common;
