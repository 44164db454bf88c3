//! The gateway's side of one run: sends the code, makes the calls that it asks for, and collects what it prints.
//!
//! # Invariants
//!
//! - The process on the other side is untrusted. Lines, names, arguments, output, and the number of calls are bounded. At
//!   the first message that the protocol does not allow, the run ends with [`End::Broken`].
//! - At most `calls_in_flight` calls run. The process holds further ones back; if it does not, the run ends.
//! - The gateway reads while it writes, so a process that does not read cannot stop it.
//! - When the run ends, or its future is dropped, the futures of its calls are dropped.
//! - The gateway's clock decides how long the run takes. The process has a copy of it, to report the line of the code.

mod lines;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until};

use self::lines::{Lines, Next};
use crate::clock::{Clock, Countdown};
use crate::limits::Limits;
use crate::message::{FromChild, ToChild, Tools, line};
use crate::names::Declared;
use crate::outcome::{End, Failure, FailureKind, Outcome, Value};

/// Time that the process has to report that the time is over. It knows the line of the code.
const WALL_GRACE: Duration = Duration::from_millis(500);
/// Bytes of a line in addition to the text that it carries.
const MAX_ENVELOPE_BYTES: usize = 64 << 10;
/// JSON writes a control character in six bytes.
const ESCAPED: usize = 6;
/// The note that says that the output was cut.
const MAX_NOTE_BYTES: usize = 256;
const MAX_NAME_BYTES: usize = 4 << 10;
/// Longer messages and stacks of failed runs are cut.
const MAX_FAILURE_BYTES: usize = 16 << 10;
/// Longer messages of failed calls are cut.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The body of an async function, in JavaScript or TypeScript.
    pub code: String,
    /// The tools that `servers` offers. `call` accepts other names as well: they are checked when the call is made.
    pub tools: Vec<Declared>,
    /// Stops the time that the run may take.
    pub clock: Clock,
}

/// A call that the code makes.
#[derive(Debug)]
pub struct Call {
    /// Counted from 1 in each run.
    pub id: u32,
    /// The exposed name, as the code gave it.
    pub name: String,
    /// A JSON object.
    pub arguments: Box<RawValue>,
}

/// Drives one run to its end. `reader` and `writer` are the process's standard output and input.
///
/// `call` makes a call. It returns the result of `tools/call` as JSON, or the message of an error for the code.
///
/// # Cancel safety
/// Dropping the future drops the calls that are running. The process then ends when its input closes, or is killed by
/// its owner.
pub async fn run<R, W, C, F>(
    reader: R,
    writer: W,
    request: Request,
    limits: &Limits,
    call: C,
) -> Outcome
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    C: FnMut(Call) -> F,
    F: Future<Output = Result<Box<RawValue>, String>>,
{
    let started = Instant::now();
    let mut state = State {
        limits,
        output: String::new(),
        calls: 0,
    };
    let end = match refusal(&request, limits) {
        Some(failure) => End::Failed(failure),
        None => state.drive(reader, writer, request, call).await,
    };
    Outcome {
        end,
        output: state.output,
        calls: state.calls,
        elapsed: started.elapsed(),
    }
}

/// Why a request is not started at all.
pub(crate) fn refusal(request: &Request, limits: &Limits) -> Option<Failure> {
    (request.code.len() > limits.code_bytes).then(|| {
        let message = format!("the code is longer than {} bytes", limits.code_bytes);
        Failure::new(FailureKind::Syntax, message)
    })
}

struct State<'a> {
    limits: &'a Limits,
    output: String,
    calls: u32,
}

/// The next step after a message.
enum Step {
    Go,
    Call(Call),
    End(End),
}

