//! H01, H03, H13, H14 and H18: registration, status, and refusals.

use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection,
    sqlite::SqliteConnectOptions,
};
use testkit::wait_for_some;
use tokio::net::TcpListener;

use crate::support::{
    Host, LONG_DEADLINE, Platform, Site, body, enforced, gone, instances, refusal, unique, with,
};

on_every_platform!(
    h01_a_registration_makes_an_instance_a_bridge_and_a_row,
    h03_variables_reach_their_server_and_nobody_else,
    h13_the_status_says_how_it_is,
    h14_the_list_has_all_of_them_and_no_secrets,
    h18_the_strongest_allowed_provider_is_chosen_and_says_why,
    bad_registrations_are_refused_by_their_fields,
);

/// Returns the row in the store.
async fn row(site: &Site, id: &str) -> Option<(String, String, String, String)> {
    let columns = "SELECT container_type, status, name, image FROM";
    if let Some(database) = &site.kept.database {
        let mut conn = PgConnection::connect(database.url()).await.unwrap();
        let query = format!("{columns} kb.agent_workspaces WHERE id = $1");
        let row = sqlx::query_as(AssertSqlSafe(query)).bind(id);
        return row.fetch_optional(&mut conn).await.unwrap();
    }
    let file = site.kept.data("toolwharf.db");
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut conn: SqliteConnection = options.connect().await.unwrap();
    let query = format!("{columns} agent_workspaces WHERE id = $1");
    let row = sqlx::query_as(AssertSqlSafe(query)).bind(id);
    let row = row.fetch_optional(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    row
}

/// Returns the number of stored server events.
async fn events(site: &Site) -> i64 {
    if let Some(database) = &site.kept.database {
        let mut conn = PgConnection::connect(database.url()).await.unwrap();
        let count = sqlx::query_scalar("SELECT count(*) FROM kb.server_events");
        return count.fetch_one(&mut conn).await.unwrap();
    }
    let file = site.kept.data("toolwharf.db");
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut conn: SqliteConnection = options.connect().await.unwrap();
    let count = sqlx::query_scalar("SELECT count(*) FROM server_events");
    let count = count.fetch_one(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    count
}

async fn h01_a_registration_makes_an_instance_a_bridge_and_a_row(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let name = unique("h01");
    let entry = with(
        site.entry(&name, &[]),
        json!({"stdio_bridge": true, "restart_policy": "on-failure"}),
    );
    let target = if platform.runs_images() {
        "image"
    } else {
        "command"
    };
    let reply = host.ask("POST", "", entry.clone()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let told = body(&reply);
    let id = told["id"].as_str().unwrap().to_owned();
    let place = format!("/api/v1/mcp/servers/{id}");
    assert_eq!(reply.header("location"), Some(place.as_str()));
    assert_eq!(told["status"], "running", "{told:#}");
    assert_eq!(told["container_type"], "mcp_server");
    assert_eq!(told["restart_policy"], "on-failure");
    assert_eq!(told["stdio_bridge"], true);
    assert_eq!(told[target], entry[target]);
    assert_eq!(host.status(&id).await["container_type"], "mcp_server");
    // The row, once it is written.
    let kept = wait_for_some("the status in the row", LONG_DEADLINE, async || {
        row(&site, &id).await.filter(|row| row.1 == "ready")
    })
    .await;
    let target = entry[target].as_str().unwrap().to_owned();
    assert_eq!(
        kept,
        ("mcp_server".into(), "ready".into(), name.clone(), target)
    );
    // The instance and the bridge to it, also through the gateway.
    assert_eq!(host.instances(&id, &name).len(), 1);
    let echo = host.tool(&id, "echo", json!({"n": 1})).await;
    assert_eq!(echo["structuredContent"]["n"], 1);
    let called = json!({"name": "echo", "arguments": {"n": 2}});
    let answer = host.running.mcp("", "tools/call", called).await;
    assert_eq!(answer.response()["result"]["structuredContent"]["n"], 2);
    // Removed with its registration.
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
    let mine = with(
        site.entry("h03-mine", &[]),
        json!({"environment": {"H03_MINE": "a=b \u{1F511}", "H03_EMPTY": ""}}),
    );
    let mine = host.host(mine).await;
    let other = with(
        site.entry("h03-other", &[]),
        json!({"environment": {"H03_OTHER": "other"}}),
    );
    let other = host.host(other).await;
    let seen = async |id: &str| {
        let env = host.tool(id, "env", json!({})).await;
        let all = env["structuredContent"].as_object().unwrap().clone();
        let ours = all.into_iter().filter(|(name, _)| name.contains("H03"));
        Value::Object(ours.collect())
    };
    assert_eq!(
        seen(&mine).await,
        json!({"H03_MINE": "a=b \u{1F511}", "H03_EMPTY": ""})
    );
    assert_eq!(seen(&other).await, json!({"H03_OTHER": "other"}));
    // Variables of a changed registration.
    let changed = with(
        site.entry("h03-other", &[]),
        json!({"environment": {"H03_NEW": "new"}}),
    );
    host.ok("PUT", &format!("/{other}"), changed).await;
    host.until(&other, "running").await;
    assert_eq!(seen(&other).await, json!({"H03_NEW": "new"}));
    assert_eq!(
        host.status(&mine).await["environment"],
        json!(["H03_EMPTY", "H03_MINE"])
    );
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
    assert_eq!(told["status"], "running");
    assert_eq!(told["restart_count"], 0);
    assert_eq!(told["last_crash"], Value::Null);
    assert_eq!(told["provider"], platform.word());
    assert!(told["uptime_seconds"].is_u64(), "{told:#}");
    let memory = told["usage"]["memory"].as_u64().unwrap();
    assert!((1 << 16..512 << 20).contains(&memory), "{memory}");
    let peak = told["usage"]["memory_peak"].as_u64().unwrap();
    assert!(peak >= memory, "{told:#}");
    assert!(told["tools"].as_u64().unwrap() > 10, "{told:#}");
    assert_eq!((&told["calls"], &told["errors"]), (&json!(1), &json!(0)));

    let crashed = host.call(&id, "crash", json!({"code": 9})).await;
    assert!(!crashed.status.is_success(), "{}", crashed.text());
    host.happened(&id, "ready", 2).await;
    let told = host.until(&id, "running").await;
    assert_eq!(told["restart_count"], 1);
    let crash = &told["last_crash"];
    assert_eq!(
        (&crash["exit_code"], &crash["signal"]),
        (&json!(9), &Value::Null)
    );
    assert_eq!(crash["out_of_memory"], false);
    assert!(
        crash["stderr"].as_str().unwrap().contains("hello from h13"),
        "{crash}"
    );
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = crash["at"]
        .as_str()
        .unwrap()
        .parse::<store::Time>()
        .unwrap();
    let age = now.unwrap().as_secs() - u64::try_from(at.timestamp()).unwrap();
    assert!(age < LONG_DEADLINE.as_secs(), "{age}");
    assert_eq!((&told["calls"], &told["errors"]), (&json!(2), &json!(1)));
    assert_eq!(told["error_rate"], 0.5);

    let stopped = host.order(&id, "stop").await;
    assert_eq!(stopped["status"], "stopped");
    assert_eq!(
        (&stopped["uptime_seconds"], &stopped["usage"]),
        (&Value::Null, &Value::Null)
    );
    let refused = host.call(&id, "echo", json!({})).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(host.order(&id, "start").await["status"], "running");
    let missing = host.ask("GET", "/h13-missing", Value::Null).await;
    assert_eq!(missing.status, 404);
    host.stop().await;
}

async fn h14_the_list_has_all_of_them_and_no_secrets(platform: Platform) {
    const SECRET: &str = "sw0rdf1sh-h14";
    let site = Site::new(platform).await;
    let host = site.start().await;
    let secret = with(
        site.entry("h14-secret", &["--banner", SECRET]),
        json!({"environment": {"H14_TOKEN": SECRET}, "resource_limits": {"memory": "256M"}}),
    );
    let secret = host.host(secret).await;
    let stopped = host.host(site.entry("h14-stopped", &[])).await;
    host.order(&stopped, "stop").await;
    let broken = host
        .register(site.entry("h14-broken", &["--exit-at-start"]))
        .await;
    // A crash produces a lot of output.
    host.call(&secret, "crash", json!({})).await;
    host.happened(&secret, "ready", 2).await;
    let list = host.ok("GET", "", Value::Null).await;
    let servers = list["servers"].as_array().unwrap();
    let by_name = |name: &str| servers.iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(servers.len(), 3, "{list:#}");
    assert_eq!(by_name("h14-stopped")["status"], "stopped");
    assert_eq!(by_name("h14-broken")["status"], "backoff");
    assert_eq!(by_name("h14-broken")["id"], broken["id"]);
    let told = by_name("h14-secret");
    assert!(
        ["running", "starting"].contains(&told["status"].as_str().unwrap()),
        "{told:#}"
    );
    assert_eq!(told["environment"], json!(["H14_TOKEN"]));
    assert_eq!(told["resource_limits"]["memory"], 256 << 20);
    let target = if platform.runs_images() {
        "image"
    } else {
        "command"
    };
    assert!(
        told[target].as_str().unwrap().contains("scripted"),
        "{told:#}"
    );
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
    let refused = with(
        site.entry("h14-secret", &[SECRET]),
        json!({"environment": {"T": SECRET}, "cpu": 1}),
    );
    let refused = host.ask("POST", "", refused).await;
    assert_eq!(refused.status, 422);
    assert!(!refused.text().contains(SECRET), "{}", refused.text());
    let log = host.stop().await;
    assert!(!log.contains(SECRET), "{log}");
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
    // The default: providers weaker than gVisor run commands only.
    let default = ["gvisor", "firecracker", "e2b", "process"];
    let site = match platform {
        Platform::Runc
        | Platform::Swarm
        | Platform::SwarmGvisor
        | Platform::Kubernetes
        | Platform::KubernetesGvisor => Site::new(platform).await,
        _ => Site::with(platform, "", &default).await,
    };
    let host = site.start().await;
    let id = host.host(site.entry("h18", &[])).await;
    let told = host.status(&id).await;
    assert_eq!(told["provider"], platform.word());
    let why = told["provider_reason"].as_str().unwrap();
    let kind = match platform {
        Platform::Process | Platform::Postgres => "bubblewrap",
        Platform::Runc => "runc",
        Platform::Gvisor => "gVisor",
        Platform::Swarm | Platform::SwarmGvisor => "Docker Swarm",
        Platform::Kubernetes => "the default runtime on Kubernetes",
        Platform::KubernetesGvisor => "RuntimeClass `gvisor` on Kubernetes",
    };
    assert!(why.contains("the strongest") && why.contains(kind), "{why}");
    if platform.runs_images() {
        assert_eq!(
            enforced(&told, "kernel").0,
            matches!(
                platform,
                Platform::Gvisor | Platform::SwarmGvisor | Platform::KubernetesGvisor
            ),
            "{told:#}"
        );
    }
    // An explicit provider is used, or the registration fails.
    let asked = with(
        site.entry("h18-asked", &[]),
        json!({"provider": platform.word()}),
    );
    let asked = host.host(asked).await;
    let told = host.status(&asked).await;
    assert!(
        told["provider_reason"]
            .as_str()
            .unwrap()
            .contains("asked for"),
        "{told:#}"
    );
    let refused = async |provider: &str, words: &str| {
        let entry = with(
            site.entry("h18-refused", &[]),
            json!({"provider": provider}),
        );
        let reply = host.ask("POST", "", entry).await;
        let (status, pointers) = refusal(&reply);
        assert_eq!(status, 422, "{provider}: {}", reply.text());
        assert!(
            pointers.contains(&"/provider".to_owned()),
            "{}",
            reply.text()
        );
        assert!(reply.text().contains(words), "{}", reply.text());
    };
    match platform {
        Platform::Process | Platform::Postgres => {
            refused("runc", "[hosting] providers").await;
            refused("gvisor", "runs images").await;
        }
        Platform::Runc => {
            refused("gvisor", "[hosting] providers").await;
            refused("process", "not images").await;
        }
        Platform::Gvisor => {
            refused("runc", "[hosting] providers").await;
            refused("e2b", "not set up here").await;
            refused("process", "not images").await;
        }
        Platform::Swarm
        | Platform::SwarmGvisor
        | Platform::Kubernetes
        | Platform::KubernetesGvisor => {
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
        assert!(
            why.contains("kata-fc") && why.contains("`runc` are not used here"),
            "{why}"
        );
        host.stop().await;
    }
    if platform == Platform::Gvisor {
        let site = Site::with(platform, "", &["runc", "gvisor"]).await;
        let (host, id) = site.hosting("h18-both", &[]).await;
        assert_eq!(host.status(&id).await["provider"], "gvisor");
        let weaker = with(site.entry("h18-weaker", &[]), json!({"provider": "runc"}));
        let weaker = host.host(weaker).await;
        assert_eq!(host.status(&weaker).await["provider"], "runc");
        host.stop().await;
    }
    if !platform.runs_images() {
        let site = Site::with(platform, "", &["gvisor"]).await;
        let host = site.start().await;
        let reply = host.ask("POST", "", site.entry("h18-none", &[])).await;
        assert_eq!(refusal(&reply), (422, vec!["/provider".to_owned()]));
        let words = reply.text();
        assert!(
            words.contains("provider `process` is not used here"),
            "{words}"
        );
        host.stop().await;
    }
}

async fn bad_registrations_are_refused_by_their_fields(platform: Platform) {
    let site = Site::new(platform).await;
    let host = site.start().await;
    let good = || site.entry("bad", &[]);
    for (members, pointer) in [
        (json!({"name": null}), "/name"),
        (json!({"name": ""}), "/name"),
        (json!({"image": null, "command": null}), "/image"),
        (json!({"volumes": ["/data/../etc"]}), "/volumes/0"),
        (json!({"volumes": ["/data", "relative"]}), "/volumes/1"),
        (json!({"volumes": ["/proc/x"]}), "/volumes/0"),
        (json!({"volumes": ["/data", "/data"]}), "/volumes"),
        (
            json!({"resource_limits": {"cpu": 0}}),
            "/resource_limits/cpu",
        ),
        (
            json!({"resource_limits": {"cpu": 1_000_000_000}}),
            "/resource_limits/cpu",
        ),
        (
            json!({"resource_limits": {"cpu": "1e3"}}),
            "/resource_limits/cpu",
        ),
        (
            json!({"resource_limits": {"memory": 0}}),
            "/resource_limits/memory",
        ),
        (
            json!({"resource_limits": {"memory": "1000000000G"}}),
            "/resource_limits/memory",
        ),
        (
            json!({"resource_limits": {"disk": "0"}}),
            "/resource_limits/disk",
        ),
        (
            json!({"resource_limits": {"pids": 0}}),
            "/resource_limits/pids",
        ),
        (
            json!({"resource_limits": {"gpu": 1}}),
            "/resource_limits/gpu",
        ),
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
    let all = with(
        good(),
        json!({"volumes": [".."], "ports": [0], "resource_limits": {"cpu": -1}}),
    );
    let (_, mut pointers) = refusal(&host.ask("POST", "", all).await);
    pointers.sort_unstable();
    assert_eq!(pointers, ["/ports/0", "/resource_limits/cpu", "/volumes/0"]);
    for wrong in [json!([]), json!("x")] {
        let reply = host.ask("POST", "", wrong).await;
        assert_eq!(reply.status, 422, "{}", reply.text());
    }
    // Errors that only the runtime can detect. Nothing of the registration remains.
    let only_there = if platform.runs_images() {
        json!({"image": "toolwharf-test/no-such-image:1"})
    } else {
        json!({"command": "/usr/bin/no-such-program"})
    };
    let (field, value) = only_there.as_object().unwrap().iter().next().unwrap();
    let reply = host.ask("POST", "", with(good(), only_there.clone())).await;
    let words = reply.text();
    assert_eq!(refusal(&reply), (422, vec![format!("/{field}")]), "{words}");
    assert!(words.contains(value.as_str().unwrap()), "{words}");
    if !platform.runs_images() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let entry = json!({"stdio_bridge": false, "ports": [port], "network": "open"});
        let reply = host.ask("POST", "", with(good(), entry)).await;
        let words = reply.text();
        assert_eq!(refusal(&reply), (422, vec!["/ports".to_owned()]), "{words}");
        assert!(words.contains(&port.to_string()), "{words}");
        let image = json!({"command": null, "image": "toolwharf-test/scripted"});
        let reply = host.ask("POST", "", with(good(), image)).await;
        let words = reply.text();
        assert_eq!(
            refusal(&reply),
            (422, vec!["/provider".to_owned()]),
            "{words}"
        );
    }
    let list = host.ok("GET", "", Value::Null).await;
    assert_eq!(list["servers"], json!([]));
    // Its events are removed too, and no restart is announced.
    assert_eq!(events(&site).await, 0);
    let log = host.running.process.stderr();
    assert!(!log.contains("next attempt in"), "{log}");
    // A name can be registered once.
    let id = host.host(good()).await;
    let reply = host.ask("POST", "", good()).await;
    assert_eq!(
        refusal(&reply),
        (409, vec!["/name".to_owned()]),
        "{}",
        reply.text()
    );
    assert_eq!(instances(platform, &id, "bad").len(), 1);
    let list = host.ok("GET", "", Value::Null).await;
    assert_eq!(list["servers"].as_array().unwrap().len(), 1, "{list:#}");
    host.stop().await;
}
