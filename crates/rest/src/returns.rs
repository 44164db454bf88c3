//! Forwards answers to the replica that asked the question, because a client's answer may arrive at any replica.
//!
//! Deliberately absent: access control. The replica that received the request has already checked it.

use std::sync::Arc;

use axum::response::IntoResponse as _;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use mcp::{backlog::Account, outbox::Outbox, sse::encode};
use model::{ProjectId, ServerKey, ServerName};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::json;

use super::{AppState, Problem, Rest, bridge, chat};
use auth::Principal;
use gateway::Body;

/// A call that is repeated with the answers that its server asked for.
const CALL: &str = "call";
/// Answers to the questions of a chat.
const ANSWERS: &str = "answers";

impl Rest {
    /// Forwards a call to the replica at `address`, which continues it. `None` if that replica is gone.
    ///
    /// # Errors
    /// The replica was lost during the call.
    pub(super) async fn call_at(
        &self,
        address: &str,
        who: &Principal,
        server: &ServerKey,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Option<Result<Response<Body>, Problem>> {
        let path = path(CALL, server.owner.as_ref(), server.name.as_str());
        self.at(address, (who, &path), headers, body).await
    }

    /// Forwards answers to the replica at `address`. `None` if that replica is gone.
    ///
    /// # Errors
    /// The replica was lost during the request.
    pub(super) async fn answers_at(
        &self,
        address: &str,
        who: &Principal,
        (project, conversation): (Option<&ProjectId>, &str),
        body: &Bytes,
    ) -> Option<Result<Response<Body>, Problem>> {
        let path = path(ANSWERS, project, conversation);
        self.at(address, (who, &path), &HeaderMap::new(), body)
            .await
    }

    async fn at(
        &self,
        address: &str,
        asked: (&Principal, &str),
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Option<Result<Response<Body>, Problem>> {
        let lost = |why: &str| Problem::new(502, why);
        let last = |why: &str| encode(Some("error"), None, &json!(*lost(why)).to_string().into());
        let sent = self
            .front
            .forward_beside(address, asked, headers, body, last);
        let answer = Box::pin(sent).await?;
        Some(answer.map_err(|why| lost(&why)))
    }
}

/// `/WHAT/PROJECT/NAME`, with `-` for no project.
fn path(what: &str, project: Option<&ProjectId>, name: &str) -> String {
    let project = project.map_or("-", ProjectId::as_str);
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    format!("/{what}/{project}/{name}")
}

/// Handles a request that another replica forwarded.
pub(super) async fn answer(
    rest: AppState,
    who: Arc<Principal>,
    request: Request<Bytes>,
    account: Arc<Account>,
) -> Response<Body> {
    let answered = async {
        let missing = || Problem::new(404, "this replica does not have the call or chat");
        let path = request.uri().path().to_owned();
        let mut words = path.split('/').skip(1);
        let (Some(what), Some(project), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return Err(missing());
        };
        let name = percent_decode_str(name).decode_utf8_lossy();
        let project = match project {
            "-" => None,
            id => Some(ProjectId::parse(id).map_err(|_| missing())?),
        };
        let (parts, body) = request.into_parts();
        match what {
            CALL => {
                let name = ServerName::parse(&name).map_err(|_| missing())?;
                let key = ServerKey {
                    owner: project,
                    name,
                };
                let server = rest.gateway.fleet().get(&key).cloned();
                let server = server.ok_or_else(missing)?;
                let outbox = Outbox::charged(bridge::BOUNDS, account);
                let call = bridge::Call {
                    who: &who,
                    server,
                    headers: &parts.headers,
                    is_forwarded: true,
                };
                Box::pin(call.made(&rest, body, outbox)).await
            }
            ANSWERS => {
                let status = chat::answered(&rest, project.as_ref(), &name, &body)
                    .unwrap_or_else(|| Err(missing()))?;
                Ok(status.into_response().map(Body::Other))
            }
            _ => Err(missing()),
        }
    };
    let answered: Result<_, Problem> = answered.await;
    answered.unwrap_or_else(|problem| problem.into_response().map(Body::Other))
}
