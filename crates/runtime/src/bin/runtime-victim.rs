//! Helper program for the tests of this crate: a sentinel, a shim, or a process that starts servers and waits to be
//! killed.
//!
//! - `runtime-victim sentinel`: runs a sentinel, as the product does with its hidden sentinel argument.
//! - `runtime-victim shim …`: runs a shim, as the product does with its hidden shim argument.
//! - `runtime-victim host COUNT`: starts COUNT process families (`FAMILY_SCRIPT`), prints `run RUN`, then `ready`.
//! - `runtime-victim sandbox INSTALL DIR COUNT SCRIPT`: like `host`, with sandboxed servers.
//! - `runtime-victim rootless DIR SCRIPT`: runs one server in a sandbox, and prints its status.
//! - `runtime-victim view SPEC`: runs one server in a sandbox with the visible files in the JSON text SPEC. Prints `up`
//!   when the server has printed a line. After it receives a line, it sends one to the server. Then it prints the
//!   server's output and the list of visible files.
//! - `runtime-victim storm`: prints `run RUN`, then starts and stops families forever.
//! - `runtime-victim programs PROGRAM…`: like `host`, but starts these programs, each of which prints a line.
//! - `runtime-victim code`: starts a child that exits with code 7, and prints its exit as reported.
//! - `runtime-victim install DIR COMMAND ARGUMENT…`: installs the package that the command line names into DIR, and
//!   prints the result.
//! - `runtime-victim exit COUNT`: like `host`, but exits by itself while everything is running.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use model::{Launch, Place, Program, Sandbox};
use runtime::process::{Instance, SentinelCommand, Spawner};
use runtime::sandbox::{Bounds, Bubblewrap, Options, Own};
use runtime::{Access, PackageOptions, Packages, Ports, Runtime as _, Unit};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

/// A leader with a child in its group, one in a new session, and one in a new group of the same session. None of them
/// exits by itself.
const FAMILY_SCRIPT: &str = "
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
        ["sandbox", install, dir, count, script] => sandbox(install, dir, count, script),
        ["rootless", dir, script] => rootless(dir, script),
        ["view", spec] => view(spec),
        ["install", dir, program, ref args @ ..] => install(dir, program, args),
        ["programs", ref programs @ ..] => run_programs(programs),
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
    let unit = unit(&format!("family {number}"), FAMILY_SCRIPT, Place::Host);
    let mut instance = spawner.spawn(unit).await.expect("sh runs");
    let mut line = String::new();
    let mut stdout = BufReader::new(&mut instance.stdout);
    stdout.read_line(&mut line).await.expect("a line");
    assert!(!line.is_empty(), "family {number} did not start");
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

#[tokio::main]
async fn run_programs(programs: &[&str]) -> ExitCode {
    let spawner = spawner();
    let mut instances = Vec::new();
    for program in programs {
        let command = Program::Command {
            program: (*program).to_owned(),
            args: Vec::new(),
        };
        let unit = Unit::new(*program, Launch::new(command, Place::Host));
        let mut instance = spawner.spawn(unit).await.expect("the program runs");
        let mut line = String::new();
        let mut stdout = BufReader::new(&mut instance.stdout);
        stdout.read_line(&mut line).await.expect("a line");
        instances.push(instance);
    }
    say("ready");
    std::future::pending().await
}

