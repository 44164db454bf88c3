//! The data plane: JSON-RPC frames, both protocol eras, the bridge between them, and every transport,
//! over byte streams and URLs.
//!
//! Invariants:
//! - A frame is text that was validated once ([`json::validate`]) and is spliced afterwards, never re-typed:
//!   what a rewrite does not name stays as it was to the byte.
//! - Every queue, line, body, table and wait is bounded; what happens when a bound is met is said where it is.
//! - Nothing here knows processes, projects or SQL.

pub mod backlog;
pub mod bridge;
pub mod chain;
pub mod client;
pub mod elicit;
pub mod error;
pub mod extensions;
pub mod frame;
pub mod gather;
pub mod headers;
pub mod json;
pub mod lines;
pub mod outbox;
pub mod protocol;
pub mod server;
pub mod sse;
pub mod tasks;

pub use error::RpcError;
pub use frame::{Frame, Kind};
pub use protocol::{Era, Version};
