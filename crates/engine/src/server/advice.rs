//! The end of an instance in words, with what a user can do about it.

use std::{sync::Arc, time::Duration};

use model::Launch;
use runtime::{
    Exit, Handle,
    diagnosis::{CRASH_LINES, diagnose},
};

/// Maximum time that a failed call waits for the exit of an instance that is reached over HTTP.
const EXIT_WAIT: Duration = Duration::from_secs(3);

/// The exit of an instance that was up, with its advice. `stderr` is the end of its output.
pub(crate) fn ended(exit: Exit, launch: &Launch, stderr: &str) -> String {
    let what = format!("it ended with {exit}");
    explained(&what, exit, Some(launch), stderr, CRASH_LINES)
}

/// Adds the reason before `what` happened if stderr shows one, or advice after it. `lines`: the lines of stderr that are
/// searched.
pub(crate) fn explained(
    what: &str,
    exit: Exit,
    launch: Option<&Launch>,
    stderr: &str,
    lines: usize,
) -> String {
    match memory_advice(exit, launch) {
        Some(advice) => format!("{what}: {advice}"),
        None => match diagnose(stderr, lines, launch).filter(|_| !exit.success()) {
            Some(why) => format!("{why}; {what}"),
            None => what.to_owned(),
        },
    }
}

/// Adds the exit of the instance to the reason why a call failed, if the exit follows soon.
pub(crate) async fn with_exit(why: &str, handle: &Handle, launch: &Launch) -> Arc<str> {
    match tokio::time::timeout(EXIT_WAIT, handle.exited()).await {
        Ok(exit) => format!("{why}; {}", ended(exit, launch, &handle.stderr_tail())).into(),
        Err(_) => why.into(),
    }
}

/// Advice for an instance that used up its memory.
fn memory_advice(exit: Exit, launch: Option<&Launch>) -> Option<String> {
    let sandbox = launch.and_then(Launch::sandbox);
    let sandbox = sandbox.filter(|_| exit.out_of_memory)?;
    Some(format!(
        "it needs more than its memory limit of {}; raise `memory` in its entry",
        size(sandbox.limits.memory)
    ))
}

fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes % GIB {
        0 => format!("{} GiB", bytes / GIB),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use model::{Place, Program, Sandbox};
    use runtime::handle::ProcessState;
    use tokio::sync::watch;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_names_the_exit_if_it_follows_soon() {
        let program = Program::Command {
            program: "x".to_owned(),
            args: Vec::new(),
        };
        let launch = Launch::new(program, Place::Host);
        let (exit, exited) = watch::channel(None);
        let state = ProcessState::new(None, "x".to_owned(), None, exited);
        let handle = Handle::new(Arc::new(state));
        let why = with_exit("the response ended early", &handle, &launch).await;
        assert_eq!(&*why, "the response ended early");
        exit.send_replace(Some(Exit {
            code: Some(3),
            ..Exit::default()
        }));
        let why = with_exit("the response ended early", &handle, &launch).await;
        assert_eq!(&*why, "the response ended early; it ended with exit code 3");
    }

    #[test]
    fn a_memory_limit_is_named_with_the_remedy() {
        let program = Program::Command {
            program: "x".to_owned(),
            args: Vec::new(),
        };
        let mut sandbox = Sandbox::new("x");
        let launch =
            |sandbox: &Sandbox| Launch::new(program.clone(), Place::Sandbox(sandbox.clone()));
        let killed = Exit {
            code: Some(137),
            out_of_memory: true,
            ..Exit::default()
        };
        for (bytes, expected) in [
            (512 << 20, "512 MiB"),
            (2 << 30, "2 GiB"),
            (1 << 30 | 1 << 29, "1536 MiB"),
        ] {
            sandbox.limits.memory = bytes;
            let launch = launch(&sandbox);
            let what = killed.to_string();
            let text = explained(&what, killed, Some(&launch), "ECONNREFUSED", 1);
            let limit = format!(
                "exit code 137 (out of memory): it needs more than its memory limit of {expected}; raise `memory` in its entry"
            );
            assert_eq!(text, limit);
        }
        let crashed = Exit {
            out_of_memory: false,
            ..killed
        };
        let plain = |exit, launch: &Launch| explained("x", exit, Some(launch), "", 1);
        assert_eq!(plain(crashed, &launch(&sandbox)), "x");
        // Without a sandbox, the limit is the machine's.
        let on_host = Launch::new(program.clone(), Place::Host);
        assert_eq!(plain(killed, &on_host), "x");
    }

    #[test]
    fn the_reason_is_before_the_exit() {
        let program = Program::Command {
            program: "x".to_owned(),
            args: Vec::new(),
        };
        let launch = Launch::new(program, Place::Host);
        let failed = Exit {
            code: Some(2),
            ..Exit::default()
        };
        let text = ended(
            failed,
            &launch,
            "a\nError: connect ECONNREFUSED 127.0.0.1:5432\n",
        );
        assert!(
            text.starts_with("a host that it connects to refuses"),
            "{text}"
        );
        assert!(text.ends_with("; it ended with exit code 2"), "{text}");
    }
}
