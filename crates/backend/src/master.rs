//! The master key: its origin, and its rotation.
//!
//! The key is in the variable [`MASTER_KEY`], or in a file in the data directory that the first run creates, readable
//! by its owner only. Invariant: a key that does not match the database is never used. An interrupted rotation is
//! completed at the next start: the new key is in a file next to the old one before the database uses it.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use model::ProjectId;
use store::{
    Store,
    encryption::{DataKey, MasterKey},
};
use zeroize::Zeroizing;

/// Contains the key as 64 hexadecimal digits.
pub const MASTER_KEY: &str = "TOOLWHARF_MASTER_KEY";
/// Contains the previous key during a rotation to the key in [`MASTER_KEY`].
pub const OLD_MASTER_KEY: &str = "TOOLWHARF_MASTER_KEY_OLD";
pub(crate) const KEY_FILE: &str = "master.key";
const NEW_KEY_FILE: &str = "master.key.new";
/// Attempts at a rotation while projects get data keys at the same time.
const MAX_ATTEMPTS: usize = 5;

/// The master key in use.
pub(crate) struct Master {
    store: Store,
    key: ArcSwap<MasterKey>,
    /// The directory of the key file; `None`: the key is given by the environment.
    dir: Option<PathBuf>,
}

impl Master {
    /// Opens the key of this database.
    ///
    /// # Errors
    /// If it cannot be read, or does not match the database's secrets.
    pub(crate) async fn open(
        store: &Store,
        dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let given = env(MASTER_KEY).map(Zeroizing::new);
        let (key, from) = match &given {
            Some(text) => (
                MasterKey::parse(text).with_context(|| format!("the variable {MASTER_KEY}"))?,
                format!("the variable {MASTER_KEY}"),
            ),
            None => (
                Self::of_file(dir)?,
                dir.join(KEY_FILE).display().to_string(),
            ),
        };
        let master = |key| Self {
            store: store.clone(),
            key: ArcSwap::from_pointee(key),
            dir: given.is_none().then(|| dir.to_owned()),
        };
        let used = store.master_set_if_none(&key.id(), &key.check()).await?;
        if used.key_id == key.id() {
            if !key.opens(&used.sealed_check) {
                bail!(
                    "the database is damaged: it has the id, but not the check value, of the master key in {from}; restore a backup"
                );
            }
            return Ok(master(key));
        }
        // The rotation was completed in the database but not in the file.
        if let Some(new) = read(&dir.join(NEW_KEY_FILE))?.filter(|new| new.id() == used.key_id)
            && given.is_none()
        {
            rename(dir)?;
            return Ok(master(new));
        }
        if let Some(old) = env(OLD_MASTER_KEY).map(Zeroizing::new) {
            let old =
                MasterKey::parse(&old).with_context(|| format!("the variable {OLD_MASTER_KEY}"))?;
            if old.id() == used.key_id {
                let rotated = master(old);
                rotated.go_over_to(&key).await?;
                rotated.key.store(Arc::new(key));
                tracing::info!("the master key was rotated: {OLD_MASTER_KEY} is no longer needed");
                return Ok(rotated);
            }
        }
        bail!(
            "the master key in {from} ({}) is not the key that this database's secrets were encrypted with ({}); \
             nothing was changed. Restore the old key from a backup of {KEY_FILE} or of {MASTER_KEY}; or, to rotate \
             to the new key, set {OLD_MASTER_KEY} to the old one",
            key.id(),
            used.key_id,
        )
    }

