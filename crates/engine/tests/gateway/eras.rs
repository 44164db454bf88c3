//! Everything that clients and servers exchange, for every pair of eras.

use mcp::Era;
use serde_json::json;

use crate::support::{
    ERAS, World,
    client::{Client, answer},
    quiet,
    server::Scripted,
    stdio,
};

/// A world for every pair of eras: a client, and a single server that offers everything.
async fn pairs() -> Vec<(World, Client, Scripted, [Era; 2])> {
    let mut pairs = Vec::new();
    for server in ERAS {
        for client in ERAS {
            let world = World::new();
            let one = world.scripted("one");
            one.tools(&["echo", "hold", "ask", "progress", "fail", "log"])
                .script(|script| {
                    script.era = server;
                    script.prompts = vec!["greet".to_owned()];
                    script.resources = vec!["note:1".to_owned(), "note:2".to_owned()];
                });
            world.configure(&[stdio("one")]);
            world.up(&["one"]).await;
            let asking = world.client(client).await;
            pairs.push((world, asking, one, [client, server]));
        }
    }
    pairs
}

#[tokio::test(start_paused = true)]
async fn g15_calls_prompts_and_completion() {
    for (_world, client, one, eras) in pairs().await {
        let reply = client.tool("echo", json!({ "n": 1 })).await;
        assert_eq!(reply.json()["n"], 1);
        let failed = client.tool("fail", json!({})).await;
        assert_eq!(failed.result()["isError"], true, "{eras:?}");
        let prompts = client.list("prompts").await;
        assert_eq!(prompts[0]["name"], "greet");
        let got = client
            .request("prompts/get", json!({ "name": "greet" }))
            .await;
        assert_eq!(got.result()["messages"][0]["content"]["text"], "greet");
        let reference = json!({ "type": "ref/prompt", "name": "greet" });
        let argument = json!({ "name": "a", "value": "b" });
        let params = json!({ "ref": reference, "argument": argument });
        let completed = client.request("completion/complete", params).await;
        assert_eq!(completed.result()["completion"]["values"], json!(["greet"]));
        // Each side sees only its own era.
        for reply in [reply, failed, got, completed] {
            let says = reply.result().get("resultType").is_some();
            assert_eq!(says, eras[0] == Era::Modern, "{eras:?}: {}", reply.raw);
        }
        for heard in one.heard("tools/call") {
            let own = &heard.frame["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
            let is_modern = eras[1] == Era::Modern;
            assert_eq!(own.is_string(), is_modern, "{eras:?}: {}", heard.frame);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g15_progress_under_the_clients_own_token() {
    for (_world, client, one, eras) in pairs().await {
        let own = json!({ "progressToken": "mine" });
        let params = json!({ "name": "progress", "arguments": {}, "_meta": own });
        let reply = client.request("tools/call", params).await;
        assert_eq!(reply.text(), "done");
        quiet().await;
        let mut told = reply.notifications;
        told.extend(client.notifications("notifications/progress"));
        let steps: Vec<_> = told
            .iter()
            .map(|told| {
                assert_eq!(told["params"]["progressToken"], "mine", "{eras:?}");
                told["params"]["progress"].as_u64().unwrap()
            })
            .collect();
        assert_eq!(steps, [1, 2, 3], "{eras:?}");
        let sent = &one.heard("tools/call")[0].frame;
        assert_ne!(sent["params"]["_meta"]["progressToken"], "mine");
    }
}

#[tokio::test(start_paused = true)]
async fn g15_questions_of_a_server_and_their_answers() {
    for (world, client, one, eras) in pairs().await {
        for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
            let reply = client.tool("ask", json!({ "method": method })).await;
            assert_eq!(reply.json(), answer(method), "{eras:?}");
        }
        quiet().await;
        assert_eq!(world.gateway.gauges().0, 0);
        assert_eq!(world.server("one").load(), (0, 0));
        assert!(one.cancelled().is_empty());
    }
}

/// A legacy client gets all log messages until it sets a level. A modern one gets only what each call asks for.
#[tokio::test(start_paused = true)]
async fn g15_log_messages_from_a_level_on() {
    for (_world, client, _one, eras) in pairs().await {
        for (level, expected) in [
            (None, usize::from(eras[0] == Era::Legacy)),
            (Some("error"), 0),
            (Some("warning"), 1),
            (Some("debug"), 1),
        ] {
            let mut params = json!({ "name": "log", "arguments": {} });
            match (level, eras[0]) {
                (Some(level), Era::Legacy) => {
                    let level = json!({ "level": level });
                    client.request("logging/setLevel", level).await.result();
                }
                (Some(level), Era::Modern) => {
                    params["_meta"] = json!({ "io.modelcontextprotocol/logLevel": level });
                }
                (None, _) => {}
            }
            let reply = client.request("tools/call", params).await;
            assert_eq!(reply.text(), "done");
            quiet().await;
            let told =
                reply.notifications.len() + client.notifications("notifications/message").len();
            assert_eq!(told, expected, "{eras:?} from {level:?}");
        }
    }
}

/// A server request does not name a call. With calls of several sessions in flight, its recipient is unclear: it is
/// refused with the remedy, and from then on the server gets the calls of one session at a time.
#[tokio::test(start_paused = true)]
async fn g15_a_question_that_could_be_anybodys() {
    let world = World::new();
    let one = world.scripted("one");
    one.tools(&["hold", "ask"]);
    world.configure(&[stdio("one")]);
    world.up(&["one"]).await;
    let (ada, bob) = (world.legacy().await, world.legacy().await);
    let held = ada.begin_tool("hold", json!({}));
    quiet().await;
    let refused = bob.tool("ask", json!({})).await.json();
    let why = refused["message"].as_str().unwrap();
    assert!(
        why.contains("several sessions") && why.contains("\"sharing\""),
        "{why}"
    );
    assert!(world.server("one").takes_turns());
    one.release();
    held.reply().await.result();

    let held = ada.begin_tool("hold", json!({}));
    quiet().await;
    let asking = bob.begin_tool("ask", json!({}));
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(world.server("one").load(), (1, 1));
    one.release();
    held.reply().await.result();
    assert_eq!(asking.reply().await.json(), answer("elicitation/create"));
}

/// A call does not time out while its client prepares an answer, and the clock of a run that made it stands still. If the
/// client disconnects, the server is notified.
#[tokio::test(start_paused = true)]
async fn g15_a_question_that_its_client_thinks_over() {
    for (world, client, one, eras) in pairs().await {
        if eras[0] == Era::Modern {
            // The client gets the server's request in the response, and may take its time before it calls again.
            let call = client.begin_tool("ask", json!({}));
            let asked = call.reply().await;
            assert_eq!(asked.result()["resultType"], "input_required");
            let held = usize::from(eras[1] == Era::Legacy);
            assert_eq!(world.gateway.gauges().0, held);
            tokio::time::sleep(std::time::Duration::from_secs(301)).await;
            quiet().await;
            assert_eq!(world.gateway.gauges().0, 0);
            assert_eq!(one.cancelled().len(), held, "{eras:?}");
            assert_eq!(world.server("one").load(), (0, 0));
            continue;
        }
        client.thinks();
        let call = client.begin_tool("ask", json!({}));
        tokio::time::sleep(std::time::Duration::from_secs(120)).await;
        assert!(!call.is_finished(), "{eras:?}");
        assert!(client.clock().is_stopped(), "{eras:?}");
        let question = client.question().expect("it is asked");
        client.answer(&question);
        assert_eq!(call.reply().await.json(), answer("elicitation/create"));
        assert!(!client.clock().is_stopped(), "{eras:?}");
        let call = client.begin_tool("ask", json!({}));
        quiet().await;
        client.question().expect("it is asked");
        let call = client.cancel(call).expect("it is told of");
        assert!(call.reply().await.frame.is_null());
        quiet().await;
        // A modern server has already answered the call, so it is not notified.
        let told = usize::from(eras[1] == Era::Legacy);
        assert_eq!(one.cancelled().len(), told, "{eras:?}");
        assert_eq!(world.server("one").load(), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn g15_subscriptions_to_resources() {
    const UPDATED: &str = "notifications/resources/updated";
    for (_world, client, one, eras) in pairs().await {
        let resources = client.list("resources").await;
        let uris: Vec<_> = resources
            .iter()
            .map(|one| one["uri"].as_str().unwrap())
            .collect();
        let _listening = client.listen(&uris[..1]).await;
        quiet().await;
        one.updated("note:1");
        one.updated("note:2");
        quiet().await;
        let told = client.notifications(UPDATED);
        assert_eq!(told.len(), 1, "{eras:?}: {told:?}");
        assert_eq!(told[0]["params"]["uri"], uris[0], "{eras:?}");
        // A new instance of the server gets the subscription again.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        one.exit(1);
        crate::support::until("another instance is asked", || match eras[1] {
            Era::Legacy => one.heard("resources/subscribe").last().unwrap().instance == 2,
            Era::Modern => one.heard("subscriptions/listen").last().unwrap().instance == 2,
        })
        .await;
        quiet().await;
        one.updated("note:1");
        quiet().await;
        assert_eq!(client.notifications(UPDATED).len(), 1, "{eras:?}");
    }
}

/// A method that does not exist in the client's era gives a clear error.
#[tokio::test(start_paused = true)]
async fn g15_methods_of_the_other_era_are_unknown() {
    for (_world, client, one, eras) in pairs().await {
        let (mine, other): (&[&str], &[&str]) = match eras[0] {
            Era::Legacy => (&["ping"], &["server/discover", "subscriptions/listen"]),
            Era::Modern => (
                &["server/discover"],
                &["ping", "logging/setLevel", "initialize"],
            ),
        };
        for method in mine {
            client.request(method, json!({})).await.result();
        }
        for method in other {
            let reply = client.request(method, json!({})).await;
            assert_eq!(reply.error()["code"], -32601, "{eras:?}: {}", reply.raw);
            assert!(reply.message().contains(method));
        }
        assert!(one.heard("logging/setLevel").is_empty());
    }
}
