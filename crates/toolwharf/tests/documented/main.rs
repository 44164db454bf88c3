//! Runs the commands that the README and the pages in `docs` show, in the order of each page, and compares their output
//! with the page.
//!
//! Each page has a new home and a real gateway. `npx` and `uvx` start the servers that `cargo xtask setup` installs;
//! packages for sandboxes come from the registries of this machine. [`rules::RULES`] lists the commands that cannot run
//! here, with the reason, and the input that others need.

#[path = "../common/mod.rs"]
mod common;

mod compare;
mod databases;
mod page;
mod rules;
mod session;

use std::collections::{BTreeMap, BTreeSet};

use page::Page;
use rules::{How, RULES, Rule};
use session::{Ran, Session};
use testkit::llm::Llm;

/// The pages that have commands, and that are run in tests below.
const RUN: [&str; 12] = [
    "README.md",
    "docs/adk.md",
    "docs/cli.md",
    "docs/clients.md",
    "docs/connect.md",
    "docs/databases.md",
    "docs/hosting.md",
    "docs/install.md",
    "docs/projects.md",
    "docs/quick-start.md",
    "docs/rest-api.md",
    "docs/servers.md",
];

/// The rules for the commands of one page. [`How::Not`] applies to all commands that begin with its text, and the others
/// apply to the first such command.
struct Plan {
    rules: Vec<&'static Rule>,
    used: BTreeSet<usize>,
}

impl Plan {
    fn of(page: &str) -> Self {
        Self {
            rules: RULES
                .iter()
                .filter(|rule| rule.page == page && !rule.command.is_empty())
                .collect(),
            used: BTreeSet::new(),
        }
    }

    fn of_command(&mut self, text: &str) -> Vec<&'static How> {
        let mut all = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let is_used = self.used.contains(&index);
            if text.starts_with(rule.command) && (!is_used || matches!(rule.how, How::Not(_))) {
                self.used.insert(index);
                all.push(&rule.how);
            }
        }
        all
    }

    fn unused(&self) -> Vec<&'static str> {
        let rules = self.rules.iter().enumerate();
        let unused = rules.filter(|(index, _)| !self.used.contains(index));
        unused.map(|(_, rule)| rule.command).collect()
    }
}

