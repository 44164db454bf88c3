//! The example application `examples/recipe-vault`, started as its documentation says, and the gateway's pages in a
//! browser.

mod docs;
mod page;
mod vault;

#[path = "../common/mod.rs"]
mod common;
#[path = "../kept/mod.rs"]
mod kept;
