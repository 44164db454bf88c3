//! The lifecycle of a container: streams, exit, clean-up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use containers::docker::Docker;
use model::{Mount, Program, Provider, Reach};
use runtime::{Error, Runtime as _, Stdio};
use testkit::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use crate::support::{
    BOTH, GRACE, IMAGE, TEST_TIMEOUT, bench, of_image, read_until, running, sh, stdio,
};

#[tokio::test]
async fn a_probe_says_what_it_is() {
    for (provider, expected) in BOTH.into_iter().zip(["namespaces", "gVisor"]) {
        let bench = bench(provider);
        let text = in_time(TEST_TIMEOUT, bench.runtime.probe()).await.unwrap();
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
        let mut instance = bench.launch(running(&["/bin/cat"])).await.unwrap();
        let Stdio {
            mut stdin,
            mut stdout,
        } = instance.stdio.take().unwrap();
        // Lines of 1 MiB, and bytes that are not text.
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
        let ((), read) = in_time(TEST_TIMEOUT, async {
            tokio::join!(writing, stdout.read_to_end(&mut received))
        })
        .await;
        read.unwrap();
        assert!(
            received == sent,
            "{provider:?}: {} of {}",
            received.len(),
            sent.len()
        );
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
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
        let mut server = sh("echo out; echo err >&2");
        server.reach = Reach::Port { path: "/".into() };
        let instance = bench.launch(server).await.unwrap();
        assert!(instance.stdio.is_none());
        in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        let tail = instance.handle.stderr_tail();
        assert!(tail.contains("out\n") && tail.contains("err\n"), "{tail}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn h03_a_container_sees_its_own_variables_only() {
    for provider in BOTH {
        let bench = bench(provider);
        let mut first = running(&["/bin/env"]);
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
        let mut second = running(&["/bin/env"]);
        second.env = BTreeMap::from([("A=B".into(), "secret".into())]);
        let (field, why) = bench.refused(second).await;
        assert!(field == "environment" && why.contains("A=B") && !why.contains("secret"));
        bench.nothing_left().await;
    }
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
        let exit = in_time(TEST_TIMEOUT, instance.handle.stop(grace)).await;
        assert_eq!(exit.signal, Some(9), "{provider:?}");
        assert!(start.elapsed() >= grace);
        bench.nothing_left().await;

        let mut instance = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
        read_until(&mut instance, "up").await;
        let exit = in_time(TEST_TIMEOUT, instance.handle.stop(TEST_TIMEOUT)).await;
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
        let exit = in_time(TEST_TIMEOUT, instance.handle.exited()).await;
        assert_eq!(
            (exit.signal, exit.out_of_memory),
            (Some(9), false),
            "{provider:?}"
        );
        // H09 requires that a new instance starts within this time.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_its_field() {
    let bench = bench(Provider::Runc);
    for image in ["toolwharf-test/missing:1", "Not An Image"] {
        bench.refuses(of_image(image, &[]), "image", image).await;
    }
    let mut command = running(&[]);
    command.program = Program::Command {
        program: "npx".into(),
        args: vec!["secret".into()],
    };
    let (field, why) = bench.refused(command).await;
    assert!(
        field == "command" && why.contains("npx") && !why.contains("secret"),
        "{why}"
    );
    // Only the container's own init can find out that this program is missing.
    let (_, exit, instance) = bench.run(running(&["/bin/missing"])).await;
    let stderr = instance.handle.stderr_tail();
    assert!(
        exit.code == Some(127) && stderr.contains("/bin/missing"),
        "{exit}: {stderr}"
    );
    let mut mounted = running(&["/bin/cat"]);
    mounted.sandbox.mounts = vec![Mount {
        host: PathBuf::from("/missing/directory"),
        inside: "/mnt".into(),
        read_only: true,
    }];
    bench.refuses(mounted, "mounts", "/missing/directory").await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn there_are_never_two_of_one_server() {
    let bench = bench(Provider::Runc);
    let mut first = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
    read_until(&mut first, "up").await;
    // A second instance replaces the first, whose owner is notified.
    let mut second = bench.launch(sh("echo up; sleep 1000")).await.unwrap();
    read_until(&mut second, "up").await;
    in_time(TEST_TIMEOUT, first.handle.exited()).await;
    assert_eq!(second.handle.exit_status(), None);
    // Containers of other programs are not removed.
    let foreign = bench.name("h2");
    let label = "--label=toolwharf.install=x";
    bench.cli(&["create", "--name", &foreign, label, IMAGE]);
    let mut other = sh("true");
    other.sandbox.id = "h2".into();
    bench.refuses(other, "id", &foreign).await;
    bench.cli(&["rm", &foreign]);
    drop((first, second));
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_launch_that_nobody_waits_for_leaves_nothing() {
    let bench = bench(Provider::Runc);
    for pause in [0, 5, 50, 150] {
        let launch = bench.runtime.launch(running(&["/bin/cat"]).unit());
        let _ = timeout(Duration::from_millis(pause), launch).await;
    }
    // The last launch is dropped late enough that there is something to remove.
    {
        let launch = pin!(bench.runtime.launch(running(&["/bin/cat"]).unit()));
        tokio::select! {
            launched = launch => drop(launched.unwrap()),
            () = bench.something_there() => {}
        }
    }
    in_time(TEST_TIMEOUT, bench.runtime.idle()).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_sweep_removes_what_earlier_runs_left() {
    let bench = bench(Provider::Runc);
    let mut instances = Vec::new();
    for id in ["h1", "h2", "h3"] {
        let mut server = sh("echo up; sleep 1000");
        server.sandbox.id = id.into();
        let mut instance = bench.launch(server).await.unwrap();
        read_until(&mut instance, "up").await;
        instances.push(instance);
    }
    // A container of another program, from an image with Toolwharf's labels.
    let label = format!("toolwharf.install={}", bench.options.install);
    let foreign = format!("foreign-{}", bench.options.install);
    bench.cli(&["create", "--name", &foreign, "--label", &label, IMAGE]);
    assert_eq!(bench.runtime.sweep().await.unwrap(), 0);
    assert_eq!(instances[0].handle.exit_status(), None);
    assert_eq!(bench.next_run().sweep().await.unwrap(), 3);
    for instance in &instances {
        in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    }
    bench.cli(&["rm", &foreign]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn h01_real_servers_answer_through_their_streams() {
    for provider in BOTH {
        for (image, tool) in [("scripted", "echo"), ("everything", "get-sum")] {
            let bench = bench(provider);
            let mut server = of_image(&format!("toolwharf-test/{image}"), &[]);
            server.sandbox.limits.cpu_millis = 2000;
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
            // A server that waits for input exits when its input closes.
            drop(instance.stdio.take());
            let exit = in_time(TEST_TIMEOUT, instance.handle.stop(GRACE)).await;
            assert!(
                exit.success() || exit.signal == Some(15),
                "{provider:?}, {image}: {exit}"
            );
            bench.nothing_left().await;
        }
    }
}
