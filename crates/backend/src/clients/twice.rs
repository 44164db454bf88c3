//! Servers that a client has in its own file although Toolwharf has them too: the client would show their tools twice.

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

/// Returns the names of those servers of a client that Toolwharf also offers to a client of this project.
pub(super) fn servers(
    own: &[Foreign],
    sources: &Sources,
    project: Option<&ProjectId>,
) -> Vec<String> {
    let Ok(config) = Config::load(sources, &startup::env) else {
        return Vec::new();
    };
    let offered =
        |spec: &&ServerSpec| spec.enabled && spec.unusable.is_none() && spec.is_in_project(project);
    let offered: Vec<&ServerSpec> = config.servers.iter().filter(offered).collect();
    let own = own.iter().filter(|one| one.entry["disabled"] != true);
    let twice = own.filter(|one| offered.iter().any(|spec| is_same(&one.entry, &spec.origin)));
    twice.map(|one| one.name.clone()).collect()
}

/// Returns whether an entry describes the same server.
fn is_same(entry: &Value, origin: &Origin) -> bool {
    match origin {
        Origin::Remote(remote) => {
            let url = entry["url"].as_str().map(|url| url.trim_end_matches('/'));
            url == Some(remote.url.trim_end_matches('/'))
        }
        Origin::Launch(launch) => {
            let Some(program) = entry["command"].as_str() else {
                return false;
            };
            let args = entry["args"].as_array().into_iter().flatten();
            let args = args.filter_map(Value::as_str).map(str::to_owned).collect();
            let program = Program::Command {
                program: program.to_owned(),
                args,
            };
            if launch.program == program {
                return true;
            }
            let other = Origin::Launch(Launch::new(program, Place::Host).into()).target();
            let (one, other) = (origin.target(), other);
            RUNNERS.iter().any(|runner| one.starts_with(runner)) && package(&one) == package(&other)
        }
    }
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
            assert_eq!(is_same(&entry, origin), expect, "{entry}");
        }
    }
}
