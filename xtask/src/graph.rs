//! `cargo xtask graph`: checks that crates depend on each other only as `docs/architecture.md` says.
//!
//! A crate exists only where the compiler should forbid an edge. An edge that is missing from [`RULES`] is therefore a
//! change of the architecture: add it in both places, with a reason. The check covers edges between workspace crates,
//! for normal and build dependencies, and external crates that a crate must not have. Development dependencies on
//! `testkit` and other test crates are not restricted.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace::Workspace;

/// The allowed dependencies, one line for each workspace crate: its name; the workspace crates that it may depend on;
/// external crates that it may not depend on directly, although a dependency of it may; and external crates that must
/// not be anywhere in its dependency tree. A line with `#` explains the next one.
const RULES: &str = "
model: | | tokio hyper axum reqwest sqlx rmcp
# For the list of public addresses and the form of error texts.
http-client: model | | axum sqlx rmcp
# Its pool has the connections of `http-client`.
mcp: http-client model | rmcp | axum sqlx
# Contains no transport.
oauth: model | | hyper axum reqwest sqlx rmcp
runtime: model | rmcp | axum sqlx
# Its processes run in the sandbox of `runtime`.
code: runtime model | hyper rmcp | axum sqlx
store: model | hyper rmcp | axum
# For the estimate of tokens, and for editing responses as text.
results: discovery mcp | tokio hyper rmcp | axum sqlx
# For the reader of event streams and, with the feature `adk`, the client role.
agent: http-client mcp model results | sqlx | axum
lifecycle: runtime model | hyper sqlx rmcp | axum sqlx
# What a server offers, without knowing who sees it.
catalog: mcp store model | hyper rmcp | axum
records: lifecycle runtime store model | hyper rmcp | axum
# Pure computing.
discovery: | | tokio hyper axum reqwest sqlx rmcp
discovery-model: discovery | | tokio hyper axum reqwest sqlx rmcp
# Asks an endpoint for embeddings.
relevance: discovery discovery-model http-client model | | axum sqlx rmcp
engine: catalog records lifecycle code discovery relevance mcp results runtime store model | sqlx genai | axum
# For words used in bodies.
api: model | | tokio hyper axum reqwest sqlx rmcp
# For errors in a body, with their places.
config: model api | | tokio hyper axum reqwest sqlx rmcp
containers: http-client runtime model | rmcp | axum sqlx
# People and servers sign in with the same protocol.
auth: http-client oauth runtime store model | sqlx |
backend: auth catalog engine code relevance http-client lifecycle containers runtime store mcp oauth config model api | sqlx |
gateway: auth backend engine http-client lifecycle runtime store mcp model | sqlx |
install: api config http-client mcp model runtime | sqlx |
rest: auth backend gateway install catalog engine discovery lifecycle agent runtime store mcp oauth config model api | sqlx |
# The schema of the resource is that of the REST API.
operator: rest auth backend containers catalog engine lifecycle store config model api | sqlx |
toolwharf: rest gateway install operator backend auth catalog engine code http-client lifecycle agent runtime store mcp oauth config model api | sqlx |
# The test kit must not be built from the code that it checks.
testkit: | |
# The quality of searches is measured without a gateway.
bench: discovery discovery-model testkit mcp model | |
# All crates that parse outside input.
fuzz: config install mcp model oauth | |
dice: | |
recipe-vault: testkit | | axum
xtask: | | tokio
";

/// The dependencies allowed for one workspace crate.
struct Rule<'t> {
    krate: &'t str,
    ours: Vec<&'t str>,
    no_direct: Vec<&'t str>,
    no_anywhere: Vec<&'t str>,
}

impl<'t> Rule<'t> {
    /// Reads lines as in [`RULES`].
    fn read(text: &'t str) -> Option<Vec<Self>> {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &'t str| {
            let (krate, lists) = line.split_once(':')?;
            let mut lists = lists
                .split('|')
                .map(|list| list.split_whitespace().collect());
            Some(Self {
                krate,
                ours: lists.next()?,
                no_direct: lists.next()?,
                no_anywhere: lists.next()?,
            })
        };
        lines.map(rule).collect()
    }
}

/// Checks this workspace.
///
/// # Errors
///
/// Lists every edge that is not allowed.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let metadata = workspace.metadata(&[])?;
    let graph = Graph::read(&metadata).context("cannot read the output of cargo metadata")?;
    let rules = Rule::read(RULES).context("a line of RULES lacks a part")?;
    let wrong = check(&graph, &rules);
    ensure!(
        wrong.is_empty(),
        "the dependency graph does not match docs/architecture.md:\n  {}",
        wrong.join("\n  ")
    );
    eprintln!(
        "    {} crates, all edges match docs/architecture.md",
        graph.ours.len()
    );
    Ok(())
}

/// Packages by id, with the dependencies that are part of the build.
#[derive(Debug, Default)]
struct Graph {
    names: BTreeMap<String, String>,
    edges: BTreeMap<String, BTreeSet<String>>,
    ours: BTreeSet<String>,
}

