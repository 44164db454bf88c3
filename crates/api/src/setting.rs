//! Settings of the gateway.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The gateway's settings, and errors in its configuration files.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    /// The configuration files that the gateway reads, including missing ones.
    pub files: Vec<String>,
    /// Errors in the files. While there are any, the settings of the last error-free read stay in force.
    pub problems: Vec<String>,
    /// Possible mistakes in the files. The settings are used nevertheless.
    pub warnings: Vec<String>,
    pub settings: Vec<OneSetting>,
}

/// A setting of `toolwharf.toml`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OneSetting {
    /// The key with its table, for example `limits.queue_len`.
    pub key: String,
    /// The value in the file, as TOML. `null` if it is not in the file, `(hidden)` if it may be a secret.
    pub value: Option<String>,
    /// The default, as TOML. `null` if the setting has no default.
    pub default: Option<String>,
    pub about: String,
    /// `default`, `FILE:LINE`, or `command line or environment`, which overrides the file.
    pub from: String,
}
