//! The three accounts of all calls, and the check that they agree.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::{fmt, fs};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Promise, arguments};
use crate::run::api::Api;

/// Audit records per request.
const PAGE_ROWS: usize = 1_000;

/// The outcome of a call, as its client sees it.
#[derive(Debug)]
pub(super) enum Ended {
    Good,
    /// An error with this reason.
    Failed(String),
    /// The response is unreadable or belongs to another call.
    Wrong(String),
    /// The connection to the gateway broke.
    Broken(String),
    /// No response in time.
    Overdue,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("succeeded"),
            Self::Failed(reason) => write!(f, "failed ({reason})"),
            Self::Wrong(what) => write!(f, "was answered wrongly: {what}"),
            Self::Broken(what) => write!(f, "had its connection broken: {what}"),
            Self::Overdue => f.write_str("did not end in time"),
        }
    }
}

/// One call, as seen by all three parties.
struct Call {
    server: usize,
    ended: Ended,
    /// Number of times that the server carried out the call.
    executed: u32,
    /// The status of each audit record of the call.
    recorded: Vec<String>,
}

#[derive(Default)]
pub(super) struct Books {
    /// All calls, by their unique text.
    calls: HashMap<String, Call>,
    /// Lines of the servers' files and audit records that do not belong to a known call.
    unexplained: Vec<String>,
}

impl Books {
    /// Adds the account of a client: for each of its calls, the server and the outcome.
    pub(super) fn client(&mut self, number: usize, calls: Vec<(usize, Ended)>) {
        for (n, (server, ended)) in calls.into_iter().enumerate() {
            let call = Call {
                server,
                ended,
                executed: 0,
                recorded: Vec::new(),
            };
            self.calls.insert(format!("c{number}-{n}"), call);
        }
    }

    /// Reads the file that a server wrote.
    pub(super) fn ledger(&mut self, file: &Path) -> anyhow::Result<()> {
        let text = match fs::read_to_string(file) {
            // The file does not exist until the server has carried out a call.
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text?,
        };
        for line in text.lines() {
            match self.calls.get_mut(line) {
                Some(call) => call.executed += 1,
                None => self
                    .unexplained
                    .push(format!("a server carried out {line:?}")),
            }
        }
        Ok(())
    }

    /// Reads all audit records.
    pub(super) async fn audit(&mut self, api: &mut Api) -> anyhow::Result<()> {
        let mut by_digest: HashMap<Vec<u8>, &mut Call> = HashMap::with_capacity(self.calls.len());
        for (name, call) in &mut self.calls {
            let digest = Sha256::digest(arguments(call.server, name));
            by_digest.insert(digest.to_vec(), call);
        }
        let mut after = String::new();
        loop {
            let path = format!("/calls?tool=append&limit={PAGE_ROWS}{after}");
            let page = api.ask("GET", &path, &Value::Null).await?;
            for row in page["calls"].as_array().into_iter().flatten() {
                let digest = row["arguments_digest"].as_str().unwrap_or_default();
                let status = row["status"].as_str().unwrap_or_default();
                let digest = hex::decode(digest).unwrap_or_default();
                match by_digest.get_mut(&digest) {
                    Some(call) => call.recorded.push(status.to_owned()),
                    None => self.unexplained.push(format!("audit record {row}")),
                }
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return Ok(()),
            }
        }
    }

    pub(super) fn summary(&self) -> String {
        let mut words: BTreeMap<&str, u64> = BTreeMap::new();
        let mut done_all_the_same = 0_u64;
        for call in self.calls.values() {
            let word = match &call.ended {
                Ended::Good => "good",
                Ended::Failed(reason) => reason,
                Ended::Wrong(_) => "WRONG",
                Ended::Broken(_) => "BROKEN",
                Ended::Overdue => "OVERDUE",
            };
            *words.entry(word).or_default() += 1;
            done_all_the_same += u64::from(call.executed > 0 && !matches!(call.ended, Ended::Good));
        }
        let words = words.iter().map(|(word, count)| format!("{count} {word}"));
        format!(
            "{} in total: {}; {done_all_the_same} failed calls were carried out even so",
            self.calls.len(),
            words.collect::<Vec<_>>().join(", ")
        )
    }

    pub(super) fn promises(&self) -> Vec<Promise> {
        let promise = |says, wrong: &dyn Fn(&Call) -> bool| {
            let found = self.calls.iter().filter(|(_, call)| wrong(call));
            let against = found.map(|(name, call)| {
                format!(
                    "{name} at s{} {}, carried out {} times, recorded as {:?}",
                    call.server, call.ended, call.executed, call.recorded
                )
            });
            Promise::new(says, against)
        };
        vec![
            promise("every call ended in time, with its own response", &|call| {
                !matches!(call.ended, Ended::Good | Ended::Failed(_))
            }),
            promise("no call was carried out twice", &|call| call.executed > 1),
            promise("successful calls were carried out", &|call| {
                matches!(call.ended, Ended::Good) && call.executed != 1
            }),
            promise("rejected calls were not carried out", &|call| {
                matches!(&call.ended, Ended::Failed(reason) if reason == "server_busy")
                    && call.executed > 0
            }),
            promise(
                "every call that was carried out is recorded exactly once",
                &|call| call.recorded.len() > 1 || (call.executed > 0 && call.recorded.is_empty()),
            ),
            promise(
                "every record is closed and agrees with the client",
                &|call| {
                    call.recorded.iter().any(|status| match call.ended {
                        Ended::Good => status != "ok",
                        _ => status == "ok" || status == "open" || status == "unknown",
                    })
                },
            ),
            Promise::new(
                "nothing was carried out or recorded without a call",
                self.unexplained.clone(),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests which outcomes break each promise.
    #[test]
    fn a_promise_is_broken_by_what_it_forbids() {
        let call = |ended, executed, recorded: &[&str]| {
            let recorded = recorded.iter().map(|word| (*word).to_owned()).collect();
            let call = Call {
                server: 0,
                ended,
                executed,
                recorded,
            };
            let books = Books {
                calls: HashMap::from([("c0-0".to_owned(), call)]),
                unexplained: Vec::new(),
            };
            let promises = books.promises();
            let broken = promises.iter().filter(|one| !one.against.is_empty());
            broken.map(|one| one.says).collect::<Vec<_>>().join("; ")
        };
        let failed = |reason: &str| Ended::Failed(reason.to_owned());
        assert_eq!(call(Ended::Good, 1, &["ok"]), "");
        assert_eq!(call(failed("timeout"), 1, &["timeout"]), "");
        assert_eq!(call(failed("server_busy"), 0, &[]), "");
        for (broken, says) in [
            (call(Ended::Overdue, 0, &[]), "in time"),
            (
                call(Ended::Wrong(String::new()), 0, &[]),
                "its own response",
            ),
            (call(failed("timeout"), 2, &["timeout"]), "twice"),
            (call(Ended::Good, 0, &["ok"]), "successful"),
            (call(failed("server_busy"), 1, &["error"]), "rejected"),
            (call(Ended::Good, 1, &[]), "is recorded"),
            (call(Ended::Good, 1, &["ok", "ok"]), "is recorded"),
            (call(failed("timeout"), 1, &["open"]), "is closed"),
            (call(failed("timeout"), 1, &["ok"]), "is closed"),
        ] {
            assert!(broken.contains(says), "{broken:?}: {says}");
        }
    }
}
