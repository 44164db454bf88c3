//! The runtimes available here, and which of them a server gets (H18).
//!
//! Stronger isolation is preferred. The settings say which providers may be used. A provider is probed before it is
//! used, and the result is cached for a while. A probe that times out is inconclusive: the previous result stays.
//! Invariants: a server that names a provider gets that provider or none; a
//! server that asks for a sandbox never runs on the host itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use model::{Launch, Program, Provider};
use parking_lot::Mutex;
use runtime::{Error, Fences, Packages, Runtime};
use tokio::{sync::OnceCell, time::Instant};
use tokio_util::sync::CancellationToken;

/// Strongest first.
const PREFERENCE: [Provider; 7] = [
    Provider::Gvisor,
    Provider::Firecracker,
    Provider::E2b,
    Provider::Kubernetes,
    Provider::Swarm,
    Provider::Runc,
    Provider::Process,
];
/// Validity of a probe result: for a provider that works, and for one that does not.
const PROBE_TTL: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(5));
/// Deadline of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The runtimes that this gateway can use.
pub struct Runtimes {
    /// Runs servers on the host itself.
    host: Arc<dyn Runtime>,
    /// Run servers in sandboxes.
    all: BTreeMap<Provider, Arc<dyn Runtime>>,
    allowed: BTreeSet<Provider>,
    /// Why sandboxes are unavailable here, if they are.
    closed: Option<&'static str>,
    packages: Option<Arc<Packages>>,
    /// Set once the leftovers of an earlier run on this host are removed, which happens before the first sandbox
    /// starts.
    prepared: OnceCell<()>,
    /// Cancelled when the gateway that this one replaces has exited. Until then, its sandboxes run.
    predecessor: Option<CancellationToken>,
    /// Servers on the host itself wait for that too.
    host_waits: bool,
    probes: Mutex<BTreeMap<Provider, Probe>>,
}

#[derive(Clone)]
struct Probe {
    outcome: Result<String, Error>,
    until: Instant,
}

/// The runtime of a server.
pub(crate) struct Choice {
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The sandbox provider and why it was chosen. `None`: no sandbox.
    pub(crate) provider: Option<(Provider, Arc<str>)>,
}

/// Why no runtime can run a server.
#[derive(Debug)]
pub(crate) struct NoRuntime {
    pub(crate) why: String,
    /// True if this lasts until the settings change.
    pub(crate) is_lasting: bool,
}

/// The providers that can run this kind of program, strongest first.
fn fitting(program: &Program) -> impl Iterator<Item = Provider> {
    let is_image = matches!(program, Program::Image { .. });
    let all = PREFERENCE.into_iter();
    all.filter(move |provider| is_image != (*provider == Provider::Process))
}

fn not_allowed(providers: &[Provider]) -> String {
    let names: Vec<String> = providers.iter().map(|one| format!("`{one}`")).collect();
    match names.as_slice() {
        [name] => format!(
            "provider {name} is not enabled: `[hosting] providers` in toolwharf.toml does not list it"
        ),
        names => format!(
            "providers {} are not enabled: `[hosting] providers` in toolwharf.toml does not list them",
            names.join(", ")
        ),
    }
}

impl Runtimes {
    /// Takes the runtime for the host itself, the sandbox runtimes, and the providers that may be used.
    #[must_use]
    pub fn new(
        host: impl Runtime,
        all: BTreeMap<Provider, Arc<dyn Runtime>>,
        allowed: BTreeSet<Provider>,
    ) -> Self {
        Self {
            host: Arc::new(host),
            all,
            allowed,
            closed: None,
            packages: None,
            prepared: OnceCell::new(),
            predecessor: None,
            host_waits: false,
            probes: Mutex::default(),
        }
    }

    /// Starts no sandbox, and removes nothing of earlier runs, before `predecessor` is cancelled. With `host_waits`, starts
    /// no server at all.
    #[must_use]
    pub fn after(self, predecessor: Option<CancellationToken>, host_waits: bool) -> Self {
        Self {
            predecessor,
            host_waits,
            ..self
        }
    }

