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

use discovery::{MAX_CLAUSES, Vector, clauses, is_meaningful};

pub use self::file::Error;
use self::{network::Network, tokenizer::Tokenizer};

/// Tokens of a task that are read. It bounds what a search costs; words beyond it are still compared as words.
const MAX_TASK_TOKENS: usize = 48;

/// Bytes of a task that are read.
const MAX_TASK_BYTES: usize = 4 << 10;

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
        let rows = self.network.rows(&tokens);
        self.network.mean(&rows)
    }

    /// The vectors of a task: first that of the whole text, then those of its clauses if there are several. The network
    /// reads the text once, so all of them together cost as much as one. Only the beginning of a long task counts: 48
    /// tokens, about 38 words.
    pub fn embed_task(&self, text: &str) -> Vec<Vector> {
        let limit = self.network.positions().min(MAX_TASK_TOKENS);
        let text = &text[..text.floor_char_boundary(MAX_TASK_BYTES)];
        let clauses = clauses(text);
        let (tokens, ends) = self.tokenizer.parts(&clauses, limit);
        let rows = self.network.rows(&tokens);
        let mut vectors = vec![self.network.mean(&rows)];
        let mut start = 1;
        for (clause, end) in clauses.into_iter().zip(ends) {
            if is_meaningful(clause)
                && vectors.len() <= MAX_CLAUSES
                && let Some(rows) = rows.get(start * self.network.width..end * self.network.width)
                && !rows.is_empty()
            {
                vectors.push(self.network.mean(rows));
            }
            start = end;
        }
        // A single clause is the whole.
        if vectors.len() == 2 {
            vectors.truncate(1);
        }
        vectors
    }
}

#[cfg(test)]
mod tests;
