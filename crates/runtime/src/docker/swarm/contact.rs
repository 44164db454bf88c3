//! The connection to a watch (`relay/gate.rs`), which ends its server when it hears nothing for [`SILENCE`] seconds.
//!
//! Word is given, and comes back; only then more is given. So at most one word is under way: a watch that has not
//! answered one that was given at `t` has heard it `SILENCE` after `t` at the latest, or has ended its server before that; and
//! `SILENCE` after hearing it, it ends its server. [`Lost::over`] is that time, with a little more for clocks.

use std::pin::Pin;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::docker::engine::{CHANGE, Client, within};
use crate::docker::relay::INSIDE;
use crate::docker::relay::frame::SILENCE;
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
    /// When the last word was given.
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
        let given = Instant::now();
        let mut contact = Self {
            output,
            input,
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

    /// Gives a word, and waits until it comes back.
    async fn exchange(&mut self) -> Result<(), String> {
        self.given = Instant::now();
        let until = self.given + Duration::from_secs(SILENCE as u64);
        let exchanging = async {
            let given = async {
                self.input.write_all(b".").await?;
                self.input.flush().await
            };
            given.await.map_err(|error| error.to_string())?;
            match self.output.next().await {
                Some(Ok(LogOutput::StdOut { .. })) => Ok(()),
                Some(Ok(other)) => Err(other.to_string()),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("it ended".to_owned()),
            }
        };
        let late = Err("nothing came back".to_owned());
        timeout_at(until, exchanging).await.unwrap_or(late)
    }
}
