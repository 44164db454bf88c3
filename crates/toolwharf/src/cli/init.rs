//! `init`: makes the first configuration, in three questions.
//!
//! Invariants: each question has an option that answers it, and is only asked on a terminal. Nothing is changed before
//! all questions are answered. A second run adds what is missing and changes nothing else.

use std::{
    io::{self, IsTerminal as _},
    os::unix::process::CommandExt as _,
    process,
};

use anyhow::{Context as _, bail};
use api::Imported;
use clap::ValueEnum;
use config::{Client, OnDisk, with_default_sandbox};
use serde_json::json;

use super::{Context, Usage, here::Here, import, print, prompt::asked, service};
use backend::clients::{Clients, Seen};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Import the servers of `all` clients that were found, of `none`, or of named clients such as `cursor,vscode`.
    #[arg(long, value_name = "all|none|CLIENT,…", value_parser = Wanted::parse)]
    import: Option<Wanted>,
    /// Run servers in a sandbox, unless their entry says otherwise.
    #[arg(long, value_enum, value_name = "yes|no")]
    sandbox: Option<Answer>,
    /// Start the gateway `now` in this terminal, as a `service` at every login, or not yet (`no`).
    #[arg(long, value_enum, value_name = "now|service|no")]
    start: Option<Start>,
    /// Show the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask. Without other options: import from all clients, leave the sandbox setting as it is, start nothing.
    #[arg(long, short)]
    yes: bool,
}

/// The clients whose servers are imported.
#[derive(Clone, Debug)]
enum Wanted {
    All,
    None,
    Named(Vec<&'static Client>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Answer {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Start {
    Now,
    Service,
    No,
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, backend::clients::Error> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            names => {
                let named = names.split([',', ' ']).filter(|name| !name.is_empty());
                named
                    .map(Clients::find)
                    .collect::<Result<_, _>>()
                    .map(Self::Named)
            }
        }
    }

    /// Returns the clients to import from, of those that have servers.
    fn of(&self, found: &[&Seen]) -> Vec<&'static Client> {
        let found = found.iter().map(|seen| seen.client);
        match self {
            Self::All => found.collect(),
            Self::None => Vec::new(),
            Self::Named(clients) => clients.clone(),
        }
    }
}

/// The answers to all questions.
struct Answers {
    import: Vec<&'static Client>,
    sandbox: bool,
    start: Start,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    if let Some(url) = &context.reach.url {
        return Err(Usage(format!(
            "`init` configures this machine, but {} is named: leave out --url, and unset TOOLWHARF_URL",
            model::url_for_display(url)
        ))
        .into());
    }
    let is_asked = !args.yes && io::stdin().is_terminal();
    if !is_asked && !args.yes {
        all_answered(&args)?;
    }
    let here = Here::find(context).await?;
    if let Err(errors) = &here.config {
        eprintln!("{}", print::printable(&errors.to_string()));
        bail!("the configuration has errors: correct them, then run `toolwharf init` again");
    }
    let found: Vec<&Seen> = here
        .clients
        .iter()
        .filter(|seen| !seen.servers.is_empty())
        .collect();
    describe(&here, &found);
    let answers = Answers {
        import: import_from(&args, &found, is_asked)?,
        sandbox: sandbox(&args, &here, is_asked)?,
        start: start(&args, &here, is_asked).await?,
    };
    if answers.start == Start::Service {
        service::check(context).await?;
    }
    let texts = answers.import.iter().map(|client| import::text_of(client));
    let texts = texts.collect::<anyhow::Result<Vec<_>>>()?;
    let settings = Settings::planned(&here, answers.sandbox)?;
    settings.show();
    if args.dry_run {
        return dry_run(context, &answers).await;
    }
    let mut imported = Vec::new();
    for (client, (file, text)) in answers.import.iter().zip(texts) {
        eprintln!("{}:", client.title);
        imported.push(import::of_client(context, &here.place, &file, &text).await?);
    }
    settings.write()?;
    finish(context, &here, answers, imported, args.yes).await
}

