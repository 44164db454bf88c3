//! The task that waits for a container's exit and removes it.
//!
//! If the daemon does not respond, it is asked again until it does.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::models::ContainerState;
use bollard::query_parameters::WaitContainerOptionsBuilder;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _, join_all, pending};
use rustix::fs::OFlags;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::engine::{Client, Engine};
use crate::common::exit_of;
use runtime::handle::{Exit, ProcessState};
use runtime::ladder::{Ladder, Step};
use runtime::process::Guest;

/// Timeout for the streams to end after the container has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for a bridged container to exit after its streams have ended.
const SILENT_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;
/// Maximum number of kernel log records to search.
const MAX_LOG_RECORDS: usize = 100_000;
const RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Attempts to remove an ended container, over about half an hour. After that it is left to the next sweep.
const MAX_REMOVALS: u32 = 360;

/// The allow-list resources of a container.
pub(super) struct Egress {
    /// The egress proxy. It stops when the container ends.
    pub(super) proxy: AbortOnDropHandle<()>,
    /// The container that holds the network.
    pub(super) pause: String,
}

/// How to report a container that was killed but whose exit is unknown.
pub(super) enum GivenUp {
    /// Report an exit, so that callers stop waiting.
    Ended,
    /// Cancel the token: the container was given up and may still run.
    Told(CancellationToken),
}

