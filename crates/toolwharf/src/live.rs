//! The configuration of a running gateway, kept as the files say.
//!
//! Invariant: one at a time takes the files in, be it because they changed or because an administrator had
//! them changed. What is not usable is reported, and the running configuration stays.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use config::{Config, ConfigError, Problem, Sources};
use engine::{Gateway, Remembered};
use model::ServerName;
use tokio::sync::Mutex;

use crate::{
    itself::Itself,
    projects::Projects,
    registry,
    startup::{self, CliOverrides},
};

/// How often the files are looked at.
const WATCH: Duration = Duration::from_millis(500);

/// A file as it was: when it was written, and its size.
type Stamp = Option<(SystemTime, u64)>;

pub(crate) struct Live {
    sources: Sources,
    gateway: Gateway,
    projects: Arc<Projects>,
    overrides: CliOverrides,
    myself: Itself,
    /// The files as they were when they were last taken in. Whoever holds it may take them in.
    seen: Mutex<Vec<Stamp>>,
}

impl Live {
    pub(crate) fn new(
        sources: Sources,
        gateway: Gateway,
        projects: Arc<Projects>,
        overrides: CliOverrides,
        myself: Itself,
    ) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::new(stamps(&sources)),
            sources,
            gateway,
            projects,
            overrides,
            myself,
        })
    }

    /// The files.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Takes in changes of the files, for ever.
    ///
    /// Looked at by time and size twice a second: that sees editors that replace the file, and file systems
    /// that tell of no changes.
    pub(crate) async fn watch(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(WATCH);
        loop {
            tick.tick().await;
            let mut seen = self.seen.lock().await;
            if *seen == stamps(&self.sources) {
                continue;
            }
            if let Err(errors) = self.take_in(&mut seen).await {
                tracing::error!(
                    "the changed configuration is not usable, the old one stays:\n{errors}"
                );
            }
        }
    }

    /// Whether one of the files has the server, in force or not.
    pub(crate) async fn has(self: &Arc<Self>, name: &ServerName) -> bool {
        let (this, name) = (self.clone(), name.clone());
        let found = tokio::task::spawn_blocking(move || {
            let home = registry::home(&this.sources, &name);
            home.is_ok_and(|home| home.is_some())
        });
        found.await.unwrap_or_default()
    }

    /// The arguments by which another process finds the same files and the same data directory.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        // A file in its usual place is found there.
        if !self.sources.optional {
            for file in self.sources.files() {
                arguments.extend(["--config".into(), file.into()]);
            }
        }
        if let Some(dir) = &self.overrides.data_dir {
            arguments.extend(["--data-dir".into(), dir.into()]);
        }
        arguments
    }

    /// How it is set up, and what is wrong with the files as they are now.
    pub(crate) async fn settings(self: &Arc<Self>) -> api::Settings {
        let overruled = self.overrides.overruled();
        self.read(move |sources, _| told(sources, &overruled)).await
    }

    /// Looks at the files, without holding anybody up.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl FnOnce(&Sources, &Itself) -> T + Send + 'static,
    ) -> T {
        let this = self.clone();
        let looked = tokio::task::spawn_blocking(move || look(&this.sources, &this.myself));
        match looked.await {
            Ok(found) => found,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Has the files changed, and takes them in before anybody else does.
    ///
    /// The second answer is whether what the files say now is in force: they may have been wrong before, in
    /// another place.
    ///
    /// # Errors
    /// What `change` answers. Nothing is taken in then.
    ///
    /// # Cancel safety
    /// Dropped in the middle, the change is made or not; if it is, [`Live::watch`] takes it in.
    pub(crate) async fn change<T, E>(
        self: &Arc<Self>,
        change: impl FnOnce(&Sources, &Itself) -> Result<T, E> + Send + 'static,
    ) -> Result<(T, Result<(), ConfigError>), E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let mut seen = self.seen.lock().await;
        let this = self.clone();
        let changed = tokio::task::spawn_blocking(move || change(&this.sources, &this.myself));
        let changed = match changed.await {
            Ok(outcome) => outcome?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        Ok((changed, self.take_in(&mut seen).await))
    }

    async fn take_in(self: &Arc<Self>, seen: &mut Vec<Stamp>) -> Result<(), ConfigError> {
        // Before the files are read: what is written meanwhile is seen the next time.
        *seen = stamps(&self.sources);
        let this = self.clone();
        let loaded =
            tokio::task::spawn_blocking(move || Config::load(&this.sources, &startup::env));
        let mut config = match loaded.await {
            Ok(loaded) => loaded?,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        self.myself.leave_out(&mut config);
        warn_of(&config);
        self.overrides.overrule(&mut config.settings);
        tracing::info!(
            servers = config.servers.len(),
            "took in the changed configuration"
        );
        let declared = startup::declared_projects(&config);
        let remembered = self.remembered(&config).await;
        self.gateway
            .reconfigure(config.servers, Some(config.settings), remembered);
        self.projects.declared(&declared).await;
        Ok(())
    }

    /// What was known of servers when they were here before: an entry that was removed and is added again agrees to
    /// nothing.
    async fn remembered(&self, config: &Config) -> HashMap<ServerName, Remembered> {
        let servers = self.gateway.servers();
        let is_new = |name: &ServerName| servers.iter().all(|server| server.name() != name);
        if !config.servers.iter().any(|spec| is_new(&spec.name)) {
            return HashMap::new();
        }
        match startup::remembered(self.projects.store(), config).await {
            Ok(mut known) => {
                known.retain(|name, _| is_new(name));
                known
            }
            Err(error) => {
                tracing::warn!(
                    "how the tools of added servers were defined is found out later: {error:#}"
                );
                HashMap::new()
            }
        }
    }
}

pub(crate) fn warn_of(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

/// The settings of these files; `overruled` are the keys that the command line or the environment set.
fn told(sources: &Sources, overruled: &[&str]) -> api::Settings {
    let (problems, warnings) = match Config::load(sources, &startup::env) {
        Ok(config) => (Vec::new(), config.warnings),
        Err(error) => (error.problems, Vec::new()),
    };
    let told = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
    let file = sources.settings.as_ref();
    let settings = config::all_settings(sources).into_iter();
    let settings = settings.map(|setting| api::OneSetting {
        from: match (setting.line, file) {
            _ if overruled.contains(&setting.key.as_str()) => {
                "command line or environment".to_owned()
            }
            (Some(line), Some(file)) => format!("{}:{line}", file.display()),
            _ => "default".to_owned(),
        },
        key: setting.key,
        value: setting.value,
        default: setting.default,
        about: setting.about,
    });
    let files = sources.files().map(|path| path.display().to_string());
    api::Settings {
        files: files.collect(),
        problems: told(problems),
        warnings: told(warnings),
        settings: settings.collect(),
    }
}

fn stamps(sources: &Sources) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    sources.files().map(stamp).collect()
}
