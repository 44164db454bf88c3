//! `toolwharf` without a command, on a terminal: shows the gateway, servers and clients on this machine, and the next
//! command.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Context, Output, here::Here, http::Api, print, reach::all_servers, service};
use rest::configured;

/// Maximum number of servers whose names are listed.
const MAX_NAMED: usize = 6;

/// The result.
#[derive(Serialize)]
struct Overview {
    version: &'static str,
    /// The address of the running gateway.
    gateway: Option<String>,
    /// The server file.
    file: Option<String>,
    servers: Vec<Known>,
    /// True if the configuration files are invalid.
    is_invalid: bool,
    clients: Vec<api::Client>,
    /// The unit file, if the gateway is installed as a service.
    service: Option<String>,
    /// The command to run next.
    next: String,
}

/// A server.
#[derive(Clone, Serialize)]
struct Known {
    name: String,
    status: String,
}

pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let here = Here::find(context).await?;
    let servers = match here.gateway() {
        Some(api) => running(api).await?,
        None => in_files(&here),
    };
    let gateway = here.gateway().map(|api| api.url.clone());
    let service = service::installed().map(|file| file.display().to_string());
    let file = here.servers_file().map(|file| file.display().to_string());
    let is_invalid = here.config.is_err();
    let clients = here.clients.into_iter().map(|seen| seen.to_api(None));
    let clients: Vec<api::Client> = clients.collect();
    let next = Next {
        is_invalid,
        is_running: gateway.is_some(),
        is_service: service.is_some(),
        servers: &servers,
        clients: &clients,
    };
    let (next, what) = next.command();
    let overview = Overview {
        version: env!("CARGO_PKG_VERSION"),
        gateway,
        file,
        servers,
        is_invalid,
        clients,
        service,
        next,
    };
    context.print(&overview, || overview.text())?;
    if context.output == Output::Table {
        eprintln!("`{}` {what}", overview.next);
        eprintln!("`toolwharf --help` lists all commands");
    }
    Ok(())
}

/// Returns the servers of the running gateway.
async fn running(api: &Api) -> anyhow::Result<Vec<Known>> {
    let servers = all_servers(api, None).await?.into_iter();
    let known = servers.map(|server| Known {
        name: server.name,
        status: server.status,
    });
    Ok(known.collect())
}

/// Returns the servers in the configuration files.
fn in_files(here: &Here) -> Vec<Known> {
    let specs = here.config.iter().flat_map(|config| &config.servers);
    let known = specs.map(|spec| {
        let server = configured(spec);
        Known {
            name: server.name,
            status: server.status,
        }
    });
    known.collect()
}

impl Overview {
    fn text(&self) -> String {
        let gateway = match &self.gateway {
            Some(url) => format!("running at {url}"),
            None => "not running".to_owned(),
        };
        let service = self.service.as_ref();
        let service = service.map(|file| format!("installed in {file}"));
        let fields = print::fields(&[
            ("gateway", gateway),
            ("servers", self.servers_text()),
            ("clients", self.clients_text()),
            ("service", service.unwrap_or_default()),
        ]);
        format!("Toolwharf {}\n\n{fields}\n", self.version)
    }

    fn servers_text(&self) -> String {
        let file = self.file.as_deref().unwrap_or("any file");
        if self.is_invalid {
            return format!("unknown, because {file} or toolwharf.toml has errors");
        }
        if self.servers.is_empty() {
            return format!("none in {file}");
        }
        let names = self.servers.iter().take(MAX_NAMED);
        let names: Vec<&str> = names.map(|server| server.name.as_str()).collect();
        let mut text = format!("{} ({}", self.servers.len(), names.join(", "));
        text.push_str(match self.servers.len() > MAX_NAMED {
            true => ", …)",
            false => ")",
        });
        if self.gateway.is_some() {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for server in &self.servers {
                *counts.entry(&server.status).or_default() += 1;
            }
            let counts = counts.into_iter();
            let counts: Vec<String> = counts.map(|(status, n)| format!("{n} {status}")).collect();
            text.push_str(&format!(": {}", counts.join(", ")));
        }
        text
    }

    fn clients_text(&self) -> String {
        let one = |client: &api::Client| {
            let state = match (client.state.as_str(), client.servers.len()) {
                ("connected", _) => "connected".to_owned(),
                ("by_hand", _) => "connected by hand".to_owned(),
                ("unusable", _) => "its file cannot be read".to_owned(),
                (_, 0) => "not connected".to_owned(),
                (_, 1) => "not connected, 1 server of its own".to_owned(),
                (_, count) => format!("not connected, {count} servers of its own"),
            };
            format!("{} ({state})", client.title)
        };
        match self.clients.as_slice() {
            [] => "none found".to_owned(),
            clients => clients.iter().map(one).collect::<Vec<_>>().join("; "),
        }
    }
}

