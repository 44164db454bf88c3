//! The command line through the real binary, with and without a gateway: output and exit codes.

mod support;

#[path = "../common/mod.rs"]
mod common;

mod chat;
mod doctor;
mod files;
mod finding;
mod first_hour;
mod first_run;
mod projects;
mod records;
mod running;
mod secrets;
mod servers;
mod service;
mod usage;
mod wrong;
