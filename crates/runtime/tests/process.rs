//! The lifecycle of an instance, with real processes.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Launch, Place, Program, Reach, Sandbox};
use runtime::process::{Exit, Missed};
use runtime::{Error, Runtime, Unit};
use support::{
    TEST_TIMEOUT, alive, bubblewrap, children, command, descriptors, family, marked, options,
    peak_memory, read_to_end, read_until, sh, spawner, up, wait_for,
};
use testkit::{in_time, soak};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

const SIGTERM: Option<i32> = Some(15);
const SIGKILL: Option<i32> = Some(9);

#[tokio::test]
async fn bytes_go_through_untouched() {
    let mut instance = spawner().spawn(command("cat", &[])).await.unwrap();
    let sent: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut stdin = instance.stdin;
    let writing = async {
        stdin.write_all(&sent).await.unwrap();
        drop(stdin);
    };
    let mut received = Vec::new();
    let reading = instance.stdout.read_to_end(&mut received);
    let ((), read) = in_time(TEST_TIMEOUT, async { tokio::join!(writing, reading) }).await;
    read.unwrap();
    assert!(received == sent);
    let exit = instance.handle.exited().await;
    assert!(exit.success());
    assert_eq!(instance.handle.exit_status(), Some(exit));
}

#[tokio::test]
async fn a09_a_child_sees_its_own_variables_only() {
    let spawner = spawner();
    let mut first = command("env", &["-0"]);
    first.label = "first".into();
    Arc::make_mut(&mut first.launch).env =
        BTreeMap::from([("FIRST_KEY".into(), "one\ntwo".into())]);
    let mut second = command("env", &["-0"]);
    Arc::make_mut(&mut second.launch).env = BTreeMap::from([("SECOND_KEY".into(), "2".into())]);

    let basic = [
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    ];
    // The test runner sets dozens of other variables for this process.
    assert!(std::env::vars().any(|(name, _)| name.starts_with("CARGO")));
    for (unit, own) in [(first, "FIRST_KEY"), (second, "SECOND_KEY")] {
        let expected = unit.launch.env[own].clone();
        let mut instance = spawner.spawn(unit).await.unwrap();
        let text = read_to_end(&mut instance).await;
        let seen: BTreeMap<&str, &str> = text
            .split_terminator('\0')
            .map(|variable| variable.split_once('=').unwrap())
            .collect();
        for &name in seen.keys() {
            let known = basic.contains(&name)
                || name.starts_with("LC_")
                || [own, "TOOLWHARF_INSTANCE"].contains(&name);
            assert!(known, "{name} must not reach a child");
        }
        assert_eq!(seen[own], expected);
        assert!(seen.contains_key("PATH"));
        assert!(seen["TOOLWHARF_INSTANCE"].starts_with(spawner.run_id()));
    }
}

#[tokio::test]
async fn a_child_has_three_descriptors_and_its_own_session() {
    let script = "import os, sys
fds = []
for fd in range(3, 1000):
    try: os.fstat(fd); fds.append(fd)
    except OSError: pass
try: os.open('/dev/tty', os.O_RDWR); tty = True
except OSError: tty = False
print(fds, os.getsid(0) == os.getpid() == os.getpgid(0), tty)";
    let spawner = spawner();
    let _other = spawner.spawn(command("sleep", &["1000"])).await.unwrap();
    let mut instance = spawner
        .spawn(command("python3", &["-c", script]))
        .await
        .unwrap();
    assert_eq!(read_to_end(&mut instance).await.trim(), "[] True False");
}

#[tokio::test]
async fn a11_stop_all_reaps_everything() {
    let spawner = spawner();
    let mut instances = Vec::new();
    for _ in 0..10 {
        let instance = up(&spawner, "sleep 1000 & setsid sleep 1000 & echo up; wait").await;
        instances.push(instance);
    }
    // A process in the middle of an `exec` has no environment, so the marker is missing.
    wait_for("all of them", || marked(spawner.run_id()).len() >= 30).await;
    spawner.stop_all(Duration::from_secs(5)).await;
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
    assert_eq!(children().len(), 1, "only the sentinel is left");
    for instance in &instances {
        assert_eq!(instance.handle.exit_status().unwrap().signal, SIGTERM);
    }
    let refused = spawner.spawn(sh("true")).await.unwrap_err().to_string();
    assert!(refused.contains("stopping"), "{refused}");
}

