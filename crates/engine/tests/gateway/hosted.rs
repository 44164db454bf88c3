//! Hosted servers, from launch to end.

use std::{sync::Arc, time::Duration};

use engine::{Command, Trouble, Warning};
use lifecycle::{Last, Rules};
use model::{Heartbeat, Origin, Program, RestartPolicy, ServerSpec};
use serde_json::{Value, json};
use tokio::{sync::broadcast::Receiver, time::Instant};

use crate::support::{ERAS, World, hosted, quiet, renewed, server::Scripted, stdio, takes, until};

/// This is longer than any wait before a start.
const LONG_WAIT: Duration = Duration::from_secs(400);

/// A world with the hosted server `one`.
async fn world(change: impl FnOnce(&mut ServerSpec)) -> (World, Scripted) {
    World::one(hosted("one", change), |_| {})
}

/// A world in which the hosted server `one` runs.
async fn running(change: impl FnOnce(&mut ServerSpec)) -> (World, Scripted) {
    World::running(hosted("one", change), |_| {}).await
}

fn warned(warnings: &mut Receiver<Warning>) -> Vec<(&'static str, Value)> {
    let all = std::iter::from_fn(|| warnings.try_recv().ok());
    all.map(|warning| (warning.kind, warning.detail)).collect()
}

#[tokio::test(start_paused = true)]
async fn h01_calls_wait_for_the_first_start() {
    for era in ERAS {
        let (world, one) = world(|_| {}).await;
        one.script(|script| script.start_delay = Duration::from_secs(8));
        let client = world.client(era).await;
        quiet().await;
        assert_eq!(world.state("one"), "starting");
        let began = Instant::now();
        let reply = client.tool("echo", json!({ "n": 1 })).await;
        assert_eq!(reply.json()["n"], 1);
        // The client has already waited a second for the handshake.
        takes(began.elapsed(), 6.9, 8.1);
        let status = world.status("one");
        assert_eq!((status.phase.word(), status.restarts), ("running", 0));
        assert!(status.ready_at.is_some() && status.placement.is_some());
    }
}

/// Registered servers are restored to the state in which they were left, all at the same time.
#[tokio::test(start_paused = true)]
async fn h08_registered_servers_are_back_when_the_product_is() {
    use RestartPolicy::{Always, No, OnFailure, UnlessStopped};
    for (last, up) in [
        (Last::Up, vec![Always, UnlessStopped, OnFailure]),
        (Last::ByHand, vec![Always]),
        (Last::Finished, vec![Always, UnlessStopped]),
        (Last::Failed, vec![Always, UnlessStopped, OnFailure]),
    ] {
        let world = World::new();
        let policies = [Always, UnlessStopped, OnFailure, No];
        let began = Instant::now();
        for policy in policies {
            let server = world.scripted(policy.as_str());
            server.script(|script| script.start_delay = Duration::from_secs(2));
        }
        let specs =
            policies.map(|policy| hosted(policy.as_str(), |spec| spec.restart = Some(policy)));
        world.host_left(specs, Some(last));
        for policy in policies {
            let name = policy.as_str();
            if up.contains(&policy) {
                world.up(&[name]).await;
                continue;
            }
            quiet().await;
            let expected = match last {
                Last::Failed => "failed",
                _ => "stopped",
            };
            assert_eq!(world.state(name), expected, "{name}, left {last:?}");
            assert_eq!(world.scripted(name).starts(), 0);
        }
        takes(began.elapsed(), 1.9, 2.1);
    }
}

