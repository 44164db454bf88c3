//! Publishes ports of a container without a network on this host's loopback.
//!
//! A container without a network still has a loopback device, but it cannot be reached from outside. In a gVisor
//! sandbox, the device even belongs to another kernel. So the daemon's `exec` runs a program of Toolwharf in the
//! container: the relay (`relay/main.rs`), a static executable that is mounted read-only. All connections share its
//! standard streams.
//!
//! # Invariants
//!
//! - The relay is not trusted, because it shares its container with the server. A frame that violates the protocol ends
//!   the relay.
//! - Backpressure applies in both directions. At most [`WINDOW_BYTES`] bytes of a connection are buffered here in each
//!   direction.
//! - The number of connections is limited. Further ones wait in the kernel's queue.
//! - A relay that exits ends its connections. It is restarted while its container runs.

#[path = "../../relay/frame.rs"]
pub(super) mod frame;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, unconstrained};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::frame::{
    CLOSED, CREDIT, DATA, END, HEAD_BYTES, MAX_BODY_BYTES, MAX_CONNECTIONS, OPEN, RESET,
    WINDOW_BYTES, head,
};
use super::engine::{CHANGE_TIMEOUT, Client, within};
use crate::common::refused;
use runtime::handle::ProcessState;
use runtime::ports::Listeners;
use runtime::pump::Idle;
use runtime::unit::Error;

/// The relay program. Empty if it was not built for this processor architecture.
pub(super) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/relay"));
/// The path of the program in the container. `/run` is in memory, and no volume or mount may cover it.
pub(super) const PATH_INSIDE: &str = "/run/toolwharf/relay";
/// The name of the program's file on this host. The other files in the directory are named after server ids, which
/// contain no dot.
pub(super) const FILE_NAME: &str = ".relay";
/// Capacity of the queue of frames to the relay.
const MAX_QUEUED_FRAMES: usize = 32;
/// Initial and maximum delay before the relay is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);
/// Error texts in messages are cut to this length.
const MAX_REASON_CHARS: usize = 300;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Writes the relay's file into a directory, if missing, and returns its path. Blocks.
///
/// # Errors
///
/// [`Error::Refused`] if no relay was built for this processor.
pub(super) fn place(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    if PROGRAM.is_empty() {
        let why = format!(
            "ports of a container without a network are not supported on the architecture {} yet; set `\"network\": \"open\"`",
            std::env::consts::ARCH
        );
        return refused("ports", why);
    }
    let file = dir.join(FILE_NAME);
    let put = || {
        if fs::read(&file).is_ok_and(|known| known == PROGRAM) {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let new = dir.join(format!("{FILE_NAME}.{name}"));
        fs::write(&new, PROGRAM)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, &file)
    };
    let failed =
        |error: io::Error| Error::Failed(format!("cannot write {}: {error}", file.display()));
    put().map_err(failed)?;
    Ok(file)
}

/// The ports of one container.
pub(super) struct Relay {
    pub(super) client: Client,
    pub(super) container: String,
    pub(super) listeners: Listeners,
    pub(super) shared: Arc<ProcessState>,
}

impl Relay {
    /// Runs until dropped.
    pub(super) async fn run(self) {
        let mut pause = RESTART_DELAY;
        loop {
            let why = match self.start().await {
                Ok((output, input)) => serve(&self.listeners, output, input).await,
                Err(error) => error.to_string(),
            };
            let why: String = why.trim().chars().take(MAX_REASON_CHARS).collect();
            sleep(pause).await;
            pause = (2 * pause).min(MAX_RESTART_DELAY);
            let label = &self.shared.label;
            tracing::warn!(
                server = label,
                why,
                "restarting the relay to the server's ports"
            );
            let note = format!(
                "[toolwharf] the relay to the server's ports ended and is restarted: {why}"
            );
            self.shared.log.note(&note);
        }
    }

    async fn start(&self) -> Result<(Output, Input), Error> {
        let docker = &self.client.docker;
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(vec![PATH_INSIDE.to_owned()]),
            ..ExecConfig::default()
        };
        let exec = docker.create_exec(&self.container, config);
        let exec = within(
            "prepare the relay to the server's ports",
            CHANGE_TIMEOUT,
            exec,
        )
        .await?;
        let options = StartExecOptions {
            output_capacity: Some(WINDOW_BYTES),
            ..StartExecOptions::default()
        };
        let started = docker.start_exec(&exec.id, Some(options));
        match within(
            "start the relay to the server's ports",
            CHANGE_TIMEOUT,
            started,
        )
        .await?
        {
            StartExecResults::Attached { output, input } => Ok((output, input)),
            StartExecResults::Detached => Err(Error::Failed("no streams attached".to_owned())),
        }
    }
}

