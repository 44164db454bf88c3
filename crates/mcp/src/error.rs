//! JSON-RPC errors and the codes that the specification assigns.

use bytes::Bytes;

use crate::json;

/// JSON-RPC: not valid JSON.
pub const PARSE_ERROR: i64 = -32700;
/// JSON-RPC: valid JSON, but not a request.
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// Legacy era only (2025-11-25 server/resources "Error Handling"). The modern era uses [`INVALID_PARAMS`].
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// Legacy era only (2025-11-25 client/elicitation "URL Elicitation Required Error").
pub const URL_REQUIRED: i64 = -32042;
/// 2026-07-28 basic "Error Codes".
pub const HEADER_MISMATCH: i64 = -32020;
/// 2026-07-28 basic "Error Codes".
pub const MISSING_CAPABILITY: i64 = -32021;
/// 2026-07-28 basic "Error Codes".
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// JSON text.
    pub data: Option<Bytes>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    #[must_use]
    pub fn with_data(mut self, data: impl Into<Bytes>) -> Self {
        self.data = Some(data.into());
        self
    }

    pub fn method_not_found(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL_ERROR, message)
    }

    /// The error object as JSON text.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = format!(
            "{{\"code\":{},\"message\":{}",
            self.code,
            json::quote(&self.message)
        )
        .into_bytes();
        if let Some(data) = &self.data {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(data);
        }
        out.push(b'}');
        out
    }

    /// Reads an error object. The text of a malformed error is kept. A string instead of an object becomes the message.
    /// Without a message, an excerpt of the text becomes the message. An object without a valid `code` becomes `data`,
    /// unless it contains `data`.
    #[must_use]
    pub fn from_json(raw: &[u8]) -> Self {
        let object = json::Object::of(raw);
        let part = |key| object.as_ref().and_then(|object| object.raw(key));
        let code = part("code").and_then(integer);
        let message = match &object {
            Some(_) => part("message"),
            None => Some(raw),
        };
        let text = |raw: &[u8]| {
            let quoted = raw
                .strip_prefix(b"\"")
                .and_then(|raw| raw.strip_suffix(b"\""));
            quoted.map(|raw| json::unescape(raw).into_owned())
        };
        let message = message.and_then(text).unwrap_or_else(|| {
            let shown = json::excerpt(raw);
            format!("the server sent an error without a message: {shown}")
        });
        let is_partial = object.is_some() && code.is_none();
        Self {
            code: code.unwrap_or(INTERNAL_ERROR),
            message,
            data: part("data")
                .or(Some(raw).filter(|_| is_partial))
                .map(Bytes::copy_from_slice),
        }
    }

    /// Returns true if `raw` is an error object as JSON-RPC defines it: an integer `code` and a string `message`.
    pub(crate) fn is_valid(raw: &[u8]) -> bool {
        json::Object::of(raw).is_some_and(|error| {
            let [code, message] = error.find_all(["code", "message"]);
            code.is_some_and(|at| std::str::from_utf8(&raw[at]).is_ok_and(is_integer))
                && message.is_some_and(|at| raw[at.start] == b'"')
        })
    }
}

fn is_integer(text: &str) -> bool {
    text.parse::<i64>().is_ok()
}

/// The integer that an error code stands for: a number, or a string of digits.
fn integer(raw: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(raw).ok()?.trim_matches('"');
    let whole = text.trim_end_matches('0').strip_suffix('.').unwrap_or(text);
    whole.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_errors_keep_their_text() {
        // Columns: the error, its code, its message, its data.
        let table = r#"
            {"code":-32000,"message":"no"} | -32000 | no | -
            {"code":7.0,"message":"no","data":[1]} | 7 | no | [1]
            {"code":"-32001","message":"no"} | -32001 | no | -
            {"code":"E1","message":"no"} | -32603 | no | {"code":"E1","message":"no"}
            {"code":"E1","message":"no","data":3} | -32603 | no | 3
            {"message":"half \ud83d"} | -32603 | half ��� | {"message":"half \ud83d"}
            "boom" | -32603 | boom | -
            null | -32603 | the server sent an error without a message: null | -
            {"code":5,"message":null} | 5 | the server sent an error without a message: {"code":5,"message":null} | -
            {} | -32603 | the server sent an error without a message: {} | {}
        "#;
        for row in table.trim().lines() {
            let columns: Vec<&str> = row.trim().split(" | ").collect();
            let [raw, code, message, data] = columns[..] else {
                panic!("{row}");
            };
            let error = RpcError::from_json(raw.as_bytes());
            assert_eq!(error.code.to_string(), code, "{raw}");
            assert_eq!(error.message, message, "{raw}");
            let data = (data != "-").then(|| Bytes::from(data));
            assert_eq!(error.data, data, "{raw}");
            assert!(RpcError::is_valid(&error.to_json()), "{raw}");
        }
        assert!(!RpcError::is_valid(br#"{"code":7.0,"message":"no"}"#));
        assert!(!RpcError::is_valid(br#"{"code":7,"message":null}"#));
        assert!(!RpcError::is_valid(br#""boom""#));
    }
}
