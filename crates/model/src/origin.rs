//! The origin of a server's instances: a remote endpoint, or a program that the gateway starts.
//!
//! Invariant: `Debug` hides the values of variables and headers, the arguments and the user part of a URL, because they
//! may be secrets. Deliberately absent: any state.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::target::url_for_display;
use crate::{HeaderTemplate, HostEnv, Login, LoginVariables, Packages, Sandbox, Surroundings};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Remote(Box<Remote>),
    Launch(Arc<Launch>),
}

#[derive(Clone, PartialEq, Eq)]
pub struct Remote {
    pub url: String,
    pub headers: BTreeMap<String, String>,
    /// Headers with values that each caller supplies.
    pub caller_headers: BTreeMap<String, HeaderTemplate>,
    /// True: it uses HTTP+SSE of 2024-11-05. False: Streamable HTTP is tried first.
    pub sse: bool,
    /// True: its URL may only lead to addresses of the public internet, because no administrator configured it.
    pub public_only: bool,
    /// How callers sign in to it.
    pub login: Login,
}

/// A program that the gateway starts.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    pub program: Program,
    pub env: BTreeMap<String, String>,
    /// The variables of this host, set when the server is declared. `env` overrides them.
    pub host_env: Arc<HostEnv>,
    /// The variables in `env` whose values are access tokens.
    pub login: Option<LoginVariables>,
    /// The working directory on the host. `None`: the gateway's. A sandbox has its own.
    pub cwd: Option<PathBuf>,
    pub reach: Reach,
    pub place: Place,
    /// For a program that is `npx` or `uvx`.
    pub packages: Packages,
    /// The installed package version to start for an inspection instead of the pinned one.
    pub version: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Program {
    /// A program on this host.
    Command { program: String, args: Vec<String> },
    /// A container image. `command` replaces the image's own command, unless it is empty.
    Image { image: String, command: Vec<String> },
}

/// How the gateway connects to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Over standard input and output.
    Streams,
    /// Over HTTP, on the first port of its sandbox. `path` is the path of its MCP endpoint and begins with `/`.
    Port { path: String },
}

/// Where an instance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this host, like any other program of the user.
    Host,
    Sandbox(Sandbox),
}

impl Origin {
    /// The transport: `stdio`, `http` or `sse`.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Remote(remote) if remote.sse => "sse",
            Self::Launch(launch) if launch.reach == Reach::Streams => "stdio",
            Self::Remote(_) | Self::Launch(_) => "http",
        }
    }

    /// A description of the server for lists and logs: the command with its package, module or script and without its other
    /// arguments, the image, or the URL without user, query and fragment.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Remote(remote) => url_for_display(&remote.url),
            Self::Launch(launch) => match &launch.program {
                Program::Command { program, args } => crate::target::target(program, args),
                Program::Image { image, .. } => image.clone(),
            },
        }
    }
}

impl Remote {
    /// A URL without headers and sign-in.
    #[must_use]
    pub fn new(url: String) -> Self {
        Self {
            url,
            headers: BTreeMap::new(),
            caller_headers: BTreeMap::new(),
            sse: false,
            public_only: false,
            login: Login::default(),
        }
    }
}

impl Launch {
    /// A program that uses standard input and output, with an empty environment.
    #[must_use]
    pub fn new(program: Program, place: Place) -> Self {
        Self {
            program,
            env: BTreeMap::new(),
            host_env: Arc::default(),
            login: None,
            cwd: None,
            reach: Reach::Streams,
            place,
            packages: Packages::default(),
            version: None,
        }
    }

    /// Adds the host's variables to `env`, for a server that runs there.
    #[must_use]
    pub fn completed(&self, surroundings: Surroundings) -> Self {
        Self {
            env: self.host_env.complete(&self.env, surroundings),
            ..self.clone()
        }
    }

    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.place {
            Place::Host => None,
            Place::Sandbox(sandbox) => Some(sandbox),
        }
    }
}

impl Program {
    /// The image, or the command without its arguments. For lists and logs.
    #[must_use]
    pub fn target(&self) -> &str {
        match self {
            Self::Command { program, .. } => program,
            Self::Image { image, .. } => image,
        }
    }

    /// The arguments, which may contain secrets.
    #[must_use]
    pub fn args(&self) -> &[String] {
        match self {
            Self::Command { args, .. } => args,
            Self::Image { command, .. } => command,
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("url", &url_for_display(&self.url))
            .field("headers", &self.headers.keys())
            .field("caller_headers", &self.caller_headers)
            .field("sse", &self.sse)
            .field("public_only", &self.public_only)
            .field("login", &self.login)
            .finish()
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = self.program.args().len();
        f.debug_struct("Launch")
            .field("program", &self.program.target())
            .field("args", &format_args!("[{args} hidden]"))
            .field("env", &self.env.keys())
            .field("host_env", &self.host_env)
            .field("login", &self.login)
            .field("cwd", &self.cwd)
            .field("reach", &self.reach)
            .field("place", &self.place)
            .field("packages", &self.packages)
            .field("version", &self.version)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let secrets = |name: &str| BTreeMap::from([(name.to_owned(), "hunter2".to_owned())]);
        let args = || vec!["hunter2".to_owned()];
        for program in [
            Program::Command {
                program: "npx".into(),
                args: args(),
            },
            Program::Image {
                image: "npx".into(),
                command: args(),
            },
        ] {
            for place in [Place::Host, Place::Sandbox(Sandbox::new("one"))] {
                let launch = Launch {
                    env: secrets("API_KEY"),
                    ..Launch::new(program.clone(), place)
                };
                let text = format!("{:?}", Origin::Launch(launch.into()));
                assert!(!text.contains("hunter2"), "{text}");
                assert!(text.contains("API_KEY") && text.contains("npx"), "{text}");
            }
        }
        let remote = Remote {
            headers: secrets("Authorization"),
            ..Remote::new("https://me:hunter2@example.com/mcp?key=hunter2".into())
        };
        let remote = Origin::Remote(remote.into());
        let text = format!("{remote:?} {}", remote.target());
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("Authorization") && text.contains("example.com/mcp"));
    }

    #[test]
    fn urls_for_display() {
        for (url, expect) in [
            ("http://h:1/p", "http://h:1/p"),
            ("http://u:p@h/p@q", "http://h/p@q"),
            ("http://u:a/b@h/p", "http://u:a/b@h/p"),
            ("http:///u:p@h/p", "http:///h/p"),
            ("http:/u:p@h/p", "http:/h/p"),
            ("u:p@h:/p", "h:/p"),
            ("file:///@scope/a", "file:///@scope/a"),
            ("http://h?k=v", "http://h?…"),
            ("http://h/#f", "http://h/?…"),
            ("no url", "no url"),
            ("", ""),
        ] {
            assert_eq!(url_for_display(url), expect, "{url}");
        }
    }
}
