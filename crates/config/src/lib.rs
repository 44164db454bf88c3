//! Configuration: reads the files that users already have, and edits them in place.
//!
//! Invariants: all problems are reported at once, with file, line and remedy; messages contain no values of variables,
//! `env` or `headers`; an edit keeps comments, order and unknown keys. Deliberately absent: watching for changes and
//! reacting to them.

mod clients;
mod edit;
mod extensions;
mod import;
mod interpolate;
mod json;
mod keys;
mod load;
mod locate;
mod members;
mod merge;
mod names;
mod options;
mod own;
mod place;
mod problem;
mod sandbox;
mod sealed;
mod servers;
mod settings;
mod shape;
mod source;
#[cfg(test)]
mod tests;
mod units;

pub use clients::{CLIENTS, Client, ClientFile, Machine, OnDisk, Os, Way};
pub use edit::{EditError, ServerFile, edit, edit_with_backup};
pub use import::{Foreign, foreign, foreign_switches, switch_off};
pub use interpolate::{Error as Unfilled, Lookup, Unknown, Variables, is_variable, login_name};
pub use keys::{keys_at, schemas, snake};
pub use load::{Config, all_settings};
pub use locate::{Sources, config_dir, data_dir};
pub use members::{MAX_ITEMS, MAX_TEXT_BYTES, Reader, fits, texts};
pub use merge::{Accepted, ImportReport, Off, Rejected};
pub use options::{heartbeat, options};
pub use own::{read_own, remove_own, write_own};
pub use problem::{ConfigError, Problem, nearest};
pub use sandbox::{is_port, not_allowed, path, sandbox, why_not_allowed};
pub use sealed::{Sealed, SealedValues};
pub use servers::{
    Unfit, check as check_entry, check_form, check_project, login_variables, misplaced, transport,
};
#[cfg(test)]
pub(crate) use settings::SAMPLE as SETTINGS_SAMPLE;
pub use settings::{Setting, setting_text, with_default_sandbox};
