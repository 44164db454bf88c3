//! `service`: runs the gateway as a systemd service of this user.
//!
//! Invariants:
//! - A unit file that Toolwharf did not write, or that was edited since, is replaced or removed only after a
//!   confirmation.
//! - `uninstall` removes everything that `install` created. Configuration and data stay.
//! - Both can be repeated. They complete an interrupted run.
//!
//! Deliberately absent: services of the system, whose units come with packages (`deploy/systemd`).

mod systemctl;
mod unit;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use config::{OnDisk, ServerFile, Sources, check_entry, config_dir};
use model::{HostEnv, ServerName, Surroundings};
use serde_json::{Value, json};

use self::{
    systemctl::{State, Systemctl},
    unit::Author,
};
use super::{Context, No, Output, Usage, print, prompt::agreed, reach::load_config};
use backend::{
    clients, lock,
    startup::{self, DATABASE_URL},
};

/// The folder of links to the units that start at login. It is beside the unit file.
const WANTS: &str = "default.target.wants";

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Write and enable a systemd unit, so that the gateway starts at login.
    Install(InstallArgs),
    /// Show whether the service is installed and running.
    #[command(alias = "show")]
    Status,
    /// Stop the service and remove everything that `install` created.
    #[command(alias = "remove")]
    Uninstall(UninstallArgs),
}

#[derive(clap::Args)]
pub(super) struct InstallArgs {
    /// Do not start the service now.
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
pub(super) struct How {
    /// Show the changes without making them.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not ask before a unit file that Toolwharf did not write is changed.
    #[arg(long, short)]
    pub(super) yes: bool,
}

/// An error of a systemd command or unit.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("the unit cannot contain the control character in `{0}`: use another path")]
    Unwritable(String),
    #[error("`systemctl --user {command}` failed: {why}")]
    Systemctl { command: String, why: String },
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(args) => {
            let report = installed_with(context, args.how, !args.no_start).await?;
            context.print_json(&report)
        }
        Command::Status => status(context).await,
        Command::Uninstall(args) => uninstall(context, args).await,
    }
}

/// Returns the unit file, if it is there.
pub(super) fn installed() -> Option<PathBuf> {
    unit_file().ok().filter(|file| file.exists())
}

/// Fails if this machine cannot run the service.
pub(super) async fn check(context: &Context) -> anyhow::Result<()> {
    let service = Service::of(context)?;
    service.systemctl().await.map(drop)
}

/// Returns whether systemd manages services for this user.
pub(super) async fn is_possible() -> bool {
    Systemctl::find().await.is_ok()
}

/// Installs the service and starts it. Returns its state.
pub(super) async fn install(context: &Context, how: How) -> anyhow::Result<Value> {
    installed_with(context, how, true).await
}

/// The variables of this shell that say how the network is reached: CA files, proxies and package registries.
fn host_env() -> HostEnv {
    HostEnv::resolve(BTreeMap::new(), &BTreeSet::new(), &startup::env)
}

fn unit_file() -> anyhow::Result<PathBuf> {
    let ours = config_dir(&startup::env);
    let ours =
        ours.context("neither HOME nor XDG_CONFIG_HOME is set: set HOME to your home directory")?;
    let base = ours.parent().unwrap_or(&ours);
    Ok(base.join("systemd/user").join(unit::NAME))
}

/// The service of this user.
struct Service {
    sources: Sources,
    /// The data directory of its gateway.
    dir: PathBuf,
    /// The command line of its gateway.
    program: String,
    arguments: Vec<String>,
    /// The unit file as it is.
    disk: OnDisk,
}

impl Service {
    fn of(context: &Context) -> anyhow::Result<Self> {
        if let Some(url) = &context.reach.url {
            return Err(Usage(format!(
                "a service runs on this machine, but {} is named: leave out --url, and unset TOOLWHARF_URL",
                model::url_for_display(url)
            ))
            .into());
        }
        let sources = Sources::locate(&context.config, &startup::env)?;
        let dir = context
            .dir(Some(&sources))
            .context("no data directory: set HOME, or name one with --data-dir")?;
        let dir = std::path::absolute(dir)?;
        Ok(Self {
            program: clients::program(),
            arguments: clients::options(&sources, &dir),
            disk: OnDisk::read(&unit_file()?)?,
            sources,
            dir,
        })
    }

    fn file(&self) -> &Path {
        &self.disk.path
    }

    /// Returns who wrote the unit file, if there is one.
    fn author(&self) -> Option<Author> {
        self.disk.text.as_deref().map(unit::author)
    }

    /// Returns the text of the unit file to write.
    fn text(&self) -> Result<String, Failed> {
        let path = startup::env("PATH").unwrap_or_default();
        let path = Some(unit::search_path(&path)).filter(|path| !path.is_empty());
        let mut variables = host_env().complete(&BTreeMap::new(), Surroundings::Host);
        variables.extend(path.map(|path| ("PATH".to_owned(), path)));
        unit::text(&self.program, &self.arguments, &variables)
    }

