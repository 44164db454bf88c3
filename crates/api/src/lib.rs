//! What the REST API takes and answers, as types: for the gateway that serves it, and for the command line that asks it.
//!
//! Deliberately absent: how an answer comes about, and HTTP.

mod schema;
mod server;
mod wrong;

pub use self::{
    schema::any,
    server::{
        Crash, Enforced, Event, Events, Import, Imported, Limits, Port, Removed, Server, Servers,
        Unusable, Usage,
    },
    wrong::Wrong,
};

/// A point in time.
pub type Time = chrono::DateTime<chrono::Utc>;
