//! Errors in a request body, each with its location.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error in a request body.
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

/// For logs and command lines, which do not show the pointer separately.
impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => f.write_str(&self.detail),
            pointer => write!(f, "`{pointer}`: {}", self.detail),
        }
    }
}
