//! Secrets of the servers in the configuration file, stored in the database.
//!
//! They are encrypted with the key for sign-ins, which a rotation of the master key does not change. A running gateway
//! loads them at its start and after each change. Commands that work without a gateway read them too, and create neither
//! a database nor a key for that ([0007](../../../docs/decisions/0007-stdio-never-takes-the-lock.md)).
//!
//! Invariant: values are decrypted in memory only, and never returned to a caller.

use std::path::Path;

use anyhow::bail;
use config::{SealedValues, Sources};
use model::Settings;
use store::{
    Location, SealedSecret, SecretRow, Store,
    encryption::{DataKey, Sealed},
};

use crate::{
    lock,
    master::{MASTER_KEY, Master},
    projects::{SecretError, check_secret},
    startup,
};

/// The place of a secret, to which its encryption is bound.
fn place(name: &str) -> [&str; 2] {
    ["configuration secret", name]
}

/// Encrypts and stores a secret.
pub(crate) async fn set(
    store: &Store,
    key: &DataKey,
    name: &str,
    value: &str,
) -> Result<SecretRow, SecretError> {
    check_secret(name, value)?;
    let sealed = key.seal_login(&place(name), value);
    let secret = SealedSecret {
        name: name.to_owned(),
        version: 0,
        nonce: sealed.nonce,
        sealed: sealed.sealed,
    };
    Ok(store.config_secret_put(&secret).await?)
}

/// Decrypts secrets. `key` is the reason for the failure if the key cannot be used.
pub(crate) fn opened(key: Result<&DataKey, String>, rows: Vec<SealedSecret>) -> SealedValues {
    let mut values = SealedValues::default();
    for row in rows {
        let sealed = Sealed {
            nonce: row.nonce,
            sealed: row.sealed,
        };
        let value = match &key {
            Ok(key) => match key.open_login(&place(&row.name), &sealed) {
                Ok(value) => Ok(value.as_str().to_owned()),
                Err(error) => Err(error.to_string()),
            },
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &value {
            tracing::error!(secret = %row.name, "a stored secret cannot be decrypted: {why}");
        }
        values.insert(row.name, value);
    }
    values
}

/// Loads the secrets for a gateway that starts.
///
/// # Errors
/// If the database or the master key cannot be read.
pub async fn load(sources: &Sources, store: &Store, data_dir: &Path) -> anyhow::Result<()> {
    let rows = store.config_secret_all().await?;
    if rows.is_empty() {
        return Ok(());
    }
    let master = Master::open(store, data_dir, &startup::env).await?;
    let key = master.login_key().await?;
    sources.sealed.set(opened(Ok(&key), rows));
    Ok(())
}

/// Loads the secrets for a command without a gateway. Changes nothing. Without a database or a master key, there are no
/// secrets. `env`: the environment of the gateway, if it is known.
///
/// # Errors
/// If an existing database or key cannot be used.
pub async fn peek(
    sources: &Sources,
    settings: &Settings,
    data_dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<()> {
    if !uses_variables(sources) {
        return Ok(());
    }
    let location = location(settings, data_dir, env);
    let Some(store) = Store::open_existing(&location).await? else {
        return Ok(());
    };
    let values = async {
        let rows = store.config_secret_all().await?;
        if rows.is_empty() {
            return Ok(SealedValues::default());
        }
        match Master::existing_login_key(&store, data_dir, env).await? {
            Some(key) => anyhow::Ok(opened(Ok(&key), rows)),
            None => Ok(SealedValues::default()),
        }
    };
    let values = values.await;
    store.close().await;
    sources.sealed.set(values?);
    Ok(())
}

/// Returns whether an entry may refer to a variable. Otherwise, the database need not be opened.
fn uses_variables(sources: &Sources) -> bool {
    let mut files = sources.servers.iter();
    files.any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("${")))
}

