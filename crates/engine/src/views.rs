//! The view that one caller has of all servers.

pub(crate) mod entry;
pub(crate) mod fleet;
pub(crate) mod missing;
pub(crate) mod names;
pub(crate) mod offers;
pub(crate) mod refusals;
pub(crate) mod sign_ins;
pub mod view;
