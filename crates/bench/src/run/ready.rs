//! Waits until tools are listed.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::client::Client;
use super::part::{Home, Part};
use crate::echo::Era;

pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Starts the gateway, and waits until it lists `count` tools.
///
/// # Errors
///
/// The tools are not listed within 60 s.
pub(crate) async fn gateway(program: &Path, home: &Home, count: usize) -> anyhow::Result<Part> {
    let mut part = home.start(program).await?;
    wait_for_tools(&mut part, count).await?;
    Ok(part)
}

/// Waits until the endpoint lists `count` tools.
///
/// # Errors
///
/// The tools are not listed within 60 s.
pub(crate) async fn wait_for_tools(part: &mut Part, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut last = String::from("nothing was answered");
    while Instant::now() < deadline {
        match timeout(DEADLINE, listed(&part.url, count)).await? {
            Ok(()) => return Ok(()),
            Err(error) => last = format!("{error:#}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
    anyhow::bail!(
        "{count} tools were not listed within 60 s ({last}):\n{}",
        part.log()
    )
}

/// Requests the tool list until it has `count` tools. Fails if the connection fails.
async fn listed(url: &str, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut client = Client::connect(url, Era::Legacy).await;
    if client.is_err() {
        // A server that only supports the modern era has no `initialize`.
        client = Client::connect(url, Era::Modern).await;
    }
    let mut client = client?;
    loop {
        let found = client.tools().await?.len();
        if found >= count {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "only {found} tools");
        sleep(Duration::from_millis(1)).await;
    }
}
