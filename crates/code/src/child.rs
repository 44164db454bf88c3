//! The process of one run: interprets code in QuickJS, and asks the gateway to make calls.
//!
//! # What code finds
//!
//! - `servers.github.create_issue({...})`: each tool is an async function of an object, by the names of
//!   [`crate::identifiers`]. `call("name", {...})` calls a tool by its exposed name.
//! - A call returns the result's `structuredContent`. If that is absent and all content is text, it returns the text
//!   (the texts of several blocks are joined by line ends). Otherwise it returns the whole result.
//! - A call that fails throws an `Error` whose message is the server's, with the tool's exposed name as `tool`. If the
//!   server sent a result with `isError`, the error has it as `result`.
//! - `console.log` and its relatives, `setTimeout`, `clearTimeout`, and what the language itself has. `await` and
//!   `return` work at the top level.
//! - Modules, `fetch`, files, and everything else of Node.js and browsers are absent.
//!
//! # How a run ends
//!
//! - With the returned value, when the code has returned and all its calls have ended, including those that it did not
//!   wait for. Timers that are left are dropped.
//! - With a failure, as soon as the code throws, and when a limit is exceeded.
//! - The value is written as JSON. A `BigInt`, symbol or function becomes a string, a cycle `"[circular]"`, a `Map` or
//!   `Set` an array, an `Error` an object. If writing it throws, the run has failed.
//!
//! # Invariants
//!
//! - Nothing of the code is parsed before the process is locked down ([`runtime::sandbox::lock_down`]).
//! - Once the interrupt handler has stopped the code, it never runs again, whatever it catches.

mod engine;
mod position;
mod typescript;
mod watch;
mod wire;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use runtime::sandbox::{Allowance, lock_down};

use self::watch::Peak;
use self::wire::{Input, Received, send};
use crate::message::{FromChild, ToChild};

/// The argument that runs [`main`] in the product's binary.
pub const ARGUMENT: &str = "code-child";

/// Memory for everything but the code's values: messages, the TypeScript parser.
const MEMORY_BESIDES: u64 = 96 << 20;
/// Processor time beyond the limit of the code, after which the kernel kills the process.
const CPU_GRACE: Duration = Duration::from_secs(1);

/// The main function of the process. Returns after one run. Must not be called after another thread was started.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "code: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let mut input = Input::new();
    let (code, tools, limits) = match input.receive(None)? {
        Received::Message(ToChild::Run {
            code,
            tools,
            limits,
        }) => (code, tools, limits),
        Received::Message(_) => return Err(io::Error::other("only Toolwharf starts this command")),
        Received::Nothing | Received::Closed => return Ok(()),
    };
    let peak = Peak::open()?;
    lock_down(Allowance {
        memory: limits.memory.saturating_add(MEMORY_BESIDES),
        cpu: limits.cpu.saturating_add(CPU_GRACE),
    })?;
    let tools = serde_json::to_string(&tools)?;
    match engine::interpret(&code, &tools, &limits, peak, &mut input)? {
        Ok(value) => send(&FromChild::Done { value }),
        Err(failure) => send(&FromChild::Failed(failure)),
    }
}
