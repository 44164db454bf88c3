//! One item of what a caller sees, under the name that it has there.

use std::sync::Arc;

use mcp::headers::ParamHeaders;
use model::ExposedName;

use crate::{catalog::Item, pinned::KeptBack, server::Server};

/// Where a name leads.
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
    /// The name or URI that clients see.
    pub(crate) exposed: Arc<str>,
    /// What the project wants it to be called, and said of it.
    pub(crate) alias: Option<ExposedName>,
    pub(crate) description: Option<String>,
    /// Whether it is remembered, not fresh.
    pub(crate) is_stale: bool,
    /// Why it is not offered.
    pub(crate) kept_back: Option<KeptBack>,
}

impl Entry {
    /// The name that it goes by before servers are told apart.
    pub(crate) fn name(&self) -> &str {
        self.alias
            .as_ref()
            .map_or(&self.item.native, ExposedName::as_str)
    }

    pub(crate) fn route(&self) -> Route {
        Route {
            server: self.server.clone(),
            native: self.item.native.clone(),
            headers: self.item.headers.clone(),
        }
    }

    /// Whether a client that has one of them has the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (&self.item.raw, &other.item.raw);
        self.exposed == other.exposed
            && self.description == other.description
            && self.server.key() == other.server.key()
            && ((one.as_ptr(), one.len()) == (two.as_ptr(), two.len()) || one == two)
    }
}
