//! A scripted language model for a test: guards `testkit-llm`, sets its script, and shows what it was asked.

use serde_json::{Value, json};

use crate::{DEADLINE, Process, RawClient, within};

/// A running `testkit-llm`. What a script can say stands in `src/bin/testkit-llm/script.rs`.
pub struct Llm {
    // Kept for its drop, and for its stderr when a test fails.
    process: Process,
    client: RawClient,
    url: String,
}

impl Llm {
    /// Starts one that takes any key.
    ///
    /// # Panics
    /// If it is not built, or takes no script.
    pub async fn start(script: &Value) -> Self {
        Self::with_arguments(&[], script).await
    }

    /// Starts one that takes only this key.
    ///
    /// # Panics
    /// As [`Llm::start`].
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

    /// The base URL of the Messages API; that of chat completions is one segment below, `/v1`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Begins another script, and forgets the requests so far.
    ///
    /// # Panics
    /// If it is no script, with what is wrong.
    pub async fn script(&self, script: &Value) {
        let reply = self.client.post(script.to_string()).await;
        let told = String::from_utf8_lossy(&reply.body);
        assert_eq!(
            reply.status, 204,
            "testkit-llm takes no such script: {told}"
        );
    }

    /// All requests to the model so far: `path`, `peer`, `headers`, `body` and `outcome` (`open`, `refused`, `failed`,
    /// `complete` or `dropped`).
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn requests(&self) -> Vec<Value> {
        let client = self.client.at("/requests");
        let reply = within("the requests", DEADLINE, client.get(&[])).await;
        let reply = reply.collect(DEADLINE).await;
        serde_json::from_slice(&reply.body).expect("a list of requests")
    }
}

/// A script of these turns.
#[must_use]
pub fn turns(turns: &[Value]) -> Value {
    json!({ "turns": turns })
}

/// A turn that says this and ends.
#[must_use]
pub fn says(text: &str) -> Value {
    json!({ "reply": { "blocks": [{ "text": text, "deltas": 3 }] } })
}

/// A turn that asks for these tools, each with an id of its own, a name and arguments.
#[must_use]
pub fn asks(calls: &[(&str, &str, Value)]) -> Value {
    let blocks: Vec<_> = calls
        .iter()
        .map(|(id, name, input)| json!({ "tool_use": name, "id": id, "input": input, "deltas": 4 }))
        .collect();
    json!({ "reply": { "blocks": blocks } })
}

/// A turn with a condition on its request.
#[must_use]
pub fn expecting(mut turn: Value, expect: Value) -> Value {
    turn["expect"] = expect;
    turn
}
