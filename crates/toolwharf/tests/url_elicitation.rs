//! URL elicitation between the eras, with the official SDKs as clients.

mod common;

use common::{Setup, checks, cli, real::venv};
use serde_json::{Value, json};
use testkit::{Peer, conformance::node_modules, peer::MODERN};
use tokio::process::Command;

const URL: &str = "https://example.com/sign-in";

/// Runs a client's script and returns its output, one line of JSON.
async fn said(mut command: Command) -> Value {
    command.kill_on_drop(true);
    cli::said(command, "").await.code(0).json()
}

const TYPESCRIPT: &str = r#"
const [sdk, url, target] = process.argv.slice(2);
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
const types = await import(`${sdk}/types.js`);
const client = new Client({ name: "t", version: "1" }, { capabilities: { elicitation: { url: {} } } });
const asked = [], told = [];
client.setRequestHandler(types.ElicitRequestSchema, async (request) => {
    asked.push(request.params);
    return { action: "accept" };
});
let complete;
const completed = new Promise((resolve) => (complete = resolve));
client.setNotificationHandler(types.ElicitationCompleteNotificationSchema, (notification) => {
    told.push(notification.params.elicitationId);
    complete();
});
await client.connect(new StreamableHTTPClientTransport(new URL(target)));
const question = { method: "elicitation/create", params: { mode: "url", url, message: "Sign in" } };
const result = await client.callTool({ name: "input", arguments: { requests: { it: question }, state: "s" } });
await completed;
console.log(JSON.stringify({ asked, told, result }));
await client.close();
"#;

/// A modern server asks its client to open a URL. A 2025-11-25 client gets the request in the form of that version: an
/// id, and a notification when it is done.
#[tokio::test]
async fn a_legacy_client_gets_an_id_and_is_told_of_the_end() {
    let setup = Setup::new().scripted("one", &["--era", "modern"]);
    let script = setup.folder().join("client.mjs");
    std::fs::write(&script, TYPESCRIPT).expect("a new file");
    let gateway = setup.connected().await;
    let modules = node_modules();
    let mut command = Command::new(modules.join("node/bin/node"));
    command
        .arg(script)
        .arg(modules.join("@modelcontextprotocol/sdk/dist/esm"))
        .args([URL, &format!("{}/mcp", gateway.url)]);
    let said = said(command).await;
    assert_eq!(said["asked"][0]["url"], URL, "{said}");
    let id = said["asked"][0]["elicitationId"].as_str().expect("an id");
    assert!(id.len() >= 16, "{said}");
    assert_eq!(said["told"], json!([id]), "{said}");
    let answer = &said["result"]["structuredContent"];
    assert_eq!(answer["inputResponses"]["it"]["action"], "accept", "{said}");
    assert_eq!(answer["requestState"], "s", "{said}");
}

const PYTHON: &str = r#"
import asyncio, json, sys
import mcp_types as types
from mcp import Client

async def main():
    asked = []
    async def elicit(context, params):
        asked.append(params.model_dump(by_alias=True, mode="json"))
        return types.ElicitResult(action=sys.argv[3])
    async with Client(sys.argv[2], mode="2026-07-28", elicitation_callback=elicit) as client:
        try:
            result = await client.call_tool("sign_in", {"url": sys.argv[1]})
            text = result.content[0].text
        except Exception as error:
            text = str(error)
        print(json.dumps({"asked": asked, "text": text}))

asyncio.run(main())
"#;

/// A legacy server refuses a call until a URL was opened (-32042): a modern client is asked, and its call is retried.
#[tokio::test]
async fn a_modern_client_is_asked_for_what_an_error_wants() {
    let setup = Setup::new().scripted("one", &[]);
    let script = setup.folder().join("client.py");
    std::fs::write(&script, PYTHON).expect("a new file");
    let gateway = setup.connected().await;
    for (action, expect) in [("accept", "signed in"), ("decline", "declined")] {
        let mut command = Command::new(venv().join("bin/python"));
        command
            .arg(&script)
            .args([URL, &format!("{}/mcp", gateway.url), action]);
        let said = said(command).await;
        assert_eq!(said["asked"].as_array().map(Vec::len), Some(1), "{said}");
        assert_eq!(said["asked"][0]["url"], URL, "{said}");
        checks::contains(&said["text"], &[expect]);
    }
}

/// A client that cannot open URLs is not asked: it gets the server's error, and the server gets the reason.
#[tokio::test]
async fn a_client_that_opens_no_urls_is_not_asked() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    for version in [MODERN, common::LEGACY] {
        let forms = json!({ "elicitation": { "form": {} } });
        let mut peer = Peer::http(gateway.client(), version, forms).await;
        let refused = peer.tool("sign_in", json!({ "url": URL })).await;
        assert_eq!(refused.response["error"]["code"], -32042, "{refused:?}");
        peer.tool("sign_in", json!({ "url": URL })).await;
        let params = json!({ "mode": "url", "url": URL, "message": "m", "elicitationId": "e" });
        let arguments = json!({ "method": "elicitation/create", "params": params });
        let asked = peer.tool("server_request", arguments).await;
        assert!(asked.asked.is_empty(), "{asked:?}");
        let parts = ["`server_request`", "`one`", "elicitation.url"];
        checks::contains(asked.text(), &parts);
    }
}