#[tokio::test]
async fn stop_ends_all_kinds_of_descendants() {
    // One spawner for all scripts: the sentinel of another spawner would exist briefly after it.
    let spawner = spawner();
    for script in [
        "sleep 1000 & sleep 1000",
        "sleep 1000 & sleep 1000 & echo up; exit 0",
        "setsid sleep 1000 & setsid sleep 1000 & echo up; wait",
        "set -m; sleep 1000 & sleep 1000 & echo up; wait",
        // The leader executes another program. Its first child has no marker, but stays in the session.
        "env -i sleep 1000 & exec sleep 1000",
        // The script forks several times, each time in a new session.
        "setsid setsid setsid sh -c 'sleep 1000 & setsid sleep 1000 & wait' & wait",
    ] {
        let mut instance = spawner.spawn(sh(script)).await.unwrap();
        let (run, leader) = (spawner.run_id(), instance.handle.pid().unwrap());
        // Some scripts exit on their own, so the test waits for their output.
        if script.contains("echo up") {
            read_until(&mut instance, "up").await;
        } else {
            // Otherwise, the test waits for a second process, or for a leader that exited with code 0 after it had
            // started its descendants.
            let ended = || instance.handle.exit_status();
            wait_for("the descendants", || {
                family(run, leader).len() >= 2 || ended().is_some_and(|exit| exit.code == Some(0))
            })
            .await;
        }
        let begun = Instant::now();
        instance.handle.stop(TEST_TIMEOUT).await;
        assert!(
            begun.elapsed() < TEST_TIMEOUT / 2,
            "{script}: none of them ignores SIGTERM"
        );
        assert_eq!(family(run, leader), [] as [u32; 0], "{script}");
        assert_eq!(children().len(), 1, "{script}: {:?}", children());
    }
}

#[tokio::test]
async fn what_a_leader_leaves_behind_dies_with_it() {
    let spawner = spawner();
    let script = "sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & exit 3";
    let instance = spawner.spawn(sh(script)).await.unwrap();
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(
        exit,
        Exit {
            code: Some(3),
            ..Exit::default()
        }
    );
    assert_eq!(exit.to_string(), "exit code 3");
    assert_eq!(
        family(spawner.run_id(), instance.handle.pid().unwrap()),
        [] as [u32; 0]
    );
}

#[tokio::test]
async fn orphans_are_reaped_where_they_become_children_of_the_host() {
    // The first process of a container adopts orphans in the same way.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let spawner = spawner();
    let script = "sh -c 'sleep 1000 & setsid sleep 1000 & sleep 1000 & exit'; echo up; wait; cat";
    for kill in [false, true] {
        let instance = up(&spawner, script).await;
        wait_for("orphans", || children().len() == 5).await;
        if kill {
            instance.handle.kill_now();
            instance.handle.exited().await;
        } else {
            instance.handle.stop(TEST_TIMEOUT).await;
        }
        assert_eq!(children().len(), 1, "only the sentinel is left");
    }
}

#[tokio::test]
async fn who_ignores_sigterm_is_killed_after_the_grace() {
    let spawner = spawner();
    let script = "trap '' TERM; sleep 1000 & echo up; wait; sleep 1000";
    let instance = up(&spawner, script).await;
    let grace = Duration::from_millis(300);
    let begun = Instant::now();
    let exit = instance.handle.stop(grace).await;
    assert!(begun.elapsed() >= grace);
    assert_eq!(
        exit,
        Exit {
            signal: SIGKILL,
            ..Exit::default()
        }
    );
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
}