/// Forwards connections until the relay ends. Returns why it ended.
async fn serve(listeners: &Listeners, mut output: Output, input: Input) -> String {
    let (frames, queued) = mpsc::channel(MAX_QUEUED_FRAMES);
    let mut writing = JoinSet::new();
    writing.spawn(write(input, queued));
    let mut carrying = JoinSet::new();
    let mut lines = Lines::default();
    let mut heard = BytesMut::new();
    loop {
        let free = lines.free();
        tokio::select! {
            said = output.next() => match said {
                Some(Ok(LogOutput::StdOut { message })) => {
                    heard.extend_from_slice(&message);
                    if lines.hear(&mut heard).is_none() {
                        return "it sent an invalid message".to_owned();
                    }
                }
                // The relay itself never writes to stderr. If it does not start, the daemon writes the reason there.
                Some(Ok(other)) => return other.to_string(),
                Some(Err(error)) => return error.to_string(),
                None => return "it ended".to_owned(),
            },
            _ = writing.join_next() => return "it closed its input".to_owned(),
            Some(Ok(number)) = carrying.join_next() => lines.carried(number),
            (port, client) = listeners.accept(), if free.is_some() => {
                if let Some(number) = free {
                    let line = lines.open(number, port, frames.clone());
                    carrying.spawn(line.carry(client));
                }
            }
        }
    }
}

async fn write(mut input: Input, mut queued: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(frame) = queued.recv().await {
        input.write_all(&frame).await?;
        input.flush().await?;
    }
    Ok(())
}

/// The connections by number.
#[derive(Default)]
struct Lines(Vec<Option<Far>>);

/// The side of a connection that faces the relay.
struct Far {
    /// `None`: the server has no more data.
    pipe: Option<DuplexStream>,
    credit: Arc<Semaphore>,
    closed: CancellationToken,
    is_carried: bool,
}

/// The side of a connection that faces the client.
struct Near {
    number: u8,
    port: u16,
    pipe: DuplexStream,
    /// Bytes that the relay currently accepts.
    credit: Arc<Semaphore>,
    /// Cancelled when the relay has closed the connection.
    closed: CancellationToken,
    frames: mpsc::Sender<Bytes>,
}

impl Lines {
    fn free(&mut self) -> Option<u8> {
        self.0.resize_with(MAX_CONNECTIONS, || None);
        let free = self.0.iter().position(Option::is_none)?;
        u8::try_from(free).ok()
    }

    fn open(&mut self, number: u8, port: u16, frames: mpsc::Sender<Bytes>) -> Near {
        let (far, near) = duplex(WINDOW_BYTES);
        let credit = Arc::new(Semaphore::new(WINDOW_BYTES));
        let closed = CancellationToken::new();
        self.0[usize::from(number)] = Some(Far {
            pipe: Some(far),
            credit: Arc::clone(&credit),
            closed: closed.clone(),
            is_carried: false,
        });
        Near {
            number,
            port,
            pipe: near,
            credit,
            closed,
            frames,
        }
    }

