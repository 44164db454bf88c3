//! The administrator's token: from the environment, or from a file in the data directory.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    path::Path,
    sync::Arc,
};

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
                "{ADMIN_TOKEN} is not a valid token: use at least {MIN_TOKEN_CHARS} ASCII letters, digits and punctuation marks, \
                 such as `twh_` followed by the output of `openssl rand -hex 24`"
            );
        }
        return Ok((token.into(), false));
    }
    if let Some(token) = read_token(&path)? {
        return Ok((token, false));
    }
    let random: [u8; 24] = rand::random();
    let token = format!("twh_{}", hex::encode(random));
    match write_token(dir, &token)?.persist_noclobber(&path) {
        Ok(_) => Ok((token.into(), true)),
        // Another process created the file first, so its token is used.
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
            let token =
                read_token(&path)?.context("another process created the file and removed it again");
            let token = token.with_context(|| format!("cannot read {}", path.display()))?;
            Ok((token, false))
        }
        Err(error) => Err(error.error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// The token in the file, or `None` without a file.
fn read_token(path: &Path) -> anyhow::Result<Option<Arc<str>>> {
    match fs::read_to_string(path) {
        Ok(token) if token.trim().len() >= MIN_TOKEN_CHARS => Ok(Some(token.trim().into())),
        Ok(_) => bail!(
            "{} contains no token of at least {MIN_TOKEN_CHARS} characters; delete the file, and the next start creates a token",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes the token to a temporary file that only this user can read. Moving it into place is atomic, so no
/// process reads half a token.
fn write_token(dir: &Path, token: &str) -> anyhow::Result<tempfile::NamedTempFile> {
    let written = || {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        writeln!(file, "{token}")?;
        std::io::Result::Ok(file)
    };
    written().with_context(|| format!("cannot write {}", dir.join(TOKEN_FILE).display()))
}

/// Writes the token to the file from which commands read it.
pub(crate) fn keep_token(dir: &Path, token: &str) -> anyhow::Result<()> {
    let path = dir.join(TOKEN_FILE);
    if fs::read_to_string(&path).is_ok_and(|known| known.trim() == token) {
        return Ok(());
    }
    let moved = write_token(dir, token)?.persist(&path);
    moved
        .map_err(|error| error.error)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// The origin of the administrator's token.
pub(crate) fn token_place(dir: &Path) -> String {
    match env(ADMIN_TOKEN).filter(|token| !token.trim().is_empty()) {
        Some(_) => ADMIN_TOKEN.to_owned(),
        None => dir.join(TOKEN_FILE).display().to_string(),
    }
}
