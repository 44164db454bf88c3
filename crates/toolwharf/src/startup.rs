//! What every long-running command does first: configuration, logs, data directory, gateway.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use engine::Gateway;
use mcp::client::Identity;
use model::{LogFormat, Settings};
use runtime::{process::Spawner, sentinel::SentinelCommand};

use crate::config::{Config, Sources, data_dir};

/// The argument that makes this binary a sentinel.
pub(crate) const SENTINEL: &str = "sentinel";
/// The file in the data directory that holds the administrator's token.
pub(crate) const TOKEN_FILE: &str = "admin-token";

pub(crate) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads the configuration; warnings go to stderr.
pub(crate) fn load(named: &[PathBuf]) -> anyhow::Result<(Sources, Config)> {
    let sources = Sources::locate(named, &env)?;
    let config = Config::load(&sources, &env)
        .map_err(|errors| anyhow::anyhow!("the configuration is not usable\n{errors}"))?;
    Ok((sources, config))
}

/// Logs to stderr: `RUST_LOG`, else the configured level.
pub(crate) fn init_logs(settings: &Settings) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&settings.log.level))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match settings.log.format {
        LogFormat::Json => logs.json().flatten_event(true).init(),
        LogFormat::Text => {
            use std::io::IsTerminal;
            logs.with_ansi(std::io::stderr().is_terminal()).init();
        }
    }
}

/// The data directory, made if it is not there, for this user alone.
pub(crate) fn open_data_dir(settings: &Settings) -> anyhow::Result<PathBuf> {
    let dir = data_dir(settings, &env)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("cannot make the data directory {}", dir.display()))?;
    Ok(dir)
}

/// The administrator's token, and whether it was made just now.
pub(crate) fn admin_token(dir: &Path) -> anyhow::Result<(Arc<str>, bool)> {
    let path = dir.join(TOKEN_FILE);
    match fs::read_to_string(&path) {
        Ok(token) if token.trim().len() >= 16 => return Ok((token.trim().into(), false)),
        Ok(_) => bail!(
            "{} holds no token; remove it, and a new one is made",
            path.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let random: [u8; 24] = rand::random();
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    let mut file = match written {
        Ok(file) => file,
        // Somebody else was first: theirs is the token.
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

/// A gateway that has no servers yet.
pub(crate) fn gateway(settings: Settings) -> anyhow::Result<Gateway> {
    let sentinel = SentinelCommand::this_binary([SENTINEL]);
    let spawner =
        Spawner::new(sentinel).context("cannot start the helper that cleans up after a crash")?;
    let identity = Identity {
        name: "toolwharf".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    Ok(Gateway::new(settings, identity, spawner))
}
