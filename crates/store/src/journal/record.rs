//! The lines of a journal, and the chain of their hashes.
//!
//! A line is `HASH JSON` with one space and a newline. The hash is the SHA-256 of the hash of the previous line followed by
//! the JSON, both as text, in 64 hexadecimal digits. For the first line, the previous hash is 64 zeros. So changing,
//! inserting or removing a line changes all later hashes:
//!
//! ```sh
//! printf '%s%s' "$previous_hash" "$json" | sha256sum
//! ```

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::Path,
};

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    CallEnd, CallWrite, NewCall, Time,
    id::micros,
    names::{clean, name},
};

/// The version of the format, in the first line of each journal.
pub(super) const VERSION: u32 = 1;
/// The number of hexadecimal digits of a hash.
const HASH_LENGTH: usize = 64;

/// The hash of a line: 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash([u8; HASH_LENGTH]);

/// A place after a line of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Bytes from the beginning of the file.
    pub(super) end: u64,
    /// The hash of the line.
    pub(super) hash: Hash,
}

/// The content of a line. All texts are as in the database.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record<'a> {
    #[serde(borrow)]
    Journal(Head<'a>),
    #[serde(borrow)]
    Call(Call<'a>),
    #[serde(borrow)]
    End(End<'a>),
}

/// The first line of a journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Head<'a> {
    pub(super) version: u32,
    pub(super) started_at: String,
    /// The newest journal when this one was begun, and the hash of its last line at that time.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<After<'a>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct After<'a> {
    #[serde(borrow)]
    pub(super) file: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) hash: Cow<'a, str>,
}

/// A call that is about to be made. The names are those of the columns.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) run_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) project_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) caller: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) server: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) arguments_digest: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) started_at: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replay_of: Option<Cow<'a, str>>,
}

/// The outcome of a call. The names are those of the columns.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result_digest: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) finished_at: Cow<'a, str>,
    pub(super) duration_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sent_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) questions: Option<i64>,
}

impl Position {
    /// Before the first line.
    pub(super) const START: Self = Self {
        end: 0,
        hash: Hash([b'0'; HASH_LENGTH]),
    };
}

impl Hash {
    fn of_line(previous: Self, json: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(previous.0);
        hasher.update(json);
        let mut digits = [0; HASH_LENGTH];
        hex::encode_to_slice(hasher.finalize(), &mut digits).expect("two digits for each byte");
        Self(digits)
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("it has only digits")
    }
}

impl<'a> From<&'a CallWrite> for Record<'a> {
    fn from(write: &'a CallWrite) -> Self {
        match write {
            CallWrite::Intent(call) => Self::Call(call.into()),
            CallWrite::Outcome(end) => Self::End(end.into()),
        }
    }
}

impl<'a> From<&'a NewCall> for Call<'a> {
    fn from(call: &'a NewCall) -> Self {
        Self {
            id: name(&call.id),
            run_id: call.run_id.as_deref().map(name),
            project_id: call.project.as_ref().map(|project| name(project.as_str())),
            caller: name(&call.caller),
            server: name(&call.server),
            tool: name(&call.tool),
            arguments_digest: name(&call.arguments_digest),
            arguments: call.arguments.as_deref().map(clean),
            started_at: text(call.started_at).into(),
            replay_of: call.replay_of.as_deref().map(name),
        }
    }
}

impl<'a> From<&'a CallEnd> for End<'a> {
    fn from(end: &'a CallEnd) -> Self {
        Self {
            id: name(&end.id),
            status: end.status.as_str().into(),
            error: end.error.as_deref().map(clean),
            result_digest: end.result_digest.as_deref().map(name),
            result: end.result.as_deref().map(clean),
            finished_at: text(end.finished_at).into(),
            duration_us: end.duration_us,
            turn_us: end.steps.turn_us,
            sent_us: end.steps.sent_us,
            answered_us: end.steps.answered_us,
            questions: end.steps.questions,
        }
    }
}

/// Formats a time as sqlx does.
pub(super) fn text(time: Time) -> String {
    micros(time).to_rfc3339_opts(SecondsFormat::AutoSi, false)
}

/// Appends a line to `lines`, and returns its hash.
pub(super) fn push(lines: &mut Vec<u8>, previous: Hash, record: &Record<'_>) -> Hash {
    let start = lines.len();
    lines.extend_from_slice(&previous.0);
    lines.push(b' ');
    serde_json::to_writer(&mut *lines, record).expect("a record has only texts and numbers");
    let hash = Hash::of_line(previous, &lines[start + HASH_LENGTH + 1..]);
    lines[start..start + HASH_LENGTH].copy_from_slice(&hash.0);
    lines.push(b'\n');
    hash
}

/// The records of whole lines that this process has written or checked.
pub(super) fn records(lines: &[u8]) -> impl Iterator<Item = serde_json::Result<Record<'_>>> {
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(&line[HASH_LENGTH + 1..]))
}

/// Reads a journal and checks its hashes.
pub(super) struct Reader {
    input: BufReader<File>,
    position: Position,
}

impl Reader {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(File::open(path)?))
    }

    pub(super) fn new(file: File) -> Self {
        Self {
            input: BufReader::new(file),
            position: Position::START,
        }
    }

    /// Appends the next line to `lines` and returns the position after it. `None` at the end: the rest of the file is empty,
    /// or the process died while it was writing there.
    pub(super) fn next(&mut self, lines: &mut Vec<u8>) -> io::Result<Option<Position>> {
        let start = lines.len();
        self.input.read_until(b'\n', lines)?;
        let line = &lines[start..];
        let json = line.get(HASH_LENGTH + 1..line.len().saturating_sub(1));
        let is_whole = line.last() == Some(&b'\n') && line.get(HASH_LENGTH) == Some(&b' ');
        let hash = json.map(|json| Hash::of_line(self.position.hash, json));
        let Some(hash) = hash.filter(|hash| is_whole && line.starts_with(&hash.0)) else {
            lines.truncate(start);
            return Ok(None);
        };
        self.position = Position {
            end: self.position.end + (lines.len() - start) as u64,
            hash,
        };
        Ok(Some(self.position))
    }

    /// The position after the last line that was read.
    pub(super) fn position(&self) -> Position {
        self.position
    }
}
