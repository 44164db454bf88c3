//! Hosted servers in containers of a real daemon, under runc and under gVisor.
//!
//! They need a daemon with both runtimes and the test images: `cargo xtask docker -- cargo nextest
//! run -p runtime`. Each test has an installation of its own in it.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{Hosting, Mount, Network, Provider, Source};
use runtime::docker::{Docker, Options};
use runtime::{Error, Exit, Instance, Runtime as _, Stdio, Unit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

const VARIABLE: &str = "TOOLWHARF_TEST_DOCKER";
const IMAGE: &str = "toolwharf-test/busybox";
/// Nothing here takes that long unless it is broken.
const LONG: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);
const BOTH: [Provider; 2] = [Provider::Runc, Provider::Gvisor];

/// A runtime with an installation of its own, and what is needed to look behind its back.
struct Bench {
    docker: Docker,
    options: Options,
    _dir: tempfile::TempDir,
}

fn host() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} names no Docker daemon; run: cargo xtask docker -- cargo nextest run -p runtime")
    })
}

fn bench(provider: Provider) -> Bench {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        host: host(),
        provider,
        runtime: match provider {
            Provider::Gvisor => "runsc".into(),
            _ => "runc".into(),
        },
        network: "bridge".into(),
        install: format!("test-{}-{serial}", std::process::id()),
        run: "this".into(),
        dir: dir.path().to_owned(),
    };
    Bench {
        docker: Docker::new(options.clone()).unwrap(),
        options,
        _dir: dir,
    }
}

fn hosting(command: &[&str]) -> Hosting {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    let source = Source::Image {
        image: IMAGE.into(),
        command,
    };
    Hosting::new("h1", source)
}

fn sh(script: &str) -> Hosting {
    hosting(&["/bin/sh", "-c", script])
}

fn unit(hosting: Hosting) -> Unit {
    Unit {
        label: "test".into(),
        hosting: Arc::new(hosting),
    }
}

impl Bench {
    async fn launch(&self, hosting: Hosting) -> Result<Instance, Error> {
        timeout(LONG, self.docker.launch(unit(hosting)))
            .await
            .unwrap()
    }

    /// What a container said until it ended, and how it ended.
    async fn run(&self, hosting: Hosting) -> (String, Exit, Instance) {
        let mut instance = self.launch(hosting).await.unwrap();
        let text = rest(&mut instance).await;
        let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
        (text, exit, instance)
    }

    async fn refused(&self, hosting: Hosting) -> (&'static str, String) {
        match self.launch(hosting).await {
            Err(Error::Refused { field, why }) => (field, why),
            other => panic!("not refused: {other:?}"),
        }
    }

    fn name(&self, id: &str) -> String {
        format!("toolwharf-{id}.{}", self.options.install)
    }

    /// Another run of the same installation.
    fn next_run(&self) -> Docker {
        let options = Options {
            run: "next".into(),
            ..self.options.clone()
        };
        Docker::new(options).unwrap()
    }

    /// The daemon's own client.
    fn cli(&self, args: &[&str]) -> String {
        let output = Command::new("/usr/bin/docker")
            .args(["--host", &self.options.host])
            .args(args)
            .output()
            .expect("docker's own client: cargo xtask setup installs it");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "docker {args:?}: {why}");
        text
    }

    /// Nothing of this installation is left in the daemon but its volumes.
    async fn nothing_left(&self) {
        let label = format!("label=toolwharf.install={}", self.options.install);
        wait_for("no container is left", || {
            self.cli(&["ps", "-aq", "--filter", &label]).is_empty()
        })
        .await;
    }
}

async fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn stdio(instance: &mut Instance) -> &mut Stdio {
    instance.stdio.as_mut().expect("it is bridged")
}

async fn rest(instance: &mut Instance) -> String {
    let mut text = String::new();
    let read = stdio(instance).stdout.read_to_string(&mut text);
    timeout(LONG, read).await.unwrap().unwrap();
    text
}

