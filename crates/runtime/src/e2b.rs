//! Instances that are commands in sandboxes of E2B's: virtual machines on somebody else's computers.
//!
//! [`E2b`] speaks two interfaces over HTTPS: E2B's REST API, which makes and kills sandboxes, and that of the program
//! `envd` in each of them, a Connect service by which a command is started, spoken to and signalled. Both as E2B has
//! published them (its OpenAPI document, `process.proto`), and only what a server needs of them.
//!
//! # What a server gets
//!
//! - A sandbox of its own, made of the template that the launch names as its image, and removed when the server ends.
//! - Its command, as the template's user, with the variables of the server. These go into the command and not into the
//!   sandbox.
//! - No internet, unless its network is open: that is asked for, and read back.
//! - Processors, memory and disk of its template: nobody can set them for a sandbox. [`Instance::enforced`] says whether
//!   they are within the server's limits.
//!
//! # Invariants
//!
//! - No request is without a deadline, and a stream on which nothing comes for too long has ended.
//! - A sandbox lives on a lease that is renewed as long as its instance is wanted. Whatever becomes of us, it ends.
//! - A server's end is E2B's word: that of `envd`, with a code; or of the API, that there is no such sandbox any more. An
//!   API that does not answer is asked until it does. Till then the instance has not ended, killed or not, unless its
//!   lease is over: then it has, whatever E2B says.
//! - Of a server there is one sandbox: another one is killed before one is made.
//! - The key goes to the API and nowhere else, not even to `envd`, which has a token of its own for each sandbox. Neither
//!   is in errors, logs or `Debug`.
//! - What breaks off is not taken up again: bytes may have been lost, and half a line is worse than an end.
//!
//! # Deliberately absent
//!
//! Volumes (nothing of a sandbox outlasts it, so they are refused), ports, allow-lists of hosts, building of templates,
//! pausing, and what a server uses now: E2B tells no time of processors.

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
use crate::apart;
use crate::turns::Turns;
use crate::unit::{Error, Instance, Runtime, Unit};

/// Which E2B, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the REST API is: `https://api.e2b.app`.
    pub url: String,
    /// Where `envd` of all sandboxes is, told apart by headers. `None`: at a name of its own for each,
    /// `https://49983-ID.DOMAIN`.
    pub sandbox_url: Option<String>,
    pub key: Hidden,
    /// Tells this installation from others with the same key: letters, digits, `-`, `_`.
    pub install: String,
    /// Tells this run from earlier ones.
    pub run: String,
    /// How long a sandbox lives after it was last heard of us; whole seconds.
    pub lease: Duration,
}

impl Options {
    /// E2B's own.
    pub const URL: &'static str = "https://api.e2b.app";
    /// Long enough for an outage, short enough for what is left behind.
    pub const LEASE: Duration = Duration::from_secs(300);
}

/// Runs servers in sandboxes of E2B's. Clones are the same.
#[derive(Clone)]
pub struct E2b(Arc<Inner>);

struct Inner {
    options: Options,
    api: Api,
    turns: Turns,
    /// Owns everything that goes on behind a handle.
    tasks: TaskTracker,
}

impl E2b {
    /// Does not look for E2B yet: [`Runtime::probe`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for a URL or a key that cannot be one, or an installation that cannot be a label.
    pub fn new(options: Options) -> Result<Self, Error> {
        let fits = |text: &str| {
            let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            (1..=64).contains(&text.len()) && text.bytes().all(sound)
        };
        for (field, text) in [("install", &options.install), ("run", &options.run)] {
            if !fits(text) {
                return Err(Error::Refused {
                    field,
                    why: format!("`{text}` is not 1 to 64 letters, digits, `-` and `_`"),
                });
            }
        }
        let api = Api::new(&options)?;
        Ok(Self(Arc::new(Inner {
            options,
            api,
            turns: Turns::default(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Waits until nothing goes on any more. Has no deadline of its own: instances whose handles are held, and an API
    /// that is gone, take as long as they take.
    pub async fn idle(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Runtime for E2b {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.0.probe().boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        let inner = Arc::clone(&self.0);
        apart::launched(&self.0.tasks, |_| async move { inner.launch(&unit).await })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.0.sweep().boxed()
    }

    /// There are none.
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
