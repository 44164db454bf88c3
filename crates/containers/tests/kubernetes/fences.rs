//! Pods of lost gateways: the next gateway that starts the same server ends them first.

use std::collections::BTreeSet;

use containers::kubernetes::Kubernetes;
use runtime::{Error, Fence, Fences, Instance, Runtime as _, Unit};
use testkit::{in_time, wait_for};
use tokio::time::timeout;

use crate::support::{Namespace, TEST_TIMEOUT, echo, sh};

/// A script that exits only by SIGKILL.
const STUBBORN_SCRIPT: &str = "trap '' TERM HUP; cat";

fn fenced(id: &str, number: i64) -> Unit {
    let fence = Fence {
        installation: "0123456789abcdef".into(),
        number,
    };
    Unit {
        fence: Some(fence),
        ..sh(id, STUBBORN_SCRIPT).unit()
    }
}

async fn up(runtime: &Kubernetes, unit: Unit) -> Result<Instance, Error> {
    let mut instance = timeout(2 * TEST_TIMEOUT, runtime.launch(unit))
        .await
        .expect("an end")?;
    assert_eq!(echo(&mut instance, "up").await.as_deref(), Some("up"));
    Ok(instance)
}

#[tokio::test]
async fn d03_on_kubernetes_an_older_fence_is_ended_before_a_newer_one_starts() {
    let namespace = Namespace::new("fences").await;
    let gateway = |install: &str| namespace.runtime_of(install, None, "this");
    let (first, second) = (gateway("first"), gateway("second"));
    let old = up(&first, fenced("h1", 5)).await.expect("it starts");
    let new = up(&second, fenced("h1", 6)).await.expect("it starts");
    assert_eq!(namespace.count("pods"), 1);
    in_time(TEST_TIMEOUT, old.handle.exited()).await;
    let error = up(&first, fenced("h1", 4))
        .await
        .expect_err("it is too late")
        .to_string();
    assert!(error.contains("fencing token 6"), "{error}");
    assert!(new.handle.exit_status().is_none(), "it goes on");
    // When one gateway cleans up after itself, it removes nothing of the other gateway.
    assert_eq!(
        namespace
            .runtime_of("first", None, "next")
            .sweep()
            .await
            .ok(),
        Some(0)
    );
    assert!(new.handle.exit_status().is_none(), "it goes on");
    drop((old, new));
    wait_for("nothing left", TEST_TIMEOUT, async || {
        namespace.count("pods,secrets") == 0
    })
    .await;
}

#[tokio::test]
async fn d03_on_kubernetes_what_lost_gateways_left_is_swept_by_its_fence() {
    let namespace = Namespace::new("swept").await;
    let gateway = |install: &str| namespace.runtime_of(install, None, "this");
    let (lost, living) = (gateway("lost"), gateway("living"));
    let left = up(&lost, fenced("h1", 7)).await.expect("it starts");
    let right = up(&living, fenced("h2", 8)).await.expect("it starts");
    let installation = "0123456789abcdef";
    let found = living.fences(installation).await.expect("an answer");
    assert_eq!(found, BTreeSet::from([7, 8]));
    let ended = Fences {
        installation: installation.into(),
        numbers: BTreeSet::from([7, 9]),
    };
    assert_eq!(living.sweep_fenced(&ended).await.ok(), Some(1));
    in_time(TEST_TIMEOUT, left.handle.exited()).await;
    assert!(right.handle.exit_status().is_none(), "its gateway lives");
    let found = living.fences(installation).await.expect("an answer");
    assert_eq!(found, BTreeSet::from([8]));
}
