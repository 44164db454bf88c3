//! The tools offered to the model, and the routing of its calls.

use serde_json::json;
use testkit::llm::{Llm, asks, expecting, says, turns};

use super::support::{NATIVE, calls, frames, recipe, recorded, recorded_with, routed};
use crate::common::{
    Setup,
    chat::{of, offered, recipes, say, told, with_agent},
    checks,
    real::python,
    steps::replied,
};

/// The recipe server has five tools, the official fetch server one.
#[tokio::test]
async fn a03_the_model_is_offered_the_tools_of_all_servers_and_native_ones() {
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let setup = Setup::new();
    let file = setup.folder().join("recipes.db");
    let setup = setup
        .server("recipes", recipes(&file))
        .server("fetch", python("mcp-server-fetch", &[]));
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    // The first chat would wait, but only for so long.
    for server in ["recipes", "fetch"] {
        gateway.up(server).await;
    }
    replied(say(&gateway, "Hi").await, "Hello.");
    let requests = llm.requests().await;
    let all = [
        "create_recipe",
        "delete_recipe",
        "display_recipe",
        "fetch",
        "get_recipe",
        "list_recipes",
        "read_result",
        "update_recipe",
    ];
    assert_eq!(offered(&requests[0]), all);
    let tools = requests[0]["body"]["tools"].as_array().unwrap();
    for tool in tools {
        assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
    }
}

#[tokio::test]
async fn tools_for_apps_are_not_offered_to_the_model() {
    let llm = Llm::start(&turns(&[says("Hello.")])).await;
    let setup = Setup::new();
    let tool = |name: &str, visibility: &[&str]| json!({ "name": name, "inputSchema": { "type": "object" }, "_meta": { "ui": { "visibility": visibility } } });
    let tools = json!([tool("both", &["model", "app"]), tool("refresh", &["app"])]);
    let file = setup.folder().join("answers.json");
    let answers = json!({ "methods": { "tools/list": { "tools": tools } } });
    std::fs::write(&file, answers.to_string()).unwrap();
    let setup = setup.scripted("apps", &["--answers", file.to_str().unwrap()]);
    let gateway = with_agent(setup, &llm, "", "").await;
    say(&gateway, "Hi").await;
    assert_eq!(offered(&llm.requests().await[0]), ["both", "read_result"]);
}

/// Each call goes where the registry says: to the tool's server, to this process, or nowhere.
#[tokio::test]
async fn a04_a_tool_leads_to_its_server_or_to_native() {
    let calls = asks(&[
        ("t1", "echo", json!({})),
        ("t2", "tool_0", json!({})),
        ("t3", "display_recipe", recipe()),
        ("t4", "nowhere", json!({})),
    ]);
    let llm = Llm::start(&turns(&[calls, says("Done.")])).await;
    let setup = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &["--no-builtin", "--tools", "1"]);
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    let events = say(&gateway, "Go").await;
    let expect = [
        ["echo", "alpha"],
        ["tool_0", "beta"],
        ["display_recipe", "native"],
        ["nowhere", "nobody"],
    ];
    assert_eq!(routed(&events), expect, "{events:?}");
    // The call records agree. A call of an unknown tool is not recorded.
    let recorded = told(&gateway, "/calls").await;
    let recorded = recorded["calls"].as_array().unwrap().iter();
    let recorded = recorded.map(|call| ["tool", "server"].map(|key| call[key].as_str().unwrap()));
    let mut recorded: Vec<_> = recorded.collect();
    recorded.sort_unstable();
    let mut expect = expect[..3].to_vec();
    expect.sort_unstable();
    assert_eq!(recorded, expect);
}

/// If two servers have a tool of the same name, the later server's tool is offered and called. The log names both
/// servers, once.
#[tokio::test]
async fn a05_the_later_server_wins_a_name_and_a_warning_names_both() {
    let setup = Setup::new();
    // The order of the file differs from the alphabetical order.
    let files = ["zeta", "beta"].map(|name| setup.folder().join(name));
    let options = |name: &str| format!("--no-builtin --tools 1 --description Of-{name}");
    let setup = setup
        .server("zeta", recorded_with("zeta", &files[0], &options("zeta")))
        .server("beta", recorded_with("beta", &files[1], &options("beta")));
    let call = asks(&[("t1", "tool_0", json!({ "n": 7 }))]);
    let answered =
        json!({ "tools": ["tool_0", "read_result"], "tool_results": [{ "contains": "7" }] });
    let llm = Llm::start(&turns(&[
        call,
        expecting(says("Done."), answered),
        says("Again."),
    ]))
    .await;
    let gateway = with_agent(setup, &llm, "", "").await;
    let events = replied(say(&gateway, "Go").await, "Done.");
    assert_eq!(routed(&events), [["tool_0", "beta"]]);
    assert_eq!((calls(&files[0]).len(), calls(&files[1]).len()), (0, 1));
    let requests = llm.requests().await;
    let described = requests[0]["body"]["tools"][0]["description"].as_str();
    assert!(described.unwrap().starts_with("Of-beta"), "{described:?}");
    replied(say(&gateway, "Again").await, "Again.");
    gateway.logged("both offer the tool `tool_0`").await;
    let log = gateway.process.stderr();
    let warnings = log.lines();
    let mut warnings = warnings.filter(|line| line.contains("both offer the tool"));
    let warning = warnings.next().unwrap();
    checks::contains(warning, &["WARN", "`zeta`"]);
    checks::contains(warning, &["the agent uses the tool of `beta`"]);
    assert_eq!(warnings.next(), None);
}

/// `tools/call` reaches only the tool's server, and its result reaches the model.
#[tokio::test]
async fn a06_only_the_server_of_a_tool_is_asked() {
    let setup = Setup::new();
    let files = ["alpha", "beta"].map(|name| setup.folder().join(name));
    let setup = setup.server("alpha", recorded("alpha", &files[0])).server(
        "beta",
        recorded_with("beta", &files[1], "--no-builtin --tools 1"),
    );
    let call = asks(&[("t1", "tool_0", json!({ "only": "beta" }))]);
    let answered =
        json!({ "tool_results": [{ "id": "t1", "contains": "only", "is_error": false }] });
    let llm = Llm::start(&turns(&[call, expecting(says("Done."), answered)])).await;
    let gateway = with_agent(setup, &llm, "", "").await;
    replied(say(&gateway, "Go").await, "Done.");
    assert_eq!(calls(&files[1]), ["tool_0"]);
    assert_eq!(calls(&files[0]), [""; 0]);
}

/// A native tool runs in this process: no message is sent to a server.
#[tokio::test]
async fn a07_a_native_tool_makes_no_traffic_to_servers() {
    let setup = Setup::new();
    let file = setup.folder().join("alpha");
    let setup = setup.server("alpha", recorded("alpha", &file));
    let call = asks(&[("t1", "display_recipe", recipe())]);
    let shown = json!({ "tool_results": [{ "contains": "shown", "is_error": false }] });
    let llm = Llm::start(&turns(&[
        says("Ready."),
        call,
        expecting(says("Done."), shown),
    ]))
    .await;
    let gateway = with_agent(setup, &llm, "", NATIVE).await;
    replied(say(&gateway, "Hi").await, "Ready.");
    let before = frames(&file).len();
    let events = replied(say(&gateway, "Go").await, "Done.");
    assert_eq!(of(&events, "native")[0]["payload"], recipe());
    assert_eq!(frames(&file).len(), before, "the server received a message");
    // The native call did not reach the server: this later call is the first that the server receives.
    gateway.legacy().await.tool("echo", json!({})).await;
    assert_eq!(calls(&file), ["echo"]);
}
