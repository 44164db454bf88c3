//! The catalogue and the queries: `tools.json` and `queries.json` of a folder, described in
//! `crates/discovery/data/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use discovery::{Segment, passage};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::server::Definitions;

/// Numbers of tools in the catalogues that are taken from the whole one.
pub(super) const SIZES: [usize; 6] = [10, 20, 50, 100, 200, 500];

pub(super) struct Catalog {
    /// By name.
    pub(super) servers: Vec<Server>,
}

pub(super) struct Server {
    pub(super) name: String,
    /// The definitions, as a server lists them.
    pub(super) tools: Vec<Value>,
    pub(super) names: Vec<String>,
    pub(super) passages: Vec<String>,
    pub(super) segment: Segment,
}

/// A query, and the tools that people used for it.
pub(super) type Row = (String, BTreeSet<String>);

pub(super) struct Queries {
    /// Steps of tasks in words, each with one tool.
    pub(super) pairs: Vec<Row>,
    /// Whole questions, each with several tools.
    pub(super) tasks: Vec<Row>,
}

/// The tools of the catalogue that exist, by server.
pub(super) type Shown = Vec<Vec<bool>>;

fn read(folder: &Path, name: &str) -> anyhow::Result<Vec<Value>> {
    let plain = folder.join(name);
    let mut text = Vec::new();
    let path = if plain.exists() {
        text = std::fs::read(&plain)?;
        plain
    } else {
        let packed = folder.join(format!("{name}.gz"));
        let file = std::fs::File::open(&packed);
        let file = file.with_context(|| format!("cannot read {}", packed.display()))?;
        GzDecoder::new(file).read_to_end(&mut text)?;
        packed
    };
    let value: Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    Ok(match value {
        Value::Array(all) => all,
        one => vec![one],
    })
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

impl Catalog {
    /// # Errors
    ///
    /// The folder does not have the data.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut servers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for mut tool in read(folder, "tools.json")? {
            // Names of servers have no spaces.
            let server = text(&tool, "server").replace(' ', "-");
            if let Some(members) = tool.as_object_mut() {
                members.remove("server");
            }
            servers.entry(server).or_default().push(tool);
        }
        anyhow::ensure!(!servers.is_empty(), "{} has no tools", folder.display());
        let servers = servers.into_iter();
        let servers = servers.map(|(name, tools)| Server::new(name, tools));
        Ok(Self {
            servers: servers.collect(),
        })
    }

    /// The catalogue with this number of copies of each tool.
    pub(super) fn repeated(&self, times: usize) -> Self {
        let repeat = |server: &Server| {
            let tools = server.tools.iter();
            let tools = tools.flat_map(|tool| std::iter::repeat_n(tool.clone(), times));
            Server::new(server.name.clone(), tools.collect())
        };
        Self {
            servers: self.servers.iter().map(repeat).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.servers.iter().map(|server| server.tools.len()).sum()
    }

    pub(super) fn everything(&self) -> Shown {
        let all = self.servers.iter();
        all.map(|server| vec![true; server.tools.len()]).collect()
    }

    /// The places of all tools: the number of the server, and of the tool in it.
    pub(super) fn places(&self) -> Vec<(usize, usize)> {
        let servers = self.servers.iter().enumerate();
        let places = servers.flat_map(|(at, server)| (0..server.tools.len()).map(move |n| (at, n)));
        places.collect()
    }

    /// A catalogue of `size` tools, of which one has the name `wanted`. The others are chosen by `draw`.
    pub(super) fn drawn(&self, wanted: &str, size: usize, draw: u64) -> Shown {
        let is_wanted = |(server, tool): &(usize, usize)| self.name(*server, *tool) == wanted;
        let mut shown: Shown = self.everything();
        for tools in &mut shown {
            tools.fill(false);
        }
        let mut others = self.places();
        let wanted = others.iter().position(is_wanted);
        let wanted = wanted.map(|at| others.remove(at));
        others.sort_by_key(|(server, tool)| mixed(draw, ((*server as u64) << 32) | *tool as u64));
        for (server, tool) in wanted.into_iter().chain(others).take(size) {
            shown[server][tool] = true;
        }
        shown
    }

    /// The servers of `first`, and others in a fixed random order, until they have `size` tools. Only some
    /// tools of the last server count if all of them would be too many.
    pub(super) fn taken(&self, first: &BTreeSet<String>, size: usize) -> Vec<(&Server, usize)> {
        let mut order: Vec<_> = self.servers.iter().enumerate().collect();
        order.sort_by_key(|(at, server)| (!first.contains(&server.name), mixed(0, *at as u64)));
        let mut left = size;
        let mut taken = Vec::new();
        for (_, server) in order {
            let tools = server.tools.len().min(left);
            if tools == 0 {
                break;
            }
            left -= tools;
            taken.push((server, tools));
        }
        taken
    }

    pub(super) fn name(&self, server: usize, tool: usize) -> &str {
        &self.servers[server].names[tool]
    }

    /// The names of the tools that exist, by server.
    pub(super) fn exposed(&self, shown: &[Vec<bool>]) -> Vec<Vec<Option<&str>>> {
        let servers = self.servers.iter().zip(shown);
        let exposed = servers.map(|(server, shown)| {
            let names = server.names.iter().zip(shown);
            let names = names.map(|(name, shown)| shown.then_some(name.as_str()));
            names.collect()
        });
        exposed.collect()
    }
}

