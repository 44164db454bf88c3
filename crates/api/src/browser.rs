//! Signing browsers in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A link that signs one browser in, once.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BrowserLink {
    /// The part behind `#` is a secret.
    pub url: String,
    /// Seconds from now.
    pub expires_in: u64,
}
