//! The time that `run_code` takes from the request to the result, without work of the code.
//!
//! A gateway keeps one process ready. Of two runs that begin at the same time, one gets this process; the other waits for
//! a start. The slower of the two is therefore the time with a cold process.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::tables::Table;
use super::{SETTINGS, entries};
use crate::echo::Era;
use crate::run::client::{Client, result_of};
use crate::run::part::Home;
use crate::run::report::median;

/// Time after a run for the next process to start.
const START_TIME: Duration = Duration::from_millis(500);
/// The code, and the text that the run returns.
const CODE: (&str, &str) = ("return 6 * 7", "42");

/// The times of runs with a process that waits, and of runs that have to start one.
pub(super) async fn measure(program: &Path, is_quick: bool) -> anyhow::Result<Table> {
    let rounds = if is_quick { 5 } else { 30 };
    let home = Home::new(&entries(&[])?, SETTINGS)?;
    let part = home.start(program).await?;
    let measured = async {
        let url = format!("{}/code", part.url);
        let mut clients = [
            Client::connect(&url, Era::Legacy).await?,
            Client::connect(&url, Era::Legacy).await?,
        ];
        // The first run starts the first process.
        run(&mut clients[0]).await?;
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            sleep(START_TIME).await;
            warm.push(run(&mut clients[0]).await?);
            sleep(START_TIME).await;
            let [one, other] = &mut clients;
            let (one, other) = tokio::join!(run(one), run(other));
            cold.push(one?.max(other?));
        }
        anyhow::Ok((warm, cold))
    };
    let measured = measured.await;
    let (warm, cold) = part.finish(measured).await?;
    let mut table = Table::new(
        "start",
        "Time of `run_code` for an empty task",
        &["process", "median [ms]", "best [ms]", "worst [ms]"],
    );
    for (name, times) in [("waits", warm), ("has to start", cold)] {
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let worst = times.iter().copied().fold(0.0, f64::max);
        let figures = [median(times), best, worst].map(|time| format!("{time:.1}"));
        table.add([vec![name.to_owned()], figures.to_vec()].concat());
    }
    Ok(table)
}

/// Milliseconds of one run.
async fn run(client: &mut Client) -> anyhow::Result<f64> {
    let body = call("run_code", &json!({ "code": CODE.0 }));
    let started = Instant::now();
    let answer = client.call(body).await?;
    let time = started.elapsed().as_secs_f64() * 1e3;
    let text = text_of(&answer)?;
    anyhow::ensure!(text == CODE.1, "the code returned {text:?}");
    Ok(time)
}

/// The request for a call of a tool. Each has another id.
pub(super) fn call(tool: &str, arguments: &Value) -> Bytes {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let params = json!({ "name": tool, "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    call.to_string().into()
}

/// The text of a result.
///
/// # Errors
///
/// The answer is an error, or the tool reported one.
pub(super) fn text_of(answer: &[u8]) -> anyhow::Result<String> {
    let result: Value = serde_json::from_str(result_of(answer)?.get())?;
    let text = result["content"][0]["text"].as_str();
    let text = text.context("the result has no text")?;
    anyhow::ensure!(result["isError"] != true, "the call failed: {text}");
    Ok(text.to_owned())
}