pub(super) struct Reaper {
    pub(super) engine: Arc<Engine>,
    pub(super) client: Client,
    pub(super) id: String,
    pub(super) shared: Arc<ProcessState>,
    pub(super) pump: JoinHandle<()>,
    /// Cancelled to make the pump discard the remaining output.
    pub(super) killed: CancellationToken,
    pub(super) bridged: bool,
    pub(super) given_up: GivenUp,
    pub(super) egress: Option<Egress>,
    /// Forwards connections to the container's ports.
    pub(super) relay: Option<AbortOnDropHandle<()>>,
    /// Registers the container with the sentinel until this is dropped.
    pub(super) _guest: Option<Guest>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl Reaper {
    pub(super) async fn run(mut self) {
        let mut ladder = Ladder::new(self.shared.requests());
        let mut ended = wait(
            Arc::clone(&self.engine),
            self.client.clone(),
            self.id.clone(),
        )
        .boxed();
        // The signal being sent; a stronger one replaces it.
        let mut signal: BoxFuture<'static, ()> = pending().boxed();
        let mut speechless: BoxFuture<'static, ()> = pending().boxed();
        let (mut pumping, mut killing, mut is_stop) = (true, false, false);
        let state = loop {
            tokio::select! {
                state = &mut ended => break state,
                () = &mut signal => {
                    // The daemon answers a SIGKILL when the container has ended, and the removal ends what still runs.
                    // A slow daemon is not asked for details of an end that was requested.
                    if is_stop {
                        break None;
                    }
                    signal = pending().boxed();
                }
                _ = &mut self.pump, if pumping => {
                    pumping = false;
                    if self.bridged {
                        speechless = sleep(SILENT_EXIT_TIMEOUT).boxed();
                    }
                }
                () = &mut speechless => {
                    speechless = pending().boxed();
                    tracing::warn!(
                        label = self.shared.label,
                        container = self.id,
                        "the server's streams ended, but its container still runs after {} s; killing the container",
                        SILENT_EXIT_TIMEOUT.as_secs()
                    );
                    killing = true;
                    signal = self.signal("SIGKILL");
                }
                step = ladder.next() => match step {
                    Step::Terminate if killing => {}
                    Step::Terminate => signal = self.signal("SIGTERM"),
                    Step::Kill => {
                        (killing, is_stop) = (true, true);
                        self.killed.cancel();
                        signal = self.signal("SIGKILL");
                    }
                    Step::GiveUp => {
                        tracing::warn!(label = self.shared.label, container = self.id, "killed the instance, but its exit could not be confirmed");
                        // The task continues in both cases, to remove the container when possible.
                        match &self.given_up {
                            GivenUp::Ended => {
                                self.exit.send_replace(Some(Exit::default()));
                            }
                            GivenUp::Told(told) => told.cancel(),
                        }
                    }
                },
            }
        };
        if let Some(relay) = self.relay.take() {
            relay.abort();
            // The container's ports are free once the relay task has ended.
            let _ = relay.await;
        }
        if pumping {
            // The reader may still need time for the remaining output.
            let _ = timeout(DRAIN_TIMEOUT, &mut self.pump).await;
        }
        let mut exit = match state {
            None if is_stop => exit_of(128 + SIGKILL),
            state => exit(state.as_ref()),
        };
        if exit.signal == Some(SIGKILL) && !killing && !exit.out_of_memory {
            // The daemon may learn of the exit before it learns of an out-of-memory kill. It then does not report the
            // kill. Docker 20.10 does this occasionally.
            let id = self.id.clone();
            let looked = tokio::task::spawn_blocking(move || kernel_ran_out_of_memory(&id));
            exit.out_of_memory = looked.await.unwrap_or(false);
        }
        let mut remains = vec![self.id.clone()];
        if let Some(Egress { proxy, pause }) = self.egress.take() {
            drop(proxy);
            remains.push(pause);
        }
        let mut removed = remove(&self.engine, &mut remains).await;
        self.shared.log.close();
        self.exit.send_replace(Some(self.shared.explained(exit)));
        for _ in 0..MAX_REMOVALS {
            if removed {
                return;
            }
            sleep(MAX_RETRY_DELAY).await;
            removed = remove(&self.engine, &mut remains).await;
        }
    }

    /// Sends a signal. Retries until the daemon accepts it.
    fn signal(&self, name: &'static str) -> BoxFuture<'static, ()> {
        let (engine, first, id) = (
            Arc::clone(&self.engine),
            self.client.clone(),
            self.id.clone(),
        );
        async move {
            let mut client = Some(first);
            let mut pause = RETRY_DELAY;
            loop {
                if let Some(client) = &client
                    && client.kill(&id, name).await.is_ok()
                {
                    return;
                }
                sleep(pause).await;
                pause = (2 * pause).min(MAX_RETRY_DELAY);
                client = engine.connect().await.ok();
            }
        }
        .boxed()
    }
}

/// Waits until the container no longer runs. `None` if it is missing.
async fn wait(engine: Arc<Engine>, mut client: Client, id: String) -> Option<ContainerState> {
    let mut pause = RETRY_DELAY;
    loop {
        let options = WaitContainerOptionsBuilder::default().condition("not-running");
        let mut end = client.docker.wait_container(&id, Some(options.build()));
        let said = matches!(
            end.next().await,
            Some(Ok(_) | Err(Bollard::DockerContainerWaitError { .. }))
        );
        // The stream may break off, so the state is checked after any response.
        match client.inspect(&id).await {
            Ok(Some(container)) => {
                if let Some(state) = container.state
                    && !state.running.unwrap_or(false)
                {
                    return Some(state);
                }
                if said {
                    pause = RETRY_DELAY;
                }
            }
            Ok(None) => return None,
            Err(error) => {
                tracing::debug!(container = id, %error, "the daemon does not respond");
            }
        }
        sleep(pause).await;
        pause = (2 * pause).min(MAX_RETRY_DELAY);
        if let Ok(again) = engine.connect().await {
            client = again;
        }
    }
}

/// Removes containers, and deletes the removed ones from the list. Returns whether all are removed.
async fn remove(engine: &Engine, ids: &mut Vec<String>) -> bool {
    let Ok(client) = engine.connect().await else {
        return false;
    };
    let removing = ids.iter().map(async |id| client.remove(id).await.is_ok());
    let removed = join_all(removing).await;
    let mut removed = removed.into_iter();
    ids.retain(|_| removed.next() == Some(false));
    ids.is_empty()
}

/// Returns whether the kernel log records an out-of-memory kill in this container. `false` if unknown: the log is not
/// readable, or the daemon is on another machine.
fn kernel_ran_out_of_memory(id: &str) -> bool {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let log = File::options()
        .read(true)
        .custom_flags(nonblocking)
        .open("/dev/kmsg");
    let Ok(mut log) = log else {
        return false;
    };
    let mut record = [0; 8192];
    for _ in 0..MAX_LOG_RECORDS {
        match log.read(&mut record) {
            Ok(length) if says_out_of_memory(&record[..length], id) => return true,
            Ok(0) => return false,
            Ok(_) => {}
            // The kernel has overwritten the next records. Read on after them.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(_) => return false,
        }
    }
    false
}

/// Returns whether a kernel record (`dump_oom_summary`) names the container's control group, which contains its id.
fn says_out_of_memory(record: &[u8], id: &str) -> bool {
    let record = String::from_utf8_lossy(record);
    record.contains("oom-kill:") && record.contains(id)
}

/// The exit status. Neither the daemon nor the init report a signal.
fn exit(state: Option<&ContainerState>) -> Exit {
    let Some(state) = state else {
        return Exit::default();
    };
    let out_of_memory = state.oom_killed.unwrap_or(false);
    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
    Exit {
        out_of_memory,
        ..code.map(exit_of).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_word_is_of_one_container() {
        let record = b"6,28503,43989627764,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=0d2d,\
            oom_memcg=/docker/0d2d,task_memcg=/docker/0d2d,task=server,pid=10628,uid=0";
        assert!(says_out_of_memory(record, "0d2d"));
        assert!(!says_out_of_memory(record, "fb85"));
        assert!(!says_out_of_memory(b"6,1,2,-;eth0: 0d2d is up", "0d2d"));
    }

    #[test]
    fn codes_of_signals_are_signals() {
        let check = |code: i64, expected: (Option<i32>, Option<i32>)| {
            let state = ContainerState {
                exit_code: Some(code),
                ..ContainerState::default()
            };
            let exit = exit(Some(&state));
            assert_eq!((exit.code, exit.signal), expected);
        };
        check(0, (Some(0), None));
        check(4, (Some(4), None));
        check(128, (Some(128), None));
        check(137, (None, Some(9)));
        check(143, (None, Some(15)));
        check(255, (Some(255), None));
        assert_eq!(exit(None), Exit::default());
    }
}
