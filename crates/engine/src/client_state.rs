//! The state kept for clients: notifications, calls and runs of code that wait for input of a client, tasks and apps; and
//! what short lists saved them.

pub(crate) mod announce;
pub(crate) mod apps;
pub(crate) mod code_run;
pub(crate) mod hold;
pub mod hub;
pub(crate) mod savings;
pub(crate) mod tasks;
