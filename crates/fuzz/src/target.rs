//! The list of targets.

use crate::{budget, targets};

/// A parser with the properties that must hold for every input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Also the name of its folder of inputs.
    pub name: &'static str,
    /// Words of the format, which random changes would not find soon.
    pub words: &'static [&'static str],
    run: fn(&[u8]),
}

/// Maximum bytes of an input.
pub const MAX_INPUT_BYTES: usize = 16 << 10;

pub const TARGETS: [Target; 10] = [
    Target {
        name: "frames",
        words: targets::frames::WORDS,
        run: targets::frames::run,
    },
    Target {
        name: "json",
        words: targets::json::WORDS,
        run: targets::json::run,
    },
    Target {
        name: "sse",
        words: targets::sse::WORDS,
        run: targets::sse::run,
    },
    Target {
        name: "headers",
        words: targets::headers::WORDS,
        run: targets::headers::run,
    },
    Target {
        name: "configuration",
        words: targets::configuration::WORDS,
        run: targets::configuration::run,
    },
    Target {
        name: "manifests",
        words: targets::manifests::WORDS,
        run: targets::manifests::run,
    },
    Target {
        name: "uris",
        words: targets::uris::WORDS,
        run: targets::uris::run,
    },
    Target {
        name: "oauth",
        words: targets::oauth::WORDS,
        run: targets::oauth::run,
    },
    Target {
        name: "registry",
        words: targets::registry::WORDS,
        run: targets::registry::run,
    },
    Target {
        name: "mcpb",
        words: targets::mcpb::WORDS,
        run: targets::mcpb::run,
    },
];

impl Target {
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Checks one input. The part beyond [`MAX_INPUT_BYTES`] is not used.
    ///
    /// # Panics
    /// If a property does not hold, or if the input needs too much time or memory.
    pub fn check(&self, input: &[u8]) {
        let input = &input[..input.len().min(MAX_INPUT_BYTES)];
        budget::within(|| (self.run)(input));
    }
}
