//! Servers as child processes: ids, environment, memory and termination.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::{
    Bin, DEADLINE,
    llm::{Llm, asks, says, turns},
    wait_for,
};

use super::support::{frames, recorded};
use crate::common::{
    Gateway, LEGACY, Setup, changed_program,
    chat::{say, text, with_agent},
    checks, gone, process_state, rollup, rpc, scripted, steps, tools, with,
};

/// Two servers run under their names, each in a separate child process, and have completed their handshakes.
#[tokio::test]
async fn a01_stdio_servers_run_as_own_children() {
    let gateway = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &[])
        .settings("naming = \"always-prefix\"\n")
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let listed = tools(&mut peer).await;
    let mut pids = Vec::new();
    for server in ["alpha", "beta"] {
        assert!(listed.contains(&format!("{server}__echo")), "{listed:?}");
        let pid = peer.tool(&format!("{server}__pid"), json!({})).await;
        pids.push(pid.text().parse::<u32>().unwrap());
    }
    assert_ne!(pids[0], pids[1]);
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
        assert_eq!(parent, gateway.process.pid().to_string(), "{stat}");
    }
}

/// A duplicate name is refused before anything is started, and the error names both lines.
#[tokio::test]
async fn a01_a_duplicate_name_is_refused_at_load() {
    let setup = Setup::new();
    let file = setup.folder().join("twice.json");
    let marker = setup.folder().join("started");
    let text = format!(
        "{{\n  \"mcpServers\": {{\n    \"time\": {{\"command\": \"touch\", \"args\": [{:?}]}},\n    \
         \"other\": {{\"command\": \"true\"}},\n    \"time\": {{\"command\": \"true\"}}\n  }}\n}}\n",
        marker.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let stderr = setup.config(&file).refused().await;
    checks::contains(
        &stderr,
        &["twice.json:5", "`time`", "twice.json:3", "rename or remove"],
    );
    assert!(!marker.exists(), "a server was started");
}

/// Each server sees a separate sequence of ids without repetitions, whatever ids the clients use.
#[tokio::test]
async fn a02_each_server_has_its_own_sequence_of_ids() {
    let mut setup = Setup::new().settings("naming = \"always-prefix\"\n");
    let files = ["alpha", "beta"].map(|name| setup.folder().join(name));
    for (name, file) in ["alpha", "beta"].into_iter().zip(&files) {
        let entry = with(recorded(name, file), json!({"maxConcurrency": 8}));
        setup = setup.server(name, entry);
    }
    let gateway = setup.connected().await;
    // Both clients use the same request ids.
    let mut clients = [gateway.legacy().await, gateway.modern().await];
    let mut begun = Vec::new();
    for n in 0..40 {
        for (at, client) in clients.iter_mut().enumerate() {
            for server in ["alpha", "beta"] {
                let arguments = json!({"from": at, "n": n});
                let tool = format!("{server}__echo");
                let id = steps::begin_tool(client, &tool, arguments.clone()).await;
                begun.push((at, id, arguments));
            }
        }
    }
    for (at, id, arguments) in begun {
        let response = clients[at].finish(id).await;
        assert_eq!(response["result"]["structuredContent"], arguments);
    }
    for file in &files {
        let frames = frames(file).into_iter();
        let ids = frames.filter_map(|frame| Some(frame.get("id")?.as_u64().unwrap()));
        let mut ids: Vec<u64> = ids.collect();
        assert!(ids.len() >= 80, "{}", ids.len());
        ids.sort_unstable();
        let sequence: Vec<u64> = (ids[0]..).take(ids.len()).collect();
        assert_eq!(ids, sequence, "there are gaps or repetitions");
        assert!(ids[0] <= 2, "shared with another server: {}", ids[0]);
    }
}

/// A child sees its own variables, a few harmless ones, and those that it needs for the network: CA files, proxies and
/// registries without credentials. It sees none of a sibling's.
#[tokio::test]
async fn a09_a_child_sees_its_own_variables_only() {
    let mut alpha = scripted("alpha", &[]);
    alpha["env"] = json!({"ALPHA_KEY": "alpha-value", "FILLED": "${HOST_GIVEN}"});
    let mut beta = scripted("beta", &[]);
    beta["env"] = json!({"BETA_KEY": "beta-value"});
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .env("HOST_SECRET", "hunter2")
        .env("AWS_SECRET_ACCESS_KEY", "hunter2")
        .env("TOOLWHARF_SECRET", "hunter2")
        .env("LD_PRELOAD_X", "hunter2")
        .env("HTTPS_PROXY", "http://me:hunter2@proxy.test")
        .env("UV_DEFAULT_INDEX", "https://hunter2@pypi.test/simple")
        .env("UV_INDEX_CORP_PASSWORD", "hunter2")
        .env("npm_config__auth", "hunter2")
        .env("SSL_CERT_FILE", "/somewhere/ca.pem")
        .env("HOST_GIVEN", "given-on-purpose")
        .server("alpha", alpha)
        .server("beta", beta)
        .connected()
        .await;
    let mut peer = gateway.legacy().await;
    let alpha = peer.tool("alpha__env", json!({})).await;
    let beta = peer.tool("beta__env", json!({})).await;
    let alpha = alpha.result()["structuredContent"].as_object().unwrap();
    let beta = beta.result()["structuredContent"].as_object().unwrap();
    assert_eq!(alpha["ALPHA_KEY"], "alpha-value");
    assert_eq!(alpha["FILLED"], "given-on-purpose");
    assert_eq!(beta["BETA_KEY"], "beta-value");
    assert!(!alpha.contains_key("BETA_KEY") && !beta.contains_key("ALPHA_KEY"));
    let token = gateway.token();
    for (name, value) in alpha.iter().chain(beta) {
        let variable = format!("{name}={}", value.as_str().unwrap());
        checks::lacks(variable, &["hunter2", &token]);
    }
    assert!(!beta.contains_key("HOST_GIVEN") && !beta.contains_key("FILLED"));
    assert_eq!(beta["SSL_CERT_FILE"], "/somewhere/ca.pem");
    gateway
        .logged("`UV_DEFAULT_INDEX` contains user information")
        .await;
    // All other variables are harmless. The test machine may set those for the network.
    let harmless = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "LANG",
        "PWD",
        "SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "AWS_CA_BUNDLE",
        "PIP_CERT",
        "DENO_CERT",
        "npm_config_registry",
        "NPM_CONFIG_REGISTRY",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
    ];
    for name in beta.keys() {
        let known = harmless.contains(&name.as_str())
            || name.starts_with("LC_")
            || name.starts_with("TOOLWHARF_")
            || name == "BETA_KEY";
        assert!(known, "{name} reached the child");
    }
}

