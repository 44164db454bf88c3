//! Browser sign-in links.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A single-use link that signs a browser in.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BrowserLink {
    /// The part after `#` is a secret.
    pub url: String,
    /// Lifetime of the link, in seconds.
    pub expires_in: u64,
}
