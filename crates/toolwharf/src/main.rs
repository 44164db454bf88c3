//! `toolwharf`: one endpoint over many MCP servers.
//!
//! `main` only chooses what to do. The surfaces are in [`gateway`], what operators ask for in [`ops`] and
//! [`rest`], the command line in [`cli`].

mod auth;
mod cli;
mod config;
mod gateway;
mod live;
mod master;
mod ops;
mod projects;
mod registry;
mod rest;
mod serve;
mod startup;

use std::process::ExitCode;

/// A call makes some dozens of small allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else: a sentinel has no runtime, and its argument is nobody's to see.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|arg| arg == startup::SENTINEL)
    {
        return runtime::sentinel::main();
    }
    cli::main()
}
