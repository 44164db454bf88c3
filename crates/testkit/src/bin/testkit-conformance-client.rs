//! The client that the official suite drives when the gateway is under test as a client.
//!
//! It starts `toolwharf stdio` with the suite's server as its only upstream and plays the host in
//! front of it: lists everything, reads and calls what there is, answers what it is asked. It
//! knows no scenario; what a scenario prescribes comes in its context
//! (`MCP_CONFORMANCE_CONTEXT`), the rest follows from the schemas. Deliberately absent: any
//! judgement, which is the suite's.

use std::{env, fs, process::ExitCode};

use clap::Parser;
use serde_json::{Map, Value, json};
use testkit::{Bin, Peer, StdioClient, peer};
use tokio::process::Command;

/// The name of the suite's server in the gateway's configuration.
const SERVER: &str = "suite";

#[derive(Debug, Parser)]
#[command(about = "A host with the gateway behind it, for the conformance suite")]
struct Options {
    /// The protocol revision that the host speaks to the gateway.
    #[arg(long, value_name = "REVISION")]
    host: String,
    /// The server under the suite's control.
    url: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let folder = tempfile::tempdir().expect("a test can make a directory");
    let file = folder.path().join("mcp.json");
    let servers = json!({ "mcpServers": { SERVER: {
        "type": "http",
        "url": options.url,
        "toolwharf": { "maxConcurrency": 64 },
    }}});
    fs::write(&file, servers.to_string()).expect("a test can write a file");
    let mut command = Command::new(Bin::path("toolwharf"));
    command
        .arg("--config")
        .arg(&file)
        .args(["stdio", "--server", SERVER])
        .env("HOME", folder.path());
    let gateway = StdioClient::spawn(command);
    let host = Peer::stdio(gateway, &options.host, peer::all_capabilities()).await;
    let mut host = host.answering(|method, params| match method {
        "elicitation/create" => json!({
            "action": "accept",
            "content": example(&params["requestedSchema"], true),
        }),
        other => peer::answer(other),
    });
    visit(&mut host).await;
    ExitCode::SUCCESS
}

/// Uses all that the server offers, once.
async fn visit(host: &mut Peer) {
    let tools = list(host, "tools/list", "tools").await;
    for call in prescribed().unwrap_or_else(|| calls(&tools)) {
        // What comes of it is the suite's affair, errors included.
        let arguments = call["arguments"].clone();
        let name = call["name"].as_str().unwrap_or_default();
        host.tool(name, arguments).await;
    }
    for resource in list(host, "resources/list", "resources").await {
        let params = json!({ "uri": resource["uri"] });
        host.request("resources/read", params).await;
    }
    for prompt in list(host, "prompts/list", "prompts").await {
        let arguments: Map<String, Value> = prompt["arguments"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), json!("text"))))
            .collect();
        let params = json!({ "name": prompt["name"], "arguments": arguments });
        host.request("prompts/get", params).await;
    }
}

async fn list(host: &mut Peer, method: &str, key: &str) -> Vec<Value> {
    let outcome = host.request(method, json!({})).await;
    let items = outcome.response["result"][key].as_array();
    items.cloned().unwrap_or_default()
}

/// The calls that the scenario asks for.
fn prescribed() -> Option<Vec<Value>> {
    let context: Value = serde_json::from_str(&env::var("MCP_CONFORMANCE_CONTEXT").ok()?).ok()?;
    context["toolCalls"].as_array().cloned()
}

/// One call of each tool, with arguments that fit its schema.
fn calls(tools: &[Value]) -> Vec<Value> {
    let call = |tool: &Value| {
        let mut arguments = example(&tool["inputSchema"], false);
        // A tool that takes a schema is to be shown how that of its neighbour arrived.
        if arguments.get("schema").is_some_and(Value::is_object) {
            let neighbour = tools.iter().find(|other| other["name"] != tool["name"]);
            arguments["schema"] = neighbour.map_or(json!({}), |it| it["inputSchema"].clone());
        }
        json!({ "name": tool["name"], "arguments": arguments })
    };
    tools.iter().map(call).collect()
}

/// An object that fits the schema: defaults where there are some. Properties without one are left out
/// if `only_needed` and they are not required.
fn example(schema: &Value, only_needed: bool) -> Value {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut object = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let value = match (property.get("default"), property["enum"].get(0)) {
            (Some(default), _) => default.clone(),
            (None, _) if only_needed && !required.contains(&&**name) => continue,
            (None, Some(choice)) => choice.clone(),
            (None, None) => match property["type"].as_str() {
                Some("integer" | "number") => json!(2),
                Some("boolean") => json!(true),
                Some("object") => example(property, only_needed),
                Some("array") => json!([]),
                _ => json!("text"),
            },
        };
        object.insert(name.clone(), value);
    }
    Value::Object(object)
}
