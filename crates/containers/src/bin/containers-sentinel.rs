//! The sentinel as a program of its own, for the tests. No product depends on it.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::sentinel::main()
}
