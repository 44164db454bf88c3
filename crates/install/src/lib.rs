//! Installing servers from registries: finding entries, and turning them into server configurations.
//!
//! - `document`: a registry entry (`server.json`, schema 2025-12-11), validated as a whole.
//! - `plan`: the possible installation plans of an entry, with their inputs. `fill`: inserts values; secrets are
//!   referred to by name and never written out.
//! - `fetch`: requests to registries, with a cache on disk. `sources`: the registries, including the built-in
//!   catalogue.
//! - `bundle`: unpacking MCPB files. `archive`: limits of MCPB files, checked before anything is parsed.
//!
//! Invariants: a registry is not trusted. An entry with anything suspicious is refused as a whole, with the place. Only
//! validated names and versions are passed to npm, uv or Docker, and nothing to a shell. Texts of an entry are never
//! expanded from the environment. Every list, text, page and file is limited in size. Deliberately absent: writing the
//! configuration, and starting anything.

mod archive;
mod bundle;
mod document;
mod fetch;
mod fill;
mod plan;
mod sources;
#[cfg(test)]
mod tests;

pub use self::{
    bundle::extract,
    document::Document,
    fill::{Filled, Place},
    plan::{Kind, Plan, plans},
    sources::{Catalogue, Error, Listing},
};
