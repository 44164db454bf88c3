//! The index of one server's tools in a view.
//!
//! Invariant: only tools that the view shows are indexed, so a search reveals nothing about hidden and kept-back ones.

use catalog::is_for_models;
use discovery::{Segment, Server, Tool};
use mcp::json::Object;

use crate::views::{entry::Entry, source::Source};

/// The index of one server's tools.
pub(super) struct Index {
    pub(super) segment: Segment,
    /// True for each tool that models may call.
    pub(super) are_for_models: Box<[bool]>,
}

/// Indexes the tools that a view shows of a server.
pub(super) fn index(source: &Source, entries: &[Entry]) -> Index {
    let are_for_models = entries.iter().map(|entry| is_for_models(&entry.item.raw));
    Index {
        segment: described(source, entries, Segment::new),
        are_for_models: are_for_models.collect(),
    }
}

/// The texts by which a sentence model knows the tools.
pub(super) fn passages(source: &Source, entries: &[Entry]) -> Vec<String> {
    described(source, entries, |server, tools| {
        let passages = tools.iter().map(|tool| discovery::passage(server, tool));
        passages.collect()
    })
}

/// Describes a server and its tools, as a search knows them.
fn described<T>(
    source: &Source,
    entries: &[Entry],
    take: impl FnOnce(&Server<'_>, &[Tool<'_>]) -> T,
) -> T {
    let objects: Vec<_> = entries
        .iter()
        .map(|entry| Object::of(&entry.item.raw))
        .collect();
    let texts: Vec<_> = objects
        .iter()
        .zip(entries)
        .map(|(object, entry)| {
            let string = |key: &str| object.as_ref().and_then(|object| object.string(key));
            let own = entry.description.as_deref().map(Into::into);
            let raw = |key: &str| object.as_ref().and_then(|object| object.raw(key));
            let description = own.or_else(|| string("description"));
            (
                string("title"),
                description,
                raw("inputSchema"),
                raw("annotations"),
            )
        })
        .collect();
    let tools: Vec<Tool<'_>> = texts
        .iter()
        .zip(entries)
        .map(|((title, description, schema, annotations), entry)| Tool {
            name: entry.name(),
            title: title.as_deref(),
            description: description.as_deref(),
            input_schema: *schema,
            annotations: *annotations,
        })
        .collect();
    let info = source.catalog.info.as_ref();
    let described = info.and_then(|info| info.implementation.as_ref());
    let description = described.and_then(|own| Object::of(own)?.string("description"));
    let server = Server {
        name: source.server.name().as_str(),
        description: description.as_deref(),
        instructions: info.and_then(|info| info.instructions.as_deref()),
    };
    take(&server, &tools)
}
