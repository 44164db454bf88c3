//! Prints the quality of the search on the tools and queries of `data/`, and its cost.
//!
//! Run it with `cargo run --release -p discovery --example measure`. `DISCOVERY_DATA` names another folder with data.

#[path = "../tests/discovery/data.rs"]
mod data;

use discovery::{Part, Query, Segment, Server, Tool, search};
use rustix::time::{ClockId, clock_gettime};

/// Microseconds of processor time of this thread.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Prints the median and the 99th percentile of the cost of one search.
fn cost(what: &str, parts: &[Part<'_>], queries: &[&str]) {
    let mut costs = Vec::new();
    for _ in 0..10 {
        for query in queries {
            let before = now();
            search(parts, &Query::new(query), 20);
            costs.push(now() - before);
        }
    }
    costs.sort_by(f64::total_cmp);
    let at = |share: f64| costs[(costs.len() as f64 * share) as usize];
    println!(
        "{what}: median {:.0} µs, 99th percentile {:.0} µs",
        at(0.5),
        at(0.99)
    );
}

fn main() {
    let catalogs = data::catalogs();
    let exposed = data::exposed(&catalogs);
    let parts = data::parts(&catalogs, &exposed);
    let queries = data::queries();
    let found =
        |query: &str, k: usize| data::names(&catalogs, &search(&parts, &Query::new(query), k));
    for k in [1, 3, 5, 10] {
        println!("pairs @{k} {:.3}", data::recall(&queries.pairs, k, found));
    }
    for k in [5, 10, 20] {
        println!("tasks @{k} {:.3}", data::recall(&queries.tasks, k, found));
    }
    let tools: usize = catalogs.iter().map(|catalog| catalog.segment.len()).sum();
    let bytes: usize = catalogs.iter().map(|catalog| catalog.segment.bytes()).sum();
    let passages: usize = catalogs
        .iter()
        .flat_map(|catalog| &catalog.passages)
        .map(String::len)
        .sum();
    println!(
        "{} bytes per tool, passages of {} bytes",
        bytes / tools,
        passages / tools
    );

    let all: Vec<&str> = queries
        .pairs
        .iter()
        .chain(&queries.tasks)
        .map(|(query, _)| query.as_str())
        .collect();
    cost(
        &format!("{tools} tools of {} servers", parts.len()),
        &parts,
        &all,
    );
    // More tools per server, and more servers.
    let large = data::repeated(10);
    let large_exposed = data::exposed(&large);
    let large_parts = data::parts(&large, &large_exposed);
    cost(
        &format!("{} tools of {} servers", 10 * tools, large.len()),
        &large_parts,
        &all,
    );
    let many = parts.repeat(10);
    cost(
        &format!("{} tools of {} servers", 10 * tools, many.len()),
        &many,
        &all,
    );

    // The same words everywhere, so that all of them have to be visited.
    let description = all.join(" ");
    let names: Vec<String> = (0..5000).map(|number| format!("tool_{number}")).collect();
    let tools: Vec<Tool<'_>> = names
        .iter()
        .map(|name| Tool {
            name,
            description: Some(&description),
            ..Tool::default()
        })
        .collect();
    let segment = Segment::new(&Server::default(), &tools);
    let exposed: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
    let part = [Part::new(&segment, &exposed)];
    cost("5000 equal tools", &part, &all);
    let long: String = description.repeat(100);
    cost("5000 equal tools, a long query", &part, &[&long]);
    cost(
        "5000 equal tools, a wrong name",
        &part,
        &["tool_47111", "tol_12", "toolnumber_4"],
    );
}
