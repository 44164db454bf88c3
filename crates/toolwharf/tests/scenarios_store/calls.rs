//! P09: what is recorded of a call, and when.

use std::time::Duration;

use model::ProjectId;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{CallEnd, CallStatus, CallWrite, NewCall};
use testkit::{DEADLINE, Peer, peer::MODERN, soak, wait_for, wait_for_some};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::Instant};

use crate::{
    api::Api,
    common::{Gateway, LEGACY, checks, echoes, real::python, rpc, scripted, with},
    support::{Db, both, legacy, modern, up, with_server},
};

on_both!(
    p09_every_outcome_is_recorded,
    p09_the_intent_is_there_before_the_answer,
    p09_what_was_open_when_it_died_is_unknown,
    p09_bodies_are_kept_without_secrets,
    p09_error_texts_are_kept_with_digests,
    p09_bodies_of_one_server_are_kept_for_a_while,
    p09_a_real_servers_call_is_recorded,
    p09_calls_that_are_cut_are_closed,
    p09_refusals_are_counted,
    c05_many_recorded_calls_are_filtered_and_counted,
);

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

async fn gateway_of(db: &Db, settings: &str, entry: Value) -> Gateway {
    let gateway = db.setup().settings(settings).serve().await;
    let api = Api::admin(&gateway);
    with_server(&api, "a", entry).await;
    gateway
}

/// Waits until the newest call of a tool has this status in the API and in the table, and returns it.
async fn recorded(db: &Db, gateway: &Gateway, tool: &str, status: &str) -> Value {
    let api = Api::admin(gateway);
    let path = format!("/calls?project=a&tool={tool}&limit=1");
    let call = wait_for_some(&format!("{tool}: {status}"), DEADLINE, async || {
        let call = api.get(&path).await["calls"].get(0).cloned()?;
        (call["status"] == status).then_some(call)
    })
    .await;
    let id = call["id"].as_str().unwrap();
    let row = "project_id || ' ' || server || ' ' || tool || ' ' || status || ' ' || arguments_digest || ' '
               || COALESCE(result_digest, '-') || ' ' || COALESCE(error, '-')";
    let row = format!("SELECT {row} FROM kb.agent_run_tool_calls WHERE id = '{id}'");
    let text = |key: &str| call[key].as_str().unwrap_or("-").to_owned();
    let expected = format!(
        "a one {tool} {status} {} {} {}",
        text("arguments_digest"),
        text("result_digest"),
        text("error")
    );
    assert_eq!(db.texts(gateway, &row).await, [expected]);
    checks::members(&call, json!({"project": "a", "server": "one"}));
    assert_eq!(call["finished_at"].is_null(), status == "open");
    assert_eq!(
        call["duration_us"].is_null(),
        matches!(status, "open" | "unknown"),
        "{call}"
    );
    assert!(!call["caller"].as_str().unwrap().is_empty());
    call
}

/// The texts that a query selects. Listing the calls brings the table up to date.
async fn settled(db: &Db, gateway: &Gateway, query: &str) -> Vec<String> {
    Api::admin(gateway).get("/calls?limit=1").await;
    db.texts(gateway, query).await
}

/// Begins a call that takes a minute. Returns its id.
async fn slow(peer: &mut Peer) -> u64 {
    let slow = json!({"name": "slow", "arguments": {"ms": 60000}});
    peer.begin("tools/call", slow).await
}

