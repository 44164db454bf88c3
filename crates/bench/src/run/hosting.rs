//! The cost of hosting: calls through the bridge, recovery after `kill -9`, calls next to a server that takes all
//! resources it can get, and the start and the idle cost of two hundred servers.
//!
//! Everything uses the `process` runtime (bubblewrap with control groups), as root. The server is the echo server, with
//! half a core, which is the default for hosted servers.
//!
//! For the start measurement, every server computes for a while before it reads, like an interpreter that loads a
//! program. Otherwise, the sandbox would be compared with a bare `fork`, which is not realistic.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::calls::{self, CPU_OF_ONE, MANY, NO_AUDIT, Side, Transport, many_and_one, p50, words};
use super::idle::settled;
use super::load::{Load, Work};
use super::part::{Home, Part, own_path};
use super::proc;
use super::report::{Bound, Row, median};
use super::start::servers_alone;
use super::{Driver, Product};
use crate::echo::Era;

/// Maximum cost of the bridge, relative to the baseline proxy.
const MAX_RATIO: f64 = 1.5;
/// Time that a killed server may take until its next good response, in addition to its own start, in milliseconds.
const MAX_RECOVERY_MS: f64 = 1_000.0;
/// Kills per server. The gateway restarts a server immediately after each of these kills, but waits 5 s after one more.
const KILLS_EACH: usize = 3;
/// Share of a core that the gateway may use while its servers are idle, in percent.
const MAX_IDLE_CPU_PERCENT: f64 = 1.0;
/// Limit of the gateway's memory while its servers are idle, in MiB.
const MAX_IDLE_MB: f64 = 60.0;
/// Maximum start time of the gateway with its servers, relative to the start time of the servers alone.
const MAX_BOOT_RATIO: f64 = 1.2;
/// CPU time that a server uses before it reads, in milliseconds.
const START_WORK_MS: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(120);
/// The environment variable with the name of a server.
const NAME_VARIABLE: &str = "BENCH_SERVER";
const BESIDE: &str = "p99 with one client; floor: while the neighbour is idle";
/// Time within which the sandbox must contain a neighbour that takes all resources.
const CONTAIN_TIME: Duration = Duration::from_secs(1);
const HOGS: [Hog; 6] = [
    Hog::again("neighbour computes", "burn", r#"{"ms":5000}"#),
    Hog {
        once: Some("neighbour forks, first second"),
        ..Hog::again("neighbour forks", "bomb", r#"{"ms":9000}"#)
    },
    Hog::again("neighbour takes memory", "alloc", r#"{"mib":4096}"#),
    Hog::again(
        "neighbour fills /tmp repeatedly",
        "flood_disk",
        r#"{"path":"/tmp/much","ms":5000,"anew":true}"#,
    ),
    Hog {
        volumes: &["/data"],
        once: Some("neighbour fills its volume, first second"),
        ..Hog::again(
            "neighbour fills its volume",
            "flood_disk",
            r#"{"path":"/data/much","ms":9000}"#,
        )
    },
    Hog::again(
        "neighbour floods stderr",
        "stderr",
        r#"{"bytes":1073741824}"#,
    ),
];
const SETTINGS: &str = "[hosting]\nproviders = [\"process\"]\n";

/// The action of a neighbour, as a tool of `testkit-scripted`.
struct Hog {
    figure: &'static str,
    tool: &'static str,
    arguments: &'static str,
    volumes: &'static [&'static str],
    /// `Some`: the tool is called only once, and the measurement starts [`CONTAIN_TIME`] later. The value is the name
    /// of the figure for the time before. `None`: the tool is called repeatedly, and the whole time is measured.
    once: Option<&'static str>,
}

impl Hog {
    const fn again(figure: &'static str, tool: &'static str, arguments: &'static str) -> Self {
        Self {
            figure,
            tool,
            arguments,
            volumes: &[],
            once: None,
        }
    }
}

const BRIDGE: calls::Figure = p50("p50, 1 client", Bound::Ratio(MAX_RATIO));

/// Measures calls to a hosted server: over the REST API, and over MCP.
pub(crate) async fn calls(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let floor = calls::floor(Transport::Stdio, Era::Legacy).await?;
    let hosts = match &driver.product {
        Product::Floor => None,
        Product::Toolwharf(program) => {
            let home = Home::new(&json!({}), &format!("{NO_AUDIT}{SETTINGS}"))?;
            Some(home.start(program).await?)
        }
    };
    let measured = async {
        let Some(hosts) = &hosts else {
            let side = Side::echo(&floor, Era::Legacy).await?;
            return compare(driver, &floor, [&side, &side]).await;
        };
        register(hosts, "echo", 0).await?;
        running(hosts, 1).await?;
        let url = hosts.url.clone();
        let call = path(hosts, "/mcp/servers/echo/call");
        let bearer = hosts.token()?;
        let bridge = Side::new(hosts, &call, Work::Bridge { bearer });
        let tool = "echo".to_owned();
        let client = Side::new(hosts, &url, Work::Echo { tool });
        compare(driver, &floor, [&bridge, &client]).await
    };
    let measured = measured.await;
    let measured = match hosts {
        Some(hosts) => hosts.finish(measured).await,
        None => measured,
    };
    floor.stop().await;
    measured
}

async fn compare(
    driver: &mut Driver,
    floor: &calls::Chain,
    [bridge, client]: [&Side<'_>; 2],
) -> anyhow::Result<Vec<Row>> {
    let floor = Side::echo(floor, Era::Legacy).await?;
    let mut rows = Vec::new();
    for (case, side) in [("hosted-bridge", bridge), ("hosted-mcp", client)] {
        let (many, one) = many_and_one(driver, &floor, side, Era::Legacy).await?;
        let at = rows.len();
        rows.extend(many.rows(case, &MANY));
        rows.extend(one.rows(case, &[BRIDGE, CPU_OF_ONE]));
        rows[at].note = many.note();
    }
    Ok(rows)
}

/// Measures the time from `kill -9` of a server to its next good response.
pub(crate) async fn recovery(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let kills = driver.size.kills;
    let mut alone = Vec::new();
    for _ in 0..kills.min(200) {
        alone.push(servers_alone(vec![Vec::new()]).await?);
    }
    let mut back = match &driver.product {
        Product::Floor => alone.clone(),
        Product::Toolwharf(program) => {
            let hosts = Home::new(&json!({}), SETTINGS)?.start(program).await?;
            let killed = kill_all(&hosts, kills).await;
            driver.checked += kills as u64;
            hosts.finish(killed).await?
        }
    };
    let most = back.iter().copied().fold(0.0, f64::max);
    Ok(vec![Row {
        case: "hosted-recovery",
        figure: "kill -9 to the next good answer, p99",
        unit: "ms",
        floor: Some(percentile(&mut alone, 0.99)),
        product: percentile(&mut back, 0.99),
        bound: Bound::Added(MAX_RECOVERY_MS),
        note: format!(
            "{kills} kills; median {:.0} ms, longest {most:.0} ms; floor: the start of the server alone",
            percentile(&mut back, 0.5)
        ),
    }])
}

/// Measures calls to one server while another takes all resources it can get.
pub(crate) async fn neighbours(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let Product::Toolwharf(program) = driver.product.clone() else {
        return Ok(vec![neighbour("none", 1.0, 1.0)]);
    };
    let settings = format!("{NO_AUDIT}{SETTINGS}");
    let hosts = Home::new(&json!({}), &settings)?.start(&program).await?;
    let measured = async {
        register(&hosts, "echo", 0).await?;
        let scripted = own_path()?.with_file_name("testkit-scripted");
        let mut api = hosts.api().await?;
        let call = path(&hosts, "/mcp/servers/echo/call");
        let bearer = hosts.token()?;
        let work = Work::Bridge { bearer };
        let mut load = Load::connect(&call, hosts.pid, Era::Legacy, 1, &work).await?;
        let calls = driver.size.single_calls * 2;
        load.round(calls).await?;
        let mut rows = Vec::new();
        for hog in HOGS {
            let entry = json!({
                "name": "hog",
                "command": scripted,
                "volumes": hog.volumes,
                "call_timeout_ms": 10_000,
            });
            api.register(&entry).await?;
            running(&hosts, 2).await?;
            let mut quiet = Vec::new();
            let mut loud = Vec::new();
            let mut early = Vec::new();
            for _ in 0..driver.size.rounds.div_ceil(3) {
                quiet.push(load.round(calls).await?.latency(0.99));
                let attacked = async {
                    let began = Instant::now();
                    while hog.once.is_some() && began.elapsed() < CONTAIN_TIME {
                        early.push(load.round(calls / 4).await?.latency(0.99));
                    }
                    load.round(calls).await
                };
                let round = tokio::select! {
                    round = attacked => round?,
                    done = misbehave(&hosts, &hog) => match done? {},
                };
                loud.push(round.latency(0.99));
                driver.checked += 2 * calls;
                api.order("hog", "restart").await?;
            }
            api.ask("DELETE", "/mcp/servers/hog?volumes=true", &Value::Null)
                .await?;
            let quiet = median(quiet);
            let mut row = neighbour(hog.figure, quiet, median(loud));
            if let Some(figure) = hog.once {
                row.note = format!("{BESIDE}; from one second after it began");
                let mut first = neighbour(figure, quiet, median(early));
                first.bound = Bound::None;
                rows.push(first);
            }
            rows.push(row);
        }
        Ok(rows)
    };
    let measured = measured.await;
    hosts.finish(measured).await
}

fn neighbour(figure: &'static str, quiet: f64, loud: f64) -> Row {
    Row {
        case: "hosted-neighbours",
        figure,
        unit: "µs",
        floor: Some(quiet),
        product: loud,
        bound: Bound::Ratio(MAX_RATIO),
        note: BESIDE.to_owned(),
    }
}

/// Measures the start and the idle cost of two hundred hosted servers.
pub(crate) async fn many(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let size = driver.size;
    let work = START_WORK_MS.to_string();
    let alone = async || servers_alone(vec![words(&["--start-work", &work]); size.hosted]).await;
    let Product::Toolwharf(program) = driver.product.clone() else {
        let took = alone().await?;
        return Ok(vec![boot(took, took, size.hosted)]);
    };
    let home = Home::new(&json!({}), SETTINGS)?;
    let hosts = home.start(&program).await?;
    let registered = async {
        for n in 0..size.hosted {
            register(&hosts, &format!("s{n}"), START_WORK_MS).await?;
        }
        running(&hosts, size.hosted).await
    };
    let registered = registered.await;
    hosts.finish(registered).await?;

    let (mut them, mut whole) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for n in 0..size.starts.div_ceil(3) {
        them.push(alone().await?);
        let started = Instant::now();
        let hosts = home.start(&program).await?;
        let up = running(&hosts, size.hosted).await;
        whole.push(started.elapsed().as_secs_f64() * 1e3);
        let rested = async {
            up?;
            if n == 0 {
                rows = at_rest(&hosts, size.hosted, size.rest).await?;
            }
            Ok(())
        };
        let rested = rested.await;
        hosts.finish(rested).await?;
    }
    rows.insert(0, boot(median(them), median(whole), size.hosted));
    Ok(rows)
}

fn boot(alone: f64, whole: f64, hosted: usize) -> Row {
    Row {
        case: "hosted-many",
        figure: "start until all servers run",
        unit: "ms",
        floor: Some(alone),
        product: whole,
        bound: Bound::Ratio(MAX_BOOT_RATIO),
        note: format!(
            "{hosted} servers, each computes {START_WORK_MS} ms first; floor: the servers alone"
        ),
    }
}

/// Measures the resources used without calls.
async fn at_rest(hosts: &Part, hosted: usize, rest: Duration) -> anyhow::Result<Vec<Row>> {
    let pid = hosts.pid;
    let memory = settled(pid).await? as f64 / 1024.0;
    let used = || anyhow::Ok(proc::cpu_time(pid)? + proc::of_helpers(pid, proc::cpu_time));
    let (before, since) = (used()?, Instant::now());
    sleep(rest).await;
    let share = (used()? - before) as f64 / since.elapsed().as_nanos() as f64 * 100.0;
    let helpers = proc::of_helpers(pid, proc::private) as f64 / 1024.0;
    let row = |figure, unit, product, bound, note| Row {
        case: "hosted-many",
        figure,
        unit,
        floor: None,
        product,
        bound: Bound::Absolute(bound),
        note,
    };
    Ok(vec![
        row(
            "CPU at rest",
            "% of a core",
            share,
            MAX_IDLE_CPU_PERCENT,
            format!("over {} s, helper processes included", rest.as_secs()),
        ),
        row(
            "memory at rest",
            "MB",
            memory,
            MAX_IDLE_MB,
            format!(
                "{hosted} servers; its helper processes: {helpers:.1} MB more, shared pages counted again"
            ),
        ),
    ])
}

fn path(part: &Part, path: &str) -> String {
    let origin = part.url.trim_end_matches("/mcp");
    format!("{origin}/api/v1{path}")
}

async fn register(part: &Part, name: &str, work: u64) -> anyhow::Result<()> {
    let entry = json!({
        "name": name,
        "command": own_path()?,
        "args": ["echo-stdio", "--start-work", work.to_string()],
        "environment": { NAME_VARIABLE: name },
        "max_concurrency": 64,
    });
    part.api().await?.register(&entry).await
}

/// Waits until this number of servers run.
async fn running(part: &Part, count: usize) -> anyhow::Result<()> {
    let mut api = part.api().await?;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let told = api.ask("GET", "/mcp/servers", &Value::Null).await?;
        let servers = told["servers"].as_array().context("no list of servers")?;
        let up = servers.iter().filter(|one| one["status"] == "running");
        let up = up.count();
        if up == count {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "only {up} of {count} servers run after {} s; one that does not: {:?}",
            DEADLINE.as_secs(),
            servers.iter().find(|one| one["status"] != "running")
        );
        // The list measures the usage of each server, so requesting it too often would distort the result.
        sleep(Duration::from_millis(250)).await;
    }
}

/// Makes the neighbour misbehave, and restarts it if it has exited.
async fn misbehave(part: &Part, hog: &Hog) -> anyhow::Result<Infallible> {
    let mut api = part.api().await?;
    let arguments: Value = serde_json::from_str(hog.arguments)?;
    loop {
        let called = api.call("hog", hog.tool, &arguments).await;
        if hog.once.is_some() {
            // A server that is killed does not respond.
            return std::future::pending().await;
        }
        if called.is_err() {
            api.order("hog", "restart").await?;
        }
    }
}

/// Kills servers one after the other, each no more than [`KILLS_EACH`] times. Returns the time from each kill to
/// the next good response, in milliseconds.
async fn kill_all(part: &Part, kills: usize) -> anyhow::Result<Vec<f64>> {
    let servers = kills.div_ceil(KILLS_EACH);
    for n in 0..servers {
        register(part, &format!("s{n}"), 0).await?;
    }
    running(part, servers).await?;
    let mut api = part.api().await?;
    let mut took = Vec::with_capacity(kills);
    for n in 0..kills {
        let name = format!("s{}", n % servers);
        let pid = proc::hosted(&format!("{NAME_VARIABLE}={name}"), "bench")?;
        let payload = format!("kill {n}");
        let arguments = json!({ "payload": payload });
        let killed = Instant::now();
        kill_process(pid, Signal::KILL).context("the server has already exited")?;
        loop {
            match api.call(&name, "echo", &arguments).await {
                Ok(answer) => {
                    let text = &answer["result"]["content"][0]["text"];
                    anyhow::ensure!(*text == payload, "{name} answered {answer}");
                    break;
                }
                Err(error) => {
                    anyhow::ensure!(killed.elapsed() < DEADLINE, "{name} is not back: {error:#}")
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
        took.push(killed.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

fn percentile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    figures.get(at).copied().unwrap_or(f64::NAN)
}
