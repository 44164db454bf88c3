//! `backup` and `restore`. Both work on the files and the database of this machine, not over the API: a backup must be
//! possible without a gateway, and a restore has none.

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use config::Sources;
use serde_json::json;
use store::{Location, Store};

use super::{Cancelled, Context, Usage, files, print, prompt, shown};
use backend::{
    backup::{
        Passphrase, Progress, Step,
        create::{self, create},
        is_unfinished,
        restore::{self, restore},
    },
    lock,
    startup::{self, CliOverrides},
};

/// Maximum size of a file with a passphrase, in bytes.
const MAX_PASSPHRASE_BYTES: u64 = 64 << 10;
/// Interval between updates of the progress on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Updates on a terminal for each line in a log.
const UPDATES_PER_LINE: u32 = 20;
/// Time for a cancelled backup to remove its unfinished file.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(super) struct BackupArgs {
    /// The file to write, such as `toolwharf.tar.zst`.
    file: PathBuf,
    /// Include the master key, the administrator's token and the keys of clients, encrypted with a passphrase.
    #[arg(long)]
    with_master_key: bool,
    /// A file with the passphrase. Without it, the passphrase is asked on the terminal.
    #[arg(long, value_name = "FILE", requires = "with_master_key")]
    passphrase_file: Option<PathBuf>,
    /// Include the volumes of hosted servers on this machine.
    #[arg(long)]
    volumes: bool,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    overrides: CliOverrides,
}

#[derive(clap::Args)]
pub(super) struct RestoreArgs {
    /// The file that `toolwharf backup` wrote.
    file: PathBuf,
    /// A file with the passphrase of the keys. Without it, the passphrase is asked on the terminal.
    #[arg(long, value_name = "FILE", conflicts_with = "without_master_key")]
    passphrase_file: Option<PathBuf>,
    /// Leave out the keys of the backup: put the master key into the data directory yourself.
    #[arg(long)]
    without_master_key: bool,
    /// Leave out the configuration files of the backup.
    #[arg(long)]
    without_config: bool,
    /// Replace existing data. Replaced files are kept in a folder of the data directory.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    overrides: CliOverrides,
}

pub(super) async fn back_up(context: &Context, args: BackupArgs) -> anyhow::Result<()> {
    let mut overrides = args.overrides;
    local(context, &mut overrides)?;
    let sources = Sources::locate(&context.config, &startup::env)?;
    let settings = startup::state_settings(&settings_text(&sources)?, &overrides);
    let data_dir = std::path::absolute(config::data_dir(&settings, &startup::env)?)?;
    let location = startup::location(&settings, &data_dir);
    check_database(&data_dir, &location)?;
    let is_missing = || {
        anyhow::anyhow!(
            "there is no database at {location}: name the data directory with --data-dir, or the database with --database-url"
        )
    };
    if matches!(location, Location::Postgres(_)) && !Store::existing(&location).await?.has_tables {
        return Err(is_missing());
    }
    let passphrase = match args.with_master_key {
        true => Some(new_passphrase(args.passphrase_file.as_deref())?),
        false => None,
    };
    let store = Store::open_unmigrated(&location).await?;
    let store = store.ok_or_else(is_missing)?;
    let progress = Arc::new(Progress::default());
    let job = create::Job {
        file: args.file.clone(),
        replace: args.force,
        sources,
        data_dir,
        store: store.clone(),
        passphrase,
        volumes: args.volumes,
        progress: progress.clone(),
    };
    let made = tokio::select! {
        // The signal is caught before there is a file.
        biased;
        _ = tokio::signal::ctrl_c() => Err(Cancelled.into()),
        made = watched(&progress, create(job)) => made,
    };
    if made.as_ref().is_err_and(|error| error.is::<Cancelled>()) {
        clean_up(&args.file).await;
    }
    store.close().await;
    let made = made?;
    let file = made.file.display().to_string();
    eprintln!("wrote {file} ({})", shown::size(made.bytes));
    say_notes(&made.notes);
    context.print_json(&json!({ "file": file, "bytes": made.bytes, "notes": made.notes }))
}

