//! One gateway per data directory: its lock, and where it says that it is.
//!
//! Whoever holds the lock may remove what an earlier run left behind: sandboxes, containers, records that were never
//! closed. `serve` holds it for as long as it runs. `stdio` never takes it, so that a client that is open keeps nobody
//! from starting `serve`.
//!
//! Invariants: the kernel releases the lock when its process ends, however it ends, and no child inherits it. The
//! address counts only while the lock is held by the process that wrote it: the port of one that is gone may be
//! somebody else's, who must not be sent the token.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use config::Sources;
use serde::{Deserialize, Serialize};

/// The file that is locked. It is never removed: two gateways could then lock one each.
const LOCK_FILE: &str = "gateway.lock";
/// The file that says where the gateway is.
const STATE_FILE: &str = "serve.json";
/// Attempts at the lock, and the pause between them: commands that only look hold it for an instant.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// The lock on a data directory; released when it is dropped.
pub(crate) struct Lock {
    dir: PathBuf,
    _file: File,
}

/// The gateway that holds the lock.
#[derive(Debug)]
pub(crate) struct Holder {
    /// As its own process namespace numbers it.
    pub(crate) pid: Option<u32>,
    /// `None`: it is starting or stopping.
    pub(crate) at: Option<GatewayRecord>,
}

/// Where a running gateway is, and what it was started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GatewayRecord {
    pub(crate) url: String,
    /// Whether it will be there again after a restart.
    #[serde(default)]
    pub(crate) is_fixed: bool,
    pub(crate) pid: u32,
    /// Its configuration files, absolute.
    #[serde(default)]
    pub(crate) config: Vec<PathBuf>,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another gateway holds it: which, and what to do.
    pub(crate) async fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK_FILE);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file = opened.with_context(|| format!("cannot open {}", path.display()))?;
        for _ in 0..ATTEMPTS {
            match file.try_lock() {
                Ok(()) => {
                    file.set_len(0)
                        .and_then(|()| file.rewind())
                        .and_then(|()| writeln!(file, "{}", std::process::id()))
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    return Ok(Self {
                        dir: dir.to_owned(),
                        _file: file,
                    });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| {
                        format!(
                            "cannot lock {}: the data directory has to be on a file system that locks files",
                            path.display()
                        )
                    });
                }
            }
        }
        let other = holder(dir).unwrap_or(Holder {
            pid: None,
            at: None,
        });
        let end = other.pid.map_or_else(
            || "end it".to_owned(),
            |pid| format!("end it with `kill {pid}`"),
        );
        bail!(
            "another gateway has the data directory {}: {other}. Use that one (`toolwharf ls` shows its servers), \
             {end}, or give this one a directory of its own with --data-dir",
            dir.display()
        )
    }

    /// Says where the gateway is, for as long as the answer is kept.
    pub(crate) fn announce(
        &self,
        url: &str,
        is_fixed: bool,
        sources: &Sources,
    ) -> anyhow::Result<Announced> {
        let path = self.dir.join(STATE_FILE);
        let gateway_record = GatewayRecord {
            url: url.to_owned(),
            is_fixed,
            pid: std::process::id(),
            config: absolute(sources),
        };
        let text = serde_json::to_string(&gateway_record)? + "\n";
        // In one step: it is read at any time.
        let new = path.with_extension("json.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Announced(path))
    }
}

/// The address, which is removed when this is dropped: before the lock is released.
pub(crate) struct Announced(PathBuf);

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("`toolwharf serve`")?;
        if let Some(pid) = self.pid {
            write!(f, " with pid {pid}")?;
        }
        match &self.at {
            Some(at) => write!(f, " at {}", at.url),
            None => f.write_str(", which is starting or stopping"),
        }
    }
}

/// The gateway that has the data directory, if one does.
pub(crate) fn holder(dir: &Path) -> Option<Holder> {
    let file = File::open(dir.join(LOCK_FILE)).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        // Nobody holds it; or nobody can, here.
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let mut text = String::new();
    let _ = file.take(32).read_to_string(&mut text);
    let pid = text.trim().parse().ok();
    let at = read(&dir.join(STATE_FILE)).filter(|at| Some(at.pid) == pid);
    Some(Holder { pid, at })
}

/// Where the gateway is that runs on this data directory, if one does.
pub(crate) fn gateway_record(dir: &Path) -> Option<GatewayRecord> {
    holder(dir)?.at
}

fn read(path: &Path) -> Option<GatewayRecord> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::debug!("cannot read {}: {error}", path.display());
            }
            return None;
        }
    };
    serde_json::from_str(&text).ok()
}

impl GatewayRecord {
    /// Whether it works with these files: exactly these servers, and these settings if some are meant.
    pub(crate) fn works_with(&self, sources: &Sources) -> bool {
        let is_settings = |file: &Path| file.extension().is_some_and(|end| end == "toml");
        let (settings, servers): (Vec<&PathBuf>, Vec<&PathBuf>) =
            self.config.iter().partition(|file| is_settings(file));
        let same = |file: &Path| settings.iter().any(|own| real(own) == real(file));
        let all = |files: &mut dyn Iterator<Item = &PathBuf>| {
            let mut all: Vec<_> = files.map(|file| real(file)).collect();
            all.sort();
            all
        };
        all(&mut servers.into_iter()) == all(&mut sources.servers.iter())
            && sources.settings.as_deref().is_none_or(same)
    }
}

/// The file that a path leads to, whatever it is called.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

pub(crate) fn absolute(sources: &Sources) -> Vec<PathBuf> {
    sources
        .files()
        .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()))
        .collect()
}
