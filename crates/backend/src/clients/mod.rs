//! Connects the MCP clients of this machine: adds an entry for Toolwharf to their configuration files, and removes it
//! again.
//!
//! Invariants: each client gets its own key, which may only call tools. The key is stored in the data directory,
//! readable only by its user; it is written into the client's file only if the entry contains a URL. Before a client's
//! file is changed, its text is saved ([`record`]). Undoing restores that text byte for byte, unless another program
//! changed the file in the meantime.
//!
//! The command line edits the files itself, with the environment of its user; a gateway edits them for its console.
//! Deliberately absent: creating and revoking keys ([`keys::Keyring`]), and importing the servers that are moved
//! ([`registry`]).

mod diff;
pub mod keys;
mod plan;
mod record;
mod twice;
mod undo;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use config::{
    CLIENTS, Client, ClientFile, EditError, Machine, OnDisk, Os, Sources, data_dir, nearest,
};
use model::ProjectId;

pub use self::{plan::Wish, record::token_file};
use self::{plan::own, record::Records};
use crate::{loop_detection::LoopDetection, server_files, startup};

/// The name of Toolwharf's entry.
const ENTRY_NAME: &str = "toolwharf";

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no client `{0}`; {hint}", hint = known(.0))]
    Unknown(String),
    #[error("{title} is not installed on this machine: {} not found. Install it if necessary, start it once, then try again", file.display())]
    NotInstalled { title: &'static str, file: PathBuf },
    #[error("HOME is not set, so the configuration file of {0} cannot be found")]
    NoHome(&'static str),
    #[error("{0} is not connected; `toolwharf connect` lists the clients")]
    NotConnected(&'static str),
    #[error("{0} only supports servers that it starts by a command: connect it without --http")]
    CommandsOnly(&'static str),
    #[error(
        "the gateway has no fixed address: set `listen` to a port other than 0 and start the gateway, or connect without --http"
    )]
    NoAddress,
    #[error(
        "all projects see moved servers: connect without --project to move them, then again with --project"
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
    Servers(#[from] server_files::Error),
}

fn known(name: &str) -> String {
    let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
    match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("Toolwharf knows {}", names.join(", ")),
    }
}

/// The clients of the user who runs this process.
#[derive(Clone)]
pub struct Clients {
    records: Records,
    /// `program` with `options` starts Toolwharf with the same servers and data directory, even if only `HOME` is set.
    program: String,
    options: Vec<String>,
    /// The gateway's address, if it is permanent.
    url: Option<String>,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connected,
    NotConnected,
    /// It was connected, but its entry has been removed from the file.
    Removed,
    /// It has an entry with Toolwharf's name that was not made by `connect`.
    ByHand,
    Unusable,
}

/// An installed client.
pub struct Seen {
    pub client: &'static Client,
    file: PathBuf,
    state: State,
    /// Why the client is unusable.
    problem: Option<String>,
    /// True if Toolwharf has a record of connecting the client.
    is_recorded: bool,
    /// The project that the client is connected to. `None`: it sees all servers, or is not connected.
    project: Option<ProjectId>,
    /// The client's other servers.
    pub servers: Vec<String>,
}

impl Clients {
    /// `url`: the gateway's address, if it is permanent.
    pub fn new(sources: &Sources, dir: &Path, url: Option<String>) -> Self {
        Self {
            records: Records::new(dir),
            program: program(),
            options: options(sources, dir),
            url,
        }
    }

    pub fn find(name: &str) -> Result<&'static Client, Error> {
        Client::find(name).ok_or_else(|| Error::Unknown(name.chars().take(100).collect()))
    }

    /// The clients that are installed, or were when they were connected.
    pub fn installed(&self) -> Vec<Seen> {
        let all = CLIENTS.iter();
        all.filter_map(|client| self.seen(client)).collect()
    }

    /// The state of a client; `None` if it is not installed.
    pub fn seen(&self, client: &'static Client) -> Option<Seen> {
        let record = self.records.record(client).ok().flatten();
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
            Ok((parsed.get(ENTRY_NAME).is_some(), own(&parsed, &file, text)?))
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
    pub fn diff_of(&self, seen: &Seen, with: (&Sources, &LoopDetection)) -> Option<String> {
        let wish = Wish {
            project: seen.project.clone(),
            ..Wish::default()
        };
        let plan = self.plan(seen.client, &wish, with).ok()?;
        self.diff(&plan).ok().filter(|diff| !diff.is_empty())
    }

    /// The current contents of its file.
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
    /// Returns true if there is something to undo.
    pub fn was_connected(&self) -> bool {
        self.is_recorded
    }

    /// The client as returned by the API. `diff`: the change that connecting would make.
    pub fn to_api(self, diff: Option<String>) -> api::Client {
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

/// Runs blocking file operations on a thread for blocking work.
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

/// The command of this program: its name on the search path, which survives an update, or else its path.
pub fn program() -> String {
    let own = env::current_exe().unwrap_or_default();
    let real = fs::canonicalize(&own).unwrap_or(own);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut named = env::split_paths(&path).map(|folder| folder.join("toolwharf"));
    let found = named
        .find(|file| file.is_absolute() && fs::canonicalize(file).is_ok_and(|file| file == real));
    found.unwrap_or(real).display().to_string()
}

/// The options that select these files and this data directory for a process in which only `HOME` is set.
pub fn options(sources: &Sources, dir: &Path) -> Vec<String> {
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
