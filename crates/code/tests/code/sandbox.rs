//! Runs in their sandbox, and attempts to leave it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use code::{Call, End, FailureKind, Limits, Options, Outcome, Request, Runner, Value};
use model::ResourceLimits;
use runtime::process::{SentinelCommand, Spawner};
use runtime::sandbox::{Bare, BareOptions};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::ground::{VICTIM, answer, in_time, limits, tools};

fn command(argument: &str) -> SentinelCommand {
    SentinelCommand {
        program: VICTIM.into(),
        args: vec![argument.into()],
    }
}

fn spawner() -> Spawner {
    assert!(
        Path::new("/usr/bin/bwrap").exists(),
        "bubblewrap is missing: `apt-get install bubblewrap`"
    );
    Spawner::new(command("sentinel")).unwrap()
}

fn options(limits: Limits) -> Options {
    Options {
        install: "codetests".to_owned(),
        shim: command("shim"),
        limits,
        max_runs: 4,
    }
}

fn request(code: &str) -> Request {
    Request {
        code: code.to_owned(),
        tools: tools(),
        ..Request::default()
    }
}

async fn run(runner: &Runner, code: &str) -> Outcome {
    in_time(runner.run(&"a".into(), request(code), answer))
        .await
        .unwrap()
}

fn json(outcome: &Outcome) -> &str {
    match &outcome.end {
        End::Returned(Value::Json(json)) => json.get(),
        _ => panic!("{outcome:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_have_nothing_in_common() {
    let runner = Runner::new(spawner(), options(limits()));
    runner.probe().await.unwrap();
    for _ in 0..3 {
        let outcome = run(
            &runner,
            "const before = globalThis.kept; globalThis.kept = 1; Array.prototype.x = 1;
            return [before === undefined, (await servers.git_hub.echo({a: 1})).got.a]",
        )
        .await;
        assert_eq!(json(&outcome), "[true,1]");
        assert_eq!(outcome.calls, 1);
    }
    let three = tokio::join!(
        run(&runner, "return 1"),
        run(&runner, "return 2"),
        run(&runner, "return 3")
    );
    assert_eq!(
        (json(&three.0), json(&three.1), json(&three.2)),
        ("1", "2", "3")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_in_the_sandbox() {
    let limits = Limits {
        wall: Duration::from_secs(20),
        cpu: Duration::from_secs(1),
        memory: 16 << 20,
        ..limits()
    };
    let runner = Runner::new(spawner(), options(limits));
    for (code, kind) in [
        ("while (true);", FailureKind::Time),
        // Operations that QuickJS does not interrupt.
        (
            "const a = new Array(2 ** 32 - 1); a.indexOf(1)",
            FailureKind::Time,
        ),
        ("const x = 3n ** 100000n; for (;;) x * x", FailureKind::Time),
        (
            "const a = []; for (;;) a.push(new Array(1000).fill(0))",
            FailureKind::Memory,
        ),
        ("const f = () => f(); f()", FailureKind::Thrown),
        ("await new Promise(() => {})", FailureKind::Stalled),
    ] {
        let outcome = run(&runner, code).await;
        match &outcome.end {
            End::Failed(failure) => {
                assert_eq!(failure.kind, kind, "{code}: {failure:?}");
                println!("{code}: {failure:?}");
            }
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_run_ends_its_calls_and_its_process() {
    struct Guard(Arc<AtomicU32>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let spawner = spawner();
    let runner = Runner::new(spawner.clone(), options(limits()));
    let (started, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let call = |_: Call| {
        started.fetch_add(1, Ordering::SeqCst);
        let guard = Guard(Arc::clone(&ended));
        async move {
            let _guard = guard;
            std::future::pending::<Result<Box<RawValue>, String>>().await
        }
    };
    let owner = "a".into();
    let run = runner.run(
        &owner,
        request("await Promise.all([servers.other.never(), servers.other.never()])"),
        call,
    );
    let started = &started;
    let both_run = in_time(async {
        while started.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    });
    tokio::select! {
        outcome = run => panic!("{outcome:?}"),
        () = both_run => {}
    }
    assert_eq!(ended.load(Ordering::SeqCst), 2);
    drop(runner);
    in_time(spawner.stop_all(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_nothing_runs() {
    let mut options = options(limits());
    options.shim.program = "/nonexistent".into();
    let runner = Runner::new(spawner(), options);
    let error = runner
        .run(&"a".into(), request("return 1"), answer)
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("code cannot run here: "),
        "{error}"
    );
    assert!(runner.probe().await.is_err());
}

/// A process with a compromised interpreter.
#[tokio::test(flavor = "multi_thread")]
async fn every_escape_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let bare = Bare::new(
        spawner(),
        BareOptions {
            install: "codetests".to_owned(),
            shim: command("shim"),
            name: "escape",
            args: vec!["escape".to_owned()],
            limits: ResourceLimits {
                pids: 4,
                ..ResourceLimits::default()
            },
        },
    );
    let mut child = in_time(bare.launch()).await.unwrap();
    let line = format!(
        "{} {}\n",
        std::process::id(),
        listener.local_addr().unwrap().port()
    );
    child.stdin.write_all(line.as_bytes()).await.unwrap();
    let mut text = String::new();
    in_time(child.stdout.read_to_string(&mut text))
        .await
        .unwrap();
    let tried: Vec<BTreeMap<String, String>> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [before, after] = tried.as_slice() else {
        panic!("{text}: {}", child.handle.stderr_tail());
    };
    let worked = |tried: &BTreeMap<String, String>| {
        let worked = tried.iter().filter(|(_, what)| what.starts_with("worked"));
        worked.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    // Its own limits, threads, loopback, program and files are its own.
    let own = [
        "create a thread",
        "list files",
        "list processes",
        "listen",
        "make sockets",
        "raise a limit",
        "run itself",
    ];
    assert_eq!(worked(before), own, "{before:?}");
    assert_eq!(before["variables"], r#"["TOOLWHARF_INSTANCE"]"#);
    let files = before["list files"].trim_start_matches("worked: ");
    let files: Vec<String> = serde_json::from_str(files).unwrap();
    for file in &files {
        let is_needed = file.contains(".so") || file == "/run/toolwharf/shim";
        assert!(is_needed, "{file} is visible");
    }
    let processes: u32 = before["list processes"]
        .trim_start_matches("worked: ")
        .parse()
        .unwrap();
    assert!(processes <= 3, "{before:?}");
    assert_eq!(worked(after), Vec::<String>::new(), "{after:?}");
}

/// The bound is far above what was measured, because tests run beside others.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_run_of_five_calls_is_quick() {
    let runner = Runner::new(spawner(), options(limits()));
    runner.probe().await.unwrap();
    let code = "let n = 0; for (let i = 0; i < 5; i++) n += (await servers.git_hub.echo({i})).got.i; return n";
    let (mut times, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        // A run takes the process that is ready. By the end of this start, the next one is.
        let started = Instant::now();
        runner.probe().await.unwrap();
        starts.push(started.elapsed());
        let started = Instant::now();
        let outcome = run(&runner, code).await;
        times.push(started.elapsed());
        assert_eq!((json(&outcome), outcome.calls), ("10", 5));
    }
    times.sort();
    starts.sort();
    println!(
        "start: median {:?}, all {starts:?}",
        starts[starts.len() / 2]
    );
    println!(
        "five calls, warm: median {:?}, all {times:?}",
        times[times.len() / 2]
    );
    assert!(times[0] < Duration::from_millis(500), "{times:?}");
}
