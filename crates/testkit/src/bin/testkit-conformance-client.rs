//! The client that the official conformance suite drives when it tests the gateway as a client.
//!
//! It starts `toolwharf stdio` with the suite's server as the only upstream and acts as the MCP host: it lists
//! everything, reads every resource, calls every tool and answers the server's requests. It knows no scenario. The
//! scenario's instructions come from `MCP_CONFORMANCE_CONTEXT`; everything else is derived from the schemas. If the
//! gateway has to sign in, this client acts as the user and opens the links. Deliberately absent: any verdict. The
//! suite decides what passed.

use std::{env, fs, path::Path, process::ExitCode, time::Duration};

use clap::Parser;
use serde_json::{Map, Value, json};
use testkit::{Bin, DEADLINE, Peer, Process, RawClient, StdioClient, browser, peer};
use tokio::process::Command;
use tokio_util::task::TaskTracker;

/// The suite server's name in the gateway configuration.
const SERVER: &str = "suite";

/// The time limit for a running server to list its tools, or to ask for a sign-in first.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Parser)]
#[command(about = "An MCP host with the gateway behind it, for the conformance suite")]
struct Options {
    /// The protocol revision that this program speaks to the gateway.
    #[arg(long, value_name = "REVISION")]
    host: String,
    /// The `era` in the server's entry.
    #[arg(long, default_value = "auto")]
    era: String,
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
        "login": login(),
        "toolwharf": { "maxConcurrency": 64, "era": options.era },
    }}});
    fs::write(&file, servers.to_string()).expect("a test can write a file");
    let settings = folder.path().join("toolwharf.toml");
    let text = "client_metadata_url = \"https://conformance-test.local/client-metadata.json\"\n";
    fs::write(&settings, text).expect("a test can write a file");
    // A sign-in redirects the browser to a gateway that listens for HTTP.
    let needs_login = env::var("MCP_CONFORMANCE_SCENARIO").is_ok_and(|it| it.starts_with("auth/"));
    let _serving = match needs_login {
        true => Some(signed_in([&file, &settings], folder.path()).await),
        false => None,
    };
    let mut command = gateway([&file, &settings], folder.path());
    command.args(["stdio", "--server", SERVER]);
    let gateway = StdioClient::spawn(command);
    let mut capabilities = peer::all_capabilities();
    capabilities["elicitation"] = json!({ "form": {}, "url": {} });
    let host = Peer::stdio(gateway, &options.host, capabilities).await;
    let browsers = TaskTracker::new();
    let mut host = host.answering(move |method, params| match method {
        "elicitation/create" if params["mode"] == "url" => {
            let link = params["url"].as_str().unwrap_or_default().to_owned();
            // The gateway waits for the sign-in and sends each link only once.
            browsers.spawn(async move { browser::sign_in(&link).await });
            json!({ "action": "accept" })
        }
        "elicitation/create" => json!({
            "action": "accept",
            "content": example(&params["requestedSchema"], true),
        }),
        other => peer::answer(other),
    });
    visit(&mut host).await;
    ExitCode::SUCCESS
}

/// Returns the entry's sign-in configuration, with the client credentials from the scenario.
fn login() -> Value {
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let mut login = json!({ "mode": "shared" });
    for (ours, theirs) in [
        ("clientId", "client_id"),
        ("clientSecret", "client_secret"),
        ("privateKey", "private_key_pem"),
        ("assertion", "valid_jwt"),
        ("assertion", "idp_id_token"),
    ] {
        if let Some(value) = context.get(theirs) {
            login[ours] = value.clone();
        }
    }
    let scenario = env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    if scenario.starts_with("auth/client-credentials") {
        login["grant"] = json!("client_credentials");
    }
    if let Some(issuer) = context.get("idp_issuer") {
        login["idp"] = json!({ "issuer": issuer, "clientId": context["idp_client_id"] });
    }
    if login.get("assertion").is_some() {
        login["grant"] = json!("jwt_bearer");
    }
    login
}

