//! One item of a view, under its exposed name.

use std::sync::Arc;

use bytes::Bytes;
use catalog::{Item, KeptBack, has_view};
use mcp::headers::ParamHeaders;
use model::{ExposedName, NativeName};

use crate::server::Server;

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
    /// True for a tool with an App.
    pub(crate) has_app: bool,
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

    /// Like [`Entry::name`], without a copy if it is the native name.
    pub(crate) fn native_name(&self) -> NativeName {
        match &self.alias {
            Some(alias) => NativeName::new(alias.as_str()),
            None => NativeName::new(self.item.native.clone()),
        }
    }

    pub(crate) fn has_app(&self) -> bool {
        has_view(&self.item.raw)
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
            has_app: self.has_app(),
        }
    }

    /// Returns whether a name leads to the same target through either.
    pub(crate) fn is_same_target(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server) && is_same_text(&self.item.raw, &other.item.raw)
    }

    /// Returns whether both look the same to a client.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.exposed == other.exposed
            && self.description == other.description
            && self.server.key() == other.server.key()
            && (is_same_text(&self.item.raw, &other.item.raw) || self.item.raw == other.item.raw)
    }
}

fn is_same_text(one: &Bytes, two: &Bytes) -> bool {
    (one.as_ptr(), one.len()) == (two.as_ptr(), two.len())
}
