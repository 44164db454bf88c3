//! A segment as one view shows it.

use crate::{past::Past, segment::Segment, vector::Vector};

/// A segment, and how a view exposes its tools.
#[derive(Debug, Clone, Copy)]
pub struct Part<'p> {
    pub(crate) segment: &'p Segment,
    names: &'p [Option<&'p str>],
    vectors: &'p [Vector],
    pub(crate) past: Option<&'p Past>,
}

impl<'p> Part<'p> {
    /// `names` has the exposed name of each tool of the segment, or `None` for a hidden tool. Tools without an element are
    /// hidden.
    pub fn new(segment: &'p Segment, names: &'p [Option<&'p str>]) -> Self {
        Self {
            segment,
            names,
            vectors: &[],
            past: None,
        }
    }

    /// `vectors` has the vector of each tool's [`passage`](crate::passage). They count if the query has a vector too. Tools
    /// without an element are found by their words only.
    #[must_use]
    pub fn with_vectors(self, vectors: &'p [Vector]) -> Self {
        Self { vectors, ..self }
    }

    /// Earlier searches that led to the tools of the segment. Those of hidden tools do not count.
    #[must_use]
    pub fn with_past(self, past: Option<&'p Past>) -> Self {
        Self { past, ..self }
    }

    /// The exposed name of a tool, if it is visible.
    pub(crate) fn exposed(&self, tool: usize) -> Option<&'p str> {
        self.names.get(tool).copied().flatten()
    }

    /// The vector of a tool, if it has one.
    pub(crate) fn vector(&self, tool: usize) -> Option<&'p Vector> {
        self.vectors.get(tool)
    }
}
