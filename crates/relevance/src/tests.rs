//! Vectors from an endpoint: correct ones, wrong ones, and an endpoint that fails.

use std::time::Duration;

use discovery::Vector;
use model::{EmbeddingSettings, Hidden};
use testkit::{DEADLINE, Embeddings, Embeds, wait_for_some};
use tokio::time::Instant;

use crate::{
    endpoint::{BATCH, Endpoint, MAX_TEXT_BYTES, Times},
    meanings::Meanings,
};

const KEY: &str = "sk-0123456789";

fn settings(url: &str) -> EmbeddingSettings {
    EmbeddingSettings {
        url: url.to_owned(),
        model: "words".to_owned(),
        api_key: Some(Hidden::new(KEY)),
    }
}

/// A long pause, so that an endpoint that failed is not asked again.
fn times() -> Times {
    Times {
        query: Duration::from_millis(300),
        pause: Duration::from_secs(600),
        ..Times::default()
    }
}

fn meanings(endpoint: &Embeddings, times: Times) -> Meanings {
    Meanings::of_endpoint_within(&settings(endpoint.url()), times).expect("valid settings")
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("tool{number}")).collect()
}

#[tokio::test]
async fn texts_of_similar_words_have_similar_vectors() {
    let endpoint = Embeddings::start().await;
    let meanings = meanings(&endpoint, Times::default());
    let tools = ["create issue", "send mail"].map(str::to_owned);
    let vectors = meanings.of_passages(&tools).await.expect("vectors");
    let query = meanings.of_query("create an issue").await;
    assert_eq!(query.len(), 1);
    let cosines: Vec<f32> = vectors.iter().map(|tool| tool.cosine(&query[0])).collect();
    assert!(cosines[0] > 0.7 && cosines[1] < 0.5, "{cosines:?}");
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].body["model"], "words");
    assert_eq!(requests[0].input(), tools);
    let expect = format!("Bearer {KEY}");
    assert_eq!(requests[0].authorization.as_deref(), Some(&*expect));
}

#[tokio::test]
async fn the_vectors_of_tools_are_asked_for_once_in_batches() {
    let endpoint = Embeddings::start().await;
    let meanings = meanings(&endpoint, Times::default());
    let tools = texts(BATCH + 1);
    let vectors = meanings.of_passages(&tools).await.expect("vectors");
    assert_eq!(vectors.len(), tools.len());
    let more = [&tools[..], &["another".to_owned()]].concat();
    let again = meanings.of_passages(&more).await.expect("vectors");
    assert_eq!(again[..tools.len()], vectors);
    let asked: Vec<usize> = endpoint
        .requests()
        .iter()
        .map(|request| request.input().len())
        .collect();
    assert_eq!(asked, [BATCH, 1, 1]);
}

#[tokio::test]
async fn a_query_is_sent_with_its_clauses_and_cut_off() {
    let endpoint = Embeddings::start().await;
    let meanings = meanings(&endpoint, Times::default());
    let task = "Read the file a.csv, draw a bar chart and stop.";
    assert_eq!(meanings.of_query(task).await.len(), 3);
    let expect = [task, "Read the file a.csv,", "draw a bar chart"];
    assert_eq!(endpoint.requests()[0].input(), expect);
    meanings.of_query(&"天".repeat(1 << 20)).await;
    let requests = endpoint.requests();
    let sent = requests[1].input();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].len() <= MAX_TEXT_BYTES);
    for nothing in ["", " ?!", "\0"] {
        assert!(meanings.of_query(nothing).await.is_empty());
    }
    assert_eq!(endpoint.requests().len(), 2);
}