/// The database. A command without the option `--database-url` takes it from the environment.
fn location(
    settings: &Settings,
    data_dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Location {
    match env(startup::DATABASE_URL).filter(|url| !url.is_empty()) {
        Some(url) => Location::Postgres(url),
        None => startup::location(settings, data_dir),
    }
}

/// The secrets in the database of a data directory, without their values. Creates nothing.
///
/// # Errors
/// If an existing database cannot be read.
pub async fn list(settings: &Settings) -> anyhow::Result<Vec<SecretRow>> {
    let data_dir = config::data_dir(settings, &startup::env)?;
    let location = location(settings, &data_dir, &startup::env);
    let Some(store) = Store::open_existing(&location).await? else {
        return Ok(Vec::new());
    };
    let page = store::Page::after("", store::MAX_PAGE);
    let rows = store.config_secret_list(&page).await;
    store.close().await;
    Ok(rows?)
}

/// The secrets of a data directory on which no gateway runs.
pub struct Vault {
    store: Store,
    key: DataKey,
}

impl Vault {
    /// Opens the database, and creates it and the master key if they do not exist.
    ///
    /// # Errors
    /// If a gateway runs on the data directory, since it would not notice a change, or if the database or the master key
    /// cannot be used.
    pub async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let data_dir = startup::open_data_dir(settings)?;
        if let Some(holder) = lock::holder(&data_dir) {
            let pid = holder
                .pid
                .map_or_else(String::new, |pid| format!(" (process {pid})"));
            bail!(
                "a gateway{pid} runs on the data directory {} but cannot be reached: name it with --url, or stop it",
                data_dir.display()
            );
        }
        let store = Store::open(&location(settings, &data_dir, &startup::env)).await?;
        let is_used = store.master_get().await?.is_some();
        if is_used && !Master::is_given(&data_dir, &startup::env) {
            bail!(
                "there is no master key in {}: set {MASTER_KEY} as for `toolwharf serve`, or restore the file `master.key`",
                data_dir.display()
            );
        }
        let master = Master::open(&store, &data_dir, &startup::env).await?;
        let key = master.login_key().await?;
        Ok(Self { store, key })
    }

    /// # Errors
    /// [`SecretError`]
    pub async fn set(&self, name: &str, value: &str) -> Result<SecretRow, SecretError> {
        set(&self.store, &self.key, name, value).await
    }

    /// # Errors
    /// [`store::Error::NotFound`] if the secret does not exist.
    pub async fn remove(&self, name: &str) -> store::Result<()> {
        self.store.config_secret_delete(name).await
    }

    /// Writes everything to the database and closes it.
    pub async fn close(self) {
        self.store.close().await;
    }
}

impl crate::projects::Projects {
    /// Encrypts and stores a secret of the configuration file. [`crate::reload::Live::refresh_secrets`] applies it.
    ///
    /// # Errors
    /// [`SecretError`]
    pub async fn config_secret_set(
        &self,
        name: &str,
        value: &str,
    ) -> Result<SecretRow, SecretError> {
        check_secret(name, value)?;
        let key = match self.entry_key().await {
            Ok(key) => key,
            Err(error) => {
                return Err(match error.downcast::<store::Error>() {
                    Ok(error) => SecretError::Store(error),
                    Err(_) => SecretError::Sealed,
                });
            }
        };
        set(self.store(), key, name, value).await
    }

    /// The secrets of the configuration file.
    pub(crate) async fn config_secret_values(&self) -> store::Result<SealedValues> {
        let rows = self.store().config_secret_all().await?;
        if rows.is_empty() {
            return Ok(SealedValues::default());
        }
        match self.entry_key().await {
            Ok(key) => Ok(opened(Ok(key), rows)),
            Err(error) => match error.downcast::<store::Error>() {
                Ok(error) => Err(error),
                Err(error) => Ok(opened(Err(format!("{error:#}")), rows)),
            },
        }
    }
}

/// The warning about a secret that a variable of the same name overrides.
#[must_use]
pub fn overridden(name: &str) -> String {
    format!(
        "`{name}` is also set in the environment of `toolwharf serve`, which takes precedence: to use the secret, remove the \
         variable there and restart `toolwharf serve`"
    )
}
