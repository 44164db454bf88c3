//! The meanings of tools and queries: vectors, which are computed once for each text of a tool.

use std::{collections::HashMap, path::Path, sync::Arc};

use discovery::Vector;
pub use discovery_model::Error as LoadError;
use discovery_model::Model;
use model::EmbeddingSettings;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::endpoint::{BATCH, Endpoint, InvalidEndpoint, Times};

/// Bytes of the vectors that are remembered. Beyond it, all are forgotten; those in use are kept by their views.
const MAX_KNOWN_BYTES: usize = 64 << 20;

/// Bytes of a query that can have an effect.
const MAX_QUERY_BYTES: usize = 4 << 10;

/// The source of vectors, with the vectors of the tools that it has seen.
pub struct Meanings {
    source: Source,
    known: Mutex<Known>,
    /// Held while the vectors of tools are computed: one batch at a time, so that queries do not wait behind many.
    turn: Semaphore,
}

enum Source {
    Model(Arc<Model>),
    Endpoint(Box<Endpoint>),
}

/// A part of the digest of a text.
type Key = [u8; 16];

#[derive(Default)]
struct Known {
    vectors: HashMap<Key, Vector>,
    bytes: usize,
}

impl Meanings {
    /// Reads the file of a model. Blocks the thread.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a model file.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let model = Model::load(path)?;
        Ok(Self::of(Source::Model(Arc::new(model))))
    }

    /// Uses an endpoint, which gets the texts of all tools and all queries. It is asked only when vectors are needed.
    ///
    /// # Errors
    /// If the URL or the key is invalid.
    pub fn of_endpoint(settings: &EmbeddingSettings) -> Result<Self, InvalidEndpoint> {
        Self::of_endpoint_within(settings, Times::default())
    }

    pub(crate) fn of_endpoint_within(
        settings: &EmbeddingSettings,
        times: Times,
    ) -> Result<Self, InvalidEndpoint> {
        let endpoint = Endpoint::new(settings, times)?;
        Ok(Self::of(Source::Endpoint(Box::new(endpoint))))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            known: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }

    /// False while an endpoint that failed is not asked for the vectors of tools.
    #[must_use]
    pub fn is_available(&self) -> bool {
        match &self.source {
            Source::Model(_) => true,
            Source::Endpoint(endpoint) => endpoint.is_available(),
        }
    }

    /// The vectors of a query and of its clauses. Takes milliseconds with a model, and at most 1.5 seconds with an endpoint.
    /// Empty if the endpoint fails.
    ///
    /// # Cancel safety
    /// Can be dropped at any time.
    pub async fn of_query(&self, query: &str) -> Vec<Vector> {
        let query = &query[..query.floor_char_boundary(MAX_QUERY_BYTES)];
        match &self.source {
            Source::Model(model) => {
                let (model, query) = (model.clone(), query.to_owned());
                let computing = spawn_blocking(move || model.embed_task(&query));
                computing.await.unwrap_or_default()
            }
            Source::Endpoint(endpoint) => endpoint.query(query).await,
        }
    }

    /// The vectors of texts of tools, in their order. Takes milliseconds for each new text. `None` if an endpoint fails.
    ///
    /// # Cancel safety
    /// Can be dropped at any time. Finished batches are remembered.
    pub async fn of_passages(&self, passages: &[String]) -> Option<Vec<Vector>> {
        let keys: Vec<Key> = passages.iter().map(|text| key(text)).collect();
        let mut vectors: Vec<Option<Vector>> = vec![None; passages.len()];
        let unknown = self.recall(&keys, 0..passages.len(), &mut vectors);
        for batch in unknown.chunks(BATCH) {
            let _turn = self.turn.acquire().await.ok()?;
            // Another task may have computed them.
            let places = self.recall(&keys, batch.iter().copied(), &mut vectors);
            let texts: Vec<&str> = places.iter().map(|place| &*passages[*place]).collect();
            let computed = match &self.source {
                _ if texts.is_empty() => Vec::new(),
                Source::Model(model) => embed(model, &texts).await?,
                Source::Endpoint(endpoint) => endpoint.passages(&texts).await?,
            };
            let mut known = self.known.lock();
            for (place, vector) in places.into_iter().zip(computed) {
                known.insert(keys[place], vector.clone());
                vectors[place] = Some(vector);
            }
        }
        vectors.into_iter().collect()
    }

    /// Fills in the vectors that are known, and returns the other places.
    fn recall(
        &self,
        keys: &[Key],
        places: impl Iterator<Item = usize>,
        vectors: &mut [Option<Vector>],
    ) -> Vec<usize> {
        let known = self.known.lock();
        let mut unknown = Vec::new();
        for place in places {
            vectors[place] = known.vectors.get(&keys[place]).cloned();
            if vectors[place].is_none() {
                unknown.push(place);
            }
        }
        unknown
    }
}

async fn embed(model: &Arc<Model>, texts: &[&str]) -> Option<Vec<Vector>> {
    let model = model.clone();
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let computing = spawn_blocking(move || {
        let vectors = texts.iter().map(|text| model.embed(text));
        vectors.collect()
    });
    computing.await.ok()
}

fn key(text: &str) -> Key {
    let digest = Sha256::digest(text);
    std::array::from_fn(|at| digest[at])
}

impl Known {
    fn insert(&mut self, key: Key, vector: Vector) {
        if self.bytes >= MAX_KNOWN_BYTES {
            *self = Self::default();
        }
        self.bytes += size_of::<Vector>() + vector.dimensions();
        self.vectors.insert(key, vector);
    }
}
