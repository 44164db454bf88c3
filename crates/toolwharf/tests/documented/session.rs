//! Runs the commands of a page as a user does: one home, one shell, a gateway on a free port, and terminals.
//!
//! Each command runs in a new `bash` that continues with the variables and functions of the previous one.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, Process, conformance::node_modules, wait_for, within};
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::common::{
    real::{free_port, installed, venv},
    systemd::Systemd,
};

/// Maximum duration of one command. A first start may install a package.
const LIMIT: Duration = Duration::from_secs(300);
/// The programs that the pages use as examples.
const EXAMPLE_SERVER: &str = include_str!("example_server.py");
/// The binaries that a user has installed.
const BINARIES: [&str; 3] = ["toolwharf-example-dice", "toolwharf", "testkit-scripted"];

/// A user's session.
pub(crate) struct Session {
    // Dropped before the home, to which their gateways write.
    gateway: Option<Process>,
    systemd: Systemd,
    home: TempDir,
    programs: TempDir,
    port: u16,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    /// Standard output and standard error, as a user sees them.
    pub(crate) output: String,
}

impl Session {
    /// A session in a new home, whose gateway will listen on a free port. `settings` is added to `toolwharf.toml`.
    pub(crate) async fn new(settings: &str) -> Self {
        let home = TempDir::with_prefix("documented-").expect("a folder");
        // A sandbox has its own `/tmp`, so files of the pages, such as `/srv/data`, must be elsewhere.
        let programs = TempDir::with_prefix_in("documented-", env!("CARGO_TARGET_TMPDIR"));
        let this = Self {
            home,
            programs: programs.expect("a folder"),
            systemd: Systemd::new(),
            port: free_port().await,
            gateway: None,
        };
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(this.programs.path(), open).expect("permissions");
        this.write(
            ".config/toolwharf/toolwharf.toml",
            &format!(
                "listen = \"127.0.0.1:{}\"\n[limits]\nstop_grace = \"2s\"\n{settings}",
                this.port
            ),
        );
        for folder in ["Documents", "tmp"] {
            fs::create_dir_all(this.home.path().join(folder)).expect("a folder");
        }
        for folder in ["srv/data", "srv/more"] {
            fs::create_dir_all(this.programs.path().join(folder)).expect("a folder");
        }
        for name in BINARIES {
            symlink(Bin::path(name), this.programs.path().join(name)).expect("a link");
        }
        this.program("npx", &npx());
        this.program("uvx", &uvx());
        for name in ["notes-server", "search-server"] {
            this.program(name, EXAMPLE_SERVER);
        }
        this
    }