/// The processes of two servers: the server itself, a child, and a child that has left its process group.
async fn family(gateway: &Gateway) -> (Vec<u32>, Vec<u32>) {
    let mut peer = gateway.legacy().await;
    let (mut children, mut grandchildren) = (Vec::new(), Vec::new());
    let calls = [
        ("pid", json!({})),
        ("fork", json!({})),
        ("fork", json!({"setsid": true})),
        ("fork", json!({"hold_stdout": true})),
    ];
    for server in ["alpha", "beta"] {
        for (tool, arguments) in &calls {
            let exposed = format!("{server}__{tool}");
            let outcome = peer.tool(&exposed, arguments.clone()).await;
            let pid: u32 = outcome.text().parse().unwrap();
            assert!(process_state(pid).is_some(), "{pid} is not running");
            match *tool {
                "pid" => children.push(pid),
                _ => grandchildren.push(pid),
            }
        }
    }
    (children, grandchildren)
}

fn two_servers() -> Setup {
    Setup::new()
        .settings("naming = \"always-prefix\"\n[limits]\nstop_grace = \"2s\"\ndrain = \"2s\"\n")
        .scripted("alpha", &[])
        // This server ignores requests to exit.
        .scripted("beta", &["--ignore-sigterm", "--ignore-eof"])
}

