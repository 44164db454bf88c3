//! A minimal HTTP/1.1 client for the demo, for a server on this machine.
//!
//! One request per connection. The response is read to its end, up to [`MAX_ANSWER_BYTES`]. Deliberately absent: TLS,
//! redirects, keep-alive. It is only used for the server that was just started.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const MAX_ANSWER_BYTES: u64 = 8 * 1024 * 1024;

/// A response, with any transfer coding removed from the body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The JSON-RPC response in the body, from JSON or an event stream. In a stream, it is the first message with an
    /// `id` and without a `method`.
    pub(crate) fn json_rpc(&self) -> Result<Value> {
        let streamed = self
            .header("content-type")
            .is_some_and(|t| t.starts_with("text/event-stream"));
        let messages: Vec<String> = if streamed {
            event_data(&self.body)
        } else {
            vec![self.body.clone()]
        };
        messages
            .iter()
            .filter_map(|message| serde_json::from_str::<Value>(message).ok())
            .find(|message| message.get("id").is_some() && message.get("method").is_none())
            .with_context(|| format!("HTTP {} without an answer: {}", self.status, self.body))
    }
}

/// Sends a request and reads the response. Each wait for bytes ends after `patience`.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
    patience: Duration,
) -> Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(head.as_bytes())?;
    let mut raw = Vec::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_end(&mut raw)
        .context("the answer did not end")?;
    parse(&raw)
}

fn parse(raw: &[u8]) -> Result<Answer> {
    let end = raw
        .windows(4)
        .position(|at| at == b"\r\n\r\n")
        .context("no end of headers")?;
    let head = std::str::from_utf8(&raw[..end]).context("headers are not text")?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .context("no status")?;
    let status = status.parse().with_context(|| format!("status {status}"))?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut answer = Answer {
        status,
        headers,
        body: String::new(),
    };
    let body = &raw[end + 4..];
    let body = match (
        answer.header("transfer-encoding"),
        answer.header("content-length"),
    ) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => dechunk(body)?,
        (Some(coding), _) => bail!("transfer coding {coding}"),
        (None, Some(length)) => {
            let length: usize = length.parse().with_context(|| format!("length {length}"))?;
            body.get(..length)
                .context("the body is cut short")?
                .to_vec()
        }
        (None, None) => body.to_vec(),
    };
    answer.body = String::from_utf8(body).context("the body is not text")?;
    Ok(answer)
}

fn dechunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest
            .windows(2)
            .position(|at| at == b"\r\n")
            .context("a chunk is cut short")?;
        let size = std::str::from_utf8(&rest[..end])?
            .split(';')
            .next()
            .unwrap_or_default();
        let size =
            usize::from_str_radix(size.trim(), 16).with_context(|| format!("size {size}"))?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        let (chunk, after) = rest
            .split_at_checked(size)
            .context("a chunk is cut short")?;
        ensure!(
            after.starts_with(b"\r\n"),
            "a chunk does not end where it says"
        );
        body.extend_from_slice(chunk);
        rest = &after[2..];
    }
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

    fn check(raw: &str, expect: Result<(u16, &str), &str>) {
        match (parse(raw.as_bytes()), expect) {
            (Ok(answer), Ok(expect)) => assert_eq!((answer.status, &*answer.body), expect),
            (Err(error), Err(expect)) => {
                assert!(format!("{error:#}").contains(expect), "{error:#}")
            }
            (got, expect) => panic!("{raw:?}: {got:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn bodies() {
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            Ok((200, "hi")),
        );
        check("HTTP/1.1 202 Accepted\r\n\r\n", Ok((202, "")));
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        check(
            &format!("{chunked}2\r\nhi\r\n3;x=y\r\n, a\r\n0\r\n\r\n"),
            Ok((200, "hi, a")),
        );
        check(&format!("{chunked}5\r\nhi\r\n"), Err("cut short"));
        check(&format!("{chunked}1\r\nhi\r\n"), Err("does not end"));
        check(&format!("{chunked}x\r\n"), Err("size x"));
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
            Err("cut short"),
        );
        check("HTTP/1.1 200 OK\r\n", Err("no end of headers"));
        check("\r\n\r\n", Err("no status"));
    }

    #[test]
    fn answers_in_a_stream() {
        let answer = Answer {
            status: 200,
            headers: vec![("Content-Type".to_owned(), "text/event-stream; charset=utf-8".to_owned())],
            body: "id: 0\ndata:\n\n: ping\n\nevent: message\r\ndata: {\"method\":\"notifications/progress\"}\r\n\r\n\
                   data: {\"id\":1,\ndata: \"result\":{}}\n\ndata: {\"id\":2"
                .to_owned(),
        };
        assert_eq!(
            answer.json_rpc().unwrap(),
            serde_json::json!({"id": 1, "result": {}})
        );
    }
}