/// A crashed server is restarted immediately, and callers wait for it. Its status shows the crash.
#[tokio::test(start_paused = true)]
async fn h09_a_server_that_crashed_is_back_at_once() {
    for era in ERAS {
        let (world, one) = running(|_| {}).await;
        one.script(|script| {
            script.era = era;
            script.tools.push("exit".to_owned());
            script.start_delay = Duration::from_secs(3);
        });
        world.order("one", Command::Restart).await;
        let client = world.client(era).await;
        for crashes in 1..=2 {
            let lost = client.begin_tool("exit", json!({ "code": 7 }));
            let waiting = client.begin_tool("echo", json!({ "n": crashes }));
            let began = Instant::now();
            let lost = lost.reply().await;
            assert_eq!(lost.reason(), "server_unavailable");
            lost.says("disconnected during `exit`");
            assert!(began.elapsed().is_zero());
            assert_eq!(waiting.reply().await.json()["n"], crashes);
            takes(began.elapsed(), 2.9, 3.1);
            let status = world.status("one");
            assert_eq!((status.phase.word(), status.restarts), ("running", crashes));
            let crash = status.last_crash.unwrap();
            assert_eq!(crash.exit.unwrap().code, Some(7));
            let end = format!("instance {} ends with exit code 7", crashes + 1);
            assert!(crash.stderr.contains(&end), "{}", crash.stderr);
            assert_eq!(status.warnings, 0);
        }
        assert_eq!(one.most_running(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn h09_restart_policies_are_as_docker_has_them() {
    use RestartPolicy::{Always, No, OnFailure, UnlessStopped};
    for (policy, after_0, after_3) in [
        (Always, "running", "running"),
        (OnFailure, "stopped", "running"),
        (UnlessStopped, "running", "running"),
        (No, "stopped", "failed"),
    ] {
        for (code, phase) in [(0, after_0), (3, after_3)] {
            let (world, one) = running(|spec| spec.restart = Some(policy)).await;
            one.exit(code);
            quiet().await;
            assert_eq!(world.state("one"), phase, "{policy} after {code}");
            let client = world.legacy().await;
            let reply = client.tool("echo", json!({ "n": 1 })).await;
            if phase == "running" {
                assert_eq!(reply.json()["n"], 1);
            } else {
                assert_eq!(reply.reason(), "server_unavailable");
                // The server stays in this phase until a user starts it.
                tokio::time::sleep(LONG_WAIT).await;
                assert_eq!(world.state("one"), phase);
                assert_eq!(one.starts(), 1);
                world.order("one", Command::Start).await;
                client.tool("echo", json!({})).await.result();
            }
            assert_eq!(one.starts(), 2);
        }
    }
}

/// A server that failed and is not restarted causes one warning. It needs a person until it runs again.
#[tokio::test(start_paused = true)]
async fn u13_the_final_failure_of_a_server_is_a_warning() {
    let (world, one) = running(|spec| spec.restart = Some(RestartPolicy::No)).await;
    let mut warnings = world.gateway.warnings();
    assert_eq!(world.status("one").trouble, None);
    one.exit(3);
    quiet().await;
    tokio::time::sleep(LONG_WAIT).await;
    let told = warned(&mut warnings);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "failed");
    let message = told[0].1["message"].as_str().unwrap();
    assert!(message.contains("exit code 3"), "{message}");
    assert_eq!(world.status("one").trouble, Some(Trouble::Failed));
    world.order("one", Command::Start).await;
    world.up(&["one"]).await;
    assert_eq!(world.status("one").trouble, None);
    assert!(warned(&mut warnings).is_empty());
}

/// A server needs a person after three failed starts, also while the next start is being tried.
#[tokio::test(start_paused = true)]
async fn u13_a_server_that_keeps_failing_needs_a_person_until_it_runs() {
    for spec in [stdio("one"), hosted("one", |_| {})] {
        let (world, one) = World::running(spec, |_| {}).await;
        one.script(|script| script.dies_at_start = Some(1)).exit(1);
        until("the third failure", || world.status("one").failures >= 3).await;
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let status = world.status("one");
            assert_eq!(status.trouble, Some(Trouble::Failed), "{status:?}");
        }
        one.script(|script| script.dies_at_start = None);
        world.up(&["one"]).await;
        assert_eq!(world.status("one").trouble, None);
    }
}

/// After more than three exits in a minute, the waits grow. Each wait causes one warning, and calls fail immediately
/// with the time of the next attempt.
#[tokio::test(start_paused = true)]
async fn h10_a_crash_loop_backs_off_and_warns() {
    let (world, one) = running(|_| {}).await;
    let client = world.legacy().await;
    let mut warnings = world.gateway.warnings();
    one.script(|script| script.dies_at_start = Some(1)).exit(1);
    let waits = Rules::REGISTERED_WAITS;
    for (rung, wait) in waits.iter().copied().chain([waits[4]]).enumerate() {
        world.until_state("one", "backoff").await;
        quiet().await;
        assert_eq!(one.starts(), 1 + Rules::REGISTERED.free.most + rung);
        let status = world.status("one");
        let left = status.next_attempt.unwrap() - Instant::now();
        takes(left, wait.as_secs_f64() * 0.98 - 0.1, wait.as_secs_f64());
        let reply = client.echo_unavailable().await;
        let retry = reply.error()["data"]["retryAfterMs"].as_u64().unwrap();
        assert!(
            u128::from(retry).abs_diff(left.as_millis()) <= 1,
            "{retry} ms"
        );
        let told = warned(&mut warnings);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (told[0].0, &told[0].1["waitSeconds"]),
            ("backoff", &json!(wait.as_secs()))
        );
        assert_eq!(status.warnings, rung as u64 + 1);
        tokio::time::sleep(left).await;
        quiet().await;
    }
    // The server works again. The waits are reset only once it is stable.
    one.script(|script| script.dies_at_start = None);
    world.up(&["one"]).await;
    tokio::time::sleep(Rules::REGISTERED.stable / 2).await;
    one.exit(1);
    quiet().await;
    assert_eq!(world.state("one"), "backoff");
    world.up(&["one"]).await;
    tokio::time::sleep(Rules::REGISTERED.stable + Duration::from_secs(1)).await;
    one.exit(1);
    quiet().await;
    assert_eq!(world.state("one"), "running");
    assert_eq!(one.most_running(), 1);
}

/// An order to start resets the waits, and an order to stop ends the attempts.
#[tokio::test(start_paused = true)]
async fn h10_orders_during_a_backoff() {
    for order in [Command::Start, Command::Restart, Command::Stop] {
        let (world, one) = world(|_| {}).await;
        one.script(|script| script.dies_at_start = Some(1));
        world.until_state("one", "backoff").await;
        let starts = one.starts();
        one.script(|script| script.dies_at_start = None);
        let began = Instant::now();
        world.order("one", order).await;
        assert!(began.elapsed() < Duration::from_millis(10));
        let status = world.status("one");
        if order == Command::Stop {
            tokio::time::sleep(LONG_WAIT).await;
            assert_eq!((world.state("one"), one.starts()), ("stopped", starts));
            continue;
        }
        assert_eq!((status.phase.word(), status.restarts), ("running", 0));
        // After the reset, the server is again restarted immediately.
        one.exit(1);
        quiet().await;
        assert_eq!((world.state("one"), one.starts()), ("running", starts + 2));
    }
}

/// All servers are asked to stop, and those that do not stop are killed after thirty seconds in total. Calls get a
/// response.
#[tokio::test(start_paused = true)]
async fn h11_nothing_outlives_the_gateway() {
    let world = World::new();
    let all = ["polite", "stubborn", "crashing", "stopped", "file"];
    for name in ["stubborn", "file"] {
        let server = world.scripted(name);
        server.script(|script| script.is_stubborn = true);
    }
    world
        .scripted("crashing")
        .script(|script| script.dies_at_start = Some(1));
    world.configure(&[stdio("file")]);
    world.host(all[..4].iter().map(|name| hosted(name, |_| {})));
    world.up(&["polite", "stubborn", "stopped", "file"]).await;
    world.until_state("crashing", "backoff").await;
    world.order("stopped", Command::Stop).await;
    let client = world.legacy().await;
    let calls = ["polite__hold", "stubborn__hold", "file__hold"];
    let calls = calls.map(|tool| client.begin_tool(tool, json!({})));
    quiet().await;
    let count = |of: fn(&Scripted) -> usize| all.map(|name| of(&world.scripted(name)));
    let starts = count(Scripted::starts);
    let ended = async {
        let polite = world.scripted("polite");
        let took = until("the polite one is gone", || polite.running() == 0).await;
        takes(took, 0.0, 0.1);
        let gone = || count(Scripted::running) == [0; 5];
        until("all are gone", gone).await + took
    };
    let (took, ()) = tokio::join!(ended, world.shutdown());
    takes(took, 29.9, 30.2);
    for call in calls {
        assert_eq!(call.reply().await.reason(), "server_unavailable");
    }
    tokio::time::sleep(LONG_WAIT).await;
    assert_eq!(count(Scripted::starts), starts);
    assert_eq!(count(Scripted::running), [0; 5]);
}

/// A container is killed early enough to be removed in time, which takes seconds on a busy machine.
#[tokio::test(start_paused = true)]
async fn h11_a_container_is_removed_before_the_gateway_ends() {
    let (world, one) = running(|spec| {
        let Origin::Launch(launch) = &mut spec.origin else {
            panic!("it is launched");
        };
        Arc::make_mut(launch).program = Program::Image {
            image: "image".to_owned(),
            command: Vec::new(),
        };
    })
    .await;
    one.script(|script| {
        script.is_stubborn = true;
        script.death = Duration::from_secs(2);
    });
    let gone = until("it is gone", || one.running() == 0);
    let (took, ()) = tokio::join!(gone, world.shutdown());
    takes(took, 26.9, 27.2);
}

/// A restart creates a new instance within ten seconds and resets the counters. Callers wait for it.
#[tokio::test(start_paused = true)]
async fn h12_a_restart_by_hand_makes_a_new_instance() {
    for (is_stubborn, death, from, to) in [
        (false, 0, 0.0, 0.1),
        (true, 0, 9.9, 10.1),
        (true, 2, 11.9, 12.1),
    ] {
        let (world, one) = running(|_| {}).await;
        one.exit(1);
        world.up(&["one"]).await;
        assert_eq!(world.status("one").restarts, 1);
        one.script(|script| {
            script.is_stubborn = is_stubborn;
            script.death = Duration::from_secs(death);
        });
        let client = world.legacy().await;
        let lost = client.begin_tool("hold", json!({}));
        quiet().await;
        let server = world.server("one");
        let began = Instant::now();
        let call = async {
            quiet().await;
            let phase = if is_stubborn { "restarting" } else { "running" };
            assert_eq!(world.state("one"), phase);
            client.tool("echo", json!({ "n": 1 })).await
        };
        let (followed, reply) = tokio::join!(server.command(Command::Restart), call);
        assert!(followed);
        takes(began.elapsed(), from, to);
        assert_eq!(lost.reply().await.reason(), "server_unavailable");
        assert_eq!(reply.json()["n"], 1);
        let status = world.status("one");
        assert_eq!((status.phase.word(), status.restarts), ("running", 0));
        assert_eq!((one.starts(), one.most_running()), (3, 1));
    }
}

/// A server stopped by a user answers immediately with the reason, and is started only by a user.
#[tokio::test(start_paused = true)]
async fn h12_a_stopped_server_stays_stopped() {
    let (world, one) = running(|_| {}).await;
    world.order("one", Command::Stop).await;
    assert_eq!((world.state("one"), one.running()), ("stopped", 0));
    for era in ERAS {
        let client = world.client(era).await;
        let reply = client.echo_unavailable().await;
        reply.says("stopped");
        assert_eq!(client.tools().await, ["echo", "hold"]);
    }
    tokio::time::sleep(LONG_WAIT).await;
    assert_eq!(one.starts(), 1);
    world.order("one", Command::Start).await;
    assert_eq!((world.state("one"), one.starts()), ("running", 2));
}

/// When orders arrive while a server starts or stops, there is at most one instance, and the last order takes effect.
#[tokio::test(start_paused = true)]
async fn h12_the_last_order_counts() {
    use Command::{Restart, Start, Stop};
    for (orders, phase) in [
        (vec![Stop], "stopped"),
        (vec![Stop, Start], "running"),
        (vec![Stop, Restart, Stop], "stopped"),
        (vec![Restart, Stop], "stopped"),
        (vec![Restart, Restart, Start], "running"),
        (vec![Start, Stop, Stop, Start], "running"),
    ] {
        for delay in [0, 20] {
            let (world, one) = world(|_| {}).await;
            one.script(|script| {
                script.is_stubborn = true;
                script.start_delay = Duration::from_secs(delay);
            });
            // The orders arrive while the server starts or while it runs, depending on `delay`.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let server = world.server("one");
            let following = orders.iter().map(|order| server.command(*order));
            let followed = futures_util::future::join_all(following).await;
            assert_eq!(followed, vec![true; orders.len()]);
            assert_eq!(world.state("one"), phase, "{orders:?} after {delay} s");
            assert_eq!(one.most_running(), 1, "{orders:?} after {delay} s");
            assert_eq!(one.running(), usize::from(phase == "running"));
        }
    }
}

/// After three missed heartbeats a server is unresponsive, which causes a warning. It is not restarted, and still gets
/// calls.
#[tokio::test(start_paused = true)]
async fn h15_a_silent_server_is_unresponsive_and_not_restarted() {
    for era in ERAS {
        let (world, one) = World::running(hosted("one", |_| {}), |script| script.era = era).await;
        let mut warnings = world.gateway.warnings();
        let client = world.legacy().await;
        one.script(|script| script.is_silent = true);
        // Each heartbeat is sent 30 s after the previous one was answered or counted as missed. A heartbeat counts as
        // missed after 10 s.
        takes(world.until_state("one", "unresponsive").await, 119.0, 122.0);
        let asked = match era {
            mcp::Era::Legacy => "ping",
            mcp::Era::Modern => "server/discover",
        };
        let before = usize::from(era == mcp::Era::Modern);
        assert_eq!(one.heard(asked).len(), before + 3);
        let call = client.begin_tool("hold", json!({ "n": 1 }));
        quiet().await;
        assert_eq!(one.heard("tools/call").len(), 1);
        assert_eq!(call.reply().await.reason(), "timeout");
        tokio::time::sleep(Duration::from_secs(600)).await;
        let told = warned(&mut warnings);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (told[0].0, &told[0].1["missed"]),
            ("unresponsive", &json!(3))
        );
        one.script(|script| script.is_silent = false);
        takes(world.until_state("one", "running").await, 0.0, 40.0);
        client.tool("echo", json!({})).await.result();
        let status = world.status("one");
        assert_eq!((one.starts(), status.restarts, status.warnings), (1, 0, 1));
        assert!(warned(&mut warnings).is_empty());
    }
}

