//! H16 and H17: the limits of a server, and what happens if it exceeds them.

use serde_json::{Value, json};
use tokio::time::Instant;

use testkit::Bin;

use crate::{
    common::checks,
    support::{Host, Platform, Site, assert_enforced},
};

on_every_platform!(
    h16_the_defaults_are_enforced,
    h17_the_given_limits_are_enforced,
);

/// Asserts which limits are reported as enforced. Returns the status.
async fn all_hold(host: &Host, id: &str, platform: Platform) -> Value {
    let told = host.status(id).await;
    for what in [
        "cpu",
        "memory",
        "disk",
        "pids",
        "filesystem",
        "network",
        "privileges",
    ] {
        // A cluster does not report whether it enforces these, and a swarm node's volumes have no limit.
        let is_unknown = match what {
            "pids" | "network" => platform.is_kubernetes(),
            "disk" => {
                told["volumes"] != json!([]) && (platform.is_kubernetes() || platform.is_swarm())
            }
            _ => false,
        };
        assert_enforced(&told, what, !is_unknown, &[]);
    }
    if !platform.runs_images() {
        assert_enforced(&told, "system calls", true, &["io_uring"]);
    }
    told
}

async fn is_killed_for_memory(host: &Host, id: &str, mib: u64) {
    let told = (
        "out_of_memory",
        "outOfMemory",
        "(out of memory): it needs more than its memory limit of ",
    );
    is_killed(host, id, ("alloc", json!({"mib": mib})), told).await;
}

/// Makes a server exceed a limit until it is killed for it, and waits for the restart. `status` and `event` name fields
/// that must be true in the server's status and in the event; the cause must contain `word`.
async fn is_killed(
    host: &Host,
    id: &str,
    (tool, arguments): (&str, Value),
    (status, event, word): (&str, &str, &str),
) {
    let crashes = host.events_of(id, "crashed").await.len();
    let taken = host.call(id, tool, arguments).await;
    assert!(!taken.status.is_success(), "not limited: {}", taken.text());
    host.happened(id, "crashed", crashes + 1).await;
    let told = host.until(id, "running").await;
    assert_eq!(told["last_crash"][status], true, "{told:#}");
    checks::string(&told["last_crash"]["cause"], &[word]);
    let crashed = host.events_of(id, "crashed").await;
    let last = &crashed.last().unwrap()["detail"];
    assert_eq!(last[event], true, "{crashed:?}");
    host.echoes(id).await;
}

async fn h16_the_defaults_are_enforced(platform: Platform) {
    let site = Site::new(platform).await;
    let (host, id) = site.hosting("h16", &[]).await;
    let told = all_hold(&host, &id, platform).await;
    let expected = json!({"cpu": 0.5, "memory": 512 << 20, "disk": 1 << 30});
    checks::members(&told["resource_limits"], expected);
    // The limit is half a core, whatever the machine has. Without the limit, the tool would use more than one core.
    let used = async || {
        let told = host.status(&id).await;
        told["usage"]["cpu_seconds"].as_f64().unwrap()
    };
    if platform == Platform::KubernetesGvisor {
        // In the test cluster, gVisor enforces no limits.
        cannot_write(&host, &id).await;
        host.stop().await;
        return;
    }
    let before = used().await;
    let start = Instant::now();
    let burned = host.call(&id, "burn", json!({"ms": 3000})).await;
    assert_eq!(burned.status, 200, "{}", burned.text());
    let after = used().await;
    let time = start.elapsed().as_secs_f64();
    let used = after - before;
    assert!(used < 0.6 * time + 0.3, "{used} s of {time} s");
    assert!(used > 0.05, "the CPU time is not counted: {used} s");
    is_killed_for_memory(&host, &id, 600).await;
    cannot_write(&host, &id).await;
    host.stop().await;
}

/// Asserts that the server cannot write files outside its own directories.
async fn cannot_write(host: &Host, id: &str) {
    let path = json!({"path": "/usr/h16", "text": "x"});
    let written = host.tool(id, "write", path).await;
    assert_eq!(written["isError"], true, "{written}");
}

