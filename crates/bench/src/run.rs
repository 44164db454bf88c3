//! The driver: starts the processes of each case, puts load on them, and compares the results.
//!
//! # How the figures are made
//!
//! A case runs three separate processes for each side: the echo server, the proxy in front of it (the baseline proxy on
//! one side, the gateway on the other) and this driver, which is the load generator. The sides are measured alternately
//! (baseline, gateway, gateway, baseline), in rounds of a fixed number of calls, after a shorter warm-up round. A
//! figure is the median of its rounds. With 32 clients, each has one keep-alive connection and one outstanding call.
//!
//! *CPU per call* is the main figure: the CPU time of the proxy process during a round, as counted by the scheduler and
//! without its children, divided by the number of calls. It hardly depends on other load on the machine. Calls per
//! second and latency do: on two processors, the load generator and the echo server compete with the proxy. They are
//! printed for information. Exception: the median latency of a single client is compared, since nothing competes then.
//!
//! # Why ratios
//!
//! Microseconds depend on the machine and the day. The baseline does what any proxy has to do. It uses the same
//! components and runs at the same time, so the ratio shows what the gateway adds. The bounds therefore hold on any
//! machine. This is not a test with time limits: `run` prints the figures, and its exit code says whether a bound was
//! exceeded.
//!
//! # Every response is checked
//!
//! Each response is checked for its id and payload ([`load`]). Speed is worthless if a single response is mixed up: the
//! run then fails immediately with exit code 2.
//!
//! # Other baselines
//!
//! The baseline has no records, projects, replicas or supervision. [`audit`], [`projects`], [`tokens`] and
//! [`call_tool`] compare the gateway with itself: without records, with a single project, with a key instead of a token,
//! and with direct calls. [`replicas`]
//! compares three gateways with one, and [`hosting`] compares hosted servers with the same servers alone.
//!
//! `--product floor` replaces the gateway with the baseline. Every ratio should then be close to 1, and its distance
//! from 1 is the measurement error. On a machine with other load, the error was up to 0.15, and single rounds differed
//! by up to half. The note next to a ratio shows the range of its rounds.

pub(crate) mod api;
pub(crate) mod audit;
pub(crate) mod call_tool;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod hosting;
pub(crate) mod idle;
pub(crate) mod load;
pub(crate) mod part;
pub(crate) mod proc;
pub(crate) mod projects;
pub(crate) mod ready;
pub(crate) mod replicas;
pub(crate) mod report;
pub(crate) mod start;
pub(crate) mod tokens;

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, getrlimit, setrlimit};

use report::Row;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer calls and clients: seconds instead of minutes, with less precise figures
    #[arg(long)]
    quick: bool,
    /// Only checks that everything works; the figures are meaningless
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
    /// Runs only the cases whose name contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Also writes the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "toolwharf")]
    product: Which,
    /// The gateway's binary [default: `toolwharf` next to this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Which {
    Toolwharf,
    /// The baseline against itself: shows the measurement error
    Floor,
}

#[derive(Clone, Debug)]
pub(crate) enum Product {
    Toolwharf(PathBuf),
    Floor,
}

/// The amount of work per figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) rounds: usize,
    /// Calls per round with 32 clients.
    pub(crate) calls: u64,
    /// Calls per round with one client.
    pub(crate) single_calls: u64,
    /// Lists per round with 32 clients.
    pub(crate) list_calls: u64,
    pub(crate) streams: usize,
    pub(crate) starts: usize,
    pub(crate) projects: usize,
    /// Hosted servers to kill.
    pub(crate) kills: usize,
    /// Hosted servers for the start and idle measurements.
    pub(crate) hosted: usize,
    /// Duration of the idle measurement.
    pub(crate) rest: Duration,
}

// At 20 to 40 µs each, 480,000 calls of the baseline use at least 10 s of CPU time. Single rounds differ by up to half,
// so many rounds are needed.
const FULL: Size = Size {
    name: "full",
    rounds: 30,
    calls: 16_000,
    single_calls: 2_000,
    list_calls: 1_600,
    streams: 10_000,
    starts: 7,
    projects: 1_000,
    kills: 1_000,
    hosted: 200,
    rest: Duration::from_secs(60),
};
const QUICK: Size = Size {
    name: "quick",
    rounds: 6,
    // A call takes much more processor time in a debug build, so a third of the calls is enough.
    calls: if cfg!(debug_assertions) { 1_600 } else { 4_800 },
    single_calls: 500,
    list_calls: 960,
    streams: 2_000,
    starts: 3,
    projects: 1_000,
    kills: 100,
    hosted: 200,
    rest: Duration::from_secs(10),
};
const SMOKE: Size = Size {
    name: "smoke",
    rounds: 1,
    calls: 320,
    single_calls: 20,
    list_calls: 32,
    streams: 50,
    starts: 1,
    projects: 10,
    kills: 3,
    hosted: 3,
    rest: Duration::from_millis(100),
};

