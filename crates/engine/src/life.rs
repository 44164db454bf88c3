//! The life of a server: its loop, the upkeep of its catalog, and its instances for single sessions and callers.

pub(crate) mod callers;
pub(crate) mod chain;
pub(crate) mod elsewhere;
mod lists;
mod noted;
mod notifications;
pub(crate) mod second;
pub(crate) mod session_instances;
pub(crate) mod supervisor;
pub(crate) mod tokens;
