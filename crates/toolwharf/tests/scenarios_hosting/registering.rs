//! H01, H03, H13, H14 and H18: registration, status, and refusals.

use serde_json::{Value, json};
use testkit::{postgres::Database, wait_for_some};
use tokio::net::TcpListener;

use crate::{
    common::{checks, rows},
    support::{
        Host, LONG_DEADLINE, Platform, Site, assert_enforced, body, gone, instances, refusal,
        unique, with,
    },
};

on_every_platform!(
    h01_a_registration_makes_an_instance_a_bridge_and_a_row,
    h03_variables_reach_their_server_and_nobody_else,
    h13_the_status_says_how_it_is,
    h14_the_list_has_all_of_them_and_no_secrets,
    h18_the_strongest_allowed_provider_is_chosen_and_says_why,
    bad_registrations_are_refused_by_their_fields,
);

/// Returns the only column of a query on the store.
async fn column(site: &Site, query: &str) -> Vec<Option<String>> {
    let url = site.kept.database.as_ref().map(Database::url);
    rows::column(&site.kept.data(""), url, query).await
}

/// Returns the row of a server in the store: type, status, name and target.
async fn row(site: &Site, id: &str) -> Option<String> {
    let columns = "container_type || ' ' || status || ' ' || name || ' ' || image";
    let query = format!("SELECT {columns} FROM kb.agent_workspaces WHERE id = '{id}'");
    column(site, &query).await.pop().flatten()
}

/// Returns the name of the registration field that says what to run.
fn target(platform: Platform) -> &'static str {
    match platform.runs_images() {
        true => "image",
        false => "command",
    }
}

