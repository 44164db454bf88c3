//! A stdio client that sends and receives lines without interpreting them.

use std::{process::ExitStatus, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Split},
    process::{ChildStdin, ChildStdout, Command},
};

use crate::{
    process::Process,
    wait::{DEADLINE, within},
};

/// A spawned MCP server (or a gateway acting as one) and its two pipes.
pub struct StdioClient {
    process: Process,
    stdin: Option<ChildStdin>,
    stdout: Split<BufReader<ChildStdout>>,
}

impl StdioClient {
    /// Spawns `command` with both pipes.
    ///
    /// Must be called within a tokio runtime.
    pub fn spawn(command: Command) -> Self {
        let (process, stdin, stdout) = Process::spawn_piped(command);
        Self {
            process,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout).split(b'\n'),
        }
    }

    /// Spawns the workspace binary `name` with `arguments`.
    pub fn bin<S: AsRef<std::ffi::OsStr>>(
        name: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = Command::new(crate::Bin::path(name));
        command.args(arguments);
        Self::spawn(command)
    }

    /// The guard of the child process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends `line` and a newline.
    ///
    /// # Panics
    /// If the child closed its stdin, or does not read within [`DEADLINE`].
    pub async fn send(&mut self, line: impl AsRef<[u8]>) {
        let mut bytes = line.as_ref().to_vec();
        bytes.push(b'\n');
        self.send_bytes(&bytes).await;
    }

    /// Sends bytes as they are, without a newline.
    ///
    /// # Panics
    /// If the child closed its stdin, or does not read within [`DEADLINE`].
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin was closed by the test");
        let written = within("a child to read its stdin", DEADLINE, async {
            stdin.write_all(bytes).await?;
            stdin.flush().await
        })
        .await;
        written.unwrap_or_else(|error| panic!("cannot write to the child: {error}"));
    }

    /// Closes the child's stdin, which asks an MCP server to exit.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns the next line without its newline, or `None` at the end of the stream or after `limit`.
    ///
    /// # Cancel safety
    /// Cancel safe: a partial line is continued by the next call.
    pub async fn receive(&mut self, limit: Duration) -> Option<Vec<u8>> {
        let line = tokio::time::timeout(limit, self.stdout.next_segment());
        line.await.ok()?.ok()?
    }

    /// Returns the next line as JSON.
    ///
    /// # Panics
    /// If no line arrives within [`DEADLINE`], or it is not JSON.
    pub async fn receive_json(&mut self) -> Value {
        let line = self.receive(DEADLINE).await.unwrap_or_else(|| {
            panic!(
                "no line from the child; its stderr: {}",
                self.process.stderr()
            )
        });
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&line)))
    }

    /// Sends `message` as one line.
    pub async fn send_json(&mut self, message: &Value) {
        self.send(message.to_string()).await;
    }

    /// Sends the request `message` and returns the message with the same id. Messages before it are discarded.
    ///
    /// # Panics
    /// If no such message arrives within [`DEADLINE`].
    pub async fn ask(&mut self, message: Value) -> Value {
        self.send_json(&message).await;
        let what = format!("the answer to {message}");
        within(&what, DEADLINE, async {
            loop {
                let answer = self.receive_json().await;
                if answer.get("method").is_none() && answer.get("id") == message.get("id") {
                    return answer;
                }
            }
        })
        .await
    }

    /// Sends `signal` to the child, not to its group.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Closes stdin and waits until the child has exited, for at most `limit`.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn finish(mut self, limit: Duration) -> ExitStatus {
        self.close_stdin();
        self.process.wait(limit).await
    }
}
