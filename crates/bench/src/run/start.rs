//! The time from the start of the gateway to the first list with the tools of all ten servers, minus the start time of
//! the servers themselves.
//!
//! The start of the servers is measured in the same run and in the same way: all ten at once, until the last one has
//! listed its tools. The gateway gets a new data directory each time, so that a remembered list cannot help.

use anyhow::Context as _;
use serde_json::json;
use testkit::StdioClient;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::calls::{self, server_arguments, ten_servers};
use super::part::{Home, own_path};
use super::ready::{DEADLINE, wait_for_tools};
use super::report::{Bound, Row, median};
use super::{Driver, Product};

/// Time that the gateway may add to the start of the servers, in milliseconds.
const MAX_ADDED_MS: f64 = 50.0;

/// Measures the start with fast servers, and with one that takes 300 ms.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (figure, delay) in [
        ("start to list, quick servers", 0),
        ("start to list, one takes 300 ms", 300),
    ] {
        let mut alone = Vec::new();
        let mut whole = Vec::new();
        for _ in 0..driver.size.starts {
            let servers = (0..10).map(|n| server_arguments(n, delay)).collect();
            alone.push(servers_alone(servers).await.context("the servers alone")?);
            whole.push(product(driver, delay).await.context("the product")?);
        }
        rows.push(Row {
            case: "start",
            figure,
            unit: "ms",
            floor: Some(median(alone)),
            product: median(whole),
            bound: Bound::Added(MAX_ADDED_MS),
            note: "floor: the slowest of the servers alone".to_owned(),
        });
    }
    Ok(rows)
}

async fn product(driver: &Driver, delay: u64) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut part = match &driver.product {
        Product::Floor => {
            let delay = delay.to_string();
            calls::floor_stdio(&["--tools", "200", "--start-delay", &delay]).await?
        }
        Product::Toolwharf(program) => Home::new(&ten_servers(delay)?, "")?.spawn(program).await?,
    };
    wait_for_tools(&mut part, 200).await?;
    let took = started.elapsed();
    part.stop().await;
    Ok(took.as_secs_f64() * 1e3)
}

/// Starts echo servers with these arguments at the same time. Returns the time until the last one has listed its tools,
/// in ms.
///
/// # Errors
///
/// A server did not list its tools within 60 s.
pub(crate) async fn servers_alone(servers: Vec<Vec<String>>) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut starting = JoinSet::new();
    for arguments in servers {
        starting.spawn(timeout(DEADLINE, server_alone(arguments)));
    }
    while let Some(done) = starting.join_next().await {
        done???;
    }
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

async fn server_alone(arguments: Vec<String>) -> anyhow::Result<()> {
    let mut command = Command::new(own_path()?);
    command.arg("echo-stdio").args(arguments);
    let mut server = StdioClient::spawn(command);
    for request in [
        json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-11-25" } }),
        json!({ "id": 2, "method": "tools/list", "params": {} }),
    ] {
        server.ask(request).await;
    }
    server.finish(DEADLINE).await;
    Ok(())
}