    /// Writes a file in the home.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.home.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.programs.path().join(name);
        fs::write(&path, text).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }

    /// Replaces the paths and the port of a page with those of this session.
    fn here(&self, text: &str) -> String {
        let home = self.home.path().display().to_string();
        // The home itself may be in `/tmp`.
        text.replace("/tmp/", "/home/you/tmp/")
            .replace("/srv/", &format!("{}/srv/", self.programs.path().display()))
            .replace("/home/you", &home)
            .replace("127.0.0.1:6280", &format!("127.0.0.1:{}", self.port))
    }

    /// Replaces the paths and the port of this session with those of a page.
    fn there(&self, text: &str) -> String {
        let home = self.home.path().display().to_string();
        let mut text = text.replace('\r', "");
        for name in BINARIES {
            let installed = Bin::path(name).display().to_string();
            text = text.replace(&installed, &format!("/home/you/.cargo/bin/{name}"));
        }
        let programs = self.programs.path().display().to_string();
        text.replace(&format!("{programs}/srv/"), "/srv/")
            .replace(&format!("{home}/tmp/"), "/tmp/")
            .replace(&home, "/home/you")
            .replace(&programs, "/home/you/.cargo/bin")
            .replace(&format!("127.0.0.1:{}", self.port), "127.0.0.1:6280")
    }

    fn bash(&self, script: &str) -> Command {
        let home = self.home.path();
        let path = std::env::var("PATH").expect("PATH");
        let python = venv().join("bin");
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-c", script])
            .current_dir(home)
            .env("HOME", home)
            .env(
                "PATH",
                format!(
                    "{}:{}:{path}:{}",
                    self.programs.path().display(),
                    self.systemd.programs().display(),
                    python.display()
                ),
            )
            .env("STATE", home.join(".state"))
            .env("BROWSER", "true")
            .env("NO_COLOR", "1")
            .env("ANTHROPIC_API_KEY", "sk-test")
            .kill_on_drop(true);
        for variable in [
            "TOOLWHARF_CONFIG",
            "TOOLWHARF_TOKEN",
            "TOOLWHARF_URL",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
        ] {
            bash.env_remove(variable);
        }
        bash
    }

    /// Runs a command to its end. `input` goes to its standard input.
    pub(crate) async fn run(&mut self, text: &str, input: &str) -> Ran {
        let text = self.here(text);
        let mut bash = self.bash(
            "source $STATE 2>/dev/null; eval \"$COMMAND\" 2>&1; code=$?; \
             { unset COMMAND; declare -p; declare -f; } > $STATE; exit $code",
        );
        let mut child = bash
            .env("COMMAND", &text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash");
        let mut stdin = child.stdin.take().expect("a pipe");
        // The command may exit without reading its input.
        let _ = stdin.write_all(self.here(input).as_bytes()).await;
        drop(stdin);
        let output = within(&text, LIMIT, child.wait_with_output()).await;
        let output = output.expect("waiting for an own child works");
        let all = [output.stdout, output.stderr].concat();
        Ran {
            code: output.status.code(),
            output: self.there(&String::from_utf8_lossy(&all)),
        }
    }

    /// Runs a command on a terminal, and types an answer to each of its questions.
    pub(crate) async fn on_terminal(&mut self, text: &str, answers: &[&str]) -> Ran {
        let text = self.here(text);
        let shown = self.home.path().join(".terminal");
        fs::write(&shown, "").expect("a file");
        let mut script =
            self.bash("source $STATE 2>/dev/null; exec script -qefc \"$COMMAND\" -O $SHOWN");
        let mut child = script
            .env("COMMAND", &text)
            .env("SHOWN", &shown)
            .env("SHELL", "/bin/bash")
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("script");
        let mut stdin = child.stdin.take().expect("a pipe");
        let said = || {
            let text = fs::read(&shown).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace('\r', "");
            let text = text.lines().filter(|line| !line.starts_with("Script "));
            text.collect::<Vec<_>>().join("\n")
        };
        let mut seen = 0;
        for answer in answers {
            let what = format!("a question of `{text}`");
            wait_for(&what, LIMIT, async || {
                let said = said();
                let ended = child.try_wait().ok().flatten().is_some();
                assert!(!ended, "`{text}` asked no more questions:\n{said}");
                let new = said.get(seen..).unwrap_or_default();
                ["] ", ": ", "> "].iter().any(|end| new.ends_with(end))
            })
            .await;
            seen = said().len();
            stdin
                .write_all(format!("{answer}\n").as_bytes())
                .await
                .expect("a terminal");
        }
        let status = within(&text, LIMIT, child.wait()).await;
        let status = status.expect("waiting for an own child works");
        Ran {
            code: status.code(),
            output: self.there(&said()),
        }
    }

    /// Starts an endless command, such as one that follows a log, and stops it when it has printed something.
    pub(crate) async fn until_it_prints(&mut self, text: &str) -> Ran {
        let mut process = self.spawn(text);
        let output = process
            .announced(|line| (!line.trim().is_empty()).then(|| line.to_owned()))
            .await;
        process.signal(Signal::INT);
        process.wait(DEADLINE).await;
        Ran {
            code: Some(0),
            output: self.there(&output),
        }
    }

    fn spawn(&self, text: &str) -> Process {
        let mut bash = self.bash("source $STATE 2>/dev/null; eval \"exec $COMMAND\"");
        bash.env("COMMAND", self.here(text));
        Process::spawn(bash)
    }

    /// Starts `toolwharf serve`, and returns when its output contains these lines. A gateway that runs already is
    /// stopped before, unless the new one has another data directory; that one is stopped at once.
    pub(crate) async fn serve(&mut self, text: &str, shown: impl Fn(&str) -> bool) -> Ran {
        let is_other = text.contains("--data-dir");
        if !is_other {
            self.stop().await;
        }
        let mut process = self.spawn(text);
        wait_for(text, LIMIT, async || {
            assert!(process.is_running(), "`{text}` ended: {}", process.stderr());
            process.stderr().contains("toolwharf is at ")
        })
        .await;
        // If the lines never come, the comparison with the page fails later.
        let lines = wait_for(text, LIMIT, async || shown(&self.there(&process.stderr())));
        let _ = tokio::time::timeout(DEADLINE, lines).await;
        let output = self.there(&process.stderr());
        match is_other {
            true => {
                process.signal(Signal::TERM);
                process.wait(DEADLINE).await;
            }
            false => self.gateway = Some(process),
        }
        Ran {
            code: Some(0),
            output,
        }
    }

    /// Stops the gateway, if one runs.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut gateway) = self.gateway.take() {
            gateway.signal(Signal::TERM);
            gateway.wait(DEADLINE).await;
        }
    }
}

/// Starts the packages that `cargo xtask setup` installed, without a registry.
fn npx() -> String {
    let modules = node_modules();
    let node = installed(modules.join("node/bin/node"));
    format!(
        "#!/bin/sh\n[ \"$1\" = -y ] && shift\npackage=$1; shift\n\
         [ -f {modules}/$package/dist/index.js ] || {{ echo \"$package is not installed\" >&2; exit 1; }}\n\
         exec {node} {modules}/$package/dist/index.js \"$@\"\n",
        modules = modules.display(),
        node = node.display(),
    )
}

fn uvx() -> String {
    let bin: PathBuf = venv().join("bin");
    format!(
        "#!/bin/sh\nprogram=$1; shift\nexec {}/$program \"$@\"\n",
        Path::new(&bin).display()
    )
}
