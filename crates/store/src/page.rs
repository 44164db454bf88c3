//! Pagination by key, and the result of a `put`.

/// Maximum number of rows per page. A greater limit is reduced to this.
pub const MAX_PAGE: u32 = 1_000;

/// A section of a list: at most `limit` rows after the key `after`. A page with fewer rows than its limit is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The last key of the previous page.
    pub after: Option<String>,
    /// Maximum number of rows. `None` means [`MAX_PAGE`].
    pub limit: Option<u32>,
}

impl Page {
    /// The first page of a list.
    pub fn first(limit: u32) -> Self {
        Self {
            after: None,
            limit: Some(limit),
        }
    }

    /// The page that follows this key.
    pub fn after(key: impl Into<String>, limit: u32) -> Self {
        Self {
            after: Some(key.into()),
            limit: Some(limit),
        }
    }

    pub(crate) fn limit(&self) -> i64 {
        self.limit.unwrap_or(MAX_PAGE).min(MAX_PAGE).into()
    }
}

/// The result of a `put`.
#[derive(Clone, Debug, PartialEq)]
pub struct Put<T> {
    pub row: T,
    /// True if the row is new.
    pub created: bool,
}
