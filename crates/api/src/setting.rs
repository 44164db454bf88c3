//! Settings of the installation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How Toolwharf is set up, and what is wrong with its files.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    /// The configuration files that are read, whether or not they are there.
    pub files: Vec<String>,
    /// Errors in the files. As long as there is one, the settings that were last read without an error stay in force.
    pub problems: Vec<String>,
    /// Doubts that stop nothing.
    pub warnings: Vec<String>,
    pub settings: Vec<OneSetting>,
}

/// A setting of `toolwharf.toml`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct OneSetting {
    /// With its tables: `limits.queue_len`.
    pub key: String,
    /// As the file has it, in TOML; `null` where it is not in the file. What may be a secret is `(hidden)`.
    pub value: Option<String>,
    /// In TOML; `null` where it has none.
    pub default: Option<String>,
    pub about: String,
    /// `default`, `FILE:LINE`, or `command line or environment`, which goes before the file.
    pub from: String,
}
