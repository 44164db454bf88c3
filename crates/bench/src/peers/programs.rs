//! The programs that are measured, and how each is started.
//!
//! A peer is configured as its documentation describes for a server that others use, with the defaults for everything
//! else. Exceptions are explained at their place. None of the programs authenticates its callers.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::run::calls::{NO_AUDIT, Transport};
use crate::run::part;

use Transport::{Http, Stdio};

/// A program to measure.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) kind: Kind,
    /// The name for `--only`, and in the list of installed peers.
    pub(super) name: &'static str,
    /// The name in tables. A peer's version follows its first part.
    pub(super) title: &'static str,
    /// The servers that the program can be put in front of.
    pub(super) reaches: &'static [Transport],
    launch: fn(&Place) -> anyhow::Result<Launch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The baseline proxy, which every figure is compared with.
    Floor,
    Toolwharf,
    Peer,
}

/// The file, port, folder and server that a program is started with.
pub(super) struct Place<'a> {
    /// The program's file.
    pub(super) file: &'a Path,
    pub(super) port: u16,
    /// An empty folder, which is also the program's home directory.
    pub(super) folder: &'a Path,
    pub(super) server: Server,
}

/// The echo server behind the program.
pub(super) enum Server {
    /// The command that starts it: a program and its arguments.
    Command(Vec<String>),
    Url(String),
}

/// A command line, and how the program is used.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) file: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(&'static str, OsString)>,
    pub(super) way: Way,
    pub(super) registration: Option<Registration>,
}

/// How the echo tool is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// Over MCP at this path.
    Mcp(&'static str),
    /// As a REST route at this path.
    OpenApi(&'static str),
    /// Through the REST API of mcp-hub at this path.
    Hub(&'static str),
}

/// A request that tells a running program about its server.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) path: &'static str,
    pub(super) bearer: String,
    pub(super) body: String,
}

pub(super) static PROGRAMS: &[Program] = &[
    Program {
        kind: Kind::Floor,
        name: "floor",
        title: "the baseline: it only forwards",
        reaches: &[Stdio, Http],
        launch: floor,
    },
    Program {
        kind: Kind::Toolwharf,
        name: "toolwharf",
        title: "Toolwharf, calls not recorded",
        reaches: &[Stdio, Http],
        launch: |place| toolwharf(place, NO_AUDIT),
    },
    Program {
        kind: Kind::Toolwharf,
        name: "toolwharf-recorded",
        title: "Toolwharf, calls recorded (the default)",
        reaches: &[Stdio, Http],
        launch: |place| toolwharf(place, ""),
    },
    Program {
        kind: Kind::Peer,
        name: "crates-mcp-proxy",
        title: "mcp-proxy (crates.io)",
        reaches: &[Stdio, Http],
        launch: crates_mcp_proxy,
    },
    Program {
        kind: Kind::Peer,
        name: "npm-mcp-proxy",
        title: "mcp-proxy (npm)",
        reaches: &[Stdio],
        launch: npm_mcp_proxy,
    },
    Program {
        kind: Kind::Peer,
        name: "supergateway",
        title: "supergateway (npm)",
        reaches: &[Stdio],
        launch: supergateway,
    },
    Program {
        kind: Kind::Peer,
        name: "mcp-hub",
        title: "mcp-hub (npm), its REST API",
        reaches: &[Stdio, Http],
        launch: mcp_hub,
    },
    Program {
        kind: Kind::Peer,
        name: "pypi-mcp-proxy",
        title: "mcp-proxy (PyPI)",
        reaches: &[Stdio],
        launch: pypi_mcp_proxy,
    },
    Program {
        kind: Kind::Peer,
        name: "mcpo",
        title: "mcpo (PyPI), a REST route",
        reaches: &[Stdio, Http],
        launch: mcpo,
    },
    Program {
        kind: Kind::Peer,
        name: "fastmcp",
        title: "fastmcp (PyPI), as a proxy",
        reaches: &[Stdio, Http],
        launch: fastmcp,
    },
    Program {
        kind: Kind::Peer,
        name: "contextforge",
        title: "ContextForge (PyPI)",
        reaches: &[Http],
        launch: contextforge,
    },
];

/// The names of the peers.
pub(super) fn peers() -> Vec<&'static str> {
    let peers = PROGRAMS.iter().filter(|it| it.kind == Kind::Peer);
    peers.map(|program| program.name).collect()
}

pub(super) fn server_name(transport: Transport) -> &'static str {
    match transport {
        Stdio => "a stdio server",
        Http => "an HTTP server",
    }
}

impl Program {
    pub(super) fn launch(&self, place: &Place) -> anyhow::Result<Launch> {
        (self.launch)(place)
    }

    /// The title with a version: after the name, and before what explains it.
    pub(super) fn with_version(&self, version: &str) -> String {
        match self.title.split_once(' ') {
            Some((name, rest)) => format!("{name} {version} {rest}"),
            None => format!("{} {version}", self.title),
        }
    }
}