    /// The key that encrypts sign-ins and the secrets of the configuration file. Changes neither the database nor the key
    /// file. Returns `None` if this key or the master key does not exist.
    ///
    /// # Errors
    /// If a key cannot be read, or does not match the database's secrets.
    pub(crate) async fn existing_login_key(
        store: &Store,
        dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<DataKey>> {
        let (Some(used), Some(wrapped)) = (store.master_get().await?, store.login_key().await?)
        else {
            return Ok(None);
        };
        let keys = match env(MASTER_KEY).map(Zeroizing::new) {
            Some(text) => {
                let key = MasterKey::parse(&text);
                vec![Some(
                    key.with_context(|| format!("the variable {MASTER_KEY}"))?,
                )]
            }
            None => vec![read(&dir.join(KEY_FILE))?, read(&dir.join(NEW_KEY_FILE))?],
        };
        let mut keys = keys.into_iter().flatten().peekable();
        if keys.peek().is_none() {
            return Ok(None);
        }
        let key = keys.find(|key| key.id() == used.key_id).with_context(|| {
            format!(
                "the master key is not the one that this database's secrets were encrypted with ({})",
                used.key_id
            )
        })?;
        let key = key.unwrap_login_key(&wrapped);
        key.map(Some)
            .context("cannot decrypt the key that secrets are encrypted with")
    }

    /// The id of the key in use, and its text if it can be found: in the environment, or in its file. `None` if no key
    /// was ever used. Changes nothing.
    ///
    /// # Errors
    /// If the database or a key file cannot be read.
    pub(crate) async fn in_use(
        store: &Store,
        dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Option<(String, Option<Zeroizing<String>>)>> {
        let Some(used) = store.master_get().await? else {
            return Ok(None);
        };
        let given = env(MASTER_KEY).map(Zeroizing::new);
        let given = given.and_then(|text| MasterKey::parse(&text).ok());
        let keys = [
            given,
            read(&dir.join(KEY_FILE))?,
            read(&dir.join(NEW_KEY_FILE))?,
        ];
        let mut keys = keys.into_iter().flatten();
        let key = keys.find(|key| key.id() == used.key_id);
        Ok(Some((used.key_id, key.map(|key| key.to_text()))))
    }

    /// The id of the key in a file's text. `None` if the text is not a key.
    pub(crate) fn id_of(text: &str) -> Option<String> {
        MasterKey::parse(text).ok().map(|key| key.id())
    }

    /// Returns whether the key for this database exists: in the environment, or in its file.
    pub(crate) fn is_given(dir: &Path, env: &dyn Fn(&str) -> Option<String>) -> bool {
        env(MASTER_KEY).is_some() || dir.join(KEY_FILE).exists()
    }

    fn of_file(dir: &Path) -> anyhow::Result<MasterKey> {
        let path = dir.join(KEY_FILE);
        if let Some(key) = read(&path)? {
            return Ok(key);
        }
        let key = MasterKey::random();
        match write(&path, &key) {
            // Another process was first, and its key is used.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                read(&path)?.with_context(|| format!("cannot read {}", path.display()))
            }
            written => {
                written.with_context(|| format!("cannot write {}", path.display()))?;
                Ok(key)
            }
        }
    }

    pub(crate) fn key(&self) -> Arc<MasterKey> {
        self.key.load_full()
    }

    /// The key that encrypts sign-ins. Created if it does not exist.
    ///
    /// # Errors
    /// If the database does not respond, or the key cannot be decrypted.
    pub(crate) async fn login_key(&self) -> anyhow::Result<DataKey> {
        let wrapped = match self.store.login_key().await? {
            Some(wrapped) => wrapped,
            None => {
                let master = self.key();
                let fresh = master.wrap_login_key(&DataKey::random());
                self.store
                    .login_key_set_if_none(&master.id(), &fresh)
                    .await?
            }
        };
        // During a rotation this may already be the next key.
        let key = self.key().unwrap_login_key(&wrapped);
        key.context("cannot decrypt the key that sign-ins are encrypted with")
    }

    /// Rotates the master key and returns the id of the new one.
    ///
    /// # Errors
    /// If the key is given by the environment, or the new one cannot be stored. The old key then stays in use.
    pub(crate) async fn rotate(&self) -> anyhow::Result<String> {
        let Some(dir) = &self.dir else {
            bail!(
                "the master key comes from the environment variable {MASTER_KEY}, so Toolwharf cannot replace it: start \
                 Toolwharf once with the new key in {MASTER_KEY} and the old one in {OLD_MASTER_KEY}"
            );
        };
        let new = MasterKey::random();
        let path = dir.join(NEW_KEY_FILE);
        let _ = fs::remove_file(&path);
        write(&path, &new).with_context(|| format!("cannot write {}", path.display()))?;
        self.go_over_to(&new).await?;
        rename(dir)?;
        let id = new.id();
        self.key.store(Arc::new(new));
        Ok(id)
    }

    async fn go_over_to(&self, new: &MasterKey) -> anyhow::Result<()> {
        let old = self.key();
        for _ in 0..MAX_ATTEMPTS {
            let keys = self.store.master_data_keys().await?;
            let rewrapped: Vec<(ProjectId, Vec<u8>)> = keys
                .into_iter()
                .map(|(project, wrapped)| {
                    let key = old.unwrap(&project, &wrapped);
                    let key = key.with_context(|| {
                        format!("cannot decrypt the data key of project `{project}`")
                    })?;
                    let wrapped = new.wrap(&project, &key);
                    Ok((project, wrapped))
                })
                .collect::<anyhow::Result<_>>()?;
            let login_key = match self.store.login_key().await? {
                Some(wrapped) => {
                    let key = old
                        .unwrap_login_key(&wrapped)
                        .context("cannot decrypt the key that sign-ins are encrypted with")?;
                    Some(new.wrap_login_key(&key))
                }
                None => None,
            };
            let (old, new, check) = (old.id(), new.id(), new.check());
            match self
                .store
                .master_rotate(&old, &new, &check, &rewrapped, login_key.as_deref())
                .await
            {
                Err(store::Error::Conflict { .. }) => {}
                done => {
                    return done.context("cannot rotate the master key; the old one stays in use");
                }
            }
        }
        bail!(
            "cannot rotate the master key: projects changed in all {MAX_ATTEMPTS} attempts; try again"
        )
    }
}

/// Reads the key from a file, if that exists.
fn read(path: &Path) -> anyhow::Result<Option<MasterKey>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let key = MasterKey::parse(&text).with_context(|| path.display().to_string())?;
    Ok(Some(key))
}

fn write(path: &Path, key: &MasterKey) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(key.to_text().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

fn rename(dir: &Path) -> anyhow::Result<()> {
    let (new, path) = (dir.join(NEW_KEY_FILE), dir.join(KEY_FILE));
    fs::rename(&new, &path)
        .and_then(|()| fs::File::open(dir)?.sync_all())
        .with_context(|| format!("cannot rename {} to {}", new.display(), path.display()))
}
