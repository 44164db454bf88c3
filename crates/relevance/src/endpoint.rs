//! An endpoint with the API of OpenAI for embeddings: `POST …/embeddings`.
//!
//! Responses are outside input: the number of vectors, their dimensions and every number are checked, and the length is
//! bounded. If the endpoint fails, searches compare words, and for a while no search asks it again. The log has one line
//! when the endpoint begins to fail, and one when it works again.

use std::{sync::OnceLock, time::Duration};

use bytes::Bytes;
use discovery::{MAX_CLAUSES, Vector, clauses, is_meaningful};
use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use http_client::{Client, Options};
use model::{EmbeddingSettings, Hidden, url_for_display};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use crate::circuit::Circuit;

/// Bytes of a text that are sent. Many models read at most 512 tokens, and some services refuse longer texts.
pub(crate) const MAX_TEXT_BYTES: usize = 1_500;
/// Texts of tools in a request.
pub(crate) const BATCH: usize = 16;
/// Numbers of a vector. The index keeps a byte for each.
const MAX_DIMENSIONS: usize = 4_096;
/// Bytes of a response: more than those of [`BATCH`] vectors with [`MAX_DIMENSIONS`] numbers each.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Queries that are sent at the same time. Further ones wait, within their time.
const MAX_QUERIES: usize = 16;

/// Limits on the time that requests take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The time that a search waits.
    pub(crate) query: Duration,
    /// The time of a request in the background.
    pub(crate) passages: Duration,
    /// The time after a failure in which the endpoint is not asked.
    pub(crate) pause: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            query: Duration::from_millis(1_500),
            passages: Duration::from_secs(60),
            pause: Duration::from_secs(30),
        }
    }
}

/// Why an endpoint cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEndpoint {
    #[error("{0} is not the URL of an endpoint")]
    Url(String),
    #[error("the API key has characters that are not allowed in a header")]
    Key,
}

pub(crate) struct Endpoint {
    client: Client,
    uri: Uri,
    /// The URL without what could be a secret.
    shown: String,
    model: String,
    key: Option<Hidden>,
    authorization: Option<HeaderValue>,
    times: Times,
    /// The number of dimensions of the first vectors.
    dimensions: OnceLock<usize>,
    of_queries: Mutex<Circuit>,
    of_passages: Mutex<Circuit>,
    queries: Semaphore,
}

#[derive(Serialize)]
struct Asked<'t> {
    model: &'t str,
    input: &'t [&'t str],
}

