//! The sentinel as a separate program. Only tests use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::sentinel::main()
}
