//! How clients find out where to sign in.
//!
//! Deliberately absent: who somebody is (`auth`).

mod metadata;

use std::sync::Arc;

use axum::Router;

use crate::auth::Identities;

/// Routes that need no key.
pub(crate) fn router(identities: Arc<Identities>) -> Router {
    metadata::router(identities)
}