/// The inputs of the choice of the next command.
struct Next<'f> {
    is_invalid: bool,
    is_running: bool,
    is_service: bool,
    servers: &'f [Known],
    clients: &'f [api::Client],
}

impl Next<'_> {
    /// Returns the next command, and what it does.
    fn command(&self) -> (String, &'static str) {
        let plain = |command: &str, what| (format!("toolwharf {command}"), what);
        if self.is_invalid {
            return plain("doctor", "shows the errors in the configuration");
        }
        match (self.is_running, self.servers.is_empty()) {
            (false, true) => return plain("init", "makes the first configuration"),
            (false, false) if self.is_service => {
                return plain("service status", "shows the state of the service");
            }
            (false, false) => {
                return plain(
                    "serve",
                    "starts the gateway; `toolwharf service install` starts it at each login",
                );
            }
            (true, _) => {}
        }
        let unconnected = || {
            let is_free = |client: &&api::Client| {
                matches!(client.state.as_str(), "not_connected" | "removed")
            };
            self.clients.iter().filter(is_free)
        };
        if self.servers.is_empty() {
            return match unconnected().find(|client| !client.servers.is_empty()) {
                Some(client) => (
                    format!("toolwharf import {}", client.name),
                    "adds the servers of this client",
                ),
                None => plain("search", "lists servers that can be installed"),
            };
        }
        let is_troubled = |server: &&Known| {
            matches!(
                server.status.as_str(),
                "blocked" | "failed" | "unavailable" | "unusable"
            )
        };
        if let Some(server) = self.servers.iter().find(is_troubled) {
            return (
                format!("toolwharf get {}", server.name),
                "shows why this server does not run",
            );
        }
        match unconnected().next() {
            Some(client) => (
                format!("toolwharf connect {}", client.name),
                "connects this client to all servers",
            ),
            None => plain("open", "opens the console in a browser"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(statuses: &[&str]) -> Vec<Known> {
        let known = statuses.iter().enumerate().map(|(n, status)| Known {
            name: format!("s{n}"),
            status: (*status).to_owned(),
        });
        known.collect()
    }

    fn client(name: &str, state: &str, servers: &[&str]) -> api::Client {
        api::Client {
            name: name.to_owned(),
            title: name.to_uppercase(),
            file: String::new(),
            state: state.to_owned(),
            problem: None,
            project: None,
            servers: servers.iter().map(|&name| name.to_owned()).collect(),
            diff: None,
        }
    }

    #[test]
    fn the_next_command_follows_from_what_is_there() {
        let fresh = || client("cursor", "not_connected", &["time"]);
        let bare = || client("zed", "not_connected", &[]);
        let done = || client("codex", "connected", &["git"]);
        // Running, installed as a service, servers, clients.
        for (is_running, is_service, statuses, clients, expect) in [
            (false, false, &[][..], vec![], "init"),
            (false, false, &["not running"], vec![fresh()], "serve"),
            (false, true, &["not running"], vec![], "service status"),
            (
                true,
                false,
                &[],
                vec![done(), bare(), fresh()],
                "import cursor",
            ),
            (true, false, &[], vec![bare()], "search"),
            (
                true,
                false,
                &["running", "blocked"],
                vec![fresh()],
                "get s1",
            ),
            (
                true,
                false,
                &["running"],
                vec![done(), bare()],
                "connect zed",
            ),
            (true, true, &["running", "idle"], vec![done()], "open"),
        ] {
            let servers = servers(statuses);
            let mut next = Next {
                is_invalid: false,
                is_running,
                is_service,
                servers: &servers,
                clients: &clients,
            };
            assert_eq!(next.command().0, format!("toolwharf {expect}"));
            next.is_invalid = true;
            assert_eq!(next.command().0, "toolwharf doctor");
        }
    }

    #[test]
    fn servers_and_clients_are_summarized() {
        let statuses = [
            "running", "running", "blocked", "running", "idle", "idle", "idle",
        ];
        let mut overview = Overview {
            version: "1.0.0",
            gateway: Some("http://127.0.0.1:6280".to_owned()),
            file: Some("/h/mcp.json".to_owned()),
            servers: servers(&statuses),
            is_invalid: false,
            clients: vec![
                client("cursor", "not_connected", &["a", "b"]),
                client("zed", "connected", &[]),
            ],
            service: None,
            next: "toolwharf open".to_owned(),
        };
        assert_eq!(
            overview.text(),
            "Toolwharf 1.0.0\n\n\
             gateway          running at http://127.0.0.1:6280\n\
             servers          7 (s0, s1, s2, s3, s4, s5, …): 1 blocked, 3 idle, 3 running\n\
             clients          CURSOR (not connected, 2 servers of its own); ZED (connected)\n\n"
        );
        overview.gateway = None;
        overview.servers.truncate(1);
        assert_eq!(overview.servers_text(), "1 (s0)");
        overview.servers.clear();
        assert_eq!(overview.servers_text(), "none in /h/mcp.json");
    }
}
