//! The kernel enforces limits on programs that try to exceed them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use model::{ResourceLimits, Sandbox};
use runtime::{Error, Instance, Runtime as _, Visible};
use testkit::{PROMISES, in_time, soak};
use tokio::time::Instant;

use crate::ground::{Ground, line, python, read, row, running, say, sh, with_data};
use crate::support::{TEST_TIMEOUT, wait_for};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn h16_defaults_are_enforced() {
    let ground = Ground::new();
    let mut instance = ground.up(sh("echo up; read line")).await;
    for what in PROMISES.into_iter().chain(["system calls"]) {
        assert!(row(&instance, what).holds, "{:?}", instance.enforced);
    }
    assert!(!row(&instance, "kernel").holds);
    for (what, number) in [("memory", "536870912"), ("cpu", "50000")] {
        let how = &row(&instance, what).how;
        assert!(how.contains(number), "{how}");
    }
    assert_eq!(instance.enforced.len(), 9);
    let usage = instance.handle.usage().await.unwrap();
    assert!(usage.pids >= 3 && usage.memory_peak > 0, "{usage:?}");
    drop(instance.stdio.take());
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    let stderr = instance.handle.stderr_tail();
    assert_eq!(exit.code, Some(1), "{exit} {stderr}");
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
    assert_eq!(instance.handle.usage().await, None);
}

/// Asserts in a soak run, when no other test runs, that a server was killed soon after it began to exceed its limits.
fn contained(what: &str, took: Duration) {
    let most = Duration::from_secs(1);
    eprintln!("hogs: {what} ended after {took:?} (bound {most:?})");
    assert!(!soak() || took <= most, "{what}: {took:?}");
}

