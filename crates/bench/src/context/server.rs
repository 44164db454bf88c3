//! A server of the catalogue, on stdin and stdout: it lists the definitions of a file, and answers calls with the texts
//! in it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::echo::{LEGACY_VERSION, error, result};
use crate::frame::Envelope;

/// The file.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Definitions {
    pub(crate) tools: Vec<Value>,
    /// The texts of results, by tool. A tool without one answers with an empty text.
    pub(crate) results: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Called<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
}

/// Serves until stdin closes.
///
/// # Errors
///
/// The file does not have the definitions, or stdin or stdout failed.
pub(crate) fn run(file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let definitions: Definitions = serde_json::from_slice(&text)?;
    let list = json!({ "tools": definitions.tools }).to_string();
    let mut stdout = std::io::stdout().lock();
    let mut output = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("stdin")?;
        output.clear();
        answer(&definitions, &list, line.as_bytes(), &mut output);
        if !output.is_empty() {
            output.push(b'\n');
            stdout.write_all(&output).context("stdout")?;
            stdout.flush().context("stdout")?;
        }
    }
    Ok(())
}

/// Appends the response to a message, if it is a request.
fn answer(definitions: &Definitions, list: &str, message: &[u8], out: &mut Vec<u8>) {
    let Ok(envelope) = serde_json::from_slice::<Envelope>(message) else {
        return;
    };
    let (Some(id), Some(method)) = (envelope.id, envelope.method) else {
        return;
    };
    match method {
        "initialize" => {
            let own = json!({
                "protocolVersion": LEGACY_VERSION,
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "bench-definitions", "version": env!("CARGO_PKG_VERSION") },
            });
            result(out, id, &own.to_string());
        }
        "ping" => result(out, id, "{}"),
        "tools/list" => result(out, id, list),
        "tools/call" => {
            let params = envelope.params.map_or("{}", RawValue::get);
            let Ok(called) = serde_json::from_str::<Called>(params) else {
                error(out, id, -32602, "params are not those of tools/call");
                return;
            };
            let text = definitions.results.get(&*called.name);
            let content = [json!({ "type": "text", "text": text.map_or("", String::as_str) })];
            result(out, id, &json!({ "content": content }).to_string());
        }
        _ => {
            error(out, id, -32601, "method not found");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_returns_the_text_of_the_file() {
        let definitions = Definitions {
            tools: vec![json!({ "name": "one" })],
            results: BTreeMap::from([("one".to_owned(), "a \"text\"".to_owned())]),
        };
        let check = |message: &str, want: &str| {
            let mut out = Vec::new();
            answer(&definitions, "{\"tools\":[]}", message.as_bytes(), &mut out);
            // The order of members depends on features of other crates.
            let json = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
            assert_eq!(json(&out), json(want.as_bytes()), "{message}");
        };
        check(
            r#"{"id":1,"method":"tools/call","params":{"name":"one"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"a \"text\"","type":"text"}]}}"#,
        );
        check(
            r#"{"id":"a","method":"tools/call","params":{"name":"two"}}"#,
            r#"{"jsonrpc":"2.0","id":"a","result":{"content":[{"text":"","type":"text"}]}}"#,
        );
        check(
            r#"{"id":2,"method":"tools/list"}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}"#,
        );
        check(r#"{"method":"notifications/initialized"}"#, "");
        check("}{", "");
    }
}