impl State<'_> {
    async fn drive<R, W, C, F>(
        &mut self,
        reader: R,
        mut writer: W,
        request: Request,
        mut call: C,
    ) -> End
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
        C: FnMut(Call) -> F,
        F: Future<Output = Result<Box<RawValue>, String>>,
    {
        let limits = self.limits;
        let mut countdown = Countdown::start(&request.clock, limits);
        let mut lines = Lines::new(reader, max_line(limits));
        let first = ToChild::Run {
            code: request.code,
            tools: tools(request.tools),
            limits: *limits,
        };
        let Some(mut outgoing) = line(&first) else {
            return End::Broken("the code cannot be written as JSON".to_owned());
        };
        let mut sent = 0;
        let mut running = FuturesUnordered::new();
        loop {
            if sent == outgoing.len() {
                outgoing.clear();
                sent = 0;
            }
            tokio::select! {
                () = sleep_until(countdown.end() + WALL_GRACE) => {
                    let most = if countdown.is_last() { limits.total } else { limits.wall };
                    return End::Failed(late(most));
                }
                left = countdown.changed() => {
                    outgoing.extend(line(&ToChild::Clock { left }).unwrap_or_default());
                }
                next = lines.next() => {
                    let step = match next {
                        Next::Line(line) => self.step(&line, running.len()),
                        Next::TooLong => broken("a line that is too long"),
                        Next::End => {
                            return End::Broken("the process of the run ended early".to_owned());
                        }
                    };
                    match step {
                        Step::Go => {}
                        Step::Call(made) => {
                            let id = made.id;
                            let answer = call(made);
                            running.push(async move { (id, answer.await) });
                        }
                        Step::End(end) => return end,
                    }
                }
                Some((id, answer)) = running.next(), if !running.is_empty() => {
                    let message = answered(id, answer, limits);
                    outgoing.extend(line(&message).unwrap_or_default());
                }
                written = writer.write(&outgoing[sent..]), if sent < outgoing.len() => {
                    match written {
                        Ok(count) if count > 0 => sent += count,
                        // The process is ending. Its earlier messages are still to be read.
                        _ => {
                            outgoing.clear();
                            sent = 0;
                        }
                    }
                }
            }
        }
    }

    fn step(&mut self, line: &[u8], running: usize) -> Step {
        let limits = self.limits;
        match serde_json::from_slice(line) {
            Ok(FromChild::Call {
                id,
                name,
                arguments,
            }) => {
                if self.calls >= limits.calls || id != self.calls + 1 {
                    return broken("a call that was not its turn");
                }
                if running >= limits.calls_in_flight.max(1) as usize {
                    return broken("too many calls at the same time");
                }
                let is_object = arguments.get().starts_with('{');
                let size = arguments.get().len();
                if !is_object || size > limits.argument_bytes || name.len() > MAX_NAME_BYTES {
                    return broken("a call with invalid arguments");
                }
                self.calls += 1;
                Step::Call(Call {
                    id,
                    name,
                    arguments,
                })
            }
            Ok(FromChild::Log { text }) => {
                let size = self.output.len() + text.len() + 1;
                if size > limits.output_bytes.saturating_add(MAX_NOTE_BYTES) {
                    return broken("too much output");
                }
                self.output.push_str(&text);
                self.output.push('\n');
                Step::Go
            }
            Ok(FromChild::Done { value }) => {
                let size = match &value {
                    Value::Undefined => 0,
                    Value::Json(json) => json.get().len(),
                    Value::Cut { text, .. } => text.len(),
                };
                if size > limits.value_bytes {
                    return broken("a value that is too large");
                }
                Step::End(End::Returned(value))
            }
            Ok(FromChild::Failed(mut failure)) => {
                for text in [&mut failure.message, &mut failure.stack] {
                    text.truncate(text.floor_char_boundary(MAX_FAILURE_BYTES));
                }
                Step::End(End::Failed(failure))
            }
            Err(_) => broken("a message that is unknown"),
        }
    }
}

fn broken(what: &str) -> Step {
    Step::End(End::Broken(format!("the process of the run sent {what}")))
}

pub(crate) fn late(most: Duration) -> Failure {
    let seconds = most.as_secs_f64();
    Failure::new(
        FailureKind::Time,
        format!("the run took longer than {seconds} s"),
    )
}

fn answered(id: u32, answer: Result<Box<RawValue>, String>, limits: &Limits) -> ToChild {
    match answer {
        Ok(value) if value.get().len() > limits.result_bytes => ToChild::Error {
            id,
            message: format!(
                "the call was made, but its result has {} bytes, and code can read at most {}",
                value.get().len(),
                limits.result_bytes
            ),
        },
        Ok(value) => ToChild::Result { id, value },
        Err(mut message) => {
            message.truncate(message.floor_char_boundary(MAX_ERROR_BYTES));
            ToChild::Error { id, message }
        }
    }
}

fn tools(declared: Vec<Declared>) -> Tools {
    let mut tools: Tools = BTreeMap::new();
    for Declared {
        server,
        function,
        exposed,
    } in declared
    {
        tools.entry(server).or_default().insert(function, exposed);
    }
    tools
}

/// The longest line that the process has a reason to send.
fn max_line(limits: &Limits) -> usize {
    let texts = limits.value_bytes.max(limits.output_bytes);
    let texts = texts.saturating_mul(ESCAPED).max(limits.argument_bytes);
    texts.saturating_add(MAX_ENVELOPE_BYTES + ESCAPED * MAX_NAME_BYTES)
}
