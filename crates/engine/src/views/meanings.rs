//! The meanings of tools: vectors of a sentence model, computed once for each text.
//!
//! Invariant: a search never waits for the vectors of tools. Until they are computed, it uses words only.

use std::{collections::HashMap, path::Path};

use discovery::Vector;
use discovery_model::{Error, Model};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Vectors that are remembered. Beyond it, all are forgotten; those in use are kept by their views.
const MAX_KNOWN: usize = 50_000;

/// A sentence model, with the vectors of the texts that it has seen.
pub struct Meanings {
    model: Model,
    known: Mutex<HashMap<[u8; 16], Vector>>,
}

impl Meanings {
    /// Reads a model file. Blocks the thread.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a model file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            model: Model::load(path)?,
            known: Mutex::default(),
        })
    }

    /// The vectors of a query and of its clauses. Takes milliseconds.
    pub(super) fn of_query(&self, query: &str) -> Vec<Vector> {
        self.model.embed_task(query)
    }

    /// The vector of a tool's text, which is remembered.
    pub(super) fn of_passage(&self, passage: &str) -> Vector {
        let digest = Sha256::digest(passage);
        let key: [u8; 16] = std::array::from_fn(|at| digest[at]);
        if let Some(known) = self.known.lock().get(&key) {
            return known.clone();
        }
        let vector = self.model.embed(passage);
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, vector.clone());
        vector
    }
}
