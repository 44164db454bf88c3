//! The share of the right tools among the first results of a search.

use discovery::{Part, Query, Vector, search};
use discovery_model::Model;

use super::bm25::Bm25;
use super::data::{Catalog, Queries, Row, SIZES};
use super::tables::{Table, share};

/// Catalogues drawn for each query and size.
const DRAWS: u64 = 5;

/// A sentence model with the vectors of all tools, if there is one.
type Known<'k> = Option<(&'k Model, &'k Vec<Vec<Vector>>)>;

/// How tools are ranked.
#[derive(Clone, Copy)]
enum Ranking<'r> {
    Bm25(&'r Bm25),
    Words,
    Model(&'r Model, &'r [Vec<Vector>]),
}

/// The names of the tools that a ranking puts first.
fn found<'c>(
    catalog: &'c Catalog,
    ranking: Ranking<'_>,
    shown: &[Vec<bool>],
    query: &str,
    count: usize,
) -> Vec<&'c str> {
    let vectors = match ranking {
        Ranking::Bm25(index) => {
            let found = index.search(shown, query, count).into_iter();
            return found
                .map(|(server, tool)| catalog.name(server, tool))
                .collect();
        }
        Ranking::Words => None,
        Ranking::Model(model, vectors) => Some((model.embed_task(query), vectors)),
    };
    let names: Vec<Vec<Option<&str>>> = catalog.exposed(shown);
    let parts = catalog.servers.iter().zip(&names).enumerate();
    let parts = parts.map(|(at, (server, names))| {
        let part = Part::new(&server.segment, names);
        match &vectors {
            None => part,
            Some((_, vectors)) => part.with_vectors(&vectors[at]),
        }
    });
    let parts: Vec<_> = parts.collect();
    let mut query = Query::new(query);
    if let Some((task, _)) = &vectors {
        query = query.with_vectors(task);
    }
    let hits = search(&parts, &query, count).into_iter();
    hits.map(|hit| catalog.name(hit.part, hit.tool)).collect()
}

/// The rankings with their names.
fn rankings<'r>(bm25: &'r Bm25, known: Known<'r>) -> Vec<(&'static str, Ranking<'r>)> {
    let mut rankings = vec![
        ("BM25 alone", Ranking::Bm25(bm25)),
        ("words and related words (the default)", Ranking::Words),
    ];
    if let Some((model, vectors)) = known {
        rankings.push(("with the sentence model", Ranking::Model(model, vectors)));
    }
    rankings
}

/// The share of the wanted tools among the first `count` results.
fn found_of(found: &[&str], row: &Row, count: usize) -> f64 {
    let found = &found[..count.min(found.len())];
    let hits = row.1.iter().filter(|tool| found.contains(&tool.as_str()));
    hits.count() as f64 / row.1.len().max(1) as f64
}

/// Over the whole catalogue.
pub(super) fn whole(catalog: &Catalog, queries: &Queries, known: Known<'_>) -> Table {
    let columns = [
        (&queries.pairs, &[1, 3, 5, 10][..]),
        (&queries.tasks, &[5, 10, 20]),
    ];
    let mut table = Table::new(
        "recall",
        &format!("Recall in the catalogue of {} tools", catalog.len()),
        &[
            "ranking",
            "pairs @1",
            "pairs @3",
            "pairs @5",
            "pairs @10",
            "tasks @5",
            "tasks @10",
            "tasks @20",
        ],
    );
    let all = catalog.everything();
    let bm25 = Bm25::new(catalog);
    for (name, ranking) in rankings(&bm25, known) {
        let mut cells = vec![name.to_owned()];
        for (rows, counts) in columns {
            let most = counts.iter().max().copied().unwrap_or(0);
            let found: Vec<_> = rows
                .iter()
                .map(|row| found(catalog, ranking, &all, &row.0, most))
                .collect();
            for count in counts {
                let shares = rows.iter().zip(&found);
                let shares = shares.map(|(row, found)| found_of(found, row, *count));
                cells.push(share(shares.sum::<f64>() / rows.len().max(1) as f64));
            }
        }
        table.add(cells);
    }
    table
}

/// Over catalogues that have the right tool of a pair, and other tools at random.
pub(super) fn parts(
    catalog: &Catalog,
    queries: &Queries,
    known: Known<'_>,
    is_quick: bool,
) -> Table {
    let draws = if is_quick { 1 } else { DRAWS };
    let mut table = Table::new(
        "recall-by-size",
        &format!("Recall of pairs @1 and @5 in catalogues of n tools, mean of {draws} draws"),
        &["ranking", "n = 10", "20", "50", "100", "200", "500"],
    );
    let bm25 = Bm25::new(catalog);
    for (name, ranking) in rankings(&bm25, known) {
        let mut cells = vec![name.to_owned()];
        for size in SIZES {
            let (mut first, mut five, mut count) = (0.0, 0.0, 0.0);
            for (at, row) in (0_u64..).zip(&queries.pairs) {
                let wanted = row.1.first().map_or("", String::as_str);
                for draw in 0..draws {
                    let shown = catalog.drawn(wanted, size, at * DRAWS + draw);
                    let found = found(catalog, ranking, &shown, &row.0, 5);
                    first += found_of(&found, row, 1);
                    five += found_of(&found, row, 5);
                    count += 1.0;
                }
            }
            cells.push(format!("{} {}", share(first / count), share(five / count)));
        }
        table.add(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_share_counts_only_the_first_results() {
        let wanted = ["a", "b"].map(str::to_owned);
        let row = ("query".to_owned(), BTreeSet::from(wanted));
        for (found, count, share) in [
            (&["a", "x", "b"][..], 1, 0.5),
            (&["a", "x", "b"], 2, 0.5),
            (&["a", "x", "b"], 3, 1.0),
            (&["x"], 5, 0.0),
            (&[], 5, 0.0),
        ] {
            assert_eq!(found_of(found, &row, count), share, "{found:?} {count}");
        }
    }
}
