//! Memory of the idle gateway: with ten servers, and with thousands of clients that only keep a stream open.
//!
//! The streaming clients run in a separate process (`bench idle-clients`). If the hard limit of open files is 20,000,
//! one process cannot hold both ends of 10,000 connections.

use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::json;
use testkit::StdioClient;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::calls::{self, Transport, stdio_entry, ten_servers};
use super::client::Client;
use super::part::{self, Home, Part, own_path};
use super::proc;
use super::ready::gateway;
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

/// Limit of the gateway's own memory with ten stdio servers, in MiB.
const MAX_SERVERS_MB: f64 = 20.0;
/// Limit of the memory per idle streaming client, in KiB.
const MAX_STREAM_KB: f64 = 12.0;
const STREAMS_DEADLINE: Duration = Duration::from_secs(120);
const SETTLE_DEADLINE: Duration = Duration::from_secs(15);

/// Measures the gateway's memory with ten idle stdio servers.
pub(crate) async fn servers(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let floor = calls::floor(Transport::Stdio, Era::Legacy).await?;
    let floor_kb = settled(floor.proxy.pid).await?;
    floor.stop().await;
    let (product_kb, helpers_kb) = match &driver.product {
        Product::Floor => (floor_kb, 0),
        Product::Toolwharf(program) => {
            let product = gateway(program, &Home::new(&ten_servers(0)?, "")?, 200).await?;
            let private = settled(product.pid).await?;
            let helpers = proc::of_helpers(product.pid, proc::private);
            product.stop().await;
            (private, helpers)
        }
    };
    let note = match helpers_kb {
        0 => String::new(),
        kb => format!("its helper processes: {:.1} MB more", kb as f64 / 1024.0),
    };
    Ok(vec![Row {
        case: "idle-servers",
        figure: "private memory, 10 stdio servers",
        unit: "MB",
        floor: Some(floor_kb as f64 / 1024.0),
        product: product_kb as f64 / 1024.0,
        bound: Bound::Absolute(MAX_SERVERS_MB),
        note,
    }])
}

/// Measures the gateway's memory per idle streaming client.
pub(crate) async fn streams(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let count = driver.size.streams;
    // The baseline is the echo server itself: only hyper, with a silent stream.
    let floor = part::own(&["echo-http"]).await?;
    let floor_kb = stream_cost(&floor, count).await.context("the floor")?;
    floor.stop().await;
    let product_kb = match &driver.product {
        Product::Floor => floor_kb,
        Product::Toolwharf(program) => {
            let servers = json!({ "bench": stdio_entry(&[])? });
            let product = gateway(program, &Home::new(&servers, "")?, 1).await?;
            let cost = stream_cost(&product, count).await;
            product.finish(cost).await?
        }
    };
    Ok(vec![Row {
        case: "idle-streams",
        figure: "memory per idle stream",
        unit: "KB",
        floor: Some(floor_kb),
        product: product_kb,
        bound: Bound::Absolute(MAX_STREAM_KB),
        note: format!("{count} streams"),
    }])
}

/// The memory that each of `count` idle streams adds to the process, in KiB.
async fn stream_cost(part: &Part, count: usize) -> anyhow::Result<f64> {
    let before = settled(part.pid).await?;
    let number = count.to_string();
    let mut command = Command::new(own_path()?);
    command.args(["idle-clients", "--url", &part.url, "--count", &number]);
    let mut clients = StdioClient::spawn(command);
    let opened = told(&mut clients).await.context("opening the streams")?;
    let after = settled(part.pid).await?;
    clients.send("count").await;
    let alive = told(&mut clients).await.context("counting the streams")?;
    anyhow::ensure!(opened == number, "{opened} of {count} streams were opened");
    anyhow::ensure!(
        alive == opened,
        "only {alive} of {count} streams stayed open"
    );
    clients.finish(STREAMS_DEADLINE).await;
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

/// The next line that the process with the clients prints.
async fn told(clients: &mut StdioClient) -> anyhow::Result<String> {
    match clients.receive(STREAMS_DEADLINE).await {
        Some(line) => Ok(String::from_utf8(line)?),
        None => anyhow::bail!("idle-clients failed: {}", clients.process().stderr()),
    }
}

/// The private memory in KiB, once it has changed by at most 1 % for two seconds.
pub(crate) async fn settled(pid: u32) -> anyhow::Result<u64> {
    let deadline = Instant::now() + SETTLE_DEADLINE;
    let mut last = proc::private(pid)?;
    let mut still = 0;
    while still < 4 && Instant::now() < deadline {
        sleep(Duration::from_millis(500)).await;
        let now = proc::private(pid)?;
        still = if now.abs_diff(last) * 100 <= last {
            still + 1
        } else {
            0
        };
        last = now;
    }
    Ok(last)
}

/// The main function of the process with the clients. Opens `count` streams and prints their number. For every line on
/// stdin, prints how many are still open.
pub(crate) async fn clients(url: &str, count: usize) -> anyhow::Result<()> {
    let mut open = JoinSet::new();
    let mut opening = futures_util::stream::iter(0..count)
        .map(|_| async move { Client::connect(url, Era::Legacy).await?.into_stream().await })
        .buffer_unordered(64);
    while let Some(opened) = opening.next().await {
        let (mut body, connection) = opened?;
        open.spawn(async move {
            let _connection = connection;
            // Messages of the server are ignored. Only the end of the stream matters.
            while let Some(Ok(_)) = body.frame().await {}
        });
    }
    println!("{}", open.len());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        while open.try_join_next().is_some() {}
        println!("{}", open.len());
    }
    Ok(())
}
