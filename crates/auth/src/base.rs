//! The address at which the client of one request reaches the gateway.

use http::{HeaderMap, HeaderName};

/// The header with the address, such as `https://example.com/tools`, if a trusted proxy says what it is. The listener
/// sets it. It removes the header from what clients send, so that no client can choose the address in links, metadata and
/// cookies.
pub const BASE: HeaderName = HeaderName::from_static("toolwharf-base");

/// The address of the request with these headers. `None`: the address in the settings.
pub fn base_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(BASE)?.to_str().ok()
}