/// Fails if a question has no answer.
fn all_answered(args: &Args) -> Result<(), Usage> {
    let open = [
        ("--import", args.import.is_none()),
        ("--sandbox", args.sandbox.is_none()),
        ("--start", args.start.is_none()),
    ];
    let open: Vec<&str> = open
        .iter()
        .filter(|(_, is_open)| *is_open)
        .map(|(name, _)| *name)
        .collect();
    match open.as_slice() {
        [] => Ok(()),
        open => Err(Usage(format!(
            "standard input is not a terminal: answer with {}, for example `toolwharf init --import all --sandbox no \
             --start no`, or pass --yes",
            open.join(", ")
        ))),
    }
}

/// Prints which servers and clients were found.
fn describe(here: &Here, found: &[&Seen]) {
    let count = here
        .config
        .iter()
        .flat_map(|config| &config.servers)
        .count();
    if let (Some(file), 1..) = (here.servers_file(), count) {
        let servers = match count {
            1 => "1 server, which stays".to_owned(),
            _ => format!("{count} servers, which stay"),
        };
        eprintln!("{} has {servers}", file.display());
    }
    match found {
        [] => eprintln!("no client on this machine has its own servers"),
        _ => eprintln!("clients on this machine that have their own servers:"),
    }
    for seen in found {
        let servers = print::printable(&print::names(&seen.servers));
        eprintln!("  {:15}  {servers}", seen.client.name);
    }
}

fn import_from(
    args: &Args,
    found: &[&Seen],
    is_asked: bool,
) -> anyhow::Result<Vec<&'static Client>> {
    let wanted = match &args.import {
        Some(wanted) => wanted.clone(),
        None if !is_asked || found.is_empty() => Wanted::All,
        None => asked(
            "1/3 Import these servers? The clients' files are not changed. [Y/n, or client names]",
            |text| match text.to_lowercase().as_str() {
                "" | "y" | "yes" => Ok(Wanted::All),
                "n" | "no" => Ok(Wanted::None),
                names => Wanted::parse(names).map_err(|error| error.to_string()),
            },
        )?,
    };
    Ok(wanted.of(found))
}

fn sandbox(args: &Args, here: &Here, is_asked: bool) -> anyhow::Result<bool> {
    let now = here.settings().defaults.sandbox;
    match args.sandbox {
        Some(answer) => Ok(answer == Answer::Yes),
        None if !is_asked => Ok(now),
        None => {
            let choice = if now { "[Y/n]" } else { "[y/N]" };
            let question = format!(
                "2/3 Run servers in a sandbox? A sandboxed server cannot read your files or use the network, unless its \
                 entry allows it. {choice}"
            );
            asked(&question, |text| match text.to_lowercase().as_str() {
                "" => Ok(now),
                "y" | "yes" => Ok(true),
                "n" | "no" => Ok(false),
                other => Err(format!("`{other}` is neither yes nor no")),
            })
        }
    }
}

async fn start(args: &Args, here: &Here, is_asked: bool) -> anyhow::Result<Start> {
    if let Some(start) = args.start {
        return Ok(start);
    }
    if !is_asked {
        return Ok(Start::No);
    }
    if here.gateway().is_some() && service::installed().is_some() {
        return Ok(Start::No);
    }
    let (question, has_service) = match service::is_possible().await {
        true => (
            "3/3 Start the gateway now in this terminal, as a service at every login, or not yet? [now/service/NO]",
            true,
        ),
        false => (
            "3/3 Start the gateway now in this terminal? [now/NO]",
            false,
        ),
    };
    asked(question, |text| match text.to_lowercase().as_str() {
        "" | "n" | "no" => Ok(Start::No),
        "now" | "y" | "yes" => Ok(Start::Now),
        "s" | "service" if has_service => Ok(Start::Service),
        other if has_service => Err(format!("`{other}` is not `now`, `service` or `no`")),
        other => Err(format!("`{other}` is not `now` or `no`")),
    })
}

/// The change of the settings file.
struct Settings {
    /// The file with its new text. `None`: nothing changes.
    change: Option<(OnDisk, String)>,
    sandbox: bool,
}

