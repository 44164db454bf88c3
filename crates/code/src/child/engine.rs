//! Drives QuickJS: evaluates the code, and runs its jobs between the messages of the gateway.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

use rquickjs::context::EvalOptions;
use rquickjs::convert::List;
use rquickjs::function::{Func, IntoArgs, MutFn};
use rquickjs::promise::PromiseState;
use rquickjs::{Context, Ctx, Function, Object, Persistent, Promise, Runtime, Value as Js};
use serde_json::value::RawValue;

use super::position::{AFTER, BEFORE, FILE, position};
use super::typescript;
use super::watch::{Peak, Watch};
use super::wire::{Input, Received, send};
use crate::limits::Limits;
use crate::message::{FromChild, ToChild};
use crate::outcome::{Failure, FailureKind, Value};

const PRELUDE: &str = include_str!("prelude.js");
/// The stack of the interpreter. The main thread has more, by default 8 MiB.
const STACK_BYTES: usize = 1 << 20;
/// Memory to describe an error after the code has used up its own.
const MEMORY_AT_END: u64 = 4 << 20;
/// Rejections without a handler that are remembered.
const MAX_REJECTIONS: usize = 20;
const MAX_MESSAGE_BYTES: usize = 8 << 10;
const MAX_NAME_BYTES: usize = 1 << 10;
const OUT_OF_MEMORY: &str = "out of memory";

type Saved<T> = Persistent<T>;
/// Promises that were rejected while nothing handled it, with the reason.
type Rejections = Rc<RefCell<Vec<(Saved<Js<'static>>, Saved<Js<'static>>)>>>;

struct Engine {
    runtime: Runtime,
    context: Context,
    watch: Rc<Watch>,
    peak: Peak,
    memory: u64,
    rejections: Rejections,
    hooks: Option<Saved<Object<'static>>>,
}

/// Runs code to its end.
///
/// # Errors
/// The gateway is gone.
pub(super) fn interpret(
    code: &str,
    tools: &str,
    limits: &Limits,
    peak: Peak,
    input: &mut Input,
) -> io::Result<Result<Value, Failure>> {
    // Freeing the values takes time, and QuickJS aborts if one is left. The process ends anyway.
    let mut engine = match Engine::new(limits, peak) {
        Ok(engine) => ManuallyDrop::new(engine),
        Err(_) => return Ok(Err(memory_failure(limits))),
    };
    let main = match engine.start(code, tools, limits) {
        Ok(main) => main,
        Err(failure) => return Ok(Err(failure)),
    };
    let end = engine.drive(&main, input)?;
    engine
        .runtime
        .set_memory_limit(usize_of(limits.memory + MEMORY_AT_END));
    let end = end.and_then(|()| engine.value(&main, limits));
    if end.is_ok() {
        engine.report_rejections();
    }
    Ok(end.map_err(|failure| named(failure, limits)))
}

impl Engine {
    fn new(limits: &Limits, peak: Peak) -> rquickjs::Result<Self> {
        let runtime = Runtime::new()?;
        runtime.set_memory_limit(usize_of(limits.memory));
        runtime.set_max_stack_size(STACK_BYTES);
        let watch = Rc::new(Watch::start(limits));
        let interrupt = Rc::clone(&watch);
        runtime.set_interrupt_handler(Some(Box::new(move || interrupt.has_expired())));
        let rejections = Rejections::default();
        let noted = Rc::clone(&rejections);
        runtime.set_host_promise_rejection_tracker(Some(Box::new(
            move |ctx, promise, reason, is_handled| {
                let Ok(mut noted) = noted.try_borrow_mut() else {
                    return;
                };
                let promise = Saved::save(&ctx, promise);
                if is_handled {
                    noted.retain(|(other, _)| *other != promise);
                } else if noted.len() < MAX_REJECTIONS {
                    noted.push((promise, Saved::save(&ctx, reason)));
                }
            },
        )));
        let context = Context::full(&runtime)?;
        Ok(Self {
            runtime,
            context,
            watch,
            peak,
            memory: limits.memory,
            rejections,
            hooks: None,
        })
    }