#[tokio::test]
async fn the_child_of_a_wrapper_has_its_grace_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut unit = sh(
        "sh -c 'trap \"sleep 0.3; echo saved > saved; exit\" TERM; echo up; \
         while :; do sleep 0.01; done' & wait",
    );
    Arc::make_mut(&mut unit.launch).cwd = Some(directory.path().into());
    let spawner = spawner();
    let mut instance = spawner.spawn(unit).await.unwrap();
    read_until(&mut instance, "up").await;
    let exit = instance.handle.stop(TEST_TIMEOUT).await;
    assert_eq!(exit.signal, SIGTERM);
    let saved = std::fs::read_to_string(directory.path().join("saved")).unwrap();
    assert_eq!(saved, "saved\n");
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
}

#[tokio::test]
async fn stop_does_not_need_a_closed_stdin() {
    let instance = spawner().spawn(command("cat", &[])).await.unwrap();
    let _stdin = instance.stdin;
    let exit = instance.handle.stop(TEST_TIMEOUT).await;
    assert_eq!(exit.signal, SIGTERM);
}

#[tokio::test]
async fn a_closed_stdin_is_seen() {
    let instance = spawner().spawn(command("cat", &[])).await.unwrap();
    drop(instance.stdin);
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(exit.code, Some(0));
}

#[tokio::test]
async fn racing_stops_agree_and_the_shortest_grace_counts() {
    let spawner = spawner();
    let instance = up(
        &spawner,
        "trap '' TERM; echo up; while :; do sleep 0.01; done",
    )
    .await;
    let begun = Instant::now();
    let mut stops = tokio::task::JoinSet::new();
    for seconds in [1000, 20, 0, 600] {
        let handle = instance.handle.clone();
        stops.spawn(async move { handle.stop(Duration::from_secs(seconds)).await });
    }
    // A stop that is dropped at once changes nothing.
    let _ = timeout(Duration::ZERO, instance.handle.stop(TEST_TIMEOUT)).await;
    instance.handle.kill_now();
    let exits = in_time(TEST_TIMEOUT, stops.join_all()).await;
    assert!(exits.iter().all(|exit| exit.signal == SIGKILL), "{exits:?}");
    assert!(begun.elapsed() < Duration::from_secs(15));
    // A stop also works after the exit.
    assert_eq!(instance.handle.stop(TEST_TIMEOUT).await.signal, SIGKILL);
}

#[tokio::test]
async fn a_dropped_stop_goes_on() {
    let spawner = spawner();
    let instance = up(
        &spawner,
        "trap '' TERM; echo up; while :; do sleep 0.01; done",
    )
    .await;
    let grace = Duration::from_millis(100);
    assert!(
        timeout(Duration::ZERO, instance.handle.stop(grace))
            .await
            .is_err()
    );
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(exit.signal, SIGKILL);
}

#[tokio::test]
async fn dropping_the_last_handle_kills() {
    let spawner = spawner();
    let instance = up(
        &spawner,
        "trap '' TERM; sleep 1000 & setsid sleep 1000 & echo up; wait; wait",
    )
    .await;
    let pid = instance.handle.pid().unwrap();
    let clone = instance.handle.clone();
    let exited = clone.exited();
    drop(instance);
    assert!(alive(pid), "there is a handle yet");
    drop(clone);
    assert_eq!(in_time(TEST_TIMEOUT, exited).await.signal, SIGKILL);
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
}

#[test]
fn the_end_of_the_async_runtime_kills() {
    let spawner = spawner();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = "sleep 1000 & setsid sleep 1000 & echo up; wait";
    let instance = runtime.block_on(up(&spawner, script));
    let handle = instance.handle.clone();
    drop(runtime);
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
    let other = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(other.block_on(handle.stop(TEST_TIMEOUT)), Exit::default());
}

