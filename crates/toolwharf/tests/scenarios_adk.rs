//! Agents built with ADK: toolsets on a project endpoint of the built gateway, with real servers behind it.

mod common;

use std::sync::{Arc, Mutex};

use adk_core::{
    Artifacts, CallbackContext, Content, EventActions, MemoryEntry, ReadonlyContext, Tool,
    ToolContext, Toolset as _,
};
use agent::{
    Servers as _,
    adk::{Endpoint, Toolset},
};
use async_trait::async_trait;
use common::{
    Gateway, Setup,
    chat::{ask, put, told},
    checks,
    real::python,
};
use serde_json::{Value, json};
use testkit::{DEADLINE, Site, wait_for_some};

/// The number of tools of the servers of [`shop`].
const TOOLS: usize = 3;

/// An invocation, as a runner would create it.
struct Invocation {
    content: Content,
    actions: Mutex<EventActions>,
}

fn invocation() -> Arc<Invocation> {
    Arc::new(Invocation {
        content: Content::new("user"),
        actions: Mutex::default(),
    })
}

impl ReadonlyContext for Invocation {
    fn invocation_id(&self) -> &str {
        "invocation"
    }

    fn agent_name(&self) -> &str {
        "clerk"
    }

    fn user_id(&self) -> &str {
        "user"
    }

    fn app_name(&self) -> &str {
        "app"
    }

    fn session_id(&self) -> &str {
        "session"
    }

    fn branch(&self) -> &str {
        ""
    }

    fn user_content(&self) -> &Content {
        &self.content
    }
}

impl CallbackContext for Invocation {
    fn artifacts(&self) -> Option<Arc<dyn Artifacts>> {
        None
    }
}

#[async_trait]
impl ToolContext for Invocation {
    fn function_call_id(&self) -> &str {
        "call"
    }

    fn actions(&self) -> EventActions {
        self.actions.lock().expect("nobody panicked").clone()
    }

    fn set_actions(&self, actions: EventActions) {
        *self.actions.lock().expect("nobody panicked") = actions;
    }

    async fn search_memory(&self, _: &str) -> adk_core::Result<Vec<MemoryEntry>> {
        Ok(Vec::new())
    }
}

/// A project with the official time and fetch servers. They are not started yet.
async fn shop() -> Gateway {
    let gateway = Setup::new().serve().await;
    let time = python("mcp-server-time", &["--local-timezone=Europe/Berlin"]);
    let fetch = python("mcp-server-fetch", &["--allow-private-ips"]);
    for (path, body) in [
        ("/projects/shop", json!({})),
        ("/mcp/servers/time?project=shop", time),
        ("/mcp/servers/fetch?project=shop", fetch),
    ] {
        put(&gateway, path, body).await;
    }
    gateway
}

fn endpoint(gateway: &Gateway) -> Arc<Endpoint> {
    let url = format!("{}/mcp/shop", gateway.url);
    Arc::new(Endpoint::new(url).with_token(gateway.token()))
}

/// Builds a toolset with the tools of both servers. On a busy machine, these start too slowly for the first list, which
/// waits for ten seconds.
async fn toolset(endpoint: Arc<Endpoint>) -> Toolset {
    wait_for_some("the tools of both servers", DEADLINE, async || {
        let toolset = Toolset::build("shop", endpoint.clone()).await;
        let toolset = toolset.unwrap_or_else(|error| panic!("{error}"));
        (tools(&toolset).await.len() == TOOLS).then_some(toolset)
    })
    .await
}

async fn tools(toolset: &Toolset) -> Vec<Arc<dyn Tool>> {
    toolset.tools(invocation()).await.expect("tools")
}

async fn call(tools: &[Arc<dyn Tool>], name: &str, arguments: Value) -> adk_core::Result<Value> {
    let tool = tools.iter().find(|tool| tool.name() == name);
    let tool = tool.unwrap_or_else(|| panic!("no tool {name}"));
    tool.execute(invocation(), arguments).await
}

/// Converts noon in this time zone to UTC.
async fn convert(tools: &[Arc<dyn Tool>], zone: &str) -> adk_core::Result<Value> {
    let arguments = json!({ "source_timezone": zone, "time": "12:00", "target_timezone": "UTC" });
    call(tools, "convert_time", arguments).await
}

/// Makes a call that must succeed.
async fn convert_noon(tools: &[Arc<dyn Tool>]) -> Value {
    convert(tools, "Asia/Tokyo").await.expect("a result")
}

