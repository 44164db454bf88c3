//! The recipe application of `examples/recipe-vault`, as its page has it started, and the chat page in a browser.

mod browser;
mod page;
mod vault;

#[path = "../common/mod.rs"]
mod common;
