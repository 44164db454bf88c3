//! Servers that another gateway of the installation runs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use engine::{Gate, RemoteReplica, Runs};
use futures_util::future::BoxFuture;
use http::Request;
use mcp::client::Sign;
use model::ServerSpec;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{World, quiet, stdio, takes};

#[derive(Debug)]
struct Unsigned;

impl Sign for Unsigned {
    fn sign(&self, _: &mut Request<Bytes>) {}
}

/// Another gateway runs all servers.
struct Elsewhere;

impl Gate for Elsewhere {
    fn is_for_one(&self, _: &ServerSpec) -> bool {
        true
    }

    fn enter<'a>(&'a self, _: &'a ServerSpec) -> BoxFuture<'a, Result<Runs, String>> {
        let replica = RemoteReplica {
            why: "the replica `b` runs it".to_owned(),
            url: String::new(),
            sign: Arc::new(Unsigned),
            lost: CancellationToken::new(),
        };
        Box::pin(async { Ok(Runs::RemoteReplica(replica)) })
    }

    fn leave<'a>(&'a self, _: &'a ServerSpec) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// Calls wait ten seconds for another gateway to take over, even if the lost one accepts connections and does not
/// respond. After that they fail at once, and the error names the lost gateway.
#[tokio::test(start_paused = true)]
async fn calls_wait_ten_seconds_for_a_server_whose_gateway_is_lost() {
    let world = World::new();
    world.gateway.keep_gate(Arc::new(Elsewhere));
    let one = world.scripted("one");
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    let client = world.legacy().await;
    client.tool("echo", json!({})).await.result();
    one.script(|script| script.is_silent = true).exit(0);
    quiet().await;
    let lost = Instant::now();
    let reply = client.tool("echo", json!({})).await;
    takes(lost.elapsed(), 9.9, 10.0);
    assert_eq!(reply.reason(), "server_unavailable");
    reply.says("the replica `b` runs it");
    tokio::time::sleep(Duration::from_secs(3)).await;
    client
        .echo_unavailable()
        .await
        .says("the replica `b` runs it");
    one.script(|script| script.is_silent = false);
    world.up(&["one"]).await;
    client.tool("echo", json!({})).await.result();
}