#[derive(Deserialize)]
struct Answered {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Endpoint {
    pub(crate) fn new(settings: &EmbeddingSettings, times: Times) -> Result<Self, InvalidEndpoint> {
        let shown = url_for_display(&settings.url);
        let (base, query) = match settings.url.split_once('?') {
            Some((base, query)) => (base, format!("?{query}")),
            None => (&*settings.url, String::new()),
        };
        let url = format!("{}/embeddings{query}", base.trim_end_matches('/'));
        let uri = url.parse::<Uri>().ok().filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        let uri = uri.ok_or_else(|| InvalidEndpoint::Url(shown.clone()))?;
        let authorization = |key: &Hidden| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal())).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let key = settings.api_key.clone();
        let authorization = match &key {
            Some(key) => Some(authorization(key).ok_or(InvalidEndpoint::Key)?),
            None => None,
        };
        Ok(Self {
            // An administrator configured the URL, which may be on this machine.
            client: Client::new(Options {
                max_idle: MAX_QUERIES,
                ..Options::guarded(false)
            }),
            uri,
            shown,
            model: settings.model.clone(),
            key,
            authorization,
            times,
            dimensions: OnceLock::new(),
            of_queries: Mutex::new(Circuit::new(times.pause)),
            of_passages: Mutex::new(Circuit::new(times.pause)),
            queries: Semaphore::new(MAX_QUERIES),
        })
    }

    /// Returns whether [`Endpoint::passages`] would ask now.
    pub(crate) fn is_available(&self) -> bool {
        self.of_passages.lock().admits(Instant::now())
    }

    /// The vectors of a query and of its clauses. Empty if they do not arrive in time.
    pub(crate) async fn query(&self, query: &str) -> Vec<Vector> {
        let query = beginning(query);
        if !query.contains(char::is_alphanumeric) {
            return Vec::new();
        }
        let mut texts = vec![query];
        let clauses = clauses(query).into_iter().map(str::trim);
        texts.extend(
            clauses
                .filter(|clause| is_meaningful(clause))
                .take(MAX_CLAUSES),
        );
        // A single clause is the whole.
        if texts.len() == 2 {
            texts.truncate(1);
        }
        let until = Instant::now() + self.times.query;
        let Ok(Ok(_permit)) = timeout_at(until, self.queries.acquire()).await else {
            return Vec::new();
        };
        let now = Instant::now();
        if !self.of_queries.lock().admit(now) {
            return Vec::new();
        }
        let asked = self.ask(&texts, until.saturating_duration_since(now)).await;
        match asked {
            Ok(vectors) => {
                if self.of_queries.lock().succeeded() {
                    tracing::info!("searches use the embeddings of {} again", self.shown);
                }
                vectors
            }
            Err(why) => {
                if self.of_queries.lock().failed(Instant::now()) {
                    tracing::warn!(
                        "searches compare words only, because {} does not return embeddings: {why}",
                        self.shown
                    );
                }
                Vec::new()
            }
        }
    }

    /// The vectors of at most [`BATCH`] texts of tools, in their order. `None` if the endpoint fails.
    pub(crate) async fn passages(&self, passages: &[&str]) -> Option<Vec<Vector>> {
        if !self.of_passages.lock().admit(Instant::now()) {
            return None;
        }
        let texts: Vec<&str> = passages.iter().copied().map(beginning).collect();
        match self.ask(&texts, self.times.passages).await {
            Ok(vectors) => {
                if self.of_passages.lock().succeeded() {
                    tracing::info!("{} returns embeddings of tools again", self.shown);
                }
                Some(vectors)
            }
            Err(why) => {
                if self.of_passages.lock().failed(Instant::now()) {
                    tracing::warn!(
                        "new tools are found by words only, because {} does not return their embeddings: {why}",
                        self.shown
                    );
                }
                None
            }
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Why there are no vectors, without anything that the endpoint sent.
    pub(crate) async fn ask(
        &self,
        texts: &[&str],
        within: Duration,
    ) -> Result<Vec<Vector>, String> {
        let body = serde_json::to_vec(&Asked {
            model: &self.model,
            input: texts,
        });
        let body = body.map_err(|error| error.to_string())?;
        let mut request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("toolwharf/", env!("CARGO_PKG_VERSION")));
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value.clone());
        }
        let request = request.body(Bytes::from(body));
        let request = request.map_err(|error| error.to_string())?;
        let response = self
            .client
            .fetch(request, MAX_RESPONSE_BYTES, within)
            .await
            .map_err(|why| match &self.key {
                Some(key) => key.blot(&why),
                None => why,
            })?;
        match response.status() {
            StatusCode::OK => self.read(response.body(), texts.len()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(format!(
                "it answered {}; check `api_key` in `[embeddings]`",
                response.status()
            )),
            StatusCode::NOT_FOUND => Err(format!(
                "it answered {}; check `url` and `model` in `[embeddings]`",
                response.status()
            )),
            status => Err(format!("it answered {status}")),
        }
    }

    /// Reads a response for `count` texts.
    fn read(&self, body: &[u8], count: usize) -> Result<Vec<Vector>, String> {
        // The message of the parser could contain a part of the text.
        let answered: Answered = serde_json::from_slice(body)
            .map_err(|_| "its response is not a JSON object with `data`, a list of embeddings")?;
        if answered.data.len() != count {
            let found = answered.data.len();
            return Err(format!("it returned {found} vectors for {count} texts"));
        }
        let mut vectors: Vec<Option<Vector>> = vec![None; count];
        for (place, Embedding { index, embedding }) in answered.data.into_iter().enumerate() {
            let length = embedding.len();
            if !(1..=MAX_DIMENSIONS).contains(&length) {
                return Err(format!(
                    "a vector has {length} numbers, and 1 to {MAX_DIMENSIONS} are possible"
                ));
            }
            if embedding.iter().any(|number| !number.is_finite()) {
                return Err("a vector has a number that is not finite".to_owned());
            }
            let slot = vectors.get_mut(index.unwrap_or(place));
            match slot.filter(|slot| slot.is_none()) {
                Some(slot) => *slot = Some(Vector::new(&embedding)),
                None => return Err("the indexes of its vectors are wrong".to_owned()),
            }
        }
        let vectors: Vec<Vector> = vectors.into_iter().flatten().collect();
        let first = vectors.first().map_or(0, Vector::dimensions);
        if vectors.iter().any(|vector| vector.dimensions() != first) {
            return Err("its vectors have different lengths".to_owned());
        }
        // Vectors of different lengths cannot be compared.
        let known = *self.dimensions.get_or_init(|| first);
        if known != first {
            return Err(format!(
                "its vectors now have {first} numbers instead of {known}; if its model was changed, restart Toolwharf"
            ));
        }
        Ok(vectors)
    }
}

fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}
