//! Servers that a client has in its own file although Toolwharf has them too: the client would show their tools twice.

use std::collections::HashSet;

use config::{Config, Foreign, Sources};
use model::{Launch, Origin, Place, Program, ProjectId, ServerSpec};
use serde_json::Value;

use crate::startup;

/// Runners that are followed by a package or an image. Two servers with the same one have the same tools, even if their
/// other arguments differ.
const RUNNERS: &[&str] = &[
    "npx ", "bunx ", "pnpx ", "npm ", "pnpm ", "yarn ", "uvx ", "pipx ", "docker ", "podman ",
    "nerdctl ",
];

/// Returns the names of those servers of a client that Toolwharf also offers to a client of this project. `own` returns
/// the client's servers, and is called only if Toolwharf offers any.
pub(super) fn servers(
    own: impl FnOnce() -> Vec<Foreign>,
    sources: &Sources,
    project: Option<&ProjectId>,
) -> Vec<String> {
    let Ok(config) = Config::load(sources, &startup::env) else {
        return Vec::new();
    };
    let offered =
        |spec: &&ServerSpec| spec.enabled && spec.unusable.is_none() && spec.is_in_project(project);
    let offered = config.servers.iter().filter(offered);
    let offered: HashSet<Identity> = offered.flat_map(|spec| identities(&spec.origin)).collect();
    if offered.is_empty() {
        return Vec::new();
    }
    let is_twice = |entry: &Value| {
        let mut all = identities_of_entry(entry).into_iter();
        entry["disabled"] != true && all.any(|one| offered.contains(&one))
    };
    let twice = own().into_iter().filter(|one| is_twice(&one.entry));
    twice.map(|one| one.name).collect()
}

/// A property that identifies a server. Two servers are the same if one of these is equal.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Url(String),
    /// A command with its arguments.
    Command(Vec<String>),
    Package(String),
}

/// The identities of a server of Toolwharf.
fn identities(origin: &Origin) -> Vec<Identity> {
    let launch = match origin {
        Origin::Remote(remote) => return vec![url(&remote.url)],
        Origin::Launch(launch) => launch,
    };
    let target = origin.target();
    let is_run = RUNNERS.iter().any(|runner| target.starts_with(runner));
    let package = is_run.then(|| Identity::Package(package(&target).to_owned()));
    let command = match &launch.program {
        Program::Command { program, args } => Some(command(program, args)),
        Program::Image { .. } => None,
    };
    command.into_iter().chain(package).collect()
}

/// The identities of an entry of a client.
fn identities_of_entry(entry: &Value) -> Vec<Identity> {
    let mut found: Vec<_> = entry["url"].as_str().map(url).into_iter().collect();
    if let Some(program) = entry["command"].as_str() {
        let args = entry["args"].as_array().into_iter().flatten();
        let args: Vec<_> = args.filter_map(Value::as_str).map(str::to_owned).collect();
        found.push(command(program, &args));
        let program = Program::Command {
            program: program.to_owned(),
            args,
        };
        let target = Origin::Launch(Launch::new(program, Place::Host).into()).target();
        found.push(Identity::Package(package(&target).to_owned()));
    }
    found
}

fn url(url: &str) -> Identity {
    Identity::Url(url.trim_end_matches('/').to_owned())
}

fn command(program: &str, args: &[String]) -> Identity {
    let words = [program.to_owned()].into_iter();
    Identity::Command(words.chain(args.iter().cloned()).collect())
}

/// Returns the package or the image in a target, without its version.
fn package(target: &str) -> &str {
    let word = target.rsplit(' ').next().unwrap_or_default();
    let version = word
        .char_indices()
        .skip(1)
        .find(|(_, c)| *c == '@' || *c == '=');
    let tag = word.rfind(':').filter(|at| !word[*at..].contains('/'));
    let end = version.map(|(at, _)| at).or(tag);
    &word[..end.unwrap_or(word.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Remote;
    use serde_json::json;

    fn launch(line: &str) -> Origin {
        let mut words = line.split(' ').map(str::to_owned);
        let program = Program::Command {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
        };
        Origin::Launch(Launch::new(program, Place::Host).into())
    }

    #[test]
    fn the_same_package_or_url_is_the_same_server() {
        let time = launch("uvx mcp-server-time");
        let files = launch("npx -y @a/files@1.0 /srv");
        let image = launch("docker run -i ghcr.io/a/b:1");
        let script = launch("python server.py");
        let remote = Origin::Remote(Remote::new("https://h/mcp".to_owned()).into());
        for (origin, entry, expect) in [
            (
                &time,
                json!({ "command": "uvx", "args": ["mcp-server-time", "--local"] }),
                true,
            ),
            (
                &time,
                json!({ "command": "uvx", "args": ["mcp-server-time==2"] }),
                true,
            ),
            (
                &time,
                json!({ "command": "uvx", "args": ["mcp-server-git"] }),
                false,
            ),
            (
                &files,
                json!({ "command": "npx", "args": ["@a/files", "/home"] }),
                true,
            ),
            (
                &files,
                json!({ "command": "npx", "args": ["@a/other"] }),
                false,
            ),
            (
                &image,
                json!({ "command": "docker", "args": ["run", "ghcr.io/a/b"] }),
                true,
            ),
            (
                &script,
                json!({ "command": "python", "args": ["server.py"] }),
                true,
            ),
            (
                &script,
                json!({ "command": "python", "args": ["server.py", "x"] }),
                false,
            ),
            (&remote, json!({ "url": "https://h/mcp/" }), true),
            (&remote, json!({ "url": "https://h/other" }), false),
            (&remote, json!({ "command": "x" }), false),
            (&time, json!({ "url": "https://h/mcp" }), false),
        ] {
            let offered: HashSet<_> = identities(origin).into_iter().collect();
            let found = identities_of_entry(&entry);
            assert_eq!(
                found.iter().any(|one| offered.contains(one)),
                expect,
                "{entry}"
            );
        }
    }
}
