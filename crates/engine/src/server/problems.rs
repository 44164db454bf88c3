//! The missing parts of a server's offer, with reasons, for callers and operators.

use std::sync::Arc;

use catalog::{Fate, Flaw, ListKind};

use crate::server::{Server, State};

/// Problems shown per server. The rest is counted.
const MAX_SHOWN: usize = 50;

impl Server {
    /// Why the server offers nothing at the moment. `None` if it offers something, or if a call can wait until it does.
    #[must_use]
    pub fn absence(&self) -> Option<Arc<str>> {
        match self.state() {
            State::Ready(_) => None,
            State::Idle if self.unmet().is_some() => self.unmet(),
            State::Idle if self.is_doubtful() => Some("it has not been started".into()),
            State::Starting if self.catalog().info.is_none() => Some(self.starting()),
            // A call starts the server, or waits for its start.
            State::Idle | State::Starting => None,
            State::Down { reason, .. } => Some(reason),
            State::Stopped => Some("it is stopped".into()),
        }
    }

    /// Describes a start. After a crash or a failed start, names that.
    fn starting(&self) -> Arc<str> {
        let status = self.status();
        let has_failed = status.failures > 0 || status.restarts > 0;
        match status.reason.filter(|_| has_failed) {
            Some(why) => format!("it failed and is starting again: {why}").into(),
            None => "it is still starting".into(),
        }
    }

    /// Returns whether the server may fail to start: it was never reached, or its last start failed.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.catalog().info.is_none() || self.status().failures > 0
    }

    /// Returns whether lists are incomplete because it has not been connected yet.
    pub(crate) fn is_missing(&self) -> bool {
        let is_awaited = matches!(self.state(), State::Starting | State::Down { .. });
        (is_awaited || self.unmet().is_some()) && self.catalog().info.is_none()
    }

    /// Returns whether its tools are unknown until a user signs in.
    pub(crate) fn awaits_sign_in(&self) -> bool {
        matches!(self.state(), State::Down { .. })
            && self.status().needs_login
            && self.catalog().list(ListKind::Tools).is_empty()
    }

    /// Why items of this list may be missing.
    pub(crate) fn lacks(&self, kind: ListKind) -> Option<Arc<str>> {
        let failing = || self.status().lists[kind as usize].clone();
        let nothing = || self.offers_nothing().map(Arc::from);
        self.absence().or_else(failing).or_else(nothing)
    }

    /// The reason, if the connected server declares neither tools nor prompts nor resources.
    pub(crate) fn offers_nothing(&self) -> Option<&'static str> {
        let has = |kind: ListKind| self.declares(kind);
        let nothing = !ListKind::ALL.into_iter().any(has);
        nothing.then_some("it declares no tools, prompts or resources in its `capabilities`")
    }

    /// Returns whether the server declares this list. True if that is unknown.
    fn declares(&self, kind: ListKind) -> bool {
        let catalog = self.catalog();
        let info = catalog.info.as_ref();
        info.is_none_or(|info| info.has(kind.capability()))
    }

    /// What does not work although the server is connected: lists that cannot be fetched, and definitions that are left
    /// out.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let catalog = self.catalog();
        let mut all = Vec::new();
        if matches!(self.state(), State::Ready(_)) {
            let failing = self.status().lists;
            all.extend(failing.iter().flatten().map(ToString::to_string));
            all.extend(self.offers_nothing().map(str::to_owned));
        }
        for kind in ListKind::ALL {
            let list = catalog.of(kind);
            let cut = list.cut.as_ref();
            all.extend(cut.map(|why| format!("`{}` may be incomplete: {why}", kind.method())));
            all.extend(shown(&list.flaws, false));
        }
        bounded(all)
    }

    /// What operators may want to know and need not change: repaired definitions, and a server that has no tools.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut all = Vec::new();
        if !self.declares(ListKind::Tools) && self.offers_nothing().is_none() {
            all.push("it declares no tools in its `capabilities`".to_owned());
        }
        let catalog = self.catalog();
        for kind in ListKind::ALL {
            all.extend(shown(&catalog.of(kind).flaws, true));
        }
        bounded(all)
    }
}

fn shown(flaws: &[Flaw], repaired: bool) -> impl Iterator<Item = String> {
    let wanted = move |flaw: &&Flaw| (flaw.fate == Fate::Repaired) == repaired;
    flaws.iter().filter(wanted).map(ToString::to_string)
}

fn bounded(mut all: Vec<String>) -> Vec<String> {
    let more = all.len().saturating_sub(MAX_SHOWN);
    if more > 0 {
        all.truncate(MAX_SHOWN);
        all.push(format!("{more} more"));
    }
    all
}
