//! Checks which limits hold for a container, and which are reported as enforced.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use containers::docker::Docker;
use model::{Mount, Provider};
use runtime::{Error, Runtime as _};
use testkit::{PROMISES, in_time};
use tokio::time::Instant;

use crate::support::{BOTH, TEST_TIMEOUT, bench, holds, read_until, running, sh};

#[tokio::test]
async fn h16_the_default_limits_are_enforced() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut server = running(&["/bin/cat"]);
        server.sandbox.volumes = vec!["/data".into()];
        let instance = bench.launch(server).await.unwrap();
        let rows = &instance.enforced;
        for what in PROMISES {
            assert!(holds(&instance, what), "{provider:?}: {rows:?}");
        }
        assert_eq!(holds(&instance, "kernel"), provider == Provider::Gvisor);
        let text = format!("{:?}", instance.enforced);
        for number in ["0.5 cores", "536870912", "1073741824", "512", "50000"] {
            assert!(text.contains(number), "{number} is not in {text}");
        }
        let usage = instance.handle.usage().await.unwrap();
        assert!(
            usage.memory > 0 && usage.memory_peak >= usage.memory,
            "{usage:?}"
        );
        assert!(usage.pids > 0 && usage.cpu > Duration::ZERO, "{usage:?}");
        instance.handle.kill_now();
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        assert_eq!((exit.signal, exit.out_of_memory), (Some(9), false));
        bench.nothing_left().await;
        bench.runtime.volumes_remove("h1", None).await.unwrap();
    }
}

