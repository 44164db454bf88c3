//! The cost of recording calls: compares the gateway with itself, with `[audit] enabled = false` as the baseline.
//!
//! The disk limits how fast calls can be recorded. Each call causes two durable writes: the intent before the server
//! receives the call, and the outcome before the caller receives it. A single client therefore waits for the disk
//! twice. The time of one wait is measured during the same minutes, as the time to append 4 KiB to a file in a
//! temporary directory and call `fdatasync`.
//!
//! Postgres is measured if `TOOLWHARF_TEST_POSTGRES` has the URL of a server. There is no bound for Postgres, since the
//! result depends on how often that server waits for its disk. The server of `cargo xtask postgres` never waits.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use testkit::postgres;
use tokio::time::Instant;

use super::calls::{
    self, CPU_OF_ONE, Case, Chain, Figure, NO_AUDIT, Pair, Side, Transport, case, cpu, interleave,
    p50, p99, rate, through_product,
};
use super::load::Round;
use super::report::{Bound, Row, median};
use super::{Driver, Product};
use crate::echo::Era;

const CLIENTS: usize = 64;
/// Rate of recorded calls per second that always suffices, regardless of the rate without records.
const ENOUGH_CALLS_PER_SECOND: f64 = 5_000.0;
/// Below [`ENOUGH_CALLS_PER_SECOND`], the required share of the rate without records.
const MIN_SHARE: f64 = 0.7;
/// Microseconds that recording may add to the calls of a single client (p50), beyond the time of the two disk waits.
const MAX_ADDED_US: f64 = 50.0;
/// Disk waits measured between two rounds.
const SYNCS_PER_ROUND: usize = 50;

const HTTP: Case = case("audit", Era::Legacy, Era::Legacy, Transport::Http);
const MANY: [Figure; 4] = [
    rate("calls per second, 64 clients"),
    cpu("CPU per call, 64 clients", Bound::None),
    p50("p50, 64 clients", Bound::None),
    p99("p99, 64 clients"),
];
const ONE: [Figure; 2] = [p50("p50, 1 client", Bound::None), CPU_OF_ONE];

/// Measures calls recorded in a SQLite file.
pub(crate) async fn sqlite(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let recorded = start(driver, "").await?;
    let (many, one, sync) = compare(driver, recorded).await?;
    let mut rows = rows("audit-sqlite", &many, &one);
    let without = median(many.floor.iter().map(Round::calls_per_second).collect());
    rows[0].bound = Bound::Share(MIN_SHARE.min(ENOUGH_CALLS_PER_SECOND / without));
    for row in &mut rows {
        if row.figure == "p50, 1 client" {
            row.bound = Bound::Added(2.0 * sync + MAX_ADDED_US);
            row.note = format!(
                "{:.1} waits for the disk",
                (row.product - row.floor.unwrap_or(0.0)) / sync
            );
        }
    }
    rows.push(Row {
        case: "audit-sqlite",
        figure: "one wait for the disk",
        unit: "µs",
        floor: None,
        product: sync,
        bound: Bound::None,
        note: "4 KiB appended, fdatasync".to_owned(),
    });
    Ok(rows)
}

/// Measures calls recorded in the Postgres for tests, if there is one.
pub(crate) async fn postgres(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    if std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_none() {
        eprintln!("  skipped: it needs `cargo xtask postgres -- …`");
        return Ok(Vec::new());
    }
    let database = postgres::Database::create().await;
    let settings = format!("database_url = {:?}\n", database.url());
    let recorded = start(driver, &settings).await?;
    let (many, one, _) = compare(driver, recorded).await?;
    Ok(rows("audit-postgres", &many, &one))
}

fn rows(case: &'static str, many: &Pair, one: &Pair) -> Vec<Row> {
    let mut rows = many.rows(case, &MANY);
    rows.extend(one.rows(case, &ONE));
    rows[0].note = format!("floor: without records; CPU in {}", many.note());
    rows
}

async fn start(driver: &Driver, settings: &str) -> anyhow::Result<Chain> {
    match &driver.product {
        Product::Floor => calls::floor(Transport::Http, Era::Legacy).await,
        Product::Toolwharf(program) => through_product(program, HTTP, settings, None).await,
    }
}

/// Measures calls of many clients and of one client. Also returns the disk wait measured in between, in microseconds.
async fn compare(driver: &mut Driver, recorded: Chain) -> anyhow::Result<(Pair, Pair, f64)> {
    let silent = start(driver, NO_AUDIT).await?;
    let measured = async {
        let size = driver.size;
        let sides = (
            Side::echo(&silent, Era::Legacy).await?,
            Side::echo(&recorded, Era::Legacy).await?,
        );
        let load = (Era::Legacy, CLIENTS);
        let rounds = (size.rounds, size.calls);
        let many = interleave(driver, &sides.0, &sides.1, load, rounds)
            .await
            .context("64 clients")?;
        let dir = tempfile::tempdir()?;
        let load = (Era::Legacy, 1);
        let calls = size.single_calls.div_ceil(4);
        let mut syncs = waits_for_disk(dir.path())?;
        let mut one = Pair::default();
        // Alternates with measurements of the disk, whose speed varies from moment to moment.
        for _ in 0..size.rounds.div_ceil(2) {
            let pair = interleave(driver, &sides.0, &sides.1, load, (2, calls));
            one.extend(pair.await.context("1 client")?);
            syncs.extend(waits_for_disk(dir.path())?);
        }
        anyhow::Ok((many, one, median(syncs)))
    };
    let measured = measured.await;
    let measured = recorded.finish(measured).await;
    silent.stop().await;
    measured
}

/// The time to append 4 KiB to a file and sync it, measured several times, in microseconds.
pub(crate) fn waits_for_disk(dir: &Path) -> anyhow::Result<Vec<f64>> {
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(dir.join("appended"))?;
    let mut waits = Vec::with_capacity(SYNCS_PER_ROUND);
    for _ in 0..SYNCS_PER_ROUND {
        let started = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        waits.push(micros(started.elapsed()));
    }
    Ok(waits)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