impl Server {
    fn new(name: String, tools: Vec<Value>) -> Self {
        let schemas: Vec<Vec<u8>> = tools
            .iter()
            .map(|tool| tool["inputSchema"].to_string().into_bytes())
            .collect();
        let analysed: Vec<discovery::Tool<'_>> = tools
            .iter()
            .zip(&schemas)
            .map(|(tool, schema)| discovery::Tool {
                name: text(tool, "name"),
                description: tool["description"].as_str(),
                input_schema: Some(schema),
                ..discovery::Tool::default()
            })
            .collect();
        let own = discovery::Server {
            name: &name,
            ..discovery::Server::default()
        };
        let segment = Segment::new(&own, &analysed);
        let passages = analysed.iter().map(|tool| passage(&own, tool)).collect();
        let names = analysed.iter().map(|tool| tool.name.to_owned()).collect();
        Self {
            name,
            tools,
            names,
            passages,
            segment,
        }
    }

    /// Writes the file of a server with the first `count` tools, and returns its path.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn write(
        &self,
        count: usize,
        results: BTreeMap<String, String>,
        folder: &Path,
    ) -> anyhow::Result<(String, PathBuf)> {
        let file = folder.join(format!("{}.json", self.name));
        let tools = self.tools[..count].to_vec();
        let definitions = Definitions { tools, results };
        std::fs::write(&file, serde_json::to_vec(&definitions)?)?;
        Ok((self.name.clone(), file))
    }
}

impl Queries {
    /// # Errors
    ///
    /// The folder does not have the data.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let all = read(folder, "queries.json")?;
        let all = all.first().context("queries.json is empty")?;
        let rows = |key: &str| -> Vec<Row> {
            let rows = all[key].as_array().map_or(&[][..], Vec::as_slice);
            let tools = |row: &Value| match &row["tools"] {
                Value::Array(tools) => tools.clone(),
                _ => vec![row["tool"].clone()],
            };
            let names = |row: &Value| {
                let tools = tools(row).into_iter();
                tools
                    .filter_map(|tool| tool.as_str().map(str::to_owned))
                    .collect()
            };
            let rows = rows.iter();
            rows.map(|row| (text(row, "query").to_owned(), names(row)))
                .collect()
        };
        Ok(Self {
            pairs: rows("pairs"),
            tasks: rows("tasks"),
        })
    }

    pub(super) fn texts(&self) -> Vec<&str> {
        let all = self.pairs.iter().chain(&self.tasks);
        all.map(|(query, _)| query.as_str()).collect()
    }
}

/// A number that depends on both numbers, and looks random (SplitMix64).
fn mixed(seed: u64, number: u64) -> u64 {
    let mut mixed = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(number);
    for _ in 0..2 {
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

#[cfg(test)]
pub(super) fn ours() -> Catalog {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../discovery/data");
    Catalog::read(&folder).expect("the data of the crate discovery")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_catalogue_has_the_wanted_tool_and_the_size() {
        let catalog = ours();
        for (size, draw) in [(10, 0), (10, 1), (500, 0)] {
            let shown = catalog.drawn("whois_domain", size, draw);
            let names = catalog.exposed(&shown);
            let names: Vec<_> = names.iter().flatten().flatten().collect();
            assert_eq!(names.len(), size);
            assert!(names.contains(&&"whois_domain"));
        }
        let first = catalog.drawn("whois_domain", 10, 0);
        assert_ne!(first, catalog.drawn("whois_domain", 10, 1));
        assert_eq!(first, catalog.drawn("whois_domain", 10, 0));
    }

    #[test]
    fn taken_servers_have_the_size_and_the_first_ones() {
        let catalog = ours();
        let first = BTreeSet::from(["whois".to_owned()]);
        for size in SIZES {
            let taken = catalog.taken(&first, size);
            assert_eq!(taken.iter().map(|(_, tools)| tools).sum::<usize>(), size);
            assert_eq!(taken[0].0.name, "whois");
        }
    }
}
