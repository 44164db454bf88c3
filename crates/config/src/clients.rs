//! Known MCP clients: the location of each client's server file, and the format of its entries.
//!
//! The facts are from the clients' documentation and may change. Detection looks only at files and folders.
//! [`ClientFile`] edits the files.

mod disk;
mod entry;
mod file;
mod toml;
mod yaml;

use std::path::{Path, PathBuf};

use serde_json::Value;

pub use self::{disk::OnDisk, entry::Way, file::ClientFile};
use self::{entry::Style, file::Format};
use crate::{edit::EditError, source::Source};

/// A program that uses MCP servers and keeps a list of them in a file.
#[derive(Debug)]
pub struct Client {
    /// The name on the command line.
    pub name: &'static str,
    /// The product name.
    pub title: &'static str,
    format: Format,
    style: Style,
    /// The key path of its servers, outermost first.
    container: &'static [&'static str],
    /// Possible paths of its file, in the syntax of [`Machine::path`]. The first existing file is used. If none exists,
    /// the first path is used.
    files: &'static [&'static str],
    /// The candidates on Windows, if they differ.
    windows: &'static [&'static str],
    /// Additional folders or files that exist once the client has run.
    traces: &'static [&'static str],
    /// The names of its executable.
    programs: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Os {
    Linux,
    Mac,
    Windows,
}

/// The properties of a machine that determine where clients keep their files.
#[derive(Clone, Copy)]
pub struct Machine<'e> {
    pub os: Os,
    /// Looks up environment variables.
    pub env: &'e dyn Fn(&str) -> Option<String>,
}

