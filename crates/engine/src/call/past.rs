//! Learns which tools searches led to (the setting `search_past_calls`).
//!
//! Invariant: only a successful call counts. Refused calls, errors of tools and calls that wait for an answer of the client
//! do not.

use std::sync::Arc;

use mcp::json::Object;
use model::ServerKey;
use relevance::Searcher;
use tokio::time::Instant;

use crate::{
    call::relay::Target,
    exchange::{Answer, Caller},
    shared::Shared,
    views::{find::Found, view::View},
};

/// Notes the tools that a search found.
pub(crate) fn searched(shared: &Shared, who: Searcher, query: &str, found: &[Found<'_>]) {
    let tools = found
        .iter()
        .map(|found| (found.server().key().clone(), found.native().into()));
    let words = discovery::query_words(query);
    shared
        .past
        .searched(who, words, tools.collect(), Instant::now());
}

/// The caller, as far as searches tell callers apart.
pub(crate) fn searcher(caller: &Caller) -> Searcher {
    let session = caller.session.as_ref();
    Searcher {
        project: caller.scope.project.clone(),
        principal: caller.principal.clone(),
        session: session.map(|session| session.id().as_str().into()),
    }
}

/// A call of a tool that a search of the same caller found.
pub(crate) struct Consequence {
    who: Searcher,
    server: ServerKey,
    tool: String,
    began: Instant,
}

impl Consequence {
    /// `None`: no search found the tool, or searches do not learn.
    pub(crate) fn of(
        shared: &Shared,
        view: &View,
        caller: &Caller,
        target: &Target,
    ) -> Option<Box<Self>> {
        if !view.learns() {
            return None;
        }
        let new = Self {
            who: searcher(caller),
            server: target.server.key().clone(),
            tool: target.name.clone()?,
            began: Instant::now(),
        };
        let is_expected = shared
            .past
            .expects(&new.who, &new.server, &new.tool, new.began);
        is_expected.then(|| Box::new(new))
    }

    /// Notes the call if it succeeded.
    pub(crate) fn note(self, shared: &Arc<Shared>, answer: &Answer) {
        if has_succeeded(answer) {
            let past = &shared.past;
            past.called(&self.who, &self.server, &self.tool, self.began);
        }
    }
}

fn has_succeeded(answer: &Answer) -> bool {
    let response = Object::of(&answer.text);
    let result = response.and_then(|response| response.object("result"));
    let succeeded = |result: Object<'_>| {
        let is_error = result.raw("isError") == Some(b"true");
        !is_error && result.string("resultType").as_deref() != Some("input_required")
    };
    answer.code.is_none() && !answer.silent && result.is_some_and(succeeded)
}
