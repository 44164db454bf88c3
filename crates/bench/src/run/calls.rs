//! The cases that measure calls: the gateway against the baseline proxy, in alternating rounds.
//!
//! The gateway does not record calls here, since the baseline does not either. The cost of recording is measured in
//! [`super::audit`]. Only tool calls are recorded, so lists are measured with the default settings.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use Era::{Legacy, Modern};
use Transport::{Http, Stdio};

use super::client::{Client, result_of};
use super::load::{Load, Round, Work};
use super::part::{self, Home, Part, own_path};
use super::ready::{gateway, wait_for_tools};
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
    case("stdio-legacy-legacy", Legacy, Legacy, Stdio),
    case("http-legacy-legacy", Legacy, Legacy, Http),
    case("stdio-modern-legacy", Modern, Legacy, Stdio),
    case("http-legacy-modern", Legacy, Modern, Http),
    case("http-modern-modern", Modern, Modern, Http),
    case("stdio-default-legacy", Legacy, Legacy, Stdio).with_default_concurrency(),
    case("stdio-default-modern", Modern, Legacy, Stdio).with_default_concurrency(),
];

/// The case that replicas are measured with.
pub(crate) const REPLICA: Case = case("replica", Legacy, Legacy, Stdio);
/// Maximum cost of the gateway, relative to the baseline.
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
        let _ = self.finish(Ok(())).await;
    }

    /// Stops both processes. Adds the end of the proxy's log to an error.
    pub(crate) async fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let done = self.proxy.finish(done).await;
        if let Some(server) = self.server {
            server.stop().await;
        }
        done
    }
}

/// Measures one case of calls through a proxy.
pub(crate) async fn run(driver: &mut Driver, case: Case) -> anyhow::Result<Vec<Row>> {
    // The baseline cannot translate between eras, so its server speaks the client's era. The era makes no difference to
    // the work of the baseline.
    let floor = floor(case.transport, case.client)
        .await
        .context("the floor")?;
    let product = match &driver.product {
        Product::Floor => self::floor(case.transport, case.client).await?,
        Product::Toolwharf(program) => through_product(program, case, NO_AUDIT, None)
            .await
            .context("the product")?,
    };
    let rows = compare_calls(driver, case, &floor, &product).await;
    let rows = product.finish(rows).await;
    floor.stop().await;
    rows
}

async fn compare_calls(
    driver: &mut Driver,
    case: Case,
    floor: &Chain,
    product: &Chain,
) -> anyhow::Result<Vec<Row>> {
    let floor = Side::echo(floor, case.client).await?;
    let product = Side::echo(product, case.client).await?;
    let (many, one) = many_and_one(driver, &floor, &product, case.client).await?;
    let mut rows = many.rows(case.name, &MANY);
    rows.extend(one.rows(case.name, &ONE));
    rows[0].note = many.note();
    Ok(rows)
}

/// Measures calls of 32 clients, then calls of one.
pub(crate) async fn many_and_one(
    driver: &mut Driver,
    floor: &Side<'_>,
    product: &Side<'_>,
    era: Era,
) -> anyhow::Result<(Pair, Pair)> {
    let size = driver.size;
    let many = interleave(
        driver,
        floor,
        product,
        (era, CLIENTS),
        (size.rounds, size.calls),
    );
    let many = many.await.context("32 clients")?;
    let rounds = (size.rounds, size.single_calls);
    let one = interleave(driver, floor, product, (era, 1), rounds);
    Ok((many, one.await.context("1 client")?))
}

