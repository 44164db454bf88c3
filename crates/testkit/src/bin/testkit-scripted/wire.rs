//! Frames as text: parts of a request are used exactly as they were received, and responses are put together from
//! pieces of text.

use std::{borrow::Cow, fs::File, io::Write, os::fd::AsFd, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::mpsc::UnboundedSender;

/// The envelope of a frame. An `id` of null counts as missing.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
}

/// The params that this server uses.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Params<'a> {
    #[serde(borrow)]
    pub(crate) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) uri: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) cursor: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) protocol_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) notifications: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) capabilities: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) input_responses: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) request_state: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    pub(crate) meta: Option<Meta<'a>>,
}

/// The metadata that this server uses.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta<'a> {
    #[serde(borrow)]
    pub(crate) progress_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    pub(crate) capabilities: Option<&'a RawValue>,
}

/// The destination of a response.
#[derive(Clone)]
pub(crate) enum Out {
    /// The process's stdout, one write per line.
    Stdout(Arc<Mutex<File>>),
    /// The HTTP response, one item per line, without the newline.
    Channel(UnboundedSender<Bytes>),
}

impl Out {
    pub(crate) fn stdout() -> Self {
        // An unbuffered file, because `std::io::Stdout` would search each line for newlines.
        let fd = std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .expect("a server has a stdout");
        Self::Stdout(Arc::new(Mutex::new(File::from(fd))))
    }

    /// Writes `line` and a newline.
    pub(crate) fn line(&self, line: impl AsRef<[u8]>) {
        let line = line.as_ref();
        match self {
            Self::Stdout(_) => {
                let mut bytes = Vec::with_capacity(line.len() + 1);
                bytes.extend_from_slice(line);
                bytes.push(b'\n');
                self.raw(&bytes);
            }
            Self::Channel(sender) => {
                // The client may have disconnected.
                let _ = sender.send(Bytes::copy_from_slice(line));
            }
        }
    }

    /// Writes bytes without a newline.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        match self {
            Self::Stdout(file) => {
                let mut file = file.lock();
                // A closed stdout means that the client has gone; the reader notices that on stdin.
                let _ = file.write_all(bytes);
            }
            Self::Channel(sender) => {
                let _ = sender.send(Bytes::copy_from_slice(bytes));
            }
        }
    }

    /// Writes chunks without output of other threads in between, until the receiver is closed.
    pub(crate) fn raw_together<'c>(&self, chunks: impl Iterator<Item = &'c [u8]>) {
        match self {
            Self::Stdout(file) => {
                let mut file = file.lock();
                for chunk in chunks {
                    let _ = file.write_all(chunk);
                }
            }
            Self::Channel(_) => chunks
                .take_while(|_| !self.is_closed())
                .for_each(|chunk| self.raw(chunk)),
        }
    }

    /// Writes bytes and then blocks all later writes.
    pub(crate) fn raw_and_stop(&self, bytes: &[u8]) -> ! {
        if let Self::Stdout(file) = self {
            let mut file = file.lock();
            let _ = file.write_all(bytes);
            loop {
                std::thread::park();
            }
        }
        self.raw(bytes);
        loop {
            std::thread::park();
        }
    }

    /// Returns whether the receiver is closed. Always `false` for stdout, where that is unknown.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Stdout(_) => false,
            Self::Channel(sender) => sender.is_closed(),
        }
    }

    /// Answers request `id` with `result`.
    pub(crate) fn result(&self, id: &str, result: &str) {
        self.line(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
    }

    /// Answers request `id` with an error.
    pub(crate) fn error(&self, id: &str, code: i32, message: &str) {
        self.error_value(id, &json!({ "code": code, "message": message }));
    }

    /// Answers request `id` with this error.
    pub(crate) fn error_value(&self, id: &str, error: &Value) {
        self.line(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
    }
}

/// Returns `text` as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}
