//! The cost of many projects: compares a database with a thousand projects, each with five unused stdio servers, with a
//! database with one project.
//!
//! Both databases are filled through the REST API. Then the gateway is restarted and measured: the start, the memory
//! after it, and the tool list of one project with connected servers. The list is measured a second time after every
//! project has been requested, so that all are in memory.

use std::path::PathBuf;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::Api;
use super::calls::{
    CLIENTS, Figure, Side, TOOLS_EACH, cpu, interleave, p50, server_arguments, stdio_entry,
};
use super::client::{Client, result_of};
use super::idle::settled;
use super::load::Work;
use super::part::{self, Home, Part};
use super::ready::wait_for_tools;
use super::report::{Bound, Row, median};
use super::{Driver, Product};
use crate::echo::Era;

const SERVERS: usize = 5;
/// Limit of the time from the start to the first 200 of `/readyz`, in milliseconds.
const MAX_BOOT_MS: f64 = 1_000.0;
/// Limit of the memory after the start, in MiB.
const MAX_BOOT_MB: f64 = 60.0;
/// Maximum cost of a tool list, relative to the cost with one project.
const MAX_RATIO: f64 = 1.2;

/// The figures of the tool list, with many clients and with one client. [`LIST_OF_ALL`] has the same figures once all
/// projects are in memory.
const LIST: [Figure; 2] = [
    cpu("CPU per tools/list, 32 clients", Bound::Ratio(MAX_RATIO)),
    p50("p50 of tools/list, 1 client", Bound::Ratio(MAX_RATIO)),
];
const LIST_OF_ALL: [Figure; 2] = [
    cpu("CPU per tools/list, all loaded", Bound::Ratio(MAX_RATIO)),
    p50("p50 of tools/list, all loaded", Bound::Ratio(MAX_RATIO)),
];

/// The product that is started repeatedly.
enum Place {
    /// The gateway with its database.
    Product(Home, PathBuf),
    Floor,
}

/// The duration of each start in milliseconds, and the memory after it in MiB.
#[derive(Default)]
struct Boots {
    took: Vec<f64>,
    memory: Vec<f64>,
}

/// Measures the start, the memory and the tool list of one project.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let size = driver.size;
    let one = Place::with(&driver.product, 1).await?;
    let many = Place::with(&driver.product, size.projects).await?;
    let mut boots = (Boots::default(), Boots::default());
    let mut up: Option<(Part, Part)> = None;
    for _ in 0..size.starts {
        if let Some((one, many)) = up.take() {
            one.stop().await;
            many.stop().await;
        }
        up = Some((
            one.boot(&mut boots.0).await?,
            many.boot(&mut boots.1).await?,
        ));
    }
    let (mut one_up, mut many_up) = up.context("nothing was started")?;
    let measured = async {
        for part in [&mut one_up, &mut many_up] {
            wait_for_tools(part, SERVERS * TOOLS_EACH).await?;
        }
        let mut rows = lists(driver, &one_up, &many_up, &LIST).await?;
        many.look_at_all(&many_up, size.projects).await?;
        let memory = settled(many_up.pid).await?;
        rows.extend(lists(driver, &one_up, &many_up, &LIST_OF_ALL).await?);
        anyhow::Ok((rows, memory))
    };
    let measured = measured.await;
    one_up.stop().await;
    let measured = many_up.finish(measured).await;
    let (listed, memory) = measured?;

    let row = |figure, unit, floor, product, bound| Row {
        case: "projects",
        figure,
        unit,
        floor,
        product,
        bound,
        note: String::new(),
    };
    let (took, kept) = (Bound::Absolute(MAX_BOOT_MS), Bound::Absolute(MAX_BOOT_MB));
    let (of_one, of_many) = (boots.0.medians(), boots.1.medians());
    let memory = memory as f64 / 1024.0;
    let mut rows = vec![
        row("start to ready", "ms", Some(of_one.0), of_many.0, took),
        row("memory", "MB", Some(of_one.1), of_many.1, kept),
        row("memory, all loaded", "MB", None, memory, Bound::None),
    ];
    rows[0].note = format!(
        "{} projects with {SERVERS} servers; floor: one project",
        size.projects
    );
    rows.extend(listed);
    Ok(rows)
}