impl Settings {
    fn planned(here: &Here, sandbox: bool) -> anyhow::Result<Self> {
        let mut change = None;
        if here.settings().defaults.sandbox != sandbox {
            let file = here.sources.settings.as_ref().context(
                "there is no settings file to write the sandbox setting to: name one with --config toolwharf.toml",
            )?;
            let disk = OnDisk::read(file)?;
            let text = disk.text.as_deref().unwrap_or_default();
            let text = with_default_sandbox(text, sandbox).with_context(|| {
                let file = file.display();
                format!(
                    "{file} cannot be edited: write `sandbox = {sandbox}` under [defaults] in it"
                )
            })?;
            change = Some((disk, text));
        }
        Ok(Self { change, sandbox })
    }

    fn show(&self) {
        let Some((disk, _)) = &self.change else {
            return;
        };
        let (file, sandbox) = (disk.path.display(), self.sandbox);
        eprintln!("{file}: `sandbox = {sandbox}` under [defaults]");
        if sandbox && !has_bubblewrap() {
            eprintln!(
                "warning: bubblewrap is not installed, so no server can start in a sandbox: `apt-get install bubblewrap` (or \
                 `dnf install`, `apk add`, `pacman -S`, `zypper install`)"
            );
        }
    }

    fn write(&self) -> anyhow::Result<()> {
        if let Some((disk, text)) = &self.change {
            disk.replace(Some(text))?;
            eprintln!("wrote {}", disk.path.display());
        }
        Ok(())
    }
}

fn has_bubblewrap() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("bwrap").is_file())
}

async fn dry_run(context: &Context, answers: &Answers) -> anyhow::Result<()> {
    for client in &answers.import {
        eprintln!("would import the servers of {}", client.title);
    }
    let service = match answers.start {
        Start::Service => {
            let how = service::How {
                dry_run: true,
                yes: false,
            };
            Some(service::install(context, how).await?)
        }
        Start::Now => {
            eprintln!("would start the gateway");
            None
        }
        Start::No => None,
    };
    let names = answers.import.iter().map(|client| client.name);
    context.print_json(&json!({
        "import": names.collect::<Vec<_>>(),
        "sandbox": answers.sandbox,
        "service": service,
    }))
}

/// Starts the gateway, and prints the next command.
async fn finish(
    context: &Context,
    here: &Here,
    answers: Answers,
    imported: Vec<Imported>,
    yes: bool,
) -> anyhow::Result<()> {
    let start = match here.gateway() {
        Some(api) if answers.start == Start::Now => {
            eprintln!("a gateway is running at {}", api.url);
            Start::No
        }
        _ => answers.start,
    };
    let service = match start {
        Start::Service => {
            let how = service::How {
                dry_run: false,
                yes,
            };
            Some(service::install(context, how).await?)
        }
        Start::Now | Start::No => None,
    };
    context.print_json(&json!({
        "imported": imported,
        "sandbox": answers.sandbox,
        "service": service,
    }))?;
    if start == Start::No && here.gateway().is_none() {
        eprintln!("`toolwharf serve` starts the gateway");
    }
    match here.clients.first().map(|seen| seen.client.name) {
        Some(client) => eprintln!("`toolwharf connect {client}` connects a client to it"),
        None => eprintln!("`toolwharf connect` lists the clients that can be connected to it"),
    }
    match start {
        Start::Now => Err(serve(context)),
        Start::Service | Start::No => Ok(()),
    }
}

/// Replaces this process with the gateway. Returns only if that fails.
fn serve(context: &Context) -> anyhow::Error {
    let mut serve = process::Command::new("/proc/self/exe");
    serve.arg0("toolwharf").arg("serve");
    for file in &context.config {
        serve.arg("--config").arg(file);
    }
    if let Some(dir) = &context.reach.data_dir {
        serve.arg("--data-dir").arg(dir);
    }
    anyhow::Error::new(serve.exec()).context("cannot start the gateway; run `toolwharf serve`")
}
