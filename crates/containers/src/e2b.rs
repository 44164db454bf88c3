//! Runs instances as commands in E2B sandboxes, which are virtual machines in E2B's cloud.
//!
//! [`E2b`] uses two interfaces over HTTPS. E2B's REST API creates and kills sandboxes. The program `envd` in each
//! sandbox offers a Connect service that starts, feeds and signals commands. Both follow what E2B has published (its
//! OpenAPI document, `process.proto`), limited to what a server needs.
//!
//! # What a server gets
//!
//! - A separate sandbox, created from the template that the launch names as its image, and removed when the server
//!   ends.
//! - Its command, run as the template's user with the server's variables. The variables are set for the command, not
//!   for the sandbox.
//! - No internet, unless its network is open. The setting is sent to E2B and read back.
//! - The processors, memory and disk of its template, which cannot be changed for a sandbox. [`Instance::enforced`]
//!   says whether they are within the server's limits.
//!
//! # Invariants
//!
//! - Every request has a deadline. A stream that receives nothing for too long counts as ended.
//! - A sandbox has a lease, which is renewed while its instance is wanted. Without renewal, E2B ends the sandbox, even
//!   if the gateway no longer runs.
//! - A server has ended when `envd` reports an exit code, or the API reports that the sandbox no longer exists. If the
//!   API does not respond, the request is repeated. Until then, the instance counts as running, killed or not. When the
//!   lease is over, the server has ended, whatever E2B says.
//! - A server has one sandbox. An existing one is killed before a new one is created.
//! - The key is sent only to the API, not to `envd`, which has a separate token for each sandbox. Neither appears in
//!   errors, logs or `Debug`.
//! - A broken stream is not opened again: bytes may have been lost, and an incomplete line is worse than an exit.
//!
//! # Deliberately absent
//!
//! Volumes (they are rejected, since nothing outlives a sandbox), ports, allow-lists, building templates, pausing, and
//! current resource usage: E2B does not report processor time.

mod api;
mod envd;
mod launch;
mod life;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::Hidden;
use tokio_util::task::TaskTracker;

use self::api::Api;
use crate::common::{self, check_word};
use runtime::detached;
use runtime::keyed_lock::KeyedLock;
use runtime::unit::{Error, Instance, Runtime, Unit};

/// The E2B service to use, and the identity of this installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// URL of the REST API: `https://api.e2b.app`.
    pub url: String,
    /// URL of `envd`, if one address serves all sandboxes: a header of each request then names the sandbox. `None`:
    /// each sandbox has its own host name, `https://49983-ID.DOMAIN`.
    pub sandbox_url: Option<String>,
    pub key: Hidden,
    /// Distinguishes this installation from others with the same key: letters, digits, `-`, `_`.
    pub install: String,
    /// Distinguishes this run of the gateway from earlier ones.
    pub run: String,
    /// Lifetime of a sandbox after the last renewal, in whole seconds.
    pub lease: Duration,
}

impl Options {
    /// The URL of E2B's own API.
    pub const URL: &'static str = "https://api.e2b.app";
    /// The default lease: long enough to survive an API outage, short enough to end abandoned sandboxes soon.
    pub const LEASE: Duration = Duration::from_secs(300);
}

/// Runs servers in E2B sandboxes. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct E2b(Arc<Inner>);

struct Inner {
    options: Options,
    api: Api,
    keyed_lock: KeyedLock,
    /// Owns all background tasks.
    tasks: TaskTracker,
}

impl E2b {
    /// Does not contact E2B; [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if a URL or the key is invalid, or the installation id cannot be a label.
    pub fn new(options: Options) -> Result<Self, Error> {
        check_word("install", &options.install)?;
        check_word("run", &options.run)?;
        let api = Api::new(&options)?;
        Ok(Self(Arc::new(Inner {
            options,
            api,
            keyed_lock: KeyedLock::default(),
            tasks: TaskTracker::new(),
        })))
    }
}

impl Runtime for E2b {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.0.probe().boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        let inner = Arc::clone(&self.0);
        detached::launched(&self.0.tasks, |_| async move { inner.launch(&unit).await })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.0.sweep().boxed()
    }

    fn idle(&self) -> BoxFuture<'_, ()> {
        common::idle(&self.0.tasks).boxed()
    }

    /// Does nothing: there are no volumes.
    fn volumes_remove<'a>(
        &'a self,
        _id: &'a str,
        _installation: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }
}

impl fmt::Debug for E2b {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2b")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}
