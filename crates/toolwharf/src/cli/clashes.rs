//! Reports which tools get new names because an added server has tools of the same name.

use std::collections::HashMap;

use api::{Server, Tool, Tools};
use model::ProjectId;

use super::{
    http::{Api, path, query},
    print,
};

/// Maximum number of tools in the report.
const MAX_TOOLS: usize = 10;

/// The tools that callers of a project see, or callers without a project.
pub(super) struct Names(Vec<Tool>);

type Key<'t> = (Option<&'t str>, &'t str, &'t str);

fn key(tool: &Tool) -> Key<'_> {
    (tool.project.as_deref(), &tool.server, &tool.native)
}

impl Names {
    /// Returns the current names, without those of servers that are starting. Empty if they cannot be read: they are
    /// only needed for a report.
    pub(super) async fn read(api: &Api, project: Option<&ProjectId>) -> Self {
        let project = ("project", project.map(ProjectId::as_str));
        let path = path(&["tools"]) + &query(&[project, ("wait", Some("false"))]);
        let read = api.get::<Tools>(&path).await;
        Self(read.map(|read| read.tools).unwrap_or_default())
    }
}

/// Prints which tools have other names than before, now that `server` is connected.
pub(super) async fn report(api: &Api, project: Option<&ProjectId>, server: &Server, before: Names) {
    if server.status != "running" {
        return;
    }
    let now = Names::read(api, project).await;
    let lines = renamed(&before.0, &now.0, server);
    if lines.is_empty() {
        return;
    }
    eprintln!("several servers have tools of the same name, so clients see other names:");
    for line in lines.iter().take(MAX_TOOLS) {
        eprintln!("  {}", print::printable(line));
    }
    if lines.len() > MAX_TOOLS {
        let more = lines.len() - MAX_TOOLS;
        eprintln!("  and {more} more; `toolwharf tools ls` lists all names");
    }
}

fn renamed(before: &[Tool], now: &[Tool], added: &Server) -> Vec<String> {
    let earlier: HashMap<Key<'_>, &str> = before
        .iter()
        .filter_map(|tool| Some((key(tool), tool.exposed()?)))
        .collect();
    let is_its = |tool: &Tool| tool.server == added.name && tool.project == added.project;
    let is_shared = |tool: &Tool| {
        let mut others = now.iter().filter(|other| key(other) != key(tool));
        others.any(|other| other.native == tool.native)
    };
    let line = |tool: &Tool| {
        let Tool { server, native, .. } = tool;
        let exposed = tool.exposed()?;
        if is_its(tool) {
            let is_new_name = exposed != native && is_shared(tool);
            return is_new_name.then(|| format!("`{native}` of `{server}` is called `{exposed}`"));
        }
        let old = *earlier.get(&key(tool))?;
        (old != exposed)
            .then(|| format!("`{native}` of `{server}` is now called `{exposed}`, not `{old}`"))
    };
    now.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, native: &str, exposed: &str) -> Tool {
        Tool {
            name: exposed.to_owned(),
            offered: true,
            project: None,
            server: server.to_owned(),
            native: native.to_owned(),
            description: String::new(),
            enabled: true,
            setting: None,
            quarantine: None,
            kept_back: None,
        }
    }

    #[test]
    fn only_names_that_the_added_server_changed_are_reported() {
        let before = [
            tool("dice", "flip", "flip"),
            tool("dice", "roll", "roll"),
            tool("other", "x", "other__x"),
        ];
        let now = [
            tool("dice", "flip", "dice__flip"),
            tool("dice", "roll", "roll"),
            tool("more", "flip", "more__flip"),
            tool("more", "own", "own"),
            tool("more", "long", "shortened"),
            tool("other", "x", "other__x"),
        ];
        let added = Server {
            name: "more".to_owned(),
            ..Server::default()
        };
        assert_eq!(
            renamed(&before, &now, &added),
            [
                "`flip` of `dice` is now called `dice__flip`, not `flip`",
                "`flip` of `more` is called `more__flip`",
            ]
        );
        assert!(renamed(&now, &now, &Server::default()).is_empty());
    }
}