fn code() -> ExitCode {
    let spawner = spawner();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let unit = unit("seven", "exit 7", Place::Host);
        let instance = spawner.spawn(unit).await.expect("sh runs");
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

fn ground(spawner: &Spawner, install: &str, dir: &str) -> Bubblewrap {
    let options = Options {
        dir: dir.into(),
        install: install.to_owned(),
        ports: Ports::new(Path::new(dir).with_file_name("ports.json")),
        own: Own::default(),
        shim: SentinelCommand::this_binary(["shim"]),
    };
    let packages = Path::new(dir).with_file_name("packages");
    let packages = Packages::new(packages, spawner.clone(), true, package_options(install));
    Bubblewrap::new(spawner.clone(), packages.into(), options)
}

#[tokio::main]
async fn view(spec: &str) -> ExitCode {
    let spec: serde_json::Value = serde_json::from_str(spec).expect("JSON");
    let texts = |key: &str| -> Vec<String> {
        let all = spec[key].as_array().into_iter().flatten();
        all.map(|text| text.as_str().expect("a text").to_owned())
            .collect()
    };
    let paths = |key: &str| {
        texts(key)
            .into_iter()
            .map(PathBuf::from)
            .collect::<Vec<_>>()
    };
    let spawner = spawner();
    let own = paths("own");
    let options = Options {
        dir: own[0].join("hosting/process"),
        install: "view".to_owned(),
        ports: Ports::new(own[0].join("ports.json")),
        own: Own::new(own.clone()),
        shim: SentinelCommand::this_binary(["shim"]),
    };
    let packages = Packages::new(
        own[0].join("packages"),
        spawner.clone(),
        true,
        package_options("view"),
    );
    let sandbox = Bubblewrap::new(spawner.clone(), packages.into(), options);
    let mut confined = Sandbox::new("server");
    confined.volumes = texts("volumes");
    confined.limits.disk = 32 << 20;
    (confined.show, confined.hide) = (paths("show"), paths("hide"));
    for mount in texts("mounts") {
        let mut parts = mount.split(':').map(str::to_owned);
        let mut part = || parts.next().expect("HOST:INSIDE:ro");
        confined.mounts.push(model::Mount {
            host: part().into(),
            inside: part(),
            read_only: part() == "ro",
        });
    }
    let mut command = texts("command").into_iter();
    let program = Program::Command {
        program: command.next().expect("a program"),
        args: command.collect(),
    };
    let unit = Unit::new("server", Launch::new(program, Place::Sandbox(confined)));
    let mut instance = match sandbox.launch(unit).await {
        Ok(instance) => instance,
        Err(error) => {
            say(&format!("launch failed: {error}"));
            return ExitCode::SUCCESS;
        }
    };
    let stdio = instance.stdio.as_mut().expect("it is bridged");
    let mut stdout = BufReader::new(&mut stdio.stdout);
    let mut line = String::new();
    stdout.read_line(&mut line).await.expect("a line");
    say(if line.is_empty() { "ended" } else { "up" });
    io::stdin().read_line(&mut line).expect("a line");
    let _ = stdio.stdin.write_all(b"go\n").await;
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.expect("text");
    say(text.trim_end());
    let files = instance.files.expect("a list of files");
    for one in &files.visible {
        let shown = serde_json::json!({
            "path": one.path,
            "write": one.access == Access::Write,
            "host": one.host,
            "hidden": one.hidden,
        });
        say(&format!("visible {shown}"));
    }
    say(&format!("missing {}", serde_json::json!(files.missing)));
    for row in instance.enforced.iter() {
        say(&format!("row {} {} {}", row.what, row.holds, row.how));
    }
    let end = instance.handle.exited().await;
    say(&format!("exit {end} {}", instance.handle.stderr_tail()));
    ExitCode::SUCCESS
}

fn package_options(install: &str) -> PackageOptions {
    let bound = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    PackageOptions {
        install: install.to_owned(),
        shim: SentinelCommand::this_binary(["shim"]),
        bounds: Bounds {
            bytes: bound("VICTIM_BYTES", 2 << 30),
            files: bound("VICTIM_FILES", 200_000),
        },
        hosts: Vec::new(),
    }
}

/// Installs the package that a command line of `npx` or `uvx` names.
#[tokio::main]
async fn install(dir: &str, program: &str, args: &[&str]) -> ExitCode {
    let spawner = spawner();
    let packages = Packages::new(dir.into(), spawner.clone(), true, package_options("victim"));
    let program = Program::Command {
        program: program.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    };
    let launch = Launch::new(program, Place::Host);
    match packages.newest("victim", &launch).await {
        Ok(version) => say(&format!("installed {version}")),
        Err(error) => say(&format!("error {error}")),
    }
    ExitCode::SUCCESS
}

fn unit(label: &str, script: &str, place: Place) -> Unit {
    let program = Program::Command {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
    };
    Unit::new(label, Launch::new(program, place))
}

fn confined(id: &str, script: &str, strict: bool) -> Unit {
    let mut sandbox = Sandbox::new(id);
    sandbox.volumes = vec!["/data".into()];
    sandbox.limits.disk = 32 << 20;
    sandbox.strict = strict;
    unit(id, script, Place::Sandbox(sandbox))
}

#[tokio::main]
async fn sandbox(install: &str, dir: &str, count: &str, script: &str) -> ExitCode {
    let spawner = spawner();
    let sandbox = ground(&spawner, install, &format!("{dir}/state"));
    let mut instances = Vec::new();
    for number in 0..count.parse().expect("a count") {
        let unit = confined(
            &format!("server-{number}"),
            &format!("{script} echo up; wait"),
            false,
        );
        let mut instance = sandbox.launch(unit).await.expect("it starts");
        let stdio = instance.stdio.as_mut().expect("it is bridged");
        let mut line = String::new();
        let mut stdout = BufReader::new(&mut stdio.stdout);
        stdout.read_line(&mut line).await.expect("a line");
        instances.push(instance);
    }
    say("ready");
    std::future::pending().await
}

#[tokio::main]
async fn rootless(dir: &str, script: &str) -> ExitCode {
    let spawner = spawner();
    let sandbox = ground(&spawner, "rootless", dir);
    match sandbox.probe().await {
        Ok(text) => say(&format!("probe {text}")),
        Err(error) => say(&format!("probe failed: {error}")),
    }
    match sandbox.launch(confined("server", script, false)).await {
        Ok(mut instance) => {
            let stdio = instance.stdio.as_mut().expect("it is bridged");
            let usage = instance.handle.usage().await;
            drop(std::mem::replace(
                &mut stdio.stdin,
                Box::new(tokio::io::sink()),
            ));
            if let Some(usage) = usage {
                say(&format!("usage {}", usage.pids));
            }
            let mut text = String::new();
            stdio.stdout.read_to_string(&mut text).await.expect("text");
            for line in text.lines() {
                say(&format!("out {line}"));
            }
            for row in instance.enforced.iter() {
                say(&format!("{} {} {}", row.what, row.holds, row.how));
            }
            say(&format!("exit {}", instance.handle.exited().await));
            say(&instance.handle.stderr_tail());
        }
        Err(error) => say(&format!("launch failed: {error}")),
    }
    match sandbox.launch(confined("strict", "true", true)).await {
        Ok(_) => say("strict started"),
        Err(error) => say(&format!("strict {error}")),
    }
    ExitCode::SUCCESS
}
