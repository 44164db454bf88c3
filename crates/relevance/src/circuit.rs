//! Decides whether an endpoint that failed is asked again.

use std::time::Duration;

use tokio::time::Instant;

/// One kind of request to an endpoint. While it fails, one request per `pause` tries again.
#[derive(Debug)]
pub(crate) struct Circuit {
    pause: Duration,
    /// Set while the endpoint fails.
    retry_at: Option<Instant>,
}

impl Circuit {
    pub(crate) fn new(pause: Duration) -> Self {
        Self {
            pause,
            retry_at: None,
        }
    }

    /// Returns whether [`Circuit::admit`] would admit a request.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }

    /// Returns whether a request may be made now. After a failure, the first one after the pause may, and the others wait
    /// for its outcome.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        let admits = self.admits(now);
        if admits && self.retry_at.is_some() {
            self.retry_at = Some(now + self.pause);
        }
        admits
    }

    /// Notes a success. Returns whether the request before it failed.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.retry_at.take().is_some()
    }

    /// Notes a failure. Returns whether the request before it succeeded.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        self.retry_at.replace(now + self.pause).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_per_pause_tries_again() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut circuit = Circuit::new(Duration::from_secs(30));
        assert!(circuit.admit(at(0)) && circuit.admit(at(0)));
        assert!(circuit.failed(at(1)), "the first failure");
        assert!(!circuit.failed(at(2)), "requests at the same time");
        assert!(!circuit.admit(at(31)));
        assert!(circuit.admits(at(32)) && circuit.admit(at(32)));
        assert!(!circuit.admit(at(32)), "only one tries");
        assert!(!circuit.failed(at(33)));
        assert!(!circuit.admit(at(62)) && circuit.admit(at(63)));
        assert!(circuit.succeeded(), "it works again");
        assert!(!circuit.succeeded());
        assert!(circuit.admit(at(63)) && circuit.admit(at(63)));
    }
}