#[tokio::test]
async fn p08_tools_are_adk_functions_under_their_own_names() {
    let gateway = shop().await;
    let toolset = toolset(endpoint(&gateway)).await;
    assert_eq!(toolset.name(), "shop");
    let tools = tools(&toolset).await;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    // The tools are in the order of registration.
    assert_eq!(names, ["get_current_time", "convert_time", "fetch"]);

    // The parameters are as the server declares them, here and over REST.
    let parameters = tools[1].parameters_schema().expect("parameters");
    let required = json!(["source_timezone", "time", "target_timezone"]);
    assert_eq!(parameters["required"], required);
    let declared = told(&gateway, "/tools?project=shop&format=adk").await;
    let declarations: Vec<Value> = tools.iter().map(|tool| tool.declaration()).collect();
    assert_eq!(declared["declarations"], json!(declarations));
    let anthropic = told(&gateway, "/tools?project=shop&format=anthropic&server=time").await;
    let declarations = anthropic["declarations"].as_array().expect("tools");
    assert_eq!(declarations.len(), 2);
    assert_eq!(declarations[1]["name"], "convert_time");
    assert_eq!(declarations[1]["input_schema"], parameters);
    let openai = told(&gateway, "/tools?project=shop&format=openai").await;
    assert_eq!(openai["declarations"][0]["type"], "function");
    assert_eq!(openai["declarations"][2]["function"]["name"], "fetch");
    let path = "/tools?project=shop&format=gemini";
    let refused = ask(&gateway, "GET", path, &Value::Null).await;
    assert_eq!(refused.status, 400, "{}", refused.text());

    checks::contains(convert_noon(&tools).await, &["03:00"]);
    let error = convert(&tools, "Atlantis/City").await;
    let error = error.expect_err("an unknown time zone is an error");
    checks::contains(error, &["Atlantis/City"]);
    let site = Site::new("<html><body><p>Three leeks.</p></body></html>").await;
    let page = json!({ "url": site.at("/soup") });
    let page = call(&tools, "fetch", page).await.expect("a result");
    checks::contains(page, &["Three leeks."]);
    let error = call(&tools, "fetch", json!(["no object"])).await;
    let error = error.expect_err("arguments that are not an object are an error");
    checks::contains(error, &["not a JSON object"]);
}

#[tokio::test]
async fn p09_what_an_adk_agent_calls_is_recorded() {
    let gateway = shop().await;
    convert_noon(&tools(&toolset(endpoint(&gateway)).await).await).await;
    let calls = told(&gateway, "/calls?project=shop").await;
    let calls = calls["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0]["server"], "time");
    assert_eq!(calls[0]["tool"], "convert_time");
    assert_eq!(calls[0]["status"], "ok");
}

#[tokio::test]
async fn p10_the_connection_is_made_when_the_toolset_is_built() {
    let gateway = shop().await;
    let started = async || {
        let mut starts = Vec::new();
        for server in ["time", "fetch"] {
            let shown = told(&gateway, &format!("/mcp/servers/{server}?project=shop")).await;
            starts.push(shown["starts"].clone());
        }
        starts
    };
    let endpoint = endpoint(&gateway);
    assert_eq!(started().await, [0, 0], "a server was started at boot");
    for _ in 0..3 {
        convert_noon(&tools(&toolset(endpoint.clone()).await).await).await;
        assert_eq!(started().await, [1, 1], "a run restarted a server");
    }

    // If the endpoint is unreachable, the error names it.
    let nowhere = Endpoint::new("http://127.0.0.1:1/mcp/shop").with_token("twh_secret");
    let error = Toolset::build("shop", Arc::new(nowhere)).await;
    let error = error.err().expect("nobody listens there").to_string();
    checks::contains(&error, &["127.0.0.1:1/mcp/shop"]);
    checks::lacks(&error, &["twh_secret"]);
}

#[tokio::test]
async fn p11_agents_of_a_project_share_a_connection() {
    let gateway = shop().await;
    let shared = endpoint(&gateway);
    // Two toolsets share an endpoint, and a third uses another one, as in a different program.
    let mut toolsets = Vec::new();
    for over in [shared.clone(), shared.clone(), endpoint(&gateway)] {
        toolsets.push(toolset(over));
    }
    let built = futures_util::future::join_all(toolsets).await;
    let mut running = Vec::new();
    for toolset in built {
        let tools = tools(&toolset).await;
        running.push(async move { convert_noon(&tools).await });
    }
    futures_util::future::join_all(running).await;
    let shown = told(&gateway, "/mcp/servers/time?project=shop").await;
    assert_eq!(shown["starts"], 1, "{shown}");
    assert_eq!(shown["calls"], 3, "{shown}");

    // A session that was ended is opened again.
    let tools = tools(&toolset(shared.clone()).await).await;
    shared.stop().await;
    convert_noon(&tools).await;
}
