//! The echo server: the MCP server behind every measurement. It needs far less CPU time than the proxy in front of it.
//!
//! It answers `initialize` or `server/discover` (depending on [`Era`]), `ping`, `tools/list` and `tools/call`, whose
//! result is the argument `payload` as text. The payload is copied as a raw JSON string and never decoded.
//!
//! Invariant: a response is a pure function of the request line and the [`Echo`]; both transports ([`stdio`], [`http`])
//! only carry it. Deliberately absent: session state, ordering, progress, and requests to the client.

pub(crate) mod http;
pub(crate) mod stdio;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::frame::Envelope;

pub(crate) const MODERN_VERSION: &str = "2026-07-28";
pub(crate) const LEGACY_VERSION: &str = "2025-11-25";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Era {
    /// `initialize` and sessions; `server/discover` is an unknown method.
    Legacy,
    /// 2026-07-28: stateless, `server/discover`; `initialize` is an unknown method.
    Modern,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Protocol era that the server speaks
    #[arg(long, value_enum, default_value = "legacy")]
    pub(crate) era: Era,
    /// Number of tools; each one after the first has about 500 bytes of description and schema
    #[arg(long, default_value_t = 1)]
    pub(crate) tools: usize,
    /// Names the tools PREFIX_000, PREFIX_001, … instead of `echo`, `echo_001`, …
    #[arg(long)]
    pub(crate) prefix: Option<String>,
}

/// An echo server. Everything that does not depend on a request is serialised once.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) era: Era,
    list_result: String,
    discover_result: String,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    arguments: Option<CallArguments<'a>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallArguments<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct InitializeParams<'a> {
    #[serde(borrow, rename = "protocolVersion")]
    protocol_version: Option<&'a RawValue>,
}

/// The result of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// A response was appended.
    Result,
    /// An error response was appended.
    Error,
    /// Nothing was appended, because the message was a notification or not JSON-RPC.
    Nothing,
}

impl Echo {
    pub(crate) fn new(options: &Options) -> Self {
        let tools: Vec<_> = (0..options.tools)
            .map(|n| tool(&tool_name(options.prefix.as_deref(), n)))
            .collect();
        let mut list = json!({ "tools": tools });
        let discover = json!({
            "resultType": "complete",
            "supportedVersions": [MODERN_VERSION],
            "capabilities": { "tools": {} },
            "ttlMs": 3_600_000,
            "cacheScope": "public",
            "_meta": { "io.modelcontextprotocol/serverInfo": server_info() },
        });
        if options.era == Era::Modern {
            list["resultType"] = json!("complete");
            list["ttlMs"] = json!(3_600_000);
            list["cacheScope"] = json!("public");
        }
        Self {
            era: options.era,
            list_result: list.to_string(),
            discover_result: discover.to_string(),
        }
    }

    /// Appends the response to `message` to `out`, without a line end.
    pub(crate) fn answer(&self, message: &[u8], out: &mut Vec<u8>) -> Answered {
        let Ok(envelope) = serde_json::from_slice::<Envelope>(message) else {
            return Answered::Nothing;
        };
        let (Some(id), Some(method)) = (envelope.id, envelope.method) else {
            return Answered::Nothing;
        };
        match (method, self.era) {
            ("tools/call", _) => return self.call(id, envelope.params, out),
            ("tools/list", _) => result(out, id, &self.list_result),
            ("initialize", Era::Legacy) => {
                let asked = envelope
                    .params
                    .and_then(|params| serde_json::from_str::<InitializeParams>(params.get()).ok())
                    .and_then(|params| params.protocol_version)
                    .map_or(r#""2025-11-25""#, RawValue::get);
                result(
                    out,
                    id,
                    &format!(
                        r#"{{"protocolVersion":{asked},"capabilities":{{"tools":{{}}}},"serverInfo":{}}}"#,
                        server_info()
                    ),
                );
            }
            ("server/discover", Era::Modern) => result(out, id, &self.discover_result),
            ("ping", Era::Legacy) => result(out, id, "{}"),
            _ => return error(out, id, -32601, "method not found"),
        }
        Answered::Result
    }

    fn call(&self, id: &RawValue, params: Option<&RawValue>, out: &mut Vec<u8>) -> Answered {
        let params = params.and_then(|p| serde_json::from_str::<CallParams>(p.get()).ok());
        let Some(params) = params else {
            return error(out, id, -32602, "params are not those of tools/call");
        };
        if self.era == Era::Modern && params.meta.is_none() {
            return error(out, id, -32602, "params._meta is required in this version");
        }
        let Some(payload) = params.arguments.and_then(|a| a.payload) else {
            return error(out, id, -32602, "arguments.payload is missing");
        };
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        out.extend_from_slice(id.get().as_bytes());
        out.extend_from_slice(match self.era {
            Era::Legacy => br#","result":{"content":[{"type":"text","text":"#.as_slice(),
            Era::Modern => {
                br#","result":{"resultType":"complete","content":[{"type":"text","text":"#
            }
        });
        out.extend_from_slice(payload.get().as_bytes());
        out.extend_from_slice(br#"}]}}"#);
        Answered::Result
    }
}

pub(crate) fn result(out: &mut Vec<u8>, id: &RawValue, result: &str) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.get().as_bytes());
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result.as_bytes());
    out.push(b'}');
}

