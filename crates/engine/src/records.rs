//! Data that survives a restart: the logs of calls and events, catalogs and approved definitions; and encryption.

pub(crate) mod audit;
pub(crate) mod event_log;
pub(crate) mod pinned;
pub mod remember;
pub mod secrets;
pub(crate) mod server_cache;
