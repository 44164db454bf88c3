//! Runs scripts in a pod that report its kernel and its resource usage.
//!
//! A pod that is checked has a second container, [`VERIFY_CONTAINER`], which sleeps except while a script runs in it.
//! It shares the process namespace with the server, so it sees the server's processes whatever the image contains. If
//! the runtime gives each container its own process namespace, or if the container is missing, the script runs in the
//! server's container, whose image may have a shell.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use tokio::time::timeout;

use super::api::{Call, Cluster, REQUEST_TIMEOUT};
use super::channels::{self, STATUS, STDOUT, piece};
use super::spec::{SERVER_CONTAINER, VERIFY_CONTAINER};
use runtime::handle::Usage;
use runtime::unit::Error;

/// Prints the kernel's version and the start of its log.
pub(super) const KERNEL_SCRIPT: &str = "cat /proc/version; dmesg | head -n 20";
/// Prints the state of all processes. Processes that exit while it runs are left out.
const PROCESSES_SCRIPT: &str = "cat /proc/[0-9]*/stat /proc/[0-9]*/status 2>/dev/null";
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Clock ticks per second in process statistics, the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// Runs a script in a container. Returns its stdout, whatever its exit code.
pub(super) async fn run(
    cluster: &Cluster,
    pod: &str,
    container: &str,
    script: &str,
) -> Result<String, Call> {
    let params = AttachParams::default()
        .container(container)
        .stdin(false)
        .stdout(true)
        .stderr(false);
    let mut socket = channels::exec(cluster, pod, ["sh", "-c", script], &params).await?;
    let mut said = Vec::new();
    let mut why = None;
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            match piece(message) {
                Some((STDOUT, bytes)) if said.len() < MAX_OUTPUT_BYTES => {
                    said.extend_from_slice(&bytes)
                }
                Some((STATUS, bytes)) => {
                    let status: Option<Status> = serde_json::from_slice(&bytes).ok();
                    why = status.and_then(|status| status.message);
                    return true;
                }
                _ => {}
            }
        }
        false
    };
    let is_whole = timeout(REQUEST_TIMEOUT, reading).await.unwrap_or(false);
    match is_whole && !said.is_empty() {
        true => Ok(String::from_utf8_lossy(&said).into_owned()),
        false => Err(Call::Other(Error::Failed(format!(
            "cannot run a program in a pod: {}",
            why.as_deref().unwrap_or("no reason given")
        )))),
    }
}

/// Measures the resource usage of a pod's processes.
pub(super) struct Meter {
    cluster: Cluster,
    pod: String,
    label: String,
    /// True if the pod has a second container that runs the script.
    looks: bool,
    /// The highest CPU time so far, in milliseconds, because later measurements do not include exited processes.
    cpu: AtomicU64,
    memory_peak: AtomicU64,
    is_unknown: AtomicBool,
}

impl Meter {
    pub(super) fn new(cluster: Cluster, pod: String, label: String, looks: bool) -> Self {
        Self {
            cluster,
            pod,
            label,
            looks,
            cpu: AtomicU64::new(0),
            memory_peak: AtomicU64::new(0),
            is_unknown: AtomicBool::new(false),
        }
    }

    async fn ask(&self) -> Result<Usage, Error> {
        let mut why = Error::Failed("the pod's processes are not visible".to_owned());
        for container in [
            self.looks.then_some(VERIFY_CONTAINER),
            Some(SERVER_CONTAINER),
        ]
        .into_iter()
        .flatten()
        {
            match run(&self.cluster, &self.pod, container, PROCESSES_SCRIPT).await {
                Ok(said) => match usage(&said) {
                    Some(usage) => return Ok(usage),
                    None => continue,
                },
                Err(error) => why = error.into(),
            }
        }
        Err(why)
    }
}

impl runtime::handle::Meter for Meter {
    fn read(&self) -> BoxFuture<'_, Option<Usage>> {
        async {
            let mut usage = match self.ask().await {
                Ok(usage) => usage,
                Err(error) => {
                    if !self.is_unknown.swap(true, Ordering::Relaxed) {
                        tracing::info!(
                            server = self.label,
                            "the pod's resource usage is unknown: {error}"
                        );
                    }
                    return None;
                }
            };
            let highest =
                |known: &AtomicU64, now: u64| known.fetch_max(now, Ordering::Relaxed).max(now);
            let cpu = u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX);
            usage.cpu = Duration::from_millis(highest(&self.cpu, cpu));
            usage.memory_peak = highest(&self.memory_peak, usage.memory);
            Some(usage)
        }
        .boxed()
    }
}

/// Adds up `/proc/PID/stat` and `/proc/PID/status` texts. `None` if these are not the server's processes.
fn usage(said: &str) -> Option<Usage> {
    let mut usage = Usage::default();
    let mut ticks = 0;
    for line in said.lines() {
        if let Some(kib) = line.strip_prefix("VmRSS:") {
            let kib = kib.trim().trim_end_matches("kB").trim_end();
            usage.memory += kib.parse::<u64>().unwrap_or(0) << 10;
        }
        let Some((head, rest)) = line.rsplit_once(") ") else {
            continue;
        };
        let Some((pid, name)) = head.split_once(" (") else {
            continue;
        };
        if pid == "1" && name == "sleep" {
            return None;
        }
        // Fields 14 to 17 of `man 5 proc_pid_stat`: user and kernel time of the process and of its children.
        let fields = rest.split_ascii_whitespace().skip(11).take(4);
        ticks += fields
            .filter_map(|field| field.parse::<u64>().ok())
            .sum::<u64>();
        usage.pids += 1;
    }
    usage.cpu = Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
    (usage.pids > 0).then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_say_is_added_up() {
        let said = "1 (pause) S 0 1 1 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 100 790528 1 18446744073709551615\n\
                    7 (a ) (b) S 0 7 7 0 -1 4194560 1 0 0 0 100 20 3 4 20 0 1 0 100 790528 1 18446744073709551615\n\
                    Name:\tpause\nVmRSS:\t       4 kB\nVmHWM:\t    9000 kB\nVmRSS:\t    1000 kB\n";
        let told = usage(said).expect("it says something");
        assert_eq!(
            (told.cpu, told.memory, told.pids),
            (Duration::from_millis(1300), 1004 << 10, 2)
        );
        // A container with its own process namespace sees nothing of the server.
        let own = said.replace("(pause)", "(sleep)");
        assert_eq!(usage(&own), None);
        assert_eq!(usage(""), None);
    }
}
