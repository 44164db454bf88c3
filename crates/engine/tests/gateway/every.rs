//! Rules for every server, however it is declared or reached.

use std::time::Duration;

use engine::Command;
use model::{Declared, NativeName, ServerSpec, StartPolicy};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    ERAS, World, hosted, owned, quiet, renewed, server_name, stdio, takes, until, url,
};

/// Callers wait for a server that is restarted immediately.
#[tokio::test(start_paused = true)]
async fn h09_callers_wait_for_a_free_restart() {
    for era in ERAS {
        let (world, one) = World::running(stdio("one"), |_| {}).await;
        let client = world.client(era).await;
        client.tool("echo", json!({})).await.result();
        tokio::time::sleep(Duration::from_secs(2)).await;
        one.script(|script| script.start_delay = Duration::from_secs(3))
            .exit(7);
        quiet().await;
        let began = Instant::now();
        let reply = client.tool("echo", json!({ "n": 1 })).await;
        assert_eq!(reply.json()["n"], 1);
        takes(began.elapsed(), 2.9, 3.1);
    }
}

/// A process of `mcp.json` that had responded since its start is restarted immediately, ten times a minute.
#[tokio::test(start_paused = true)]
async fn h09_a_process_has_ten_free_restarts_a_minute() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    let client = world.legacy().await;
    for restart in 1..=10 {
        client.tool("echo", json!({})).await.result();
        one.exit(1);
        quiet().await;
        assert_eq!((world.state("one"), one.starts()), ("running", restart + 1));
    }
    client.tool("echo", json!({})).await.result();
    one.exit(1);
    quiet().await;
    assert_ne!(world.state("one"), "running");
    takes(world.until_state("one", "running").await, 0.2, 1.1);
}

/// A process that exits before its first response waits before the next start.
#[tokio::test(start_paused = true)]
async fn h09_a_process_that_answered_nothing_waits() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    one.script(|script| script.dies_at_start = Some(1)).exit(1);
    quiet().await;
    assert_eq!(world.state("one"), "backoff");
    one.script(|script| script.dies_at_start = None);
    takes(world.until_state("one", "running").await, 0.2, 1.1);
}

/// A server that answered the handshake and exits before its lists are loaded is restarted like any server that had
/// responded. This holds for new servers and for those whose lists are known, with and without a circuit breaker.
#[tokio::test(start_paused = true)]
async fn h09_an_exit_before_the_lists_is_no_failed_start() {
    let world = World::new();
    world
        .scripted("one")
        .script(|script| script.deaths_at_list = 4);
    world.configure(&[stdio("one")]);
    world.project("p", &[owned("p", stdio("two"))]);
    let two = world.owned("p", "two");
    two.script(|script| script.deaths_at_list = 4);
    let began = Instant::now();
    world.server("two").want();
    world.up(&["one", "two"]).await;
    world
        .scripted("one")
        .script(|script| script.deaths_at_list = 4);
    world.scripted("one").exit(1);
    quiet().await;
    world.up(&["one"]).await;
    takes(began.elapsed(), 0.0, 0.1);
    assert_eq!((world.scripted("one").starts(), two.starts()), (10, 5));
    assert_eq!(
        (world.status("one").failures, world.status("two").failures),
        (0, 0)
    );
}

/// Callers do not wait for a start that follows a backoff.
#[tokio::test(start_paused = true)]
async fn h10_nobody_waits_for_a_start_after_a_backoff() {
    let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
    one.script(|script| script.dies_at_start = Some(1)).exit(1);
    world.until_state("one", "backoff").await;
    one.script(|script| {
        script.dies_at_start = None;
        script.start_delay = Duration::from_secs(8);
    });
    let starts = one.starts();
    until("it is being started", || one.starts() > starts).await;
    let client = world.modern().await;
    client.echo_unavailable().await;
}

/// An unusable spec blocks the server: no attempt, no crash, no wait, one event. The server starts once the spec is
/// fixed, without an order.
#[tokio::test(start_paused = true)]
async fn u04_a_missing_secret_blocks() {
    let why = "the secret `API_KEY` of server `one` is not set";
    for spec in [stdio("one"), url("one"), hosted("one", |_| {})] {
        let broken = ServerSpec {
            unusable: Some(why.to_owned()),
            ..spec.clone()
        };
        let (world, one) = World::running(spec.clone(), |_| {}).await;
        let mut warnings = world.gateway.warnings();
        world.put(broken);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.state("one"), "blocked");
        assert_eq!((one.starts(), one.running()), (1, 0));
        assert_eq!(one.attempts().len(), 1, "nothing is tried that cannot be");
        let told = std::iter::from_fn(|| warnings.try_recv().ok()).count();
        assert!(told <= 1, "{told} warnings");
        let client = world.legacy().await;
        let reply = client.echo_unavailable().await;
        reply.says(why);
        world.put(spec);
        quiet().await;
        assert_eq!((world.state("one"), one.starts()), ("running", 2));
    }
}

