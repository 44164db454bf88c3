//! Measures what discovery and code mode save, and what they cost (`docs/context.md`).
//!
//! The catalogue and the queries are data: real definitions of tools, and tasks with the tools that people used
//! ([`data`]). Quality and cost of the search are measured in this process ([`recall`], [`cost`]). Everything else goes
//! through a gateway: it hosts the servers of the catalogue, which this program plays ([`server`]).
//!
//! The tables are Markdown. `--into FILE` writes them between the marks of that file ([`tables`]).
//!
//! Worked tasks have a script, so that two runs read the same number of tokens. `--model` has a real model do them, too.

pub(crate) mod server;

mod bm25;
mod cost;
mod data;
mod lists;
mod recall;
mod start;
mod tasks;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::run::{self, Driver, part};
use crate::tables::{self, Table};
use data::Catalog;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder with `tools.json` and `queries.json`, plain or with the ending `.gz`
    #[arg(default_value = "crates/discovery/data")]
    data: PathBuf,
    /// Also measures searches with this sentence model
    #[arg(long, value_name = "FILE")]
    search_model: Option<PathBuf>,
    /// Measures only this part; may be repeated
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    only: Vec<String>,
    /// Also has this model do the worked tasks; its key is in ANTHROPIC_API_KEY or OPENAI_API_KEY
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The model's API
    #[arg(long, value_name = "API", value_parser = ["anthropic", "openai"], default_value = "anthropic")]
    model_api: String,
    /// The URL of that API [default: the provider's]
    #[arg(long, value_name = "URL")]
    model_url: Option<String>,
    /// Fewer calls and draws: seconds instead of minutes, with less precise figures
    #[arg(long)]
    quick: bool,
    /// Also writes the tables into this Markdown file, between `<!-- bench context: NAME -->` and `<!-- end -->`
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// The gateway's binary [default: `toolwharf` next to this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
}

/// The values of `--only`.
const PARTS: [&str; 6] = ["lists", "recall", "cost", "tasks", "start", "call"];

impl Options {
    /// The settings of the agent that asks the model.
    fn agent(&self) -> Option<String> {
        let model = self.model.as_ref()?;
        let url = self.model_url.as_ref();
        let url = url.map_or_else(String::new, |url| format!("base_url = {url:?}\n"));
        let api = &self.model_api;
        Some(format!(
            "[agent]\napi = \"{api}\"\nmodel = {model:?}\n{url}"
        ))
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

/// The settings of the gateways: one project for each list of tools.
const SETTINGS: &str = "[audit]\nenabled = false\n\
    [projects.all]\ntools = \"all\"\n\
    [projects.search]\ntools = \"search\"\n\
    [projects.code]\ntools = \"search\"\ncode = true\n";
/// The projects of [`SETTINGS`].
const MODES: [&str; 3] = ["all", "search", "code"];

/// Prints the tables. The exit code is 1 if a bound was exceeded.
///
/// # Errors
///
/// A process did not start, a response was wrong, or a scripted task did not reach its result.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    run::raise_descriptor_limit()?;
    let program = part::program(options.toolwharf.clone(), "toolwharf")?;
    let catalog = Catalog::read(&options.data)?;
    let queries = data::Queries::read(&options.data)?;
    let model = options.search_model.as_deref();
    let model = model.map(discovery_model::Model::load).transpose()?;
    let vectors = model.as_ref().map(|model| cost::vectors(model, &catalog));
    let mut is_over = false;
    let show = |table: Table| {
        println!("{}", table.markdown());
        match &options.into {
            None => Ok(()),
            Some(file) => table.write_into(file),
        }
    };
    if options.wants("lists") {
        show(lists::measure(&program, &catalog).await.context("lists")?)?;
    }
    let known = model.as_ref().zip(vectors.as_ref());
    if options.wants("recall") {
        show(recall::whole(&catalog, &queries, known))?;
        show(recall::parts(&catalog, &queries, known, options.quick))?;
    }
    if options.wants("cost") {
        show(cost::measure(&catalog, &queries, known)?)?;
    }
    if options.wants("tasks") {
        show(tasks::measure(&program, &catalog).await.context("tasks")?)?;
    }
    if let Some(agent) = options.agent() {
        let measured = tasks::measure_with_model(&program, &catalog, &agent).await;
        show(measured.context("tasks with a model")?)?;
    }
    if options.wants("start") {
        show(
            start::measure(&program, options.quick)
                .await
                .context("start")?,
        )?;
    }
    if options.wants("call") {
        let mut driver = Driver::of(program.clone(), options.quick);
        let rows = run::call_tool::run(&mut driver).await.context("call")?;
        is_over |= rows.iter().any(|row| row.kept() == Some(false));
        show(tables::compared(&rows))?;
    }
    Ok(ExitCode::from(u8::from(is_over)))
}

/// The configuration of the servers of a catalogue.
fn entries(files: &[(String, PathBuf)]) -> anyhow::Result<Value> {
    let mut entries = serde_json::Map::new();
    for (server, file) in files {
        let entry = json!({ "command": part::own_path()?, "args": ["definitions", file] });
        entries.insert(server.clone(), entry);
    }
    Ok(Value::Object(entries))
}
