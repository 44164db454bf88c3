//! `toolwharf`: one endpoint for many MCP servers.
//!
//! `main` only selects what to run. The MCP surfaces are in [`gateway`], the operators' interfaces in [`ops`] and
//! [`rest`], the command line in [`cli`].

mod cli;
mod endpoint;
mod first_process;
mod logs;
mod memory;
mod ops;
mod replica_changes;
mod serve;
mod stdio;
mod upgrade;
mod webhook;

use std::process::ExitCode;

use backend::startup;

/// mimalloc suits this load, because a call makes some dozens of small allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The helper processes come first, because they need no async runtime, and their arguments are not those of the
    // command line.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == startup::SENTINEL => return runtime::sentinel::main(),
        Some(first) if first == startup::SHIM => {
            return runtime::sandbox::shim_main(&arguments.collect::<Vec<_>>());
        }
        Some(first) if first == code::child::ARGUMENT => return code::child::main(),
        _ => {}
    }
    if first_process::is_this() {
        return first_process::main();
    }
    mcp::gather::on_release(memory::give_back_here);
    cli::main()
}