    /// Handles all complete frames. `None` if one violates the protocol.
    fn hear(&mut self, heard: &mut BytesMut) -> Option<()> {
        while let Some(&[kind, number, low, high]) = heard.first_chunk::<HEAD_BYTES>() {
            let value = u16::from_le_bytes([low, high]);
            let length = if kind == DATA { usize::from(value) } else { 0 };
            if length > MAX_BODY_BYTES {
                return None;
            }
            if heard.len() < HEAD_BYTES + length {
                break;
            }
            heard.advance(HEAD_BYTES);
            let body = heard.split_to(length);
            let place = self.0.get_mut(usize::from(number))?;
            let line = place.as_mut()?;
            match kind {
                DATA => {
                    let pipe = line.pipe.as_mut()?;
                    // The pipe has room for everything that the relay was allowed to send. On error, the client is
                    // gone, and [`Near`] sends the relay a [`RESET`].
                    let _ = unconstrained(pipe.write_all(&body)).now_or_never()?;
                }
                CREDIT if line.credit.available_permits() + usize::from(value) <= WINDOW_BYTES => {
                    line.credit.add_permits(usize::from(value));
                }
                END => line.pipe = None,
                CLOSED => {
                    line.pipe = None;
                    line.closed.cancel();
                    if line.is_carried {
                        *place = None;
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Notes that the client's side of the connection has ended.
    fn carried(&mut self, number: u8) {
        let Some(place) = self.0.get_mut(usize::from(number)) else {
            return;
        };
        match place {
            Some(line) if !line.closed.is_cancelled() => line.is_carried = true,
            _ => *place = None,
        }
    }
}

impl Near {
    /// Forwards data until the relay or the client ends the connection. Returns the connection's number.
    async fn carry(mut self, client: TcpStream) -> u8 {
        let number = self.number;
        if self.say(OPEN, self.port).await.is_ok() && self.copy(client).await.is_err() {
            let _ = self.say(RESET, 0).await;
        }
        number
    }

    /// `Ok` once the relay has closed the connection.
    async fn copy(&mut self, mut client: TcpStream) -> io::Result<()> {
        let idle = Idle::default();
        let (mut from_client, mut to_client) = client.split();
        let (mut from_relay, _) = tokio::io::split(&mut self.pipe);
        let (number, credit, frames) = (self.number, &self.credit, &self.frames);
        let up = async {
            let mut buffer = vec![0; MAX_BODY_BYTES];
            loop {
                let count = idle.read(&mut from_client, &mut buffer).await?;
                let length = u16::try_from(count).unwrap_or(u16::MAX);
                if count == 0 {
                    return say(frames, &head(END, number, 0), &[]).await;
                }
                if let Ok(permits) = credit.acquire_many(length.into()).await {
                    permits.forget();
                }
                say(frames, &head(DATA, number, length), &buffer[..count]).await?;
            }
        };
        let down = async {
            let mut buffer = vec![0; MAX_BODY_BYTES];
            loop {
                let count = idle.read(&mut from_relay, &mut buffer).await?;
                if count == 0 {
                    return to_client.shutdown().await;
                }
                idle.write(&mut to_client, &buffer[..count]).await?;
                let length = u16::try_from(count).unwrap_or(u16::MAX);
                say(frames, &head(CREDIT, number, length), &[]).await?;
            }
        };
        let closed = self.closed.clone();
        let down = async {
            down.await?;
            closed.cancelled().await;
            // The relay has closed the connection in both directions. This is a normal end, not an error.
            Ok::<_, io::Error>(())
        };
        let up = async {
            up.await?;
            std::future::pending::<io::Result<()>>().await
        };
        tokio::select! {
            done = down => done,
            failed = up => failed,
        }
    }

    async fn say(&self, kind: u8, value: u16) -> io::Result<()> {
        say(&self.frames, &head(kind, self.number, value), &[]).await
    }
}

async fn say(frames: &mpsc::Sender<Bytes>, head: &[u8], body: &[u8]) -> io::Result<()> {
    let sent = frames.send([head, body].concat().into()).await;
    sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> (Lines, Near) {
        let (frames, _) = mpsc::channel(1);
        let mut lines = Lines::default();
        let number = lines.free().unwrap();
        let near = lines.open(number, 80, frames);
        (lines, near)
    }

    fn heard(frames: &[(u8, u8, u16, usize)]) -> BytesMut {
        let mut bytes = BytesMut::new();
        for &(kind, number, value, body) in frames {
            bytes.extend_from_slice(&head(kind, number, value));
            bytes.resize(bytes.len() + body, b'x');
        }
        bytes
    }

    /// The relay shares a container with the server, so the gateway must expect any bytes from it.
    #[tokio::test]
    async fn frames_that_break_the_rules_end_the_relay() {
        let full = (DATA, 0, MAX_BODY_BYTES as u16, MAX_BODY_BYTES);
        let within = [full, full, full, full];
        for (frames, fits) in [
            (
                &[(DATA, 0, 3, 3), (END, 0, 0, 0), (CLOSED, 0, 0, 0)][..],
                true,
            ),
            (&within, true),
            (&[full, full, full, full, (DATA, 0, 1, 1)], false),
            (&[(DATA, 0, MAX_BODY_BYTES as u16 + 1, 0)], false),
            (&[(DATA, 1, 1, 1)], false),
            (&[(DATA, 255, 1, 1)], false),
            (&[(CREDIT, 0, 1, 0)], false),
            (&[(END, 0, 0, 0), (DATA, 0, 1, 1)], false),
            (&[(OPEN, 0, 80, 0)], false),
            (&[(RESET, 0, 0, 0)], false),
            (&[(0, 0, 0, 0)], false),
        ] {
            let (mut lines, _near) = lines();
            let mut bytes = heard(frames);
            assert_eq!(lines.hear(&mut bytes).is_some(), fits, "{frames:?}");
        }
    }

    #[tokio::test]
    async fn a_frame_may_come_in_pieces_and_a_number_is_used_again_last_of_all() {
        let (mut lines, near) = lines();
        let whole = heard(&[(DATA, 0, 3, 3), (CLOSED, 0, 0, 0)]);
        let mut bytes = BytesMut::new();
        for byte in whole {
            bytes.extend_from_slice(&[byte]);
            lines.hear(&mut bytes).unwrap();
        }
        assert!(bytes.is_empty() && near.closed.is_cancelled());
        // The client's side may still send frames under the old number. So number 0 is not free yet.
        assert_eq!(lines.free(), Some(1));
        lines.carried(0);
        assert_eq!(lines.free(), Some(0));
    }

    /// Runs the real program, without a container.
    #[tokio::test]
    async fn the_relay_ends_with_its_input() {
        use tokio::io::AsyncReadExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = place(dir.path(), "test").unwrap();
        assert_eq!(place(dir.path(), "test").unwrap(), file);
        let mut relay = tokio::process::Command::new(file)
            .env_clear()
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (mut input, mut output) = (relay.stdin.take().unwrap(), relay.stdout.take().unwrap());
        // The connection fails, because nothing listens on port 0.
        input.write_all(&head(OPEN, 5, 0)).await.unwrap();
        let mut said = [0; HEAD_BYTES];
        output.read_exact(&mut said).await.unwrap();
        assert_eq!(said, head(CLOSED, 5, 0));
        drop(input);
        assert!(relay.wait().await.unwrap().success());
    }
}