impl Place<'_> {
    fn port(&self) -> String {
        self.port.to_string()
    }

    /// The command of the stdio server.
    fn command(&self) -> anyhow::Result<&[String]> {
        match &self.server {
            Server::Command(command) => Ok(command),
            Server::Url(_) => anyhow::bail!("the program has no clients for HTTP servers"),
        }
    }

    /// The server as an entry of an `mcp.json`. `http` has the members that name the transport of an HTTP server.
    fn entry(&self, http: Value) -> Value {
        match &self.server {
            Server::Command(command) => json!({ "command": command[0], "args": command[1..] }),
            Server::Url(url) => {
                let mut entry = http;
                entry["url"] = json!(url);
                entry
            }
        }
    }

    /// Writes a file into the folder and returns its path.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<OsString> {
        let file = self.folder.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file.into())
    }

    fn mcp_json(&self, http: Value) -> anyhow::Result<OsString> {
        let servers = json!({ "mcpServers": { "bench": self.entry(http) } });
        self.write("mcp.json", &servers.to_string())
    }
}

impl Launch {
    fn new(place: &Place, way: Way) -> Self {
        Self {
            file: place.file.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            way,
            registration: None,
        }
    }

    fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }
}

fn floor(place: &Place) -> anyhow::Result<Launch> {
    let listen = format!("127.0.0.1:{}", place.port);
    let launch = Launch::new(place, Way::Mcp("/mcp"));
    Ok(match &place.server {
        Server::Command(command) => launch
            .args(["floor-stdio", "--listen", &listen, "--"])
            .args(command),
        Server::Url(url) => launch.args(["floor-http", "--listen", &listen, "--upstream", url]),
    })
}

fn toolwharf(place: &Place, settings: &str) -> anyhow::Result<Launch> {
    let listen = format!("127.0.0.1:{}", place.port);
    let launch = Launch::new(place, Way::Mcp("/mcp"))
        .args(["serve", "--listen", &listen, "--config"])
        .args([place.mcp_json(json!({ "type": "http" }))?])
        .args(["--config"])
        .args([place.write("toolwharf.toml", settings)?]);
    Ok(launch)
}

fn crates_mcp_proxy(place: &Place) -> anyhow::Result<Launch> {
    let backend = match &place.server {
        Server::Command(command) => format!(
            "transport = \"stdio\"\ncommand = {}\nargs = {}\n",
            json!(command[0]),
            json!(command[1..])
        ),
        Server::Url(url) => format!("transport = \"http\"\nurl = {}\n", json!(url)),
    };
    let port = place.port;
    // The time limit is that of its reference configuration.
    let text = format!(
        "[proxy]\nname = \"bench\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n\
         [[backends]]\nname = \"bench\"\n{backend}[backends.timeout]\nseconds = 30\n"
    );
    let file = place.write("proxy.toml", &text)?;
    Ok(Launch::new(place, Way::Mcp("/"))
        .args(["--config"])
        .args([file]))
}

fn npm_mcp_proxy(place: &Place) -> anyhow::Result<Launch> {
    Ok(Launch::new(place, Way::Mcp("/mcp"))
        .args(["--host", "127.0.0.1", "--port", &place.port()])
        .args(["--server", "stream", "--"])
        .args(place.command()?))
}

/// The default log has every message in full, so it is off. Without `--stateful`, each request starts a server.
fn supergateway(place: &Place) -> anyhow::Result<Launch> {
    Ok(Launch::new(place, Way::Mcp("/mcp"))
        .args(["--stdio", &place.command()?.join(" ")])
        .args(["--outputTransport", "streamableHttp", "--stateful"])
        .args(["--port", &place.port(), "--logLevel", "none"]))
}

/// Its MCP endpoint speaks only the transport of 2024, HTTP with a separate event stream, so its own REST API is used.
fn mcp_hub(place: &Place) -> anyhow::Result<Launch> {
    Ok(Launch::new(place, Way::Hub("/api/servers/tools"))
        .args(["--port", &place.port(), "--config"])
        .args([place.mcp_json(json!({}))?]))
}

fn pypi_mcp_proxy(place: &Place) -> anyhow::Result<Launch> {
    Ok(Launch::new(place, Way::Mcp("/mcp"))
        .args(["--host", "127.0.0.1", "--port", &place.port(), "--"])
        .args(place.command()?))
}

fn mcpo(place: &Place) -> anyhow::Result<Launch> {
    let port = place.port();
    let launch = Launch::new(place, Way::OpenApi("/echo"));
    let launch = launch.args(["--host", "127.0.0.1", "--port", &port]);
    Ok(match &place.server {
        Server::Command(command) => launch.args(["--"]).args(command),
        Server::Url(url) => launch.args(["--type", "streamable-http", "--", url]),
    })
}

fn fastmcp(place: &Place) -> anyhow::Result<Launch> {
    Ok(Launch::new(place, Way::Mcp("/mcp"))
        .args(["run"])
        .args([place.mcp_json(json!({ "transport": "http" }))?])
        .args(["--transport", "http", "--no-banner"])
        .args(["--host", "127.0.0.1", "--port", &place.port()])
        .variable("FASTMCP_CHECK_FOR_UPDATES", "off"))
}