/// Sorted by name.
pub const CLIENTS: &[Client] = &[
    Client {
        title: "Claude Code",
        style: Style::Typed,
        files: &["$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"],
        traces: &["~/.claude"],
        programs: &["claude"],
        ..Client::json("claude-code")
    },
    Client {
        title: "Claude Desktop",
        style: Style::CommandOnly,
        files: &["$CONFIG/Claude/claude_desktop_config.json"],
        traces: &["$CONFIG/Claude"],
        ..Client::json("claude-desktop")
    },
    Client {
        title: "Cline",
        style: Style::Cline,
        files: &[
            "$CONFIG/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
        traces: &["$CONFIG/Code/User/globalStorage/saoudrizwan.claude-dev"],
        ..Client::json("cline")
    },
    Client {
        title: "Codex",
        format: Format::Toml,
        style: Style::Codex,
        container: &["mcp_servers"],
        files: &["$CODEX_HOME/config.toml", "~/.codex/config.toml"],
        traces: &["~/.codex"],
        programs: &["codex"],
        ..Client::json("codex")
    },
    Client {
        title: "Continue",
        format: Format::Yaml,
        style: Style::Continue,
        files: &[
            "$CONTINUE_GLOBAL_DIR/config.yaml",
            "~/.continue/config.yaml",
        ],
        traces: &["~/.continue"],
        ..Client::json("continue")
    },
    Client {
        title: "Cursor",
        files: &["~/.cursor/mcp.json"],
        traces: &["~/.cursor"],
        programs: &["cursor", "cursor-agent"],
        ..Client::json("cursor")
    },
    Client {
        title: "Gemini CLI",
        style: Style::Gemini,
        files: &[
            "$GEMINI_CLI_HOME/.gemini/settings.json",
            "~/.gemini/settings.json",
        ],
        traces: &["~/.gemini"],
        programs: &["gemini"],
        ..Client::json("gemini")
    },
    Client {
        title: "Goose",
        format: Format::Yaml,
        style: Style::Goose,
        container: &["extensions"],
        files: &["$XDG/goose/config.yaml"],
        windows: &["$CONFIG/Block/goose/config/config.yaml"],
        traces: &["$XDG/goose"],
        programs: &["goose"],
        ..Client::json("goose")
    },
    Client {
        title: "JetBrains (Junie)",
        files: &["~/.junie/mcp/mcp.json"],
        traces: &["~/.junie"],
        programs: &["junie"],
        ..Client::json("jetbrains")
    },
    Client {
        title: "LM Studio",
        files: &["~/.lmstudio/mcp.json", "~/.cache/lm-studio/mcp.json"],
        traces: &["~/.lmstudio", "~/.cache/lm-studio"],
        ..Client::json("lmstudio")
    },
    Client {
        title: "opencode",
        style: Style::Opencode,
        container: &["mcp"],
        files: &[
            "$OPENCODE_CONFIG",
            "$XDG/opencode/opencode.json",
            "$XDG/opencode/opencode.jsonc",
        ],
        traces: &["$XDG/opencode"],
        programs: &["opencode"],
        ..Client::json("opencode")
    },
    Client {
        title: "VS Code",
        style: Style::Typed,
        container: &["servers"],
        files: &["$CONFIG/Code/User/mcp.json"],
        traces: &["$CONFIG/Code"],
        programs: &["code"],
        ..Client::json("vscode")
    },
    Client {
        title: "Windsurf",
        style: Style::Windsurf,
        files: &["~/.codeium/windsurf/mcp_config.json"],
        traces: &["~/.codeium/windsurf"],
        programs: &["windsurf"],
        ..Client::json("windsurf")
    },
    Client {
        title: "Zed",
        container: &["context_servers"],
        files: &["$XDG/zed/settings.json"],
        windows: &["$CONFIG/Zed/settings.json"],
        traces: &["$XDG/zed"],
        programs: &["zed", "zeditor"],
        ..Client::json("zed")
    },
];

impl Client {
    /// A client with the format that most clients use: JSON, servers under `mcpServers`.
    const fn json(name: &'static str) -> Self {
        Self {
            name,
            title: "",
            format: Format::Json,
            style: Style::Plain,
            container: &["mcpServers"],
            files: &[],
            windows: &[],
            traces: &[],
            programs: &[],
        }
    }

    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// Returns whether the client's file can list servers by URL. If not, it can list only commands.
    #[must_use]
    pub fn takes_urls(&self) -> bool {
        self.style != Style::CommandOnly
    }

    /// All possible locations of its file, the usual one first. Empty without a home directory.
    pub fn places(&self, machine: Machine<'_>) -> Vec<PathBuf> {
        let files = match machine.os {
            Os::Windows if !self.windows.is_empty() => self.windows,
            _ => self.files,
        };
        files.iter().filter_map(|it| machine.path(it)).collect()
    }

    /// The location of its file. `None` without a home directory.
    #[must_use]
    pub fn file(&self, machine: Machine<'_>) -> Option<PathBuf> {
        let places = self.places(machine);
        let there = places.iter().find(|place| place.exists());
        there.or(places.first()).cloned()
    }

    /// Returns whether the client is installed, judging by its file, its folders or its executable.
    #[must_use]
    pub fn is_installed(&self, machine: Machine<'_>) -> bool {
        let traces = self.traces.iter().filter_map(|it| machine.path(it));
        let mut files = self.places(machine).into_iter().chain(traces);
        // A symbolic link to a missing file counts, too.
        files.any(|file| file.symlink_metadata().is_ok())
            || self.programs.iter().any(|name| machine.has_program(name))
    }
}

impl Machine<'_> {
    /// `~` is the home directory, `$CONFIG` the usual folder for settings on this system, and `$XDG` the folder for
    /// settings of the XDG base directory specification on every system. Any other `$NAME` is a variable. If it is
    /// unset or relative, the location is ignored.
    fn path(self, place: &str) -> Option<PathBuf> {
        let (first, rest) = place.split_once('/').unwrap_or((place, ""));
        let base = match first {
            "~" => self.home()?,
            "$CONFIG" => match self.os {
                Os::Linux => self.xdg()?,
                Os::Mac => self.home()?.join("Library/Application Support"),
                Os::Windows => self.folder("APPDATA")?,
            },
            "$XDG" => self.xdg()?,
            variable => self.folder(variable.trim_start_matches('$'))?,
        };
        Some(if rest.is_empty() {
            base
        } else {
            base.join(rest)
        })
    }

    fn xdg(self) -> Option<PathBuf> {
        let named = self.folder("XDG_CONFIG_HOME");
        named.or_else(|| Some(self.home()?.join(".config")))
    }

    fn home(self) -> Option<PathBuf> {
        self.folder(match self.os {
            Os::Windows => "USERPROFILE",
            _ => "HOME",
        })
    }

    fn folder(self, variable: &str) -> Option<PathBuf> {
        let path = PathBuf::from((self.env)(variable)?);
        // Windows paths do not count as absolute on other systems.
        (path.is_absolute() || self.os == Os::Windows).then_some(path)
    }

    fn has_program(self, name: &str) -> bool {
        let path = (self.env)("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    }
}

/// The content of a TOML file.
pub(crate) fn toml(source: &Source) -> Result<Value, EditError> {
    toml::parse(source).map_err(|problem| EditError::Unreadable((*problem).into()))
}

/// The content of a YAML file.
pub(crate) fn yaml(path: &Path, text: &str) -> Result<Value, EditError> {
    yaml::parse(path, text).map_err(|problem| EditError::Unreadable((*problem).into()))
}

/// Returns whether a file is a user's file and not a project's, judging by its location.
pub(crate) fn is_of_user(file: &Path, machine: Machine<'_>) -> bool {
    let mut places = CLIENTS.iter().flat_map(|client| client.places(machine));
    places.any(|place| place == file)
}

impl Os {
    /// The system that this program was built for.
    pub const HERE: Self = match cfg!(target_os = "macos") {
        true => Self::Mac,
        false => Self::Linux,
    };
}
