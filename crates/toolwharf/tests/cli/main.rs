//! The command line through the real binary, with and without a gateway: output and exit codes.

mod support;

#[path = "../common/mod.rs"]
mod common;

mod chat;
mod doctor;
mod files;
mod finding;
mod projects;
mod running;
mod servers;
