//! The bounds of one run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Time from the start of the code to the end of the run, including the calls, without the time in which the clock
    /// stands still.
    pub wall: Duration,
    /// The same, with the time in which the clock stands still.
    pub total: Duration,
    /// Processor time of the code.
    pub cpu: Duration,
    /// Memory for the code's values, in bytes.
    pub memory: u64,
    pub calls: u32,
    /// Calls that run at the same time. Further calls wait in the process.
    pub calls_in_flight: u32,
    /// The source of the code, in bytes.
    pub code_bytes: usize,
    /// The arguments of one call, as JSON, in bytes.
    pub argument_bytes: usize,
    /// The result of one call, as JSON, in bytes. A larger result is an error in the code.
    pub result_bytes: usize,
    /// The text of `console.log`, in bytes. The rest is cut.
    pub output_bytes: usize,
    /// The returned value, as JSON, in bytes. The rest is cut.
    pub value_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(120),
            total: Duration::from_secs(3600),
            cpu: Duration::from_secs(10),
            memory: 64 << 20,
            calls: 500,
            calls_in_flight: 16,
            code_bytes: 256 << 10,
            argument_bytes: 1 << 20,
            result_bytes: 8 << 20,
            output_bytes: 64 << 10,
            value_bytes: 256 << 10,
        }
    }
}
