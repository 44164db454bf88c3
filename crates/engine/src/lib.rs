//! What Toolwharf decides: which servers run, what they offer, who sees what, and where a call goes.
//!
//! The modules, from the bottom up; each uses only what stands above it in this list, and `cargo xtask graph` checks that
//! there is no circle.
//!
//! - `scope`: which part of everything a caller addresses; `exchange`: who asks, and what they get.
//! - [`catalog`]: what a server offers, as it said it; [`uri`]: what resources are called where several servers have some.
//! - [`remember`], `memory`, `pinned`: what is known of servers from earlier runs, and what is kept back for it.
//! - [`lifecycle`]: when a server is started, stopped and started again, as a pure function.
//! - `logins`: whose sign-in requests to servers carry ([`Logins`]).
//! - `runtimes`: what runs a sandboxed server; `connection`: a conversation with an instance; `launch`: how one is made
//!   ([`Connect`]).
//! - `gate`: what only one gateway of several may run ([`Gate`]).
//! - `status`: how a server is; `orders`: what somebody wants of it; `queue`: calls that wait for their turn; `questions`: what
//!   it asks the clients of its calls; `subscriptions`: what is watched at it; `sessions`: who has an instance of their own.
//! - [`server`]: one server, which has all of these; `unavailable`: why its callers get no connection.
//! - `fleet`: which servers there are, and who sees them; `offers`: what is declared towards clients.
//! - `entry`, `names`, `refusals`, [`view`]: what one caller sees of all catalogs, as an immutable snapshot.
//! - [`hub`], `announce`: who is told when something changes, and of what. `audit`: the records of calls; `chronicle`: those of
//!   servers. `hold`: calls that wait for a modern client's input; `tasks`: calls whose result is fetched later; `apps`: whose
//!   app makes a call.
//! - `shared`: all of this, for all tasks.
//! - `tokens`: access tokens in the environment of instances. `stock`: what a server says of itself; `chain`: gateways behind this one; `drive`: the loop that runs a server.
//! - `own_instances`: instances of a session's own; `relay`: the way of one call, across the eras; `skills` and `task_requests`:
//!   requests that are not relayed as they are.
//! - [`gateway`]: the front door for requests of clients. `declare`: what changes the fleet; `watch`: what clients watch;
//!   `trial`: a server that is not declared yet; `update`: moving a server on to a newer version of its package;
//!   `presence`: which servers have something to offer now, for an agent's turn. [`secrets`]: sealing.
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
mod elsewhere;
mod entry;
mod exchange;
mod fleet;
mod gate;
pub mod gateway;
mod hold;
pub mod hub;
mod launch;
pub mod lifecycle;
mod logins;
mod memory;
mod names;
mod offers;
mod orders;
mod own_instances;
mod pinned;
mod place;
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
mod steps;
mod stock;
mod subscriptions;
mod task_requests;
mod tasks;
mod timers;
mod tokens;
mod trial;
mod unavailable;
mod update;
pub mod uri;
pub mod view;
mod watch;

pub use audit::NotRecorded;
pub use chronicle::Warning;
pub use connection::{Connection, Placement};
pub use exchange::{ANONYMOUS, Answer, Caller};
pub use fleet::{Fleet, Project};
pub use gate::{CALLER, Elsewhere, Gate, Held, Runs};
pub use gateway::Gateway;
pub use launch::{Connect, Hindrance, Launched, Refused, StartError};
pub use logins::{Issued, Logins, NoLogins};
pub use memory::{Remembered, config_digest};
pub use orders::Order;
pub use pinned::KeptBack;
pub use place::place_of;
pub use presence::Absent;
pub use runtimes::Runtimes;
pub use scope::Scope;
pub use status::{Crash, Left, Load, Status};
pub use trial::{TrialError, Tried};
pub use unavailable::Unavailable;
pub use update::{Candidate, UpdateError};