/// Lists the tools of the project that both databases contain.
async fn lists(
    driver: &mut Driver,
    one: &Part,
    many: &Part,
    [cpu, p50]: &[Figure; 2],
) -> anyhow::Result<Vec<Row>> {
    let size = driver.size;
    let sides = (side(one).await?, side(many).await?);
    let load = (Era::Legacy, CLIENTS);
    let rounds = (size.rounds, size.list_calls);
    let busy = interleave(driver, &sides.0, &sides.1, load, rounds).await?;
    let load = (Era::Legacy, 1);
    let rounds = (size.rounds, size.list_calls.div_ceil(4));
    let alone = interleave(driver, &sides.0, &sides.1, load, rounds).await?;
    let mut rows = vec![busy.row("projects", cpu), alone.row("projects", p50)];
    rows[0].note = busy.note();
    Ok(rows)
}

async fn side(part: &Part) -> anyhow::Result<Side<'_>> {
    let page = Client::connect(&part.url, Era::Legacy)
        .await?
        .list(None)
        .await?;
    let result = Bytes::copy_from_slice(result_of(&page)?.get().as_bytes());
    let handshake = true;
    Ok(Side::new(part, &part.url, Work::List { result, handshake }))
}

impl Place {
    /// Creates a database with this number of projects.
    async fn with(product: &Product, projects: usize) -> anyhow::Result<Self> {
        let Product::Toolwharf(program) = product else {
            return Ok(Self::Floor);
        };
        let home = Home::new(&json!({}), "")?;
        let part = home.start(program).await?;
        let filled = fill(&mut part.api().await?, projects).await;
        part.finish(filled).await?;
        Ok(Self::Product(home, program.clone()))
    }

    /// Starts the product. The endpoint is the project that all databases contain.
    async fn boot(&self, boots: &mut Boots) -> anyhow::Result<Part> {
        let started = Instant::now();
        let part = match self {
            Self::Floor => {
                let tools = (SERVERS * TOOLS_EACH).to_string();
                part::own(&["echo-http", "--tools", &tools]).await?
            }
            Self::Product(home, program) => {
                let mut part = home.start(program).await?;
                part.url.push_str(&format!("/{}", project(0)));
                part
            }
        };
        boots.took.push(started.elapsed().as_secs_f64() * 1e3);
        boots.memory.push(settled(part.pid).await? as f64 / 1024.0);
        Ok(part)
    }

    /// Requests all projects once, without starting a server.
    async fn look_at_all(&self, part: &Part, projects: usize) -> anyhow::Result<()> {
        if let Self::Floor = self {
            return Ok(());
        }
        let mut api = part.api().await?;
        for n in 0..projects {
            let path = format!("/mcp/servers?project={}", project(n));
            api.ask("GET", &path, &Value::Null).await?;
        }
        Ok(())
    }
}

impl Boots {
    fn medians(self) -> (f64, f64) {
        (median(self.took), median(self.memory))
    }
}

async fn fill(api: &mut Api, projects: usize) -> anyhow::Result<()> {
    for n in 0..projects {
        let path = format!("/projects/{}", project(n));
        api.ask("PUT", &path, &json!({})).await?;
        for server in 0..SERVERS {
            let path = format!("/mcp/servers/server{server}?project={}", project(n));
            let entry = stdio_entry(&server_arguments(server, 0))?;
            api.ask("PUT", &path, &entry).await?;
        }
    }
    Ok(())
}

fn project(n: usize) -> String {
    format!("project-{n:04}")
}
