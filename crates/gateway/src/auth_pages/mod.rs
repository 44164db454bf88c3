//! Signing in: metadata for clients ([`metadata`]), and the sign-in pages for browsers ([`page`]).
//!
//! Deliberately absent: identities and sessions (`auth`).

mod metadata;
mod page;

use std::sync::Arc;

use axum::Router;

use crate::HttpGateway;

/// Routes that need no key.
pub fn router(front: &Arc<HttpGateway>) -> Router {
    metadata::router(front.guard().identities().clone()).merge(page::router(front.clone()))
}
