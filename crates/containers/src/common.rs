//! Code that the runtimes share: checks of a unit, and the parts of an instance.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use model::{Program, Sandbox};
use runtime::handle::{Exit, Handle, Meter, ProcessState};
use runtime::ports::{Listeners, Ports};
use runtime::unit::{Confined, Enforced, Error, Fence, Instance, Stdio};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The future of a method of [`runtime::Runtime`].
pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Implements [`runtime::Runtime`] for a handle to a shared `Inner`, whose methods do the work. The module imports
/// `Instance` and `Runtime`.
macro_rules! runtime_of_inner {
    ($name:ident, volumes_follow: $volumes_follow:literal) => {
        impl Runtime for $name {
            fn probe(&self) -> $crate::common::Answer<'_, String> {
                Box::pin(self.0.probe())
            }

            fn launch(&self, unit: runtime::unit::Unit) -> $crate::common::Answer<'_, Instance> {
                let inner = std::sync::Arc::clone(&self.0);
                runtime::detached::launched(&self.0.tasks, |unwanted| async move {
                    inner.launch(&unit, unwanted.cancelled()).await
                })
            }

            fn sweep(&self) -> $crate::common::Answer<'_, usize> {
                Box::pin(self.0.sweep())
            }

            fn idle(&self) -> futures_util::future::BoxFuture<'_, ()> {
                Box::pin($crate::common::idle(&self.0.tasks))
            }

            fn fences<'a>(
                &'a self,
                installation: &'a str,
            ) -> $crate::common::Answer<'a, std::collections::BTreeSet<i64>> {
                Box::pin(self.0.fences(installation))
            }

            fn sweep_fenced<'a>(
                &'a self,
                lost: &'a runtime::unit::Fences,
            ) -> $crate::common::Answer<'a, usize> {
                Box::pin(self.0.sweep_fenced(lost))
            }

            fn volumes_follow(&self) -> bool {
                $volumes_follow
            }

            fn volumes_remove<'a>(
                &'a self,
                id: &'a str,
                installation: Option<&'a str>,
            ) -> $crate::common::Answer<'a, ()> {
                Box::pin(self.0.volumes_remove(id, installation))
            }
        }
    };
}

/// Waits until all background tasks have finished.
pub(crate) async fn idle(tasks: &TaskTracker) {
    tasks.close();
    tasks.wait().await;
}

/// Returns whether a byte may be part of a word: a letter, a digit, `-` or `_`.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}

/// Returns whether a byte may be part of a host name.
pub(crate) fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Returns the error for a unit or an option with an invalid field.
pub(crate) fn refused<T>(field: &'static str, why: impl Into<String>) -> Result<T, Error> {
    let why = why.into();
    Err(Error::Refused { field, why })
}

/// Checks a word, which becomes part of names and labels.
pub(crate) fn check_word(field: &'static str, text: &str) -> Result<(), Error> {
    if (1..=64).contains(&text.len()) && text.bytes().all(is_word) {
        return Ok(());
    }
    let why = format!("`{text}` must consist of 1 to 64 letters, digits, `-` and `_`");
    refused(field, why)
}

/// Checks the id of a sandbox, which becomes part of names and directories.
pub(crate) fn check_id(id: &str) -> Result<(), Error> {
    if (1..=100).contains(&id.len()) && id.bytes().all(is_lower) {
        return Ok(());
    }
    let id = id.escape_debug();
    let why = format!("`{id}` must consist of 1 to 100 characters from a-z, 0-9 and `-`");
    refused("id", why)
}

/// Checks variables, which are passed on as `NAME=VALUE`.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    let is_unfit = |(name, value): &(&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    let Some((name, _)) = env.iter().find(is_unfit) else {
        return Ok(());
    };
    let name = name.escape_debug();
    let why = format!(
        "the variable `{name}` cannot be passed to the server: names may not be empty or contain `=`, and neither names nor values may contain NUL"
    );
    refused("environment", why)
}

/// Returns the image of a unit and the arguments in it. `needs` is the part of the error that says what the runtime
/// needs instead of a command.
pub(crate) fn image_of<'a>(
    unit: Confined<'a>,
    needs: &str,
) -> Result<(&'a str, &'a [String]), Error> {
    match &unit.launch.program {
        Program::Image { image, command } => Ok((image, command)),
        Program::Command { program, .. } => refused(
            "command",
            format!(
                "cannot run `{program}`, a command of this host: {needs}; the provider `process` runs commands"
            ),
        ),
    }
}

/// Listens for the ports of a unit, and returns the addresses.
pub(crate) async fn listen(
    ports: &Ports,
    unit: Confined<'_>,
) -> Result<(Listeners, BTreeMap<u16, SocketAddr>), Error> {
    let listeners = ports.listen(unit, unit.sandbox.ports.clone()).await?;
    let addresses = listeners.addresses();
    let addresses = addresses
        .map_err(|why| Error::Failed(format!("cannot listen on the server's ports: {why}")))?;
    Ok((listeners, addresses))
}

/// Adds a deadline to a future.
pub(crate) async fn late<T>(
    within: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match timeout(within, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::Timeout { what, within }),
    }
}

/// The error of a launch that finds an instance with a higher fencing token.
pub(crate) fn superseded(found: i64, fence: &Fence) -> Error {
    Error::Failed(format!(
        "another gateway has since started this server (fencing token {found}, this launch has {})",
        fence.number
    ))
}

/// Fails if the sandbox is strict and a limit that the runtime should enforce is not enforced.
pub(crate) fn check_strict(
    sandbox: &Sandbox,
    enforced: &[Enforced],
    is_expected: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    let is_broken = |row: &&Enforced| !row.holds && is_expected(row.what);
    match enforced.iter().find(is_broken) {
        Some(row) if sandbox.strict => Err(Error::NotEnforced {
            what: row.what,
            why: row.how.clone(),
        }),
        _ => Ok(()),
    }
}

/// Converts a shell exit code. Codes from 129 to 159 stand for signals.
pub(crate) fn exit_of(code: i32) -> Exit {
    match code {
        129..=159 => Exit {
            signal: Some(code - 128),
            ..Exit::default()
        },
        code => Exit {
            code: Some(code),
            ..Exit::default()
        },
    }
}

/// Returns the state of an instance, and the sender of its exit.
pub(crate) fn state(
    label: &str,
    meter: Option<Box<dyn Meter>>,
) -> (watch::Sender<Option<Exit>>, Arc<ProcessState>) {
    let (exit, ended) = watch::channel(None);
    let state = ProcessState::new(None, label.to_owned(), meter, ended);
    (exit, Arc::new(state))
}

pub(crate) fn instance(
    shared: Arc<ProcessState>,
    stdio: Option<Stdio>,
    ports: BTreeMap<u16, SocketAddr>,
    enforced: Vec<Enforced>,
) -> Instance {
    Instance {
        stdio,
        ports,
        handle: Handle::new(shared),
        enforced: enforced.into(),
        files: None,
    }
}
