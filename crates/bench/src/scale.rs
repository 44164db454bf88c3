//! The limits of one Postgres: measures the load that replicas put on it, and simulates how many replicas it can serve
//! ([`simulate`]).
//!
//! The database's CPU time is the sum over its server process and all backends. It is measured with one client (each
//! record is a batch), with many, and without calls. The costs of a batch and of a row follow from the first two
//! measurements, using the number of batches counted by the database. The commits of the test Postgres do not wait for
//! a disk, so that wait is measured separately.

mod simulate;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use testkit::postgres::Database;
use tokio::time::sleep;

use crate::echo::Era;
use crate::run::audit::waits_for_disk;
use crate::run::calls::{Chain, REPLICA, Side, through_product};
use crate::run::load::Round;
use crate::run::report::median;
use crate::run::{part, proc};
use simulate::{Costs, World};

const REPLICAS: usize = 3;
const CLIENTS: usize = 96;
/// Duration of the measurement without calls.
const IDLE_TIME: Duration = Duration::from_secs(20);
/// The numbers of replicas and database cores to simulate.
const FLEET_SIZES: [usize; 3] = [10, 100, 1000];
const DATABASE_CORES: [usize; 3] = [2, 8, 32];
/// Time that recording may add to 99 % of calls, in seconds.
const MAX_ADDED_SECONDS: f64 = 0.1;
/// The usual connection limit of Postgres, and the limit of a large installation.
const CONNECTION_LIMITS: [f64; 2] = [100.0, 2000.0];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Simulates with the costs in this file, without measuring
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Writes the measured costs to this file
    #[arg(long, value_name = "FILE", conflicts_with = "costs")]
    save: Option<PathBuf>,
    /// Number of calls in the measurement with many clients
    #[arg(long, default_value_t = 48_000)]
    calls: u64,
    /// The gateway's binary [default: `toolwharf` next to this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
}

/// Measures, simulates, and prints both results.
///
/// # Errors
///
/// There is no Postgres, a process did not start, or a response was wrong.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let costs = match &options.costs {
        Some(file) => serde_json::from_slice(&fs::read(file)?)
            .with_context(|| format!("{} holds no costs", file.display()))?,
        None => measure(&options).await?,
    };
    print_costs(&costs);
    if let Some(file) = &options.save {
        fs::write(file, serde_json::to_string_pretty(&costs)? + "\n")?;
    }
    print_limits(costs);
    Ok(ExitCode::SUCCESS)
}

fn print_costs(costs: &Costs) {
    println!("measured costs");
    for (what, cost, unit) in [
        (
            "a batch of records",
            costs.batch * 1e6,
            "µs of database CPU time",
        ),
        ("each record, begun or ended", costs.row * 1e6, "µs"),
        ("a replica without calls", costs.idle * 1e6, "µs per second"),
        ("connections of a replica", costs.connections, ""),
        ("log", costs.log, "bytes per call"),
        ("one wait for the disk", costs.flush * 1e6, "µs"),
        (
            "the gateway",
            costs.gateway * 1e6,
            "µs of its CPU time per call",
        ),
    ] {
        println!("{}", format!("  {what:<34}{cost:8.0} {unit}").trim_end());
    }
}

fn print_limits(costs: Costs) {
    println!(
        "\nsimulated limits of one Postgres: recorded calls per second, if 99 % of calls wait at most {} ms for their records",
        MAX_ADDED_SECONDS * 1e3
    );
    println!(
        "  replicas  connections  cores  idle   max calls/s          CPU use   disk use    records/batch      median wait"
    );
    for replicas in FLEET_SIZES {
        for cores in DATABASE_CORES {
            let world = World {
                replicas,
                cores,
                calls: 0.0,
                seconds: 5.0,
            };
            let idle = simulate::run(world, costs).busy;
            let most = simulate::limit(world, costs, MAX_ADDED_SECONDS);
            let at = simulate::run(
                World {
                    calls: most,
                    ..world
                },
                costs,
            );
            println!(
                "  {replicas:8}  {:11.0}  {cores:5}  {:3.0}%  {most:12.0}  {:14.0}%  {:8.0}%  {:15.1}  {:15.1} ms",
                costs.connections * replicas as f64,
                idle * 100.0,
                at.busy * 100.0,
                at.disk * 100.0,
                at.rows,
                at.p50 * 1e3,
            );
        }
    }
    for most in CONNECTION_LIMITS {
        println!(
            "  {most:.0} connections are enough for {:.0} replicas",
            (most / costs.connections).floor()
        );
    }
}

async fn measure(options: &Options) -> anyhow::Result<Costs> {
    let program = part::program(options.toolwharf.clone(), "toolwharf")?;
    anyhow::ensure!(
        std::env::var_os("TOOLWHARF_TEST_POSTGRES").is_some(),
        "this needs Postgres: run `cargo xtask postgres -- cargo xtask bench scale`"
    );
    let database = Database::create().await;
    let settings = format!("database_url = {:?}\n", database.url());
    let mut fleet: Vec<Chain> = Vec::new();
    for _ in 0..REPLICAS {
        let next = through_product(&program, REPLICA, &settings, fleet.first());
        fleet.push(next.await?);
    }
    let measured = of_fleet(&database, &fleet, options.calls).await;
    for chain in fleet {
        chain.stop().await;
    }
    measured
}

