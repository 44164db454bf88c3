//! The cases that measure calls: the gateway against the floor, in alternating rounds.
//!
//! The gateway does not record calls here, since the floor does not either. The cost of recording is measured in
//! [`super::audit`]. Only tool calls are recorded, so lists are measured with the default settings.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::client::{Client, result_of};
use super::load::{Load, Round, Work};
use super::part::{self, Home, Part, own_path};
use super::report::{Bound, Row, median};
use super::{Driver, Product};
use crate::echo::Era;

/// Transport of the server behind the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    Http,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    client: Era,
    server: Era,
    transport: Transport,
    concurrency: Concurrency,
}

/// The number of concurrent calls that the server's entry allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    /// 64, set explicitly.
    Named,
    /// The default of an entry.
    Default,
}

pub(crate) const CASES: [Case; 7] = [
    case(
        "stdio-legacy-legacy",
        Era::Legacy,
        Era::Legacy,
        Transport::Stdio,
    ),
    case(
        "http-legacy-legacy",
        Era::Legacy,
        Era::Legacy,
        Transport::Http,
    ),
    case(
        "stdio-modern-legacy",
        Era::Modern,
        Era::Legacy,
        Transport::Stdio,
    ),
    case(
        "http-legacy-modern",
        Era::Legacy,
        Era::Modern,
        Transport::Http,
    ),
    case(
        "http-modern-modern",
        Era::Modern,
        Era::Modern,
        Transport::Http,
    ),
    case(
        "stdio-default-legacy",
        Era::Legacy,
        Era::Legacy,
        Transport::Stdio,
    )
    .with_default_concurrency(),
    case(
        "stdio-default-modern",
        Era::Modern,
        Era::Legacy,
        Transport::Stdio,
    )
    .with_default_concurrency(),
];

/// Maximum cost of the gateway, relative to the floor.
const MAX_RATIO: f64 = 1.5;
/// Latency that the gateway may add for a single client, in microseconds.
const MAX_ADDED_US: f64 = 150.0;
pub(crate) const CLIENTS: usize = 32;
const SERVERS: usize = 10;
pub(crate) const TOOLS_EACH: usize = 20;
/// Turns off the recording of tool calls.
pub(crate) const NO_AUDIT: &str = "[audit]\nenabled = false\n";

pub(crate) const fn case(
    name: &'static str,
    client: Era,
    server: Era,
    transport: Transport,
) -> Case {
    Case {
        name,
        client,
        server,
        transport,
        concurrency: Concurrency::Named,
    }
}

impl Case {
    const fn with_default_concurrency(mut self) -> Self {
        self.concurrency = Concurrency::Default;
        self
    }
}

/// A proxy, and the server behind it unless the proxy started it.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) proxy: Part,
    server: Option<Part>,
}

