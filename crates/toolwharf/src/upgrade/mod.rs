//! Upgrades: a new process replaces the running gateway, and gets its sockets, its lock and its connections
//! (docs/decisions/0024).
//!
//! [`Upgrades`] is the side of the old gateway, [`Predecessor`] the side of the new one. [`control`] is the socket
//! through which `toolwharf upgrade` reaches the gateway. SIGUSR2 requests an upgrade too.
//!
//! Invariants:
//! - Until [`Message::Go`](backend::handover::Message::Go) is sent, the old gateway changes nothing, and a new one that
//!   is not ready is killed.
//! - The lock of the data directory is never free.
//!
//! Deliberately absent: passing the pipes of servers. The new gateway starts them again.

pub(crate) mod control;
mod predecessor;
mod program;
mod successor;

pub(crate) use self::{
    predecessor::Predecessor,
    program::own_program,
    successor::{Requests, Upgrades},
};