/// Its rate limit is off, and callers need no token, as with the other programs. Its server may be on this machine.
fn contextforge(place: &Place) -> anyhow::Result<Launch> {
    let Server::Url(url) = &place.server else {
        anyhow::bail!("the program has no clients for stdio servers");
    };
    const ADMIN: &str = "admin@example.com";
    let secret = || hex::encode(rand::random::<[u8; 32]>());
    let signing = secret();
    let database = format!("sqlite:///{}/mcp.db", place.folder.display());
    let mut launch = Launch::new(place, Way::Mcp("/mcp"))
        .args(["--host", "127.0.0.1", "--port", &place.port()])
        .variable("DATABASE_URL", database)
        .variable("JWT_SECRET_KEY", &signing)
        .variable("AUTH_ENCRYPTION_SECRET", secret())
        .variable("PLATFORM_ADMIN_EMAIL", ADMIN)
        .variable("PLATFORM_ADMIN_PASSWORD", format!("A-{}", secret()))
        .variable("PASSWORD_CHANGE_ENFORCEMENT_ENABLED", "false")
        .variable("MCP_REQUIRE_AUTH", "false")
        .variable("RATE_LIMITING_ENABLED", "false")
        .variable("SSRF_ALLOW_LOCALHOST", "true");
    let mut token = Command::new(place.file.with_file_name("python"));
    token.args(["-m", "mcpgateway.utils.create_jwt_token", "--admin"]);
    token.args(["--username", ADMIN, "--exp", "60", "--secret", &signing]);
    token
        .envs(launch.variables.clone())
        .current_dir(place.folder);
    let output = token.output().context("cannot make a token")?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let token = output.lines().last().context("no token was made")?;
    let body = json!({
        "name": "bench",
        "url": url,
        "transport": "STREAMABLEHTTP",
        "visibility": "public",
    });
    launch.registration = Some(Registration {
        path: "/gateways",
        bearer: token.to_owned(),
        body: body.to_string(),
    });
    Ok(launch)
}

/// The command of the echo server.
pub(super) fn echo_command() -> anyhow::Result<Vec<String>> {
    let own = part::own_path()?;
    let own = own
        .to_str()
        .context("the path of this program is not UTF-8")?;
    Ok(vec![own.to_owned(), "echo-stdio".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, server: Server) -> anyhow::Result<String> {
        let folder = tempfile::tempdir()?;
        let place = Place {
            file: Path::new("/bin/program"),
            port: 7,
            folder: folder.path(),
            server,
        };
        let program = PROGRAMS.iter().find(|it| it.name == name);
        let launch = program.context("no such program")?.launch(&place)?;
        let words: Vec<_> = launch
            .arguments
            .iter()
            .map(|it| it.to_string_lossy())
            .collect();
        let folder = folder.path().display().to_string();
        Ok(words.join(" ").replace(&folder, "DIR"))
    }

    #[test]
    fn each_program_gets_its_port_and_its_server() {
        let command = || Server::Command(vec!["/bin/bench".to_owned(), "echo-stdio".to_owned()]);
        let url = || Server::Url("http://127.0.0.1:8/mcp".to_owned());
        for (name, server, want) in [
            (
                "floor",
                command(),
                "floor-stdio --listen 127.0.0.1:7 -- /bin/bench echo-stdio",
            ),
            (
                "floor",
                url(),
                "floor-http --listen 127.0.0.1:7 --upstream http://127.0.0.1:8/mcp",
            ),
            (
                "toolwharf",
                url(),
                "serve --listen 127.0.0.1:7 --config DIR/mcp.json --config DIR/toolwharf.toml",
            ),
            ("crates-mcp-proxy", url(), "--config DIR/proxy.toml"),
            (
                "supergateway",
                command(),
                "--stdio /bin/bench echo-stdio --outputTransport streamableHttp --stateful --port 7 --logLevel none",
            ),
            (
                "mcpo",
                url(),
                "--host 127.0.0.1 --port 7 --type streamable-http -- http://127.0.0.1:8/mcp",
            ),
            (
                "mcpo",
                command(),
                "--host 127.0.0.1 --port 7 -- /bin/bench echo-stdio",
            ),
        ] {
            assert_eq!(line(name, server).unwrap(), want, "{name}");
        }
        assert!(line("npm-mcp-proxy", url()).is_err());
        assert!(line("contextforge", command()).is_err());
    }

    #[test]
    fn the_version_follows_the_name() {
        let title = |name: &str| {
            let program = PROGRAMS.iter().find(|it| it.name == name).unwrap();
            program.with_version("1.2")
        };
        assert_eq!(title("mcp-hub"), "mcp-hub 1.2 (npm), its REST API");
        assert_eq!(title("contextforge"), "ContextForge 1.2 (PyPI)");
    }
}