/// The resources that the database has used so far, or during a measurement.
struct Used {
    cpu: f64,
    commits: f64,
    log: f64,
    /// The time, by the clock of the database.
    seconds: f64,
}

impl Used {
    async fn now(database: &Database) -> anyhow::Result<Self> {
        // Waits, since the database updates its commit count only every second.
        sleep(Duration::from_secs(2)).await;
        let number = async |query: &str| database.number(query).await;
        let checkpointer =
            number("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").await;
        let server = proc::parent(checkpointer as u32);
        let server = server.context("the database is not on this machine")?;
        Ok(Self {
            cpu: proc::family_cpu(server)? as f64 / 1e9,
            commits: number(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
            )
            .await,
            log: number("SELECT pg_current_wal_lsn() - '0/0'").await,
            seconds: number("SELECT extract(epoch FROM clock_timestamp())").await,
        })
    }

    async fn since(before: &Self, database: &Database) -> anyhow::Result<Self> {
        Ok(Self::now(database).await?.minus(before, 1.0))
    }

    /// Subtracts the usage without calls, scaled to the same duration.
    fn beyond(&self, idle: &Self) -> Self {
        self.minus(idle, self.seconds / idle.seconds)
    }

    fn minus(&self, other: &Self, share: f64) -> Self {
        Self {
            cpu: self.cpu - other.cpu * share,
            commits: self.commits - other.commits * share,
            log: self.log - other.log * share,
            seconds: self.seconds - other.seconds * share,
        }
    }
}

async fn of_fleet(database: &Database, fleet: &[Chain], calls: u64) -> anyhow::Result<Costs> {
    let [first, others @ ..] = fleet else {
        anyhow::bail!("there are no replicas");
    };
    let mut all = Side::echo(first, Era::Modern).await?;
    for other in others {
        all = all.beside(other);
    }
    eprintln!(
        "  {} replicas without calls, for {} s …",
        fleet.len(),
        IDLE_TIME.as_secs()
    );
    let before = Used::now(database).await?;
    sleep(IDLE_TIME).await;
    let idle = Used::since(&before, database).await?;
    eprintln!("  one client …");
    let one = Side::echo(first, Era::Modern).await?;
    let (single, single_rounds) = called(database, &one, 1, calls / 24).await?;
    let single = single.beyond(&idle);
    eprintln!("  {CLIENTS} clients …");
    let (many, many_rounds) = called(database, &all, CLIENTS, calls).await?;
    let connections = database
        .number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'toolwharf'")
        .await;
    let many = many.beyond(&idle);
    let made = |rounds: &[Round]| rounds.iter().map(|round| round.calls as f64).sum::<f64>();
    let (few_calls, many_calls) = (made(&single_rounds), made(&many_rounds));
    // cpu = batch × commits + row × rows, for both measurements.
    let rows = (2.0 * few_calls, 2.0 * many_calls);
    let determinant = single.commits * rows.1 - many.commits * rows.0;
    let batch = (single.cpu * rows.1 - many.cpu * rows.0) / determinant;
    let row = (many.cpu * single.commits - single.cpu * many.commits) / determinant;
    eprintln!(
        "  one client: {:.0} µs and {:.2} commits a call; {CLIENTS} clients: {:.0} µs and {:.2} commits, {:.0} calls/s",
        single.cpu / few_calls * 1e6,
        single.commits / few_calls,
        many.cpu / many_calls * 1e6,
        many.commits / many_calls,
        median(many_rounds.iter().map(Round::calls_per_second).collect()),
    );
    Ok(Costs {
        batch: batch.max(0.0),
        row: row.max(0.0),
        idle: idle.cpu / idle.seconds / fleet.len() as f64,
        flush: median(waits_for_disk(tempfile::tempdir()?.path())?) / 1e6,
        connections: connections / fleet.len() as f64,
        log: many.log / many_calls,
        gateway: median(many_rounds.iter().map(Round::cpu_per_call).collect()) / 1e6,
    })
}

/// Makes calls in four rounds. Returns the database's CPU time, commits and log bytes for them, and the rounds.
async fn called(
    database: &Database,
    side: &Side<'_>,
    clients: usize,
    calls: u64,
) -> anyhow::Result<(Used, Vec<Round>)> {
    const ROUNDS: u64 = 4;
    let mut load = side.connect(Era::Modern, clients).await?;
    load.round(calls / ROUNDS / 2).await?;
    let before = Used::now(database).await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(load.round(calls / ROUNDS).await?);
    }
    Ok((Used::since(&before, database).await?, rounds))
}
