//! The child's two descriptors: lines from the gateway, and lines to it.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use serde::Serialize;

use crate::message::{ToChild, line};

const CHUNK_BYTES: usize = 64 << 10;

/// Reads messages from standard input.
pub(super) struct Input {
    buffer: Vec<u8>,
    /// Bytes at the beginning of the buffer without a line end.
    searched: usize,
}

pub(super) enum Received {
    Message(ToChild),
    /// Nothing came in time.
    Nothing,
    /// The gateway closed the stream.
    Closed,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            searched: 0,
        }
    }

    /// Waits for a message, at most for `patience`.
    pub(super) fn receive(&mut self, patience: Option<Duration>) -> io::Result<Received> {
        let stdin = io::stdin();
        let stdin = stdin.as_fd();
        loop {
            let rest = &self.buffer[self.searched..];
            if let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
                let end = self.searched + at;
                let message = serde_json::from_slice(&self.buffer[..end])?;
                self.buffer.drain(..=end);
                self.searched = 0;
                return Ok(Received::Message(message));
            }
            self.searched = self.buffer.len();
            if let Some(patience) = patience {
                let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
                match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&patience)) {
                    Ok(0) => return Ok(Received::Nothing),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let start = self.buffer.len();
            self.buffer.resize(start + CHUNK_BYTES, 0);
            let count = match read(stdin, &mut self.buffer[start..]) {
                Ok(count) => count,
                Err(Errno::INTR) => {
                    self.buffer.truncate(start);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.buffer.truncate(start + count);
            if count == 0 {
                return Ok(Received::Closed);
            }
        }
    }
}

/// Writes a message to standard output. Blocks until the gateway has room for it.
pub(super) fn send(message: &impl Serialize) -> io::Result<()> {
    let line = line(message).ok_or(io::ErrorKind::InvalidData)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}
