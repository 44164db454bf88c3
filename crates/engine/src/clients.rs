//! What is kept for clients: their notifications, the calls that wait for their input, their tasks and apps.

pub(crate) mod announce;
pub(crate) mod apps;
pub(crate) mod hold;
pub mod hub;
pub(crate) mod tasks;
