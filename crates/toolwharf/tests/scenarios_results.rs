//! Scenario X05 of the acceptance list: long results, as previews that can be read on.

mod common;

use common::{
    Gateway, LEGACY, Setup,
    chat::{ask, offered, put, say, with_agent},
    steps::replied,
    tools,
};
use serde_json::{Value, json};
use testkit::{
    DEADLINE, Peer, RawClient, StdioClient,
    llm::{Llm, asks, expecting, says, turns},
    peer, wait_for,
};

const ERAS: [&str; 2] = [LEGACY, peer::MODERN];
const BOUND: usize = 1_000;
const SETTINGS: &str = "max_result_tokens = 1000\n";
/// Rows of a table of 5 MB, and of a shorter one.
const LONG: usize = 60_000;
const SHORTER: usize = 3_000;

fn table(rows: usize) -> Value {
    let row = |n: usize| json!({ "id": n, "title": format!("Issue {n}: a button does not work"), "state": null, "by": { "login": "x" } });
    json!({ "items": (0..rows).map(row).collect::<Vec<_>>(), "last": "the needle" })
}

async fn gateway(settings: &str) -> Gateway {
    let settings = format!("{SETTINGS}{settings}");
    let setup = Setup::new().settings(&settings);
    setup.scripted("one", &[]).connected().await
}

/// Clients of both eras over HTTP and over stdio.
async fn clients(gateway: &Gateway) -> Vec<Peer> {
    let mut all = Vec::new();
    for version in ERAS {
        all.push(Peer::http(gateway.client(), version, peer::all_capabilities()).await);
        let line = "stdio --config mcp.json --config toolwharf.toml";
        let client = StdioClient::spawn(common::shell::at(gateway, line));
        all.push(Peer::stdio(client, version, peer::all_capabilities()).await);
    }
    all
}

/// The URI in the link of a shortened result.
#[track_caller]
fn uri(result: &Value) -> String {
    let link = &result["content"][1];
    assert_eq!(link["type"], "resource_link", "{link}");
    let uri = link["uri"].as_str().unwrap_or_default().to_owned();
    assert!(uri.starts_with("toolwharf://results/"), "{uri}");
    uri
}

async fn read(peer: &mut Peer, uri: &str, mut more: Value) -> String {
    more["uri"] = uri.into();
    let read = peer.tool("read_result", more.clone()).await;
    assert_eq!(read.result()["isError"], false, "{more} {read:?}");
    assert!(read.text().len() < 8 * BOUND, "{} bytes", read.text().len());
    read.text().to_owned()
}

