//! X05: a long result can be read through each replica, by its caller only.

use serde_json::json;
use testkit::{DEADLINE, Peer, wait_for};

use crate::{
    api::Api,
    common::{LEGACY, Setup},
    support::{database, replica_with},
};

#[tokio::test]
async fn x05_a_result_is_readable_through_each_replica() {
    let database = database().await;
    let with_bound = |setup: Setup| {
        let settings = "max_result_tokens = 1000\nrequire_key = true\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n\
                        [results]\nmax_bytes = \"64KiB\"\n";
        setup.settings(settings).scripted("one", &[])
    };
    let first = replica_with(database.url(), None, with_bound).await;
    let second = replica_with(database.url(), Some(&first), with_bound).await;
    let mut bearers = Vec::new();
    for name in ["mine", "theirs"] {
        let key = json!({ "name": name, "role": "call" });
        let made = Api::admin(&first).ok("POST", "/keys", key).await;
        let token = made["token"].as_str().unwrap();
        // Other replicas notice a new key within a second.
        let there = Api::with(&second, token);
        wait_for("the key at the second replica", DEADLINE, async || {
            there
                .ask("GET", "/api/v1/mcp/servers", "", &[])
                .await
                .status
                != 401
        })
        .await;
        bearers.push(format!("Bearer {token}"));
    }
    for version in [LEGACY, testkit::peer::MODERN] {
        let peer = async |at: usize, who: usize| {
            let gateway = [&first, &second][at];
            gateway.up("one").await;
            let client = gateway.client().with("authorization", &bearers[who]);
            Peer::http(client, version, json!({})).await
        };
        let mut uris = Vec::new();
        for at in [0, 1] {
            let mut mine = peer(at, 0).await;
            let long = json!({ "text": "word ".repeat(8_000) });
            let answer = mine.tool("echo", long).await;
            let uri = answer.result()["content"][1]["uri"].as_str().unwrap();
            let read = json!({ "uri": uri, "path": "text", "offset": 39_990 });
            for reader in [0, 1] {
                let part = peer(reader, 0)
                    .await
                    .tool("read_result", read.clone())
                    .await;
                assert!(
                    part.text().starts_with("word word \n\n[bytes 39990"),
                    "{part:?}"
                );
                let asked = json!({ "uri": uri });
                let resource = peer(reader, 0)
                    .await
                    .request("resources/read", asked.clone())
                    .await;
                assert!(
                    resource.result()["contents"][0]["text"].is_string(),
                    "{resource:?}"
                );
                let other = peer(reader, 1).await.tool("read_result", asked).await;
                assert!(other.text().contains("There is no result"), "{other:?}");
            }
            uris.push(uri.to_owned());
        }
        // The room is that of all replicas: the second result replaced the first.
        let gone = peer(1, 0)
            .await
            .tool("read_result", json!({ "uri": uris[0] }))
            .await;
        assert!(gone.text().contains("There is no result"), "{gone:?}");
    }
}
