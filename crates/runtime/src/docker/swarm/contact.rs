//! The connection to a watch (`relay/gate.rs`), which ends its server when it hears nothing for [`SILENCE`] seconds.
//!
//! Word is given, and answered; only then more is given. So at most one word is under way: a watch that has not
//! answered one that was given at `t` has heard it `SILENCE` after `t` at the latest, or has ended its server before that; and
//! `SILENCE` after hearing it, it ends its server. [`Lost::over`] is that time, with a little more for clocks.
//!
//! An answer is one that only a watch can give which has the key that it was given before there was a server: that server has
//! the same user, may stop its watch, and under gVisor reaches what the watch writes to.

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

use crate::docker::engine::{CHANGE, Client, within};
use crate::docker::relay::INSIDE;
use crate::docker::relay::frame::{ANSWER, KEY, SILENCE, answer};
use crate::unit::Error;

/// From one word to the next.
const PACE: Duration = Duration::from_secs(2);
/// After that a server has ended that nobody has spoken to.
pub(super) const OVER: Duration = Duration::from_secs(2 * SILENCE as u64 + 1);

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

pub(super) struct Contact {
    output: Output,
    input: Input,
    key: [u8; KEY],
    /// Words that were given.
    words: u64,
    /// When the last one was.
    given: Instant,
}

/// A watch that does not answer any more.
pub(super) struct Lost {
    /// When its server has ended.
    pub(super) over: Instant,
}

impl Contact {
    /// Starts a watch in a container, and waits for its first answer.
    pub(super) async fn new(client: &Client, container: &str) -> Result<Self, Error> {
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(vec![INSIDE.to_owned(), "watch".to_owned()]),
            ..ExecConfig::default()
        };
        let exec = client.docker.create_exec(container, config);
        let exec = within("prepare the watch", CHANGE, exec).await?;
        let started = client.docker.start_exec(&exec.id, None::<StartExecOptions>);
        let (output, input) = match within("start the watch", CHANGE, started).await? {
            StartExecResults::Attached { output, input } => (output, input),
            StartExecResults::Detached => {
                return Err(Error::Failed("the watch has no streams".to_owned()));
            }
        };
        let mut key = [0; KEY];
        getrandom(&mut key, GetRandomFlags::empty())
            .map_err(|error| Error::Failed(format!("no key for the watch: {error}")))?;
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
            Err(why) => Err(Error::Failed(format!("the watch does not answer: {why}"))),
        }
    }

    /// Until the watch does not answer, or its server is `unwanted`: then it is not spoken to any more.
    pub(super) async fn keep(mut self, unwanted: &CancellationToken) -> Lost {
        let speaking = async {
            loop {
                sleep_until(self.given + PACE).await;
                if let Err(why) = self.exchange().await {
                    tracing::debug!(why, "a watch does not answer");
                    return;
                }
            }
        };
        // A word that this cuts off counts as given.
        unwanted.run_until_cancelled(speaking).await;
        Lost {
            over: self.given + OVER,
        }
    }

    /// Gives a word, the first one after the key, and waits until it is answered.
    async fn exchange(&mut self) -> Result<(), String> {
        self.given = Instant::now();
        let until = self.given + Duration::from_secs(SILENCE as u64);
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
            let mut said = Vec::with_capacity(ANSWER);
            while said.len() < ANSWER {
                match self.output.next().await {
                    Some(Ok(LogOutput::StdOut { message })) => said.extend_from_slice(&message),
                    Some(Ok(other)) => return Err(other.to_string()),
                    Some(Err(error)) => return Err(error.to_string()),
                    None => return Err("it ended".to_owned()),
                }
            }
            match said == answer(&self.key, number) {
                true => Ok(()),
                false => Err("somebody else answers".to_owned()),
            }
        };
        let late = Err("nothing came back".to_owned());
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
        // From the paper's own vectors: 8 bytes.
        let expected = [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93];
        assert_eq!(answer(&key, number), expected);
        assert_ne!(answer(&key, number + 1), expected);
        assert_ne!(answer(&[0; KEY], number), expected);
    }
}
