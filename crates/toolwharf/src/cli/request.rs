//! `call`: sends one request to one server, with native names.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, bail};
use api::Problem;
use bytes::Bytes;
use hyper::{Method, header};
use mcp::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    Context, No, Output, arguments, call::progress, http::Api, print, servers::NameArgs, values,
};

/// Maximum timeout of a call, in seconds. The gateway allows no more.
const MAX_TIMEOUT_SECS: u64 = 3_600;

/// Additional time for a call on the way to the server and back.
const EXTRA_TIME: Duration = Duration::from_secs(30);

const MAX_DEPTH: usize = 512;
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: NameArgs,
    /// The method, such as tools/call.
    method: String,
    /// The parameters as a JSON object. `-` reads them from standard input.
    params: Option<String>,
    /// Timeout in seconds. The default is the server's setting.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = |text: &str| values::seconds_in(text, 1..=MAX_TIMEOUT_SECS))]
    timeout: Option<u64>,
}

/// Sends one request. Asks for an event stream, so that the response begins immediately and progress is reported.
pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let form = "write '{\"key\": \"value\"}'";
    let params = args.params.as_deref();
    let params = params.map(|text| arguments::object(text, "parameters", form));
    let params = params.transpose()?;
    let mut body = HashMap::from([("method", json!(args.method))]);
    if let Some(seconds) = args.timeout {
        body.insert("timeout_ms", json!(seconds * 1000));
    }
    let mut body = serde_json::to_string(&body)?;
    if let Some(params) = params {
        // The parameters are inserted as text, so that numbers keep their notation.
        body.truncate(body.len() - 1);
        body.push_str(&format!(",\"params\":{params}}}"));
    }
    let api = context.gateway().await?;
    let limit = args.timeout.unwrap_or(MAX_TIMEOUT_SECS);
    let until = Instant::now() + Duration::from_secs(limit) + EXTRA_TIME;
    let path = args.named.path(&["call"]);
    let response = send(&api, &path, body.into(), &args);
    let Ok(result) = timeout_at(until, response).await else {
        bail!("no response within {limit} s; --timeout sets the limit");
    };
    let result = result?;
    let whole = mcp::json::without_lone_surrogates(&result);
    let shown: Value = serde_json::from_slice(&whole)
        .context("cannot read the response: the gateway may run another version of Toolwharf")?;
    if context.output == Output::Json {
        // Prints the server's response byte for byte.
        print::foreign(&(String::from_utf8_lossy(&result).into_owned() + "\n"))?;
    } else {
        print::foreign(&(serde_json::to_string_pretty(&shown)? + "\n"))?;
    }
    if shown["isError"] == true {
        eprintln!("the tool reports an error");
        return Err(No.into());
    }
    Ok(())
}

async fn send(api: &Api, path: &str, body: Bytes, args: &Args) -> anyhow::Result<Vec<u8>> {
    let stream = [(header::ACCEPT, "text/event-stream")];
    let mut answer = api.open(Method::POST, path, body, &stream).await?;
    while let Some(event) = answer.event(Duration::from_secs(MAX_TIMEOUT_SECS)).await? {
        match event.event.as_str() {
            "result" => return Ok(event.data.to_vec()),
            "error" => return Err(failed(&event.data, args)),
            _ => {
                if let Ok(frame) = Frame::parse(event.data, MAX_DEPTH) {
                    progress(&frame);
                }
            }
        }
    }
    bail!("the gateway stopped before the call ended; its outcome is unknown")
}

/// Returns the error of a call, as the server reported it.
fn failed(text: &[u8], args: &Args) -> anyhow::Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(text) else {
        return anyhow::anyhow!("the call failed, and the gateway's error report is unreadable");
    };
    match problem.mcp {
        Some(error) => {
            let (server, method) = (args.named.name(), &args.method);
            let reason = error.data.as_ref().map(|data| &data["reason"]);
            // The request did not reach the server.
            if reason.is_some_and(|reason| reason == "server_unavailable") {
                return anyhow::anyhow!(
                    "{}; `toolwharf get {server}` shows its state",
                    problem.detail
                );
            }
            let data = error.data.map(|data| format!("\n{data}"));
            let data = data.unwrap_or_default();
            // Unknown methods and invalid parameters (JSON-RPC 2.0, section 5.1).
            let hint = match (error.code, method.as_str()) {
                (-32601, "tools/call") => {
                    "; the server has no tools, or the parameters are wrong: write \
                     '{\"name\": \"TOOL\", \"arguments\": {}}'"
                        .to_owned()
                }
                (-32601, _) => {
                    "; `tools/list` and `tools/call` are methods that most servers have".to_owned()
                }
                (-32602, "tools/call") => {
                    format!("; `toolwharf tools ls --server {server}` lists its tools")
                }
                _ => String::new(),
            };
            anyhow::anyhow!(
                "server `{server}` refused `{method}`: {} (code {}){hint}{data}",
                problem.detail,
                error.code
            )
        }
        None => anyhow::anyhow!("{}", problem.detail),
    }
}
