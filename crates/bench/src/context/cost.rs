//! The processor time of searches, in this process.

use discovery::{Part, Query, Segment, Server, Tool, Vector, search};
use discovery_model::Model;
use rustix::time::{ClockId, clock_gettime};

use super::data::{Catalog, Queries};
use super::tables::Table;

const ROUNDS: usize = 10;
/// Results of a search.
const FOUND: usize = 20;
/// The larger catalogue has each tool this many times.
const REPEATED: usize = 10;
/// Tools of the catalogue that consists of equal ones.
const EQUAL_TOOLS: usize = 5_000;

/// Milliseconds of processor time of this thread.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// The vectors of all tools, by server.
pub(super) fn vectors(model: &Model, catalog: &Catalog) -> Vec<Vec<Vector>> {
    let of_server = |passages: &Vec<String>| {
        let passages = passages.iter();
        passages.map(|passage| model.embed(passage)).collect()
    };
    let servers = catalog.servers.iter();
    servers.map(|server| of_server(&server.passages)).collect()
}

/// The figures of all catalogues.
///
/// # Errors
///
/// The catalogue is empty.
pub(super) fn measure(
    catalog: &Catalog,
    queries: &Queries,
    known: Option<(&Model, &Vec<Vec<Vector>>)>,
) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "cost",
        "Processor time of a search",
        &["catalogue", "p50 [ms]", "p99 [ms]", "index per tool [KB]"],
    );
    let texts = queries.texts();
    let bytes = |catalog: &Catalog| {
        let bytes = catalog.servers.iter().map(|server| server.segment.bytes());
        bytes.sum::<usize>() as f64 / 1024.0 / catalog.len().max(1) as f64
    };
    let large = catalog.repeated(REPEATED);
    for catalog in [catalog, &large] {
        let exposed = catalog.exposed(&catalog.everything());
        let parts = catalog.servers.iter().zip(&exposed);
        let parts: Vec<_> = parts
            .map(|(server, names)| Part::new(&server.segment, names))
            .collect();
        let name = format!(
            "{} tools of {} servers",
            catalog.len(),
            catalog.servers.len()
        );
        let costs = costs(&texts, |query| {
            search(&parts, &Query::new(query), FOUND);
        });
        table.add(row(name, costs, Some(bytes(catalog))));
    }
    // The same words everywhere, so that all of them have to be visited.
    let description = texts.join(" ");
    let names: Vec<String> = (0..EQUAL_TOOLS).map(|n| format!("tool_{n}")).collect();
    let tools: Vec<Tool<'_>> = names
        .iter()
        .map(|name| Tool {
            name,
            description: Some(&description),
            ..Tool::default()
        })
        .collect();
    let segment = Segment::new(&Server::default(), &tools);
    let exposed: Vec<_> = names.iter().map(|name| Some(name.as_str())).collect();
    let part = [Part::new(&segment, &exposed)];
    let equal = |query: &str| {
        search(&part, &Query::new(query), FOUND);
    };
    let long = description.repeat(100);
    let wrong = ["tool_47111", "tol_12", "toolnumber_4"];
    for (what, texts) in [
        ("", texts.as_slice()),
        (", a query of 1 MB", &[long.as_str()]),
        (", a name with a typing error", &wrong),
    ] {
        let name = format!("{EQUAL_TOOLS} tools with the same words{what}");
        table.add(row(name, costs(texts, equal), None));
    }
    if let Some((model, vectors)) = known {
        for (catalog, times) in [(catalog, 1), (&large, REPEATED)] {
            let exposed = catalog.exposed(&catalog.everything());
            let of_tools = |vectors: &Vec<Vector>| -> Vec<Vector> {
                let vectors = vectors.iter();
                vectors
                    .flat_map(|vector| std::iter::repeat_n(vector.clone(), times))
                    .collect()
            };
            let vectors: Vec<_> = vectors.iter().map(of_tools).collect();
            let parts = catalog.servers.iter().zip(&exposed).zip(&vectors);
            let parts: Vec<_> = parts
                .map(|((server, names), vectors)| {
                    Part::new(&server.segment, names).with_vectors(vectors)
                })
                .collect();
            let costs_of_search = costs(&texts, |query| {
                let task = model.embed_task(query);
                search(&parts, &Query::new(query).with_vectors(&task), FOUND);
            });
            let name = format!("{} tools, with the sentence model", catalog.len());
            table.add(row(name, costs_of_search, None));
        }
        let passages = catalog.servers.iter().flat_map(|server| &server.passages);
        let passages: Vec<_> = passages.map(String::as_str).collect();
        let of_tools = costs_of(&passages, |passage| {
            model.embed(passage);
        });
        table.add(row("the sentence of a new tool".to_owned(), of_tools, None));
    }
    Ok(table)
}

fn row(name: String, costs: Vec<f64>, bytes: Option<f64>) -> Vec<String> {
    let last = costs.len().saturating_sub(1);
    let at = |share: f64| {
        let cost = costs.get((last as f64 * share).round() as usize);
        cost.map_or_else(String::new, |cost| format!("{cost:.2}"))
    };
    let bytes = bytes.map_or_else(String::new, |bytes| format!("{bytes:.1}"));
    vec![name, at(0.5), at(0.99), bytes]
}

/// The costs of some work for each text, repeated, in order.
fn costs(texts: &[&str], work: impl Fn(&str)) -> Vec<f64> {
    let texts = texts.iter().copied();
    let all: Vec<&str> = std::iter::repeat_n(texts, ROUNDS).flatten().collect();
    costs_of(&all, work)
}

fn costs_of(texts: &[&str], work: impl Fn(&str)) -> Vec<f64> {
    let cost = |text: &&str| {
        let before = now();
        work(text);
        now() - before
    };
    let mut costs: Vec<f64> = texts.iter().map(cost).collect();
    costs.sort_by(f64::total_cmp);
    costs
}
