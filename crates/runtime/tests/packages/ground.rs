//! A hostile registry, and installations from it.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub(crate) const VICTIM: &str = env!("CARGO_BIN_EXE_runtime-victim");
const REGISTRY: &str = include_str!("registry.py");
/// The user id of an ordinary user.
const NOBODY: u32 = 65_534;

/// How a package is installed.
#[derive(Clone, Copy, Default)]
pub(crate) struct How<'a> {
    /// True to install as an ordinary user.
    pub(crate) rootless: bool,
    /// A script that replaces npm, with options that Toolwharf cannot know.
    pub(crate) npm: Option<&'a str>,
    pub(crate) env: &'a [(&'a str, &'a str)],
}

pub(crate) struct Ground {
    folder: TempDir,
    registry: Child,
    pub(crate) port: u16,
    /// A port on loopback that is not configured for any registry.
    pub(crate) other: TcpListener,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
        for name in ["registry", "home", "bin"] {
            fs::create_dir(at.join(name)).unwrap();
        }
        fs::write(
            at.join("home/.npmrc"),
            "//registry.example/:_authToken=hunter2\n",
        )
        .unwrap();
        fs::write(at.join("home/secret"), "hunter2").unwrap();
        // The folder contains only uv. In uv's own folder there may be other tools, such as the Python of its
        // environment.
        symlink(uv(), at.join("bin/uv")).unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut registry = Command::new("/usr/bin/python3")
            .args(["-c", REGISTRY])
            .args([&at.join("registry"), &at.join("marker")])
            .arg(other.local_addr().unwrap().port().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3: apt-get install python3");
        let mut line = String::new();
        let mut stdout = BufReader::new(registry.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let port = line.trim().parse();
        let port = port.expect("the registry needs git: apt-get install git");
        Self {
            folder,
            registry,
            port,
            other,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns whether any attack ran outside the sandbox.
    pub(crate) fn marked(&self) -> bool {
        self.path("marker").exists()
    }

    /// The command that installs into a separate folder.
    pub(crate) fn command(&self, to: &str, line: &[&str], how: How<'_>) -> Command {
        let to = self.path(to);
        fs::create_dir_all(&to).unwrap();
        let mut command = match how.rootless {
            false => Command::new(VICTIM),
            true => {
                chown(&to, Some(NOBODY), Some(NOBODY)).unwrap();
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", VICTIM]);
                command
            }
        };
        command.arg("install").arg(to.join("packages")).args(line);
        let mut path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        if let Some(script) = how.npm {
            let folder = to.join("npm");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("npm"), script).unwrap();
            fs::set_permissions(folder.join("npm"), Permissions::from_mode(0o755)).unwrap();
            path = format!("{}:{path}", folder.display());
        }
        let url = format!("http://127.0.0.1:{}", self.port);
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("npm_config_registry", format!("{url}/npm/"))
            .env("npm_config_fetch_retries", "0")
            .env("UV_DEFAULT_INDEX", format!("{url}/simple"))
            .env("UV_HTTP_RETRIES", "0")
            .env("UV_PYTHON_DOWNLOADS", "never")
            .envs(how.env.iter().copied())
            .stdin(Stdio::null());
        command
    }

    /// Runs an installation, and returns its result.
    pub(crate) fn install(&self, to: &str, line: &[&str], how: How<'_>) -> String {
        let output = self.command(to, line, how).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| !line.starts_with("run "));
        let complaints = String::from_utf8_lossy(&output.stderr);
        line.unwrap_or_else(|| panic!("{complaints}")).to_owned()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = self.registry.kill();
        let _ = self.registry.wait();
    }
}

fn uv() -> PathBuf {
    let venv = std::env::var_os("TOOLWHARF_VENV").map(PathBuf::from);
    let venv = venv.unwrap_or_else(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        root.join(".work/venv")
    });
    let uv = venv.join("bin/uv");
    let found = uv.canonicalize();
    found.unwrap_or_else(|why| panic!("{}: {why}; run: cargo xtask setup", uv.display()))
}

/// All files below a folder, as relative paths.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}
