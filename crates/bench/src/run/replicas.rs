//! What three replicas cost beside one: the same calls, divided over them, recorded in the same Postgres.
//!
//! Each side has a database of its own. Clients are divided evenly, as a balancer does that keeps connections, and come back to the replica
//! that has their session. The CPU time is that of all three gateways, what they do for being several included: leases that are renewed, and
//! looks at what others changed. One is measured with as many clients in all.

use anyhow::Context as _;
use testkit::postgres::Database;

use super::calls::{
    self, Chain, Figure, Pair, Side, Transport, figure, interleave, through_replica,
};
use super::load::Round;
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

const REPLICAS: usize = 3;
/// Clients in all.
const CLIENTS: usize = 96;
/// CPU per call of three, divided by that of one (D10).
const RATIO: f64 = 1.1;

const CPU: Figure = figure(
    "CPU per call, 96 clients",
    "µs",
    Bound::Ratio(RATIO),
    Round::cpu_per_call,
);
const RATE: Figure = figure(
    "calls per second, 96 clients",
    "1/s",
    Bound::None,
    Round::calls_per_second,
);

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
    let databases = (Database::create().await, Database::create().await);
    let one = fleet(driver, &databases.0, 1).await?;
    let three = fleet(driver, &databases.1, REPLICAS).await?;
    let mut rows = Vec::new();
    let measured = async {
        for (name, era) in [
            ("replicas-sessions", Era::Legacy),
            ("replicas-modern", Era::Modern),
        ] {
            let pair = compare(driver, &one, &three, era).await.context(name)?;
            let mut of_case = [&CPU, &RATE].map(|figure| pair.row(name, figure));
            of_case[0].note = format!("three gateways beside one; {}", pair.note());
            rows.extend(of_case);
        }
        anyhow::Ok(())
    };
    let measured = measured.await;
    for chain in one.into_iter().chain(three) {
        chain.stop().await;
    }
    measured?;
    Ok(rows)
}

/// So many gateways on a database, each with an echo server.
async fn fleet(driver: &Driver, database: &Database, count: usize) -> anyhow::Result<Vec<Chain>> {
    let settings = format!("database_url = {:?}\n", database.url());
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
    era: Era,
) -> anyhow::Result<Pair> {
    let [first, others @ ..] = three else {
        anyhow::bail!("there are no replicas");
    };
    let floor = Side::echo(&one[0], era).await?;
    let mut product = Side::echo(first, era).await?;
    for other in others {
        product = product.beside(other);
    }
    let size = driver.effort.size();
    interleave(
        driver,
        &floor,
        &product,
        (era, CLIENTS),
        (size.rounds, size.calls),
    )
    .await
}