impl Chain {
    pub(crate) async fn stop(self) {
        self.proxy.stop().await;
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

/// Measures one case of calls through a proxy.
///
/// # Errors
///
/// A process did not start, or a response was wrong.
pub(crate) async fn run(driver: &mut Driver, case: Case) -> anyhow::Result<Vec<Row>> {
    // The floor cannot translate between eras, so the server behind it has the client's era. For the floor, this is the
    // same work.
    let floor = floor(case.transport, case.client)
        .await
        .context("the floor")?;
    let product = match &driver.product {
        Product::Floor => self::floor(case.transport, case.client).await?,
        Product::Toolwharf(program) => through_product(program, case, NO_AUDIT)
            .await
            .context("the product")?,
    };
    let rows = compare_calls(driver, case, &floor, &product).await;
    let rows = rows.with_context(|| format!("the product's log ends:\n{}", product.proxy.log()));
    product.stop().await;
    floor.stop().await;
    rows
}

async fn compare_calls(
    driver: &mut Driver,
    case: Case,
    floor: &Chain,
    product: &Chain,
) -> anyhow::Result<Vec<Row>> {
    let size = driver.effort.size();
    let floor = Side::echo(floor, case.client).await?;
    let product = Side::echo(product, case.client).await?;
    let load = (case.client, CLIENTS);
    let many = interleave(driver, &floor, &product, load, (size.rounds, size.calls))
        .await
        .context("32 clients")?;
    let load = (case.client, 1);
    let rounds = (size.rounds, size.single_calls);
    let one = interleave(driver, &floor, &product, load, rounds)
        .await
        .context("1 client")?;
    let mut rows: Vec<_> = MANY
        .iter()
        .map(|figure| many.row(case.name, figure))
        .collect();
    rows.extend(ONE.iter().map(|figure| one.row(case.name, figure)));
    rows[0].note = many.note();
    Ok(rows)
}

/// Measures `tools/list` with 200 tools, compared with sending the same bytes from memory.
///
/// # Errors
///
/// As [`run`].
pub(crate) async fn list(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let mut source = match driver.product.clone() {
        Product::Floor => {
            part::own(&words(&[
                "echo-http",
                "--tools",
                &(SERVERS * TOOLS_EACH).to_string(),
            ]))
            .await?
        }
        Product::Toolwharf(program) => {
            let mut product = part::product_spawn(&program, &ten_servers(0)?).await?;
            product.ready().await?;
            product
        }
    };
    crate::run::ready::wait_for_tools(&mut source, SERVERS * TOOLS_EACH).await?;
    let mut client = Client::connect(&source.url, Era::Legacy).await?;
    let page = client.list(None).await?;
    let tools = client.tools().await?.len();
    drop(client);
    let result = bytes::Bytes::copy_from_slice(result_of(&page)?.get().as_bytes());
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &result)?;
    let path = file.path().display().to_string();
    let bytes = words(&["floor-bytes", "--file", &path]);
    let floor = part::own(&bytes).await?;
    let product = match driver.product {
        Product::Floor => {
            source.stop().await;
            part::own(&bytes).await?
        }
        Product::Toolwharf(_) => source,
    };
    let of = |handshake| Work::List {
        result: result.clone(),
        handshake,
    };
    let handshake = matches!(driver.product, Product::Toolwharf(_));
    let sides = (
        Side::new(&floor, &floor.url, of(false)),
        Side::new(&product, &product.url, of(handshake)),
    );
    let size = driver.effort.size();
    let rounds = (size.rounds, size.list_calls);
    let load = (Era::Legacy, CLIENTS);
    let pair = interleave(driver, &sides.0, &sides.1, load, rounds)
        .await
        .with_context(|| format!("tools/list; the product's log ends:\n{}", product.log()));
    product.stop().await;
    floor.stop().await;
    let pair = pair?;
    let mut rows: Vec<_> = LIST.iter().map(|figure| pair.row("list", figure)).collect();
    rows[0].note = format!("{tools} tools, {} bytes; {}", result.len(), pair.note());
    Ok(rows)
}

/// The processes and the work of one side.
pub(crate) struct Side<'a> {
    url: &'a str,
    pid: u32,
    work: Work,
    /// Further processes that clients are distributed over.
    others: Vec<(&'a str, u32)>,
    /// Processes without calls whose CPU time also counts.
    idle: Vec<u32>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(part: &Part, url: &'a str, work: Work) -> Self {
        let pid = part.pid;
        Self {
            url,
            pid,
            work,
            others: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Calls of the echo tool, by its listed name.
    ///
    /// # Errors
    ///
    /// No echo tool is listed.
    pub(crate) async fn echo(chain: &'a Chain, era: Era) -> anyhow::Result<Self> {
        let url = &chain.proxy.url;
        let tools = Client::connect(url, era).await?.tools().await?;
        let tool = tools.into_iter().find(|name| name.ends_with("echo"));
        let tool = tool.context("no echo tool is listed")?;
        Ok(Self::new(&chain.proxy, url, Work::Echo { tool }))
    }

    /// Distributes clients over this process, too.
    pub(crate) fn beside(mut self, chain: &'a Chain) -> Self {
        self.others.push((&chain.proxy.url, chain.proxy.pid));
        self
    }

    /// Also counts the CPU time of this process, which gets no calls.
    pub(crate) fn counting(mut self, chain: &Chain) -> Self {
        self.idle.push(chain.proxy.pid);
        self
    }

    pub(crate) async fn connect(&self, era: Era, clients: usize) -> anyhow::Result<Load> {
        let each = clients.div_ceil(1 + self.others.len());
        let mut load = Load::connect(self.url, self.pid, era, each, &self.work).await?;
        for (url, pid) in &self.others {
            load = load.beside(Load::connect(url, *pid, era, each, &self.work).await?);
        }
        load.count(&self.idle);
        Ok(load)
    }
}

/// All rounds of both sides. A figure is the median of its rounds, so that a disturbance during one round has no
/// effect.
#[derive(Default)]
pub(crate) struct Pair {
    pub(crate) floor: Vec<Round>,
    pub(crate) product: Vec<Round>,
    streamed: u64,
}

impl Pair {
    pub(crate) fn extend(&mut self, more: Self) {
        self.floor.extend(more.floor);
        self.product.extend(more.product);
        self.streamed += more.streamed;
    }

    /// The row of one figure.
    pub(crate) fn row(&self, case: &'static str, figure: &Figure) -> Row {
        let over = |rounds: &[Round]| median(rounds.iter().map(figure.value).collect());
        Row {
            case,
            figure: figure.name,
            unit: figure.unit,
            floor: Some(over(&self.floor)),
            product: over(&self.product),
            bound: figure.bound,
            note: String::new(),
        }
    }

    /// The range of the CPU time ratio over all rounds.
    pub(crate) fn note(&self) -> String {
        let ratios = self.floor.iter().zip(&self.product);
        let ratios = ratios.map(|(floor, product)| product.cpu_per_call() / floor.cpu_per_call());
        let (least, most) = ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| {
            (least.min(ratio), most.max(ratio))
        });
        let mut note = format!("rounds ×{least:.2} … ×{most:.2}");
        if self.streamed > 0 {
            note.push_str(&format!(
                "; {} answers came as event streams",
                self.streamed
            ));
        }
        note
    }
}

/// One figure of a round.
pub(crate) struct Figure {
    name: &'static str,
    unit: &'static str,
    bound: Bound,
    value: fn(&Round) -> f64,
}

pub(crate) const fn figure(
    name: &'static str,
    unit: &'static str,
    bound: Bound,
    value: fn(&Round) -> f64,
) -> Figure {
    Figure {
        name,
        unit,
        bound,
        value,
    }
}

pub(crate) const MANY: [Figure; 4] = [
    figure(
        "CPU per call, 32 clients",
        "µs",
        Bound::Ratio(MAX_RATIO),
        Round::cpu_per_call,
    ),
    figure(
        "calls per second, 32 clients",
        "1/s",
        Bound::None,
        Round::calls_per_second,
    ),
    figure("p50, 32 clients", "µs", Bound::None, |round| {
        round.latency(0.5)
    }),
    figure("p99, 32 clients", "µs", Bound::None, |round| {
        round.latency(0.99)
    }),
];
pub(crate) const ONE: [Figure; 2] = [
    figure("p50, 1 client", "µs", Bound::Added(MAX_ADDED_US), |round| {
        round.latency(0.5)
    }),
    figure(
        "CPU per call, 1 client",
        "µs",
        Bound::None,
        Round::cpu_per_call,
    ),
];
const LIST: [Figure; 2] = [
    figure(
        "CPU per tools/list, 32 clients",
        "µs",
        Bound::Ratio(MAX_RATIO),
        Round::cpu_per_call,
    ),
    figure("p50, 32 clients", "µs", Bound::None, |round| {
        round.latency(0.5)
    }),
];

/// Alternates the sides (floor, product, product, floor, …), so that a temporary disturbance affects both.
pub(crate) async fn interleave(
    driver: &mut Driver,
    floor: &Side<'_>,
    product: &Side<'_>,
    (era, clients): (Era, usize),
    (rounds, calls): (usize, u64),
) -> anyhow::Result<Pair> {
    let mut floor = floor.connect(era, clients).await.context("the floor")?;
    let product = product.connect(era, clients).await;
    let mut product = product.context("the product")?;
    let warm_up = calls / 2;
    driver.checked += floor.round(warm_up).await.context("the floor")?.calls;
    driver.checked += product.round(warm_up).await.context("the product")?.calls;
    let mut pair = Pair {
        floor: Vec::with_capacity(rounds),
        product: Vec::with_capacity(rounds),
        streamed: 0,
    };
    for n in 0..rounds {
        // The order alternates, so that neither side always comes second.
        let (of_floor, of_product);
        if n % 2 == 0 {
            of_floor = floor.round(calls).await.context("the floor")?;
            of_product = product.round(calls).await.context("the product")?;
        } else {
            of_product = product.round(calls).await.context("the product")?;
            of_floor = floor.round(calls).await.context("the floor")?;
        }
        driver.checked += of_floor.calls + of_product.calls;
        pair.floor.push(of_floor);
        pair.product.push(of_product);
    }
    pair.streamed = product.streamed();
    Ok(pair)
}

/// Starts the floor in front of an echo server.
pub(crate) async fn floor(transport: Transport, era: Era) -> anyhow::Result<Chain> {
    match transport {
        Transport::Stdio => {
            let program = own_path()?.display().to_string();
            let server = [&program, "echo-stdio", "--era", era_name(era)];
            let arguments = words(&[&["floor-stdio", "--"], server.as_slice()].concat());
            Ok(Chain {
                proxy: part::own(&arguments).await?,
                server: None,
            })
        }
        Transport::Http => {
            let server = part::own(&words(&["echo-http", "--era", era_name(era)])).await?;
            let proxy = part::own(&words(&["floor-http", "--upstream", &server.url])).await?;
            Ok(Chain {
                proxy,
                server: Some(server),
            })
        }
    }
}

/// Starts the gateway with these settings in front of an echo server.
pub(crate) async fn through_product(
    program: &Path,
    case: Case,
    settings: &str,
) -> anyhow::Result<Chain> {
    let (server, mut entry) = match case.transport {
        Transport::Stdio => (None, stdio_entry(&["--era", era_name(case.server)])?),
        Transport::Http => {
            let server = part::own(&words(&["echo-http", "--era", era_name(case.server)])).await?;
            let entry = json!({
                "type": "http",
                "url": server.url,
                "toolwharf": { "maxConcurrency": 64 },
            });
            (Some(server), entry)
        }
    };
    if case.concurrency == Concurrency::Default {
        let members = entry.as_object_mut().context("an entry is an object")?;
        members.remove("toolwharf");
    }
    let home = Home::new(&json!({ "bench": entry }), settings)?;
    let mut proxy = home.spawn(program).await?;
    proxy.ready().await?;
    crate::run::ready::wait_for_tools(&mut proxy, 1).await?;
    Ok(Chain { proxy, server })
}

/// Starts the gateway as one of several replicas on the database in the settings, in front of a stdio echo server. All
/// but the first share the keys of the first.
pub(crate) async fn through_replica(
    program: &Path,
    settings: &str,
    first: Option<&Chain>,
) -> anyhow::Result<Chain> {
    let entry = stdio_entry(&["--era", era_name(Era::Legacy)])?;
    let home = Home::new(&json!({ "bench": entry }), settings)?;
    if let Some(first) = first {
        home.share(first.proxy.home().context("the first has no folder")?)?;
    }
    let mut proxy = home.spawn(program).await?;
    proxy.ready().await?;
    crate::run::ready::wait_for_tools(&mut proxy, 1).await?;
    let server = None;
    Ok(Chain { proxy, server })
}

/// The configuration of a stdio echo server.
pub(crate) fn stdio_entry(arguments: &[&str]) -> anyhow::Result<Value> {
    let arguments = [&["echo-stdio"], arguments].concat();
    Ok(json!({
        "command": own_path()?,
        "args": arguments,
        "toolwharf": { "maxConcurrency": 64 },
    }))
}

/// The configuration of ten stdio servers with 200 tools in total. The first one waits `delay` milliseconds before it
/// reads.
pub(crate) fn ten_servers(delay: u64) -> anyhow::Result<Value> {
    let mut servers = serde_json::Map::new();
    for n in 0..SERVERS {
        let arguments = server_arguments(n, delay);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        servers.insert(format!("server{n}"), stdio_entry(&arguments)?);
    }
    Ok(Value::Object(servers))
}

/// The arguments of server `n` of [`ten_servers`].
pub(crate) fn server_arguments(n: usize, delay: u64) -> Vec<String> {
    let prefix = format!("tool{n}");
    let tools = TOOLS_EACH.to_string();
    let mut arguments = words(&["--tools", &tools, "--prefix", &prefix]);
    if n == 0 {
        arguments.extend(words(&["--start-delay", &delay.to_string()]));
    }
    arguments
}

fn era_name(era: Era) -> &'static str {
    match era {
        Era::Legacy => "legacy",
        Era::Modern => "modern",
    }
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
