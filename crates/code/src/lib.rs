//! Code mode: JavaScript that calls tools runs in QuickJS, in a separate process.
//!
//! - [`Runner`]: runs code in sandboxed processes. It keeps one started process ready.
//! - [`run`]: the gateway's side of one run, over any pair of byte streams.
//! - [`child`]: the process that interprets the code.
//! - [`identifiers`]: the names by which code calls tools.
//! - [`declarations`]: TypeScript declarations of tools, which tell a model how to call them.
//!
//! # Invariants
//!
//! - Code is interpreted only in a child process that has given up files, network and processes
//!   ([`runtime::sandbox::lock_down`]), inside a sandbox with no files. Without a sandbox, nothing runs.
//! - A process serves one run. No state passes from one run to another.
//! - Everything that the process sends is untrusted: it is bounded, and the run ends at the first message that does not
//!   follow the protocol.
//! - Time, processor time, memory, calls and output of a run are bounded. The caller may stop the clock for a while
//!   ([`Clock`]).
//! - One owner has at most half of the runs at a time.
//!
//! # Deliberately absent
//!
//! MCP and the path of a call: a caller of [`Runner::run`] makes each call, with the checks and records of a direct call.
//! Modules, timers that outlast the code, and state between runs.

pub mod child;
mod clock;
pub mod declarations;
mod limits;
mod message;
mod names;
mod outcome;
mod run;
mod runner;
mod turns;

pub use clock::{Clock, Pause};
pub use limits::Limits;
pub use names::{Declared, ToolName, identifiers};
pub use outcome::{End, Failure, FailureKind, Outcome, Value};
pub use run::{Call, Request, run};
pub use runner::{Error, Options, Runner};
