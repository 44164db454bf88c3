//! The data plane: JSON-RPC frames, both protocol eras, the bridge between them, and all transports over byte streams
//! and URLs.
//!
//! Invariants:
//! - A frame is text that was validated once ([`json::validate`]) and is then edited by splicing, never re-serialised:
//!   parts that a rewrite does not touch stay byte for byte the same.
//! - Every queue, line, body, table and wait is bounded. The documentation of each bound says what happens when it is
//!   reached.
//! - Deliberately absent: processes, projects and SQL.

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
pub mod lenient;
pub mod lines;
pub mod outbox;
pub mod protocol;
pub mod server;
pub mod sse;
pub mod tasks;
pub mod uri;

pub use error::RpcError;
pub use frame::{Frame, Kind};
pub use protocol::{Era, Version};
