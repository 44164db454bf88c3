//! For the tests of this crate: a sentinel, or a host that waits to be killed.
//!
//! - `runtime-victim sentinel`: what the product does for its hidden argument.
//! - `runtime-victim shim …`: what the product does for its other hidden argument.
//! - `runtime-victim host COUNT`: starts COUNT families, prints `run RUN`, then `ready`.
//! - `runtime-victim storm`: prints `run RUN`, then starts and stops families without end.
//! - `runtime-victim code`: prints how a child ended that ended with code 7.
//! - `runtime-victim exit COUNT`: as `host`, but ends by itself, with everything running.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use runtime::process::{Instance, Launch, SentinelCommand, Spawner};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// A leader with a child in its group, one in a session of its own, and one in a group of its
/// own in the same session; none of them ends by itself.
const FAMILY: &str = "
    sleep 1000 &
    setsid sh -c 'trap \"\" TERM HUP; sleep 1000; :' &
    set -m; sleep 1000 & set +m
    echo up
    sleep 1000 & wait
";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["sentinel"] => runtime::sentinel::main(),
        ["shim", ..] => {
            let args: Vec<_> = std::env::args_os().skip(2).collect();
            runtime::sandbox::shim_main(&args)
        }
        ["host", count] => host(count, false),
        ["exit", count] => host(count, true),
        ["storm"] => storm(),
        ["code"] => code(),
        _ => ExitCode::from(64),
    }
}

fn spawner() -> Spawner {
    let spawner = Spawner::new(SentinelCommand::this_binary(["sentinel"])).expect("a sentinel");
    say(&format!("run {}", spawner.run_id()));
    spawner
}

fn say(line: &str) {
    writeln!(io::stdout(), "{line}").expect("the test reads");
}

async fn family(spawner: &Spawner, number: usize) -> Instance {
    let mut launch = Launch::new(format!("family {number}"), "sh");
    launch.args = vec!["-c".into(), FAMILY.into()];
    let mut instance = spawner.spawn(launch).await.expect("sh runs");
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut instance.stdout);
    stdout.read_line(&mut line).await.expect("a line");
    instance
}

#[tokio::main]
async fn host(count: &str, exit: bool) -> ExitCode {
    let spawner = spawner();
    let mut families = Vec::new();
    for number in 0..count.parse().expect("a count") {
        families.push(family(&spawner, number).await);
    }
    say("ready");
    if exit {
        std::process::exit(3);
    }
    std::future::pending().await
}

fn code() -> ExitCode {
    let spawner = spawner();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut launch = Launch::new("seven", "sh");
        launch.args = vec!["-c".into(), "exit 7".into()];
        let instance = spawner.spawn(launch).await.expect("sh runs");
        say(&instance.handle.exited().await.to_string());
    });
    ExitCode::SUCCESS
}

#[tokio::main]
async fn storm() -> ExitCode {
    let spawner = spawner();
    let mut families = std::collections::VecDeque::new();
    for number in 0.. {
        families.push_back(family(&spawner, number).await);
        if families.len() > 5 {
            let oldest = families.pop_front().expect("there are five");
            drop(oldest.stdin);
            oldest.handle.stop(Duration::ZERO).await;
        }
    }
    ExitCode::SUCCESS
}