pub(super) async fn put_back(context: &Context, args: RestoreArgs) -> anyhow::Result<()> {
    let mut overrides = args.overrides;
    local(context, &mut overrides)?;
    let sources = Sources::locate(&context.config, &startup::env)?;
    let progress = Arc::new(Progress::default());
    let job = restore::Job {
        file: args.file,
        replace: args.force,
        sources,
        with_config: !args.without_config,
        with_keys: !args.without_master_key,
        overrides,
        progress: progress.clone(),
    };
    let ask = || -> anyhow::Result<Passphrase> {
        let text = match &args.passphrase_file {
            Some(file) => of_file(file)?,
            None => typed(
                "the passphrase of the backup",
                "leave out the keys with --without-master-key",
            )?,
        };
        Ok(Passphrase::new(text))
    };
    let restored = watched(&progress, restore(job, ask)).await?;
    let made_at = print::time(restored.made_at);
    let data_dir = restored.data_dir.display().to_string();
    eprintln!(
        "restored the backup of {made_at} into {data_dir}; `toolwharf serve` starts the gateway"
    );
    let replaced = restored.replaced.map(|folder| folder.display().to_string());
    if let Some(folder) = &replaced {
        eprintln!("the replaced files are in {folder}");
    }
    say_notes(&restored.notes);
    context.print_json(&json!({
        "data_dir": data_dir,
        "made_at": restored.made_at,
        "replaced": replaced,
        "notes": restored.notes,
    }))
}

/// The text of the settings file, which need not exist.
fn settings_text(sources: &Sources) -> anyhow::Result<String> {
    let Some(path) = &sources.settings else {
        return Ok(String::new());
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("cannot read the settings {}", path.display())),
    }
}

/// Refuses a gateway on another machine.
fn local(context: &Context, overrides: &mut CliOverrides) -> anyhow::Result<()> {
    if let Some(url) = &context.reach.url {
        let what = format!(
            "this command works on the data directory and the database of this machine, not on the gateway at {}: leave out --url and TOOLWHARF_URL",
            model::url_for_display(url)
        );
        return Err(Usage(what).into());
    }
    overrides.data_dir.clone_from(&context.reach.data_dir);
    Ok(())
}

/// The gateway may have been started with another database than the settings name.
fn check_database(data_dir: &Path, location: &Location) -> anyhow::Result<()> {
    let running = lock::gateway_record(data_dir).filter(|running| !running.works_on(location));
    match running.and_then(|running| running.database) {
        Some(used) => bail!(
            "the running gateway uses the database at {used}, and not {location}: name it with {} or --database-url",
            startup::DATABASE_URL
        ),
        None => Ok(()),
    }
}

fn new_passphrase(file: Option<&Path>) -> anyhow::Result<Passphrase> {
    if let Some(file) = file {
        return Passphrase::for_new(of_file(file)?);
    }
    let text = typed(
        "a passphrase for the keys in the backup",
        "name a file with --passphrase-file",
    )?;
    let passphrase = Passphrase::for_new(text.clone())?;
    if typed("the same passphrase again", "")? != text {
        bail!("the two passphrases are different: nothing was written");
    }
    Ok(passphrase)
}

/// Reads a passphrase from the first line of a file.
fn of_file(file: &Path) -> anyhow::Result<String> {
    let text = files::text(file, "a file with a passphrase", MAX_PASSPHRASE_BYTES)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Asks for a passphrase. `otherwise`: what to do without a terminal.
fn typed(what: &str, otherwise: &str) -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        let what =
            format!("standard input is not a terminal on which to ask for {what}: {otherwise}");
        return Err(Usage(what).into());
    }
    prompt::secret(what)
}

/// Awaits `work`, and shows how far it is.
async fn watched<T>(progress: &Progress, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    let is_terminal = io::stderr().is_terminal();
    let start = tokio::time::Instant::now() + PROGRESS_INTERVAL;
    let mut tick = tokio::time::interval_at(start, PROGRESS_INTERVAL);
    let mut updates = 0;
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = tick.tick() => {
                updates += 1;
                let (step, bytes) = progress.get();
                let line = format!("{}, {}", word(step), shown::size(bytes));
                if is_terminal {
                    eprint!("\r{line}\x1b[K");
                    io::stderr().flush().ok();
                } else if updates % UPDATES_PER_LINE == 0 {
                    eprintln!("{line}");
                }
            }
        }
    };
    if is_terminal && updates > 0 {
        eprint!("\r\x1b[K");
    }
    done
}

const fn word(step: Step) -> &'static str {
    match step {
        Step::Database => "copying the database",
        Step::Writing => "writing the backup",
        Step::Checking => "checking the backup",
        Step::Restoring => "restoring",
    }
}

/// Waits until a cancelled backup has removed its unfinished file.
async fn clean_up(file: &Path) {
    let removed = async {
        while is_unfinished(file) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(CLEAN_UP_TIMEOUT, removed).await;
}

fn say_notes(notes: &[String]) {
    for note in notes {
        eprintln!("note: {}", print::printable(note));
    }
}
