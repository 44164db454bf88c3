//! Toolwharf's own executable, in a form that bubblewrap can show in a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use super::prepare::memory_file;
use super::{executable, shim};
use crate::process::SentinelCommand;
use crate::unit::Error;

pub(super) struct OwnProgram {
    pub(super) file: OwnedFd,
    is_copy: bool,
}

impl OwnProgram {
    /// Opens the executable of `shim`.
    pub(super) fn open(shim: &SentinelCommand) -> Result<Self, Error> {
        let mut file = File::open(&shim.program).map_err(executable("open", &shim.program))?;
        let about = file.metadata();
        let links = about.map_err(executable("inspect", &shim.program))?.nlink();
        if links > 0 {
            return Ok(Self {
                file: file.into(),
                is_copy: false,
            });
        }
        // The file was replaced by another version on disk, so only a copy of it can be shown.
        let mut text = Vec::new();
        let copy = file
            .read_to_end(&mut text)
            .and_then(|_| memory_file(&text))
            .map_err(executable("copy", &shim.program))?;
        Ok(Self {
            file: copy,
            is_copy: true,
        })
    }

    /// The arguments that show it at [`shim::PATH_INSIDE`].
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let number = self.file.as_raw_fd().to_string();
        let words = match self.is_copy {
            true => vec![
                "--perms",
                "0555",
                "--ro-bind-data",
                &number,
                shim::PATH_INSIDE,
            ],
            false => vec!["--ro-bind-fd", &number, shim::PATH_INSIDE],
        };
        words.into_iter().map(Into::into).collect()
    }
}

/// The namespaces of a sandbox without a network, and the capabilities that the shim needs before it gives them up.
pub(super) fn namespaces(privileged: bool, host_name: &str) -> Vec<OsString> {
    let mut arguments = vec![
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-net",
        "--unshare-cgroup-try",
        "--hostname",
        host_name,
        "--die-with-parent",
        "--cap-drop",
        "ALL",
    ];
    if privileged {
        for capability in ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"] {
            arguments.extend(["--cap-add", capability]);
        }
    } else {
        arguments.push("--unshare-user");
    }
    arguments.into_iter().map(Into::into).collect()
}
