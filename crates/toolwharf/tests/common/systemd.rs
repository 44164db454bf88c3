//! A fake of a user's service manager. See `systemctl.py`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const SYSTEMCTL: &str = include_str!("systemctl.py");

/// A service manager. Dropping it kills its services.
pub(crate) struct Systemd(TempDir);

impl Systemd {
    pub(crate) fn new() -> Self {
        let this = Self(TempDir::with_prefix("systemd-").expect("a folder"));
        let state = this.0.path().join("state").display().to_string();
        fs::create_dir(this.programs()).expect("a folder");
        let program = this.programs().join("systemctl");
        fs::write(&program, SYSTEMCTL.replace("@STATE@", &state)).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("permissions");
        this
    }

    /// The folder with `systemctl`, for the search path.
    pub(crate) fn programs(&self) -> PathBuf {
        self.0.path().join("bin")
    }

    /// The process id of the service with this unit, if it was started.
    pub(crate) fn pid(&self, unit: &str) -> Option<u32> {
        let file = self.state(&format!("{unit}.pid"));
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// The output of the service.
    pub(crate) fn log(&self, unit: &str) -> String {
        fs::read_to_string(self.state(&format!("{unit}.log"))).unwrap_or_default()
    }

    /// The commands that `systemctl` was given, one per line.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.state("calls")).unwrap_or_default()
    }

    /// Ends a service as a power failure does.
    pub(crate) fn kill(&self, unit: &str) {
        let Some(pid) = self.pid(unit) else { return };
        // The id may belong to another process by now.
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if program.file_name().is_some_and(|name| name == "toolwharf")
            && let Some(pid) = Pid::from_raw(pid.cast_signed())
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn state(&self, file: &str) -> PathBuf {
        self.0.path().join("state").join(file)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let files = fs::read_dir(self.state("")).into_iter().flatten().flatten();
        for file in files {
            let name = file.file_name();
            if let Some(unit) = Path::new(&name)
                .to_str()
                .and_then(|it| it.strip_suffix(".pid"))
            {
                self.kill(unit);
            }
        }
    }
}