    async fn systemctl(&self) -> anyhow::Result<Systemctl> {
        Systemctl::find().await.map_err(|missing| {
            let words = [self.program.as_str(), "serve"].into_iter();
            let words = words.chain(self.arguments.iter().map(String::as_str));
            let command = words.collect::<Vec<_>>().join(" ");
            anyhow::anyhow!("{missing}. {}", systemctl::instead(&missing, &command))
        })
    }

    /// Asks for confirmation before an edited or foreign unit file is changed.
    fn ask(&self, what: &str, yes: bool) -> anyhow::Result<()> {
        let why = match self.author() {
            None | Some(Author::Toolwharf) => return Ok(()),
            Some(Author::Edited) => "was edited since Toolwharf wrote it",
            Some(Author::SomebodyElse) => "was not written by Toolwharf",
        };
        agreed(&format!("{} {why}. {what} it?", self.file().display()), yes)
    }

    /// Returns the address of the gateway that runs on the data directory.
    fn url(&self) -> Option<String> {
        lock::gateway_record(&self.dir).map(|gateway| gateway.url)
    }

    /// Returns the variables that servers need and that are set for this command, but not for the service.
    fn missing_variables(&self) -> BTreeSet<String> {
        let known = ["HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG"];
        let of_service = |name: &str| startup::env(name).filter(|_| known.contains(&name));
        let mut missing = BTreeSet::new();
        for file in &self.sources.servers {
            for (name, entry) in ServerFile::entries_of(file).unwrap_or_default() {
                let Ok(name) = ServerName::parse(&name) else {
                    continue;
                };
                let sealed = self.sources.sealed.get();
                let checked = check_entry(file, &name, &entry, &of_service, &sealed);
                missing.extend(checked.err().into_iter().flat_map(|unfit| unfit.unset));
            }
        }
        missing.retain(|name| startup::env(name).is_some());
        missing
    }

    fn warn(&self) {
        if startup::env(DATABASE_URL).is_some_and(|url| !url.is_empty()) {
            eprintln!(
                "warning: {DATABASE_URL} is set here, but not for the service: write `database_url` to toolwharf.toml"
            );
        }
        for name in self.missing_variables() {
            eprintln!(
                "warning: `{name}` is set here, but perhaps not for the service: `toolwharf secret set {name}` stores it"
            );
        }
    }
}

async fn installed_with(context: &Context, how: How, starts: bool) -> anyhow::Result<Value> {
    let mut service = Service::of(context)?;
    let systemctl = service.systemctl().await?;
    load_config(&service.sources)?;
    let settings = startup::settings(&service.sources).unwrap_or_default();
    // The service uses the database of the settings.
    let env = |name: &str| startup::env(name).filter(|_| name != DATABASE_URL);
    context
        .read_secrets(&service.sources, &settings, &env)
        .await;
    let text = service.text()?;
    let is_new = service.disk.text.as_deref() != Some(text.as_str());
    let file = service.file().display().to_string();
    if is_new && context.output == Output::Table {
        print::data(&format!("{file}:\n{}\n", indented(&text)))?;
    }
    service.warn();
    for name in host_env().withheld() {
        eprintln!(
            "note: `{name}` contains user information, so it is not written to the unit; if the gateway needs it, add it \
             with `systemctl --user edit toolwharf`"
        );
    }
    if how.dry_run {
        return Ok(json!({ "file": file, "text": text, "is_new": is_new }));
    }
    service.ask("Replace", how.yes)?;
    if is_new {
        service.disk.replace(Some(&text))?;
        eprintln!("wrote {file}");
        service.disk = OnDisk::read(service.file())?;
    }
    systemctl.reload().await?;
    let before = systemctl.state().await?;
    if before.file.is_none() {
        bail!(
            "systemd does not find {file}: it uses another configuration folder. Run the command with the XDG_CONFIG_HOME \
             of systemd, which `systemctl --user show-environment` shows"
        );
    }
    if !before.is_enabled {
        systemctl.enable().await?;
        eprintln!(
            "enabled it: the gateway starts at login (at boot, after `loginctl enable-linger`)"
        );
    }
    if starts {
        start(&service, &systemctl, &before, is_new).await?;
    }
    let state = systemctl.state().await?;
    Ok(report(&service, &state))
}

