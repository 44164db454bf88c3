//! The clients that are known by name: where each keeps its servers, and how it writes one.
//!
//! The facts about clients come from their documentation, and theirs to change. Nothing is looked up beyond files and
//! folders. [`ClientFile`] edits their files.

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

/// A program that uses MCP servers and keeps a file of them.
#[derive(Debug)]
pub struct Client {
    /// As the command line has it.
    pub name: &'static str,
    /// As its makers write it.
    pub title: &'static str,
    format: Format,
    style: Style,
    /// The keys that lead to its servers, outermost first.
    container: &'static [&'static str],
    /// Candidates for its file, as [`Machine::path`] reads them: the first one that exists, else the first.
    files: &'static [&'static str],
    /// The same on Windows, where it differs.
    windows: &'static [&'static str],
    /// Folders or files that are there once the client has run, besides its file.
    traces: &'static [&'static str],
    /// The names of its program.
    programs: &'static [&'static str],
}

/// The kind of operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Os {
    Linux,
    Mac,
    Windows,
}

/// A machine as far as it says where clients keep their files.
#[derive(Clone, Copy)]
pub struct Machine<'e> {
    pub os: Os,
    /// Looks up environment variables.
    pub env: &'e dyn Fn(&str) -> Option<String>,
}

/// By name.
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
    /// The form that most of them have.
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

    /// The client of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// Whether its file can hold a URL, and not commands alone.
    #[must_use]
    pub fn takes_urls(&self) -> bool {
        self.style != Style::CommandOnly
    }

    /// All places where it may keep its servers, the usual one first; none without a home.
    pub fn places(&self, machine: Machine<'_>) -> Vec<PathBuf> {
        let files = match machine.os {
            Os::Windows if !self.windows.is_empty() => self.windows,
            _ => self.files,
        };
        files.iter().filter_map(|it| machine.path(it)).collect()
    }

    /// The file with its servers; `None` without a home.
    #[must_use]
    pub fn file(&self, machine: Machine<'_>) -> Option<PathBuf> {
        let places = self.places(machine);
        let there = places.iter().find(|place| place.exists());
        there.or(places.first()).cloned()
    }

    /// Whether anything of it is on this machine: its file, a folder of its own, or its program.
    #[must_use]
    pub fn is_installed(&self, machine: Machine<'_>) -> bool {
        let traces = self.traces.iter().filter_map(|it| machine.path(it));
        let mut files = self.places(machine).into_iter().chain(traces);
        // A link to nothing is a trace, too.
        files.any(|file| file.symlink_metadata().is_ok())
            || self.programs.iter().any(|name| machine.has_program(name))
    }
}

impl Machine<'_> {
    /// `~` is the home, `$CONFIG` where programs of this system keep their settings, `$XDG` the same by the XDG base directory
    /// specification on every system. Any other `$NAME` is a variable; without it, or if it is relative, the place counts for nothing.
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
        // Paths of Windows are not absolute elsewhere.
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

/// Whether a file is the one of a user, and not of a project, by where it is.
pub(crate) fn is_of_user(file: &Path, machine: Machine<'_>) -> bool {
    let mut places = CLIENTS.iter().flat_map(|client| client.places(machine));
    places.any(|place| place == file)
}

impl Os {
    /// The one that this program was built for.
    pub const HERE: Self = match cfg!(target_os = "macos") {
        true => Self::Mac,
        false => Self::Linux,
    };
}
