//! Containers of lost gateways: the sentinel ends them, and so does the next gateway that starts the same server.

#![expect(clippy::unwrap_used, reason = "it is a test")]

use std::collections::BTreeSet;

use containers::docker::{Docker, Options};
use model::Provider;
use runtime::process::{SentinelCommand, Spawner};
use runtime::sentinel::monotonic_nanos;
use runtime::{Error, Fence, Fences, Instance, Runtime as _, Unit};
use testkit::in_time;

use crate::support::{Bench, TEST_TIMEOUT, bench, read_until, sh, wait_for};

/// Exits only by SIGKILL, even when its streams end.
const STUBBORN_SCRIPT: &str = "trap '' TERM HUP; echo up; while :; do sleep 1; done";
const DATABASE: &str = "0123456789abcdef";

/// A server that was launched with this fencing token, and exits only by SIGKILL.
fn fenced(installation: &str, id: &str, number: i64) -> Unit {
    let mut server = sh(STUBBORN_SCRIPT);
    server.sandbox.id = id.to_owned();
    let fence = Fence {
        installation: installation.into(),
        number,
    };
    Unit {
        fence: Some(fence),
        ..server.unit()
    }
}

async fn up(docker: &Docker, unit: Unit) -> Result<Instance, Error> {
    let mut instance = in_time(TEST_TIMEOUT, docker.launch(unit)).await?;
    read_until(&mut instance, "up").await;
    Ok(instance)
}

/// Creates another gateway with the same daemon.
fn other(bench: &Bench, name: &str) -> Docker {
    let options = Options {
        install: format!("{}-{name}", bench.options.install),
        run: name.to_owned(),
        ..bench.options.clone()
    };
    Docker::new(options).unwrap()
}

async fn d03_sentinel(provider: Provider) {
    let bench = bench(provider);
    let spawner = Spawner::new(SentinelCommand {
        program: env!("CARGO_BIN_EXE_containers-sentinel").into(),
        args: vec!["sentinel".into()],
    })
    .unwrap();
    let options = Options {
        guests: spawner.guests(),
        ..bench.options.clone()
    };
    let docker = Docker::new(options).unwrap();
    let instance = up(&docker, sh(STUBBORN_SCRIPT).unit()).await.unwrap();
    // Simulates a gateway that is suspended when its lease ends.
    spawner.end_all_at(Some(monotonic_nanos()));
    in_time(TEST_TIMEOUT, instance.handle.exited()).await;
    drop(instance);
    bench.nothing_left().await;
}

#[tokio::test]
async fn d03_the_sentinel_ends_containers_under_runc() {
    d03_sentinel(Provider::Runc).await;
}

#[tokio::test]
async fn d03_the_sentinel_ends_containers_under_gvisor() {
    d03_sentinel(Provider::Gvisor).await;
}

#[tokio::test]
async fn d03_an_older_fence_is_ended_before_a_newer_one_starts() {
    let bench = bench(Provider::Runc);
    let (first, second) = (other(&bench, "first"), other(&bench, "second"));
    let unit = |number| fenced(DATABASE, "h1", number);
    let old = up(&first, unit(5)).await.unwrap();
    let new = up(&second, unit(6)).await.unwrap();
    // The old container was removed before the new one was created. The old gateway may notice later.
    let label = format!("label=toolwharf.fence-of={DATABASE}");
    let list = |which| bench.cli(&["ps", which, "--filter", &label]);
    let running = list("-q");
    assert_eq!(running.lines().count(), 1, "{running}");
    in_time(TEST_TIMEOUT, old.handle.exited()).await;
    let error = up(&first, unit(4)).await.unwrap_err().to_string();
    assert!(error.contains("fencing token 6"), "{error}");
    assert!(new.handle.exit_status().is_none(), "it goes on");
    drop((old, new));
    wait_for("the end of both", || list("-aq").is_empty()).await;
}

#[tokio::test]
async fn d03_what_lost_gateways_left_is_swept_by_its_fence() {
    let bench = bench(Provider::Runc);
    let installation = "fedcba9876543210";
    let unit = |id: &str, number| fenced(installation, id, number);
    let (lost, living) = (other(&bench, "lost"), other(&bench, "living"));
    let left = up(&lost, unit("h1", 7)).await.unwrap();
    let right = up(&living, unit("h2", 8)).await.unwrap();
    let found = living.fences(installation).await.unwrap();
    assert_eq!(found, BTreeSet::from([7, 8]));
    let ended = Fences {
        installation: installation.into(),
        numbers: BTreeSet::from([7, 9]),
    };
    assert_eq!(living.sweep_fenced(&ended).await.unwrap(), 1);
    in_time(TEST_TIMEOUT, left.handle.exited()).await;
    assert!(right.handle.exit_status().is_none(), "its gateway lives");
    assert_eq!(
        living.fences(installation).await.unwrap(),
        BTreeSet::from([8])
    );
}