/// Runs the page in a session. Reports everything that differs, not only the first difference.
async fn check(name: &str, mut session: Session) {
    let page = Page::read(name);
    for (index, (language, text)) in page.blocks.iter().enumerate() {
        session.write(&format!("blocks/{index}.{language}"), text);
    }
    let mut plan = Plan::of(name);
    let mut wrong: Vec<String> = Vec::new();
    // For each output of the page, what its commands printed.
    let mut printed: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for rule in RULES
        .iter()
        .filter(|rule| rule.page == name && rule.command.is_empty())
    {
        if let How::Before(script) = rule.how {
            prepare(&mut session, script, &mut wrong).await;
        }
    }
    for command in &page.commands {
        let text = command.text.trim();
        let hows = plan.of_command(text);
        if let Some(How::Not(why)) = hows.iter().find(|how| matches!(how, How::Not(_))) {
            eprintln!("not run: `{text}`: {why}");
            continue;
        }
        let mut code = 0;
        let mut input = command.typed.join("\n");
        let mut answers = None;
        let mut is_endless = false;
        let mut actual = text.to_owned();
        for how in hows {
            match how {
                How::Not(_) => {}
                How::Before(script) => prepare(&mut session, script, &mut wrong).await,
                How::Code(expected) => code = *expected,
                How::Input(text) => input = (*text).to_owned(),
                How::Answers(texts) => answers = Some(*texts),
                How::Endless => is_endless = true,
                How::Id(script) => {
                    let id = session.run(script, "").await.output;
                    actual = with_id(&actual, id.trim());
                }
            }
        }
        let expected = command.output.map(|index| &page.outputs[index]);
        let ran = if actual.starts_with("toolwharf serve") {
            let shown = |output: &str| {
                expected.is_none_or(|expected| compare::includes(&expected.lines, output))
            };
            session.serve(&actual, shown).await
        } else if let Some(answers) = answers {
            session.on_terminal(&actual, answers).await
        } else if is_endless {
            session.until_it_prints(&actual).await
        } else {
            session.run(&actual, &input).await
        };
        let Ran {
            code: ended,
            output,
        } = ran;
        if ended != Some(code) {
            wrong.push(format!(
                "{name}:{}: `{actual}` ended with {ended:?} instead of {code}:\n{output}",
                command.line
            ));
        }
        if let Some(index) = command.output {
            printed.entry(index).or_default().push(output);
        }
    }
    for (index, real) in printed {
        let output = &page.outputs[index];
        let is_shown = real.iter().any(|real| {
            compare::shows(&output.lines, real) || compare::includes_serving(&output.lines, real)
        });
        if !is_shown {
            wrong.push(format!(
                "{name}:{}: the page shows\n{}\nbut this was printed:\n{}",
                output.line,
                output.lines.join("\n"),
                real.join("\n--- or\n"),
            ));
        }
    }
    session.stop().await;
    let unused = plan.unused().into_iter();
    wrong.extend(
        unused
            .map(|command| format!("{name}: no command begins with `{command}`; remove its rule")),
    );
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

/// Runs a script that creates what the next command needs. The line `serve` starts the gateway.
async fn prepare(session: &mut Session, script: &str, wrong: &mut Vec<String>) {
    for part in script.split_inclusive('\n') {
        let part = part.trim();
        if part == "serve" {
            session.serve("toolwharf serve", |_| true).await;
            continue;
        }
        let ran = session.run(part, "").await;
        if ran.code != Some(0) {
            wrong.push(format!(
                "`{part}` ended with {:?}:\n{}",
                ran.code, ran.output
            ));
        }
    }
}

/// Replaces the id in a command of a page with a real one.
fn with_id(text: &str, id: &str) -> String {
    let is_id = |word: &&str| word.len() == 36 && word.matches('-').count() == 4;
    let of_page = text.split_whitespace().find(is_id);
    text.replace(of_page.expect("an id in the command"), id)
}

async fn run(name: &str) {
    check(name, Session::new("").await).await;
}

/// Runs a page whose gateway has an agent with a scripted model.
async fn run_with_model(name: &str, script: &serde_json::Value, settings: &str) {
    let llm = Llm::start(script).await;
    let agent = format!(
        "{settings}[agent]\nmodel = \"claude-sonnet-4-5\"\nbase_url = {:?}\n",
        llm.url()
    );
    check(name, Session::new(&agent).await).await;
}

#[tokio::test]
async fn u13_the_readme() {
    run("README.md").await;
}

#[tokio::test]
async fn u13_adk() {
    run("docs/adk.md").await;
}

#[tokio::test]
async fn u13_the_command_line() {
    run_with_model(
        "docs/cli.md",
        &rules::conversations(true),
        "[projects.games]\nservers = [\"dice\"]\n",
    )
    .await;
}

#[tokio::test]
async fn u13_clients() {
    run("docs/clients.md").await;
}

#[tokio::test]
async fn u13_connecting_clients() {
    run("docs/connect.md").await;
}

#[tokio::test]
async fn u13_databases() {
    run("docs/databases.md").await;
}

#[tokio::test]
async fn u13_hosting() {
    run("docs/hosting.md").await;
}

#[tokio::test]
async fn u13_installing_servers() {
    run("docs/install.md").await;
}

#[tokio::test]
async fn u13_projects() {
    run("docs/projects.md").await;
}

#[tokio::test]
async fn u13_quick_start() {
    run("docs/quick-start.md").await;
}

#[tokio::test]
async fn u13_the_rest_api() {
    run_with_model("docs/rest-api.md", &rules::conversations(false), "").await;
}

#[tokio::test]
async fn u13_servers() {
    run("docs/servers.md").await;
}

/// The commands of all other pages only start the gateway, or cannot run here.
#[tokio::test]
async fn u13_all_other_pages() {
    for name in page::all() {
        if !RUN.contains(&&*name) && !Page::read(&name).commands.is_empty() {
            run(&name).await;
        }
    }
}

#[test]
fn every_rule_belongs_to_a_page() {
    let pages = page::all();
    for rule in RULES {
        assert!(pages.iter().any(|page| page == rule.page), "{}", rule.page);
    }
}
