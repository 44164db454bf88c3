//! An endpoint for embeddings with the API of OpenAI, whose vectors count the words of a text.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::serve::serve;

/// Numbers of a vector.
const DIMENSIONS: usize = 64;

/// How the endpoint answers.
#[derive(Clone, Debug)]
pub enum Embeds {
    /// Correctly. The last vector comes first, with its index.
    Words,
    /// With vectors of this many numbers.
    Dimensions(usize),
    /// With the vectors of all texts but the last.
    TooFew,
    /// With this status and the body of a request.
    Status(u16),
    /// With this text.
    Text(String),
    /// Never.
    Silent,
}

/// A request to the endpoint.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    pub authorization: Option<String>,
    pub body: Value,
}

impl EmbeddingRequest {
    /// The texts of the request.
    pub fn input(&self) -> Vec<&str> {
        let input = self.body["input"].as_array();
        input
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }
}

/// An endpoint for embeddings. Dropping it stops it.
pub struct Embeddings {
    url: String,
    state: Arc<Inner>,
    _tasks: JoinSet<()>,
}

struct Inner {
    embeds: Mutex<Embeds>,
    requests: Mutex<Vec<EmbeddingRequest>>,
}

impl Embeddings {
    pub async fn start() -> Self {
        let state = Arc::new(Inner {
            embeds: Mutex::new(Embeds::Words),
            requests: Mutex::default(),
        });
        let router = Router::new()
            .route("/v1/embeddings", post(answer))
            .with_state(state.clone());
        let (url, tasks) = serve(|_| router).await;
        Self {
            url: format!("{url}/v1"),
            state,
            _tasks: tasks,
        }
    }

    /// The base URL, which ends with `/v1`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes how later requests are answered.
    pub fn set(&self, embeds: Embeds) {
        *self.state.embeds.lock() = embeds;
    }

    /// Returns all requests so far, the oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<EmbeddingRequest> {
        self.state.requests.lock().clone()
    }
}

async fn answer(
    State(state): State<Arc<Inner>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let authorization = headers.get("authorization");
    let authorization = authorization.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let request = EmbeddingRequest {
        authorization,
        body: body.clone(),
    };
    let mut vectors: Vec<Vec<f32>> = request.input().into_iter().map(vector).collect();
    state.requests.lock().push(request);
    let embeds = state.embeds.lock().clone();
    match embeds {
        Embeds::Words => {}
        Embeds::Dimensions(count) => vectors.iter_mut().for_each(|one| one.resize(count, 0.5)),
        Embeds::TooFew => {
            vectors.pop();
        }
        Embeds::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            let echo = format!("{headers:?} {body}");
            return (status, echo).into_response();
        }
        Embeds::Text(text) => return text.into_response(),
        Embeds::Silent => std::future::pending().await,
    }
    let data = vectors.iter().enumerate().rev();
    let data: Vec<Value> = data
        .map(
            |(index, vector)| json!({ "object": "embedding", "index": index, "embedding": vector }),
        )
        .collect();
    Json(json!({ "object": "list", "model": body["model"], "data": data })).into_response()
}

/// Counts words by their hash.
fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0; DIMENSIONS];
    for word in text.split(|letter: char| !letter.is_alphanumeric()) {
        let letters = word.bytes().map(|byte| byte.to_ascii_lowercase());
        let hash = letters.fold(7_usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(byte.into())
        });
        if !word.is_empty() {
            vector[hash % DIMENSIONS] += 1.0;
        }
    }
    vector
}