async fn h01_a_registration_makes_an_instance_a_bridge_and_a_row(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let name = unique("h01");
    let members = json!({"stdio_bridge": true, "restart_policy": "on-failure"});
    let entry = site.entry_with(&name, &[], members);
    let target = target(platform);
    let reply = host.ask("POST", "", entry.clone()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let told = body(&reply);
    let id = told["id"].as_str().unwrap().to_owned();
    let place = format!("/api/v1/mcp/servers/{id}");
    assert_eq!(reply.header("location"), Some(place.as_str()));
    let expected = json!({
        "status": "running", "state": "ready", "container_type": "mcp_server", "restart_policy": "on-failure", "stdio_bridge": true,
        target: entry[target],
    });
    checks::members(&told, expected);
    assert_eq!(host.status(&id).await["container_type"], "mcp_server");
    // The database has the same values, once the row is written.
    let kept = wait_for_some("the status in the row", LONG_DEADLINE, async || {
        row(&site, &id).await.filter(|row| row.contains(" ready "))
    })
    .await;
    let target = entry[target].as_str().unwrap();
    assert_eq!(kept, format!("mcp_server ready {name} {target}"));
    // One instance runs, and can be called through the bridge and through the gateway's endpoint.
    assert_eq!(host.instances(&id, &name).len(), 1);
    host.echoes(&id).await;
    host.gateway_echoes().await;
    // The instance is removed with its registration.
    let removed = host.ask("DELETE", &format!("/{id}"), Value::Null).await;
    assert_eq!(removed.status, 204);
    gone(platform, &id, &name).await;
    assert!(row(&site, &id).await.is_none());
    host.stop().await;
}

async fn h03_variables_reach_their_server_and_nobody_else(platform: Platform) {
    let mut site = Site::new(platform).await;
    site.kept.set_env("H03_OF_THE_PRODUCT", Some("product"));
    let host = site.start().await;
    let entry = |name: &str, variables: Value| {
        site.entry_with(name, &[], json!({"environment": variables}))
    };
    let variables = json!({"H03_MINE": "a=b \u{1F511}", "H03_EMPTY": ""});
    let mine = host.host(entry("h03-mine", variables.clone())).await;
    let others = json!({"H03_OTHER": "other"});
    let other = host.host(entry("h03-other", others.clone())).await;
    let seen = async |id: &str| {
        let env = host.tool(id, "env", json!({})).await;
        let all = env["structuredContent"].as_object().unwrap().clone();
        let ours = all.into_iter().filter(|(name, _)| name.contains("H03"));
        Value::Object(ours.collect())
    };
    assert_eq!(seen(&mine).await, variables);
    assert_eq!(seen(&other).await, others);
    // A changed registration replaces the variables.
    let changed = json!({"H03_NEW": "new"});
    let entry = entry("h03-other", changed.clone());
    host.ok("PUT", &format!("/{other}"), entry).await;
    host.until(&other, "running").await;
    assert_eq!(seen(&other).await, changed);
    let names = json!({"environment": ["H03_EMPTY", "H03_MINE"]});
    checks::members(&host.status(&mine).await, names);
    host.stop().await;
}

async fn h13_the_status_says_how_it_is(platform: Platform) {
    let site = Site::new(platform).await;
    let (host, id) = site
        .hosting("h13", &["--stderr-at-start", "hello from h13"])
        .await;
    host.tool(&id, "burn", json!({"ms": 300})).await;
    let told = wait_for_some("its use", LONG_DEADLINE, async || {
        let told = host.status(&id).await;
        (told["usage"]["cpu_seconds"].as_f64()? > 0.0).then_some(told)
    })
    .await;
    let expected = json!({
        "status": "running", "restart_count": 0, "last_crash": null, "provider": platform.word(), "calls": 1, "errors": 0,
    });
    checks::members(&told, expected);
    assert!(told["uptime_seconds"].is_u64(), "{told:#}");
    let memory = told["usage"]["memory"].as_u64().unwrap();
    assert!((1 << 16..512 << 20).contains(&memory), "{memory}");
    let peak = told["usage"]["memory_peak"].as_u64().unwrap();
    assert!(peak >= memory, "{told:#}");
    assert!(told["tools"].as_u64().unwrap() > 10, "{told:#}");

    let crashed = host.call(&id, "crash", json!({"code": 9})).await;
    assert!(!crashed.status.is_success(), "{}", crashed.text());
    let told = host.is_back(&id, 2).await;
    let expected = json!({"restart_count": 1, "calls": 2, "errors": 1, "error_rate": 0.5});
    checks::members(&told, expected);
    let crash = &told["last_crash"];
    let expected = json!({"exit_code": 9, "signal": null, "out_of_memory": false});
    checks::members(crash, expected);
    checks::string(&crash["stderr"], &["hello from h13"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at: store::Time = crash["at"].as_str().unwrap().parse().unwrap();
    let age = now.unwrap().as_secs() - u64::try_from(at.timestamp()).unwrap();
    assert!(age < LONG_DEADLINE.as_secs(), "{age}");

    let stopped = host.order(&id, "stop").await;
    let expected = json!({
        "status": "stopped", "state": "stopped", "uptime_seconds": null, "usage": null,
    });
    checks::members(&stopped, expected);
    let refused = host.call(&id, "echo", json!({})).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(host.order(&id, "start").await["status"], "running");
    let missing = host.ask("GET", "/h13-missing", Value::Null).await;
    assert_eq!(missing.status, 404);
    host.stop().await;
}

async fn h14_the_list_has_all_of_them_and_no_secrets(platform: Platform) {
    const SECRET: &str = "sw0rdf1sh-h14";
    let (site, host) = Site::started(platform).await;
    let members =
        json!({"environment": {"H14_TOKEN": SECRET}, "resource_limits": {"memory": "256M"}});
    let entry = site.entry_with("h14-secret", &["--banner", SECRET], members);
    let secret = host.host(entry).await;
    let stopped = host.host(site.entry("h14-stopped", &[])).await;
    host.order(&stopped, "stop").await;
    let broken = host
        .register(site.entry("h14-broken", &["--exit-at-start"]))
        .await;
    // A crash produces a lot of output.
    host.call(&secret, "crash", json!({})).await;
    host.happened(&secret, "ready", 2).await;
    let servers = host.list().await;
    let by_name = |name: &str| servers.iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(servers.len(), 3, "{servers:#?}");
    assert_eq!(by_name("h14-stopped")["status"], "stopped");
    let expected = json!({"status": "backoff", "id": broken["id"]});
    checks::members(by_name("h14-broken"), expected);
    let told = by_name("h14-secret");
    assert!(
        ["running", "starting"].contains(&told["status"].as_str().unwrap()),
        "{told:#}"
    );
    assert_eq!(told["environment"], json!(["H14_TOKEN"]));
    assert_eq!(told["resource_limits"]["memory"], 256 << 20);
    checks::string(&told[target(platform)], &["scripted"]);
    // The secret is in no response, whatever is requested.
    for path in [
        "",
        "?limit=200",
        "/h14-secret",
        "/h14-secret/events?limit=200",
    ] {
        let text = host.ask("GET", path, Value::Null).await.text();
        assert!(!text.contains(SECRET), "{path}: {text}");
    }
    let members = json!({"environment": {"T": SECRET}, "cpu": 1});
    let refused = site.entry_with("h14-secret", &[SECRET], members);
    let refused = host.ask("POST", "", refused).await;
    checks::reply(&refused, 422, &[]);
    checks::lacks(refused.text(), &[SECRET]);
    checks::lacks(&host.stop().await, &[SECRET]);
}

/// Returns the reason shown for a server that cannot be started.
async fn reason(host: &Host, entry: Value) -> String {
    let told = host.register(entry).await;
    assert_eq!(told["status"], "backoff", "{told:#}");
    let id = told["id"].as_str().unwrap();
    host.ok("DELETE", &format!("/{id}"), Value::Null).await;
    told["reason"].as_str().unwrap_or_default().to_owned()
}

async fn h18_the_strongest_allowed_provider_is_chosen_and_says_why(platform: Platform) {
    // By default, providers weaker than gVisor run only commands, not images.
    let default = ["gvisor", "firecracker", "e2b", "process"];
    let site = match platform {
        Platform::Process | Platform::Postgres | Platform::Gvisor => {
            Site::with(platform, "", &default).await
        }
        _ => Site::new(platform).await,
    };
    let host = site.start().await;
    let id = host.host(site.entry("h18", &[])).await;
    let told = host.status(&id).await;
    assert_eq!(told["provider"], platform.word());
    let kind = match platform {
        Platform::Process | Platform::Postgres => "bubblewrap",
        Platform::Runc => "runc",
        Platform::Gvisor => "gVisor",
        Platform::Swarm | Platform::SwarmGvisor => "Docker Swarm",
        Platform::Kubernetes => "the default runtime on Kubernetes",
        Platform::KubernetesGvisor => "RuntimeClass `gvisor` on Kubernetes",
    };
    checks::string(&told["provider_reason"], &["the strongest", kind]);
    if platform.runs_images() {
        assert_enforced(&told, "kernel", platform.is_gvisor(), &[]);
    }
    // An explicit provider is used, or the registration fails.
    let of = |name: &str, provider: &str| site.entry_with(name, &[], json!({"provider": provider}));
    let asked = host.host(of("h18-asked", platform.word())).await;
    let told = host.status(&asked).await;
    checks::string(&told["provider_reason"], &["asked for"]);
    let refused = async |provider: &str, words: &str| {
        let reply = host.ask("POST", "", of("h18-refused", provider)).await;
        let (_, pointers) = refusal(&reply);
        checks::reply(&reply, 422, &[words]);
        assert!(pointers.contains(&"/provider".to_owned()), "{pointers:?}");
    };
    match platform {
        Platform::Process | Platform::Postgres => {
            refused("runc", "[hosting] providers").await;
            refused("gvisor", "runs images").await;
        }
        Platform::Gvisor => {
            refused("runc", "[hosting] providers").await;
            refused("e2b", "not set up").await;
            refused("process", "not images").await;
        }
        _ => {
            refused("gvisor", "[hosting] providers").await;
            refused("process", "not images").await;
        }
    }
    refused("chroot", "gvisor").await;
    host.stop().await;

    // If a provider does not work, no weaker one replaces it.
    if platform.is_docker() {
        let site = Site::with(platform, "", &["firecracker"]).await;
        let host = site.start().await;
        let why = reason(&host, site.entry("h18-none", &[])).await;
        checks::contains(&why, &["kata-fc", "`runc` are not enabled"]);
        host.stop().await;
    }
    if platform == Platform::Gvisor {
        let site = Site::with(platform, "", &["runc", "gvisor"]).await;
        let (host, id) = site.hosting("h18-both", &[]).await;
        assert_eq!(host.status(&id).await["provider"], "gvisor");
        let weaker = host.host(of("h18-weaker", "runc")).await;
        assert_eq!(host.status(&weaker).await["provider"], "runc");
        host.stop().await;
    }
    if !platform.runs_images() {
        let site = Site::with(platform, "", &["gvisor"]).await;
        let host = site.start().await;
        let words = host.refused(site.entry("h18-none", &[]), "/provider").await;
        checks::contains(&words, &["provider `process` is not enabled"]);
        host.stop().await;
    }
}

async fn bad_registrations_are_refused_by_their_fields(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let good = || site.entry("bad", &[]);
    let limit = |what: &str, value: Value| json!({"resource_limits": {what: value}});
    for (members, pointer) in [
        (json!({"name": null}), "/name"),
        (json!({"name": ""}), "/name"),
        (json!({"image": null, "command": null}), "/image"),
        (json!({"volumes": ["/data/../etc"]}), "/volumes/0"),
        (json!({"volumes": ["/data", "relative"]}), "/volumes/1"),
        (json!({"volumes": ["/proc/x"]}), "/volumes/0"),
        (json!({"volumes": ["/data", "/data"]}), "/volumes"),
        (limit("cpu", json!(0)), "/resource_limits/cpu"),
        (limit("cpu", json!(1_000_000_000)), "/resource_limits/cpu"),
        (limit("cpu", json!("1e3")), "/resource_limits/cpu"),
        (limit("memory", json!(0)), "/resource_limits/memory"),
        (
            limit("memory", json!("1000000000G")),
            "/resource_limits/memory",
        ),
        (limit("disk", json!("0")), "/resource_limits/disk"),
        (limit("pids", json!(0)), "/resource_limits/pids"),
        (limit("gpu", json!(1)), "/resource_limits/gpu"),
        (json!({"ports": [0]}), "/ports/0"),
        (json!({"ports": [70000]}), "/ports/0"),
        (json!({"ports": [80, 80]}), "/ports"),
        (
            json!({"ports": ["1:80", {"host": 1, "container": 81}]}),
            "/ports",
        ),
        (json!({"ports": ["0:80"]}), "/ports/0"),
        (json!({"ports": [{"host": 80}]}), "/ports/0"),
        (json!({"stdio_bridge": false}), "/ports"),
        (json!({"stdio_bridge": "yes"}), "/stdio_bridge"),
        (json!({"restart_policy": "sometimes"}), "/restart_policy"),
        (json!({"provider": "chroot"}), "/provider"),
        (json!({"environment": {"A=B": "x"}}), "/environment/A=B"),
        (json!({"environment": {"A": 1}}), "/environment/A"),
        (
            json!({"mounts": [{"host": "/etc", "path": "/mnt"}]}),
            "/mounts/0",
        ),
        (json!({"network": "lan"}), "/network"),
        (json!({"network": {"allow": ["a b"]}}), "/network/allow/0"),
        (json!({"heartbeat": {"misses": 0}}), "/heartbeat/misses"),
        (json!({"max_concurrency": 0}), "/max_concurrency"),
        (json!({"call_timeout_ms": 0}), "/call_timeout_ms"),
        (json!({"privileged": true}), "/privileged"),
    ] {
        let reply = host.ask("POST", "", with(good(), members.clone())).await;
        let (status, pointers) = refusal(&reply);
        assert_eq!(status, 422, "{members}: {}", reply.text());
        assert_eq!(pointers, [pointer], "{members}: {}", reply.text());
    }
    // All errors are reported at once.
    let all = json!({"volumes": [".."], "ports": [0], "resource_limits": {"cpu": -1}});
    let all = host.ask("POST", "", with(good(), all)).await;
    let (_, mut pointers) = refusal(&all);
    pointers.sort_unstable();
    assert_eq!(pointers, ["/ports/0", "/resource_limits/cpu", "/volumes/0"]);
    for wrong in [json!([]), json!("x")] {
        checks::reply(&host.ask("POST", "", wrong).await, 422, &[]);
    }
    // Only the runtime can detect these errors. Nothing of the registration remains.
    let missing = match platform.runs_images() {
        true => "toolwharf-test/no-such-image:1",
        false => "/usr/bin/no-such-program",
    };
    let field = target(platform);
    let entry = with(good(), json!({field: missing}));
    let words = host.refused(entry, &format!("/{field}")).await;
    checks::contains(&words, &[missing]);
    if !platform.runs_images() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let entry = json!({"stdio_bridge": false, "ports": [port], "network": "open"});
        let words = host.refused(with(good(), entry), "/ports").await;
        checks::contains(&words, &[&port.to_string()]);
        let image = json!({"command": null, "image": "toolwharf-test/scripted"});
        host.refused(with(good(), image), "/provider").await;
    }
    assert_eq!(host.list().await, Vec::<Value>::new());
    // The registration's events are removed, too, and no restart is announced.
    let events = column(&site, "SELECT kind FROM kb.server_events").await;
    assert_eq!(events, Vec::<Option<String>>::new());
    let log = host.running.process.stderr();
    assert!(!log.contains("next attempt in"), "{log}");
    // A name can be registered once.
    let id = host.host(good()).await;
    let reply = host.ask("POST", "", good()).await;
    let words = reply.text();
    assert_eq!(refusal(&reply), (409, vec!["/name".to_owned()]), "{words}");
    assert_eq!(instances(platform, &id, "bad").len(), 1);
    let list = host.list().await;
    assert_eq!(list.len(), 1, "{list:#?}");
    host.stop().await;
}