#[tokio::test]
async fn a_launch_that_nobody_waits_for_is_undone() {
    let spawner = spawner();
    // The delay grows until some launches were cut off and some completed. Some were then cut off in the middle.
    let (mut undone, mut done) = (0, 0);
    let begun = Instant::now();
    for round in 0_u64.. {
        let launch = spawner.spawn(command("sleep", &["1000"]));
        match timeout(Duration::from_micros(round * 40), launch).await {
            Ok(launched) => drop(launched.unwrap()),
            Err(_) => undone += 1,
        }
        done = round + 1 - undone;
        if round >= 100 && done > 0 {
            break;
        }
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "none of {undone} launches came to an end"
        );
    }
    assert!(undone > 0 && done > 0, "{undone} undone, {done} done");
    wait_for("all of them to be gone", || {
        marked(spawner.run_id()).is_empty() && children().len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_stderr_takes_bounded_memory() {
    let spawner = spawner();
    let before = peak_memory();
    for script in [
        // The scripts write data without a newline, only newlines, and lines.
        "head -c 500000000 /dev/zero >&2; echo >&2; echo last >&2",
        "yes '' | head -c 5000000 >&2; yes $(seq 100) | head -c 500000000 >&2; echo >&2; echo last >&2",
    ] {
        let instance = spawner.spawn(sh(script)).await.unwrap();
        let mut never_reads = instance.handle.follow_stderr().1;
        let exit = timeout(2 * TEST_TIMEOUT, instance.handle.exited())
            .await
            .unwrap();
        assert_eq!(exit.code, Some(0));
        let tail = instance.handle.stderr_tail();
        assert!(tail.ends_with("last\n") && tail.len() <= 64 << 10);
        let mut lines = 0;
        while let Some(line) = never_reads.next().await {
            assert!(line.is_ok() || lines == 0 && line.is_err_and(|Missed(count)| count > 0));
            lines += 1;
        }
        assert!(lines <= 257);
    }
    let grown = peak_memory() - before;
    assert!(grown < 16 << 10, "{grown} KiB");
}

#[tokio::test]
async fn stderr_is_complete_when_exited() {
    let spawner = spawner();
    for _ in 0..20 {
        let instance = spawner
            .spawn(sh(
                "for i in 1 2 3; do echo line $i >&2; done; printf end >&2; exit 1",
            ))
            .await
            .unwrap();
        let (tail, mut lines) = instance.handle.follow_stderr();
        let mut text = tail.text();
        instance.handle.exited().await;
        let expected = "line 1\nline 2\nline 3\nend\n";
        assert_eq!(instance.handle.stderr_tail(), expected);
        while let Some(line) = lines.next().await {
            text.push_str(&line.unwrap().text);
            text.push('\n');
        }
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn many_launches_leave_no_zombie_and_no_descriptor() {
    let spawner = spawner();
    let once = spawner.spawn(sh("exit 1")).await.unwrap();
    once.handle.exited().await;
    drop(once);
    let before = descriptors();
    let mut latencies = Vec::new();
    let count = if soak() { 10_000 } else { 300 };
    for _ in 0..count {
        let begun = Instant::now();
        let instance = spawner.spawn(command("true", &[])).await.unwrap();
        latencies.push(begun.elapsed());
        assert_eq!(instance.handle.exited().await.code, Some(0));
    }
    latencies.sort();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    eprintln!("spawn: p50 {:?}, p99 {:?}", at(50), at(99));
    wait_for("descriptors to be closed", || descriptors() <= before).await;
    assert_eq!(children().len(), 1, "only the sentinel is left");
    let after = descriptors();
    eprintln!("churn: {after} descriptors after {count} launches (bound {before})");
}

#[tokio::test]
async fn many_at_once() {
    let spawner = spawner();
    let mut launches = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let spawner = spawner.clone();
        launches.spawn(async move { spawner.spawn(command("cat", &[])).await.unwrap() });
    }
    let instances = in_time(TEST_TIMEOUT, launches.join_all()).await;
    assert_eq!(marked(spawner.run_id()).len(), 100);
    let begun = Instant::now();
    spawner.stop_all(TEST_TIMEOUT).await;
    eprintln!("100 stopped in {:?}", begun.elapsed());
    assert!(instances.iter().all(|i| i.handle.exit_status().is_some()));
    assert_eq!(marked(spawner.run_id()), [] as [u32; 0]);
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let spawner = spawner();
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    std::fs::write(here.join("plain"), "").unwrap();
    let script = here.join("script");
    std::fs::write(&script, "#!/nonexistent/python\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    std::os::unix::fs::symlink("/nonexistent", here.join("dangling")).unwrap();

    // Columns: program, working directory, parts of the message. `@` is the test's folder.
    let table = "
        no-such-thing | - | command `no-such-thing` not found in PATH; install it or give its full path
        npx -y thing | - | give `npx` as the command and the rest as `args`
        ~/bin/thing | - | `~` is not expanded
        @/gone | - | no such file … correct the path
        ./gone | @/ | not found from
        sh | @/gone | working directory … gone … does not exist
        sh | @/plain | working directory … is not a directory
        @/plain | - | not executable … chmod +x
        @/ | - | it is a directory
        @/script | - | interpreter … does not exist
        @/dangling | - | link to a file that does not exist
        | - | the command is empty
    ";
    for row in table.trim().lines() {
        let row = row.replace('@', here.to_str().unwrap());
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [program, cwd, expected] = columns[..] else {
            panic!("{row}");
        };
        let mut unit = command(program, &[]);
        unit.label = "weather".into();
        Arc::make_mut(&mut unit.launch).cwd = (cwd != "-").then(|| cwd.into());
        let error = spawner.spawn(unit).await.unwrap_err().to_string();
        for part in expected.split(" … ") {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
        // It is shown next to the server's name.
        assert!(!error.contains("weather"), "{error}");
    }

    let long = command("true", &[&"x".repeat(8 << 20)]);
    let error = spawner.spawn(long).await.unwrap_err().to_string();
    assert!(error.contains("getconf ARG_MAX"), "{error}");
    assert_eq!(children().len(), 1, "only the sentinel is left");
    assert!(spawner.spawn(command("true", &[])).await.is_ok());
}

#[tokio::test]
async fn the_path_of_the_server_counts() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/echo", directory.path().join("my-own-tool")).unwrap();
    let mut unit = command("my-own-tool", &["hello"]);
    let path = directory.path().display().to_string();
    let env = &mut Arc::make_mut(&mut unit.launch).env;
    env.insert("PATH".into(), path);
    let mut instance = spawner().spawn(unit).await.unwrap();
    assert_eq!(read_to_end(&mut instance).await, "hello\n");
}

/// As a runtime, the spawner runs commands of the host, and rejects units that need anything else.
#[tokio::test]
async fn the_host_runs_commands_and_no_sandboxes() {
    let spawner = spawner();
    let directory = tempfile::tempdir().unwrap();
    let bubblewrap = bubblewrap(&spawner, options("test", directory.path()));
    let mut shell = sh("echo $NAME; pwd");
    let launch = Arc::make_mut(&mut shell.launch);
    launch.env = BTreeMap::from([("NAME".into(), "value".into())]);
    launch.cwd = Some("/usr".into());
    let instance = spawner.launch(shell.clone()).await.unwrap();
    let mut text = String::new();
    let mut stdio = instance.stdio.unwrap();
    stdio.stdout.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "value\n/usr\n");
    assert!(instance.ports.is_empty() && instance.enforced.is_empty());
    instance.handle.exited().await;

    let lasts = async |runtime: &dyn Runtime, unit: Unit, expected: &str| match runtime
        .launch(unit)
        .await
        .unwrap_err()
    {
        Error::Lasting(why) => assert!(why.contains(expected), "{why}"),
        other => panic!("{other}"),
    };
    let missing = command("no-such-program", &[]);
    let expected = "command `no-such-program` not found in PATH";
    lasts(&spawner, missing, expected).await;
    let other = |change: &dyn Fn(&mut Launch)| {
        let mut unit = shell.clone();
        change(Arc::make_mut(&mut unit.launch));
        unit
    };
    let image = other(&|launch| {
        let (image, command) = ("one".to_owned(), Vec::new());
        launch.program = Program::Image { image, command };
    });
    let port = other(&|launch| {
        let path = "/".to_owned();
        launch.reach = Reach::Port { path };
    });
    let sandboxed = other(&|launch| launch.place = Place::Sandbox(Sandbox::new("one")));
    for unit in [image, port, sandboxed] {
        lasts(&spawner, unit, "on the host itself").await;
    }
    lasts(&bubblewrap, shell, "not in a sandbox").await;
}