async fn p09_every_outcome_is_recorded(db: &Db) {
    let options = json!({"callTimeoutMs": 2000, "maxConcurrency": 8});
    let entry = with(scripted("one", &[]), options);
    let gateway = gateway_of(db, "", entry).await;
    for mut peer in both(&gateway, "a").await {
        let arguments = json!({"text": "grüß", "n": 12345678901234567890u64});
        let answer = peer.tool("echo", arguments.clone()).await;
        let call = recorded(db, &gateway, "echo", "ok").await;
        assert_eq!(call["arguments_digest"], digest(&arguments.to_string()));
        if !peer.is_modern() {
            assert_eq!(call["result_digest"], digest(&answer.result().to_string()));
        }
        assert_eq!(call["error"], Value::Null);

        peer.tool("fail", json!({"text": "no luck"})).await;
        let call = recorded(db, &gateway, "fail", "tool_error").await;
        assert_eq!(call["result_digest"].as_str().map(str::len), Some(64));

        let error = json!({"code": -32050, "message": "refused so"});
        peer.tool("rpc_error", error).await;
        let call = recorded(db, &gateway, "rpc_error", "error").await;
        checks::members(&call, json!({"error": "refused so", "result_digest": null}));

        peer.tool("never", json!({})).await;
        let call = recorded(db, &gateway, "never", "timeout").await;
        checks::string(&call["error"], &["2000 ms"]);
        let took = Duration::from_micros(call["duration_us"].as_u64().unwrap());
        assert!((2..20).contains(&took.as_secs()), "{took:?}");

        let id = slow(&mut peer).await;
        recorded(db, &gateway, "slow", "open").await;
        peer.cancel(id).await;
        recorded(db, &gateway, "slow", "cancelled").await;

        peer.tool("crash", json!({})).await;
        let call = recorded(db, &gateway, "crash", "error").await;
        checks::string(&call["error"], &["`one`"]);
        echoes("its return", DEADLINE, &mut peer).await;
    }
    // Listing is not recorded, and neither is a call of an unknown tool.
    let mut peer = legacy(&gateway, "a").await;
    peer.request("tools/list", json!({})).await;
    peer.tool("none", json!({})).await;
    let strange = "SELECT tool FROM kb.agent_run_tool_calls WHERE tool NOT IN
                   ('echo', 'fail', 'rpc_error', 'never', 'slow', 'crash') OR status = 'open'";
    assert_eq!(settled(db, &gateway, strange).await, Vec::<String>::new());
}

