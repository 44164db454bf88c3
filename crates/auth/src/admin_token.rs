//! The administrator's token: from the environment, or from a file in the data directory.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path, sync::Arc};

use anyhow::{Context as _, bail};

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The file in the data directory with the administrator's token.
pub const TOKEN_FILE: &str = "admin-token";
/// The environment variable with the administrator's token, for gateways that share a database.
pub const ADMIN_TOKEN: &str = "TOOLWHARF_ADMIN_TOKEN";
/// Minimum length of a token.
const MIN_TOKEN_CHARS: usize = 16;

/// The administrator's token, from [`ADMIN_TOKEN`] or else from the file. The second value is true if it was created
/// now.
pub(crate) fn admin_token(dir: &Path) -> anyhow::Result<(Arc<str>, bool)> {
    let path = dir.join(TOKEN_FILE);
    if let Some(token) = env(ADMIN_TOKEN).filter(|token| !token.trim().is_empty()) {
        let token = token.trim();
        if token.len() < MIN_TOKEN_CHARS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "{ADMIN_TOKEN} is not a token: use at least {MIN_TOKEN_CHARS} letters, digits and signs, such as `twh_` and the \
                 output of `openssl rand -hex 24`"
            );
        }
        return Ok((token.into(), false));
    }
    match fs::read_to_string(&path) {
        Ok(token) if token.trim().len() >= MIN_TOKEN_CHARS => {
            return Ok((token.trim().into(), false));
        }
        Ok(_) => bail!(
            "{} contains no token; remove it to have a new one created",
            path.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let random: [u8; 24] = rand::random();
    let token = hex::encode(random);
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let mut file = match written {
        Ok(file) => file,
        // Another process created the file first, so its token is used.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let token = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            return Ok((token.trim().into(), false));
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot write {}", path.display()));
        }
    };
    writeln!(file, "twh_{token}").with_context(|| format!("cannot write {}", path.display()))?;
    Ok((format!("twh_{token}").into(), true))
}

/// Atomically writes the token to the file from which commands read it.
pub(crate) fn keep_token(dir: &Path, token: &str) -> anyhow::Result<()> {
    let path = dir.join(TOKEN_FILE);
    if fs::read_to_string(&path).is_ok_and(|known| known.trim() == token) {
        return Ok(());
    }
    let written = || {
        // `tempfile` creates the file readable by this user only.
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        writeln!(file, "{token}")?;
        file.persist(&path).map(drop).map_err(|error| error.error)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// The origin of the administrator's token.
pub(crate) fn token_place(dir: &Path) -> String {
    match env(ADMIN_TOKEN).filter(|token| !token.trim().is_empty()) {
        Some(_) => ADMIN_TOKEN.to_owned(),
        None => dir.join(TOKEN_FILE).display().to_string(),
    }
}