fn gateway(files: [&Path; 2], home: &Path) -> Command {
    let mut command = Command::new(Bin::path("toolwharf"));
    for file in files {
        command.arg("--config").arg(file);
    }
    command.env("HOME", home);
    command
}

/// Starts a listening gateway in the same home. If the server requires a sign-in at once, it is completed here.
async fn signed_in(files: [&Path; 2], home: &Path) -> Process {
    let mut command = gateway(files, home);
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let mut serving = Process::spawn(command);
    let url = serving.url().await;
    let token = serving
        .announced(|line| Some(line.split_once("admin-token): ")?.1.to_owned()))
        .await;
    let api = RawClient::new(&url).with("authorization", &format!("Bearer {token}"));
    let server = api.at(&format!("/api/v1/mcp/servers/{SERVER}"));
    // A server that has changed its issuer asks for another sign-in.
    for _ in 0..3 {
        let look = async || -> Option<(String, bool)> {
            let answer = server.get(&[]).await.collect(DEADLINE).await;
            let told: Value = serde_json::from_slice(&answer.body).ok()?;
            let state = told["status"].as_str()?.to_owned();
            (!matches!(&*state, "starting" | "idle" | "backoff"))
                .then_some((state, told["tools"] != 0))
        };
        let what = "the server's state";
        let (mut state, _) = testkit::wait_for_some(what, DEADLINE, look).await;
        // Some servers accept the handshake and require a sign-in only for their lists.
        let settled = testkit::wait_for_some(what, DEADLINE, async || {
            let (state, lists) = look().await?;
            (state != "running" || lists).then_some(state)
        });
        if let Ok(settled) = tokio::time::timeout(LIST_TIMEOUT, settled).await {
            state = settled;
        }
        if state != "needs_login" {
            eprintln!("the server is {state}");
            break;
        }
        let begun = api
            .at(&format!("/api/v1/mcp/servers/{SERVER}/login"))
            .post("{}")
            .await;
        let begun: Value = serde_json::from_slice(&begun.body).unwrap_or_default();
        let Some(link) = begun["link"].as_str() else {
            eprintln!("the response contains no sign-in link: {begun}");
            break;
        };
        if !browser::sign_in(link).await.status.is_success() {
            break;
        }
    }
    serving
}

/// Uses everything that the server offers, once.
async fn visit(host: &mut Peer) {
    let tools = list(host, "tools/list", "tools").await;
    for call in prescribed().unwrap_or_else(|| calls(&tools)) {
        // The suite judges the results, errors included.
        let arguments = call["arguments"].clone();
        let name = call["name"].as_str().unwrap_or_default();
        // The user has tried to sign in before. The gateway would wait for another attempt.
        if !name.starts_with("sign_in_to_") {
            host.tool(name, arguments).await;
        }
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

/// The tool calls that the scenario prescribes.
fn prescribed() -> Option<Vec<Value>> {
    let context: Value = serde_json::from_str(&env::var("MCP_CONFORMANCE_CONTEXT").ok()?).ok()?;
    context["toolCalls"].as_array().cloned()
}

/// One call of each tool, with arguments that fit its schema.
fn calls(tools: &[Value]) -> Vec<Value> {
    let call = |tool: &Value| {
        let mut arguments = example(&tool["inputSchema"], false);
        // A tool with a `schema` parameter gets its neighbour's input schema, as this client received it.
        if arguments.get("schema").is_some_and(Value::is_object) {
            let neighbour = tools.iter().find(|other| other["name"] != tool["name"]);
            arguments["schema"] = neighbour.map_or(json!({}), |it| it["inputSchema"].clone());
        }
        json!({ "name": tool["name"], "arguments": arguments })
    };
    tools.iter().map(call).collect()
}

/// Returns an object that fits the schema, using defaults where the schema has them. With `only_needed`, properties
/// that are not required and have no default are left out.
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
