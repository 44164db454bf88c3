//! Reading from an instance, and waiting for it.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::time::Duration;

use runtime::{Instance, Stdio};
use testkit::in_time;
use tokio::io::AsyncReadExt as _;

/// Timeout for everything that should complete quickly.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    testkit::wait_for(what, TEST_TIMEOUT, async || check()).await;
}

pub(crate) fn stdio(instance: &mut Instance) -> &mut Stdio {
    instance.stdio.as_mut().expect("it is bridged")
}

pub(crate) async fn rest(instance: &mut Instance) -> String {
    let mut text = String::new();
    let read = stdio(instance).stdout.read_to_string(&mut text);
    in_time(TEST_TIMEOUT, read).await.unwrap();
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
    in_time(TEST_TIMEOUT, read).await;
    text
}
