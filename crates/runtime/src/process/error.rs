//! Errors of a launch, and what to do about them.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::search::is_executable;
use crate::sentinel;
use crate::unit::Unit;

/// The texts do not name the server, because they are shown next to its name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration names something that does not exist.
    #[error("command `{program}` not found {place}; {way_out}")]
    NotFound {
        label: String,
        program: String,
        place: String,
        way_out: String,
    },
    #[error("cannot run `{program}`: {why}")]
    NotExecutable {
        label: String,
        program: String,
        why: String,
    },
    #[error("working directory `{}` {why}", cwd.display())]
    Cwd {
        label: String,
        cwd: PathBuf,
        why: String,
    },
    /// The request is invalid for any program.
    #[error("{what}")]
    Invalid { label: String, what: String },
    /// The host has run out of a resource.
    #[error("cannot start `{program}`{way_out}")]
    Spawn {
        label: String,
        program: String,
        way_out: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("it is not started, because the sentinel is not running")]
    Sentinel {
        label: String,
        #[source]
        source: sentinel::Error,
    },
    /// From [`super::Spawner::new`].
    #[error("cannot start child processes")]
    Start(#[source] sentinel::Error),
    #[error("it is not started: Toolwharf is stopping")]
    Stopping { label: String },
}

impl Error {
    /// Returns whether a retry will fail in the same way unless the configuration or the host changes.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::NotExecutable { .. }
                | Self::Cwd { .. }
                | Self::Invalid { .. }
        )
    }

    pub(super) fn spawn(unit: &Unit, source: io::Error) -> Self {
        let way_out = match Errno::from_io_error(&source) {
            Some(Errno::MFILE | Errno::NFILE) => {
                ": too many open files; raise the limit (`ulimit -n`)"
            }
            Some(Errno::AGAIN) => {
                ": too many processes; raise the limit (`ulimit -u`, pids cgroup)"
            }
            Some(Errno::TOOBIG) => {
                ": arguments and environment are too long (`getconf ARG_MAX` shows the limit)"
            }
            Some(Errno::NOMEM) => ": out of memory",
            _ => "",
        };
        Self::Spawn {
            label: unit.label.clone(),
            program: unit.launch.program.target().to_owned(),
            way_out,
            source,
        }
    }

    /// Finds the cause of a failed `fork`, `chdir` or `exec`: they report only `ENOENT` for four different mistakes.
    pub(super) fn explain(
        unit: &Unit,
        environment: &BTreeMap<OsString, OsString>,
        source: io::Error,
    ) -> Self {
        let kind = source.kind();
        let doubtful = matches!(
            kind,
            io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::NotADirectory
        );
        if !doubtful {
            return Self::spawn(unit, source);
        }
        if let Some(why) = unit.launch.cwd.as_deref().and_then(directory_fault) {
            let label = unit.label.clone();
            let cwd = unit.launch.cwd.clone().unwrap_or_default();
            return Self::Cwd { label, cwd, why };
        }
        let found = find(unit, environment.get(OsStr::new("PATH")));
        match found {
            None => Self::not_found(unit),
            Some(path) => Self::NotExecutable {
                label: unit.label.clone(),
                program: path.display().to_string(),
                why: file_fault(&path, kind),
            },
        }
    }

    fn not_found(unit: &Unit) -> Self {
        let program = unit.launch.program.target().to_owned();
        let named = !program.contains('/');
        let place = match (named, &unit.launch.cwd) {
            (true, _) => "in PATH".to_owned(),
            (false, Some(cwd)) if !program.starts_with('/') => {
                format!("from `{}`", cwd.display())
            }
            (false, _) => "(no such file)".to_owned(),
        };
        let way_out = match program.split_once(char::is_whitespace) {
            Some((command, _)) => {
                format!("give `{command}` as the command and the rest as `args`")
            }
            None if program.starts_with("~/") => {
                "`~` is not expanded; give the full path".to_owned()
            }
            None if named => "install it or give its full path".to_owned(),
            None => "install it or correct the path".to_owned(),
        };
        Self::NotFound {
            label: unit.label.clone(),
            program,
            place,
            way_out,
        }
    }
}

fn directory_fault(cwd: &Path) -> Option<String> {
    match cwd.metadata() {
        Ok(metadata) if !metadata.is_dir() => Some("is not a directory".to_owned()),
        Ok(_) => match cwd.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("is not accessible to this user; check its permissions".to_owned())
            }
            _ => None,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("does not exist; create it or correct `cwd`".to_owned())
        }
        Err(error) => Some(format!("cannot be used: {error}")),
    }
}

fn find(unit: &Unit, path: Option<&OsString>) -> Option<PathBuf> {
    let program = Path::new(unit.launch.program.target());
    let from_cwd = |path: &Path| match &unit.launch.cwd {
        Some(cwd) => cwd.join(path),
        None => path.to_owned(),
    };
    if unit.launch.program.target().contains('/') {
        let path = from_cwd(program);
        return path.symlink_metadata().is_ok().then_some(path);
    }
    let candidates = || {
        path.into_iter()
            .flat_map(env::split_paths)
            .map(|directory| from_cwd(&directory).join(program))
    };
    // A file that exec would run comes before files that it would skip.
    candidates()
        .find(|path| is_executable(path))
        .or_else(|| candidates().find(|path| path.symlink_metadata().is_ok()))
}

fn file_fault(path: &Path, kind: io::ErrorKind) -> String {
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "it is a link to a file that does not exist".to_owned()
        }
        Err(error) => error.to_string(),
        Ok(metadata) if metadata.is_dir() => "it is a directory".to_owned(),
        Ok(_) if !is_executable(path) => {
            format!("it is not executable; `chmod +x {}`", path.display())
        }
        Ok(_) if kind == io::ErrorKind::NotFound => {
            "its interpreter (from the `#!` line) or dynamic loader does not exist".to_owned()
        }
        Ok(_) => "permission denied; its file system may be mounted `noexec`".to_owned(),
    }
}