    /// Sets up the globals and evaluates the code, up to its first `await`.
    fn start(
        &mut self,
        code: &str,
        tools: &str,
        limits: &Limits,
    ) -> Result<Saved<Promise<'static>>, Failure> {
        let hooks = self.context.with(|ctx| {
            let hooks = prelude(&ctx, tools, limits);
            hooks.map(|hooks| Saved::save(&ctx, hooks))
        });
        self.hooks = Some(hooks.map_err(|_| memory_failure(limits))?);
        match self.evaluate(code) {
            Err(failure) if failure.kind == FailureKind::Syntax => {
                self.evaluate(&typescript::strip(code)?)
            }
            done => done,
        }
        .map_err(|failure| named(failure, limits))
    }

    fn evaluate(&self, code: &str) -> Result<Saved<Promise<'static>>, Failure> {
        let wrapped = format!("{BEFORE}{code}{AFTER}");
        self.context.with(|ctx| {
            let mut options = EvalOptions::default();
            options.strict = false;
            options.filename = Some(FILE.to_owned());
            match ctx.eval_with_options::<Promise<'_>, _>(wrapped, options) {
                Ok(main) => Ok(Saved::save(&ctx, main)),
                Err(rquickjs::Error::Exception) => Err(self.thrown(&ctx, &ctx.catch(), true)),
                Err(rquickjs::Error::InvalidString(_)) => Err(Failure::new(
                    FailureKind::Syntax,
                    "the code contains a NUL character",
                )),
                // For instance `})(); ({`.
                Err(_) => Err(Failure::new(
                    FailureKind::Syntax,
                    "the code is not the body of a function: it closes a bracket that it did not open",
                )),
            }
        })
    }

    /// Runs jobs and receives messages until the code has returned or thrown.
    fn drive(
        &self,
        main: &Saved<Promise<'static>>,
        input: &mut Input,
    ) -> io::Result<Result<(), Failure>> {
        loop {
            if let Err(failure) = self.run_jobs() {
                return Ok(Err(failure));
            }
            let (state, outstanding, pause) = match self.progress(main) {
                Ok(progress) => progress,
                Err(failure) => return Ok(Err(failure)),
            };
            let patience = match state {
                PromiseState::Rejected => return Ok(Ok(())),
                PromiseState::Resolved if outstanding == 0 => return Ok(Ok(())),
                PromiseState::Resolved => None,
                PromiseState::Pending if outstanding == 0 && pause.is_none() => {
                    return Ok(Err(Failure::new(
                        FailureKind::Stalled,
                        "the code waits for a promise that nothing settles",
                    )));
                }
                PromiseState::Pending => pause,
            };
            let left = self.watch.left();
            let patience = patience.map_or(left, |pause| pause.min(left));
            let done = match input.receive(Some(patience))? {
                Received::Message(ToChild::Result { id, value }) => {
                    self.hook("settle", (id, false, value.get()))
                }
                Received::Message(ToChild::Error { id, message }) => {
                    self.hook("settle", (id, true, message))
                }
                Received::Message(ToChild::Clock { left }) => {
                    self.watch.set_left(left);
                    Ok(())
                }
                Received::Message(ToChild::Run { .. }) => {
                    return Err(io::Error::other("a second run"));
                }
                Received::Nothing if pause.is_some() => self.hook("fire", ()),
                Received::Nothing => Ok(()),
                Received::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            if let Err(failure) = done {
                return Ok(Err(failure));
            }
        }
    }

    fn run_jobs(&self) -> Result<(), Failure> {
        loop {
            let ran = self.runtime.execute_pending_job();
            if let Err(job) = &ran {
                let failure = job.0.with(|ctx| self.thrown(&ctx, &ctx.catch(), false));
                if failure.kind != FailureKind::Thrown {
                    return Err(failure);
                }
            }
            // Code can be interrupted only while it runs for a while, and endless jobs can be short.
            if self.watch.has_expired() {
                return Err(self.watch.failure().unwrap_or_else(|| unreadable("")));
            }
            if matches!(ran, Ok(false)) {
                return Ok(());
            }
        }
    }

    /// The state of the code, the number of calls that are running or waiting, and the time until the next timer.
    fn progress(
        &self,
        main: &Saved<Promise<'static>>,
    ) -> Result<(PromiseState, u32, Option<Duration>), Failure> {
        self.context.with(|ctx| {
            let read = || -> rquickjs::Result<_> {
                let hooks = self.hooks(&ctx)?;
                let outstanding = hooks.get::<_, Function<'_>>("outstanding")?.call(())?;
                let pause: Option<f64> = hooks.get::<_, Function<'_>>("pause")?.call(())?;
                let pause = pause.map(|millis| {
                    Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(Duration::MAX)
                });
                Ok((main.clone().restore(&ctx)?.state(), outstanding, pause))
            };
            read().map_err(|_| self.thrown(&ctx, &ctx.catch(), false))
        })
    }

    /// Calls a function of the prelude that does not throw, unless it is interrupted or out of memory.
    fn hook<A>(&self, name: &str, arguments: A) -> Result<(), Failure>
    where
        A: for<'js> IntoArgs<'js>,
    {
        self.context.with(|ctx| {
            let call = || -> rquickjs::Result<()> {
                let function = self.hooks(&ctx)?.get::<_, Function<'_>>(name)?;
                function.call::<_, ()>(arguments)
            };
            call().map_err(|_| self.thrown(&ctx, &ctx.catch(), false))
        })
    }

    fn hooks<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
        let hooks = self.hooks.clone().ok_or(rquickjs::Error::Unknown)?;
        hooks.restore(ctx)
    }

    /// The value that the code returned, or the failure that it threw.
    fn value(&self, main: &Saved<Promise<'static>>, limits: &Limits) -> Result<Value, Failure> {
        self.context.with(|ctx| {
            let result = main
                .clone()
                .restore(&ctx)
                .map(|main| main.result::<Js<'_>>());
            let value = match result {
                Ok(Some(Ok(value))) => value,
                _ => return Err(self.thrown(&ctx, &ctx.catch(), false)),
            };
            let encode = || -> rquickjs::Result<_> {
                let encode = self.hooks(&ctx)?.get::<_, Function<'_>>("encode")?;
                encode.call::<_, Option<String>>((value,))
            };
            match encode() {
                Ok(None) => Ok(Value::Undefined),
                Ok(Some(text)) if text.len() > limits.value_bytes => Ok(Value::Cut {
                    text: cut(&text, limits.value_bytes).to_owned(),
                    bytes: text.len() as u64,
                }),
                Ok(Some(text)) => RawValue::from_string(text)
                    .map(Value::Json)
                    .map_err(|error| unreadable(&error.to_string())),
                Err(_) => {
                    let failure = self.thrown(&ctx, &ctx.catch(), false);
                    Err(match failure.kind {
                        FailureKind::Thrown => unreadable(&failure.message),
                        _ => failure,
                    })
                }
            }
        })
    }

    /// Prints the rejections that nothing handled. Without this, a call that failed and was not waited for would look
    /// like one that succeeded.
    fn report_rejections(&self) {
        let rejections = std::mem::take(&mut *self.rejections.borrow_mut());
        self.context.with(|ctx| {
            for (_, reason) in rejections {
                let Ok(reason) = reason.restore(&ctx) else {
                    continue;
                };
                let failure = self.thrown(&ctx, &reason, false);
                let at = failure.line.map(|line| format!(" (line {line})"));
                let at = at.unwrap_or_default();
                let text = format!("not handled: {}{at}", failure.message);
                let print = || -> rquickjs::Result<()> {
                    let print = self.hooks(&ctx)?.get::<_, Function<'_>>("print")?;
                    print.call::<_, ()>((text,))
                };
                if print().is_err() {
                    let _ = ctx.catch();
                }
            }
        });
    }

    /// Describes a thrown value.
    fn thrown<'js>(&self, ctx: &Ctx<'js>, thrown: &Js<'js>, is_first: bool) -> Failure {
        if let Some(mut failure) = self.watch.failure() {
            // The code of the run must not run again, so only the error that QuickJS made is read.
            let stack = thrown
                .as_object()
                .map(|error| error.get::<_, String>("stack"));
            if let Some(Ok(stack)) = stack {
                place(&mut failure, &stack);
            }
            return failure;
        }
        let describe = || -> rquickjs::Result<_> {
            let describe = self.hooks(ctx)?.get::<_, Function<'js>>("describe")?;
            describe.call::<_, List<(String, String)>>((thrown.clone(),))
        };
        let Ok(List((message, stack))) = describe() else {
            let _ = ctx.catch();
            return match self.watch.failure() {
                Some(failure) => failure,
                None => Failure::new(FailureKind::Memory, OUT_OF_MEMORY),
            };
        };
        // QuickJS throws null if it cannot allocate an error. The memory may be free again by now.
        let is_full = || self.peak.read() >= Some(self.memory / 4 * 3);
        if thrown.is_null() && is_full() {
            return Failure::new(FailureKind::Memory, OUT_OF_MEMORY);
        }
        let is_syntax = is_first && message.starts_with("SyntaxError: ");
        let kind = match message.strip_prefix("InternalError: ") {
            Some(OUT_OF_MEMORY) => FailureKind::Memory,
            _ if is_syntax => FailureKind::Syntax,
            _ => FailureKind::Thrown,
        };
        let mut failure = Failure::new(kind, cut(&message, MAX_MESSAGE_BYTES));
        place(&mut failure, &stack);
        failure
    }
}