/// A server that is busy with a call gets no heartbeats, and a slow one that responds in time is not unresponsive.
#[tokio::test(start_paused = true)]
async fn h15_a_busy_server_is_not_asked() {
    let (world, one) = running(|spec| {
        spec.heartbeat = Some(Heartbeat {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            misses: 1,
        });
        spec.call_timeout = Duration::from_secs(600);
    })
    .await;
    let client = world.legacy().await;
    let call = client.begin_tool("hold", json!({}));
    quiet().await;
    let asked = one.heard("ping").len();
    one.script(|script| script.is_silent = true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (world.state("one"), one.heard("ping").len()),
        ("running", asked)
    );
    one.release();
    call.reply().await.result();
    takes(world.until_state("one", "unresponsive").await, 0.9, 3.1);
}

/// If the runtime does not respond, no second instance is started, since the first may still run.
#[tokio::test(start_paused = true)]
async fn h12_a_lost_instance_is_not_started_a_second_time() {
    let (world, one) = running(|_| {}).await;
    let mut warnings = world.gateway.warnings();
    one.script(|script| {
        script.is_stubborn = true;
        script.is_lost = true;
    });
    let server = world.server("one");
    let ordered =
        tokio::time::timeout(Duration::from_secs(60), server.command(Command::Restart)).await;
    assert_eq!(ordered, Ok(true));
    assert_eq!(world.state("one"), "unknown");
    let told = warned(&mut warnings);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "runtime-lost");
    let client = world.legacy().await;
    let began = Instant::now();
    assert_eq!(
        client.tool("echo", json!({})).await.reason(),
        "server_unavailable"
    );
    assert!(began.elapsed().is_zero());
    tokio::time::sleep(LONG_WAIT).await;
    assert_eq!((world.state("one"), one.starts()), ("unknown", 1));
    one.exit(137);
    world.up(&["one"]).await;
    assert_eq!((one.starts(), one.most_running()), (2, 1));
}

