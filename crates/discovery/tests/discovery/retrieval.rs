//! Quality on the tools and queries of `data/`.

use discovery::{Query, Tier, search};

use crate::data::{catalogs, exposed, found, parts, queries, recall};

#[test]
fn right_tools_are_found_by_tasks() {
    let catalogs = catalogs();
    let names = exposed(&catalogs);
    let parts = parts(&catalogs, &names);
    let queries = queries();
    let search = |query: &str, k: usize| -> Vec<String> {
        let found = found(&catalogs, &parts, query, k);
        found.into_iter().map(str::to_owned).collect()
    };
    for (what, rows, k, least) in [
        ("pairs", &queries.pairs, 1, 0.48),
        ("pairs", &queries.pairs, 5, 0.62),
        ("pairs", &queries.pairs, 10, 0.72),
        ("tasks", &queries.tasks, 20, 0.50),
    ] {
        let recall = recall(rows, k, search);
        println!("{what} @{k} {recall:.3}");
        assert!(recall >= least, "{what} @{k}: {recall:.3}");
    }
}

#[test]
fn every_tool_is_found_first_by_its_names() {
    let catalogs = catalogs();
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
    let parts = parts(&catalogs, &names);
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
    for catalog in catalogs() {
        let bytes = catalog.segment.bytes();
        assert!(
            bytes <= 4096 * catalog.segment.len(),
            "{bytes} for {} tools",
            catalog.segment.len()
        );
    }
}
