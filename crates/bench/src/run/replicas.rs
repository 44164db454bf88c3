//! The cost of three replicas compared with one gateway: the same calls on the same Postgres server. The CPU time is
//! the sum over all three gateways. It includes the work for replication: renewing leases, and polling for changes made
//! by other replicas.
//!
//! In production, each replica has a separate machine. Here they share one: three processes that work at the same time
//! compete for its processors and evict each other's caches. Three unrelated gateways would have the same cost.
//! Therefore there are three comparisons:
//!
//! - `in-turn`: all clients call one of the three, then the next, compared with one gateway with the same clients;
//! - `at-once`: clients are distributed over three, as by a load balancer that keeps connections, compared with three
//!   gateways with separate databases;
//! - `spread`: the same three gateways, compared with one gateway that serves all clients. This figure has no bound. It
//!   shows the cost of less concurrency at each gateway: fewer requests are read together, and batches of records are
//!   smaller.

use testkit::postgres::Database;

use Beside::{AtOnce, InTurn, Spread};
use Era::{Legacy, Modern};

use super::calls::{
    self, Chain, Figure, NO_AUDIT, Pair, REPLICA, Side, Transport, cpu, interleave, rate,
    through_product,
};
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

const REPLICAS: usize = 3;
/// Number of clients of all three replicas together.
const CLIENTS: usize = 96;
/// Number of clients of each replica.
const CLIENTS_EACH: usize = CLIENTS / REPLICAS;
/// Maximum CPU time per call of three replicas, relative to the baseline.
const MAX_RATIO: f64 = 1.1;

const CPU: Figure = cpu("CPU per call", Bound::Ratio(MAX_RATIO));
const CPU_TOLD: Figure = cpu("CPU per call", Bound::None);
const RATE: Figure = rate("calls per second");

/// The baseline of three replicas, and how clients are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// All clients at one replica, then at the next. Baseline: one gateway with the same clients.
    InTurn,
    /// Clients distributed over all. Baseline: three unrelated gateways.
    AtOnce,
    /// Clients distributed over all. Baseline: one gateway.
    Spread,
}

/// One comparison.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    era: Era,
    recorded: bool,
    beside: Beside,
}

const fn case(name: &'static str, era: Era, recorded: bool, beside: Beside) -> Case {
    Case {
        name,
        era,
        recorded,
        beside,
    }
}

pub(crate) const CASES: [Case; 10] = [
    case("replicas-sessions-in-turn", Legacy, false, InTurn),
    case("replicas-modern-in-turn", Modern, false, InTurn),
    case("replicas-sessions-at-once", Legacy, false, AtOnce),
    case("replicas-modern-at-once", Modern, false, AtOnce),
    case("replicas-modern-spread", Modern, false, Spread),
    case("replicas-sessions-recorded-in-turn", Legacy, true, InTurn),
    case("replicas-modern-recorded-in-turn", Modern, true, InTurn),
    case("replicas-sessions-recorded-at-once", Legacy, true, AtOnce),
    case("replicas-modern-recorded-at-once", Modern, true, AtOnce),
    case("replicas-modern-recorded-spread", Modern, true, Spread),
];

/// Measures calls of clients with and without sessions, through one gateway and through three.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    if std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_none() {
        eprintln!(
            "  skipped without Postgres: run `cargo xtask postgres -- cargo xtask bench run --only replicas`"
        );
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for recorded in [false, true] {
        let cases = CASES.iter().filter(|case| case.recorded == recorded);
        let cases: Vec<&Case> = cases.filter(|case| driver.wants(case.name)).collect();
        if cases.is_empty() {
            continue;
        }
        let settings = if recorded { "" } else { NO_AUDIT };
        let databases: [Database; 1 + REPLICAS] = [
            Database::create().await,
            Database::create().await,
            Database::create().await,
            Database::create().await,
        ];
        let (shared, own) = databases.split_first().expect("one is shared");
        let mut started = Vec::new();
        for database in own {
            started.push(gateway(driver, database, settings, None).await?);
        }
        for at in 0..REPLICAS {
            let first = (at > 0).then(|| &started[REPLICAS]);
            started.push(gateway(driver, shared, settings, first).await?);
        }
        let (strangers, replicas) = started.split_at(REPLICAS);
        let mut measured = Ok(());
        for case in cases {
            match compare(driver, strangers, replicas, case).await {
                Ok(pair) => rows.extend(rows_of(case, &pair)),
                Err(error) => measured = Err(error.context(case.name)),
            }
        }
        for chain in started {
            chain.stop().await;
        }
        measured?;
    }
    Ok(rows)
}

fn rows_of(case: &Case, pair: &Pair) -> [Row; 2] {
    let (cpu, what) = match case.beside {
        InTurn => (&CPU, "one gateway, 32 clients"),
        AtOnce => (&CPU, "three separate gateways, 96 clients"),
        Spread => (&CPU_TOLD, "one gateway, 96 clients"),
    };
    let mut rows = [cpu, &RATE].map(|figure| pair.row(case.name, figure));
    rows[0].note = format!("beside {what}; {}", pair.note());
    rows
}

/// A gateway on a database, with an echo server. All replicas but the first share the keys of the first.
async fn gateway(
    driver: &Driver,
    database: &Database,
    settings: &str,
    first: Option<&Chain>,
) -> anyhow::Result<Chain> {
    let settings = format!("database_url = {:?}\n{settings}", database.url());
    match &driver.product {
        Product::Floor => calls::floor(Transport::Stdio, Legacy).await,
        Product::Toolwharf(program) => through_product(program, REPLICA, &settings, first).await,
    }
}

async fn compare(
    driver: &mut Driver,
    strangers: &[Chain],
    replicas: &[Chain],
    case: &Case,
) -> anyhow::Result<Pair> {
    let size = driver.size;
    let one = Side::echo(&strangers[0], case.era).await?;
    let (floor, clients) = match case.beside {
        InTurn => {
            let rounds = (size.rounds.div_ceil(REPLICAS), size.calls);
            let mut all = Pair::default();
            for called in replicas {
                let mut product = Side::echo(called, case.era).await?;
                for other in replicas {
                    if !std::ptr::eq(called, other) {
                        product = product.counting(other);
                    }
                }
                let load = (case.era, CLIENTS_EACH);
                all.extend(interleave(driver, &one, &product, load, rounds).await?);
            }
            return Ok(all);
        }
        AtOnce => (strangers[1..].iter().fold(one, Side::beside), CLIENTS),
        Spread => (one, CLIENTS),
    };
    let product = Side::echo(&replicas[0], case.era).await?;
    let product = replicas[1..].iter().fold(product, Side::beside);
    let load = (case.era, clients);
    interleave(driver, &floor, &product, load, (size.rounds, size.calls)).await
}
