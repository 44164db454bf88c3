//! Servers that registries list: finding them, and what it takes to install one.
//!
//! - `document`: an entry of a registry (`server.json`, schema 2025-12-11), checked as a whole.
//! - `plan`: the ways in which it can be installed, and what each of them asks for; `fill`: values put in; `secret`s of
//!   theirs are named and never written out.
//! - `fetch`: requests to registries, with a cache on the disk; `sources`: which registries there are, and the catalogue that
//!   is built in.
//! - `bundle`: MCPB files, unpacked; `archive`: their bounds, checked before anything is parsed.
//!
//! Invariants: a registry is not trusted. An entry that holds anything odd is refused as a whole, with the place; nothing of
//! it is given to a shell, to npm, to uv or to Docker but checked names and versions. Texts of an entry are never filled in
//! from the environment. Every list, text, page and file has a bound. Deliberately absent: writing the configuration, and
//! starting anything.

mod archive;
mod bundle;
mod document;
mod fetch;
mod fill;
mod plan;
mod sources;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    fill::{Filled, Place},
    plan::{Kind, Plan},
    sources::{Catalogue, Error, Listing},
};
