//! Paging by key, and the answer of a `put`.

/// The most rows of one page; a greater limit is taken as this.
pub const MAX_PAGE: u32 = 1_000;

/// Which part of a list: the rows behind `after`, at most `limit`. A page with fewer rows than its
/// limit is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The last key of the page before.
    pub after: Option<String>,
    /// `None` is [`MAX_PAGE`].
    pub limit: Option<u32>,
}

impl Page {
    /// The first rows.
    pub fn first(limit: u32) -> Self {
        Self {
            after: None,
            limit: Some(limit),
        }
    }

    /// The rows behind this key.
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

/// A row that was put.
#[derive(Clone, Debug, PartialEq)]
pub struct Put<T> {
    pub row: T,
    /// Whether it was not there before.
    pub created: bool,
}
