//! The logs that the engine writes: [`audit`], the log of tool calls, and [`event_log`], the events and last states of
//! servers.
//!
//! Deliberately absent: what is recorded and when, and the tables.

pub mod audit;
pub mod event_log;

pub use audit::{NotRecorded, recorded_error};
pub use event_log::Warning;