#[tokio::test]
async fn h17_a_memory_hog_is_killed_and_that_is_told() {
    for provider in BOTH {
        let bench = bench(provider);
        // tail buffers a line until its end, and this line has no end.
        let mut hog = sh("echo up; tail -n 1 /dev/zero; echo survived");
        hog.sandbox.limits.memory = 64 << 20;
        let start = Instant::now();
        let (text, exit, instance) = bench.run(hog).await;
        assert!(holds(&instance, "memory"));
        assert!(
            exit.out_of_memory,
            "{provider:?}: {exit}, {text:?}, {:?}",
            start.elapsed()
        );
        if provider == Provider::Gvisor {
            // The host kernel kills gVisor's kernel process, with everything in it.
            assert_eq!((text.as_str(), exit.signal), ("up\n", Some(9)));
        }
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h17_the_given_limits_are_enforced() {
    for provider in BOTH {
        let bench = bench(provider);
        let script = "dd if=/dev/zero of=/data/x bs=65536 count=2000 2>&1; rm /data/x;
            dd if=/dev/zero of=/tmp/x bs=65536 count=2000 2>&1;
            dd if=/dev/zero of=/image-volume/x bs=65536 count=2000 2>&1;
            echo x > /x; echo end";
        let mut server = sh(script);
        server.sandbox.volumes = vec!["/data".into()];
        server.sandbox.limits.disk = 32 << 20;
        server.sandbox.limits.cpu_millis = 1000;
        server.sandbox.limits.memory = 128 << 20;
        server.sandbox.limits.pids = 256;
        server.sandbox.strict = true;
        let (text, exit, instance) = bench.run(server).await;
        assert!(exit.success(), "{provider:?}: {exit}: {text}");
        assert_eq!(
            text.matches("No space left").count(),
            3,
            "{provider:?}: {text}"
        );
        let stderr = instance.handle.stderr_tail();
        assert!(
            stderr.contains("Read-only file system"),
            "{provider:?}: {stderr}"
        );
        bench.runtime.volumes_remove("h1", None).await.unwrap();
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn strict_leaves_nothing_of_what_it_refuses() {
    // This limit allows fewer processes than gVisor itself needs.
    let bench = bench(Provider::Gvisor);
    let mut few = running(&["/bin/cat"]);
    few.sandbox.limits.pids = 16;
    let instance = bench.launch(few.clone()).await.unwrap();
    assert!(!holds(&instance, "pids"));
    drop(instance);
    bench.nothing_left().await;
    few.sandbox.strict = true;
    let error = bench.launch(few).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "pids", .. }),
        "{error}"
    );
    bench.nothing_left().await;
}

/// Returns whether each loop device on a file below `dir` uses direct I/O.
fn direct(dir: &Path) -> Vec<String> {
    let of = |device: fs::DirEntry| {
        let at = device.path().join("loop");
        let file = fs::read_to_string(at.join("backing_file")).ok()?;
        let ours = Path::new(&file).starts_with(dir);
        let dio = fs::read_to_string(at.join("dio")).ok()?;
        ours.then(|| dio.trim().to_owned())
    };
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(of).collect()
}

#[tokio::test]
async fn h19_h20_volumes_survive_their_instances() {
    for provider in BOTH {
        let bench = bench(provider);
        let with_volumes = |script| {
            let mut server = sh(script);
            server.sandbox.volumes = vec!["/data".into(), "/var/lib/x".into()];
            server.sandbox.limits.disk = 64 << 20;
            server
        };
        let write = "echo one > /data/file; echo two > /var/lib/x/file; sync; echo up; sleep 1000";
        let mut instance = bench.launch(with_volumes(write)).await.unwrap();
        read_until(&mut instance, "up").await;
        // With direct I/O, written data is cached only once.
        assert_eq!(direct(&bench.options.dir), ["1", "1"], "{provider:?}");
        instance.handle.kill_now();
        in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        let read = "cat /data/file /var/lib/x/file";
        let (text, ..) = bench.run(with_volumes(read)).await;
        assert_eq!(text, "one\ntwo\n", "{provider:?}");

        // A higher limit enlarges the volumes and keeps their content.
        let mut larger = with_volumes("cat /data/file; df -m /data | tail -n 1");
        larger.sandbox.limits.disk = 256 << 20;
        let (text, _, instance) = bench.run(larger).await;
        assert!(
            text.starts_with("one\n") && holds(&instance, "disk"),
            "{text}"
        );
        let size: u32 = text.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!((100..=128).contains(&size), "{text}");
        // A lower limit is reported as not enforced.
        let (_, _, instance) = bench.run(with_volumes("true")).await;
        assert!(!holds(&instance, "disk"));

        bench.runtime.volumes_remove("h1", None).await.unwrap();
        assert_eq!(bench.list(&["volume", "ls"]), "");
        let (text, exit, instance) = bench.run(with_volumes(read)).await;
        assert_eq!((text.as_str(), exit.code), ("", Some(1)));
        assert!(instance.handle.stderr_tail().contains("No such file"));
        bench.runtime.volumes_remove("h1", None).await.unwrap();
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn a_container_has_no_network_and_no_privileges() {
    for provider in BOTH {
        let bench = bench(provider);
        let script =
            "ls /sys/class/net; grep Cap /proc/self/status; id -u; ls /image-volume && echo there";
        let (text, exit, _) = bench.run(sh(script)).await;
        assert!(exit.success(), "{text}");
        assert!(!text.contains("eth"), "{text}");
        let capabilities: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("Cap"))
            .collect();
        assert!(!capabilities.is_empty(), "{text}");
        assert!(
            capabilities
                .iter()
                .all(|line| line.ends_with("\t0000000000000000")),
            "{text}"
        );
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn a_mount_is_read_only_if_it_is_said_so() {
    for provider in BOTH {
        let bench = bench(provider);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "from the host\n").unwrap();
        let mut server = sh("cat /mnt/file; echo changed > /mnt/file");
        server.sandbox.mounts = vec![Mount {
            host: dir.path().to_owned(),
            inside: "/mnt".into(),
            read_only: true,
        }];
        let (text, exit, _) = bench.run(server.clone()).await;
        assert_eq!(
            (text.as_str(), exit.code),
            ("from the host\n", Some(1)),
            "{provider:?}"
        );
        server.sandbox.mounts[0].read_only = false;
        let (_, exit, instance) = bench.run(server).await;
        assert!(exit.success(), "{exit}: {}", instance.handle.stderr_tail());
        let text = fs::read_to_string(dir.path().join("file")).unwrap();
        assert_eq!(text, "changed\n", "{provider:?}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h17_a_fork_bomb_is_contained() {
    let bench = bench(Provider::Runc);
    let mut bomb = sh("for i in $(seq 100); do sleep 1000 & done; echo survived");
    bomb.sandbox.limits.pids = 16;
    let (text, exit, instance) = bench.run(bomb).await;
    assert!(
        holds(&instance, "pids") && !exit.success(),
        "{exit}: {text}"
    );
    let stderr = instance.handle.stderr_tail();
    assert!(stderr.contains("fork"), "{stderr}");
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_flood_is_bounded() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut loud = sh("yes $(seq 300) | head -c 64000000 >&2; yes");
        loud.sandbox.limits.cpu_millis = 2000;
        let mut instance = bench.launch(loud).await.unwrap();
        // stderr is always read, but stdout blocks while it is not read.
        read_until(&mut instance, "y\n").await;
        let tail = instance.handle.stderr_tail().len();
        assert!((60_000..=64 << 10).contains(&tail), "{tail}");
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak: u64 = peak
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        assert!(peak < 64 << 10, "{peak} KiB");
        instance.handle.kill_now();
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        assert_eq!(exit.signal, Some(9));
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h18_what_is_not_gvisor_is_not_believed() {
    // This runtime of the daemon is in fact runc, under another name.
    let mut bench = bench(Provider::Gvisor);
    bench.options.runtime = "not-runsc".into();
    bench.runtime = Docker::new(bench.options.clone()).unwrap();
    let error = bench.launch(running(&["/bin/cat"])).await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Unavailable(_)) && text.contains("not-runsc"),
        "{text}"
    );
    bench.nothing_left().await;
}

#[tokio::test]
async fn volumes_without_a_limit_are_told_and_kept() {
    let mut bench = bench(Provider::Runc);
    // No file can be created below this path.
    bench.options.dir = PathBuf::from("/dev/null/volumes");
    let without = Docker::new(bench.options.clone()).unwrap();
    let with = std::mem::replace(&mut bench.runtime, without);
    let mut writer = sh("echo kept > /data/file");
    writer.sandbox.volumes = vec!["/data".into()];
    let mut strict = writer.clone();
    strict.sandbox.strict = true;
    let error = bench.launch(strict).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "disk", .. }),
        "{error}"
    );
    assert_eq!(bench.list(&["volume", "ls"]), "");
    let (_, exit, instance) = bench.run(writer.clone()).await;
    assert!(exit.success() && !holds(&instance, "disk"));
    // Once limits are supported again, the existing volume is not hidden by an empty one.
    bench.runtime = with;
    let mut reader = sh("cat /data/file");
    reader.sandbox.volumes = writer.sandbox.volumes;
    let (text, _, instance) = bench.run(reader).await;
    assert!(text == "kept\n" && !holds(&instance, "disk"), "{text}");
    bench.runtime.volumes_remove("h1", None).await.unwrap();
    bench.nothing_left().await;
}