#[tokio::test]
async fn h17_a_memory_hog_is_killed_and_that_is_what_is_said() {
    let ground = Ground::new();
    let script = "b = []\nprint('lit', flush=True)\nwhile True: b.append(bytearray(1 << 20))";
    let mut hog = python(script);
    hog.sandbox.limits.memory = 64 * MIB;
    let mut instance = ground.launch(hog).await.unwrap();
    assert_eq!(line(&mut instance).await, "lit");
    let lit = Instant::now();
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    contained("out of memory", lit.elapsed());
    let stderr = instance.handle.stderr_tail();
    assert!(exit.out_of_memory, "{exit} {stderr}");
    assert_eq!(exit.to_string(), "exit code 137 (out of memory)");
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn it_knows_its_memory_limit_and_its_name() {
    let ground = Ground::new();
    let script = r#"
import os, socket, sys
print(os.environ["NODE_OPTIONS"], os.environ["GOMEMLIMIT"], socket.gethostbyname(socket.gethostname()), flush=True)
sys.stdin.readline()
"#;
    let mut server = python(script);
    server.sandbox.limits.memory = 64 * MIB;
    let mut instance = ground.launch(server).await.unwrap();
    let said = line(&mut instance).await;
    assert_eq!(said, "--max-old-space-size=48 60397974 127.0.0.1");
}

/// Java and .NET size their heaps by these files. The server sees no control group but its own, and cannot change it.
#[tokio::test]
async fn it_can_read_its_own_control_group() {
    let ground = Ground::new();
    let script = r#"
import os, sys
base = "/sys/fs/cgroup"
version_2 = os.path.exists(base + "/memory.max")
directory, file = (base, "memory.max") if version_2 else (base + "/memory", "memory.limit_in_bytes")
print(open(f"{directory}/{file}").read().strip())
print(os.listdir("/sys"), os.listdir("/sys/fs"), [entry.name for entry in os.scandir(directory) if entry.is_dir()])
try: open(f"{directory}/{file}", "w"); print("writable")
except OSError: print("read-only")
mount = [line for line in open("/proc/self/mountinfo") if f" {directory} " in line]
print(len(mount), [line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup") if "memory" in line or line.startswith("0:")], flush=True)
sys.stdin.readline()
"#;
    let mut server = python(script);
    server.sandbox.limits.memory = 64 * MIB;
    let mut instance = ground.launch(server).await.unwrap();
    assert!(row(&instance, "memory").holds, "{:?}", instance.enforced);
    for expected in [
        (64 * MIB).to_string().as_str(),
        "['fs'] ['cgroup'] []",
        "read-only",
    ] {
        assert_eq!(line(&mut instance).await, expected);
    }
    // In its namespace, the group is the root, as the runtimes expect for these paths.
    let last = line(&mut instance).await;
    assert!(last == "1 ['/']" || last == "1 ['/', '/']", "{last}");
    let files = instance.files.as_ref().expect("a list");
    let is_group = |one: &Visible| one.path.starts_with("/sys/fs/cgroup");
    assert!(files.visible.iter().any(is_group), "{files:?}");
}

/// The heap limit of Node.js is below the memory limit, so it exits before the kernel kills it.
#[tokio::test]
async fn h17_a_full_heap_is_out_of_memory_too() {
    let ground = Ground::new();
    let script = "const all = []; for (;;) all.push(new Array(1e5).fill(0.5))";
    let mut hog = running("node", &["-e", script]);
    hog.sandbox.limits.cpu_millis = 2000;
    let instance = ground.launch(hog).await.unwrap();
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    let stderr = instance.handle.stderr_tail();
    assert!(exit.out_of_memory, "{exit} {stderr}");
    assert_ne!(exit.code, Some(137), "the kernel did not kill it");
}

#[tokio::test]
async fn a_hog_that_is_the_servers_child_dies_alone() {
    let ground = Ground::new();
    let script = r#"
import subprocess, sys
hog = subprocess.run([sys.executable, "-c", "b = []\nwhile True: b.append(bytearray(1 << 20))"])
print(hog.returncode, flush=True)
sys.stdin.readline()
sys.exit(3)
"#;
    let mut server = python(script);
    server.sandbox.limits.memory = 96 * MIB;
    let mut instance = ground.launch(server).await.unwrap();
    assert_eq!(line(&mut instance).await, "-9", "the child was killed");
    assert_eq!(instance.handle.exit_status(), None, "the server was not");
    let usage = instance.handle.usage().await.unwrap();
    assert!(
        usage.memory_peak > 90 * MIB && usage.memory < 64 * MIB,
        "{usage:?}"
    );
    say(&mut instance, "end\n").await;
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(exit.to_string(), "exit code 3");
}

#[tokio::test]
async fn a_stop_after_a_childs_death_is_not_out_of_memory() {
    let ground = Ground::new();
    let script = "trap '' TERM; python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 20))'; echo $?; read line; read line";
    let mut server = sh(script);
    server.sandbox.limits.memory = 64 * MIB;
    server.env.insert("PATH".into(), "/usr/bin:/bin".into());
    let mut instance = ground.launch(server).await.unwrap();
    assert_eq!(line(&mut instance).await, "137");
    let exit = instance.handle.stop(Duration::from_millis(50)).await;
    assert_eq!(
        (exit.signal, exit.out_of_memory),
        (Some(9), false),
        "{exit}"
    );
}

#[tokio::test]
async fn a_fork_bomb_stays_small() {
    let ground = Ground::new();
    let script = r#"
import os, time, sys
count = 1
while True:
    try: pid = os.fork()
    except OSError as e: break
    if pid == 0: time.sleep(1000)
    count += 1
print(count, "no more", flush=True)
sys.stdin.readline()
"#;
    let mut bomb = python(script);
    bomb.sandbox.limits.pids = 20;
    let mut instance = ground.launch(bomb).await.unwrap();
    assert_eq!(line(&mut instance).await, "20 no more");
    assert_eq!(instance.handle.usage().await.unwrap().pids, 22);
    // The processes of another server are counted separately.
    let mut other = sh("true & wait; echo fine");
    other.sandbox.id = "other".into();
    assert_eq!(ground.run(other).await.0, "fine\n");
    instance.handle.kill_now();
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn h17_a_fork_bomb_is_ended_and_that_is_what_is_said() {
    let ground = Ground::new();
    let script = r#"
import os, time, sys
print("lit", flush=True)
while True:
    try: pid = os.fork()
    except OSError: continue
    if pid == 0: time.sleep(1000)
"#;
    let mut bomb = python(script);
    bomb.sandbox.limits.pids = 20;
    let mut instance = ground.launch(bomb).await.unwrap();
    assert_eq!(line(&mut instance).await, "lit");
    let lit = Instant::now();
    let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    contained("a fork bomb", lit.elapsed());
    assert!(exit.fork_bomb && !exit.out_of_memory, "{exit}");
    assert!(exit.to_string().contains("(fork bomb: "), "{exit}");
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

const FILL_SCRIPT: &str = r#"
import sys, os
total = 0
for number, path in enumerate(sys.argv[1:]):
    try:
        with open(f"{path}/fill{number}", "wb", buffering=0) as f:
            while True: total += f.write(bytes(1 << 16))
    except OSError as e: print(path, e.strerror)
print(total)
"#;

/// Fills these folders, each until there is no space left. Returns the total number of bytes.
async fn fill(ground: &Ground, folders: [&str; 5], sandbox: Sandbox) -> (u64, Instance) {
    let args = [&["-c", FILL_SCRIPT][..], &folders].concat();
    let mut filler = running("/usr/bin/python3", &args);
    filler.sandbox = sandbox;
    let (text, instance) = ground.run(filler).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text} {}", instance.handle.stderr_tail());
    for line in &lines[..5] {
        assert!(line.ends_with("No space left on device"), "{text}");
    }
    (lines[5].parse().unwrap(), instance)
}

#[tokio::test]
async fn a_disk_filler_gets_an_error_on_scratch() {
    let mut sandbox = Sandbox::new("server");
    sandbox.limits.disk = 32 * MIB;
    let folders = ["/tmp", "/var/tmp", "/tmp/home", "/dev/shm", "/run"];
    let (total, _) = fill(&Ground::new(), folders, sandbox).await;
    assert!(total > 30 * MIB && total <= 32 * MIB, "{total}");
}

#[tokio::test]
async fn a_disk_filler_gets_an_error_on_its_volumes_and_scratch_together() {
    let ground = Ground::new();
    let mut sandbox = Sandbox::new("server");
    sandbox.volumes = vec!["/data".into(), "/cache/deep".into()];
    sandbox.limits.disk = 64 * MIB;
    sandbox.strict = true;
    let folders = ["/data", "/cache/deep", "/tmp", "/dev/shm", "/run"];
    let (total, instance) = fill(&ground, folders, sandbox).await;
    assert!(total > 40 * MIB && total <= 64 * MIB, "{total}");
    assert!(row(&instance, "disk").holds, "{:?}", instance.enforced);
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn a_volume_is_written_past_the_cache_of_the_host() {
    let ground = Ground::new();
    let _instance = ground.up(with_data("echo up; read line")).await;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = ground.directory.path().to_str().unwrap();
    let mount = mounts.lines().find(|line| line.contains(at)).unwrap();
    let name = mount.strip_prefix("/dev/").unwrap().split(' ').next();
    let direct = format!("/sys/block/{}/loop/dio", name.unwrap());
    assert_eq!(fs::read_to_string(direct).unwrap(), "1\n");
}

#[tokio::test]
async fn a_burner_has_its_share_of_the_processors() {
    let ground = Ground::new();
    let mut burner = sh("(while :; do :; done) & echo up; while :; do :; done");
    burner.sandbox.limits.cpu_millis = 200;
    let instance = ground.up(burner).await;
    let first = instance.handle.usage().await.unwrap().cpu;
    let begun = Instant::now();
    // The window lasts as long as it takes to use one second of processor time.
    let mut last = first;
    let deadline = begun + TEST_TIMEOUT;
    while last < first + Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "it uses {last:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        last = instance.handle.usage().await.unwrap().cpu;
    }
    let share = (last - first).as_secs_f64() / begun.elapsed().as_secs_f64();
    eprintln!("share of one core: {share:.3}, of 0.200");
    assert!(share < 0.23, "{share}");
}

#[tokio::test]
async fn usage_grows() {
    let ground = Ground::new();
    let script = "import sys\nprint('up', flush=True)\nsys.stdin.readline()\nb = bytearray(40 << 20)\nfor i in range(3_000_000): pass\nprint('done', flush=True)\nsys.stdin.readline()";
    let mut instance = ground.up(python(script)).await;
    let before = instance.handle.usage().await.unwrap();
    say(&mut instance, "go\n").await;
    assert_eq!(line(&mut instance).await, "done");
    let after = instance.handle.usage().await.unwrap();
    assert!(after.cpu > before.cpu, "{before:?} {after:?}");
    assert!(
        after.memory > before.memory + 38 * MIB,
        "{before:?} {after:?}"
    );
    assert!(after.memory_peak >= after.memory);
    assert_eq!(after.pids, 3);
}

#[tokio::test]
async fn h19_a_volume_survives_restarts() {
    let ground = Ground::new();
    let with = |script: &str, disk: u64| {
        let mut server = with_data(script);
        server.sandbox.limits = ResourceLimits {
            disk,
            ..server.sandbox.limits
        };
        server
    };
    let (text, _) = ground
        .run(with(
            "echo kept > /data/file; ls /data; echo gone > /tmp/file",
            32 * MIB,
        ))
        .await;
    assert_eq!(text, "file\n");
    let show = "cat /data/file; ls /tmp; df -k --output=size /data | tail -1";
    let (text, instance) = ground.run(with(show, 32 * MIB)).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..2],
        ["kept", "home"],
        "{text} {}",
        instance.handle.stderr_tail()
    );
    let size = |text: &str| text.lines().last().unwrap().trim().parse::<u64>().unwrap() * 1024;
    assert!(size(&text) <= 32 * MIB);
    // A server with another id does not see the file.
    let mut other = with("ls /data", 32 * MIB);
    other.sandbox.id = "other".into();
    assert_eq!(ground.run(other).await.0, "");
    // The limit is first raised, then lowered.
    for disk in [80 * MIB, 24 * MIB] {
        let (text, instance) = ground.run(with(show, disk)).await;
        assert!(text.starts_with("kept\n"), "{text}");
        assert!(size(&text) <= disk && size(&text) > disk / 3, "{text}");
        assert!(row(&instance, "disk").holds, "{:?}", instance.enforced);
    }
    ground.sandbox.volumes_remove("server", None).await.unwrap();
    assert_eq!(ground.run(with("ls /data", 32 * MIB)).await.0, "");
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn h20_what_was_written_before_a_crash_is_read_after_it() {
    let ground = Ground::new();
    let mut server = with_data("seq 100000 > /data/numbers; echo written; kill -9 $$");
    let mut instance = ground.launch(server.clone()).await.unwrap();
    assert_eq!(read(&mut instance).await, "written\n");
    assert_eq!(instance.handle.exited().await.code, Some(137));
    server.program = sh("tail -n 1 /data/numbers; wc -l < /data/numbers").program;
    assert_eq!(ground.run(server).await.0, "100000\n100000\n");
}

#[tokio::test]
async fn an_instance_that_ends_takes_no_volume_from_the_next() {
    let ground = Ground::new();
    let server = with_data("echo up; read line; echo $line >> /data/file; sync; cat /data/file");
    let mut old = ground.up(server.clone()).await;
    let mut new = ground.up(server).await;
    say(&mut old, "old\n").await;
    assert_eq!(read(&mut old).await, "old\n");
    in_time(TEST_TIMEOUT, old.handle.exited()).await;
    say(&mut new, "new\n").await;
    assert_eq!(read(&mut new).await, "old\nnew\n");
    in_time(TEST_TIMEOUT, new.handle.exited()).await;
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn volumes_in_use_are_not_removed() {
    let ground = Ground::new();
    let server = with_data("echo up; read line");
    let instance = ground.up(server).await;
    let error = ground
        .sandbox
        .volumes_remove("server", None)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Refused {
                field: "volumes",
                ..
            }
        ),
        "{error}"
    );
    drop(instance);
    wait_for("its end", || ground.left().is_empty()).await;
    ground.sandbox.volumes_remove("server", None).await.unwrap();
}

#[tokio::test]
async fn strict_does_not_start_without_a_limit() {
    let ground = Ground::new();
    // The volume's directory exists, as on a host where no file system can be created for it.
    let data = ground.directory.path().join("state/volumes/server/data");
    fs::create_dir_all(&data).unwrap();
    let mut server = with_data("echo ran > /data/ran");
    server.sandbox.strict = true;
    let error = ground.launch(server.clone()).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "disk", .. }),
        "{error}"
    );
    assert_eq!(ground.left(), [] as [PathBuf; 0]);
    assert!(!data.join("%2Fdata/ran").exists());
    server.sandbox.strict = false;
    let (_, instance) = ground.run(server).await;
    assert!(!row(&instance, "disk").holds);
    assert!(
        data.join("%2Fdata/ran").exists(),
        "{}",
        instance.handle.stderr_tail()
    );
}
