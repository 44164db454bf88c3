//! Metadata of protected resources (RFC 9728): the issuers whose tokens each endpoint accepts.
//!
//! Invariants: without an issuer there is no metadata. A response does not reveal whether a project or server exists.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use crate::{METADATA, guard::below};
use auth::{Identities, base_of};
use model::origin_and_prefix;

pub(super) fn router(identities: Arc<Identities>) -> Router {
    Router::new()
        .route(METADATA, get(metadata))
        .route(&format!("{METADATA}/{{*path}}"), get(metadata))
        .with_state(identities)
}

async fn metadata(
    State(identities): State<Arc<Identities>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let tokens = &identities.tokens;
    let base = base_of(&headers).unwrap_or_else(|| tokens.base());
    let path = uri.path().strip_prefix(METADATA).unwrap_or_default();
    let path = path.trim_end_matches('/');
    // Clients put the well-known path before the resource's whole path, so the prefix of the gateway's URL follows it.
    let (_, prefix) = origin_and_prefix(base);
    let path = below(prefix, path).unwrap_or(path);
    if !tokens.are_taken() || !is_resource(path) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let issuers: Vec<&str> = tokens.issuers().collect();
    let mut document = json!({
        "resource": format!("{base}{path}"),
        "authorization_servers": issuers,
        "bearer_methods_supported": ["header"],
        "resource_name": "Toolwharf",
    });
    let scopes = tokens.scopes();
    if !scopes.is_empty() {
        document["scopes_supported"] = json!(scopes);
    }
    ([(header::CACHE_CONTROL, "max-age=60")], Json(document)).into_response()
}

/// Returns true if an endpoint may exist at this path: the whole gateway, MCP with a project and a server, or the API.
fn is_resource(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (None, ..) => true,
        (Some("mcp"), .., None) => path.len() <= 256,
        (Some("api"), Some("v1"), None, None) => true,
        _ => false,
    }
}
