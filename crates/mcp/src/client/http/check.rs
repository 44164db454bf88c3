//! Finds out whether a server refuses everything, after it has refused one request.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use tokio::time::timeout;

use super::{
    super::{CallError, Event},
    call::Exchange,
    link::{Core, MCP_METHOD, method_header},
    refusal::{self, Doubt, means_wait},
};
use crate::{Era, Frame, Kind, RpcError, error::METHOD_NOT_FOUND, protocol::method};

/// Maximum wait for the response to the ping. After it, the server counts as busy, and the link stays usable.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

impl Core {
    /// Finds out with a ping (modern: `server/discover`) whether the server refuses everything. If so, the link is
    /// unusable from then on. Only one check runs at a time. If the ping is not answered, nothing changes.
    pub(super) fn check(
        self: Arc<Self>,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(async move {
            if self.is_checking.swap(true, Ordering::AcqRel) {
                return false;
            }
            let _done = Done(&self.is_checking);
            let answer = timeout(CHECK_TIMEOUT, self.ping()).await;
            let refusal = match answer {
                Err(_) | Ok(Err(CallError::SignIn(_))) => None,
                Ok(Err(CallError::Http {
                    status: 408 | 429, ..
                })) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Ok(Ok((_, frame))) if frame.kind() != Kind::Error => None,
                Ok(Ok((status, frame))) => {
                    let error = RpcError::from_json(frame.body());
                    let is_same = doubt.error.as_ref() == Some(&error);
                    let refuses = match status.is_success() {
                        true => is_same || refusal::is_lost_session(&error),
                        // A server that does not know the request has accepted the session.
                        false => error.code != METHOD_NOT_FOUND && !means_wait(status),
                    };
                    refuses.then(|| self.endpoint.excerpt(error.message.as_bytes()))
                }
            };
            if let Some(refusal) = &refusal {
                match doubt.names_session {
                    true => drop(self.expired(refusal)),
                    false => self.refused(refusal),
                }
            }
            refusal.is_some()
        })
    }

    async fn ping(self: &Arc<Self>) -> Result<(StatusCode, Frame), CallError> {
        let mut headers = self.headers.clone();
        let name = match self.era {
            Era::Legacy => method::PING,
            Era::Modern => method::DISCOVER,
        };
        if self.era == Era::Modern {
            headers.insert(MCP_METHOD, method_header(name)?);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let params = Some(self.check_params.as_bytes());
        let ping = Frame::request(&id.to_string(), name, params);
        let asking = self.request(Method::POST, headers, ping.text().clone(), true);
        let mut exchange = Exchange::new(id, asking, true);
        exchange.handshake = true;
        loop {
            match exchange.next(self).await? {
                Event::Response(frame) => {
                    let status = StatusCode::from_u16(exchange.status).unwrap_or_default();
                    return Ok((status, frame));
                }
                Event::Request(question) | Event::Unclear(question) => {
                    let refusal = RpcError::method_not_found(question.method());
                    self.send_behind(Frame::error(question.id(), &refusal));
                }
                Event::Notification(_) => {}
            }
        }
    }
}

/// Ends a check, even one that is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