/// When a registration changes, calls in flight end with a clear error, and new ones wait for the new instance.
#[tokio::test(start_paused = true)]
async fn u05_a_changed_registration_in_mid_call() {
    for era in ERAS {
        let (world, one) = running(|_| {}).await;
        one.script(|script| script.start_delay = Duration::from_secs(3));
        let client = world.client(era).await;
        let lost = client.begin_tool("hold", json!({}));
        quiet().await;
        let began = Instant::now();
        world.host([renewed(hosted("one", |_| {}))]);
        let waiting = client.begin_tool("echo", json!({ "n": 1 }));
        assert_eq!(lost.reply().await.reason(), "server_unavailable");
        takes(began.elapsed(), 0.0, 0.1);
        assert_eq!(waiting.reply().await.json()["n"], 1);
        takes(began.elapsed(), 2.9, 3.1);
        assert_eq!((one.starts(), one.running(), one.most_running()), (2, 1, 1));
    }
}

/// The new instance is not started before the old one has ended, however long that takes.
#[tokio::test(start_paused = true)]
async fn u05_a_changed_registration_never_runs_twice() {
    let (world, one) = running(|_| {}).await;
    one.script(|script| script.is_stubborn = true);
    world.host([renewed(hosted("one", |_| {}))]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((one.starts(), one.running()), (1, 1));
    world.up(&["one"]).await;
    assert_eq!((one.starts(), one.running(), one.most_running()), (2, 1, 1));
}

/// A change resets failures, but does not start a server that a user stopped.
#[tokio::test(start_paused = true)]
async fn u05_a_change_of_a_server_that_does_not_run() {
    let (world, one) = world(|_| {}).await;
    one.script(|script| script.dies_at_start = Some(1));
    world.until_state("one", "backoff").await;
    let starts = one.starts();
    one.script(|script| script.dies_at_start = None);
    world.host([renewed(hosted("one", |_| {}))]);
    quiet().await;
    assert_eq!((world.state("one"), one.starts()), ("running", starts + 1));
    assert_eq!(world.status("one").restarts, 0);

    world.order("one", Command::Stop).await;
    world.host([hosted("one", |_| {})]);
    tokio::time::sleep(LONG_WAIT).await;
    assert_eq!((world.state("one"), one.running()), ("stopped", 0));
    let client = world.legacy().await;
    let refused = client.tool("echo", json!({})).await;
    assert_eq!(refused.reason(), "server_unavailable");
}

/// Repeating the same registration changes nothing.
#[tokio::test(start_paused = true)]
async fn u05_a_registration_that_is_repeated() {
    let (world, one) = running(|_| {}).await;
    let client = world.modern().await;
    let call = client.begin_tool("hold", json!({ "n": 1 }));
    quiet().await;
    world.host([hosted("one", |_| {}), hosted("two", |_| {})]);
    world.up(&["one", "two"]).await;
    one.release();
    assert_eq!(call.reply().await.json()["n"], 1);
    assert_eq!(one.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn g11_a_registration_ends_in_mid_call() {
    for era in ERAS {
        let (world, one) = running(|_| {}).await;
        let client = world.client(era).await;
        let calls = [1, 2].map(|n| client.begin_tool("hold", json!({ "n": n })));
        quiet().await;
        let server = world.server("one");
        let began = Instant::now();
        world.unhost("one");
        assert!(client.tools().await.is_empty());
        for call in calls {
            assert_eq!(call.reply().await.reason(), "server_unavailable");
        }
        server.stopped().await;
        takes(began.elapsed(), 0.0, 0.1);
        // The second call was still in the queue and was never sent.
        assert_eq!((one.running(), one.heard("tools/call").len()), (0, 1));
        assert!(!server.command(Command::Start).await);
    }
}
