//! Sandboxes with their metadata and timeouts, and the processes in them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::Options;

/// The longest lifetime of a sandbox, as on E2B's larger plan.
pub(crate) const MAX_LIFETIME_SECONDS: u64 = 24 * 3600;

pub(crate) struct World {
    pub(crate) options: Options,
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    /// Owns the sandbox timers and the streams of processes.
    pub(crate) tasks: TaskTracker,
}

pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) template: String,
    pub(crate) token: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) internet: bool,
    pub(crate) started: SystemTime,
    pub(crate) end: watch::Sender<Instant>,
    pub(crate) processes: Mutex<BTreeMap<u32, Arc<Command>>>,
    /// When cancelled, breaks all streams that are open at that moment.
    cut: Mutex<CancellationToken>,
}

/// A running command.
pub(crate) struct Command {
    pub(crate) pid: u32,
    pub(crate) config: serde_json::Value,
    /// The channel to the command's stdin. `None` after stdin was closed or the command has ended.
    pub(crate) input: Mutex<Option<mpsc::Sender<Input>>>,
    /// The listener for output events, as JSON. Without one, output is lost.
    pub(crate) listener: Mutex<Option<mpsc::Sender<String>>>,
}

/// Bytes for a command's stdin, and a channel for the result of the write.
pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
    pub(crate) taken: tokio::sync::oneshot::Sender<Result<(), String>>,
}

impl World {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            sandboxes: Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.lock().get(id).cloned()
    }

    /// All sandboxes, ordered by id.
    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.lock().values().cloned().collect()
    }

    /// Adds a sandbox and ends it when its timeout expires.
    pub(crate) fn add(self: &Arc<Self>, sandbox: Sandbox) -> Arc<Sandbox> {
        let sandbox = Arc::new(sandbox);
        self.lock().insert(sandbox.id.clone(), Arc::clone(&sandbox));
        let (world, ends) = (Arc::clone(self), Arc::clone(&sandbox));
        self.tasks.spawn(async move {
            let mut end = ends.end.subscribe();
            loop {
                let at = *end.borrow_and_update();
                tokio::select! {
                    () = tokio::time::sleep_until(at) => break,
                    changed = end.changed() => if changed.is_err() { break },
                }
            }
            world.remove(&ends.id);
        });
        sandbox
    }

    /// Ends a sandbox and all its processes. Returns whether it existed.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let Some(sandbox) = self.lock().remove(id) else {
            return false;
        };
        for pid in sandbox.commands().keys() {
            signal(*pid, Signal::KILL);
        }
        sandbox.cut();
        true
    }
}

impl Sandbox {
    pub(crate) fn new(id: String, token: String, template: String, life: Duration) -> Self {
        Self {
            id,
            template,
            token,
            metadata: BTreeMap::new(),
            env: BTreeMap::new(),
            internet: true,
            started: SystemTime::now(),
            end: watch::Sender::new(Instant::now() + life),
            processes: Mutex::default(),
            cut: Mutex::default(),
        }
    }

    pub(crate) fn commands(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Command>>> {
        self.processes.lock()
    }

    /// Breaks all open streams, as a lost connection does.
    pub(crate) fn cut(&self) {
        let mut cut = self.cut.lock();
        std::mem::take(&mut *cut).cancel();
    }

    pub(crate) fn until_cut(&self) -> CancellationToken {
        self.cut.lock().clone()
    }
}

/// Sends `signal` to a command's process group.
pub(crate) fn signal(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process_group(pid, signal).is_ok())
}
