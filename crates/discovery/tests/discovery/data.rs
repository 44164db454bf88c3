//! The tools and queries of `data/`, and figures for a ranking.

use std::{collections::BTreeMap, io::Read as _, path::Path};

use discovery::{Hit, Part, Segment, Server, Tool, passage};
use flate2::read::GzDecoder;
use serde_json::Value;

/// Reads a file of `data/`.
fn read(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let packed = std::fs::read(folder.join(format!("{name}.gz"))).expect("a readable file");
    let mut text = Vec::new();
    GzDecoder::new(&packed[..])
        .read_to_end(&mut text)
        .expect("gzip");
    serde_json::from_slice(&text).expect("JSON")
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

/// The tools of one server.
pub(crate) struct Catalog {
    pub(crate) names: Vec<String>,
    pub(crate) passages: Vec<String>,
    pub(crate) segment: Segment,
}

/// All tools, by server.
pub(crate) fn catalogs() -> Vec<Catalog> {
    let tools = read("tools.json");
    let mut servers: BTreeMap<&str, Vec<(&Value, Vec<u8>)>> = BTreeMap::new();
    for tool in tools.as_array().expect("a list") {
        let schema = tool["inputSchema"].to_string().into_bytes();
        servers
            .entry(text(tool, "server"))
            .or_default()
            .push((tool, schema));
    }
    let catalog = |(name, tools): (&str, Vec<(&Value, Vec<u8>)>)| {
        let analysed: Vec<Tool<'_>> = tools
            .iter()
            .map(|(tool, schema)| Tool {
                name: text(tool, "name"),
                description: tool["description"].as_str(),
                input_schema: Some(schema),
                ..Tool::default()
            })
            .collect();
        let server = Server {
            name,
            ..Server::default()
        };
        Catalog {
            names: analysed.iter().map(|tool| tool.name.to_owned()).collect(),
            passages: analysed.iter().map(|tool| passage(&server, tool)).collect(),
            segment: Segment::new(&server, &analysed),
        }
    };
    servers.into_iter().map(catalog).collect()
}

/// Exposed names that are the native ones.
pub(crate) fn exposed(catalogs: &[Catalog]) -> Vec<Vec<Option<&str>>> {
    let mut all = Vec::new();
    for catalog in catalogs {
        all.push(
            catalog
                .names
                .iter()
                .map(|name| Some(name.as_str()))
                .collect(),
        );
    }
    all
}

pub(crate) fn parts<'p>(
    catalogs: &'p [Catalog],
    exposed: &'p [Vec<Option<&'p str>>],
) -> Vec<Part<'p>> {
    catalogs
        .iter()
        .zip(exposed)
        .map(|(catalog, names)| Part::new(&catalog.segment, names))
        .collect()
}

/// The native names of results.
pub(crate) fn names(catalogs: &[Catalog], hits: &[Hit]) -> Vec<String> {
    hits.iter()
        .map(|hit| catalogs[hit.part].names[hit.tool].clone())
        .collect()
}

/// Queries, each with the tools that people used for it.
pub(crate) struct Queries {
    pub(crate) pairs: Vec<(String, Vec<String>)>,
    pub(crate) tasks: Vec<(String, Vec<String>)>,
}

pub(crate) fn queries() -> Queries {
    let all = read("queries.json");
    let rows = |key: &str, tools: fn(&Value) -> Vec<String>| {
        let rows = all[key].as_array().expect("a list");
        rows.iter()
            .map(|row| (text(row, "query").to_owned(), tools(row)))
            .collect()
    };
    Queries {
        pairs: rows("pairs", |row| vec![text(row, "tool").to_owned()]),
        tasks: rows("tasks", |row| {
            let tools = row["tools"].as_array().expect("a list");
            tools
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        }),
    }
}

/// The share of the wanted tools among the first `k` results, averaged over queries.
pub(crate) fn recall(
    rows: &[(String, Vec<String>)],
    k: usize,
    mut search: impl FnMut(&str, usize) -> Vec<String>,
) -> f64 {
    let share = |(query, wanted): &(String, Vec<String>)| {
        let found = search(query, k);
        let hits = wanted.iter().filter(|tool| found.contains(tool)).count();
        hits as f64 / wanted.len() as f64
    };
    rows.iter().map(share).sum::<f64>() / rows.len() as f64
}
