//! The tokens that a model reads for worked tasks, with plain calls, with search, and with code.
//!
//! Each task of `tasks.json` has a script for each way: the turns of a model that makes no mistakes. The calls are made
//! through a gateway, with results of a usual size, so everything that the model reads is what the gateway answers. The
//! script fails if a search does not find a tool of the task, or if the code does not print the expected text.
//!
//! A model reads its whole conversation again at each turn: the definitions, the task, its own calls and their results.
//! *Context* is the length of the conversation at the end, and *read* the sum over the turns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::MODES;
use super::data::Catalog;
use super::lists::{Gateway, listed};
use super::start::{call, text_of};
use super::tables::Table;
use crate::run::client::Client;

/// Tools of the catalogue of the tasks.
const TOOLS: usize = 100;
const TASKS: &str = include_str!("tasks.json");

#[derive(Deserialize)]
struct Task {
    name: String,
    question: String,
    answer: String,
    /// Queries for `search_tools`, all in the first turn.
    searches: Vec<String>,
    /// The calls of each turn.
    turns: Vec<Vec<Call>>,
    /// The program for `run_code` that does the same.
    code: String,
    /// Text in the output of the program.
    prints: String,
    /// The results of the tools, by server and tool.
    results: BTreeMap<String, BTreeMap<String, Text>>,
}

#[derive(Deserialize)]
struct Call {
    server: String,
    tool: String,
    arguments: Value,
}

/// The result of a tool.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    /// A JSON array with copies of an object. `{n}` in its strings is the number of the copy, and a string that begins with
    /// `#` is a number.
    Rows {
        rows: usize,
        row: BTreeMap<String, String>,
    },
}

impl Text {
    fn render(&self) -> String {
        let (rows, row) = match self {
            Self::Plain(text) => return text.clone(),
            Self::Rows { rows, row } => (*rows, row),
        };
        let value = |text: &String, n: usize| {
            let text = text.replace("{n}", &n.to_string());
            let number = text
                .strip_prefix('#')
                .and_then(|text| text.parse::<u64>().ok());
            number.map_or_else(|| json!(text), |number| json!(number))
        };
        let object = |n: usize| -> Value {
            let members = row.iter().map(|(key, text)| (key.clone(), value(text, n)));
            Value::Object(members.collect())
        };
        Value::Array((1..=rows).map(object).collect()).to_string()
    }
}

fn tasks() -> anyhow::Result<Vec<Task>> {
    serde_json::from_str(TASKS).context("tasks.json")
}

/// A conversation of a scripted model.
struct Conversation {
    client: Client,
    context: usize,
    read: usize,
    turns: usize,
}

impl Conversation {
    /// Begins with the definitions of the tools, and the task.
    async fn begin(mut client: Client, task: &Task) -> anyhow::Result<Self> {
        let context = listed(&mut client).await? + discovery::tokens(task.question.as_bytes());
        Ok(Self {
            client,
            context,
            read: 0,
            turns: 0,
        })
    }

    /// One turn: the model makes calls, and gets the results.
    async fn turn(&mut self, calls: &[(&str, Value)]) -> anyhow::Result<Vec<String>> {
        self.read += self.context;
        self.turns += 1;
        let mut results = Vec::new();
        for (tool, arguments) in calls {
            let written = json!({ "name": tool, "arguments": arguments }).to_string();
            let answer = self.client.call(call(tool, arguments)).await?;
            let text = text_of(&answer).with_context(|| format!("`{tool}`"))?;
            self.context +=
                discovery::tokens(written.as_bytes()) + discovery::tokens(text.as_bytes());
            results.push(text);
        }
        Ok(results)
    }

    /// The last turn: the model answers.
    fn end(mut self, answer: &str) -> [usize; 3] {
        self.read += self.context;
        self.turns += 1;
        self.context += discovery::tokens(answer.as_bytes());
        [self.turns, self.context, self.read]
    }
}

/// The exposed names of tools, by server and native name.
struct Names(Vec<String>);

impl Names {
    async fn read(gateway: &Gateway) -> anyhow::Result<Self> {
        Ok(Self(gateway.client("all").await?.tools().await?))
    }

    /// A tool keeps its name, unless another server has a tool of the same name.
    fn of(&self, call: &Call) -> anyhow::Result<&str> {
        let prefixed = format!("{}__{}", call.server, call.tool);
        let name = self.0.iter().find(|name| **name == prefixed);
        let name = name.or_else(|| self.0.iter().find(|name| **name == call.tool));
        let name = name.with_context(|| format!("no tool `{}` of `{}`", call.tool, call.server));
        name.map(String::as_str)
    }
}

async fn work(
    mode: &str,
    client: Client,
    task: &Task,
    names: &Names,
) -> anyhow::Result<[usize; 3]> {
    let mut conversation = Conversation::begin(client, task).await?;
    if mode != "all" {
        let searches = task.searches.iter();
        let searches = searches.map(|query| ("search_tools", json!({ "query": query })));
        let found = conversation.turn(&searches.collect::<Vec<_>>()).await?;
        let found = found.join("\n");
        for call in task.turns.iter().flatten() {
            let name = names.of(call)?;
            let is_found = found
                .lines()
                .any(|line| line.starts_with(&format!("{name}(")));
            anyhow::ensure!(is_found, "the searches did not find `{name}`:\n{found}");
        }
    }
    if mode == "code" {
        let code = [("run_code", json!({ "code": task.code }))];
        let output = conversation.turn(&code).await?.concat();
        anyhow::ensure!(output.contains(&task.prints), "the code printed {output}");
        return Ok(conversation.end(&task.answer));
    }
    for turn in &task.turns {
        let mut calls = Vec::new();
        for call in turn {
            let name = names.of(call)?;
            calls.push(match mode {
                "all" => (name, call.arguments.clone()),
                _ => (
                    "call_tool",
                    json!({ "name": name, "arguments": call.arguments }),
                ),
            });
        }
        conversation.turn(&calls).await?;
    }
    Ok(conversation.end(&task.answer))
}

