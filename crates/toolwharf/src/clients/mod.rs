//! Connecting the clients of this machine: an entry for Toolwharf in their own files, and its undoing.
//!
//! Invariants: the key that a client gets is its own, may call tools and nothing else, and stands in the data directory for its user
//! alone; it is in the client's file only where that holds a URL. Before a client's file is changed, its text is kept
//! ([`record`]). Undoing gives back that text to the byte, unless somebody changed the file meanwhile.
//!
//! The command line works on the files itself, with the environment of whoever runs it; a gateway does so for its console.
//! Deliberately absent: making and revoking keys
//! ([`keys::Keyring`]), and importing the servers that are moved ([`registry`]).

mod diff;
pub(crate) mod keys;
mod plan;
mod record;
mod undo;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use config::{CLIENTS, Client, ClientFile, EditError, Machine, OnDisk, Os, Sources, data_dir};
use model::ProjectId;

pub(crate) use self::{plan::Wish, record::token_file};
use self::{plan::own, record::Shelf};
use crate::{itself::Itself, registry, startup};

/// The name of our entry.
const ENTRY: &str = "toolwharf";

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no client `{0}`; Toolwharf knows {known}", known = known())]
    Unknown(String),
    #[error("nothing of {title} is on this machine: {} is not there. Start it once, then try again", file.display())]
    NotInstalled { title: &'static str, file: PathBuf },
    #[error("HOME is not set, so it cannot be told where {0} keeps its servers")]
    NoHome(&'static str),
    #[error("{0} is not connected; `toolwharf connect` shows which clients are")]
    NotConnected(&'static str),
    #[error("the file of {0} starts commands only: connect it without --http")]
    CommandsOnly(&'static str),
    #[error(
        "the gateway has no fixed address: set `listen` to a port other than 0 and start it, or connect without --http"
    )]
    NoAddress,
    #[error(
        "servers that are moved are there for all projects: move them without --project, then connect with it"
    )]
    MovedIntoProject,
    #[error("{title}: {source}")]
    File {
        title: &'static str,
        source: EditError,
    },
    #[error("cannot {what} {}: {source}", path.display())]
    Data {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Servers(#[from] registry::Error),
}

fn known() -> String {
    let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
    names.join(", ")
}

/// The clients of the user who runs this process.
#[derive(Clone)]
pub(crate) struct Clients {
    shelf: Shelf,
    /// The command that starts Toolwharf with its servers and its data directory, for somebody who knows the home directory only.
    program: String,
    options: Vec<String>,
    /// The gateway's address, if it is a lasting one.
    url: Option<String>,
}

/// How a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connected,
    NotConnected,
    /// It was connected, and somebody has taken the entry out.
    Removed,
    /// There is an entry of our name that is not from here.
    ByHand,
    Unusable,
}

/// A client that is installed here.
pub(crate) struct Seen {
    pub(crate) client: &'static Client,
    file: PathBuf,
    state: State,
    /// Why it is unusable.
    problem: Option<String>,
    /// Whether it was connected from here.
    is_recorded: bool,
    /// The view that it is connected to.
    project: Option<ProjectId>,
    /// Its other servers.
    pub(crate) servers: Vec<String>,
}

impl Clients {
    /// `url`: where the gateway is, if that lasts.
    pub(crate) fn new(sources: &Sources, dir: &Path, url: Option<String>) -> Self {
        Self {
            shelf: Shelf::new(dir),
            program: program(),
            options: options(sources, dir),
            url,
        }
    }

