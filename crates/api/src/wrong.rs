//! Faults of a body, each with its place.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wrong {
    /// A JSON pointer into the body (RFC 6901).
    pub pointer: String,
    pub detail: String,
}

impl Wrong {
    #[must_use]
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }
}
