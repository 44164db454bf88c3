//! What can run hosted servers here, and which of it a server gets (H18).
//!
//! Stronger isolation comes first. Which providers may be used at all is a setting; that one works is found out
//! by trying, and remembered for a while. Invariant: a server that names a provider gets this one or none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::{Hosting, Provider, Source};
use runtime::{Error, Runtime};
use tokio::time::Instant;

/// Strongest first.
const PREFERENCE: [Provider; 5] = [
    Provider::Gvisor,
    Provider::Firecracker,
    Provider::E2b,
    Provider::Runc,
    Provider::Process,
];
/// How long it is remembered that a provider works, or does not.
const FRESH: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(5));
/// How long finding out may take.
const PROBE: Duration = Duration::from_secs(30);

/// The runtimes of this product.
pub struct Runtimes {
    all: BTreeMap<Provider, Arc<dyn Runtime>>,
    allowed: BTreeSet<Provider>,
    probes: Mutex<BTreeMap<Provider, Probe>>,
}

#[derive(Clone)]
struct Probe {
    outcome: Result<String, Error>,
    until: Instant,
}

/// The runtime of a server, and why it is this one.
pub(crate) struct Choice {
    pub(crate) provider: Provider,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) why: Arc<str>,
}

/// What runs something of this kind, strongest first.
fn fitting(source: &Source) -> impl Iterator<Item = Provider> {
    let is_image = matches!(source, Source::Image { .. });
    let all = PREFERENCE.into_iter();
    all.filter(move |provider| is_image != (*provider == Provider::Process))
}

impl Runtimes {
    /// Those that there are, and the providers that may be used.
    #[must_use]
    pub fn new(all: BTreeMap<Provider, Arc<dyn Runtime>>, allowed: BTreeSet<Provider>) -> Self {
        Self {
            all,
            allowed,
            probes: Mutex::default(),
        }
    }

    /// Why `provider` cannot be what a server asks for, as far as that is known without trying.
    #[must_use]
    pub fn refusal(&self, provider: Provider) -> Option<String> {
        if !self.allowed.contains(&provider) {
            let why = "the settings do not allow it: see `[hosting] providers`";
            return Some(format!("provider `{provider}` is not used here: {why}"));
        }
        if !self.all.contains_key(&provider) {
            let remedy = match provider {
                Provider::E2b => ": it needs a key, `[hosting] e2b_api_key`",
                _ => "",
            };
            return Some(format!("provider `{provider}` is not set up here{remedy}"));
        }
        None
    }

    /// Why nothing that may be used here can run this, as far as that is known without trying.
    #[must_use]
    pub fn refusal_of(&self, source: &Source) -> Option<String> {
        let all = fitting(source).map(|provider| self.refusal(provider));
        let all: Option<Vec<String>> = all.collect();
        all.map(|all| all.join("; "))
    }

    /// Finds the runtime for a server.
    ///
    /// # Errors
    /// There is none: the text says what was tried, and why it did not do.
    pub(crate) async fn choose(&self, hosting: &Hosting) -> Result<Choice, String> {
        let candidates: Vec<Provider> = match hosting.provider {
            Some(provider) => vec![provider],
            None => fitting(&hosting.source).collect(),
        };
        let mut tried = Vec::new();
        for provider in candidates {
            if let Some(why) = self.refusal(provider) {
                tried.push(why);
                continue;
            }
            let Some(runtime) = self.all.get(&provider) else {
                continue;
            };
            match self.probe(provider, runtime).await {
                Ok(what) => {
                    let asked = match hosting.provider {
                        Some(_) => "asked for",
                        None if tried.is_empty() => "the strongest there is",
                        None => "the strongest that works here",
                    };
                    let mut why = format!("{asked}: {what}");
                    for other in tried {
                        why.push_str("; ");
                        why.push_str(&other);
                    }
                    return Ok(Choice {
                        provider,
                        runtime: runtime.clone(),
                        why: why.into(),
                    });
                }
                Err(error) => tried.push(format!("provider `{provider}` does not work: {error}")),
            }
        }
        Err(match tried.is_empty() {
            true => "nothing here can run it".to_owned(),
            false => tried.join("; "),
        })
    }

    async fn probe(&self, provider: Provider, runtime: &Arc<dyn Runtime>) -> Result<String, Error> {
        if let Some(known) = self.probes().get(&provider)
            && known.until > Instant::now()
        {
            return known.outcome.clone();
        }
        let tried = tokio::time::timeout(PROBE, runtime.probe()).await;
        let outcome = tried.unwrap_or(Err(Error::Timeout {
            what: "whether it works",
            within: PROBE,
        }));
        let fresh = if outcome.is_ok() { FRESH.0 } else { FRESH.1 };
        let probe = Probe {
            outcome: outcome.clone(),
            until: Instant::now() + fresh,
        };
        self.probes().insert(provider, probe);
        outcome
    }

    fn probes(&self) -> std::sync::MutexGuard<'_, BTreeMap<Provider, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes ready what needs it before anything is started, and removes what an earlier run left on this host. What
    /// is elsewhere may take its time: see [`Runtimes::sweep_elsewhere`].
    pub async fn prepare(&self) {
        if let Some(runtime) = self.all.get(&Provider::Process)
            && self.allowed.contains(&Provider::Process)
            && self.probe(Provider::Process, runtime).await.is_ok()
        {
            self.sweep(|provider| provider == Provider::Process).await;
        }
    }

    /// Removes what an earlier run left where others run it.
    pub async fn sweep_elsewhere(&self) {
        self.sweep(|provider| provider != Provider::Process).await;
    }

    async fn sweep(&self, which: impl Fn(Provider) -> bool) {
        for (provider, runtime) in &self.all {
            if !self.allowed.contains(provider) || !which(*provider) {
                continue;
            }
            match runtime.sweep().await {
                Ok(0) => {}
                Ok(count) => {
                    tracing::warn!(%provider, count, "removed instances that an earlier run left behind");
                }
                Err(error) => tracing::debug!(%provider, "nothing was swept: {error}"),
            }
        }
    }

    /// Removes the volumes of a server for good.
    ///
    /// # Errors
    /// The first of a runtime that could not.
    pub async fn volumes_remove(&self, id: &str) -> Result<(), Error> {
        let mut outcome = Ok(());
        for (provider, runtime) in &self.all {
            // One that does not work has nothing.
            if !self.allowed.contains(provider) || self.probe(*provider, runtime).await.is_err() {
                continue;
            }
            outcome = outcome.and(runtime.volumes_remove(id).await);
        }
        outcome
    }
}
