//! Configuration: reading the files that users already have, and editing them in place.
//!
//! Invariants: everything that is wrong is reported at once with file, line and remedy; no
//! value of a variable, of `env` or of `headers` is in any message; an edit keeps comments,
//! order and unknown keys. Deliberately absent: watching for changes, and what a change does.

mod edit;
mod extensions;
mod import;
mod interpolate;
mod load;
mod locate;
mod members;
mod problem;
mod sandbox;
mod servers;
mod settings;
mod shape;
mod source;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use edit::{Accepted, EditError, ImportReport, Rejected, ServerFile, edit};
pub(crate) use import::{CLIENTS, foreign, switch_off};
pub(crate) use interpolate::{Error as Unfilled, Unknown, Variables, is_variable};
pub(crate) use load::Config;
pub(crate) use locate::{Sources, data_dir};
pub(crate) use members::{MOST, Reader, TEXT, Wrong, fits, texts};
pub(crate) use problem::{ConfigError, Problem, nearest};
pub(crate) use sandbox::{
    heartbeat, is_mountable, limits, network, not_mountable, path, ports, volumes,
};
pub(crate) use servers::{Unfit, check as check_entry, check_project};
#[cfg(test)]
pub(crate) use settings::SAMPLE as SETTINGS_SAMPLE;
