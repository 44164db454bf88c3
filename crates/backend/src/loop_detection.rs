//! Detects entries that would make Toolwharf connect to itself: by the program and `stdio`, or by the address of one of
//! its listeners.
//!
//! This module only uses the entry. Loops through a script or another address are detected on connecting
//! ([`mcp::chain`]). An entry with another configuration, data directory or database starts a different
//! Toolwharf, which is not a loop.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use config::{Config, Problem};
use model::{Launch, Origin, Program, Settings};

/// The name of the program, in any directory.
const PROGRAM: &str = "toolwharf";
/// Programs that start the program named in their arguments.
const RUNNERS: &[&str] = &[
    "npx", "bunx", "pnpx", "uvx", "pipx", "env", "nice", "nohup", "setsid",
];
/// Options and variables that select a different Toolwharf.
const OTHER_OPTIONS: &[&str] = &["--config", "-c", "--data-dir", "--database-url"];
const OTHER_VARIABLES: &[&str] = &[
    "TOOLWHARF_CONFIG",
    "TOOLWHARF_DATABASE_URL",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "HOME",
];
pub(crate) const HELP: &str = "remove the entry";

/// The identity of this Toolwharf.
#[derive(Clone, Debug, Default)]
pub struct LoopDetection {
    program: Option<PathBuf>,
    listeners: Vec<SocketAddr>,
}

impl LoopDetection {
    /// A gateway that listens at these addresses.
    pub fn at(listeners: &[SocketAddr]) -> Self {
        Self {
            program: env::current_exe()
                .ok()
                .and_then(|file| fs::canonicalize(file).ok()),
            listeners: listeners.to_vec(),
        }
    }

    /// A gateway that does not run, with the addresses in its settings.
    pub fn configured(settings: &Settings) -> Self {
        let (host, port) = settings.listen.rsplit_once(':').unwrap_or_default();
        let port = port.parse().unwrap_or(0);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let listeners: Vec<_> = addresses(host)
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect();
        Self::at(&listeners)
    }

    /// Why an entry is this Toolwharf itself; `None` if it is not.
    pub(crate) fn recognise(&self, origin: &Origin) -> Option<String> {
        match origin {
            Origin::Launch(launch) => self
                .is_own_command(launch)
                .then(|| "its command starts this Toolwharf itself".to_owned()),
            Origin::Remote(remote) => {
                let own = self.own_listener(&remote.url)?;
                Some(format!("its URL leads to this Toolwharf itself ({own})"))
            }
        }
    }

    /// Removes the entries that are this Toolwharf itself, each with a warning.
    pub fn leave_out(&self, config: &mut Config) {
        let Config {
            servers,
            warnings,
            origins,
            ..
        } = config;
        servers.retain(|spec| {
            let why = self.recognise(&spec.origin).filter(|_| spec.enabled);
            let Some(why) = why else {
                return true;
            };
            let what = format!("server `{}` is left out: {why}", spec.name);
            let file = origins
                .get(&spec.name)
                .map_or(Path::new(""), PathBuf::as_path);
            warnings.push(Problem::of_file(file, what).help(HELP));
            false
        });
    }

    fn is_own_command(&self, launch: &Launch) -> bool {
        let Program::Command {
            program: command,
            args,
        } = &launch.program
        else {
            return false;
        };
        let rest = if self.is_program(command, launch) {
            args
        } else if RUNNERS.contains(&base(command)) {
            // `npx -y toolwharf@latest stdio`
            let named = |arg: &String| base(arg).split('@').next() == Some(PROGRAM);
            match args.iter().position(named) {
                Some(at) => &args[at + 1..],
                None => return false,
            }
        } else {
            return false;
        };
        let is_other = |arg: &String| {
            OTHER_OPTIONS.iter().any(|option| {
                arg.strip_prefix(option)
                    .is_some_and(|tail| tail.is_empty() || tail.starts_with('='))
            })
        };
        rest.iter().any(|arg| arg == "stdio")
            && !rest.iter().any(is_other)
            && !OTHER_VARIABLES
                .iter()
                .any(|name| launch.env.contains_key(*name))
    }

    fn is_program(&self, command: &str, launch: &Launch) -> bool {
        if base(command) == PROGRAM {
            return true;
        }
        let Some(own) = &self.program else {
            return false;
        };
        let is_own = |file: PathBuf| fs::canonicalize(file).is_ok_and(|file| file == *own);
        if command.contains('/') {
            return is_own(launch.cwd.clone().unwrap_or_default().join(command));
        }
        let path = launch
            .env
            .get("PATH")
            .map(Into::into)
            .or_else(|| env::var_os("PATH"));
        // The first existing file would be started.
        env::split_paths(&path.unwrap_or_default())
            .map(|dir| dir.join(command))
            .find(|file| file.is_file())
            .is_some_and(is_own)
    }

