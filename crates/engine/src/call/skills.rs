//! Merges the skills of several servers into one list (SEP-2640): `skills/list`, `skills/get`,
//! `resources/directory/read`.
//!
//! URIs of skills name their server in the same way as those of other resources. The rest of an entry stays byte for
//! byte the same. Deliberately absent: a cache. Lists are fetched when a client asks, and skills are not read in
//! advance.

use std::sync::Arc;

use mcp::{
    Frame, Kind, RpcError,
    client::CallError,
    json::{self, Splice, quote},
    protocol::method,
};
use tokio::time::Instant;

use crate::{
    call::relay,
    exchange::{Answer, Caller, check_cursor},
    server::Server,
    shared::Shared,
    uri,
    views::{offers::has_skills, view::View},
};

/// Limits per server: skills listed, bytes of their entries, and pages fetched.
const MAX_SKILLS: usize = 20_000;
const MAX_BYTES: usize = 16 << 20;
const MAX_PAGES: usize = 1_000;

/// Answers `skills/list` of a modern client with the skills of all servers of the view. A server that fails is left
/// out.
pub(crate) async fn list(
    shared: &Arc<Shared>,
    caller: &Caller,
    view: &View,
    frame: &Frame,
) -> Result<Answer, RpcError> {
    check_cursor(frame)?;
    let asked = view
        .servers
        .iter()
        .filter(|server| has_skills(server))
        .map(|server| async move {
            match skills_of(shared, caller, server).await {
                Ok(entries) => entries,
                Err(why) => {
                    tracing::warn!(server = %server.name(), "skills/list failed: {why}");
                    Vec::new()
                }
            }
        });
    let entries = futures_util::future::join_all(asked).await.concat();
    let result = format!(
        "{{{},\"skills\":[{}]}}",
        view.modern_members(0, None),
        entries.join(",")
    );
    Ok(Answer::result(frame, result.as_bytes()))
}

/// The entries of one server, with exposed URIs.
async fn skills_of(
    shared: &Arc<Shared>,
    caller: &Caller,
    server: &Arc<Server>,
) -> Result<Vec<String>, RpcError> {
    let deadline = Instant::now() + server.spec.call_timeout;
    let mut connection = relay::connection(shared, caller, server, caller.era, deadline)
        .await
        .map_err(|failure| failure.into_rpc(server))?;
    let mut again = true;
    let prefix = server.uri_prefix(&caller.scope);
    let failed = |why: CallError| RpcError::internal(why.to_string());
    let mut entries: Vec<String> = Vec::new();
    let mut bytes = 0;
    let limit = server.spec.call_timeout.as_millis();
    let late = || format!("the server did not answer `skills/list` within {limit} ms");
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let members = cursor
            .as_deref()
            .map(|at| format!("\"cursor\":{}", quote(at)))
            .unwrap_or_default();
        let page = connection.client.ask(method::SKILLS_LIST, &members);
        let page = tokio::time::timeout_at(deadline, page)
            .await
            .map_err(|_| RpcError::internal(late()))?;
        let page = match page {
            // The list starts from its first page in the new session.
            Err(lost @ CallError::SessionExpired) if std::mem::take(&mut again) => {
                let fresh = server.reconnected(&connection, deadline).await;
                connection = fresh.ok_or_else(|| failed(lost))?;
                (bytes, cursor) = (0, None);
                entries.clear();
                continue;
            }
            page => page.map_err(failed)?,
        };
        if page.kind() == Kind::Error {
            return Err(RpcError::from_json(page.body()));
        }
        let text = page.text();
        let object = page.object();
        let skills = object.as_ref().and_then(|result| result.find("skills"));
        for span in skills.into_iter().flat_map(|all| json::elements(text, all)) {
            bytes += span.len();
            if entries.len() >= MAX_SKILLS || bytes > MAX_BYTES {
                tracing::warn!(server = %server.name(), "skills/list is too long: only the first {} skills are kept", entries.len());
                return Ok(entries);
            }
            let mut splice = Splice::new();
            uri::expose_skill(text, span.clone(), prefix, &mut splice);
            let entry = splice.apply_within(text, span);
            entries.push(String::from_utf8_lossy(&entry).into_owned());
        }
        let next = object
            .as_ref()
            .and_then(|result| result.string("nextCursor"));
        match next.map(std::borrow::Cow::into_owned) {
            Some(next) if !next.is_empty() && cursor.as_deref() != Some(&next) => {
                cursor = Some(next);
            }
            _ => break,
        }
    }
    Ok(entries)
}

/// Returns whether this is a method of the skills extension.
pub(crate) fn is_of_skills(asked: &str) -> bool {
    matches!(
        asked,
        method::SKILLS_LIST | method::SKILLS_GET | method::DIRECTORY_READ
    )
}
