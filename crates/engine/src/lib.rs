//! The core of Toolwharf: decides which servers run, what they offer, what each caller sees, and where a call goes.
//!
//! The modules from the bottom up. Each uses only those above it in this list; `cargo xtask graph` checks that there
//! are no cycles.
//!
//! - `scope`: the part of the gateway that a caller addresses; `exchange`: the caller of a request, and its answer.
//! - [`catalog`]: what a server offers, as it sent it; [`uri`]: names of resources where several servers have some.
//! - [`remember`], `memory`, `pinned`: what is known about servers from earlier runs, and which tools are kept back
//!   because of it.
//! - [`lifecycle`]: when a server is started, stopped and restarted, as a pure function.
//! - `logins`: the sign-ins used for requests to servers ([`Logins`]).
//! - `runtimes`: the available runtimes; `connection`: a live connection to an instance; `launch`: how one is created
//!   ([`Connect`]).
//! - `gate`: which of several gateways runs a server ([`Gate`]).
//! - `status`: the status of a server; `commands`: requests to start or stop it; `queue`: its call queue; `questions`:
//!   its requests to clients; `subscriptions`: what is watched at it; `sessions`: instances for single sessions and
//!   callers.
//! - [`server`]: one server, which has all of these; `unavailable`: why its callers get no connection.
//! - `fleet`: all servers, and which scopes see them; `offers`: capabilities declared to clients.
//! - `entry`, `names`, `refusals`, [`view`]: what one caller sees of all catalogs, as an immutable snapshot.
//! - [`hub`], `announce`: notifications to clients. `audit`: the log of tool calls; `event_log`: the event log of
//!   servers. `hold`: calls that wait for a modern client's input; `tasks`: calls whose result is fetched later;
//!   `apps`: which app makes a call.
//! - `shared`: the state that all tasks share.
//! - `tokens`: access tokens in the environment of instances. `notifications`: keeps a server's catalog up to date; `chain`:
//!   gateways behind this one; `supervisor`: the loop that runs a server.
//! - `session_instances`: starts instances for single sessions and callers; `relay`: relays one call, across the eras;
//!   `skills` and `task_requests`: requests that are not simply relayed.
//! - [`gateway`]: the entry point for client requests. `declare`: changes to the fleet; `watch`: subscriptions of
//!   clients; `trial`: tries a server before it is declared; `update`: updates a server to a newer version of its
//!   package; `presence`: which servers are present, for an agent's turn. [`secrets`]: encryption.
//!
//! Invariants: a call is resolved on a snapshot and takes no lock that a list holds; no lock is held across an await;
//! every wait has a deadline and every queue a limit.

mod announce;
mod apps;
mod audit;
pub mod catalog;
mod chain;
mod commands;
mod connection;
mod declare;
mod elsewhere;
mod entry;
mod event_log;
mod exchange;
mod fleet;
mod gate;
pub mod gateway;
mod hold;
pub mod hub;
mod launch;
mod logins;
mod memory;
mod names;
mod notifications;
mod offers;
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
mod session_instances;
mod sessions;
mod shared;
mod skills;
mod status;
mod steps;
mod subscriptions;
mod supervisor;
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
pub use commands::Command;
pub use connection::{Connection, Placement};
pub use event_log::Warning;
pub use exchange::{ANONYMOUS, Answer, Caller};
pub use fleet::{Fleet, Project};
pub use gate::{CALLER, Gate, Held, RemoteReplica, Runs};
pub use gateway::Gateway;
pub use launch::{Connect, Hindrance, Launched, Refused, StartError};
pub use logins::{Issued, Logins, NoLogins};
pub use memory::{Remembered, config_digest};
pub use pinned::KeptBack;
pub use place::place_of;
pub use presence::Absent;
pub use runtimes::Runtimes;
pub use scope::Scope;
pub use status::{Crash, Left, Load, Status};
pub use trial::{TrialError, Tried};
pub use unavailable::Unavailable;
pub use update::{Candidate, UpdateError};
