//! The cost of recording calls: compares the gateway with itself, with `[audit] enabled = false` as the floor.
//!
//! The lower limit for recording is the disk. Each call is made durable twice, the intent before the server receives it
//! and the outcome before the caller does, so a single client waits for the disk twice. One wait is measured during the
//! same minutes, as the time to append 4 KiB to a file in a temporary directory and call `fdatasync`.
//!
//! Postgres is measured if `TOOLWHARF_TEST_POSTGRES` names one. There is no bound, since it depends on how often that
//! server waits for its disk; the one of `cargo xtask postgres` never does.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use testkit::postgres;
use tokio::time::Instant;

use super::calls::{
    self, Case, Chain, Figure, NO_AUDIT, Pair, Side, Transport, case, figure, interleave,
    through_product,
};
use super::load::Round;
use super::report::{Bound, Row, median};
use super::{Driver, Product};
use crate::echo::Era;

const CLIENTS: usize = 64;
/// Recorded calls per second that are sufficient, however many there are without records.
const ENOUGH_CALLS_PER_SECOND: f64 = 5_000.0;
/// Otherwise, the required share of the calls per second without records.
const MIN_SHARE: f64 = 0.7;
/// Latency that a record may add for a single client in addition to one wait for the disk, in microseconds.
const MAX_ADDED_US: f64 = 200.0;
/// Disk waits measured between two rounds.
const SYNCS_PER_ROUND: usize = 50;

const HTTP: Case = case("audit", Era::Legacy, Era::Legacy, Transport::Http);
const RATE: Figure = figure(
    "calls per second, 64 clients",
    "1/s",
    Bound::None,
    Round::calls_per_second,
);
const MANY: [Figure; 3] = [
    figure(
        "CPU per call, 64 clients",
        "µs",
        Bound::None,
        Round::cpu_per_call,
    ),
    figure("p50, 64 clients", "µs", Bound::None, |round| {
        round.latency(0.5)
    }),
    figure("p99, 64 clients", "µs", Bound::None, |round| {
        round.latency(0.99)
    }),
];
const SINGLE: Figure = figure("p50, 1 client", "µs", Bound::None, |round| {
    round.latency(0.5)
});
const ONE: Figure = figure(
    "CPU per call, 1 client",
    "µs",
    Bound::None,
    Round::cpu_per_call,
);

/// Measures calls recorded in a SQLite file.
///
/// # Errors
///
/// A process did not start, or a response was wrong.
pub(crate) async fn sqlite(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let recorded = start(driver, "").await?;
    let (many, one, sync) = compare(driver, recorded).await?;
    let mut rows = rows("audit-sqlite", &many, &one);
    let without = median(many.floor.iter().map(Round::calls_per_second).collect());
    rows[0].bound = Bound::Share(MIN_SHARE.min(ENOUGH_CALLS_PER_SECOND / without));
    for row in &mut rows {
        if row.figure == "p50, 1 client" {
            row.bound = Bound::Added(sync + MAX_ADDED_US);
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
///
/// # Errors
///
/// As [`sqlite`].
pub(crate) async fn postgres(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    if std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_none() {
        eprintln!("  no Postgres: `cargo xtask postgres -- bench run …` has one");
        return Ok(Vec::new());
    }
    let database = postgres::Database::create().await;
    let settings = format!("database_url = {:?}\n", database.url());
    let recorded = start(driver, &settings).await?;
    let (many, one, _) = compare(driver, recorded).await?;
    Ok(rows("audit-postgres", &many, &one))
}

fn rows(case: &'static str, many: &Pair, one: &Pair) -> Vec<Row> {
    let figures = [&RATE].into_iter().chain(&MANY);
    let mut rows: Vec<_> = figures.map(|figure| many.row(case, figure)).collect();
    rows.extend([&SINGLE, &ONE].map(|figure| one.row(case, figure)));
    rows[0].note = format!("floor: without records; CPU in {}", many.note());
    rows
}

async fn start(driver: &Driver, settings: &str) -> anyhow::Result<Chain> {
    match &driver.product {
        Product::Floor => calls::floor(Transport::Http, Era::Legacy).await,
        Product::Toolwharf(program) => through_product(program, HTTP, settings).await,
    }
}

/// Measures with many clients and with one, and the disk waits in between, in microseconds.
async fn compare(driver: &mut Driver, recorded: Chain) -> anyhow::Result<(Pair, Pair, f64)> {
    let silent = start(driver, NO_AUDIT).await?;
    let measured = async {
        let size = driver.effort.size();
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
        // Alternates with the disk, whose speed varies from moment to moment.
        for _ in 0..size.rounds.div_ceil(2) {
            let pair = interleave(driver, &sides.0, &sides.1, load, (2, calls));
            one.extend(pair.await.context("1 client")?);
            syncs.extend(waits_for_disk(dir.path())?);
        }
        anyhow::Ok((many, one, median(syncs)))
    };
    let measured = measured.await;
    let measured = measured.with_context(|| format!("the log ends:\n{}", recorded.proxy.log()));
    recorded.stop().await;
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
