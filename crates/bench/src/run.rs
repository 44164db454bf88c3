//! The driver: starts the processes of each case, loads them, and compares.
//!
//! # How the figures are made
//!
//! A case runs three processes for each side, every one on its own: the echo server behind, the
//! proxy in the middle (the floor on one side, the product on the other) and this driver, which
//! is the load generator. The sides are measured in turn, floor, product, product, floor, in
//! rounds of a fixed number of calls after a shorter round to warm up; a figure is the median of its
//! rounds. At 32 clients each has one
//! keep-alive connection and one call outstanding.
//!
//! *CPU per call* is the main figure: the CPU time that the scheduler counts for the proxy's
//! process alone, children excluded, over a round, divided by the calls of it. It hardly depends
//! on what else the machine does, which calls per second and latency do: on two processors the
//! load generator and the echo server compete with the proxy. These are printed for information,
//! with one exception: the median latency of a single client, where nothing competes.
//!
//! # Why ratios
//!
//! Microseconds belong to one machine on one day. The floor does what no proxy can leave out, with
//! the same parts, in the same minutes; the product divided by it says what the product adds. So
//! the bounds hold on any machine, and none of this is a test with a clock in it: `run` prints
//! what it found, and only its exit code says that a bound was exceeded.
//!
//! # Every answer is checked
//!
//! For its id and its payload ([`load`]). Speed which comes with one crossed answer is worth
//! nothing: the run fails with exit code 2 at the first.
//!
//! # What stands in the floor's place
//!
//! No floor keeps records or projects: [`audit`], [`projects`] and [`tokens`] compare the product with itself, without records, with a
//! single project and with a key; [`replicas`] three gateways with one. None supervises: in [`hosting`] it is the servers alone.
//!
//! `--product floor` puts the floor in the product's place. Every ratio must then be close to 1:
//! how far it is from 1 is the error of the measurement.
//! On a machine that does other work at the same time that was up to 0.15, and single rounds strayed
//! by half; the note behind a ratio tells how far its rounds went.

pub(crate) mod api;
pub(crate) mod audit;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod hosting;
pub(crate) mod idle;
pub(crate) mod load;
pub(crate) mod part;
pub(crate) mod proc;
pub(crate) mod projects;
pub(crate) mod replicas;
pub(crate) mod report;
pub(crate) mod start;
pub(crate) mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, getrlimit, setrlimit};

use report::Row;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Fewer calls and clients: minutes become seconds, and the figures coarser
    #[arg(long)]
    quick: bool,
    /// Only shows that all of it works; the figures say nothing
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
    /// Runs only the cases whose name contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Writes the figures to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "toolwharf")]
    product: Which,
    /// The product's binary [default: `toolwharf` beside this program]
    #[arg(long, value_name = "PATH")]
    toolwharf: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Which {
    Toolwharf,
    /// The floor against itself: shows the error of the measurement
    Floor,
}

#[derive(Clone, Debug)]
pub(crate) enum Product {
    Toolwharf(PathBuf),
    Floor,
}

/// How much is done for a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effort {
    Full,
    Quick,
    Smoke,
}

/// The counts that an [`Effort`] stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) rounds: usize,
    /// Calls of a round at 32 clients.
    pub(crate) calls: u64,
    /// Calls of a round at one client.
    pub(crate) single_calls: u64,
    /// Lists of a round at 32 clients.
    pub(crate) list_calls: u64,
    pub(crate) streams: usize,
    pub(crate) starts: usize,
    pub(crate) projects: usize,
    /// Hosted servers that are killed.
    pub(crate) kills: usize,
    /// Hosted servers at the start and at rest.
    pub(crate) hosted: usize,
    /// How long they rest.
    pub(crate) rest: Duration,
}

