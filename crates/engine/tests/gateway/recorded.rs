//! Records of calls (P09), saved states of hosted servers, and their events. Uses a real clock and a working store.

use std::time::Duration;

use engine::Command;
use model::{RestartPolicy, ServerSpec};
use serde_json::json;
use store::{CallFilter, CallRow, CallStatus, EventRow, NewRegistration, Page};
use tokio::time::Instant;

use crate::support::{ERAS, World, hosted, hosted_as, owned, stdio};

/// Limit for the time until a write is visible.
const WRITE_DEADLINE: Duration = Duration::from_secs(20);

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, is: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !is().await {
        assert!(
            start.elapsed() < WRITE_DEADLINE,
            "not within {WRITE_DEADLINE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns the records of calls, oldest first.
async fn calls(world: &World) -> Vec<CallRow> {
    let (filter, page) = (CallFilter::default(), Page::first(100));
    let mut calls = world.store.calls_list(&filter, &page).await.unwrap();
    calls.sort_by(|one, other| one.id.cmp(&other.id));
    calls
}

async fn statuses(world: &World) -> Vec<CallStatus> {
    let calls = calls(world).await;
    calls.into_iter().map(|call| call.status).collect()
}

pub(crate) async fn up(world: &World, name: &str) {
    eventually("it runs", async || world.state(name) == "running").await;
}

/// The intent is stored before the server receives the call, and the outcome before the caller gets the result.
#[tokio::test]
async fn p09_an_intent_comes_before_the_call_and_its_outcome_before_the_answer() {
    let world = World::recorded().await;
    let one = world.scripted("one");
    world.configure(&[stdio("one")]);
    up(&world, "one").await;
    for (before, era) in ERAS.into_iter().enumerate() {
        let client = world.client(era).await;
        let call = client.begin_tool("hold", json!({ "n": 1 }));
        eventually("the server has it", async || one.held().len() == 1).await;
        let row = calls(&world).await.pop().unwrap();
        assert_eq!(calls(&world).await.len(), before + 1);
        assert_eq!(
            (&*row.server, &*row.tool, &*row.caller),
            ("one", "hold", "tester")
        );
        assert_eq!((row.status, row.finished_at), (CallStatus::Open, None));
        one.release();
        call.reply().await.result();
        let row = calls(&world).await.pop().unwrap();
        assert_eq!(row.status, CallStatus::Ok);
        assert!(row.finished_at.is_some() && row.result_digest.is_some());
    }
}

#[tokio::test]
async fn p09_whatever_becomes_of_a_call_is_its_outcome() {
    let world = World::recorded().await;
    let one = world.scripted("one");
    one.tools(&["echo", "hold", "fail", "rpc_error", "exit"]);
    let mut spec = stdio("one");
    spec.call_timeout = Duration::from_millis(200);
    world.configure(&[spec]);
    up(&world, "one").await;
    let client = world.modern().await;
    for tool in ["echo", "fail", "rpc_error", "hold", "exit"] {
        client.tool(tool, json!({ "code": 3 })).await;
    }
    eventually("it is back", async || world.state("one") == "running").await;
    let cancelled = client.begin_tool("hold", json!({}));
    eventually("the server has it", async || !one.held().is_empty()).await;
    client.cancel(cancelled);
    use CallStatus::{Cancelled, Error, Ok, Timeout, ToolError};
    let expected = [Ok, ToolError, Error, Timeout, Error, Cancelled];
    eventually("all have outcomes", async || {
        statuses(&world).await == expected
    })
    .await;
}

/// Rejected calls are not recorded, since their number is unlimited.
#[tokio::test]
async fn p09_what_is_refused_makes_no_row() {
    let world = World::recorded().await;
    world.host([hosted("one", |_| {})]);
    up(&world, "one").await;
    let client = world.legacy().await;
    world.order("one", Command::Stop).await;
    assert_eq!(
        client.tool("echo", json!({})).await.reason(),
        "server_unavailable"
    );
    client.tool("no_such_tool", json!({})).await.error();
    world.order("one", Command::Start).await;
    client.tool("echo", json!({})).await.result();
    assert_eq!(statuses(&world).await, [CallStatus::Ok]);
}

/// A hosted server with its row in the store.
pub(crate) async fn registered(world: &World, name: &str, restart: RestartPolicy) -> ServerSpec {
    let name = crate::support::server_name(name);
    let config = json!({});
    let new = NewRegistration {
        project: None,
        name: &name,
        status: "ready",
        image: "scripted",
        config: &config,
    };
    let row = world.store.registration_put(new).await.unwrap();
    hosted_as(name.as_str(), &row.id, |spec| spec.restart = Some(restart))
}

/// Returns the status in the server's row.
pub(crate) async fn left(world: &World, name: &str) -> String {
    let rows = world.store.registration_list_all().await.unwrap();
    let row = rows.into_iter().find(|row| row.name.as_str() == name);
    row.unwrap().status
}

/// The row shows the current status. The next start of the gateway uses the other state, which is saved separately.
#[tokio::test]
async fn h08_the_row_says_how_a_server_was_left() {
    use RestartPolicy::{Always, No};
    let world = World::recorded().await;
    let (one, once) = (world.scripted("one"), world.scripted("once"));
    let specs = [
        registered(&world, "one", Always).await,
        registered(&world, "once", No).await,
    ];
    world.host(specs);
    up(&world, "one").await;
    up(&world, "once").await;
    let is = async |name: &str, expected: &str| {
        let what = format!("`{name}` is left as {expected}");
        eventually(&what, async || left(&world, name).await == expected).await;
        assert_eq!(world.status(name).saved, expected);
    };
    for (order, expected) in [(Command::Stop, "stopped"), (Command::Start, "ready")] {
        world.order("one", order).await;
        is("one", expected).await;
    }
    once.exit(0);
    is("once", "exited").await;
    world.order("once", Command::Start).await;
    is("once", "ready").await;
    once.exit(1);
    is("once", "failed").await;
    // A server that is due to run is stopped with the gateway, and still due to run.
    world
        .gateway
        .shutdown(Instant::now() + WRITE_DEADLINE)
        .await;
    assert_eq!((one.running(), once.running()), (0, 0));
    for (name, status, state) in [("one", "stopped", "ready"), ("once", "failed", "failed")] {
        assert_eq!(left(&world, name).await, status);
        let id = world.server(name).spec.registered_as().unwrap().to_owned();
        let all = world.store.registration_left_all().await.unwrap();
        assert_eq!(all[&id], state, "{name}");
    }
}

/// Returns the stored events of a server, in order.
async fn events(world: &World, id: &str) -> Vec<EventRow> {
    let page = Page::first(100);
    let events = world.store.event_list(None, Some(id), &page).await;
    let mut events = events.unwrap();
    events.sort_by(|one, other| one.id.cmp(&other.id));
    events
}

/// Events are stored in order, each with its cause.
#[tokio::test]
async fn h09_what_happens_to_a_server_is_an_event() {
    let world = World::recorded().await;
    let one = world.scripted("one");
    let spec = registered(&world, "one", RestartPolicy::Always).await;
    let id = spec.registered_as().unwrap().to_owned();
    world.host([spec]);
    up(&world, "one").await;
    one.script(|script| script.dies_at_start = Some(7)).exit(3);
    eventually("it waits", async || world.state("one") == "backoff").await;
    world.order("one", Command::Stop).await;
    let expected = [
        "ready", "crashed", "crashed", "crashed", "crashed", "backoff", "stopped",
    ];
    eventually("all are written down", async || {
        events(&world, &id).await.len() == expected.len()
    })
    .await;
    let events = events(&world, &id).await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, expected);
    assert_eq!(events[1].detail["exitCode"], 3);
    assert_eq!(events[2].detail["exitCode"], 7);
    let stderr = events[1].detail["stderr"].as_str().unwrap();
    assert!(stderr.contains("ends with exit code 3"), "{stderr}");
    assert_eq!(events[5].detail["waitSeconds"], 5);
}

/// The events of a server that is not registered are stored under its owner and name.
#[tokio::test]
async fn what_happens_to_any_server_is_an_event() {
    let world = World::recorded().await;
    let file = world.scripted("one");
    let shops = world.owned("shop", "one");
    world.configure(&[stdio("one")]);
    world.project("shop", &[owned("shop", stdio("one"))]);
    up(&world, "one").await;
    file.exit(3);
    let client = world.client_in(ERAS[0], "shop").await;
    client.tools().await;
    eventually("the project's runs", async || shops.running() == 1).await;
    let kinds = async |id: &str| {
        let events = events(&world, id).await;
        let of = events.iter().map(|event| event.project_id.clone());
        let projects: Vec<Option<String>> = of.collect();
        let kinds: Vec<String> = events.into_iter().map(|event| event.kind).collect();
        (kinds.join(" "), projects)
    };
    eventually("they are written down", async || {
        kinds("one").await.0 == "ready crashed ready" && kinds("shop/one").await.0 == "ready"
    })
    .await;
    assert_eq!(kinds("one").await.1, [None, None, None]);
    assert_eq!(kinds("shop/one").await.1, [Some("shop".to_owned())]);
}