    fn own_listener(&self, url: &str) -> Option<SocketAddr> {
        let url = url::Url::parse(url).ok()?;
        let port = url.port_or_known_default()?;
        let hosts = match url.host()? {
            url::Host::Domain(name) => addresses(name),
            url::Host::Ipv4(ip) => vec![ip.into()],
            url::Host::Ipv6(ip) => vec![ip.into()],
        };
        let reaches = |listener: &SocketAddr| {
            let bound = listener.ip();
            listener.port() == port
                && port != 0
                && hosts.iter().map(|ip| dialled(*ip)).any(|ip| {
                    ip == dialled(bound)
                        || (bound.is_unspecified()
                            && ip.is_loopback()
                            // A listener on all IPv6 addresses accepts IPv4 as well.
                            && (bound.is_ipv6() || ip.is_ipv4()))
                })
        };
        self.listeners.iter().copied().find(reaches)
    }
}

fn base(command: &str) -> &str {
    command.rsplit('/').next().unwrap_or(command)
}

/// The addresses of a host, without a DNS query.
fn addresses(host: &str) -> Vec<IpAddr> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if host == "localhost" || host.ends_with(".localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    host.parse().into_iter().collect()
}

/// Connecting to the unspecified address reaches this machine.
fn dialled(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Place, Remote};

    use super::*;

    fn command(line: &[&str], env: &[(&str, &str)]) -> Origin {
        let program = Program::Command {
            program: line[0].to_owned(),
            args: line[1..].iter().map(|arg| (*arg).to_owned()).collect(),
        };
        let env = env.iter();
        let env = env.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Origin::Launch(Arc::new(Launch {
            env: env.collect(),
            ..Launch::new(program, Place::Host)
        }))
    }

    #[test]
    fn commands() {
        let own = LoopDetection::at(&[]);
        let exe = env::current_exe().unwrap();
        let exe = exe.to_str().unwrap();
        let home = [("HOME", "/elsewhere")];
        for (line, env, expect) in [
            (&["toolwharf", "stdio"][..], &[][..], true),
            (
                &["/usr/local/bin/toolwharf", "-o", "json", "stdio"],
                &[],
                true,
            ),
            (&[exe, "stdio"], &[], true),
            (&["npx", "-y", "toolwharf@latest", "stdio"], &[], true),
            (
                &["env", "RUST_LOG=debug", "/bin/toolwharf", "stdio"],
                &[],
                true,
            ),
            // These run another subcommand, another program, or a Toolwharf with another configuration.
            (&["toolwharf", "serve"], &[], false),
            (&["toolwharf-cli", "stdio"], &[], false),
            (&["docker", "run", "-i", "toolwharf", "stdio"], &[], false),
            (&["toolwharf", "--config", "b.json", "stdio"], &[], false),
            (&["toolwharf", "stdio", "--data-dir=/b"], &[], false),
            (&["toolwharf", "stdio"], &home, false),
            (&["npx", "-y", "server", "stdio"], &[], false),
        ] {
            let found = own.recognise(&command(line, env));
            assert_eq!(found.is_some(), expect, "{line:?} {env:?}");
        }
    }

    #[test]
    fn addresses_of_listeners() {
        let check = |listen: &str, url: &str| {
            let settings = Settings {
                listen: listen.to_owned(),
                ..Settings::default()
            };
            let remote = Remote::new(url.to_owned());
            LoopDetection::configured(&settings)
                .recognise(&Origin::Remote(remote.into()))
                .is_some()
        };
        for (listen, url, expect) in [
            ("127.0.0.1:7000", "http://127.0.0.1:7000/mcp", true),
            ("127.0.0.1:7000", "http://localhost:7000/mcp/p", true),
            ("127.0.0.1:7000", "http://0.0.0.0:7000/", true),
            ("localhost:7000", "http://[::1]:7000/mcp", true),
            ("0.0.0.0:80", "http://127.0.0.1/mcp", true),
            ("[::]:7000", "http://127.0.0.1:7000/mcp", true),
            ("192.0.2.1:7000", "http://192.0.2.1:7000/mcp", true),
            ("127.0.0.1:7000", "http://127.0.0.1:7001/mcp", false),
            ("127.0.0.1:7000", "http://[::1]:7000/mcp", false),
            ("127.0.0.1:7000", "http://example.com:7000/mcp", false),
            ("127.0.0.1:0", "http://127.0.0.1:0/mcp", false),
            ("127.0.0.1:7000", "no url", false),
        ] {
            assert_eq!(check(listen, url), expect, "{listen} {url}");
        }
    }
}
