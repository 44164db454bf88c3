//! The lists of servers, and data about servers from earlier runs.
//!
//! A [`Catalog`] has the lists of one server as the server sent them, and each item also in the form for views of several
//! servers. `fetch` reads the pages of a list, `definition` checks and repairs one definition, `compile` checks a schema.
//! [`remember`]: a catalog as text, and approved definitions (pins). `server_cache` saves both in the store. `pinned`: the
//! current pins of a server, and which tools are kept back because of them.
//!
//! Deliberately absent: when a list is fetched, how views merge catalogs, and who may see what.

mod catalog;
mod compile;
mod definition;
mod fetch;
mod kind;
pub mod pinned;
pub mod remember;
pub mod server_cache;

pub use catalog::{Catalog, Fate, Flaw, Item, List, has_view, is_for_models};
pub use fetch::{FetchError, fetch_list};
pub use kind::ListKind;
pub use pinned::{KeptBack, Pinned};
pub use server_cache::{Remembered, ServerCache, config_digest};
