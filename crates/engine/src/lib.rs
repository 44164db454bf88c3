//! What Toolwharf decides: which servers run, what they offer, who sees what, and where a call goes.
//!
//! - [`server`]: one configured server: its process or peer, its connection, its queue.
//! - `launch`: from a server's description to a connection ([`Connect`]).
//! - [`catalog`]: what a server offers, as it said it.
//! - [`view`]: what one caller sees of all catalogs: an immutable snapshot.
//! - `fleet`, `shared`: which servers there are, and the views of them.
//! - `exchange`: who asks, and what they get.
//! - [`gateway`]: the front door for requests of clients; `declare`: what changes the fleet; `watch`: what clients watch.
//! - `relay`: the way of one call, across the eras.
//! - `audit`: its record.
//! - `chain`: gateways behind this one, and why some must not be there.
//! - `presence`: which servers have something to offer now, for an agent's turn.
//! - [`remember`], `memory`, `pinned`: what is known of servers from earlier runs, and what is kept back for it.
//! - [`lifecycle`]: when a server is started, stopped and started again; `drive`: the loop that does it.
//! - `stock`: what a server says of itself; `status`: how it is.
//! - `own_tools`: what a session lists that has an instance of its own.
//! - `queue`: calls of one server that wait for their turn.
//! - `questions`: what servers ask the clients of their calls.
//! - `offers`: what is declared towards clients; `skills`: skills of several servers as one list.
//! - `apps`: whose app makes a call.
//! - `tasks`: calls whose result is fetched later.
//! - `hold`: calls that wait for a modern client's input.
//! - [`hub`], `announce`: who is told when something changes, and of what.
//!
//! Invariants: a call resolves on a snapshot and takes no lock that a list holds; no lock is held across an
//! await; every wait has a deadline and every queue an end.

mod announce;
mod apps;
mod audit;
pub mod catalog;
mod chain;
mod chronicle;
mod connection;
mod declare;
mod drive;
mod entry;
mod exchange;
mod fleet;
pub mod gateway;
mod hold;
pub mod hub;
mod launch;
pub mod lifecycle;
mod memory;
mod names;
mod offers;
mod orders;
mod own_instances;
mod pinned;
mod presence;
mod questions;
mod queue;
mod refresh;
mod refusals;
mod relay;
pub mod remember;
mod runtimes;
mod scope;
pub mod secrets;
pub mod server;
mod sessions;
mod shared;
mod skills;
mod status;
mod stock;
mod subscriptions;
mod task_requests;
mod tasks;
mod timers;
mod unavailable;
pub mod uri;
pub mod view;
mod watch;

pub use audit::NotRecorded;
pub use chronicle::Warning;
pub use connection::{Connection, Housing};
pub use exchange::{ANONYMOUS, Answer, Caller};
pub use fleet::{Fleet, Project};
pub use gateway::Gateway;
pub use launch::{Connect, Hindrance, Launched, Refused, StartError};
pub use memory::{Remembered, config_digest};
pub use orders::Order;
pub use pinned::KeptBack;
pub use presence::Absent;
pub use runtimes::Runtimes;
pub use scope::Scope;
pub use status::{Crash, Left, Load, Status};
pub use unavailable::Unavailable;
