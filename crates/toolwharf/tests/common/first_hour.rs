//! The servers of a new user's first hour: ten real ones, as another client's configuration file has them. Three do not
//! start as they are: `keyed` has no API key, `company` does not trust the certificate of its package registry, and
//! `notes` needs a newer Node.js than the one in `PATH`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{PrivateCa, Registry, conformance::node_modules};
use tokio::task::JoinSet;

use super::{
    Gateway, Setup,
    real::{EVERYTHING, installed, npm, python, venv},
};

/// Maximum time until all ten servers run, for a user who reads no documentation.
pub(crate) const MAX_TIME: Duration = Duration::from_mins(10);

/// The servers that run as they are.
pub(crate) const SOUND: [&str; 7] = [
    "everything",
    "files",
    "memory",
    "time",
    "fetch",
    "git",
    "clock",
];
/// The servers that need a user.
pub(crate) const BROKEN: [&str; 3] = ["keyed", "company", "notes"];

/// The variable that `keyed` needs.
pub(crate) const KEY: &str = "KEYED_API_KEY";

/// A program that needs Node.js 22.5 (`node:sqlite`), and then is the server whose script it gets.
const NOTES: &str = "import { DatabaseSync } from \"node:sqlite\";
new DatabaseSync(\":memory:\").close();
await import(process.argv[2]);
";

pub(crate) struct FirstHour {
    /// The user's configuration, `{"mcpServers": …}`.
    pub(crate) servers: Value,
    /// The CA file that `company` needs.
    pub(crate) ca_file: PathBuf,
    /// The program of a newer Node.js.
    pub(crate) node: PathBuf,
    _authority: PrivateCa,
    _registry: Registry,
    _tls: JoinSet<()>,
}

/// The gateway of a user who has no servers yet. An older Node.js and `uvx` are in its `PATH`.
pub(crate) async fn new_user() -> (Gateway, FirstHour) {
    let version = Command::new("/usr/bin/node").arg("--version").output();
    let version = version.expect("/usr/bin/node is missing; run: cargo xtask setup");
    let version = String::from_utf8_lossy(&version.stdout);
    let major = version.trim_start_matches('v').split('.').next();
    let major: u32 = major
        .and_then(|major| major.parse().ok())
        .expect("a version");
    assert!(
        major < 22,
        "`notes` must not run with /usr/bin/node, which is {version}"
    );
    let path = format!("{}:/usr/bin:/bin", venv().join("bin").display());
    let gateway = Setup::new().env("PATH", &path).serve().await;
    let first_hour = FirstHour::new(gateway.folder()).await;
    (gateway, first_hour)
}

impl FirstHour {
    async fn new(folder: &Path) -> Self {
        let folder = folder.canonicalize().expect("the folder is there");
        let text = |path: &Path| path.display().to_string();
        let registry = Registry::new().await;
        registry.publish(
            "1.0.0",
            &json!([{"name": "version", "inputSchema": {"type": "object"}}]),
        );
        let authority = PrivateCa::new(&["localhost"]);
        let address = registry.npm();
        let address = address.strip_prefix("http://").expect("an HTTP URL");
        let (at, tls) = authority.serve(address.parse().expect("an address")).await;
        let index = format!("https://localhost:{}/simple", at.port());

        let files = folder.join("files");
        std::fs::create_dir(&files).expect("a new folder");
        let repository = folder.join("repository");
        let made = Command::new("git")
            .args(["init", "--quiet", &text(&repository)])
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .status();
        assert!(made.expect("git is installed").success());
        let notes = folder.join("notes.mjs");
        std::fs::write(&notes, NOTES).expect("a new file");
        let real = node_modules().join("@modelcontextprotocol/server-memory/dist/index.js");

        let mut memory = npm("server-memory/dist/index.js", &[]);
        memory["env"] = json!({"MEMORY_FILE_PATH": folder.join("memory.jsonl")});
        let mut keyed = npm("server-basic-vue/dist/index.js", &["--stdio"]);
        keyed["env"] = json!({KEY: format!("${{{KEY}}}")});
        let git = format!("--repository={}", text(&repository));
        let servers = json!({
            "everything": npm(EVERYTHING, &[]),
            "files": npm("server-filesystem/dist/index.js", &[&text(&files)]),
            "memory": memory,
            "time": python("mcp-server-time", &["--local-timezone=Europe/Paris"]),
            "fetch": python("mcp-server-fetch", &[]),
            "git": python("mcp-server-git", &[&git]),
            "clock": npm("server-basic-react/dist/index.js", &["--stdio"]),
            "keyed": keyed,
            "company": {
                "command": "uvx",
                "args": [Registry::PACKAGE],
                "env": {"UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": folder.join("uv")},
            },
            "notes": {
                "command": "node",
                "args": [notes, installed(real)],
                "env": {"MEMORY_FILE_PATH": folder.join("notes.jsonl")},
            },
        });
        Self {
            servers: json!({"mcpServers": servers}),
            ca_file: authority.file(),
            node: installed(node_modules().join("node/bin/node")),
            _authority: authority,
            _registry: registry,
            _tls: tls,
        }
    }

    /// The entry of a server.
    pub(crate) fn entry(&self, name: &str) -> &Value {
        &self.servers["mcpServers"][name]
    }
}
