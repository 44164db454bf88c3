//! `call`: one request to one server, by its own names.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, bail};
use api::Problem;
use bytes::Bytes;
use hyper::{Method, header};
use mcp::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    Context, No, Output, Usage, add::stdin, call::progress, http::Api, print, servers::NameArgs,
};

/// Longest time of a call, in seconds; the gateway allows no more.
const LONGEST: u64 = 3_600;

/// What a call may take on the way, beside its own time.
const GRACE: Duration = Duration::from_secs(30);

const DEPTH: usize = 512;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: NameArgs,
    /// The method, for instance tools/call.
    method: String,
    /// Its parameters: a JSON object; `-` reads it from standard input.
    params: Option<String>,
    /// Seconds that the server may take; without it, its configured time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    timeout: Option<u64>,
}

/// One request. It is asked for as a stream: its head comes at once, and progress is heard of.
pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let params = match args.params.as_deref() {
        None => None,
        Some("-") => Some(stdin()?),
        Some(text) => Some(text.to_owned()),
    };
    let mut body = HashMap::from([("method", json!(args.method))]);
    if let Some(seconds) = args.timeout {
        body.insert("timeout_ms", json!(seconds * 1000));
    }
    let mut body = serde_json::to_string(&body)?;
    if let Some(params) = params {
        mcp::json::validate(params.as_bytes(), DEPTH)
            .map_err(|fault| Usage(format!("the parameters are not usable JSON: {fault}")))?;
        if mcp::json::Object::of(params.as_bytes()).is_none() {
            let form = "the parameters are no JSON object: write '{\"key\": \"value\"}'";
            return Err(Usage(form.into()).into());
        }
        // As they were written: numbers stay what they are.
        body.truncate(body.len() - 1);
        body.push_str(&format!(",\"params\":{params}}}"));
    }
    let api = context.gateway().await?;
    let limit = args.timeout.unwrap_or(LONGEST);
    let until = Instant::now() + Duration::from_secs(limit) + GRACE;
    let path = args.named.path(&["call"]);
    let asked = asked(&api, &path, body.into());
    let Ok(result) = timeout_at(until, asked).await else {
        bail!("no answer within {limit} s");
    };
    let result = result?;
    let shown: Value = serde_json::from_slice(&result)
        .context("the gateway's answer is none of this version of Toolwharf")?;
    if context.output == Output::Json {
        // Byte for byte what the server said.
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

async fn asked(api: &Api, path: &str, body: Bytes) -> anyhow::Result<Vec<u8>> {
    let stream = [(header::ACCEPT, "text/event-stream")];
    let mut answer = api.open(Method::POST, path, body, &stream).await?;
    while let Some(event) = answer.event(Duration::from_secs(LONGEST)).await? {
        match event.event.as_str() {
            "result" => return Ok(event.data.to_vec()),
            "error" => return Err(failed(&event.data)),
            _ => {
                if let Ok(frame) = Frame::parse(event.data, DEPTH) {
                    progress(&frame);
                }
            }
        }
    }
    bail!("the gateway ended before the call did; what became of it is not known")
}

/// What a call ended with, as the server said it.
fn failed(text: &[u8]) -> anyhow::Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(text) else {
        return anyhow::anyhow!("the call failed, and why cannot be read");
    };
    match problem.mcp {
        Some(error) => {
            let data = error.data.map(|data| format!("\n{data}"));
            let data = data.unwrap_or_default();
            anyhow::anyhow!("{} (code {}){data}", problem.detail, error.code)
        }
        None => anyhow::anyhow!("{}", problem.detail),
    }
}
