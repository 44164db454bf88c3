//! The lock that allows one gateway per data directory, and the file with the gateway's address.
//!
//! The holder may remove what an earlier run left behind: sandboxes, containers, records that were never closed.
//! `serve` holds the lock as long as it runs. `stdio` never takes it, so that an open client does not prevent `serve`
//! from starting.
//!
//! Invariants: the kernel releases the lock when the holder's process ends in any way, and no child inherits it. The
//! address is valid only while the process that wrote it holds the lock. Otherwise its port may belong to another
//! process, which must not receive the token.
//!
//! During an upgrade, two processes hold the same lock: the new one has a descriptor of the same open file. The kernel
//! releases the lock when both are gone (docs/decisions/0024).

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use config::Sources;
use http_client::Pin;
use serde::{Deserialize, Serialize};
use store::Location;

/// The locked file. It is never removed, because otherwise two gateways could each lock a different file of this name.
const LOCK_FILE: &str = "gateway.lock";
/// The file with the gateway's address.
const STATE_FILE: &str = "serve.json";
/// Attempts at taking the lock, and the delay between them. Commands that check the lock hold it for an instant.
const MAX_ATTEMPTS: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The lock on a data directory. Dropping it releases it.
pub struct Lock {
    dir: PathBuf,
    file: File,
}

#[derive(Debug)]
pub struct Holder {
    /// The gateway's process id, in its own process namespace.
    pub pid: Option<u32>,
    /// `None` while the gateway is starting or stopping.
    pub at: Option<GatewayRecord>,
}

/// The address of a running gateway, and its configuration files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GatewayRecord {
    pub url: String,
    /// The address remains valid after a restart.
    #[serde(default)]
    pub is_fixed: bool,
    pub pid: u32,
    /// Absolute paths of its configuration files.
    #[serde(default)]
    pub config: Vec<PathBuf>,
    /// Its database, without a password. `None`: an earlier version wrote the record.
    #[serde(default)]
    pub database: Option<String>,
    /// The SHA-256 of the certificate that it uses now, in hex. `None`: plain HTTP. Only this certificate proves that a
    /// process at `url` is the gateway, because it may be issued for other names than that of `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The URL for clients that check the certificate's name. `None`: `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
}

