//! Reloads the configuration files of a running gateway.
//!
//! Invariant: reloads never overlap, whether a file changed or an administrator changed it. If the files are invalid,
//! that is reported and the running configuration stays in force. An invalid entry only blocks its server.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use catalog::Remembered;
use config::{Config, ConfigError, Problem, Sources};
use engine::Gateway;
use model::ServerName;
use tokio::sync::Mutex;

use crate::{
    loop_detection::LoopDetection,
    projects::Projects,
    server_files,
    service_manager::ServiceManager,
    startup::{self, CliOverrides},
};

/// Interval between checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The version of a file: its modification time, size, device and inode.
pub type Stamp = Option<(SystemTime, [u64; 3])>;

pub struct Live {
    sources: Sources,
    gateway: Gateway,
    projects: Arc<Projects>,
    overrides: CliOverrides,
    myself: LoopDetection,
    service_manager: ServiceManager,
    /// The stamps at the last reload. The lock holder may reload.
    seen: Mutex<Vec<Stamp>>,
}

impl Live {
    pub fn new(
        sources: Sources,
        gateway: Gateway,
        projects: Arc<Projects>,
        overrides: CliOverrides,
        myself: LoopDetection,
        service_manager: ServiceManager,
    ) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::new(stamps(&sources)),
            sources,
            gateway,
            projects,
            overrides,
            myself,
            service_manager,
        })
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Reloads the files when they change, in a loop.
    ///
    /// Polls their metadata twice a second. This also covers editors that replace the file, and file systems without
    /// change notifications.
    pub async fn watch(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        loop {
            tick.tick().await;
            let mut seen = self.seen.lock().await;
            if *seen == stamps(&self.sources) {
                continue;
            }
            if let Err(errors) = self.take_in(&mut seen).await {
                tracing::error!(
                    "the changed configuration is invalid, keeping the old one:\n{errors}"
                );
            }
        }
    }

    /// Returns true if one of the files contains the server, even if that version of the file is not in force.
    pub async fn has(self: &Arc<Self>, name: &ServerName) -> bool {
        let (this, name) = (self.clone(), name.clone());
        let found = tokio::task::spawn_blocking(move || {
            let home = server_files::home(&this.sources, &name);
            home.is_ok_and(|home| home.is_some())
        });
        found.await.unwrap_or_default()
    }

    /// The arguments with which another process uses the same files and data directory.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        // A file in its default place needs no argument.
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

    /// The settings, and the errors in the current files.
    pub async fn settings(self: &Arc<Self>) -> api::Settings {
        let overruled = self.overrides.overruled();
        self.read(move |sources, _| to_api(sources, &overruled))
            .await
    }

    /// Runs `look` on the files, on a thread for blocking work.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl FnOnce(&Sources, &LoopDetection) -> T + Send + 'static,
    ) -> T {
        let this = self.clone();
        let looked = tokio::task::spawn_blocking(move || look(&this.sources, &this.myself));
        match looked.await {
            Ok(found) => found,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Changes the files and reloads them before any other change.
    ///
    /// The inner result is an error if the files are not in force now, which may be due to an earlier error in another
    /// place.
    ///
    /// # Errors
    /// The error of `change`. Then nothing is reloaded.
    ///
    /// # Cancel safety
    /// If dropped, the change is either made or not; if it is, [`Live::watch`] reloads the files.
    pub async fn change<T, E>(
        self: &Arc<Self>,
        change: impl FnOnce(&Sources, &LoopDetection) -> Result<T, E> + Send + 'static,
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

    /// Reads the stored secrets again and reloads the files with them. Only servers that use a changed secret restart.
    ///
    /// The inner result is an error if the files are not in force now.
    ///
    /// # Errors
    /// Database errors. Then nothing is changed.
    pub async fn refresh_secrets(self: &Arc<Self>) -> store::Result<Result<(), ConfigError>> {
        let mut seen = self.seen.lock().await;
        let values = self.projects.config_secret_values().await?;
        if *self.sources.sealed.get() == values {
            return Ok(Ok(()));
        }
        self.sources.sealed.set(values);
        Ok(self.take_in(&mut seen).await)
    }

    async fn take_in(self: &Arc<Self>, seen: &mut Vec<Stamp>) -> Result<(), ConfigError> {
        let reload = self.service_manager.reload().await;
        let taken_in = self.put_in_force(seen).await;
        reload.done(taken_in.is_ok()).await;
        taken_in
    }

    async fn put_in_force(self: &Arc<Self>, seen: &mut Vec<Stamp>) -> Result<(), ConfigError> {
        // The stamps are taken before the files are read, so that a later change triggers another reload.
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
            "reloaded the changed configuration"
        );
        let declared = startup::declared_projects(&config);
        let remembered = self.remembered(&config).await;
        self.gateway
            .reconfigure(config.servers, Some(config.settings), remembered);
        self.projects.declared(&declared).await;
        Ok(())
    }

    /// The stored tools of servers that are new to this gateway. An entry that was removed and is added again does not
    /// approve new definitions.
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
                    "cannot load the stored tools of added servers; their tools appear when they connect: {error:#}"
                );
                HashMap::new()
            }
        }
    }
}

/// Logs the problems and warnings of a configuration that is in force.
pub fn warn_of(config: &Config) {
    for problem in &config.problems {
        tracing::error!("{problem}");
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

/// The settings in these files. `overruled`: the keys that are set by the command line or the environment.
fn to_api(sources: &Sources, overruled: &[&str]) -> api::Settings {
    let (problems, warnings) = match Config::load(sources, &startup::env) {
        Ok(config) => (config.problems, config.warnings),
        Err(error) => (error.problems, Vec::new()),
    };
    let texts = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
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
        problems: texts(problems),
        warnings: texts(warnings),
        settings: settings.collect(),
    }
}

fn stamps(sources: &Sources) -> Vec<Stamp> {
    sources.files().map(stamp).collect()
}

/// The version of the file that a path leads to, through any symbolic links. `None` if the file does not exist.
pub fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, [meta.len(), meta.dev(), meta.ino()]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_replacement_of_equal_size_and_time_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, new] = ["mcp.json", "new.json"].map(|name| folder.path().join(name));
        let sources = Sources {
            servers: vec![file.clone()],
            optional: false,
            ..Sources::default()
        };
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let write = |path: &Path, text: &str| {
            fs::write(path, text).expect("written");
            let opened = fs::File::options().write(true).open(path);
            opened
                .and_then(|file| file.set_modified(time))
                .expect("set");
        };
        write(&file, "one");
        let before = stamps(&sources);
        assert_eq!(before, stamps(&sources));
        write(&new, "two");
        fs::rename(&new, &file).expect("renamed");
        assert_ne!(before, stamps(&sources));
    }
}