async fn h17_the_given_limits_are_enforced(platform: Platform) {
    let (site, host) = Site::started(platform).await;
    let given = json!({"resource_limits": {"cpu": "1", "memory": "1G"}});
    let wide = host.host(site.entry_with("h17", &[], given)).await;
    let told = all_hold(&host, &wide, platform).await;
    let expected = json!({"cpu": 1.0, "memory": 1 << 30});
    checks::members(&told["resource_limits"], expected);
    let allocated = host.said(&wide, "alloc", json!({"mib": 700})).await;
    assert_eq!(allocated, "700 MiB");
    if platform.is_kubernetes() {
        if platform == Platform::Kubernetes {
            is_killed_for_memory(&host, &wide, 1200).await;
        }
        // A strict registration is refused, because no cluster guarantees these limits.
        let strict = json!({"resource_limits": {"strict": true}});
        let strict = site.entry_with("h17-strict", &[], strict);
        let refused = host.ask("POST", "", strict).await;
        checks::reply(&refused, 422, &["podPidsLimit"]);
        host.stop().await;
        return;
    }
    is_killed_for_memory(&host, &wide, 1200).await;

    // gVisor itself needs more processes than this.
    let few = !matches!(platform, Platform::Gvisor | Platform::SwarmGvisor);
    let given = json!({"volumes": ["/data"], "resource_limits": {
        "memory": "160M", "disk": "32M", "pids": if few { 64 } else { 300 },
    }});
    let narrow = site.entry_with("h17-narrow", &[], given);
    let narrow = host.host(narrow).await;
    all_hold(&host, &narrow, platform).await;
    host.mark(&narrow).await;
    if platform.is_swarm() {
        let given = json!({"volumes": ["/data"], "resource_limits": {"strict": true}});
        let strict = site.entry_with("h17-disk", &[], given);
        host.refused(strict, "/resource_limits/disk").await;
    } else {
        let path = json!({"path": "/data/x", "mib": 64});
        let filled = host.said(&narrow, "fill", path).await;
        let (written, why) = filled.split_once(':').unwrap_or((&filled, ""));
        let written: u64 = written.parse().unwrap();
        assert!(written < 32 && why.contains("No space left"), "{filled}");
    }
    if few {
        let forked = host.said(&narrow, "forks", json!({"most": 100})).await;
        let (started, _) = forked.split_once(':').unwrap_or((&forked, ""));
        assert!((20..64).contains(&started.parse().unwrap()), "{forked}");
    } else {
        let given = json!({"resource_limits": {"pids": 64}});
        let told = host.register(site.entry_with("h17-few", &[], given)).await;
        assert_enforced(&told, "pids", false, &["gVisor needs"]);
        let given = json!({"resource_limits": {"pids": 64, "strict": true}});
        let strict = site.entry_with("h17-strict", &[], given);
        host.refused(strict, "/resource_limits/pids").await;
    }
    // The server that reached its limit is contained and not killed, and another server is not affected.
    assert!(host.is_marked(&narrow).await);
    host.tool(&wide, "echo", json!({})).await;
    host.order(&narrow, "restart").await;
    is_killed_for_memory(&host, &narrow, 300).await;
    if !platform.runs_images() {
        let bomb = ("bomb", json!({"ms": 60_000}));
        let told = ("fork_bomb", "forkBomb", "fork bomb");
        is_killed(&host, &narrow, bomb, told).await;
    }
    host.stop().await;
}

/// A server that repeatedly requests a forbidden host does not flood the log.
#[tokio::test]
async fn refused_egress_is_logged_once_a_second() {
    let site = Site::new(Platform::Process).await;
    let host = site.start().await;
    let script = r#"
import os, socket, sys
host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
for n in range(300):
    proxy = socket.create_connection((host, int(port)))
    proxy.sendall(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n")
    while proxy.recv(1000): pass
    proxy.close()
os.execv(sys.argv[1], sys.argv[1:])
"#;
    let entry = json!({
        "name": "egress",
        "command": "python3",
        "args": ["-c", script, Bin::path("testkit-scripted"), "--name", "egress"],
        "network": {"allow": ["127.0.0.2"]},
    });
    let start = Instant::now();
    host.host(entry).await;
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap();
    let stderr = host.running.process.stderr();
    let lines: Vec<_> = stderr
        .lines()
        .filter(|line| line.contains("egress refused"))
        .collect();
    assert!((1..=seconds + 1).contains(&lines.len()), "{lines:?}");
    assert!(lines[0].contains("`127.0.0.1:9`"), "{lines:?}");
    host.stop().await;
}