impl Graph {
    /// Reads the `packages`, `workspace_members` and `resolve` of `cargo metadata`.
    fn read(metadata: &Value) -> Option<Self> {
        let mut graph = Self::default();
        for package in metadata["packages"].as_array()? {
            let (id, name) = (package["id"].as_str()?, package["name"].as_str()?);
            graph.names.insert(id.to_owned(), name.to_owned());
        }
        for id in metadata["workspace_members"].as_array()? {
            graph.ours.insert(id.as_str()?.to_owned());
        }
        for node in metadata["resolve"]["nodes"].as_array()? {
            let edges = graph
                .edges
                .entry(node["id"].as_str()?.to_owned())
                .or_default();
            for dependency in node["deps"].as_array()? {
                let mut kinds = dependency["dep_kinds"].as_array()?.iter();
                if kinds.any(|kind| kind["kind"] != "dev") {
                    edges.insert(dependency["pkg"].as_str()?.to_owned());
                }
            }
        }
        Some(graph)
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    fn direct(&self, id: &str) -> impl Iterator<Item = &str> {
        self.edges.get(id).into_iter().flatten().map(String::as_str)
    }

    /// The shortest chain of names from a package to one called `name`.
    fn path(&self, from: &str, name: &str) -> Option<Vec<String>> {
        let mut seen = BTreeSet::from([from]);
        let mut level = vec![vec![from]];
        while !level.is_empty() {
            let mut next = Vec::new();
            for path in level {
                let last = path.last()?;
                for id in self.edges.get(*last).into_iter().flatten() {
                    if !seen.insert(id) {
                        continue;
                    }
                    let mut path = path.clone();
                    path.push(id);
                    if self.name(id) == name {
                        return Some(path.iter().map(|id| self.name(id).to_owned()).collect());
                    }
                    next.push(path);
                }
            }
            level = next;
        }
        None
    }
}

/// All violations of the rules, as readable lines.
fn check(graph: &Graph, rules: &[Rule]) -> Vec<String> {
    let mut wrong = Vec::new();
    for id in &graph.ours {
        let name = graph.name(id);
        let Some(rule) = rules.iter().find(|rule| rule.krate == name) else {
            wrong.push(format!(
                "{name} is unknown: add it to RULES in xtask/src/graph.rs"
            ));
            continue;
        };
        for dependency in graph.direct(id) {
            let dependency_name = graph.name(dependency);
            if graph.ours.contains(dependency) && !rule.ours.contains(&dependency_name) {
                wrong.push(format!("{name} must not depend on {dependency_name}"));
            }
            if rule.no_direct.contains(&dependency_name) {
                wrong.push(format!("{name} → {dependency_name} is forbidden"));
            }
        }
        for forbidden in &rule.no_anywhere {
            if let Some(path) = graph.path(id, forbidden) {
                wrong.push(format!("{} is forbidden", path.join(" → ")));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Edges as `from > to`, or `from ~ to` for a development dependency. Names in capitals are external crates, all
    /// others are workspace crates.
    fn graph(edges: &[&str]) -> Graph {
        let mut names = BTreeSet::new();
        let mut deps: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for edge in edges {
            let (from, kind, to) = match edge.split_once(" > ") {
                Some((from, to)) => (from, Value::Null, to),
                None => {
                    let (from, to) = edge.split_once(" ~ ").expect("an edge");
                    (from, json!("dev"), to)
                }
            };
            names.extend([from, to]);
            let dependency = json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
            deps.entry(from).or_default().push(dependency);
        }
        let ours = names
            .iter()
            .filter(|name| name.chars().all(|c| c.is_ascii_lowercase()));
        let metadata = json!({
            "workspace_members": ours.collect::<Vec<_>>(),
            "packages": names.iter().map(|name| json!({"id": name, "name": name})).collect::<Vec<_>>(),
            "resolve": {"nodes": names.iter().map(|name| {
                json!({"id": name, "deps": deps.remove(name).unwrap_or_default()})
            }).collect::<Vec<_>>()},
        });
        Graph::read(&metadata).expect("the shape of cargo metadata")
    }

    fn check_edges(edges: &[&str], expect: &[&str]) {
        let rules = "low: | | RUNTIME\nhigh: low | SQL |\ntests: | |";
        let rules = Rule::read(rules).expect("three rules");
        assert_eq!(check(&graph(edges), &rules), expect, "{edges:?}");
    }

    #[test]
    fn edges_between_our_crates() {
        check_edges(&["high > low"], &[]);
        check_edges(&["low > high"], &["low must not depend on high"]);
        check_edges(&["high > low", "low ~ tests", "high ~ tests"], &[]);
        check_edges(&["high > tests"], &["high must not depend on tests"]);
        let unknown = "new is unknown: add it to RULES in xtask/src/graph.rs";
        check_edges(&["new > low"], &[unknown]);
    }

    #[test]
    fn forbidden_externals() {
        check_edges(&["high > SQL"], &["high → SQL is forbidden"]);
        check_edges(&["high > ORM", "ORM > SQL"], &[]);
        check_edges(
            &["low > NET", "NET > RUNTIME"],
            &["low → NET → RUNTIME is forbidden"],
        );
        check_edges(&["low > NET", "NET ~ RUNTIME", "low ~ RUNTIME"], &[]);
    }

    #[test]
    fn the_rules_name_only_crates_that_have_rules() {
        let rules = Rule::read(RULES).expect("every line is a rule");
        for rule in &rules {
            for ours in &rule.ours {
                assert!(rules.iter().any(|other| other.krate == *ours), "{ours}");
            }
        }
    }
}