/// The last calls of `echo`, newest first.
async fn recorded(gateway: &Gateway) -> Vec<Value> {
    let calls = gateway.admin("/calls?limit=20&tool=echo").get(&[]).await;
    let calls = common::body(&calls.collect(DEADLINE).await);
    calls["calls"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn x05_a_result_of_5_mb_is_a_preview_and_a_link() {
    let gateway = gateway("").await;
    for (at, mut peer) in clients(&gateway).await.into_iter().enumerate() {
        // One client of each era, and of each transport, has the long one.
        let count = [LONG, SHORTER, SHORTER, LONG][at];
        let table = table(count);
        let whole = table.to_string();
        assert_eq!(whole.len() > 5_000_000, count == LONG, "{}", whole.len());
        assert_eq!(tools(&mut peer).await[0], "read_result");
        let answer = peer.tool("echo", table.clone()).await;
        let result = answer.result();
        let length = result.to_string().len();
        assert!(length < 8 * BOUND, "{length} bytes");
        assert_eq!(result.get("structuredContent"), None);
        let uri = uri(result);
        assert_eq!(result["content"][1]["size"], whole.len());
        let (head, note) = answer.text().rsplit_once("\n\n[").expect("a note");
        assert!(whole.starts_with(head) && head.len() > BOUND, "{head}");
        let next = format!(
            "call read_result with {{\"uri\": \"{uri}\", \"offset\": {}}}",
            head.len()
        );
        assert!(note.contains(&next), "{note}");
        let about = format!("`items` (array of {count}), `last`");
        assert!(note.contains(&about), "{note}");
        // By range, path, word and row.
        let more = read(
            &mut peer,
            &uri,
            json!({ "offset": head.len(), "length": 500 }),
        )
        .await;
        assert!(
            more.starts_with(&whole[head.len()..head.len() + 500]),
            "{more}"
        );
        let last = count - 1;
        let path = format!("items[{last}].title");
        let value = read(&mut peer, &uri, json!({ "path": path })).await;
        let title = format!("Issue {last}: a button does not work\n");
        assert!(value.starts_with(&title), "{value}");
        let found = read(
            &mut peer,
            &uri,
            json!({ "search": "NEEDLE", "context": 10 }),
        )
        .await;
        assert!(found.contains("[1 match of `NEEDLE`]"), "{found}");
        let rows = json!({ "path": "/items", "row": last - 1, "columns": ["id", "by.login"] });
        let rows = read(&mut peer, &uri, rows).await;
        let before = last - 1;
        assert_eq!(
            rows,
            format!(
                "id,by.login\n{before},x\n{last},x\n\n[rows {before} to {last} of {count}; this is the end]"
            )
        );
        let resource = peer.request("resources/read", json!({ "uri": uri })).await;
        match count {
            LONG => common::says(
                &resource.response,
                &["read parts of it with the tool read_result"],
            ),
            _ => assert_eq!(resource.result()["contents"][0]["text"], whole),
        }
        // The call's record is that of the whole result, as in the view of one server, where nothing changes.
        let version = ERAS[at / 2];
        let mut single =
            Peer::http(gateway.at("/mcp/-/one"), version, peer::all_capabilities()).await;
        let unchanged = single.tool("echo", table.clone()).await;
        assert_eq!(unchanged.text(), whole);
        assert_eq!(unchanged.result()["structuredContent"], table);
        let calls = recorded(&gateway).await;
        assert_eq!(calls.len(), 2 * (at + 1));
        assert_eq!(calls[0]["result_digest"], calls[1]["result_digest"]);
        assert!(calls[0]["result_digest"].is_string());
    }
}

/// A result that is not above the bound is unchanged, and can be read whole as a resource otherwise.
#[tokio::test]
async fn x05_short_and_medium_results() {
    let projects =
        "[projects.whole]\nmax_result_tokens = 0\n[projects.search]\ntools = \"search\"\n";
    let gateway = gateway(projects).await;
    let short = json!({ "text": "word ".repeat(150) });
    let medium = json!({ "text": "word ".repeat(4_000) });
    for version in ERAS {
        let capabilities = peer::all_capabilities();
        let mut peer = Peer::http(gateway.client(), version, capabilities.clone()).await;
        let answer = peer.tool("echo", short.clone()).await;
        assert_eq!(answer.result()["structuredContent"], short);
        let answer = peer.tool("echo", medium.clone()).await;
        let uri = uri(answer.result());
        let read = peer.request("resources/read", json!({ "uri": uri })).await;
        let contents = &read.result()["contents"];
        assert_eq!(contents[0]["uri"], uri);
        assert_eq!(contents[0]["mimeType"], "application/json");
        assert_eq!(contents[0]["text"], medium.to_string());
        // In search mode, too.
        let mut peer = Peer::http(gateway.at("/mcp/search"), version, capabilities.clone()).await;
        let names = tools(&mut peer).await;
        assert_eq!(
            names,
            ["search_tools", "describe_tools", "call_tool", "read_result"]
        );
        let through = json!({ "name": "echo", "arguments": medium });
        let answer = peer.tool("call_tool", through).await;
        let found = self::read(
            &mut peer,
            &self::uri(answer.result()),
            json!({ "path": "text", "length": 9 }),
        )
        .await;
        assert!(found.starts_with("word word\n"), "{found}");
        // A result of another project is unknown.
        let mut peer = Peer::http(gateway.at("/mcp/whole"), version, capabilities).await;
        assert!(!tools(&mut peer).await.contains(&"read_result".to_owned()));
        let answer = peer.tool("echo", medium.clone()).await;
        assert_eq!(answer.result()["structuredContent"], medium);
        let refused = peer.request("resources/read", json!({ "uri": uri })).await;
        assert!(refused.response["error"].is_object(), "{refused:?}");
    }
    // Links are newer than some clients.
    for version in ["2024-11-05", "2025-03-26"] {
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        let answer = peer.tool("echo", medium.clone()).await;
        let content = answer.result()["content"].as_array().map(Vec::len);
        assert_eq!(content, Some(1), "{answer:?}");
        assert!(answer.text().contains("toolwharf://results/"), "{answer:?}");
    }
}

async fn key(gateway: &Gateway, name: &str) -> RawClient {
    let made = ask(
        gateway,
        "POST",
        "/keys",
        &json!({ "name": name, "role": "call" }),
    )
    .await;
    let made = common::body(&made);
    let token = made["token"].as_str().unwrap_or_default();
    let bearer = format!("Bearer {token}");
    gateway.client().with("authorization", &bearer)
}

/// The errors of reading a URI with the tool and as a resource.
async fn errors(peer: &mut Peer, uri: &str) -> (String, String) {
    let tool = peer.tool("read_result", json!({ "uri": uri })).await;
    assert_eq!(tool.result()["isError"], true, "{tool:?}");
    let resource = peer.request("resources/read", json!({ "uri": uri })).await;
    let error = resource.response["error"].to_string();
    (tool.text().replace(uri, "URI"), error.replace(uri, "URI"))
}

const UNKNOWN: &str = "toolwharf://results/AAAAAAAAAAAAAAAAAAAA";

/// Other callers get the error of an unknown id.
#[tokio::test]
async fn x05_for_its_principal_only() {
    let gateway = gateway("require_key = true\n").await;
    let (mine, theirs) = (key(&gateway, "mine").await, key(&gateway, "theirs").await);
    for version in ERAS {
        let mut peer = Peer::http(mine.clone(), version, json!({})).await;
        let mut other = Peer::http(theirs.clone(), version, json!({})).await;
        let answer = peer
            .tool("echo", json!({ "text": "word ".repeat(4_000) }))
            .await;
        let uri = uri(answer.result());
        // The same caller reads it in another session.
        let mut again = Peer::http(mine.clone(), version, json!({})).await;
        read(&mut again, &uri, json!({ "length": 10 })).await;
        let expected = errors(&mut other, UNKNOWN).await;
        assert_eq!(errors(&mut other, &uri).await, expected);
    }
}

#[tokio::test]
async fn x05_for_a_set_time() {
    let gateway = gateway("[results]\nkeep = \"1s\"\n").await;
    for mut peer in clients(&gateway).await {
        let answer = peer
            .tool("echo", json!({ "text": "word ".repeat(4_000) }))
            .await;
        let uri = uri(answer.result());
        assert!(answer.text().contains("kept for 1 s"), "{answer:?}");
        wait_for("the result to expire", DEADLINE, async || {
            let tool = peer.tool("read_result", json!({ "uri": uri })).await;
            tool.result()["isError"] == true
        })
        .await;
        let expected = errors(&mut peer, UNKNOWN).await;
        assert_eq!(errors(&mut peer, &uri).await, expected);
    }
}

/// A project that is not in the configuration file has its bound from the REST API.
#[tokio::test]
async fn x05_a_stored_project_has_its_own_bound() {
    let gateway = Setup::new().serve().await;
    let wrong = json!({ "max_result_tokens": 10 });
    let wrong = ask(&gateway, "PUT", "/projects/shop", &wrong).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    let config = json!({ "max_result_tokens": 500, "compact_results": true });
    let shop = put(&gateway, "/projects/shop", config).await;
    assert_eq!(
        (&shop["max_result_tokens"], &shop["compact_results"]),
        (&json!(500), &json!(true))
    );
    for (then, expect) in [(json!(0), &["read_result"][..]), (Value::Null, &[])] {
        let mut peer = Peer::http(gateway.at("/mcp/shop"), LEGACY, json!({})).await;
        assert_eq!(tools(&mut peer).await, expect);
        put(
            &gateway,
            "/projects/shop",
            json!({ "max_result_tokens": then }),
        )
        .await;
    }
}

/// Code gets whole results, and what it prints is shortened.
#[tokio::test]
async fn x05_code_gets_whole_results() {
    let gateway = gateway("code = true\n").await;
    for version in ERAS {
        let mut peer = Peer::http(gateway.client(), version, json!({})).await;
        let code = "const big = await servers.one.echo({ text: 'word '.repeat(20000) });
            console.log(big.text.length);";
        let answer = peer.tool("run_code", json!({ "code": code })).await;
        assert_eq!(answer.text(), "100000\n", "{answer:?}");
        let code = "for (let n = 0; n < 2000; n++) console.log('line', n);";
        let answer = peer.tool("run_code", json!({ "code": code })).await;
        let uri = uri(answer.result());
        let line = read(&mut peer, &uri, json!({ "line": 1500, "lines": 1 })).await;
        assert!(
            line.starts_with("line 1499\n\n[lines 1500 to 1500 of 2000"),
            "{line}"
        );
    }
}

/// The agent reads long results in the same way.
#[tokio::test]
async fn x05_the_agent_reads_long_results() {
    let rows: Vec<Value> = (0..500)
        .map(|n| json!({ "id": n, "name": format!("row {n}") }))
        .collect();
    let long = json!({ "rows": rows });
    let done = |text: &str| json!({ "tool_results": [{ "contains": text, "is_error": false }] });
    // The URI has the id of the run, which the script does not know.
    let script = [
        asks(&[("t1", "echo", long)]),
        expecting(says("Read."), done("/t1\", \"offset\": ")),
    ];
    let llm = Llm::start(&turns(&script)).await;
    let setup = Setup::new().scripted("one", &[]);
    let gateway = with_agent(setup, &llm, SETTINGS, "").await;
    gateway.up("one").await;
    replied(say(&gateway, "Go").await, "Read.");
    let requests = llm.requests().await;
    let shown = requests[1]["body"]["messages"].to_string();
    assert!(shown.contains("toolwharf://results/"), "{shown}");
    let preview = requests[1]["body"]["messages"][2]["content"][0]["content"][0]["text"].as_str();
    let preview = preview.unwrap_or_default();
    assert!((BOUND..8 * BOUND).contains(&preview.len()), "{preview}");
    let names = offered(&requests[0]);
    assert_eq!(
        names.iter().filter(|name| **name == "read_result").count(),
        1
    );
}
