//! What three replicas cost beside one: the same calls, divided over them, on the same Postgres server.
//!
//! Each side has a database of its own. Clients are divided evenly, as a balancer does that keeps connections, and come back to the replica
//! that has their session. The CPU time is that of all three gateways, what they do for being several included: leases that are renewed, and
//! looks at what others changed.
//!
//! What happens at the same time costs less: requests that are read at one look, records that are written as one batch. So three are compared with one
//! that has as many clients as each of them. With as many clients in all (`spread`), the figure tells what it costs that less happens at the
//! same time at each, and has no bound.

use testkit::postgres::Database;

use super::calls::{
    self, Chain, Figure, NO_AUDIT, Pair, Side, Transport, figure, interleave, through_replica,
};
use super::load::Round;
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

const REPLICAS: usize = 3;
/// Of three, and of one of them.
const CLIENTS: usize = 96;
const EACH: usize = CLIENTS / REPLICAS;
/// CPU per call of three, divided by that of one (D10).
const RATIO: f64 = 1.1;

const CPU: Figure = figure(
    "CPU per call, 96 clients",
    "µs",
    Bound::Ratio(RATIO),
    Round::cpu_per_call,
);
const CPU_TOLD: Figure = figure(
    "CPU per call, 96 clients",
    "µs",
    Bound::None,
    Round::cpu_per_call,
);
const RATE: Figure = figure(
    "calls per second, 96 clients",
    "1/s",
    Bound::None,
    Round::calls_per_second,
);

/// One comparison.
struct Case {
    name: &'static str,
    era: Era,
    recorded: bool,
    /// Clients of the one.
    of_one: usize,
}

const fn case(name: &'static str, era: Era, recorded: bool, of_one: usize) -> Case {
    Case {
        name,
        era,
        recorded,
        of_one,
    }
}

const CASES: [Case; 6] = [
    case("replicas-sessions", Era::Legacy, false, EACH),
    case("replicas-modern", Era::Modern, false, EACH),
    case("replicas-modern-spread", Era::Modern, false, CLIENTS),
    case("replicas-sessions-recorded", Era::Legacy, true, EACH),
    case("replicas-modern-recorded", Era::Modern, true, EACH),
    case(
        "replicas-modern-recorded-spread",
        Era::Modern,
        true,
        CLIENTS,
    ),
];

/// Measures calls of clients with sessions and without, through one gateway and through three.
///
/// # Errors
///
/// A process did not start, or an answer was wrong.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    if std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_none() {
        eprintln!(
            "  no Postgres: `cargo xtask postgres -- cargo xtask bench run --only replicas` has one"
        );
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for recorded in [false, true] {
        let databases = (Database::create().await, Database::create().await);
        let one = fleet(driver, &databases.0, 1, recorded).await?;
        let three = fleet(driver, &databases.1, REPLICAS, recorded).await?;
        let mut measured = Ok(());
        for case in CASES.iter().filter(|case| case.recorded == recorded) {
            match compare(driver, &one, &three, case).await {
                Ok(pair) => rows.extend(rows_of(case, &pair)),
                Err(error) => measured = Err(error.context(case.name)),
            }
        }
        for chain in one.into_iter().chain(three) {
            chain.stop().await;
        }
        measured?;
    }
    Ok(rows)
}

fn rows_of(case: &Case, pair: &Pair) -> [Row; 2] {
    let is_bound = case.of_one == EACH;
    let mut rows =
        [if is_bound { &CPU } else { &CPU_TOLD }, &RATE].map(|figure| pair.row(case.name, figure));
    rows[0].note = format!(
        "beside one gateway with {} clients; {}",
        case.of_one,
        pair.note()
    );
    rows
}

/// So many gateways on a database, each with an echo server.
async fn fleet(
    driver: &Driver,
    database: &Database,
    count: usize,
    recorded: bool,
) -> anyhow::Result<Vec<Chain>> {
    let audit = if recorded { "" } else { NO_AUDIT };
    let settings = format!("database_url = {:?}\n{audit}", database.url());
    let mut fleet: Vec<Chain> = Vec::new();
    for _ in 0..count {
        let chain = match &driver.product {
            Product::Floor => calls::floor(Transport::Stdio, Era::Legacy).await?,
            Product::Toolwharf(program) => {
                through_replica(program, &settings, fleet.first()).await?
            }
        };
        fleet.push(chain);
    }
    Ok(fleet)
}

async fn compare(
    driver: &mut Driver,
    one: &[Chain],
    three: &[Chain],
    case: &Case,
) -> anyhow::Result<Pair> {
    let [first, others @ ..] = three else {
        anyhow::bail!("there are no replicas");
    };
    let floor = Side::echo(&one[0], case.era).await?.of(case.of_one);
    let mut product = Side::echo(first, case.era).await?;
    for other in others {
        product = product.beside(other);
    }
    let size = driver.effort.size();
    let rounds = (size.rounds, size.calls);
    interleave(driver, &floor, &product, (case.era, CLIENTS), rounds).await
}