async fn p09_the_intent_is_there_before_the_answer(db: &Db) {
    let one = with(scripted("one", &[]), json!({"maxConcurrency": 1}));
    let gateway = gateway_of(db, "", one).await;
    let mut peer = legacy(&gateway, "a").await;
    peer.tool("echo", json!({})).await;
    let first = slow(&mut peer).await;
    let open = recorded(db, &gateway, "slow", "open").await;
    assert_eq!(open["arguments_digest"], digest(r#"{"ms":60000}"#));
    // A queued call is recorded, too.
    let second = peer.begin("tools/call", json!({"name": "env"})).await;
    recorded(db, &gateway, "env", "open").await;
    peer.cancel(first).await;
    let closed = recorded(db, &gateway, "slow", "cancelled").await;
    assert_eq!(closed["id"], open["id"]);
    assert!(peer.finish(second).await.get("result").is_some());
    recorded(db, &gateway, "env", "ok").await;
    // The response never arrives before its record, so there is nothing to wait for. In a SQLite file that is read
    // directly, the row may be late by up to a second.
    let api = Api::admin(&gateway);
    for n in 0..20 {
        let answer = peer.tool("echo", json!({"n": n})).await;
        answer.result();
        let newest = "SELECT status || ' ' || arguments_digest FROM kb.agent_run_tool_calls
                      ORDER BY id DESC LIMIT 1";
        let digest = digest(&json!({"n": n}).to_string());
        let row = [format!("ok {digest}")];
        if n < 10 {
            let listed = api.get("/calls?limit=1").await["calls"][0].clone();
            checks::members(&listed, json!({"status": "ok", "arguments_digest": digest}));
            assert_eq!(db.texts(&gateway, newest).await, row);
        } else if db.is_sqlite() {
            wait_for("the row", Duration::from_secs(1), async || {
                db.texts(&gateway, newest).await == row
            })
            .await;
        } else {
            assert_eq!(db.texts(&gateway, newest).await, row);
        }
    }
}

async fn p09_what_was_open_when_it_died_is_unknown(db: &Db) {
    let gateway = gateway_of(db, "", scripted("one", &[])).await;
    let mut peer = legacy(&gateway, "a").await;
    peer.tool("echo", json!({})).await;
    slow(&mut peer).await;
    let open = recorded(db, &gateway, "slow", "open").await;
    let gateway = gateway.restarted_after(Signal::KILL).await;
    let call = recorded(db, &gateway, "slow", "unknown").await;
    assert_eq!(call["id"], open["id"]);
    recorded(db, &gateway, "echo", "ok").await;
    // The call is not repeated.
    let mut peer = legacy(&gateway, "a").await;
    let running = peer.tool("running", json!({})).await;
    assert_eq!(running.text(), "0");
}

async fn p09_bodies_are_kept_without_secrets(db: &Db) {
    let mut entry = scripted("one", &[]);
    entry["env"] = json!({"FROM_STORE": "<${KEY}>", "API_TOKEN": "canary-plain"});
    let gateway = gateway_of(db, "[audit]\nbodies = \"full\"\n", entry).await;
    let api = Api::admin(&gateway);
    let secret = json!({"value": "canary\"quoted\""});
    api.put("/projects/a/secrets/KEY", secret).await;

    let mut peer = legacy(&gateway, "a").await;
    let env = peer.tool("env", json!({})).await;
    let env = &env.result()["structuredContent"];
    assert_eq!(env["FROM_STORE"], "<canary\"quoted\">");
    let arguments = json!({"text": "before canary\"quoted\" after", "token": "canary-plain"});
    peer.tool("echo", arguments.clone()).await;
    let told = "it was canary-plain";
    peer.tool("fail", json!({"text": told})).await;
    peer.tool("rpc_error", json!({"message": told})).await;
    for (tool, status) in [
        ("env", "ok"),
        ("echo", "ok"),
        ("fail", "tool_error"),
        ("rpc_error", "error"),
    ] {
        let call = recorded(db, &gateway, tool, status).await;
        let id = call["id"].as_str().unwrap();
        let whole = api.get(&format!("/calls/{id}?project=a")).await;
        checks::lacks(whole.to_string(), &["canary"]);
        checks::contains(whole.to_string(), &["[secret]"]);
        if tool == "echo" {
            // The rest of the arguments is recorded, and the digest is that of the original text.
            let kept: Value = serde_json::from_str(whole["arguments"].as_str().unwrap()).unwrap();
            let expected = json!({"text": "before [secret] after", "token": "[secret]"});
            assert_eq!(kept, expected);
            assert_eq!(call["arguments_digest"], digest(&arguments.to_string()));
            checks::string(&whole["result"], &["before [secret] after"]);
        }
    }
    let told = "SELECT id FROM kb.agent_run_tool_calls
                WHERE COALESCE(arguments, '') || COALESCE(result, '') || COALESCE(error, '') LIKE '%canary%'";
    assert_eq!(settled(db, &gateway, told).await, Vec::<String>::new());
    // Without the setting, only digests are recorded.
    let file = gateway.settings_file();
    gateway.replace(&file, "[audit]\nbodies = \"digests\"\n");
    wait_for_some("the new setting", DEADLINE, async || {
        peer.tool("cwd", json!({})).await;
        let call = recorded(db, &gateway, "cwd", "ok").await;
        let id = call["id"].as_str().unwrap();
        let whole = api.get(&format!("/calls/{id}")).await;
        (whole["arguments"].is_null() && whole["result"].is_null()).then_some(())
    })
    .await;
}

/// With digests, the record of a failed call still says why it failed: the beginning of the text, without secrets.
async fn p09_error_texts_are_kept_with_digests(db: &Db) {
    let mut entry = scripted("one", &[]);
    entry["env"] = json!({"API_TOKEN": "canary-plain"});
    let gateway = gateway_of(db, "", entry).await;
    let api = Api::admin(&gateway);
    for mut peer in both(&gateway, "a").await {
        // The secret crosses the end of the kilobyte.
        let text = format!("not found: {} canary-plain", "ü".repeat(504));
        peer.tool("fail", json!({"text": text})).await;
        peer.tool("rpc_error", json!({"message": text})).await;
        for (tool, status) in [("fail", "tool_error"), ("rpc_error", "error")] {
            let call = recorded(db, &gateway, tool, status).await;
            let error = call["error"].as_str().unwrap();
            assert_eq!(error.len(), 1024, "{error}");
            checks::contains(error.to_owned(), &["not found: üü", "ü [sec"]);
            checks::lacks(error.to_owned(), &["canary"]);
            let whole = format!("/calls/{}?project=a", call["id"].as_str().unwrap());
            let whole = api.get(&whole).await;
            checks::members(&whole, json!({"arguments": null, "result": null}));
        }
    }
    let file = gateway.settings_file();
    gateway.replace(&file, "[audit]\nerrors = false\n");
    let mut peer = legacy(&gateway, "a").await;
    wait_for("the new setting", DEADLINE, async || {
        peer.tool("fail", json!({"text": "no luck"})).await;
        recorded(db, &gateway, "fail", "tool_error").await["error"].is_null()
    })
    .await;
}

/// The recording ends by itself or by request, concerns one server, and survives a restart.
async fn p09_bodies_of_one_server_are_kept_for_a_while(db: &Db) {
    let gateway = gateway_of(db, "", scripted("one", &[])).await;
    let api = Api::admin(&gateway);
    with_server(&api, "b", scripted("one", &[])).await;
    let of_a = "/mcp/servers/one/recording?project=a";
    let last = async |gateway: &Gateway, project: &str| {
        let mut peer = legacy(gateway, project).await;
        peer.tool("echo", json!({"text": "hello"})).await.result();
        let api = Api::admin(gateway);
        let calls = api.get(&format!("/calls?project={project}&limit=1")).await;
        let id = calls["calls"][0]["id"].as_str().unwrap().to_owned();
        api.get(&format!("/calls/{id}?project={project}")).await["arguments"].clone()
    };
    assert_eq!(last(&gateway, "a").await, Value::Null);
    for seconds in [59, 86_401] {
        let wrong = json!({"seconds": seconds}).to_string();
        api.refused("PUT", of_a, &wrong, 400).await;
    }
    let server = api.put(of_a, json!({"seconds": 3600})).await;
    assert!(server["bodies_recorded_until"].is_string(), "{server:#}");
    let shown = api.get("/mcp/servers/one?project=b").await;
    assert_eq!(shown["bodies_recorded_until"], Value::Null);
    let hello = json!({"text": "hello"}).to_string();
    assert_eq!(last(&gateway, "a").await, hello);
    assert_eq!(last(&gateway, "b").await, Value::Null);
    let gateway = gateway.restarted().await;
    assert_eq!(last(&gateway, "a").await, hello);

    let api = Api::admin(&gateway);
    api.delete(of_a).await;
    assert_eq!(last(&gateway, "a").await, Value::Null);
    let events = api.get("/mcp/servers/one/events?project=a").await;
    let events = events["events"].as_array().unwrap().iter();
    let kinds = events.filter_map(|event| event["kind"].as_str());
    let kinds: Vec<&str> = kinds
        .filter(|kind| kind.starts_with("recording_"))
        .collect();
    assert_eq!(kinds, ["recording_ended", "recording_started"]);

    gateway.replace(&gateway.settings_file(), "[audit]\nenabled = false\n");
    wait_for("the new setting", DEADLINE, async || {
        let asked = json!({"seconds": 60}).to_string();
        let path = format!("/api/v1{of_a}");
        api.ask("PUT", &path, asked, &[]).await.status == 409
    })
    .await;
}

async fn p09_a_real_servers_call_is_recorded(db: &Db) {
    let time = python("mcp-server-time", &["--local-timezone", "Europe/Paris"]);
    let gateway = gateway_of(db, "", time).await;
    let api = Api::admin(&gateway);
    up(&api, "a", "one").await;
    // Callers are identified by their keys.
    let (key, token) = api.key("a", "call").await;
    let bearer = format!("Bearer {token}");
    let client = gateway.client().with("authorization", &bearer);
    let mut peer = Peer::http(client, LEGACY, json!({})).await;
    let arguments = json!({"timezone": "Europe/Paris"});
    let answer = peer.tool("get_current_time", arguments.clone()).await;
    answer.result();
    let call = recorded(db, &gateway, "get_current_time", "ok").await;
    assert_eq!(call["arguments_digest"], digest(&arguments.to_string()));
    assert_eq!(call["caller"], format!("key:{key}"));
    let nowhere = json!({"timezone": "Nowhere/None"});
    peer.tool("get_current_time", nowhere).await;
    recorded(db, &gateway, "get_current_time", "tool_error").await;
}

/// Returns the bytes of a modern tool call.
fn posted(gateway: &Gateway, project: &str, tool: &str) -> String {
    let body = rpc::modern_call(1, tool, json!({"ms": 60000})).to_string();
    let host = gateway.url.strip_prefix("http://").unwrap();
    format!(
        "POST /mcp/{project} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {MODERN}\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Connections are cut as soon as their call is sent: no record stays open when nothing is in flight.
async fn p09_calls_that_are_cut_are_closed(db: &Db) {
    let gateway = gateway_of(db, "", scripted("one", &[])).await;
    legacy(&gateway, "a").await.tool("echo", json!({})).await;
    let request = posted(&gateway, "a", "slow");
    let host = gateway.url.strip_prefix("http://").unwrap();
    let mut cuts = JoinSet::new();
    for yields in 0..400 {
        let (request, host) = (request.clone(), host.to_owned());
        cuts.spawn(async move {
            let mut stream = TcpStream::connect(host).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            for _ in 0..yields % 20 {
                tokio::task::yield_now().await;
            }
        });
    }
    cuts.join_all().await;
    let count = "SELECT CAST(COUNT(*) AS TEXT) FROM kb.agent_run_tool_calls WHERE tool = 'slow' AND status ";
    wait_for("the records to be closed", DEADLINE, async || {
        let idle = |text: &str| {
            let of_one = |line: &&str| line.contains("server=\"one\"");
            let loads = ["toolwharf_calls_in_flight{", "toolwharf_calls_waiting{"];
            let lines = text.lines().filter(of_one);
            let mut lines = lines.filter(|line| loads.iter().any(|load| line.starts_with(load)));
            lines.all(|line| line.ends_with(" 0"))
        };
        idle(&gateway.metrics().await)
            && db.texts(&gateway, &format!("{count} = 'cancelled'")).await != ["0"]
            && db.texts(&gateway, &format!("{count} = 'open'")).await == ["0"]
    })
    .await;
    let others = format!("{count} NOT IN ('cancelled', 'open')");
    assert_eq!(db.texts(&gateway, &others).await, ["0"]);
}

/// Calls that are refused at once create no rows and few log lines.
async fn p09_refusals_are_counted(db: &Db) {
    const REFUSED_CALLS: usize = 300;
    let entry = with(scripted("one", &[]), json!({"maxConcurrency": 1}));
    let gateway = gateway_of(db, "[limits]\nqueue_len = 1\n", entry).await;
    let mut peer = modern(&gateway, "a").await;
    let mut begun = Vec::new();
    for load in ["calls_in_flight", "calls_waiting"] {
        begun.push(slow(&mut peer).await);
        let full = format!("toolwharf_{load}{{project=\"a\",server=\"one\"}} 1");
        wait_for("the server to be busy", DEADLINE, async || {
            gateway.metrics().await.contains(&full)
        })
        .await;
    }
    let start = Instant::now();
    for _ in 0..REFUSED_CALLS {
        let refused = peer.tool("echo", json!({})).await;
        let reason = &refused.response["error"]["data"]["reason"];
        assert_eq!(reason, "server_busy", "{refused:?}");
    }
    let lines = || {
        let stderr = gateway.process.stderr();
        let lines = stderr.lines().filter(|line| line.contains("is busy"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap();
    assert!(lines().len() <= seconds + 1, "{:?}", lines());
    let metrics = gateway.metrics().await;
    let counted = format!("calls_refused_total{{project=\"a\",server=\"one\"}} {REFUSED_CALLS}\n");
    assert!(metrics.contains(&counted), "{metrics}");
    let rows = "SELECT CAST(COUNT(*) AS TEXT) FROM kb.agent_run_tool_calls WHERE tool = 'echo'";
    assert_eq!(settled(db, &gateway, rows).await, ["0"]);
    // The next line says how many refusals there were since the previous line.
    wait_for("a count in the log", DEADLINE, async || {
        peer.tool("echo", json!({})).await;
        let counted = "times since the last such line";
        lines().iter().any(|line| line.contains(counted))
    })
    .await;
    for id in begun {
        peer.cancel(id).await;
    }
    echoes("a call to be accepted again", DEADLINE, &mut peer).await;
    assert_eq!(settled(db, &gateway, rows).await, ["1"]);
}

/// A month of calls, queried as chart and list in a hundred ways.
async fn c05_many_recorded_calls_are_filtered_and_counted(db: &Db) {
    const MONTH_SECONDS: i64 = 30 * 24 * 3600;
    let count: i64 = match (soak(), db.is_sqlite()) {
        (true, _) => 1_000_000,
        (false, true) => 100_000,
        // Filling Postgres takes longer, so it gets fewer calls.
        (false, false) => 10_000,
    };
    let setup = db.setup();
    let location = db.location(&setup);
    let store = store::Store::open(&location).await.unwrap();
    let now = store::now();
    let mut writer = store.call_writer();
    // The last call began two minutes ago, so that no call moves to another bucket during the test.
    let began = |place: i64| {
        let seconds = now.timestamp() - 120 - MONTH_SECONDS * (count - 1 - place) / count;
        store::Time::from_timestamp(seconds, 0).unwrap()
    };
    // The gateway writes at most 128 calls with their outcomes at once. On Postgres, a larger statement may be too slow.
    let at_once: i64 = if db.is_sqlite() { 2_000 } else { 128 };
    let mut next = 0;
    while next < count {
        let mut writes = Vec::new();
        for place in next..(next + at_once).min(count) {
            let id = format!("{}-{place:012x}", &store::id_at(began(place))[..23]);
            let project = (place % 2 == 0).then(|| ProjectId::parse("a").unwrap());
            writes.push(CallWrite::Intent(NewCall {
                id: id.clone(),
                run_id: None,
                project,
                caller: format!("key:{}", place % 5),
                server: format!("server{}", place % 10),
                tool: format!("tool{}", place % 97),
                arguments_digest: digest("{}"),
                arguments: None,
                started_at: began(place),
                replay_of: None,
            }));
            let failed = place % 20 == 0;
            writes.push(CallWrite::Outcome(CallEnd {
                id,
                status: match failed {
                    true => CallStatus::Error,
                    false => CallStatus::Ok,
                },
                error: failed.then(|| "no".to_owned()),
                result_digest: None,
                result: None,
                finished_at: began(place),
                duration_us: 1000 + place % 1000,
                steps: store::CallSteps::default(),
            }));
        }
        writer.write(&writes).await.unwrap();
        next += at_once;
    }
    store.close().await;

    let gateway = setup.serve().await;
    let api = Api::admin(&gateway);
    api.project("a").await;
    let since = began(0).naive_utc().format("since=%Y-%m-%dT%H:%M:%SZ");
    let all = api.get(&format!("/calls/statistics?{since}")).await;
    assert_eq!(all["calls"], count, "{all:#}");
    assert_eq!(all["errors"], count / 20);
    let near = |value: &Value, exact: f64| (value.as_f64().unwrap() / exact - 1.0).abs() < 0.15;
    assert!(near(&all["p50_us"], 1500.0), "{all:#}");
    assert!(near(&all["p95_us"], 1950.0), "{all:#}");
    let buckets = all["buckets"].as_array().unwrap();
    assert!(buckets.len() > 10 && buckets.len() <= 60, "{all:#}");
    let of_buckets = buckets.iter().map(|bucket| bucket["calls"].as_i64());
    assert_eq!(of_buckets.map(Option::unwrap).sum::<i64>(), count);
    assert_eq!(all["servers"].as_array().unwrap().len(), 10);
    assert_eq!(all["servers"][0]["calls"], count / 10);

    let mut took = Vec::new();
    for turn in 0..100 {
        let (server, tool, caller) = (turn % 10, turn % 4, turn % 5);
        let filter = match turn % 5 {
            0 => format!("server=server{server}"),
            1 => "status=error".to_owned(),
            2 => format!("tool=tool{tool}"),
            3 => format!("caller=key:{caller}"),
            _ => "project=a".to_owned(),
        };
        let path = match turn % 2 {
            0 => format!("/calls?{filter}"),
            _ => format!("/calls/statistics?{since}&{filter}"),
        };
        let start = Instant::now();
        let told = api.get(&path).await;
        took.push(start.elapsed());
        let expected = match turn % 5 {
            0 => count / 10,
            1 => count / 20,
            2 => (count - tool + 96) / 97,
            3 => count / 5,
            _ => count / 2,
        };
        match turn % 2 {
            0 => assert_eq!(told["calls"].as_array().unwrap().len(), 100, "{path}"),
            _ => assert_eq!(told["calls"], expected, "{path}"),
        }
    }
    took.sort();
    let p95 = took[95];
    assert!(p95 <= Duration::from_millis(200), "{took:?}");
}
