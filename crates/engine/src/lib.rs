//! The core of Toolwharf: decides which servers run, what they offer, what each caller sees, and where a call goes.
//!
//! The modules from the bottom up. Each uses only those above it in this list; `cargo xtask graph` checks that there
//! are no cycles.
//!
//! - `scope`: the part of the gateway that a caller addresses; `exchange`: the caller of a request, and its answer;
//!   `log_message`: log messages, for clients of a level.
//! - [`server`]: one server, with its connection (`connection`, and how one is created: `launch`, [`Connect`]), its
//!   separate servers for callers with header values (`callers`, `for_callers`), the available runtimes, the sign-ins
//!   for requests to it ([`Logins`]), which of several gateways runs it ([`Gate`]), its status, the requests to start or
//!   stop it (`commands`), its call queue, its requests to clients (`questions`), what is watched at it
//!   (`subscriptions`), its instances for single sessions and callers (`sessions`), and why its callers get no connection
//!   (`unavailable`).
//! - `views`: what one caller sees. `fleet`: all servers, and which scopes see them; `offers`: capabilities declared to
//!   clients; `finders`, `entry`, `source`, `index`, `part`, `refusals`, `sign_ins`, [`view`], `render`: all catalogs as an
//!   immutable snapshot; `find`: search mode; `merged`, `keeper`: the change from one snapshot to the next.
//! - `client_state`: what is kept for clients. [`hub`], `announce`: notifications to them; `code_run`: runs of code, which
//!   may have questions; `hold`: calls and runs that wait for a modern client's input; `tasks`: calls whose result is
//!   fetched later; `apps`: which app makes a call.
//! - `shared`: the state that all tasks share.
//! - `life`: the life of a server. `supervisor`: its loop, which carries out what [`lifecycle`] decides; `noted`: its
//!   events and warnings; `notifications`: keeps its catalog up to date; `session_instances`: starts instances for single
//!   sessions and callers; `callers`: starts the servers for callers with header values; `tokens`: access tokens in the
//!   environment of instances; `chain`: gateways behind this one; `elsewhere`: the life of a server that another gateway of
//!   the installation runs.
//! - `call`: the path of a call. `relay`: relays one, across the eras; `past`: what searches led to; `results`: previews of long
//!   results; `find`: answers tools that find others; `skills` and `task_requests`: requests that are not simply relayed.
//! - [`gateway`]: the entry point for client requests. `declare`: changes to the fleet; `watch`: subscriptions of
//!   clients; `trial`: tries a server before it is declared; `update`: updates a server to a newer version of its
//!   package; `presence`: which servers are present, for an agent's turn.
//!
//! Invariants: a call is resolved on a snapshot and takes no lock that a list request holds; no lock is held across an
//! await; every wait has a deadline and every queue a limit.

mod call;
mod client_state;
mod exchange;
pub mod gateway;
mod life;
mod log_message;
mod scope;
pub mod server;
mod shared;
mod views;

pub use client_state::{hub, savings::SavedTokens};
pub use exchange::{ANONYMOUS, Answer, Caller};
pub use gateway::{
    Gateway,
    presence::Absent,
    trial::{TrialError, Tried},
    update::{Candidate, UpdateError},
};
pub use life::callers::InvalidValue;
pub(crate) use mcp::uri;
pub use records::{NotRecorded, Warning, recorded_error};
pub use scope::Scope;
pub use server::{
    commands::Command,
    connection::{Connection, Placement},
    gate::{CALLER, Gate, Held, RemoteReplica, Runs},
    launch::{Connect, Hindrance, Launched, Refused, StartError},
    logins::{Issued, Logins, NoLogins},
    place::place_of,
    runtimes::Runtimes,
    status::{Crash, Left, Load, Status, Trouble},
    unavailable::Unavailable,
};
pub use views::{
    find::{Found, Hints, ListTokens},
    fleet::{Fleet, Project},
    view,
};