    /// Waits until this gateway is the only one on its data directory.
    async fn alone(&self) {
        if let Some(gone) = &self.predecessor {
            gone.cancelled().await;
        }
    }

    /// Adds the packages that servers are started from.
    #[must_use]
    pub fn with_packages(self, packages: Arc<Packages>) -> Self {
        let packages = Some(packages);
        Self { packages, ..self }
    }

    /// The packages of this installation, if this process manages them.
    #[must_use]
    pub fn packages(&self) -> Option<&Arc<Packages>> {
        self.packages.as_ref()
    }

    /// Runs servers on the host only. Servers that ask for a sandbox are refused with `why`.
    #[must_use]
    pub fn without_sandboxes(host: impl Runtime, why: &'static str) -> Self {
        Self {
            closed: Some(why),
            ..Self::new(host, BTreeMap::new(), BTreeSet::new())
        }
    }

    /// Returns whether the settings exclude this provider.
    fn is_barred(&self, provider: Provider) -> bool {
        self.closed.is_none() && !self.allowed.contains(&provider)
    }

    /// Why a server cannot have `provider`, as far as this is known without a probe.
    #[must_use]
    pub fn refusal(&self, provider: Provider) -> Option<String> {
        if let Some(why) = self.closed {
            return Some(why.to_owned());
        }
        if self.is_barred(provider) {
            return Some(not_allowed(&[provider]));
        }
        if !self.all.contains_key(&provider) {
            let remedy = match provider {
                Provider::E2b => ": set `[hosting] e2b_api_key`",
                Provider::Kubernetes => ": build Toolwharf with `--features kubernetes`",
                _ => "",
            };
            return Some(format!("provider `{provider}` is not set up{remedy}"));
        }
        None
    }

    /// Why no allowed provider can run this, as far as this is known without a probe.
    #[must_use]
    pub fn refusal_of(&self, program: &Program) -> Option<String> {
        let all = fitting(program).map(|provider| Some((provider, self.refusal(provider)?)));
        let all: Option<Vec<_>> = all.collect();
        all.map(|all| self.together(all))
    }

    /// Combines the reasons into one text. Providers excluded by the settings come last, since their reason is the
    /// least helpful.
    fn together(&self, refused: Vec<(Provider, String)>) -> String {
        let (barred, others): (Vec<_>, Vec<_>) = refused
            .into_iter()
            .partition(|(provider, _)| self.is_barred(*provider));
        let mut texts: Vec<String> = others.into_iter().map(|(_, why)| why).collect();
        texts.dedup();
        if !barred.is_empty() {
            let barred: Vec<Provider> = barred.into_iter().map(|(provider, _)| provider).collect();
            texts.push(not_allowed(&barred));
        }
        texts.join("; ")
    }

    /// Finds the runtime for a server.
    ///
    /// # Errors
    /// No runtime can run the server. The text lists what was tried and why each failed.
    pub(crate) async fn choose(&self, launch: &Launch) -> Result<Choice, NoRuntime> {
        let Some(sandbox) = launch.sandbox() else {
            if self.host_waits {
                self.alone().await;
            }
            return Ok(Choice {
                runtime: self.host.clone(),
                provider: None,
            });
        };
        let candidates: Vec<Provider> = match sandbox.provider {
            Some(provider) => vec![provider],
            None => fitting(&launch.program).collect(),
        };
        self.prepared.get_or_init(|| self.prepare()).await;
        let mut tried = Vec::new();
        let mut is_lasting = true;
        for provider in candidates {
            if let Some(why) = self.refusal(provider) {
                tried.push((provider, why));
                continue;
            }
            let Some(runtime) = self.all.get(&provider) else {
                continue;
            };
            match self.probe(provider, runtime).await {
                Ok(what) => {
                    let asked = match sandbox.provider {
                        Some(_) => "asked for",
                        None if tried.is_empty() => "the strongest provider",
                        None => "the strongest provider that works",
                    };
                    let mut why = format!("{asked}: {what}");
                    if !tried.is_empty() {
                        why = format!("{why}; {}", self.together(tried));
                    }
                    return Ok(Choice {
                        runtime: runtime.clone(),
                        provider: Some((provider, why.into())),
                    });
                }
                Err(error) => {
                    is_lasting = false;
                    let why = format!("provider `{provider}` does not work: {error}");
                    tried.push((provider, why));
                }
            }
        }
        let why = match tried.is_empty() {
            true => "no provider can run this kind of server".to_owned(),
            false => self.together(tried),
        };
        Err(NoRuntime { why, is_lasting })
    }

