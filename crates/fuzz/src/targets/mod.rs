//! One module for each target: `run`, which panics if a property does not hold, and the words of its format.

pub(crate) mod configuration;
pub(crate) mod frames;
pub(crate) mod headers;
pub(crate) mod json;
pub(crate) mod manifests;
pub(crate) mod mcpb;
pub(crate) mod oauth;
pub(crate) mod registry;
pub(crate) mod sse;
pub(crate) mod uris;