impl Effort {
    pub(crate) fn size(self) -> Size {
        match self {
            // At the floor's 20 to 40 µs, 480,000 calls are 10 s of CPU time and more. Single rounds stray by half: it takes many.
            Self::Full => Size {
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
            },
            Self::Quick => Size {
                name: "quick",
                rounds: 6,
                calls: 4_800,
                single_calls: 500,
                list_calls: 960,
                streams: 2_000,
                starts: 3,
                projects: 1_000,
                kills: 100,
                hosted: 200,
                rest: Duration::from_secs(10),
            },
            Self::Smoke => Size {
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
            },
        }
    }
}

/// What the cases share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) product: Product,
    pub(crate) effort: Effort,
    /// Parts of the names of the cases that run; of none, all do.
    only: Vec<String>,
    /// Answers checked so far.
    pub(crate) checked: u64,
}

impl Driver {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Runs the cases and prints the table. The exit code is 1 if a bound was exceeded.
///
/// # Errors
///
/// A part did not start, or an answer was wrong: no figures are worth printing then.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    raise_descriptor_limit()?;
    let product = match options.product {
        Which::Floor => Product::Floor,
        Which::Toolwharf => {
            let path = match options.toolwharf {
                Some(path) => path,
                None => part::own_path()?.with_file_name("toolwharf"),
            };
            anyhow::ensure!(
                path.is_file(),
                "{} is missing: build it first",
                path.display()
            );
            Product::Toolwharf(path)
        }
    };
    let mut driver = Driver {
        product,
        effort: match (options.quick, options.smoke) {
            (_, true) => Effort::Smoke,
            (true, _) => Effort::Quick,
            _ => Effort::Full,
        },
        only: options.only,
        checked: 0,
    };
    let mut rows: Vec<Row> = Vec::new();
    for case in calls::CASES {
        if driver.wants(case.name) {
            eprintln!("{} …", case.name);
            rows.extend(calls::run(&mut driver, case).await.context(case.name)?);
        }
    }
    for name in [
        "list",
        "audit-sqlite",
        "audit-postgres",
        "replicas",
        "projects",
        "tokens",
        "idle-servers",
        "idle-streams",
        "start",
        "hosted-calls",
        "hosted-recovery",
        "hosted-neighbours",
        "hosted-many",
    ] {
        let wanted = match name {
            "replicas" => replicas::CASES.iter().any(|case| driver.wants(case.name)),
            _ => driver.wants(name),
        };
        if !wanted {
            continue;
        }
        eprintln!("{name} …");
        let measured = match name {
            "list" => calls::list(&mut driver).await,
            "audit-sqlite" => audit::sqlite(&mut driver).await,
            "audit-postgres" => audit::postgres(&mut driver).await,
            "replicas" => replicas::run(&mut driver).await,
            "projects" => projects::run(&mut driver).await,
            "tokens" => tokens::run(&mut driver).await,
            "idle-servers" => idle::servers(&mut driver).await,
            "idle-streams" => idle::streams(&mut driver).await,
            "start" => start::run(&mut driver).await,
            "hosted-calls" => hosting::calls(&mut driver).await,
            "hosted-recovery" => hosting::recovery(&mut driver).await,
            "hosted-neighbours" => hosting::neighbours(&mut driver).await,
            _ => hosting::many(&mut driver).await,
        };
        rows.extend(measured.context(name)?);
    }
    anyhow::ensure!(
        !rows.is_empty(),
        "no case is named {}",
        driver.only.join(" or ")
    );
    print!("{}", report::table(&rows));
    println!("{} answers were checked, all of them right", driver.checked);
    if let Some(file) = &options.json {
        let product = match &driver.product {
            Product::Toolwharf(_) => "toolwharf",
            Product::Floor => "floor",
        };
        let report = report::json(&rows, product, driver.effort.size().name, driver.checked);
        std::fs::write(file, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let over = rows.iter().any(|row| row.kept() == Some(false));
    Ok(ExitCode::from(u8::from(over)))
}

/// Raises the soft limit of descriptors to the hard one, for this process and those it starts.
///
/// # Errors
///
/// The system refuses.
pub(crate) fn raise_descriptor_limit() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}
