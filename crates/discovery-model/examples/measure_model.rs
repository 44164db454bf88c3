//! Prints the quality of the search with a model file, and what the model costs.
//!
//! Run it with `cargo run --release -p discovery-model --example measure_model FILE`. `DISCOVERY_DATA` names another folder with
//! data.

#[path = "../../discovery/tests/discovery/data.rs"]
mod data;

use std::path::Path;

use discovery::{Part, Query, Vector, search};
use discovery_model::Model;
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of processor time of this thread.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Prints the median and the 99th percentile of what searches cost with the model, and the same of the cheapest round of
/// each query, which depends less on what else the machine does.
fn cost(what: &str, model: &Model, parts: &[Part<'_>], queries: &[&str], rounds: usize) {
    let (mut costs, mut cheapest) = (Vec::new(), Vec::new());
    for query in queries {
        let of_query: Vec<f64> = (0..rounds)
            .map(|_| {
                let before = now();
                let vectors = model.embed_task(query);
                search(parts, &Query::new(query).with_vectors(&vectors), 20);
                now() - before
            })
            .collect();
        cheapest.push(of_query.iter().copied().fold(f64::MAX, f64::min));
        costs.extend(of_query);
    }
    let percentiles = |mut costs: Vec<f64>| {
        costs.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|share| costs[(costs.len() as f64 * share) as usize])
    };
    let ([median, last], [cheap, cheap_last]) = (percentiles(costs), percentiles(cheapest));
    println!(
        "{what}: median {median:.1} ms, 99th percentile {last:.1} ms (cheapest rounds {cheap:.1} and {cheap_last:.1})"
    );
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: measure_model FILE");
    let before = now();
    let model = Model::load(Path::new(&path)).expect("a model file");
    println!("load: {:.0} ms", now() - before);
    let catalogs = data::catalogs();
    let exposed = data::exposed(&catalogs);
    let before = now();
    let vectors: Vec<Vec<Vector>> = catalogs
        .iter()
        .map(|catalog| {
            catalog
                .passages
                .iter()
                .map(|passage| model.embed(passage))
                .collect()
        })
        .collect();
    let tools: usize = vectors.iter().map(Vec::len).sum();
    println!(
        "{tools} tools: {:.1} ms per tool",
        (now() - before) / tools as f64
    );
    let parts: Vec<Part<'_>> = data::parts(&catalogs, &exposed)
        .into_iter()
        .zip(&vectors)
        .map(|(part, vectors)| part.with_vectors(vectors))
        .collect();
    let queries = data::queries();
    let found = |query: &str, k: usize| {
        let vectors = model.embed_task(query);
        let hits = search(&parts, &Query::new(query).with_vectors(&vectors), k);
        data::names(&catalogs, &hits)
    };
    for k in [1, 3, 5, 10] {
        println!("pairs @{k} {:.3}", data::recall(&queries.pairs, k, found));
    }
    for k in [5, 10, 20] {
        println!("tasks @{k} {:.3}", data::recall(&queries.tasks, k, found));
    }

    let all: Vec<&str> = queries
        .pairs
        .iter()
        .chain(&queries.tasks)
        .map(|(query, _)| query.as_str())
        .collect();
    cost(&format!("{tools} tools"), &model, &parts, &all, 10);
    let large = data::repeated(10);
    let large_exposed = data::exposed(&large);
    let large_vectors: Vec<Vec<Vector>> = vectors
        .iter()
        .map(|vectors| {
            vectors
                .iter()
                .flat_map(|vector| std::iter::repeat_n(vector.clone(), 10))
                .collect()
        })
        .collect();
    let large_parts: Vec<Part<'_>> = data::parts(&large, &large_exposed)
        .into_iter()
        .zip(&large_vectors)
        .map(|(part, vectors)| part.with_vectors(vectors))
        .collect();
    let tools = 10 * tools;
    cost(&format!("{tools} tools"), &model, &large_parts, &all, 10);
    // Longer than what is read of it.
    let long = all.join(" ").repeat(100);
    let what = format!("{tools} tools, a long query");
    cost(&what, &model, &large_parts, &[&long], 300);
}