/// Reads until the text contains `mark`.
async fn read_until(instance: &mut Instance, mark: &str) -> String {
    let mut text = String::new();
    let read = async {
        let mut chunk = [0; 4096];
        while !text.contains(mark) {
            let count = stdio(instance).stdout.read(&mut chunk).await.unwrap();
            assert_ne!(count, 0, "ended before it said {mark:?}: {text:?}");
            text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
    };
    timeout(LONG, read).await.unwrap();
    text
}

fn holds(instance: &Instance, what: &str) -> bool {
    let row = instance.enforced.iter().find(|row| row.what == what);
    row.unwrap_or_else(|| panic!("nothing is said of {what}"))
        .holds
}

#[tokio::test]
async fn a_probe_says_what_it_is() {
    for (provider, expected) in BOTH.into_iter().zip(["namespaces", "gVisor"]) {
        let bench = bench(provider);
        let text = timeout(LONG, bench.docker.probe()).await.unwrap().unwrap();
        assert!(
            text.contains(expected) && text.contains("on Docker"),
            "{text}"
        );
        bench.nothing_left().await;
    }
    let mut options = bench(Provider::Firecracker).options;
    options.runtime = "kata-fc".into();
    let missing = Docker::new(options).unwrap().probe().await.unwrap_err();
    let text = missing.to_string();
    assert!(
        matches!(missing, Error::Unavailable(_)) && text.contains("kata-fc"),
        "{text}"
    );
    assert!(text.contains("runsc"), "it says which there are: {text}");
}

#[tokio::test]
async fn bytes_go_through_untouched() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut instance = bench.launch(hosting(&["/bin/cat"])).await.unwrap();
        let Stdio {
            mut stdin,
            mut stdout,
        } = instance.stdio.take().unwrap();
        // Lines of 1 MiB, and bytes that are no text.
        let mut sent: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        for _ in 0..3 {
            sent.extend(vec![b'x'; 1 << 20]);
            sent.push(b'\n');
        }
        let writing = async {
            stdin.write_all(&sent).await.unwrap();
            drop(stdin);
        };
        let mut received = Vec::new();
        let ((), read) = timeout(LONG, async {
            tokio::join!(writing, stdout.read_to_end(&mut received))
        })
        .await
        .unwrap();
        read.unwrap();
        assert!(
            received == sent,
            "{provider:?}: {} of {}",
            received.len(),
            sent.len()
        );
        let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
        assert!(exit.success(), "{provider:?}: {exit}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn stderr_is_kept_and_apart_from_stdout() {
    for provider in BOTH {
        let bench = bench(provider);
        let script = "echo out; echo one >&2; echo two >&2; exit 4";
        let (text, exit, instance) = bench.run(sh(script)).await;
        assert_eq!(text, "out\n");
        assert_eq!(instance.handle.stderr_tail(), "one\ntwo\n");
        assert_eq!((exit.code, exit.signal), (Some(4), None));
        let mut hosting = sh("echo out; echo err >&2");
        hosting.bridge = false;
        let instance = bench.launch(hosting).await.unwrap();
        assert!(instance.stdio.is_none());
        timeout(LONG, instance.handle.exited()).await.unwrap();
        let tail = instance.handle.stderr_tail();
        assert!(tail.contains("out\n") && tail.contains("err\n"), "{tail}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h03_a_container_sees_its_own_variables_only() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut first = hosting(&["/bin/env"]);
        first.env = BTreeMap::from([("FIRST_KEY".into(), "one two".into())]);
        let (text, ..) = bench.run(first).await;
        let names: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0))
            .collect();
        assert_eq!(
            names,
            BTreeSet::from(["FIRST_KEY", "HOME", "HOSTNAME", "PATH"]),
            "{text}"
        );
        assert!(text.contains("FIRST_KEY=one two\n"), "{text}");
        let mut second = hosting(&["/bin/env"]);
        second.env = BTreeMap::from([("A=B".into(), "secret".into())]);
        let (field, why) = bench.refused(second).await;
        assert!(field == "environment" && why.contains("A=B") && !why.contains("secret"));
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h16_the_default_limits_are_enforced() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut hosting = hosting(&["/bin/cat"]);
        hosting.volumes = vec!["/data".into()];
        let instance = bench.launch(hosting).await.unwrap();
        for what in [
            "cpu",
            "memory",
            "disk",
            "pids",
            "filesystem",
            "network",
            "privileges",
        ] {
            assert!(
                holds(&instance, what),
                "{provider:?}: {:?}",
                instance.enforced
            );
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
        let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
        assert_eq!((exit.signal, exit.out_of_memory), (Some(9), false));
        bench.nothing_left().await;
        bench.docker.volumes_remove("h1").await.unwrap();
    }
}

#[tokio::test]
async fn h17_a_memory_hog_is_killed_and_that_is_told() {
    for provider in BOTH {
        let bench = bench(provider);
        // tail keeps a line until it ends, and this one does not end.
        let mut hog = sh("echo up; tail -n 1 /dev/zero; echo survived");
        hog.limits.memory = 64 << 20;
        let start = Instant::now();
        let (text, exit, instance) = bench.run(hog).await;
        assert!(holds(&instance, "memory"));
        assert!(
            exit.out_of_memory,
            "{provider:?}: {exit}, {text:?}, {:?}",
            start.elapsed()
        );
        if provider == Provider::Gvisor {
            // Its kernel is what the host's kills, and all that is in it.
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
        let mut hosting = sh(script);
        hosting.volumes = vec!["/data".into()];
        hosting.limits.disk = 32 << 20;
        hosting.limits.cpu_millis = 1000;
        hosting.limits.memory = 128 << 20;
        hosting.limits.pids = 256;
        hosting.strict = true;
        let (text, exit, instance) = bench.run(hosting).await;
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
        bench.docker.volumes_remove("h1").await.unwrap();
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn strict_leaves_nothing_of_what_it_refuses() {
    // Fewer processes than gVisor itself has.
    let bench = bench(Provider::Gvisor);
    let mut few = hosting(&["/bin/cat"]);
    few.limits.pids = 16;
    let instance = bench.launch(few.clone()).await.unwrap();
    assert!(!holds(&instance, "pids"));
    drop(instance);
    bench.nothing_left().await;
    few.strict = true;
    let error = bench.launch(few).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "pids", .. }),
        "{error}"
    );
    bench.nothing_left().await;
}

#[tokio::test]
async fn what_ignores_sigterm_is_killed_after_the_grace() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut instance = bench
            .launch(sh("trap '' TERM; echo up; while true; do sleep 1; done"))
            .await
            .unwrap();
        read_until(&mut instance, "up").await;
        let start = Instant::now();
        let grace = Duration::from_secs(1);
        let exit = timeout(LONG, instance.handle.stop(grace)).await.unwrap();
        assert_eq!(exit.signal, Some(9), "{provider:?}");
        assert!(start.elapsed() >= grace);
        bench.nothing_left().await;

        let mut instance = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
        read_until(&mut instance, "up").await;
        let exit = timeout(LONG, instance.handle.stop(LONG)).await.unwrap();
        assert_eq!(exit.signal, Some(15), "{provider:?}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h09_the_death_of_a_container_is_noticed() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut instance = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
        read_until(&mut instance, "up").await;
        let pid = bench.cli(&["inspect", "--format", "{{.State.Pid}}", &bench.name("h1")]);
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        let start = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
        assert_eq!(
            (exit.signal, exit.out_of_memory),
            (Some(9), false),
            "{provider:?}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h19_h20_volumes_survive_their_instances() {
    for provider in BOTH {
        let bench = bench(provider);
        let with_volumes = |script| {
            let mut hosting = sh(script);
            hosting.volumes = vec!["/data".into(), "/var/lib/x".into()];
            hosting.limits.disk = 64 << 20;
            hosting
        };
        let write = "echo one > /data/file; echo two > /var/lib/x/file; sync; echo up; sleep 1000";
        let mut instance = bench.launch(with_volumes(write)).await.unwrap();
        read_until(&mut instance, "up").await;
        instance.handle.kill_now();
        timeout(LONG, instance.handle.exited()).await.unwrap();
        let read = "cat /data/file /var/lib/x/file";
        let (text, ..) = bench.run(with_volumes(read)).await;
        assert_eq!(text, "one\ntwo\n", "{provider:?}");

        // A higher limit makes them larger, with what is in them.
        let mut larger = with_volumes("cat /data/file; df -m /data | tail -n 1");
        larger.limits.disk = 256 << 20;
        let (text, _, instance) = bench.run(larger).await;
        assert!(
            text.starts_with("one\n") && holds(&instance, "disk"),
            "{text}"
        );
        let size: u32 = text.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!((100..=128).contains(&size), "{text}");
        // And a lower one says that it does not hold.
        let (_, _, instance) = bench.run(with_volumes("true")).await;
        assert!(!holds(&instance, "disk"));

        bench.docker.volumes_remove("h1").await.unwrap();
        let label = format!("label=toolwharf.install={}", bench.options.install);
        assert_eq!(bench.cli(&["volume", "ls", "-q", "--filter", &label]), "");
        let (text, exit, instance) = bench.run(with_volumes(read)).await;
        assert_eq!((text.as_str(), exit.code), ("", Some(1)));
        assert!(instance.handle.stderr_tail().contains("No such file"));
        bench.docker.volumes_remove("h1").await.unwrap();
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
async fn h02_a_port_is_published_on_loopback_only() {
    let mut options = bench(Provider::Runc).options;
    options.network = "toolwharf-test".into();
    let docker = Docker::new(options.clone()).unwrap();
    let script = "mkdir /tmp/www; echo hello > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www";
    let mut server = sh(script);
    server.bridge = false;
    server.ports = vec![8080];
    server.network = Network::Open;
    let instance = timeout(LONG, docker.launch(unit(server.clone())))
        .await
        .unwrap()
        .unwrap();
    let address = instance.ports[&8080];
    assert!(address.ip().is_loopback());
    let fetch = async {
        loop {
            let fetched = async {
                let mut stream = tokio::net::TcpStream::connect(address).await?;
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
                let mut text = String::new();
                stream.read_to_string(&mut text).await?;
                std::io::Result::Ok(text)
            }
            .await;
            match fetched {
                Ok(text) if text.contains("hello") => break,
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(LONG, fetch).await.unwrap();
    let exit = timeout(LONG, instance.handle.stop(GRACE)).await.unwrap();
    assert_eq!(exit.signal, Some(15));

    // What cannot be reached, or could be, is refused before anything is made.
    let without = bench(Provider::Runc);
    let (field, why) = without.refused(server.clone()).await;
    assert!(field == "network" && why.contains("`bridge`"), "{why}");
    let gvisor = bench(Provider::Gvisor);
    let (field, why) = gvisor.refused(server.clone()).await;
    assert!(
        field == "network" && why.contains("--network=none"),
        "{why}"
    );
    server.network = Network::None;
    assert_eq!(without.refused(server.clone()).await.0, "ports");
    server.network = Network::Allow(vec!["example.com".into()]);
    assert_eq!(without.refused(server).await.0, "network");
    without.nothing_left().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_field() {
    let bench = bench(Provider::Runc);
    let mut unknown = hosting(&["/bin/cat"]);
    unknown.source = Source::Image {
        image: "toolwharf-test/missing:1".into(),
        command: Vec::new(),
    };
    let (field, why) = bench.refused(unknown.clone()).await;
    assert!(
        field == "image" && why.contains("toolwharf-test/missing:1"),
        "{why}"
    );
    unknown.source = Source::Image {
        image: "Not An Image".into(),
        command: Vec::new(),
    };
    let (field, why) = bench.refused(unknown.clone()).await;
    assert!(field == "image" && why.contains("Not An Image"), "{why}");
    unknown.source = Source::Command {
        program: "npx".into(),
        args: vec!["secret".into()],
    };
    let (field, why) = bench.refused(unknown).await;
    assert!(
        field == "command" && why.contains("npx") && !why.contains("secret"),
        "{why}"
    );
    // That is the container's own init's to find out.
    let (_, exit, instance) = bench.run(hosting(&["/bin/missing"])).await;
    let stderr = instance.handle.stderr_tail();
    assert!(
        exit.code == Some(127) && stderr.contains("/bin/missing"),
        "{exit}: {stderr}"
    );
    let mut mounted = hosting(&["/bin/cat"]);
    mounted.mounts = vec![Mount {
        host: PathBuf::from("/missing/directory"),
        inside: "/mnt".into(),
        read_only: true,
    }];
    let (field, why) = bench.refused(mounted).await;
    assert!(
        field == "mounts" && why.contains("/missing/directory"),
        "{why}"
    );
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_mount_is_read_only_if_it_is_said_so() {
    for provider in BOTH {
        let bench = bench(provider);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "from the host\n").unwrap();
        let mut hosting = sh("cat /mnt/file; echo changed > /mnt/file");
        hosting.mounts = vec![Mount {
            host: dir.path().to_owned(),
            inside: "/mnt".into(),
            read_only: true,
        }];
        let (text, exit, _) = bench.run(hosting.clone()).await;
        assert_eq!(
            (text.as_str(), exit.code),
            ("from the host\n", Some(1)),
            "{provider:?}"
        );
        hosting.mounts[0].read_only = false;
        let (_, exit, instance) = bench.run(hosting).await;
        assert!(exit.success(), "{exit}: {}", instance.handle.stderr_tail());
        let text = std::fs::read_to_string(dir.path().join("file")).unwrap();
        assert_eq!(text, "changed\n", "{provider:?}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn there_are_never_two_of_one_hosting() {
    let bench = bench(Provider::Runc);
    let mut first = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
    read_until(&mut first, "up").await;
    // A second one takes the place of the first, whose owner hears of it.
    let mut second = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
    read_until(&mut second, "up").await;
    timeout(LONG, first.handle.exited()).await.unwrap();
    assert_eq!(second.handle.exit_status(), None);
    // But nothing of anybody else's is taken away.
    let foreign = bench.name("h2");
    bench.cli(&[
        "create",
        "--name",
        &foreign,
        "--label",
        "toolwharf.install=x",
        IMAGE,
    ]);
    let mut other = sh("true");
    other.id = "h2".into();
    let (field, why) = bench.refused(other).await;
    assert!(field == "id" && why.contains(&foreign), "{why}");
    bench.cli(&["rm", &foreign]);
    drop((first, second));
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_launch_that_nobody_waits_for_leaves_nothing() {
    let bench = bench(Provider::Runc);
    for pause in [0, 5, 50, 150] {
        let launch = bench.docker.launch(unit(hosting(&["/bin/cat"])));
        let _ = timeout(Duration::from_millis(pause), launch).await;
    }
    timeout(LONG, bench.docker.idle()).await.unwrap();
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_sweep_removes_what_earlier_runs_left() {
    let bench = bench(Provider::Runc);
    let mut instances = Vec::new();
    for id in ["h1", "h2", "h3"] {
        let mut hosting = sh("echo up; sleep 1000");
        hosting.id = id.into();
        let mut instance = bench.launch(hosting).await.unwrap();
        read_until(&mut instance, "up").await;
        instances.push(instance);
    }
    // A container of somebody else, of an image that says that it is ours.
    let label = format!("toolwharf.install={}", bench.options.install);
    let foreign = format!("foreign-{}", bench.options.install);
    bench.cli(&["create", "--name", &foreign, "--label", &label, IMAGE]);
    let keep = BTreeSet::from(["h1".to_owned(), "h2".to_owned()]);
    assert_eq!(bench.docker.sweep(keep.clone()).await.unwrap(), 1);
    timeout(LONG, instances[2].handle.exited()).await.unwrap();
    assert_eq!(instances[0].handle.exit_status(), None);
    assert_eq!(bench.next_run().sweep(keep).await.unwrap(), 2);
    for instance in &instances {
        timeout(LONG, instance.handle.exited()).await.unwrap();
    }
    bench.cli(&["rm", &foreign]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_daemon_that_hangs_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let socket = UnixListener::bind(&path).unwrap();
    let hang = async {
        let mut open = Vec::new();
        loop {
            open.push(socket.accept().await.unwrap());
        }
    };
    let mut options = bench(Provider::Gvisor).options;
    options.host = format!("unix://{}", path.display());
    let docker = Docker::new(options.clone()).unwrap();
    let asked = async {
        let start = Instant::now();
        let (probe, launch, sweep, remove) = tokio::join!(
            docker.probe(),
            docker.launch(unit(hosting(&["/bin/cat"]))),
            docker.sweep(BTreeSet::new()),
            docker.volumes_remove("h2"),
        );
        for error in [probe.err(), launch.err(), sweep.err(), remove.err()] {
            let error = error.unwrap();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    };
    tokio::select! {
        () = hang => {}
        () = asked => {}
    }
    options.host = format!("unix://{}/missing", dir.path().display());
    let missing = Docker::new(options.clone())
        .unwrap()
        .probe()
        .await
        .unwrap_err();
    let text = missing.to_string();
    assert!(
        matches!(missing, Error::Unavailable(_)) && text.contains("docker.io"),
        "{text}"
    );
    options.host = "tcp://example.com:2375".into();
    assert!(Docker::new(options).is_err());
}

#[tokio::test]
async fn h17_a_fork_bomb_is_contained() {
    let bench = bench(Provider::Runc);
    let mut bomb = sh("for i in $(seq 100); do sleep 1000 & done; echo survived");
    bomb.limits.pids = 16;
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
        loud.limits.cpu_millis = 2000;
        let mut instance = bench.launch(loud).await.unwrap();
        // All of stderr is taken, and stdout stalls when nobody reads it.
        read_until(&mut instance, "y\n").await;
        let tail = instance.handle.stderr_tail().len();
        assert!((60_000..=64 << 10).contains(&tail), "{tail}");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak: u64 = peak
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        assert!(peak < 64 << 10, "{peak} KiB");
        instance.handle.kill_now();
        let exit = timeout(LONG, instance.handle.exited()).await.unwrap();
        assert_eq!(exit.signal, Some(9));
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h01_real_servers_answer_through_their_streams() {
    for provider in BOTH {
        for (image, tool) in [("scripted", "echo"), ("everything", "get-sum")] {
            let bench = bench(provider);
            let mut server = hosting(&[]);
            server.source = Source::Image {
                image: format!("toolwharf-test/{image}"),
                command: Vec::new(),
            };
            server.limits.cpu_millis = 2000;
            let mut instance = bench.launch(server).await.unwrap();
            let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
            let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
            let stdin = &mut stdio(&mut instance).stdin;
            stdin
                .write_all(format!("{initialize}\n").as_bytes())
                .await
                .unwrap();
            read_until(&mut instance, "serverInfo").await;
            let stdin = &mut stdio(&mut instance).stdin;
            let lines = format!("{initialized}\n{list}\n");
            stdin.write_all(lines.as_bytes()).await.unwrap();
            read_until(&mut instance, &format!("\"{tool}\"")).await;
            // The end of its input ends a server that minds it.
            drop(instance.stdio.take());
            let exit = timeout(LONG, instance.handle.stop(GRACE)).await.unwrap();
            assert!(
                exit.success() || exit.signal == Some(15),
                "{provider:?}, {image}: {exit}"
            );
            bench.nothing_left().await;
        }
    }
}

#[tokio::test]
async fn h18_what_is_not_gvisor_is_not_believed() {
    // A runtime of the daemon that has another name and is runc.
    let mut bench = bench(Provider::Gvisor);
    bench.options.runtime = "not-runsc".into();
    bench.docker = Docker::new(bench.options.clone()).unwrap();
    let error = bench.launch(hosting(&["/bin/cat"])).await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::Unavailable(_)) && text.contains("not-runsc"),
        "{text}"
    );
    bench.nothing_left().await;
}

/// What a daemon does that is not well.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Gone,
    /// It takes the request to start a container, and does not answer.
    HangsAtStart,
}

/// Stands between us and the daemon.
async fn between(socket: UnixListener, target: String, mut mood: watch::Receiver<Mood>) {
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => {
                if *mood.borrow() != Mood::Gone {
                    open.push(relay(accepted.unwrap().0, target.clone(), mood.clone()));
                }
            }
            Some(()) = open.next() => {}
            changed = mood.changed() => {
                changed.unwrap();
                if *mood.borrow() == Mood::Gone {
                    open.clear();
                }
            }
        }
    }
}

async fn relay(client: UnixStream, target: String, mood: watch::Receiver<Mood>) {
    let daemon = UnixStream::connect(target).await.unwrap();
    let (mut from, mut to) = client.into_split();
    let (mut answers, mut requests) = daemon.into_split();
    let forth = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            let text = String::from_utf8_lossy(&chunk[..count]);
            if *mood.borrow() == Mood::HangsAtStart && text.contains("/start ") {
                std::future::pending::<()>().await;
            }
            if requests.write_all(&chunk[..count]).await.is_err() {
                break;
            }
        }
        let _ = requests.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut answers, &mut to).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(forth, back);
}

/// Runs a test with a daemon whose mood it sets.
async fn with_moods<F: Future<Output = ()>>(
    provider: Provider,
    test: impl FnOnce(Bench, Docker, watch::Sender<Mood>) -> F,
) {
    let bench = bench(provider);
    let path = bench.options.dir.join("sock");
    let socket = UnixListener::bind(&path).unwrap();
    let target = bench
        .options
        .host
        .strip_prefix("unix://")
        .unwrap()
        .to_owned();
    let options = Options {
        host: format!("unix://{}", path.display()),
        ..bench.options.clone()
    };
    let docker = Docker::new(options).unwrap();
    let (mood, moods) = watch::channel(Mood::Well);
    tokio::select! {
        () = between(socket, target, moods) => {}
        () = test(bench, docker, mood) => {}
    }
}

#[tokio::test]
async fn a_daemon_that_goes_away_in_mid_run_is_waited_for() {
    with_moods(Provider::Runc, |bench, docker, mood| async move {
        let launch = async |command: &[&str], id: &str| {
            let mut hosting = hosting(command);
            hosting.id = id.into();
            timeout(LONG, docker.launch(unit(hosting))).await.unwrap()
        };
        let mut polite = launch(&["/bin/cat"], "h1").await.unwrap();
        let deaf = launch(&["/bin/sleep", "1000"], "h2").await.unwrap();
        mood.send_replace(Mood::Gone);
        // The stream has broken off on both sides: that alone ends a server that minds its input.
        assert_eq!(rest(&mut polite).await, "");
        let running = ["inspect", "--format", "{{.State.Running}}"];
        let state = |id| bench.cli(&[&running[..], &[&bench.name(id)]].concat());
        wait_for("the polite one has ended", || state("h1") == "false").await;
        assert_eq!(state("h2"), "true");
        let error = launch(&["/bin/cat"], "h3").await.unwrap_err();
        assert!(
            matches!(error, Error::Failed(_) | Error::Unavailable(_)),
            "{error}"
        );
        // Longer than it takes to give up one that is killed.
        let early = timeout(Duration::from_secs(6), deaf.handle.exited()).await;
        assert!(early.is_err(), "nobody has said that it ended: {early:?}");
        assert_eq!(polite.handle.exit_status(), None);

        mood.send_replace(Mood::Well);
        let exit = timeout(LONG, polite.handle.exited()).await.unwrap();
        assert!(exit.success(), "{exit}");
        // Nobody can speak to it any more.
        let exit = timeout(LONG, deaf.handle.exited()).await.unwrap();
        assert_eq!(exit.signal, Some(9));
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_stop_while_the_daemon_is_gone_has_an_end() {
    with_moods(Provider::Runc, |bench, docker, mood| async move {
        let launch = docker.launch(unit(hosting(&["/bin/sleep", "1000"])));
        let instance = timeout(LONG, launch).await.unwrap().unwrap();
        mood.send_replace(Mood::Gone);
        let exit = timeout(Duration::from_secs(8), instance.handle.stop(Duration::ZERO)).await;
        assert_eq!(exit.unwrap(), Exit::default());
        // It comes to its end all the same.
        mood.send_replace(Mood::Well);
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_start_that_hangs_leaves_nothing() {
    with_moods(Provider::Gvisor, |bench, docker, mood| async move {
        mood.send_replace(Mood::HangsAtStart);
        let launch = docker.launch(unit(hosting(&["/bin/cat"])));
        let error = timeout(LONG, launch).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("start a container"), "{error}");
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn volumes_without_a_limit_are_told_and_kept() {
    let mut bench = bench(Provider::Runc);
    // Nothing can be made below it.
    bench.options.dir = PathBuf::from("/dev/null/volumes");
    let without = Docker::new(bench.options.clone()).unwrap();
    let with = std::mem::replace(&mut bench.docker, without);
    let mut writer = sh("echo kept > /data/file");
    writer.volumes = vec!["/data".into()];
    let mut strict = writer.clone();
    strict.strict = true;
    let error = bench.launch(strict).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "disk", .. }),
        "{error}"
    );
    let label = format!("label=toolwharf.install={}", bench.options.install);
    let list = ["volume", "ls", "-q", "--filter", &label];
    assert_eq!(bench.cli(&list), "");
    let (_, exit, instance) = bench.run(writer.clone()).await;
    assert!(exit.success() && !holds(&instance, "disk"));
    // Where a limit could be had, what is there is not shadowed by something empty.
    bench.docker = with;
    let mut reader = sh("cat /data/file");
    reader.volumes = writer.volumes;
    let (text, _, instance) = bench.run(reader).await;
    assert!(text == "kept\n" && !holds(&instance, "disk"), "{text}");
    bench.docker.volumes_remove("h1").await.unwrap();
    bench.nothing_left().await;
}
