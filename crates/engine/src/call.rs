//! The path of a call: relaying it, and requests that are not simply relayed.

pub(crate) mod find;
pub(crate) mod past;
pub(crate) mod relay;
pub(crate) mod results;
pub(crate) mod skills;
mod steps;
pub(crate) mod task_requests;
