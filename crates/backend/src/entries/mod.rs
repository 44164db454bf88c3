//! Server entries on their way into and out of the database, and in responses.
//!
//! [`literal`] decides which parts of an entry are secrets. [`mask`] hides those parts in everything that is shown, and
//! restores them when a masked entry is saved. [`seal`] encrypts them in the rows of the database.
//!
//! Invariants: an entry leaves the gateway only through [`masked`] or [`difference`]. A masked value is restored only
//! while its server and its place in the entry stay the same. No function here logs a value.

mod literal;
mod mask;
mod seal;

pub use self::{
    literal::{Found, evident, found, masked_url},
    mask::{difference, manifest_restored, masked, restored},
    seal::{Owner, Sealing, hosted_by, migrate},
};
