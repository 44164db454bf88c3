//! One item of a view, under its exposed name.

use std::sync::Arc;

use mcp::headers::ParamHeaders;
use model::ExposedName;

use crate::{catalog::Item, records::pinned::KeptBack, server::Server};

/// The `_meta` key that names a tool's server (G01).
pub const SERVER_KEY: &str = "dev.toolwharf/server";
/// The `_meta` key that names the project that owns the server. Used where callers see servers of all projects.
pub const PROJECT_KEY: &str = "dev.toolwharf/project";

/// The target of an exposed name.
#[derive(Clone)]
pub struct Route {
    pub server: Arc<Server>,
    pub native: Arc<str>,
    pub headers: Option<Arc<ParamHeaders>>,
}

/// One item of a list.
pub(crate) struct Entry {
    pub(crate) server: Arc<Server>,
    pub(crate) item: Item,
    /// The exposed name or URI.
    pub(crate) exposed: Arc<str>,
    /// Another name that calls may use: see [`model::naming::Named::former`].
    pub(crate) former: Option<Arc<str>>,
    /// The name and description set by the project.
    pub(crate) alias: Option<ExposedName>,
    pub(crate) description: Option<String>,
    /// True if the item comes from a remembered catalog because the server is not connected.
    pub(crate) is_stale: bool,
    /// Why the tool is kept back, if it is.
    pub(crate) kept_back: Option<KeptBack>,
}

impl Entry {
    /// The name before a server prefix is added.
    pub(crate) fn name(&self) -> &str {
        self.alias
            .as_ref()
            .map_or(&self.item.native, ExposedName::as_str)
    }

    /// Returns whether a client may know the tool or prompt by this name.
    pub(crate) fn is_exposed_as(&self, name: &str) -> bool {
        *self.exposed == *name || self.former.as_deref() == Some(name)
    }

    pub(crate) fn route(&self) -> Route {
        Route {
            server: self.server.clone(),
            native: self.item.native.clone(),
            headers: self.item.headers.clone(),
        }
    }

    /// Returns whether both look the same to a client.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (&self.item.raw, &other.item.raw);
        self.exposed == other.exposed
            && self.description == other.description
            && self.server.key() == other.server.key()
            && ((one.as_ptr(), one.len()) == (two.as_ptr(), two.len()) || one == two)
    }
}
