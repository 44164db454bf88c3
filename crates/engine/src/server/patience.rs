//! The time that an instance gets for its start. It gets more while it writes to its stderr, since a first start may
//! download packages for minutes: killed, it would begin again.

use std::time::Duration;

use mcp::client::ConnectError;
use runtime::Handle;
use tokio::time::Instant;

pub(crate) struct Patience {
    began: Instant,
    /// Maximum time without output on its stderr.
    silence: Duration,
    longest: Duration,
}

impl Patience {
    /// Begins now.
    pub(crate) fn new(silence: Duration, longest: Duration) -> Self {
        Self {
            began: Instant::now(),
            silence,
            longest,
        }
    }

    /// The end of the start, if the instance writes nothing more.
    pub(crate) fn deadline(&self, handle: &Handle) -> Instant {
        let sign = handle.last_output().unwrap_or(self.began);
        (sign.max(self.began) + self.silence).min(self.began + self.longest)
    }

    /// Waits until the time is over.
    pub(crate) async fn over(&self, handle: &Handle) -> ConnectError {
        loop {
            let deadline = self.deadline(handle);
            tokio::time::sleep_until(deadline).await;
            if self.deadline(handle) <= deadline {
                return ConnectError::Timeout(deadline - self.began);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::Remote;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(600);

    /// The end of a start, in seconds, of an instance that writes a line every ten seconds until then.
    async fn end(writes_until: u64) -> u64 {
        let (handle, remote) = Remote::new("slow");
        let patience = Patience::new(SILENCE, LONGEST);
        let began = Instant::now();
        let writing = async {
            while began.elapsed().as_secs() < writes_until {
                tokio::time::sleep(Duration::from_secs(10)).await;
                remote.log("downloading");
            }
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            error = patience.over(&handle) => error,
            () = writing => unreachable!("it pends"),
        };
        let said = format!("within {} ms", began.elapsed().as_millis());
        assert!(error.to_string().contains(&said), "{error}");
        assert!(error.to_string().contains("`startTimeoutMs`"), "{error}");
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_gets_more_time_while_it_writes() {
        for (writes_until, ends) in [(0, 60), (10, 70), (70, 130), (100_000, 600)] {
            assert_eq!(end(writes_until).await, ends, "writes for {writes_until} s");
        }
    }
}