/// The addresses of a gateway.
pub struct Address<'a> {
    /// The URL for programs on this machine.
    pub url: &'a str,
    /// It remains valid after a restart.
    pub is_fixed: bool,
    /// See [`GatewayRecord::certificate`].
    pub certificate: Option<String>,
    /// See [`GatewayRecord::public_url`].
    pub public_url: Option<&'a str>,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// If another gateway holds it. The error names that gateway and says what the user can do.
    pub async fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK_FILE);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
        for _ in 0..MAX_ATTEMPTS {
            match file.try_lock() {
                Ok(()) => {
                    let dir = dir.to_owned();
                    let lock = Self { dir, file };
                    lock.write_pid()?;
                    return Ok(lock);
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(RETRY_DELAY).await,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| {
                        format!(
                            "cannot lock {}: the data directory must be on a file system that supports file locks",
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
            "another gateway uses the data directory {}: {other}. Use that gateway (`toolwharf ls` shows its \
             servers), {end}, or choose another data directory with --data-dir",
            dir.display()
        )
    }

    /// Holds a lock that another process took and passed to this one.
    ///
    /// # Errors
    /// It is the lock of another directory.
    pub fn passed(dir: &Path, lock: OwnedFd) -> anyhow::Result<Self> {
        let file = File::from(lock);
        let path = dir.join(LOCK_FILE);
        let (held, wanted) = (file.metadata()?, fs::metadata(&path));
        let wanted = wanted.with_context(|| format!("cannot read {}", path.display()))?;
        if (held.dev(), held.ino()) != (wanted.dev(), wanted.ino()) {
            bail!(
                "the running gateway uses another data directory than {}: stop it and start it again to change the \
                 data directory",
                dir.display()
            );
        }
        let dir = dir.to_owned();
        Ok(Self { dir, file })
    }

    /// A descriptor of the lock, for another process that will hold it too.
    ///
    /// # Errors
    /// Too many open files.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Writes this process's id into the locked file. The old content is overwritten before it is cut, so that this works
    /// on a full disk.
    fn write_pid(&self) -> anyhow::Result<()> {
        let text = format!("{:<10}\n", std::process::id());
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written
            .and_then(|()| self.file.set_len(text.len() as u64))
            .with_context(|| format!("cannot write {}", self.dir.join(LOCK_FILE).display()))
    }

    /// Writes the gateway's address to a temporary file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn prepare(
        &self,
        address: &Address<'_>,
        sources: &Sources,
        database: &Location,
    ) -> anyhow::Result<Prepared> {
        let path = self.dir.join(STATE_FILE);
        let gateway_record = GatewayRecord {
            url: address.url.to_owned(),
            is_fixed: address.is_fixed,
            pid: std::process::id(),
            config: absolute(sources),
            database: Some(database.to_string()),
            certificate: address.certificate.clone(),
            public_url: address.public_url.map(str::to_owned),
        };
        let prepared = Prepared {
            new: path.with_extension("json.new"),
            path,
            gateway_record,
        };
        prepared.write()?;
        Ok(prepared)
    }

    /// Publishes the gateway's address until the returned guard is dropped.
    ///
    /// # Errors
    /// A file of the data directory cannot be written.
    pub fn announce(&self, prepared: Prepared) -> anyhow::Result<Announced> {
        prepared.publish()?;
        let announced = Announced(Some(prepared));
        // Until now, the file may contain the id of the process that passed the lock.
        self.write_pid()?;
        Ok(announced)
    }
}

/// An address that is not published yet.
pub struct Prepared {
    new: PathBuf,
    path: PathBuf,
    gateway_record: GatewayRecord,
}

impl Prepared {
    fn write(&self) -> anyhow::Result<()> {
        let text = serde_json::to_string(&self.gateway_record)? + "\n";
        fs::write(&self.new, text).with_context(|| format!("cannot write {}", self.new.display()))
    }

    /// Replaces the file atomically, since other processes may read it at any time.
    fn publish(&self) -> anyhow::Result<()> {
        fs::rename(&self.new, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The published address. Dropping it removes the file, before the lock is released.
pub struct Announced(Option<Prepared>);

impl Announced {
    /// Publishes that the gateway uses another certificate, with this SHA-256.
    ///
    /// # Errors
    /// If the file cannot be written. Then commands on this machine cannot connect.
    pub fn set_certificate(&self, digest: &str) -> anyhow::Result<()> {
        let Some(published) = &self.0 else {
            return Ok(());
        };
        let changed = Prepared {
            // During an upgrade, the new process may have prepared the other file.
            new: published.path.with_extension("json.renewed"),
            path: published.path.clone(),
            gateway_record: GatewayRecord {
                certificate: Some(digest.to_owned()),
                ..published.gateway_record.clone()
            },
        };
        changed.write()?;
        changed.publish()
    }

    /// Leaves the file to the process that holds the lock from now on.
    pub fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(published) = &self.0 {
            let _ = fs::remove_file(&published.path);
        }
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

/// The gateway that holds the data directory, if any.
pub fn holder(dir: &Path) -> Option<Holder> {
    let file = File::open(dir.join(LOCK_FILE)).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        // The lock is free, or this file system does not support locks.
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let mut text = String::new();
    let _ = file.take(32).read_to_string(&mut text);
    let pid = text.trim().parse().ok();
    let at = read(&dir.join(STATE_FILE)).filter(|at| Some(at.pid) == pid);
    Some(Holder { pid, at })
}

/// Checks that the files about a running gateway can be read, if there are any.
///
/// # Errors
/// The directory or one of the files cannot be read.
pub fn readable(dir: &Path) -> io::Result<()> {
    for file in [LOCK_FILE, STATE_FILE] {
        match fs::read(dir.join(file)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The address of the gateway that runs on this data directory, if any.
pub fn gateway_record(dir: &Path) -> Option<GatewayRecord> {
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
    /// Returns true if the gateway uses this database, or an earlier version wrote the record.
    pub fn works_on(&self, database: &Location) -> bool {
        self.database.as_ref().is_none_or(|own| match database {
            Location::Sqlite(file) => real(Path::new(own)) == real(file),
            Location::Postgres(_) => *own == database.to_string(),
        })
    }

    /// The certificate that a connection to the gateway must have. `None`: plain HTTP, or the record is invalid, so that
    /// the certificate must be valid for the name in the URL.
    pub fn pin(&self) -> Option<Pin> {
        self.certificate.as_deref()?.parse().ok()
    }

    /// The URL for clients that were not written for Toolwharf, if it remains valid after a restart.
    pub fn url_of_clients(&self) -> Option<String> {
        let url = self.public_url.as_ref().unwrap_or(&self.url);
        self.is_fixed.then(|| url.clone())
    }

    /// Returns true if the gateway uses exactly these servers, and these settings if any are given.
    pub fn works_with(&self, sources: &Sources) -> bool {
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

/// The canonical path of a file.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

pub fn absolute(sources: &Sources) -> Vec<PathBuf> {
    sources
        .files()
        .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()))
        .collect()
}
