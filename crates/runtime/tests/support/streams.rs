//! What an instance says, and what there is to wait for.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::time::Duration;

use runtime::{Instance, Stdio};
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout};

/// Nothing here takes that long unless it is broken.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn stdio(instance: &mut Instance) -> &mut Stdio {
    instance.stdio.as_mut().expect("it is bridged")
}

pub(crate) async fn rest(instance: &mut Instance) -> String {
    let mut text = String::new();
    let read = stdio(instance).stdout.read_to_string(&mut text);
    timeout(LONG, read).await.unwrap().unwrap();
    text
}

/// Reads until the text contains `mark`.
pub(crate) async fn read_until(instance: &mut Instance, mark: &str) -> String {
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
