//! Finds the gateway and its token.

use std::{
    env, fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::Server;
use config::{Config, Sources, data_dir};
use model::{ProjectId, Settings};
use tokio::net::TcpStream;

use super::{
    Context,
    http::{Api, path},
    pages, print,
};
use backend::{
    config_secrets,
    lock::{self, GatewayRecord},
    loop_detection::LoopDetection,
    startup,
};

/// Time limit for a gateway on this machine to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(clap::Args, Default)]
pub(super) struct Reach {
    /// The URL of the gateway. The default is that of the data directory.
    #[arg(long, global = true, env = "TOOLWHARF_URL", value_name = "URL")]
    pub(super) url: Option<String>,
    /// A file with the key. The default is $TOOLWHARF_TOKEN, then the administrator's key.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// The data directory of the gateway.
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
}

/// The target of a command.
pub(super) enum Place {
    Gateway(Api),
    /// No gateway runs.
    Files(Sources),
}

/// Returns the files that changes are made in: those of the gateway that runs on the data directory, otherwise the
/// located ones.
pub(super) fn in_use(located: Sources, gateway: Option<&GatewayRecord>) -> anyhow::Result<Sources> {
    match gateway {
        // A running gateway's own files are used, regardless of the files that this command was given.
        Some(gateway) => Ok(Sources {
            optional: true,
            ..Sources::locate(&gateway.config, &startup::env)?
        }),
        None => Ok(located),
    }
}

/// Returns the identity that a gateway with these files uses to detect loops.
pub(super) fn own(sources: &Sources) -> LoopDetection {
    let settings = startup::settings(sources).unwrap_or_default();
    LoopDetection::configured(&settings)
}

impl Context {
    /// Returns the running gateway, otherwise the files.
    pub(super) async fn place(&self) -> anyhow::Result<Place> {
        if let Some(url) = &self.reach.url {
            return Ok(Place::Gateway(self.named(url)?));
        }
        let sources = Sources::locate(&self.config, &startup::env);
        match self.running(sources.as_ref().ok()).await? {
            Some(api) => Ok(Place::Gateway(api)),
            None => {
                let sources = sources?;
                let settings = startup::settings(&sources).unwrap_or_default();
                self.read_secrets(&sources, &settings, &startup::env).await;
                Ok(Place::Files(sources))
            }
        }
    }

    /// Returns the running gateway.
    ///
    /// # Errors
    /// No gateway is running. The message says how to start one.
    pub(super) async fn gateway(&self) -> anyhow::Result<Api> {
        match self.place().await? {
            Place::Gateway(api) => Ok(api),
            Place::Files(sources) => bail!("{}", self.no_gateway(&sources)),
        }
    }

    /// Explains why no gateway was found, and what to do.
    pub(super) fn no_gateway(&self, sources: &Sources) -> String {
        let Some(dir) = self.dir(Some(sources)) else {
            return "no gateway is running: start one with `toolwharf serve`, or specify one with --url"
                .to_owned();
        };
        let Some(other) = lock::holder(&dir) else {
            return format!(
                "no gateway is running on the data directory {}: start one with `toolwharf serve`, or specify one with --url",
                dir.display()
            );
        };
        match &other.at {
            Some(at) if !self.is_meant(sources, at) => {
                let files: Vec<String> = at
                    .config
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect();
                format!(
                    "the running gateway uses other configuration files than --config or TOOLWHARF_CONFIG names: {other} uses {}. \
                     Leave --config out, or specify the gateway with --url",
                    files.join(", ")
                )
            }
            _ => format!(
                "the gateway accepts no connections: {other}. Try again, or end it and start it again"
            ),
        }
    }

    /// Returns whether a running gateway is the one that the user means. If the user named files, a gateway that uses
    /// other files is ignored.
    fn is_meant(&self, sources: &Sources, found: &GatewayRecord) -> bool {
        let is_named = !self.config.is_empty()
            || startup::env("TOOLWHARF_CONFIG").is_some_and(|v| !v.is_empty());
        let mut files = lock::absolute(sources).into_iter();
        !is_named || files.all(|file| found.config.contains(&file))
    }

    /// Returns the running gateway, otherwise the files. With a project, a gateway is required.
    pub(super) async fn place_of(&self, project: Option<&ProjectId>) -> anyhow::Result<Place> {
        match project {
            Some(_) => Ok(Place::Gateway(self.gateway().await?)),
            None => self.place().await,
        }
    }

    /// Reads the stored secrets for the server files, if the data directory has any. `env`: the environment of the
    /// gateway.
    pub(super) async fn read_secrets(
        &self,
        sources: &Sources,
        settings: &Settings,
        env: &dyn Fn(&str) -> Option<String>,
    ) {
        let Some(dir) = self.dir(Some(sources)) else {
            return;
        };
        let read = config_secrets::peek(sources, settings, &dir, env).await;
        if let Err(error) = read {
            eprintln!(
                "warning: cannot read the stored secrets: {}",
                print::printable(&format!("{error:#}"))
            );
        }
    }

    fn named(&self, url: &str) -> anyhow::Result<Api> {
        let parsed = url::Url::parse(url).ok();
        let is_local = match parsed.as_ref().and_then(url::Url::host) {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(ip)) => IpAddr::from(ip).is_loopback(),
            Some(url::Host::Ipv6(ip)) => IpAddr::from(ip).is_loopback(),
            None => false,
        };
        // The token in the data directory is sent only to a gateway on this machine.
        let own = if is_local { self.dir(None) } else { None };
        let record = own.as_deref().and_then(lock::gateway_record);
        let record = record.filter(|own| has_port_of(parsed.as_ref(), &own.url));
        let mut api = Api::new(url, record.and_then(|own| own.pin()))?;
        self.add_token(&mut api, own.as_deref())?;
        Ok(api)
    }

    async fn running(&self, sources: Option<&Sources>) -> anyhow::Result<Option<Api>> {
        let Some(dir) = self.dir(sources) else {
            return Ok(None);
        };
        if let Err(error) = lock::readable(&dir) {
            bail!(
                "cannot read the data directory {}: {error}. Run the command as the user that runs the gateway, or name \
                 another directory with --data-dir",
                dir.display()
            );
        }
        let Some(found) = lock::gateway_record(&dir) else {
            return Ok(None);
        };
        if sources.is_some_and(|sources| !self.is_meant(sources, &found)) {
            return Ok(None);
        }
        let mut api = Api::new(&found.url, found.pin())?;
        self.add_token(&mut api, Some(&dir))?;
        let connecting = TcpStream::connect(api.authority());
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(_)) => Ok(Some(api)),
            _ => Ok(None),
        }
    }

    /// Returns the data directory, if it can be determined.
    pub(super) fn dir(&self, sources: Option<&Sources>) -> Option<PathBuf> {
        if let Some(dir) = &self.reach.data_dir {
            return Some(dir.clone());
        }
        let located;
        let sources = match sources {
            Some(sources) => Some(sources),
            None => {
                located = Sources::locate(&self.config, &startup::env).ok();
                located.as_ref()
            }
        };
        let settings = sources
            .and_then(|sources| startup::settings(sources).ok())
            .unwrap_or_default();
        data_dir(&settings, &startup::env).ok()
    }

    /// Adds the key that the user named, or the administrator's key in `dir`.
    fn add_token(&self, api: &mut Api, dir: Option<&Path>) -> anyhow::Result<()> {
        let read = |path: &Path| -> anyhow::Result<String> {
            let token = fs::read_to_string(path).with_context(|| {
                format!(
                    "cannot read the key in {}. Name a file that contains a key with --token-file, or set TOOLWHARF_TOKEN",
                    path.display()
                )
            })?;
            match token.trim() {
                "" => bail!(
                    "{} is empty: name a file that contains a key with --token-file, or set TOOLWHARF_TOKEN",
                    path.display()
                ),
                token => Ok(token.to_owned()),
            }
        };
        if let Some(file) = &self.reach.token_file {
            api.token = Some(read(file)?);
            api.token_source = Some(file.display().to_string());
        } else if let Some(token) = env::var("TOOLWHARF_TOKEN").ok().filter(|t| !t.is_empty()) {
            api.token = Some(token);
            api.token_source = Some("TOOLWHARF_TOKEN".to_owned());
        } else if let Some(dir) = dir {
            let file = dir.join(auth::admin_token::TOKEN_FILE);
            if file.exists() {
                api.token = Some(read(&file)?);
                api.token_source = Some(file.display().to_string());
            }
        }
        Ok(())
    }
}

/// Returns whether a URL of this machine has the scheme and the port of `own`.
fn has_port_of(url: Option<&url::Url>, own: &str) -> bool {
    let place = |url: &url::Url| (url.scheme().to_owned(), url.port_or_known_default());
    let own = url::Url::parse(own).ok();
    own.is_some_and(|own| url.is_some_and(|url| place(url) == place(&own)))
}

/// Returns all servers that the key can see, or those of a project.
pub(super) async fn all_servers(
    api: &Api,
    project: Option<&ProjectId>,
) -> anyhow::Result<Vec<Server>> {
    let filter = serde_json::json!({ "project": project });
    let listed = pages::all(api, &path(&["mcp", "servers"]), &filter).await?;
    Ok(listed.rows)
}

/// Loads the configuration.
///
/// # Errors
/// All errors in the files, as one text.
pub(super) fn load_config(sources: &Sources) -> anyhow::Result<Config> {
    Config::load(sources, &startup::env).map_err(|errors| {
        let text = errors.to_string();
        // `error: ` is printed before each error of a command.
        anyhow::anyhow!("{}", text.strip_prefix("error: ").unwrap_or(&text))
    })
}
