//! Runs other programs, visibly.
//!
//! Commands are printed before they run, on standard error like all output for users. Standard input is never passed
//! on, so no program can wait for an answer.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

/// A program to run, and how to display it.
#[must_use]
pub(crate) struct Cmd {
    command: Command,
    shown: String,
}

impl Cmd {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        // `cargo run` sets these variables for the package that it runs. Build scripts read variables with the same
        // names, and an inner cargo that inherited them would run them all again.
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&*name);
            }
        }
        Self {
            command,
            shown: program.to_string_lossy().into_owned(),
        }
    }

    /// Takes the program and its arguments from a command line. Clap ensures that the line is not empty.
    pub(crate) fn of(line: &[String]) -> Self {
        let (program, args) = line.split_first().expect("clap requires one");
        Self::new(program).args(args)
    }

    /// Displays the program with this name instead of its path. Call it before [`Cmd::args`].
    pub(crate) fn shown_as(mut self, name: &str) -> Self {
        name.clone_into(&mut self.shown);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    pub(crate) fn arg(self, arg: impl AsRef<OsStr>) -> Self {
        self.args([arg])
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Like [`Cmd::run`], without showing standard output.
    pub(crate) fn run_for_effect(mut self) -> Result<()> {
        self.command.stdout(Stdio::null());
        self.run()
    }

    fn announced(self) -> Self {
        eprintln!("    $ {}", self.shown);
        self
    }

    /// Prints the command and runs it.
    ///
    /// # Errors
    ///
    /// If it cannot be started or fails.
    pub(crate) fn run(self) -> Result<()> {
        let shown = self.shown.clone();
        let status = self.status()?;
        if !status.success() {
            bail!("`{shown}` failed: {status}");
        }
        Ok(())
    }

    /// Prints the command, runs it and returns its exit status.
    pub(crate) fn status(self) -> Result<ExitStatus> {
        let mut this = self.announced();
        this.command
            .status()
            .with_context(|| format!("cannot run `{}`", this.shown))
    }

    /// Prints the command and replaces this process with it.
    pub(crate) fn become_it(self) -> Result<()> {
        let mut this = self.announced();
        let error = this.command.exec();
        Err(error).with_context(|| format!("cannot run `{}`", this.shown))
    }

    /// Prints both commands and runs them, with the output of this one as the input of the other.
    ///
    /// # Errors
    ///
    /// If one of the programs cannot be started or fails.
    pub(crate) fn pipe_into(self, to: Self) -> Result<()> {
        let (from_shown, to_shown) = (self.shown.clone(), to.shown.clone());
        let mut from = self.announced().command;
        let mut from = from
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run `{from_shown}`"))?;
        let output = from.stdout.take().context("its output is piped")?;
        let mut to = to.announced().command;
        let received = to.stdin(output).stdout(Stdio::null()).status();
        let sent = from.wait()?;
        ensure!(sent.success(), "`{from_shown}` failed: {sent}");
        let received = received.with_context(|| format!("cannot run `{to_shown}`"))?;
        ensure!(received.success(), "`{to_shown}` failed: {received}");
        Ok(())
    }

    /// Runs the program silently. Returns whether it started and succeeded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        self.command.status().is_ok_and(|status| status.success())
    }

    /// Runs the program and returns its standard output.
    pub(crate) fn output(mut self) -> Result<String> {
        self.command.stderr(Stdio::inherit());
        let output = self
            .command
            .output()
            .with_context(|| format!("cannot run `{}`", self.shown))?;
        if !output.status.success() {
            bail!("`{}` failed: {}", self.shown, output.status);
        }
        String::from_utf8(output.stdout)
            .with_context(|| format!("the output of `{}` is not UTF-8", self.shown))
    }

    /// The command itself, for a program that the caller waits for.
    pub(crate) fn into_command(self) -> Command {
        self.announced().command
    }
}

/// Prints a heading for the following steps.
pub(crate) fn heading(text: &str) {
    eprintln!("==> {text}");
}

/// Finds a program on the `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path: OsString = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
}

pub(crate) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(Cmd::new("id").arg("-u").output()?.trim() == "0")
}