/// A blocked server of a project does not become available after a cooldown. It starts on demand once its spec is
/// fixed.
#[tokio::test(start_paused = true)]
async fn u04_a_projects_missing_secret_blocks() {
    let world = World::new();
    let one = world.owned("p", "one");
    let spec = owned("p", stdio("one"));
    world.project("p", std::slice::from_ref(&spec));
    let client = world.client_in(mcp::Era::Legacy, "p").await;
    client.tool("echo", json!({})).await.result();
    let broken = ServerSpec {
        unusable: Some("the secret `API_KEY` is not set".to_owned()),
        ..spec.clone()
    };
    world.project("p", &[broken]);
    for _ in 0..5 {
        let reply = client.tool("echo", json!({})).await;
        reply.says("`API_KEY`");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(world.state("one"), "blocked");
    assert_eq!(one.attempts().len(), 1);
    world.project("p", &[spec]);
    quiet().await;
    assert_eq!(world.state("one"), "idle");
    client.tool("echo", json!({})).await.result();
}

/// A missing command or image is checked again every minute and reported once.
#[tokio::test(start_paused = true)]
async fn u04_what_is_refused_is_looked_at_every_minute() {
    for spec in [stdio("one"), hosted("one", |_| {})] {
        let world = World::new();
        let one = world.scripted("one");
        one.script(|script| script.refused = Some("no such command: `scripted`".to_owned()));
        let mut warnings = world.gateway.warnings();
        world.put(spec);
        quiet().await;
        assert_eq!(world.state("one"), "blocked");
        tokio::time::sleep(Duration::from_secs(600)).await;
        let attempts = one.attempts();
        assert!((10..=12).contains(&attempts.len()), "{}", attempts.len());
        for pair in attempts.windows(2) {
            takes(pair[1] - pair[0], 59.9, 60.1);
        }
        let told = std::iter::from_fn(|| warnings.try_recv().ok()).count();
        assert!(told <= 1, "{told} warnings");
        one.script(|script| script.refused = None);
        takes(world.until_state("one", "running").await, 0.0, 60.5);
    }
}

/// An order to start triggers an immediate check. An order to stop ends the checks.
#[tokio::test(start_paused = true)]
async fn u04_orders_to_a_blocked_server() {
    for order in [Command::Start, Command::Restart, Command::Stop] {
        let (world, one) = World::one(hosted("one", |_| {}), |script| {
            script.refused = Some("no such image".to_owned());
        });
        quiet().await;
        assert_eq!(world.state("one"), "blocked");
        one.script(|script| script.refused = None);
        world.order("one", order).await;
        let (phase, starts) = match order {
            Command::Stop => ("stopped", 0),
            Command::Start | Command::Restart => ("running", 1),
        };
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!((world.state("one"), one.starts()), (phase, starts));
    }
}

/// A changed server of `mcp.json` never runs twice, and callers wait for the new one.
#[tokio::test(start_paused = true)]
async fn u05_a_reload_never_runs_two() {
    let (world, one) = World::running(stdio("one"), |_| {}).await;
    one.script(|script| script.is_stubborn = true);
    let client = world.legacy().await;
    let began = Instant::now();
    world.configure(&[renewed(stdio("one"))]);
    let reply = client.tool("echo", json!({ "n": 1 })).await;
    assert_eq!(reply.json()["n"], 1);
    takes(began.elapsed(), 9.9, 10.2);
    assert_eq!((one.starts(), one.running(), one.most_running()), (2, 1, 1));
}

/// Even if a server is removed and added again before its old instance is gone, there are never two instances.
#[tokio::test(start_paused = true)]
async fn u05_removed_and_put_back_never_runs_two() {
    for spec in [stdio("one"), hosted("one", |_| {})] {
        let (world, one) = World::running(spec.clone(), |_| {}).await;
        one.script(|script| script.is_stubborn = true);
        match spec.declared {
            Declared::Registered => world.unhost("one"),
            _ => world.configure(&[]),
        }
        quiet().await;
        world.put(spec);
        world.up(&["one"]).await;
        assert_eq!((one.starts(), one.running(), one.most_running()), (2, 1, 1));
    }
}

/// A changed registration has the grace period of a restart, and callers wait for the new instance.
#[tokio::test(start_paused = true)]
async fn u05_a_changed_registration_has_ten_seconds() {
    let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
    one.script(|script| script.is_stubborn = true);
    let client = world.legacy().await;
    let began = Instant::now();
    world.host([renewed(hosted("one", |_| {}))]);
    let reply = client.tool("echo", json!({ "n": 1 })).await;
    assert_eq!(reply.json()["n"], 1);
    takes(began.elapsed(), 9.9, 10.2);
    assert_eq!(one.most_running(), 1);
}

/// A removed registration has the same grace period.
#[tokio::test(start_paused = true)]
async fn g11_a_removed_registration_has_ten_seconds() {
    let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
    one.script(|script| script.is_stubborn = true);
    world.unhost("one");
    takes(until("it is gone", || one.running() == 0).await, 9.8, 10.2);
}

/// A restart order during the start waits until the starting instance is gone.
#[tokio::test(start_paused = true)]
async fn h12_a_restart_during_the_start_never_runs_two() {
    for orders in [vec![Command::Restart], vec![Command::Stop, Command::Start]] {
        let (world, one) = World::one(hosted("one", |_| {}), |script| {
            script.start_delay = Duration::from_secs(5);
            script.death = Duration::from_secs(2);
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        for order in orders {
            world.order("one", order).await;
        }
        world.up(&["one"]).await;
        assert_eq!((one.starts(), one.most_running()), (2, 1));
    }
}

/// Nothing is launched after shutdown begins.
#[tokio::test(start_paused = true)]
async fn h11_nothing_is_launched_once_stopping() {
    let world = World::with(|settings| settings.start = StartPolicy::Lazy);
    for name in ["one", "slow"] {
        world
            .scripted(name)
            .script(|script| script.is_stubborn = true);
    }
    world.configure(&[stdio("slow"), stdio("one")]);
    let client = world.legacy().await;
    client.tools().await;
    let starts = world.scripted("one").starts();
    let late = async {
        quiet().await;
        // Neither a configuration change nor a request starts anything now.
        world.configure(&[stdio("slow"), renewed(stdio("one")), stdio("new")]);
        client.tools().await;
        world.server("new").want();
    };
    tokio::join!(late, world.shutdown());
    quiet().await;
    assert_eq!(world.scripted("new").starts(), 0);
    assert_eq!(world.scripted("one").starts(), starts);
    assert_eq!(world.scripted("one").running(), 0);
}

/// All servers are looked up in the same way, so tools of hosted servers can be disabled like any others.
#[tokio::test(start_paused = true)]
async fn g12_a_tool_of_a_hosted_server_is_switched_off() {
    let (world, one) = World::running(hosted("one", |_| {}), |_| {}).await;
    let client = world.legacy().await;
    let (server, tool) = (server_name("one"), NativeName::new("echo"));
    assert!(world.gateway.set_tool_enabled(&server, &tool, false));
    assert_eq!(client.tools().await, ["hold"]);
    client.tool("echo", json!({})).await.error();
    assert!(world.gateway.set_tool_enabled(&server, &tool, true));
    client.tool("echo", json!({})).await.result();
    assert_eq!(one.starts(), 1);
}

/// Servers obey orders however they are declared.
#[tokio::test(start_paused = true)]
async fn h12_every_server_takes_orders() {
    for spec in [stdio("one"), url("one")] {
        let (world, one) = World::running(spec, |_| {}).await;
        let client = world.legacy().await;
        world.order("one", Command::Restart).await;
        assert_eq!((world.state("one"), one.starts()), ("running", 2));
        world.order("one", Command::Stop).await;
        assert_eq!((world.state("one"), one.running()), ("stopped", 0));
        tokio::time::sleep(Duration::from_secs(400)).await;
        let refused = client.tool("echo", json!({})).await;
        assert_eq!((refused.reason(), one.starts()), ("server_unavailable", 2));
        world.order("one", Command::Start).await;
        client.tool("echo", json!({})).await.result();
        assert_eq!(one.starts(), 3);
    }
}

/// A server that its policy does not start at boot is saved as stopped.
#[tokio::test]
async fn h08_what_is_not_started_at_boot_is_saved_as_stopped() {
    use crate::recorded::{eventually, left, registered};
    let world = World::recorded().await;
    let spec = registered(&world, "once", model::RestartPolicy::No).await;
    world.host_left([spec], Some(lifecycle::Last::Up));
    eventually("it is saved", async || {
        left(&world, "once").await == "stopped"
    })
    .await;
    assert_eq!(world.scripted("once").starts(), 0);
}

/// A server that exits while the gateway drains calls is not restarted, and no caller waits for it.
#[tokio::test(start_paused = true)]
async fn h11_what_ends_while_calls_finish_stays_away() {
    for spec in [stdio("one"), url("one"), hosted("one", |_| {})] {
        let (world, one) = World::running(spec, |_| {}).await;
        let by = Instant::now() + Duration::from_secs(29);
        world.gateway.close(by);
        quiet().await;
        assert_eq!(one.running(), 1, "calls may finish");
        one.exit(1);
        quiet().await;
        world.server("one").stopped().await;
        assert!(by - Instant::now() > Duration::from_secs(28));
        assert_eq!((one.starts(), one.running()), (1, 0));
    }
}
