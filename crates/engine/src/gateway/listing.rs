//! Answers requests for lists, counts the tokens that short ones save, and keeps the model that searches use for tools
//! that a list leaves out.

use std::{borrow::Cow, sync::Arc};

use catalog::ListKind;
use mcp::{Frame, RpcError};
use model::{ToolMode, UnknownWord};
use relevance::Meanings;

use super::{lacks, no_scope};
use crate::{
    Gateway,
    call::find,
    client_state::savings::SavedTokens,
    exchange::{Answer, Caller, check_cursor},
    life::{chain, session_instances},
    scope::Scope,
    views::{find::Hints, finders::TOOLS_KEY, view::View},
};

impl Gateway {
    /// Sets what compares meanings in searches. Only the first call has an effect.
    pub fn keep_meanings(&self, meanings: Arc<Meanings>) {
        let _ = self.shared.meanings.set(meanings);
    }

    /// The hints for [`View::find`]. Also starts to compute the meanings of all tools in the
    /// view.
    pub async fn hints(&self, view: &Arc<View>, query: &str) -> Hints {
        find::hints(&self.shared, view, query).await
    }

    /// The tokens that short lists of tools saved.
    #[must_use]
    pub fn saved_tokens(&self) -> SavedTokens {
        self.shared.savings.total()
    }

    pub(super) async fn list(
        &self,
        caller: &Caller,
        frame: &Frame,
        view: Arc<View>,
    ) -> Result<Answer, RpcError> {
        let kind = ListKind::from_method(frame.method())
            .ok_or_else(|| RpcError::method_not_found(frame.method()))?;
        check_cursor(frame)?;
        let (view, scope) = match tool_mode(frame)? {
            asked if asked.is_none() || kind != ListKind::Tools => {
                (view, Cow::Borrowed(&caller.scope))
            }
            tools => {
                let scope = Scope {
                    tools,
                    ..caller.scope.clone()
                };
                let view = self.shared.view(&scope);
                (view.ok_or_else(|| no_scope(&scope))?, Cow::Owned(scope))
            }
        };
        let view = if view.is_settled() {
            view.wake();
            view
        } else {
            Box::pin(self.settled(&scope))
                .await
                .ok_or_else(|| no_scope(&scope))?
        };
        if lacks(&view, frame.method(), caller.era) {
            return Err(RpcError::method_not_found(frame.method()));
        }
        let own;
        let list = match &caller.session {
            Some(session)
                if kind == ListKind::Tools
                    && !view.is_search()
                    && session_instances::has_own(&view) =>
            {
                let face = caller.face();
                let (shared, whose, era) = (&self.shared, &caller.principal, caller.era);
                let declared = &face.capabilities;
                let asked =
                    session_instances::own_tools(shared, &view, session, whose, era, declared);
                let tools = Box::pin(asked).await;
                own = view.own_tools(caller.era, &tools);
                &own
            }
            _ if caller.may_use && view.is_search() => {
                find::prepare(&self.shared, &view);
                self.shared.savings.add(view.saved_tokens());
                view.client_list(kind, caller.era)
            }
            // A caller that may call nothing cannot search either.
            _ if !caller.may_use => view.list(kind, caller.era),
            _ => view.client_list(kind, caller.era),
        };
        if chain::is_asked(frame) {
            return Ok(Answer::shared(frame, self.shared.with_chain(list)));
        }
        Ok(Answer::shared(frame, list.clone()))
    }
}

/// The tools that a request wants its list to contain.
fn tool_mode(frame: &Frame) -> Result<Option<ToolMode>, RpcError> {
    let asked = frame.meta().and_then(|own| own.string(TOOLS_KEY));
    let mode = asked.map(|word| word.parse()).transpose();
    mode.map_err(|unknown: UnknownWord| {
        RpcError::invalid_params(format!("Invalid params: `_meta` `{TOOLS_KEY}` {unknown}"))
    })
}
