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

    /// Reads an error object. Missing or malformed fields become an internal error that says so.
    #[must_use]
    pub fn from_json(raw: &[u8]) -> Self {
        let Some(object) = json::Object::of(raw) else {
            return Self::internal("the server's error is not an object");
        };
        let number = |raw: &[u8]| std::str::from_utf8(raw).ok()?.parse().ok();
        Self {
            code: object
                .raw("code")
                .and_then(number)
                .unwrap_or(INTERNAL_ERROR),
            message: object.string("message").unwrap_or_default().into_owned(),
            data: object.raw("data").map(Bytes::copy_from_slice),
        }
    }
}