/// State shared by the cases.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) product: Product,
    pub(crate) size: Size,
    /// Parts of the names of the cases to run. Empty: all cases.
    only: Vec<String>,
    /// Responses checked so far.
    pub(crate) checked: u64,
}

impl Driver {
    /// A driver for the cases of other measurements.
    pub(crate) fn of(program: PathBuf, is_quick: bool) -> Self {
        Self {
            product: Product::Toolwharf(program),
            size: if is_quick { QUICK } else { FULL },
            only: Vec::new(),
            checked: 0,
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Measures a case and returns its rows. Fails if a process does not start, an awaited event does not happen in time,
/// or a response is wrong.
type Case = fn(&mut Driver) -> Measured<'_>;
type Measured<'d> = Pin<Box<dyn Future<Output = anyhow::Result<Vec<Row>>> + 'd>>;

/// The cases that follow [`calls::CASES`].
const CASES: [(&str, Case); 14] = [
    ("list", |driver| Box::pin(calls::list(driver))),
    ("audit-sqlite", |driver| Box::pin(audit::sqlite(driver))),
    ("audit-postgres", |driver| Box::pin(audit::postgres(driver))),
    ("replicas", |driver| Box::pin(replicas::run(driver))),
    ("projects", |driver| Box::pin(projects::run(driver))),
    ("tokens", |driver| Box::pin(tokens::run(driver))),
    ("call-tool", |driver| Box::pin(call_tool::run(driver))),
    ("idle-servers", |driver| Box::pin(idle::servers(driver))),
    ("idle-streams", |driver| Box::pin(idle::streams(driver))),
    ("start", |driver| Box::pin(start::run(driver))),
    ("hosted-calls", |driver| Box::pin(hosting::calls(driver))),
    ("hosted-recovery", |driver| {
        Box::pin(hosting::recovery(driver))
    }),
    ("hosted-neighbours", |driver| {
        Box::pin(hosting::neighbours(driver))
    }),
    ("hosted-many", |driver| Box::pin(hosting::many(driver))),
];

/// Runs the cases and prints the table. The exit code is 1 if a bound was exceeded.
///
/// # Errors
///
/// A process did not start, or a response was wrong. The figures of the cases before are printed nevertheless.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    raise_descriptor_limit()?;
    let product = match options.product {
        Which::Floor => Product::Floor,
        Which::Toolwharf => Product::Toolwharf(part::program(options.toolwharf, "toolwharf")?),
    };
    let mut driver = Driver {
        product,
        size: match (options.quick, options.smoke) {
            (_, true) => SMOKE,
            (true, _) => QUICK,
            _ => FULL,
        },
        only: options.only,
        checked: 0,
    };
    let mut rows = Vec::new();
    let measured = measure(&mut driver, &mut rows).await;
    print!("{}", report::table(&rows));
    if let Some(file) = &options.json {
        let product = match &driver.product {
            Product::Toolwharf(_) => "toolwharf",
            Product::Floor => "floor",
        };
        let report = report::json(&rows, product, driver.size.name, driver.checked);
        std::fs::write(file, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    measured?;
    anyhow::ensure!(
        !rows.is_empty(),
        "no case is named {}",
        driver.only.join(" or ")
    );
    println!(
        "{} responses were checked, all were correct",
        driver.checked
    );
    let over = rows.iter().any(|row| row.kept() == Some(false));
    Ok(ExitCode::from(u8::from(over)))
}

/// Runs the cases in order, and adds the figures of each.
async fn measure(driver: &mut Driver, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for case in calls::CASES {
        if driver.wants(case.name) {
            eprintln!("{} …", case.name);
            rows.extend(calls::run(driver, case).await.context(case.name)?);
        }
    }
    for (name, measure) in CASES {
        let wanted = match name {
            "replicas" => replicas::CASES.iter().any(|case| driver.wants(case.name)),
            _ => driver.wants(name),
        };
        if wanted {
            eprintln!("{name} …");
            rows.extend(measure(driver).await.context(name)?);
        }
    }
    Ok(())
}

/// Raises the soft limit of open files to the hard limit, for this process and its children.
pub(crate) fn raise_descriptor_limit() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}
