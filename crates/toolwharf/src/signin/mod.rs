//! Signing in: how clients find out where ([`metadata`]), and the pages on which people do it at a browser ([`page`]).
//!
//! Deliberately absent: who somebody is, and their sessions (`auth`).

mod metadata;
mod page;

use std::sync::Arc;

use axum::Router;

use crate::gateway::Front;

/// Routes that need no key.
pub(crate) fn router(front: &Arc<Front>) -> Router {
    metadata::router(front.guard().identities().clone()).merge(page::router(front.clone()))
}