    /// The client of that name.
    ///
    /// # Errors
    /// [`Error::Unknown`]
    pub(crate) fn find(name: &str) -> Result<&'static Client, Error> {
        Client::find(name).ok_or_else(|| Error::Unknown(name.chars().take(100).collect()))
    }

    /// Those that are installed, and those that were when they were connected.
    pub(crate) fn installed(&self) -> Vec<Seen> {
        let all = CLIENTS.iter();
        all.filter_map(|client| self.seen(client)).collect()
    }

    /// How a client stands; `None` if it is not here.
    pub(crate) fn seen(&self, client: &'static Client) -> Option<Seen> {
        let record = self.shelf.record(client).ok().flatten();
        if record.is_none() && !client.is_installed(machine()) {
            return None;
        }
        let file = match &record {
            Some(record) => record.file.clone(),
            None => client.file(machine())?,
        };
        let read = OnDisk::read(&file).and_then(|disk| {
            let text = disk.text.as_deref().unwrap_or_default();
            let parsed = parsed(client, &disk)?;
            Ok((parsed.get(ENTRY).is_some(), own(&parsed, &file, text)?))
        });
        let (has_entry, servers, problem) = match read {
            Ok((has_entry, servers)) => (has_entry, servers, None),
            Err(error) => (false, Vec::new(), Some(error.to_string())),
        };
        let state = match (&record, has_entry) {
            _ if problem.is_some() => State::Unusable,
            (Some(_), true) => State::Connected,
            (Some(_), false) => State::Removed,
            (None, true) => State::ByHand,
            (None, false) => State::NotConnected,
        };
        Some(Seen {
            client,
            file,
            state,
            problem,
            is_recorded: record.is_some(),
            project: record.and_then(|record| record.project),
            servers: servers
                .into_iter()
                .filter(|server| server.skip.is_none())
                .map(|server| server.name)
                .collect(),
        })
    }

    /// The change that connecting a client would make to its file; `None` if nothing would change.
    pub(crate) fn diff_of(&self, seen: &Seen, with: (&Sources, &Itself)) -> Option<String> {
        let wish = Wish {
            project: seen.project.clone(),
            ..Wish::default()
        };
        let plan = self.plan(seen.client, &wish, with).ok()?;
        self.diff(&plan).ok().filter(|diff| !diff.is_empty())
    }

    /// The file as it is now.
    fn disk(&self, client: &'static Client) -> Result<OnDisk, Error> {
        let file = client.file(machine()).ok_or(Error::NoHome(client.title))?;
        if !client.is_installed(machine()) {
            let title = client.title;
            return Err(Error::NotInstalled { title, file });
        }
        OnDisk::read(&file).map_err(|source| of(client, source))
    }
}

impl Seen {
    /// Whether there is something to undo.
    pub(crate) fn was_connected(&self) -> bool {
        self.is_recorded
    }

    /// The client as the API shows it, with the difference that connecting would make.
    pub(crate) fn told(self, diff: Option<String>) -> api::Client {
        api::Client {
            name: self.client.name.to_owned(),
            title: self.client.title.to_owned(),
            file: self.file.display().to_string(),
            state: self.state.as_str().to_owned(),
            problem: self.problem,
            project: self.project.map(|project| project.to_string()),
            servers: self.servers,
            diff,
        }
    }
}

impl State {
    /// The word of the API.
    fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::NotConnected => "not_connected",
            Self::Removed => "removed",
            Self::ByHand => "by_hand",
            Self::Unusable => "unusable",
        }
    }
}

/// Does what blocks on files where it holds up nobody.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn parsed(client: &'static Client, disk: &OnDisk) -> Result<ClientFile, EditError> {
    ClientFile::parse(client, &disk.path, disk.text.as_deref().unwrap_or_default())
}

fn of(client: &'static Client, source: EditError) -> Error {
    let title = client.title;
    Error::File { title, source }
}

fn machine() -> Machine<'static> {
    Machine {
        os: Os::HERE,
        env: &startup::env,
    }
}

/// The command of this program: its name on the search path, which outlives an update, or else where it is.
fn program() -> String {
    let own = env::current_exe().unwrap_or_default();
    let real = fs::canonicalize(&own).unwrap_or(own);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut named = env::split_paths(&path).map(|folder| folder.join(env!("CARGO_PKG_NAME")));
    let found = named
        .find(|file| file.is_absolute() && fs::canonicalize(file).is_ok_and(|file| file == real));
    found.unwrap_or(real).display().to_string()
}

/// Options by which somebody who knows the home directory only gets to these files and this data directory.
fn options(sources: &Sources, dir: &Path) -> Vec<String> {
    let home = |name: &str| startup::env(name).filter(|_| name == "HOME");
    let usual = Sources::locate(&[], &home).unwrap_or_default();
    let is_usual = usual.files().eq(sources.files());
    let settings = startup::settings(sources).unwrap_or_default();
    let mut options = Vec::new();
    if !is_usual {
        for file in crate::lock::absolute(sources)
            .iter()
            .filter(|file| file.exists())
        {
            options.extend(["--config".to_owned(), file.display().to_string()]);
        }
    }
    if data_dir(&settings, &home).ok().as_deref() != Some(dir) {
        options.extend(["--data-dir".to_owned(), dir.display().to_string()]);
    }
    options
}