/// Starts a gateway with the servers of a task, and others.
async fn gateway(
    program: &Path,
    catalog: &Catalog,
    task: &Task,
    settings: &str,
) -> anyhow::Result<Gateway> {
    let first: BTreeSet<String> = task.results.keys().cloned().collect();
    let render = |tools: &BTreeMap<String, Text>| {
        let texts = tools.iter();
        texts
            .map(|(tool, text)| (tool.clone(), text.render()))
            .collect()
    };
    let results = task.results.iter();
    let results = results.map(|(server, tools)| (server.clone(), render(tools)));
    let servers = catalog.taken(&first, TOOLS);
    Gateway::start(program, &servers, results.collect(), settings).await
}

/// The tokens of all tasks in each mode.
pub(super) async fn measure(program: &Path, catalog: &Catalog) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "tasks",
        &format!("Tokens of worked tasks with a catalogue of {TOOLS} tools: turns, context, read"),
        &["task", "calls", "plain calls", "search", "search and code"],
    );
    let mut sums = [0; 3];
    for task in tasks()? {
        eprintln!("{} …", task.name);
        let gateway = gateway(program, catalog, &task, "").await?;
        let measured = async {
            let names = Names::read(&gateway).await?;
            let calls = task.turns.iter().map(Vec::len).sum::<usize>();
            let mut cells = vec![task.name.clone(), calls.to_string()];
            for (mode, sum) in MODES.iter().zip(&mut sums) {
                let client = gateway.client(mode).await?;
                let worked = work(mode, client, &task, &names).await;
                let [turns, context, read] = worked.with_context(|| format!("mode {mode}"))?;
                *sum += read;
                cells.push(format!("{turns}, {context}, {read}"));
            }
            anyhow::Ok(cells)
        };
        let measured = measured.await.with_context(|| task.name.clone());
        table.add(gateway.finish(measured).await?);
    }
    let mut cells = vec!["read for all".to_owned(), String::new()];
    cells.extend(sums.map(|sum| sum.to_string()));
    table.add(cells);
    Ok(table)
}

/// The same with a real model, which the gateway's agent asks. `agent`: the settings `[agent]`. The provider counts the tokens.
pub(super) async fn measure_with_model(
    program: &Path,
    catalog: &Catalog,
    agent: &str,
) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "tasks-model",
        &format!("The same with a model: end, turns, tokens read, tokens written ({TOOLS} tools)"),
        &["task", "plain calls", "search", "search and code"],
    );
    for task in tasks()? {
        eprintln!("{} …", task.name);
        let gateway = gateway(program, catalog, &task, agent).await?;
        let measured = async {
            let mut api = gateway.part.api().await?;
            let mut cells = vec![task.name.clone()];
            for mode in MODES {
                let message = json!({ "message": task.question });
                api.ask("POST", &format!("/chat?project={mode}"), &message)
                    .await?;
                let runs = format!("/runs?project={mode}");
                let runs = api.ask("GET", &runs, &Value::Null).await?;
                // The runs of `run_code` are in the list, too.
                let mut runs = runs["runs"].as_array().into_iter().flatten();
                let run = runs.find(|run| run["agent"] != "run_code");
                let run = run.context("no run was recorded")?;
                let status = run["status"].as_str().unwrap_or_default();
                let figures = ["turns", "input_tokens", "output_tokens"];
                let figures = figures.map(|figure| run[figure].to_string()).join(", ");
                cells.push(format!("{status}, {figures}"));
            }
            anyhow::Ok(cells)
        };
        let measured = measured.await.with_context(|| task.name.clone());
        table.add(gateway.finish(measured).await?);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::data;

    #[test]
    fn the_tools_of_the_tasks_exist_and_have_results() {
        let catalog = data::ours();
        let tasks = tasks().unwrap();
        assert_eq!(tasks.len(), 5);
        for task in &tasks {
            for call in task.turns.iter().flatten() {
                let server = catalog.servers.iter().find(|one| one.name == call.server);
                let server = server.unwrap_or_else(|| panic!("{}", call.server));
                assert!(server.names.contains(&call.tool), "{}", call.tool);
                assert!(task.results[&call.server].contains_key(&call.tool));
                assert!(call.arguments.is_object());
            }
        }
    }

    #[test]
    fn rows_are_numbered() {
        let row = [("id", "#{n}0"), ("name", "item {n}")];
        let row = row.map(|(key, text)| (key.to_owned(), text.to_owned()));
        let text = Text::Rows {
            rows: 2,
            row: BTreeMap::from(row),
        };
        let want = r#"[{"id":10,"name":"item 1"},{"id":20,"name":"item 2"}]"#;
        assert_eq!(text.render(), want);
    }
}
