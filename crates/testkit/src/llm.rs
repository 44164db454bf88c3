//! Runs `testkit-llm`, a scripted language model, sets its script and returns the requests it received.

use serde_json::{Value, json};

use crate::{DEADLINE, Process, RawClient, within};

/// A running `testkit-llm`. The script format is defined in `src/bin/testkit-llm/script.rs`.
pub struct Llm {
    // Dropping this stops the process, and prints its stderr if the test fails.
    process: Process,
    client: RawClient,
    url: String,
}

impl Llm {
    /// Starts a model that accepts any key.
    ///
    /// # Panics
    /// If the binary is not built, or rejects the script.
    pub async fn start(script: &Value) -> Self {
        Self::with_arguments(&[], script).await
    }

    /// Starts a model that accepts only this API key.
    pub async fn with_key(key: &str, script: &Value) -> Self {
        Self::with_arguments(&["--key", key], script).await
    }

    async fn with_arguments(arguments: &[&str], script: &Value) -> Self {
        let mut process = Process::bin("testkit-llm", arguments);
        let url = process.url().await;
        let client = RawClient::new(&format!("{url}/script"));
        let this = Self {
            process,
            client,
            url,
        };
        this.script(script).await;
        this
    }

    /// The base URL of the Messages API. Chat completions are one segment below, at `/v1`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Replaces the script and clears the recorded requests.
    ///
    /// # Panics
    /// If the script is invalid, with the reason.
    pub async fn script(&self, script: &Value) {
        let reply = self.client.post(script.to_string()).await;
        let told = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 204, "testkit-llm rejected the script: {told}");
    }

    /// Returns all requests to the model so far: `path`, `peer`, `headers`, `body` and `outcome` (`open`, `refused`,
    /// `failed`, `complete` or `dropped`).
    pub async fn requests(&self) -> Vec<Value> {
        let client = self.client.at("/requests");
        let reply = within("the requests", DEADLINE, client.get(&[])).await;
        let reply = reply.collect(DEADLINE).await;
        serde_json::from_slice(&reply.body).expect("a list of requests")
    }
}

/// A script with these turns.
#[must_use]
pub fn turns(turns: &[Value]) -> Value {
    json!({ "turns": turns })
}

/// A turn that replies with `text`.
#[must_use]
pub fn says(text: &str) -> Value {
    json!({ "reply": { "blocks": [{ "text": text, "deltas": 3 }] } })
}

/// A turn that calls these tools; each call has an id, a name and arguments.
#[must_use]
pub fn asks(calls: &[(&str, &str, Value)]) -> Value {
    let blocks: Vec<_> = calls
        .iter()
        .map(|(id, name, input)| json!({ "tool_use": name, "id": id, "input": input, "deltas": 4 }))
        .collect();
    json!({ "reply": { "blocks": blocks } })
}

/// Adds a condition on the request to a turn.
#[must_use]
pub fn expecting(mut turn: Value, expect: Value) -> Value {
    turn["expect"] = expect;
    turn
}