/// Evaluates the prelude. Returns its functions.
fn prelude<'js>(ctx: &Ctx<'js>, tools: &str, limits: &Limits) -> rquickjs::Result<Object<'js>> {
    let mut options = EvalOptions::default();
    options.filename = Some("prelude.js".to_owned());
    let make: Function<'js> = ctx.eval_with_options(PRELUDE, options)?;
    let numbers = Object::new(ctx.clone())?;
    numbers.set("calls", limits.calls)?;
    numbers.set("calls_in_flight", limits.calls_in_flight.max(1))?;
    numbers.set("argument_bytes", limits.argument_bytes as f64)?;
    let most = limits.argument_bytes;
    let call = move |id: u32, name: String, text: String| {
        let fits = text.len() <= most && name.len() <= MAX_NAME_BYTES;
        let arguments = fits.then(|| RawValue::from_string(text).ok()).flatten();
        let is_sent = arguments.is_some();
        if let Some(arguments) = arguments {
            or_exit(send(&FromChild::Call {
                id,
                name,
                arguments,
            }));
        }
        is_sent
    };
    let mut left = Some(limits.output_bytes);
    let most = limits.output_bytes;
    let print = move |text: String| {
        let Some(room) = left else {
            return;
        };
        left = room.checked_sub(text.len() + 1);
        let text = match left {
            Some(_) => text,
            None => format!(
                "{}\n[the output is longer than {most} bytes; the rest is cut]",
                cut(&text, room)
            ),
        };
        or_exit(send(&FromChild::Log { text }));
    };
    make.call((
        Func::from(call),
        Func::from(MutFn::from(print)),
        tools,
        numbers,
    ))
}

/// Ends the process if the gateway is gone, because the run has no purpose then.
fn or_exit(sent: io::Result<()>) {
    if sent.is_err() {
        std::process::exit(1);
    }
}

fn place(failure: &mut Failure, stack: &str) {
    let found = position(stack);
    failure.line = found.line;
    failure.column = found.column;
    failure.stack = found.stack;
}

/// Names the limit in a failure for lack of memory.
fn named(failure: Failure, limits: &Limits) -> Failure {
    match failure.kind {
        FailureKind::Memory => Failure {
            message: memory_failure(limits).message,
            ..failure
        },
        _ => failure,
    }
}

fn memory_failure(limits: &Limits) -> Failure {
    let message = format!("the code used more than {} bytes of memory", limits.memory);
    Failure::new(FailureKind::Memory, message)
}

fn unreadable(why: &str) -> Failure {
    let message = format!("the returned value cannot be written as JSON: {why}");
    Failure::new(FailureKind::Thrown, message)
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The beginning of a text, in at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