pub(crate) fn error(out: &mut Vec<u8>, id: &RawValue, code: i32, message: &str) -> Answered {
    let message = json!({ "code": code, "message": message });
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.get().as_bytes());
    out.extend_from_slice(format!(r#","error":{message}}}"#).as_bytes());
    Answered::Error
}

fn server_info() -> serde_json::Value {
    json!({ "name": "bench-echo", "version": env!("CARGO_PKG_VERSION") })
}

fn tool_name(prefix: Option<&str>, n: usize) -> String {
    match (prefix, n) {
        (Some(prefix), n) => format!("{prefix}_{n:03}"),
        (None, 0) => "echo".to_owned(),
        (None, n) => format!("echo_{n:03}"),
    }
}

/// A tool definition of about 500 bytes, with the size and shape of a real one.
fn tool(name: &str) -> serde_json::Value {
    json!({
        "name": name,
        "title": "Echo",
        "description": "Returns the payload as it was given. Use it to check that a call reaches \
                        its server and comes back whole; large payloads are allowed.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "payload": { "type": "string", "description": "The text that is returned" },
                "limit": { "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 },
                "mode": { "type": "string", "enum": ["plain", "quoted"], "default": "plain" }
            },
            "required": ["payload"]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(era: Era) -> Echo {
        Echo::new(&Options {
            era,
            tools: 3,
            prefix: None,
        })
    }

    fn check(era: Era, message: &str, want: &str) {
        let mut out = Vec::new();
        echo(era).answer(message.as_bytes(), &mut out);
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with(want), "{message}: {out}");
        if !out.is_empty() {
            serde_json::from_str::<serde_json::Value>(&out).expect("an answer is JSON");
        }
    }

    #[test]
    fn each_era_answers_its_own_methods() {
        let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#;
        let initialize =
            r#"{"id":"a","method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;
        for (era, message, want) in [
            (Era::Legacy, discover, r#"1,"error":{"code":-32601"#),
            (
                Era::Modern,
                discover,
                r#"1,"result":{"resultType":"complete""#,
            ),
            (
                Era::Legacy,
                initialize,
                r#""a","result":{"protocolVersion":"2025-06-18""#,
            ),
            (Era::Modern, initialize, r#""a","error":{"code":-32601"#),
        ] {
            check(era, message, &format!(r#"{{"jsonrpc":"2.0","id":{want}"#));
        }
    }

    #[test]
    fn a_payload_comes_back_as_the_bytes_it_came_as() {
        check(
            Era::Legacy,
            r#"{"id":18446744073709551617,"method":"tools/call","params":{"name":"echo","arguments":{"payload":"a\u00e9\/\"é"}}}"#,
            r#"{"jsonrpc":"2.0","id":18446744073709551617,"result":{"content":[{"type":"text","text":"a\u00e9\/\"é"}]}}"#,
        );
    }

    #[test]
    fn a_modern_call_without_meta_is_refused() {
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"echo","arguments":{"payload":"x"}}}"#;
        let want = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602"#;
        check(Era::Modern, call, want);
    }

    #[test]
    fn garbage_and_notifications_are_not_answered() {
        check(Era::Legacy, r#"{"method":"notifications/initialized"}"#, "");
        check(Era::Legacy, "}{", "");
        check(Era::Legacy, "", "");
    }

    #[test]
    fn a_listed_tool_is_about_five_hundred_bytes() {
        let size = tool("files_007").to_string().len();
        assert!((450..600).contains(&size), "{size}");
    }
}
