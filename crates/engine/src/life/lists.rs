//! Fetches the lists of a connected server, and reports what is wrong with them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use catalog::{Fate, FetchError, Flaw, List, ListKind, fetch_list};
use mcp::client::CallError;
use records::event_log::Write;
use serde_json::json;

use crate::{
    server::{Server, connection::Connection},
    shared::Shared,
};

/// Interval between fetches of lists whose changes a server cannot report, and of lists that could not be fetched.
pub(super) const RELIST_INTERVAL: Duration = Duration::from_secs(60);
/// Characters of a server's error that are shown.
const MAX_REASON_CHARS: usize = 300;
/// Definitions named in one line of the log.
const MAX_LOGGED: usize = 5;

/// The outcome of fetching some lists.
#[derive(Default)]
pub(super) struct Fetched {
    /// Lists that could not be fetched.
    pub(super) missing: Vec<ListKind>,
    /// True if the catalog has changed.
    pub(super) changed: bool,
}

impl Server {
    /// Fetches these lists one after the other.
    ///
    /// A failed list does not affect the others, and its known items stay.
    pub(super) async fn fetch(
        &self,
        shared: &Arc<Shared>,
        connection: &Connection,
        kinds: &[ListKind],
    ) -> Fetched {
        let mut fetched = Fetched::default();
        for kind in kinds {
            // Each caller has separate resources here, so a common list would be wrong.
            let is_private = self.is_personal && *kind == ListKind::Resources;
            if is_private || !connection.client.info().has(kind.capability()) {
                fetched.changed |= self.replace(*kind, List::default());
                continue;
            }
            match fetch_list(&connection.client, *kind).await {
                Ok((list, behind)) => {
                    if *kind == ListKind::Tools {
                        if !self.look_behind(shared, connection, behind) {
                            connection.client.close(shared.stop_grace).await;
                            return fetched;
                        }
                        self.compare(shared, &list.items);
                    }
                    self.list_works(shared, *kind);
                    let is_first = !connection.is_known.load(Ordering::Relaxed);
                    self.report_flaws(*kind, &list, is_first);
                    fetched.changed |= self.replace(*kind, list);
                }
                // The server accepts connections without a sign-in, but nothing else.
                Err(FetchError::Call(CallError::SignIn(why)))
                    if why.is_needed && !connection.is_known.load(Ordering::Relaxed) =>
                {
                    *self.needs_login.lock() = Some(why);
                    connection.client.close(shared.stop_grace).await;
                    return fetched;
                }
                Err(error) => {
                    self.list_fails(shared, *kind, &error.to_string());
                    fetched.missing.push(*kind);
                }
            }
        }
        fetched
    }

    /// Replaces a list. Returns whether it differs.
    fn replace(&self, kind: ListKind, list: List) -> bool {
        let differs = !self.catalog().of(kind).is_same(&list);
        if differs {
            self.change(|catalog| catalog.set(kind, list));
        }
        differs
    }

    /// The lists that have to be fetched from time to time: those whose changes the server cannot report, and those
    /// that could not be fetched.
    pub(super) fn unheard(&self, connection: &Connection) -> Vec<ListKind> {
        let info = connection.client.info();
        let is_heard = |kind: ListKind| match info.era {
            mcp::Era::Legacy => connection.client.has_stream(),
            mcp::Era::Modern => {
                info.flag(kind.capability(), "listChanged") && !self.upstream.is_refused()
            }
        };
        let failing = self.status().lists;
        let kinds = ListKind::ALL.into_iter();
        let kinds = kinds.filter(|kind| info.has(kind.capability()));
        kinds
            .filter(|kind| failing[*kind as usize].is_some() || !is_heard(*kind))
            .collect()
    }

    /// Reports a server that has nothing to list.
    pub(super) fn report_nothing(&self, shared: &Shared) {
        if let Some(why) = self.offers_nothing() {
            self.record_lists(shared, "list-failed", true, why);
        }
    }

    fn list_fails(&self, shared: &Shared, kind: ListKind, why: &str) {
        let why: String = self.redact(why).chars().take(MAX_REASON_CHARS).collect();
        let why: Arc<str> = format!("`{}` failed: {why}", kind.method()).into();
        let before = self.known.status().lists[kind as usize].replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.record_lists(shared, "list-failed", true, &why);
        }
    }

    fn list_works(&self, shared: &Shared, kind: ListKind) {
        let before = self.known.status().lists[kind as usize].take();
        if before.is_some() {
            let what = format!("`{}` works again", kind.method());
            self.record_lists(shared, "list-works", false, &what);
        }
    }

    /// Logs and saves an event about the server's lists.
    fn record_lists(&self, shared: &Shared, kind: &'static str, warning: bool, what: &str) {
        let server = self.key();
        if warning {
            if let Some(times) = self.repeats.count(&("list", what)) {
                tracing::warn!(%server, "{what}{times}");
            }
        } else {
            tracing::info!(%server, "{what}");
        }
        let elsewhere = {
            let mut status = self.known.status();
            status.warnings += u64::from(warning);
            status.elsewhere
        };
        // The gateway that runs the server records its events.
        if elsewhere {
            return;
        }
        shared.event_log.write(Write::Event {
            project: self.spec.owner.clone(),
            id: self.spec.id(),
            name: self.name().clone(),
            kind,
            warning,
            detail: json!({ "name": self.name().as_str(), "message": what }),
        });
    }

    /// Logs the definitions that are repaired or left out, unless they were already logged.
    fn report_flaws(&self, kind: ListKind, list: &List, is_first: bool) {
        let server = self.key();
        let catalog = self.catalog();
        let before = catalog.of(kind);
        let is_new = is_first || before.cut != list.cut || before.flaws != list.flaws;
        let is_fine = list.cut.is_none() && list.flaws.is_empty();
        if !is_new || is_fine {
            return;
        }
        let Some(times) = self.repeats.count(&("flaws", kind.method())) else {
            return;
        };
        let method = kind.method();
        if let Some(why) = &list.cut {
            tracing::warn!(%server, "{method} may be incomplete: {why}{times}");
        }
        let (repaired, left_out): (Vec<&Flaw>, Vec<&Flaw>) = list
            .flaws
            .iter()
            .partition(|flaw| flaw.fate == Fate::Repaired);
        if !left_out.is_empty() {
            tracing::warn!(%server, "{method}: {}{times}", named(&left_out));
        }
        if !repaired.is_empty() {
            tracing::info!(%server, "{method}: {}{times}", named(&repaired));
        }
    }
}

fn named(flaws: &[&Flaw]) -> String {
    let shown = flaws.iter().take(MAX_LOGGED).map(ToString::to_string);
    let mut text = shown.collect::<Vec<_>>().join("; ");
    let more = flaws.len().saturating_sub(MAX_LOGGED);
    if more > 0 {
        text.push_str(&format!("; {more} more (`toolwharf get` lists them)"));
    }
    text
}
