//! HTTP requests to the server that the demo has just started on this machine.
//!
//! A response is read to its end, up to [`MAX_ANSWER_BYTES`]. Proxies and redirects are not followed.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;
use ureq::{Agent, http::Response};

const MAX_ANSWER_BYTES: u64 = 8 * 1024 * 1024;

/// The status of the response to a GET request, which must begin within `timeout`.
pub(crate) fn get_status(address: SocketAddr, path: &str, timeout: Duration) -> Result<u16> {
    let answer = agent(timeout).get(url(address, path)).call()?;
    Ok(answer.status().as_u16())
}

/// Sends a POST request and reads the response, within `timeout`.
pub(crate) fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
    timeout: Duration,
) -> Result<Response<String>> {
    let request = agent(timeout).post(url(address, path));
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    let (head, mut body) = request.send(body)?.into_parts();
    let body = body.with_config().limit(MAX_ANSWER_BYTES).read_to_string();
    let body = body.context("the answer cannot be read")?;
    Ok(Response::from_parts(head, body))
}

fn agent(timeout: Duration) -> Agent {
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_global(Some(timeout));
    config.build().new_agent()
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("http://{address}{path}")
}

/// A header as text.
pub(crate) fn header<'a>(answer: &'a Response<String>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// The JSON-RPC response in the body, from JSON or an event stream. In a stream, it is the first message with an `id`
/// and without a `method`.
pub(crate) fn json_rpc(answer: &Response<String>) -> Result<Value> {
    let streamed =
        header(answer, "content-type").is_some_and(|t| t.starts_with("text/event-stream"));
    let body = answer.body();
    let messages = match streamed {
        true => event_data(body),
        false => vec![body.clone()],
    };
    messages
        .iter()
        .filter_map(|message| serde_json::from_str::<Value>(message).ok())
        .find(|message| message.get("id").is_some() && message.get("method").is_none())
        .with_context(|| format!("HTTP {} without an answer: {body}", answer.status()))
}

/// The `data` of each complete event in a stream.
fn event_data(stream: &str) -> Vec<String> {
    let stream = stream.replace("\r\n", "\n");
    let whole = stream.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let data = |event: &str| {
        let lines = event.lines().filter_map(|line| line.strip_prefix("data:"));
        lines
            .map(|data| data.strip_prefix(' ').unwrap_or(data))
            .collect::<Vec<_>>()
            .join("\n")
    };
    whole
        .split("\n\n")
        .map(data)
        .filter(|data| !data.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_in_a_stream() {
        let body = "id: 0\ndata:\n\n: ping\n\nevent: message\r\ndata: {\"method\":\"notifications/progress\"}\r\n\r\n\
                    data: {\"id\":1,\ndata: \"result\":{}}\n\ndata: {\"id\":2";
        let answer = Response::builder()
            .header("Content-Type", "text/event-stream; charset=utf-8")
            .body(body.to_owned())
            .unwrap();
        assert_eq!(
            json_rpc(&answer).unwrap(),
            serde_json::json!({"id": 1, "result": {}})
        );
    }
}