    async fn probe(&self, provider: Provider, runtime: &Arc<dyn Runtime>) -> Result<String, Error> {
        let known = self.probes.lock().get(&provider).cloned();
        if let Some(known) = &known
            && known.until > Instant::now()
        {
            return known.outcome.clone();
        }
        let tried = tokio::time::timeout(PROBE_TIMEOUT, runtime.probe()).await;
        let tried = tried.unwrap_or(Err(Error::Timeout {
            what: "checking the provider",
            within: PROBE_TIMEOUT,
        }));
        let outcome = match (tried, known) {
            // A busy machine says nothing about the provider.
            (Err(Error::Timeout { .. }), Some(known)) => known.outcome,
            (tried, _) => tried,
        };
        let fresh = if outcome.is_ok() {
            PROBE_TTL.0
        } else {
            PROBE_TTL.1
        };
        let probe = Probe {
            outcome: outcome.clone(),
            until: Instant::now() + fresh,
        };
        self.probes.lock().insert(provider, probe);
        outcome
    }

    /// Removes what an earlier run left on this host. Leftovers elsewhere may be removed later: see
    /// [`Runtimes::elsewhere`].
    async fn prepare(&self) {
        self.alone().await;
        if let Some(runtime) = self.all.get(&Provider::Process)
            && self.allowed.contains(&Provider::Process)
            && self.probe(Provider::Process, runtime).await.is_ok()
        {
            self.sweep(&mut BTreeSet::from([Provider::Process])).await;
        }
    }

    /// Providers that run servers on other machines. Leftovers of an earlier run there did not end with this host's
    /// processes.
    pub fn elsewhere(&self) -> BTreeSet<Provider> {
        let all = self.all.keys().copied();
        all.filter(|provider| *provider != Provider::Process && self.allowed.contains(provider))
            .collect()
    }

    /// Removes what an earlier run left with these providers. Providers that did not respond stay in `left`.
    pub async fn sweep(&self, left: &mut BTreeSet<Provider>) {
        self.alone().await;
        for (provider, runtime) in &self.all {
            if !left.contains(provider) {
                continue;
            }
            match runtime.sweep().await {
                Ok(count) => {
                    left.remove(provider);
                    if count > 0 {
                        tracing::warn!(%provider, count, "removed instances that an earlier run left behind");
                    }
                }
                Err(error) => {
                    tracing::debug!(%provider, "instances that an earlier run left behind could not be removed: {error}")
                }
            }
        }
    }

    /// Waits until everything of stopped instances is removed. Returns the providers that were not done by `until`.
    pub(crate) async fn idle(&self, until: Instant) -> Vec<Provider> {
        let all = self.all.iter().map(async |(provider, runtime)| {
            let done = tokio::time::timeout_at(until, runtime.idle()).await;
            done.is_err().then_some(*provider)
        });
        join_all(all).await.into_iter().flatten().collect()
    }

    /// Stops what lost gateways of the same database left running. `held` returns the fencing tokens of all leases. It
    /// is called after the running instances were listed, so that every instance that may run is covered.
    pub async fn sweep_fenced<E>(
        &self,
        installation: &Arc<str>,
        held: impl AsyncFn() -> Result<BTreeSet<i64>, E>,
    ) -> Result<(), E> {
        for (provider, runtime) in &self.all {
            if !self.allowed.contains(provider) || self.probe(*provider, runtime).await.is_err() {
                continue;
            }
            let Ok(mut numbers) = runtime.fences(installation).await else {
                continue;
            };
            if numbers.is_empty() {
                continue;
            }
            let held = held().await?;
            numbers.retain(|number| !held.contains(number));
            let installation = installation.clone();
            let lost = Fences {
                installation,
                numbers,
            };
            match runtime.sweep_fenced(&lost).await {
                Ok(0) => {}
                Ok(count) => {
                    tracing::warn!(%provider, count, "removed instances that a lost gateway left behind");
                }
                Err(error) => {
                    tracing::warn!(%provider, "instances of lost gateways could not be removed: {error}");
                }
            }
        }
        Ok(())
    }

