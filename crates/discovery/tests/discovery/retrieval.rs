//! Quality on the tools and queries of `data/`.

use discovery::{Query, Tier, search};

use crate::data;

#[test]
fn right_tools_are_found_by_tasks() {
    let catalogs = data::catalogs();
    let exposed = data::exposed(&catalogs);
    let parts = data::parts(&catalogs, &exposed);
    let queries = data::queries();
    let found = |query: &str, k: usize| {
        let hits = search(&parts, &Query::new(query), k);
        data::names(&catalogs, &hits)
    };
    for (what, rows, k, least) in [
        ("pairs", &queries.pairs, 1, 0.48),
        ("pairs", &queries.pairs, 5, 0.64),
        ("pairs", &queries.pairs, 10, 0.72),
        ("tasks", &queries.tasks, 20, 0.50),
    ] {
        let recall = data::recall(rows, k, found);
        assert!(recall >= least, "{what} @{k}: {recall:.3}");
    }
}

#[test]
fn every_tool_is_found_first_by_its_names() {
    let catalogs = data::catalogs();
    let exposed: Vec<Vec<String>> = catalogs
        .iter()
        .enumerate()
        .map(|(number, catalog)| {
            catalog
                .names
                .iter()
                .map(|name| format!("s{number}__{name}"))
                .collect()
        })
        .collect();
    let names: Vec<Vec<Option<&str>>> = exposed
        .iter()
        .map(|names| names.iter().map(|name| Some(name.as_str())).collect())
        .collect();
    let parts = data::parts(&catalogs, &names);
    for (part, catalog) in catalogs.iter().enumerate() {
        for (tool, name) in catalog.names.iter().enumerate() {
            let first = search(&parts, &Query::new(&exposed[part][tool]), 1)[0];
            assert_eq!(
                (first.part, first.tool, first.tier),
                (part, tool, Tier::Exposed)
            );
            let first = search(&parts, &Query::new(name), 1)[0];
            assert_eq!(&catalogs[first.part].names[first.tool], name);
            assert_eq!(first.tier, Tier::Native);
        }
    }
}

#[test]
fn a_tool_takes_at_most_4_kilobytes() {
    for catalog in data::catalogs() {
        let bytes = catalog.segment.bytes();
        assert!(
            bytes <= 4096 * catalog.segment.len(),
            "{bytes} for {} tools",
            catalog.segment.len()
        );
    }
}

#[test]
fn passages_are_short() {
    for catalog in data::catalogs() {
        for (name, passage) in catalog.names.iter().zip(&catalog.passages) {
            let length = passage.len();
            assert!((name.len()..12 << 10).contains(&length), "{name}: {length}");
        }
    }
}
