//! A sentence model: turns a text into a [`Vector`](discovery::Vector), so that texts with similar meanings have
//! similar vectors. It computes in the process, on the calling thread.
//!
//! The model is a file, which `recipe/README.md` makes from `all-MiniLM-L6-v2`. The binary works without it.
//!
//! Invariants:
//! - [`Model::load`] checks sizes before it allocates. A file that was loaded cannot make [`Model::embed`] panic.
//! - A text of any length takes bounded work: only its first tokens are read.
//! - Deliberately absent: threads, caches, and the network.

mod attention;
mod file;
mod matrix;
mod network;
mod tile;
mod tokenizer;

use std::path::Path;

use discovery::Vector;

pub use self::file::Error;
use self::{network::Network, tokenizer::Tokenizer};

/// A loaded sentence model.
pub struct Model {
    tokenizer: Tokenizer,
    network: Network,
}

impl Model {
    /// Reads a model file. It takes about 25 MB of memory.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not a model file of this version.
    pub fn load(path: &Path) -> Result<Self, Error> {
        file::parse(&file::read(path)?)
    }

    /// The vector of a text. Only the beginning of a long text counts: 64 tokens, about 50 words.
    pub fn embed(&self, text: &str) -> Vector {
        let tokens = self.tokenizer.tokens(text, self.network.positions());
        Vector::new(&self.network.embed(&tokens))
    }
}

#[cfg(test)]
mod tests;
