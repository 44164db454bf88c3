//! The connection to a watch (`relay/gate.rs`), which ends its server when it receives nothing for [`SILENCE_SECS`]
//! seconds.
//!
//! The gateway sends a ping, and sends the next one only after the reply. So at most one ping is in flight, and the
//! ping before it was received before this one was sent. Suppose that a ping sent at `t` is not answered. By `t +
//! SILENCE_SECS`, the watch has either received this ping or ended its server. If it has received the ping, it ends its
//! server at most `SILENCE_SECS` later. [`Lost::over`] is that time plus a margin for clocks.
//!
//! Replies are authenticated: the watch received a key before the server started, and derives its replies from the key.
//! The server cannot forge replies, although it runs as the same user, can stop its watch, and under gVisor can access
//! the watch's output.

use std::pin::Pin;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt as _};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::docker::engine::{CHANGE_TIMEOUT, Client, within};
use crate::docker::relay::PATH_INSIDE;
use crate::docker::relay::frame::{ANSWER_BYTES, KEY_BYTES, SILENCE_SECS, answer};
use runtime::unit::Error;

/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time after the last ping at which a server has certainly ended.
pub(super) const ENDED_AFTER: Duration = Duration::from_secs(2 * SILENCE_SECS as u64 + 1);

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

pub(super) struct Contact {
    output: Output,
    input: Input,
    key: [u8; KEY_BYTES],
    /// Number of pings sent.
    words: u64,
    /// Time of the last ping.
    given: Instant,
}

/// A watch that no longer replies.
pub(super) struct Lost {
    /// Time at which its server has certainly ended.
    pub(super) over: Instant,
}

impl Contact {
    /// Starts a watch in a container and waits for its first reply.
    pub(super) async fn new(client: &Client, container: &str) -> Result<Self, Error> {
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(vec![PATH_INSIDE.to_owned(), "watch".to_owned()]),
            ..ExecConfig::default()
        };
        let exec = client.docker.create_exec(container, config);
        let exec = within("prepare the watch", CHANGE_TIMEOUT, exec).await?;
        let started = client.docker.start_exec(&exec.id, None::<StartExecOptions>);
        let (output, input) = match within("start the watch", CHANGE_TIMEOUT, started).await? {
            StartExecResults::Attached { output, input } => (output, input),
            StartExecResults::Detached => {
                return Err(Error::Failed(
                    "the daemon opened no streams to the watch program in the container".to_owned(),
                ));
            }
        };
        let mut key = [0; KEY_BYTES];
        getrandom(&mut key, GetRandomFlags::empty()).map_err(|error| {
            Error::Failed(format!(
                "cannot generate a key for the watch program: {error}"
            ))
        })?;
        let given = Instant::now();
        let mut contact = Self {
            output,
            input,
            key,
            words: 0,
            given,
        };
        match contact.exchange().await {
            Ok(()) => Ok(contact),
            Err(why) => Err(Error::Failed(format!(
                "the watch program in the container does not respond: {why}"
            ))),
        }
    }

    /// Pings the watch until a reply is missing, or until the server is `unwanted`.
    pub(super) async fn keep(mut self, unwanted: &CancellationToken) -> Lost {
        let speaking = async {
            loop {
                sleep_until(self.given + PING_INTERVAL).await;
                if let Err(why) = self.exchange().await {
                    tracing::debug!(why, "the watch program in a container does not respond");
                    return;
                }
            }
        };
        // A ping that is cancelled here still counts as sent.
        unwanted.run_until_cancelled(speaking).await;
        Lost {
            over: self.given + ENDED_AFTER,
        }
    }

    /// Sends a ping and waits for the reply. Before the first ping, sends the key.
    async fn exchange(&mut self) -> Result<(), String> {
        self.given = Instant::now();
        let until = self.given + Duration::from_secs(SILENCE_SECS as u64);
        let number = self.words;
        self.words += 1;
        let exchanging = async {
            let given = async {
                if number == 0 {
                    self.input.write_all(&self.key).await?;
                }
                self.input.write_all(b".").await?;
                self.input.flush().await
            };
            given.await.map_err(|error| error.to_string())?;
            let mut said = Vec::with_capacity(ANSWER_BYTES);
            while said.len() < ANSWER_BYTES {
                match self.output.next().await {
                    Some(Ok(LogOutput::StdOut { message })) => said.extend_from_slice(&message),
                    Some(Ok(other)) => return Err(other.to_string()),
                    Some(Err(error)) => return Err(error.to_string()),
                    None => return Err("it ended".to_owned()),
                }
            }
            match said == answer(&self.key, number) {
                true => Ok(()),
                false => Err("the reply does not come from the watch".to_owned()),
            }
        };
        let late = Err("no reply".to_owned());
        timeout_at(until, exchanging).await.unwrap_or(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_siphash() {
        let key = std::array::from_fn(|at| at as u8);
        let number = u64::from_le_bytes(std::array::from_fn(|at| at as u8));
        // The 8-byte test vector of the SipHash paper.
        let expected = [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93];
        assert_eq!(answer(&key, number), expected);
        assert_ne!(answer(&key, number + 1), expected);
        assert_ne!(answer(&[0; KEY_BYTES], number), expected);
    }
}