/// Measures `tools/list` with 200 tools, compared with sending the same bytes from memory.
pub(crate) async fn list(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let count = SERVERS * TOOLS_EACH;
    let mut source = match driver.product.clone() {
        Product::Floor => part::own(&["echo-http", "--tools", &count.to_string()]).await?,
        Product::Toolwharf(program) => Home::new(&ten_servers(0)?, "")?.start(&program).await?,
    };
    wait_for_tools(&mut source, count).await?;
    let mut client = Client::connect(&source.url, Legacy).await?;
    let page = client.list(None).await?;
    let tools = client.tools().await?.len();
    drop(client);
    let result = bytes::Bytes::copy_from_slice(result_of(&page)?.get().as_bytes());
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &result)?;
    let path = file.path().display().to_string();
    let bytes = ["floor-bytes", "--file", &path];
    let floor = part::own(&bytes).await?;
    let handshake = matches!(driver.product, Product::Toolwharf(_));
    let product = if handshake {
        source
    } else {
        source.stop().await;
        part::own(&bytes).await?
    };
    let of = |handshake| Work::List {
        result: result.clone(),
        handshake,
    };
    let sides = (
        Side::new(&floor, &floor.url, of(false)),
        Side::new(&product, &product.url, of(handshake)),
    );
    let size = driver.size;
    let rounds = (size.rounds, size.list_calls);
    let pair = interleave(driver, &sides.0, &sides.1, (Legacy, CLIENTS), rounds).await;
    let pair = product.finish(pair.context("tools/list")).await;
    floor.stop().await;
    let pair = pair?;
    let mut rows = pair.rows("list", &LIST);
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

    /// The same calls, through `call_tool`.
    pub(crate) fn through_call_tool(mut self) -> Self {
        if let Work::Echo { tool } = self.work {
            self.work = Work::CallTool { tool };
        }
        self
    }

    /// Adds a process to those that the clients are distributed over.
    pub(crate) fn beside(mut self, chain: &'a Chain) -> Self {
        self.others.push((&chain.proxy.url, chain.proxy.pid));
        self
    }

    /// Adds a process that gets no calls, but whose CPU time counts.
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

    pub(crate) fn rows(&self, case: &'static str, figures: &[Figure]) -> Vec<Row> {
        let rows = figures.iter().map(|figure| self.row(case, figure));
        rows.collect()
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

const fn figure(
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

/// CPU time per call, in microseconds.
pub(crate) const fn cpu(name: &'static str, bound: Bound) -> Figure {
    figure(name, "µs", bound, Round::cpu_per_call)
}

pub(crate) const fn rate(name: &'static str) -> Figure {
    figure(name, "1/s", Bound::None, Round::calls_per_second)
}

/// Median latency, in microseconds.
pub(crate) const fn p50(name: &'static str, bound: Bound) -> Figure {
    figure(name, "µs", bound, |round| round.latency(0.5))
}

pub(crate) const fn p99(name: &'static str) -> Figure {
    figure(name, "µs", Bound::None, |round| round.latency(0.99))
}

pub(crate) const MANY: [Figure; 4] = [
    cpu("CPU per call, 32 clients", Bound::Ratio(MAX_RATIO)),
    rate("calls per second, 32 clients"),
    p50("p50, 32 clients", Bound::None),
    p99("p99, 32 clients"),
];
const ONE: [Figure; 2] = [p50("p50, 1 client", Bound::Added(MAX_ADDED_US)), CPU_OF_ONE];
pub(crate) const CPU_OF_ONE: Figure = cpu("CPU per call, 1 client", Bound::None);
const LIST: [Figure; 2] = [
    cpu("CPU per tools/list, 32 clients", Bound::Ratio(MAX_RATIO)),
    p50("p50, 32 clients", Bound::None),
];

/// Alternates the sides (baseline, product, product, baseline, …), so that a temporary disturbance affects both.
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

/// Starts the baseline in front of an echo server.
pub(crate) async fn floor(transport: Transport, era: Era) -> anyhow::Result<Chain> {
    match transport {
        Stdio => {
            let proxy = floor_stdio(&["--era", era_name(era)]).await?;
            let server = None;
            Ok(Chain { proxy, server })
        }
        Http => {
            let server = echo_http(era).await?;
            let proxy = part::own(&["floor-http", "--upstream", &server.url]).await?;
            let server = Some(server);
            Ok(Chain { proxy, server })
        }
    }
}

/// Starts the baseline in front of a stdio echo server with these arguments.
pub(crate) async fn floor_stdio(arguments: &[&str]) -> anyhow::Result<Part> {
    let program = own_path()?.display().to_string();
    let server = ["floor-stdio", "--", &program, "echo-stdio"];
    part::own(&[server.as_slice(), arguments].concat()).await
}

async fn echo_http(era: Era) -> anyhow::Result<Part> {
    part::own(&["echo-http", "--era", era_name(era)]).await
}

/// Starts the gateway with these settings in front of an echo server. It shares the keys of `first` if the settings have
/// the same database.
pub(crate) async fn through_product(
    program: &Path,
    case: Case,
    settings: &str,
    first: Option<&Chain>,
) -> anyhow::Result<Chain> {
    let (server, mut entry) = match case.transport {
        Stdio => (
            None,
            stdio_entry(&words(&["--era", era_name(case.server)]))?,
        ),
        Http => {
            let server = echo_http(case.server).await?;
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
    if let Some(first) = first {
        home.share(first.proxy.home()?)?;
    }
    let proxy = gateway(program, &home, 1).await?;
    Ok(Chain { proxy, server })
}

/// The configuration of a stdio echo server.
pub(crate) fn stdio_entry(arguments: &[String]) -> anyhow::Result<Value> {
    let arguments = [words(&["echo-stdio"]).as_slice(), arguments].concat();
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
        let entry = stdio_entry(&server_arguments(n, delay))?;
        servers.insert(format!("server{n}"), entry);
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
        Legacy => "legacy",
        Modern => "modern",
    }
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