/// SIGTERM ends the gateway, its children and all their descendants.
#[tokio::test]
async fn a11_sigterm_leaves_no_process() {
    let mut gateway = two_servers().serve().await;
    let (children, grandchildren) = family(&gateway).await;
    gateway.process.signal(Signal::TERM);
    let status = gateway.process.wait(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
    // The children are gone already, because the gateway waits for them before it exits.
    gone(&children, false, Duration::from_secs(1)).await;
    gone(&grandchildren, true, Duration::from_secs(2)).await;
}

/// No process survives when the gateway is killed with SIGKILL.
#[tokio::test]
async fn a11_kill_9_leaves_no_process() {
    let mut gateway = two_servers().serve().await;
    let (children, grandchildren) = family(&gateway).await;
    gateway.process.signal(Signal::KILL);
    gateway.process.wait(DEADLINE).await;
    gone(&children, true, Duration::from_secs(5)).await;
    gone(&grandchildren, true, Duration::from_secs(5)).await;
}

/// No process survives when the client of a gateway on stdio closes the connection.
#[tokio::test]
async fn a11_a_stdio_gateway_ends_with_its_client() {
    let (mut client, _dir) = two_servers().stdio();
    client.ask(rpc::hello(LEGACY)).await;
    client
        .send_json(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    let mut pids = Vec::new();
    for (id, name) in [(2, "alpha__pid"), (3, "beta__pid"), (4, "beta__fork")] {
        let call = rpc::message(id, "tools/call", json!({ "name": name }));
        let answer = client.ask(call).await;
        let text = answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        pids.push(text.parse::<u32>().unwrap());
    }
    let status = client.finish(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}");
    gone(&pids, true, Duration::from_secs(2)).await;
}

/// A call in flight is answered before its server is stopped. A listening stream does not delay the gateway's exit.
#[tokio::test]
async fn calls_in_flight_finish_when_the_gateway_stops() {
    let mut gateway = Setup::new()
        .settings("[limits]\nstop_grace = \"2s\"\ndrain = \"20s\"\n")
        .scripted("alpha", &[])
        .serve()
        .await;
    let mut listening = gateway.modern().await;
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    listening.begin("subscriptions/listen", filter).await;
    let mut peer = gateway.legacy().await;
    let call = steps::begin_tool(&mut peer, "slow", json!({ "ms": 1500 })).await;
    gateway.in_flight("alpha", 1, DEADLINE).await;
    gateway.process.signal(Signal::TERM);
    let response = peer.finish(call).await;
    assert!(response["result"].is_object(), "{response}");
    // The gateway exits long before the call timeout, because a listening stream does not count as a call.
    let status = gateway.process.wait(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}: {}", gateway.process.stderr());
}

/// Measures the host's own memory, in all its processes except the servers, after chats that called both servers. The
/// promise is 50 MB. Pages of the program file count in release builds only, since an unoptimised program is several
/// times as large; that holds for the pages that the loader changes too. Everything else must stay below 15 MB.
#[tokio::test]
async fn a14_the_host_with_two_servers_adds_less_than_50_mb() {
    let mut script = Vec::new();
    for n in 0..20 {
        let id = format!("t{n}");
        let tool = if n % 2 == 0 { "echo" } else { "tool_0" };
        script.push(asks(&[(&id, tool, json!({ "n": n }))]));
        script.push(says("Done."));
    }
    let llm = Llm::start(&turns(&script)).await;
    let setup = Setup::new()
        .scripted("alpha", &[])
        .scripted("beta", &["--no-builtin", "--tools", "1"]);
    let gateway = with_agent(setup, &llm, "", "").await;
    for _ in 0..20 {
        assert_eq!(text(&say(&gateway, "Go").await), "Done.");
    }
    let pid = gateway.process.pid();
    let (mut servers, mut own) = (0, vec![pid]);
    for child in steps::children(pid) {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
        match command.contains("testkit-scripted") {
            true => servers += 1,
            false => own.push(child),
        }
    }
    assert_eq!(servers, 2);
    let sum = |field: &str| own.iter().map(|pid| rollup(*pid, field)).sum::<u64>();
    let changed: u64 = own.iter().map(|pid| changed_program(*pid)).sum();
    let (all, anonymous) = (sum("Pss:"), sum("Pss_Anon:") - changed);
    let mb = |kib: u64| kib as f64 * 1024.0 / 1e6;
    println!(
        "the host needs {:.1} MB in {} processes, {:.1} MB of it without its program's pages",
        mb(all),
        own.len(),
        mb(anonymous)
    );
    assert!(mb(anonymous) < 15.0, "private memory: {anonymous} KiB");
    if !cfg!(debug_assertions) {
        assert!(mb(all) < 50.0, "total memory: {all} KiB");
    }
}

/// In a container, the gateway is the first process, to which the kernel gives all orphans. They are reaped.
#[tokio::test]
async fn a_gateway_that_is_the_first_process_reaps_orphans() {
    let setup = Setup::new();
    let wrapper = setup.folder().join("container");
    let script = format!(
        "#!/bin/sh\nexec unshare --pid --fork --mount-proc --kill-child {} \"$@\"\n",
        Bin::path("toolwharf").display()
    );
    std::fs::write(&wrapper, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&wrapper, mode).unwrap();
    let orphans = "i=0; while [ $i -lt 50 ]; do (true &); i=$((i+1)); done; exec \"$0\" \"$@\"";
    let mut entry = scripted("parent", &[]);
    entry["args"] = json!(["-c", orphans, entry["command"], "--name", "parent"]);
    entry["command"] = json!("sh");
    let setup = setup.program(&wrapper).server("parent", entry);
    let mut gateway = setup.connected().await;
    let mut peer = gateway.legacy().await;
    assert!(tools(&mut peer).await.contains(&"echo".to_owned()));
    let first = steps::children(gateway.process.pid());
    let [first] = first[..] else {
        panic!("unshare has one child: {first:?}");
    };
    wait_for("the end of all zombies", DEADLINE, async || {
        let children = steps::children(first);
        children.iter().all(|pid| process_state(*pid) != Some('Z'))
    })
    .await;
    // The first process passes the signal on, and ends as the gateway does.
    let pid = Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let exit = gateway.process.wait(DEADLINE).await;
    assert_eq!(exit.code(), Some(0), "{}", gateway.process.stderr());
}