/// Starts the service if it does not run, and restarts it if its unit has changed.
async fn start(
    service: &Service,
    systemctl: &Systemctl,
    before: &State,
    is_new: bool,
) -> anyhow::Result<()> {
    if before.is_active() && !is_new {
        return Ok(());
    }
    let holder = lock::holder(&service.dir);
    if let Some(other) = holder.filter(|other| other.pid.is_none() || other.pid != before.pid) {
        let end = other.pid.map_or_else(
            || "end it".to_owned(),
            |pid| format!("end it with `kill {pid}`"),
        );
        eprintln!(
            "not started, because a gateway runs already: {other}. To run the service instead, {end}, then run \
             `systemctl --user start toolwharf`"
        );
        return Ok(());
    }
    systemctl.restart().await.context(
        "the service was installed, but does not start; `journalctl --user -u toolwharf -n 20` shows why",
    )?;
    let url = service
        .url()
        .map_or_else(String::new, |url| format!(": {url}/mcp"));
    match before.is_active() {
        true => eprintln!("restarted it{url}"),
        false => eprintln!("started it{url}"),
    }
    Ok(())
}

async fn status(context: &Context) -> anyhow::Result<()> {
    let service = Service::of(context)?;
    let systemctl = service.systemctl().await?;
    let state = systemctl.state().await?;
    context.print_json(&report(&service, &state))?;
    let fields = [
        (
            "file",
            state
                .file
                .as_ref()
                .map_or_else(String::new, |file| file.display().to_string()),
        ),
        (
            "written by",
            match service.author() {
                None => String::new(),
                Some(Author::Toolwharf) => "Toolwharf".to_owned(),
                Some(Author::Edited) => "Toolwharf, and edited since".to_owned(),
                Some(Author::SomebodyElse) => "somebody else".to_owned(),
            },
        ),
        (
            "at login",
            if state.is_enabled {
                "starts"
            } else {
                "does not start"
            }
            .to_owned(),
        ),
        ("state", state.active.clone()),
        (
            "process",
            state.pid.map_or_else(String::new, |pid| pid.to_string()),
        ),
        ("url", running_url(&service, &state).unwrap_or_default()),
    ];
    if context.output == Output::Table {
        match state.file.is_some() {
            true => print::data(&print::fields(&fields))?,
            false => {
                eprintln!("the service is not installed; `toolwharf service install` installs it")
            }
        }
    }
    match state.is_active() {
        true => Ok(()),
        false => Err(No.into()),
    }
}

/// Returns the address of the gateway if it is the service's.
fn running_url(service: &Service, state: &State) -> Option<String> {
    let gateway = lock::gateway_record(&service.dir)?;
    (Some(gateway.pid) == state.pid).then_some(gateway.url)
}

/// Returns the state for programs.
fn report(service: &Service, state: &State) -> Value {
    let written_by = match service.author() {
        None => None,
        Some(Author::Toolwharf) => Some("toolwharf"),
        Some(Author::Edited) => Some("edited"),
        Some(Author::SomebodyElse) => Some("other"),
    };
    json!({
        "file": state.file,
        "written_by": written_by,
        "is_enabled": state.is_enabled,
        "state": state.active,
        "pid": state.pid,
        "url": running_url(service, state),
    })
}

async fn uninstall(context: &Context, args: UninstallArgs) -> anyhow::Result<()> {
    let service = Service::of(context)?;
    let systemctl = match Systemctl::find().await {
        Ok(systemctl) => Some(systemctl),
        Err(missing) => {
            eprintln!("{missing}, so only the files are removed");
            None
        }
    };
    let file = service.file().to_owned();
    let link = file.with_file_name(WANTS).join(unit::NAME);
    let has_link = link.symlink_metadata().is_ok();
    let removed: Vec<String> = [(service.disk.text.is_some(), &file), (has_link, &link)]
        .into_iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, path)| path.display().to_string())
        .collect();
    if removed.is_empty() {
        eprintln!("the service is not installed");
        return context.print_json(&json!({ "removed": removed }));
    }
    for path in &removed {
        eprintln!("removes {path}");
    }
    if args.how.dry_run {
        return context.print_json(&json!({ "removed": removed }));
    }
    service.ask("Remove", args.how.yes)?;
    if let Some(systemctl) = &systemctl {
        match systemctl.disable().await {
            // Without its unit file, a service cannot be disabled, but it may still be running.
            Err(_) if service.disk.text.is_none() => systemctl.stop().await,
            disabled => disabled?,
        }
    }
    service.disk.replace(None)?;
    if let Err(error) = fs::remove_file(&link)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        bail!("cannot remove {}: {error}", link.display());
    }
    // Only empty folders are removed. `install` may have made them.
    for folder in link.ancestors().skip(1).take(3) {
        let _ = fs::remove_dir(folder);
    }
    if let Some(systemctl) = &systemctl {
        systemctl.reload().await?;
        systemctl.forget_failure().await;
    }
    eprintln!(
        "stopped and removed the service; its data is still in {}",
        service.dir.display()
    );
    context.print_json(&json!({ "removed": removed }))
}

fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| match line {
        "" => String::new(),
        line => format!("  {line}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}