    /// Returns whether a server finds its volumes wherever it is launched.
    #[must_use]
    pub fn volumes_follow(&self, launch: &Launch) -> bool {
        let Some(sandbox) = launch
            .sandbox()
            .filter(|sandbox| !sandbox.volumes.is_empty())
        else {
            return true;
        };
        let candidates: Vec<Provider> = match sandbox.provider {
            Some(provider) => vec![provider],
            None => fitting(&launch.program).collect(),
        };
        candidates
            .iter()
            .filter(|provider| self.allowed.contains(provider))
            .filter_map(|provider| self.all.get(provider))
            .all(|runtime| runtime.volumes_follow())
    }

    /// Permanently removes the volumes of a server, including those shared by the gateways of an installation.
    ///
    /// # Errors
    /// The first error of a runtime.
    pub async fn volumes_remove(&self, id: &str, installation: Option<&str>) -> Result<(), Error> {
        let mut outcome = Ok(());
        for (provider, runtime) in &self.all {
            // A provider that does not work has no volumes.
            if !self.allowed.contains(provider) || self.probe(*provider, runtime).await.is_err() {
                continue;
            }
            outcome = outcome.and(runtime.volumes_remove(id, installation).await);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use model::{Place, Sandbox};
    use runtime::{Instance, Unit};

    use super::*;

    struct Works;

    impl Runtime for Works {
        fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
            Box::pin(async { Ok("it works".to_owned()) })
        }

        fn launch(&self, _unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
            Box::pin(async { Err(Error::Failed("nothing is run here".to_owned())) })
        }
    }

    /// Works at first, then answers no more.
    #[derive(Default)]
    struct Busy(std::sync::atomic::AtomicBool);

    impl Runtime for Busy {
        fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
            match self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
                false => Works.probe(),
                true => Box::pin(std::future::pending()),
            }
        }

        fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
            Works.launch(unit)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_times_out_changes_nothing() {
        let busy: Arc<dyn Runtime> = Arc::new(Busy::default());
        let all = Runtimes::new(Works, BTreeMap::new(), BTreeSet::new());
        for _ in 0..3 {
            let outcome = all.probe(Provider::Process, &busy).await;
            assert_eq!(outcome.ok().as_deref(), Some("it works"));
            tokio::time::advance(PROBE_TTL.0).await;
        }
        let never: Arc<dyn Runtime> = Arc::new(Busy(true.into()));
        let outcome = all.probe(Provider::Runc, &never).await;
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_host_is_for_servers_that_ask_for_no_sandbox() {
        let command = || Program::Command {
            program: "x".to_owned(),
            args: Vec::new(),
        };
        let sandboxed = Launch::new(command(), Place::Sandbox(Sandbox::new("one")));
        let nothing = Runtimes::new(Works, BTreeMap::new(), BTreeSet::new());
        let bare = nothing.choose(&Launch::new(command(), Place::Host)).await;
        assert_eq!(bare.map(|choice| choice.provider).ok(), Some(None));
        assert!(nothing.choose(&sandboxed).await.is_err());
        let all: BTreeMap<_, Arc<dyn Runtime>> =
            BTreeMap::from([(Provider::Process, Arc::new(Works) as _)]);
        let all = Runtimes::new(Works, all, BTreeSet::from([Provider::Process]));
        let chosen = all.choose(&sandboxed).await.map(|choice| choice.provider);
        let (provider, why) = chosen.expect("it works").expect("it is a sandbox");
        assert_eq!(provider, Provider::Process);
        assert!(why.ends_with(": it works"), "{why}");
    }
}
