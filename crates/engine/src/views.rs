//! The view that one caller has of all servers.

pub(crate) mod entry;
pub(crate) mod find;
pub(crate) mod finders;
pub(crate) mod fleet;
mod index;
pub(crate) mod keeper;
pub(crate) mod merged;
pub(crate) mod missing;
pub(crate) mod offers;
pub(crate) mod part;
pub(crate) mod refusals;
mod render;
pub(crate) mod sign_ins;
pub(crate) mod source;
pub mod view;