/// Neither wrong vectors nor errors are used, and afterwards nothing waits for the endpoint.
#[tokio::test]
async fn wrong_responses_are_refused() {
    let vector = |numbers: &str| format!(r#"{{"data":[{{"index":0,"embedding":[{numbers}]}}]}}"#);
    for embeds in [
        Embeds::TooFew,
        Embeds::Dimensions(0),
        Embeds::Dimensions(4_097),
        Embeds::Dimensions(32),
        Embeds::Status(500),
        Embeds::Status(401),
        Embeds::Status(307),
        Embeds::Text(String::new()),
        Embeds::Text("[]".to_owned()),
        Embeds::Text(r#"{"data":[]}"#.to_owned()),
        Embeds::Text(vector("NaN")),
        Embeds::Text(vector("1e39")),
        Embeds::Text(vector("1e400")),
        Embeds::Text(vector("null")),
        Embeds::Text(vector("1").replace("\"index\":0", "\"index\":1")),
        Embeds::Text(vector(&"1,".repeat(4 << 20))),
    ] {
        let endpoint = Embeddings::start().await;
        let meanings = meanings(&endpoint, times());
        let known = meanings.of_passages(&texts(1)).await.expect("vectors");
        let told = format!("{embeds:?}");
        let told: String = told.chars().take(80).collect();
        endpoint.set(embeds);
        assert_eq!(meanings.of_query("a query").await, [], "{told}");
        let more = ["new".to_owned()];
        assert!(meanings.is_available());
        assert_eq!(meanings.of_passages(&more).await, None, "{told}");
        assert!(!meanings.is_available());
        endpoint.set(Embeds::Words);
        assert_eq!(meanings.of_query("a query").await, [], "{told}");
        assert_eq!(meanings.of_passages(&more).await, None, "{told}");
        assert_eq!(endpoint.requests().len(), 3, "{told}");
        assert_eq!(meanings.of_passages(&texts(1)).await, Some(known), "{told}");
    }
}

#[tokio::test]
async fn a_search_waits_once_for_an_endpoint_that_does_not_answer() {
    let endpoint = Embeddings::start().await;
    endpoint.set(Embeds::Silent);
    let meanings = meanings(&endpoint, times());
    let begun = Instant::now();
    assert_eq!(meanings.of_query("a query").await, []);
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    for _ in 0..100 {
        assert_eq!(meanings.of_query("a query").await, []);
    }
    assert_eq!(endpoint.requests().len(), 1);
}

#[tokio::test]
async fn an_endpoint_that_works_again_is_used_again() {
    let endpoint = Embeddings::start().await;
    endpoint.set(Embeds::Status(503));
    let times = Times {
        pause: Duration::from_millis(1),
        ..Times::default()
    };
    let meanings = meanings(&endpoint, times);
    assert_eq!(meanings.of_query("a query").await, []);
    assert_eq!(meanings.of_passages(&texts(2)).await, None);
    endpoint.set(Embeds::Words);
    let found = wait_for_some("vectors", DEADLINE, async || {
        let query: Vec<Vector> = meanings.of_query("a query").await;
        (!query.is_empty()).then_some(query)
    });
    assert_eq!(found.await.len(), 1);
    let found = wait_for_some("vectors of tools", DEADLINE, async || {
        meanings.of_passages(&texts(2)).await
    });
    assert_eq!(found.await.len(), 2);
}

#[tokio::test]
async fn errors_name_neither_the_key_nor_the_user() {
    for (url, key, expect) in [
        ("ftp://user:word@host/v1?key=secret", KEY, "ftp://host/v1"),
        ("no URL", KEY, "no URL"),
        ("http://host/v1", "sk-\n", "the API key"),
    ] {
        let settings = EmbeddingSettings {
            api_key: Some(Hidden::new(key)),
            ..settings(url)
        };
        let error = Meanings::of_endpoint(&settings).err().expect("an error");
        let error = error.to_string();
        assert!(error.contains(expect), "{error}");
        for secret in ["word", "secret", "sk-"] {
            assert!(!error.contains(secret), "{error}");
        }
    }
}

/// A service may repeat what it was sent. Errors are logged, so they must not contain it.
#[tokio::test]
async fn errors_repeat_nothing_of_a_response() {
    let server = Embeddings::start().await;
    let endpoint = Endpoint::new(&settings(server.url()), times()).expect("valid settings");
    let echo = format!(r#"{{"data":"Bearer {KEY} secret"}}"#);
    for embeds in [
        Embeds::Status(401),
        Embeds::Status(404),
        Embeds::Status(500),
        Embeds::Text(echo),
        Embeds::Silent,
    ] {
        server.set(embeds);
        let asked = endpoint.ask(&["secret"], Duration::from_millis(300)).await;
        let why = asked.expect_err("an error");
        assert!(!why.contains("secret") && !why.contains(KEY), "{why}");
    }
}
