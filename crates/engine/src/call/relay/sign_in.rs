//! Calls of a user who has to sign in to the server first. The client is asked to open a link, and the call continues.

use std::sync::Arc;

use mcp::{
    Era, RpcError, bridge, client::CallError, elicit, frame::Param, json::quote, outbox::Weight,
    protocol::method,
};

use super::{Failure, Opening, Relay};
use crate::{
    exchange::Answer,
    server::{questions::answered, unavailable::Unavailable},
};

/// The key of the request to a modern client.
const INPUT_KEY: &str = "login";

impl Relay<'_> {
    /// Returns whether a call failed because a sign-in is needed.
    pub(super) fn needs_login(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Call(CallError::SignIn(sign_in)) => sign_in.is_needed,
            Failure::Refused(Unavailable::Down { needs_login, .. }) => *needs_login,
            _ => false,
        }
    }

    /// Lets the caller sign in and repeats the call. `failure` is its previous result.
    pub(super) async fn after_sign_in(
        &self,
        failure: Failure,
        opening: &mut Option<Opening<'_>>,
    ) -> Result<Answer, Failure> {
        let server = &self.target.server;
        let logins = &self.shared.logins;
        // Subscribed before the link is given out, so that no sign-in is missed.
        let signed_in = logins.signed_in(&server.spec, &self.caller.principal);
        let Some(link) = logins.link(&server.spec, &self.caller.principal) else {
            return Err(failure);
        };
        let face = self.caller.face();
        let name = server.name();
        let message = quote(&format!(
            "Sign in to the server `{name}` to continue the call"
        ));
        let params = format!(
            "\"mode\":\"url\",\"message\":{message},\"url\":{}",
            quote(&link)
        );
        let ttl = self.shared.limits().held_call_ttl;
        let is_retry = self.is_after_urls();
        match self.caller.era {
            _ if !elicit::opens_urls(&face.capabilities) => return Err(self.linked(&link)),
            Era::Modern if !is_retry => {
                let asked = format!("{{{params}}}").into();
                let asked = [(INPUT_KEY.to_owned(), method::ELICIT.to_owned(), asked)];
                let result = bridge::input_required(&asked, elicit::STATE);
                return Ok(Answer::result(self.frame, result.as_bytes()));
            }
            Era::Modern => {}
            Era::Legacy if self.caller.session.is_none() => return Err(self.linked(&link)),
            Era::Legacy => {
                let id = format!("{:032x}", rand::random::<u128>());
                let params = format!("{{{params},\"elicitationId\":{}}}", quote(&id));
                let asked = self.ask(method::ELICIT, Some(params.as_bytes()))?;
                let answer = answered(asked, ttl).await?;
                if !elicit::is_accepted(answer.body()) {
                    return Err(self.linked(&link));
                }
                if tokio::time::timeout(ttl, signed_in).await.is_err() {
                    return Err(self.linked(&link));
                }
                let complete = elicit::complete(&id);
                let outbox = &self.caller.outbox;
                outbox.push(Weight::Notification, complete.text().clone());
                return self.run(opening).await;
            }
        }
        if tokio::time::timeout(ttl, signed_in).await.is_err() {
            return Err(self.linked(&link));
        }
        self.run(opening).await
    }

    /// Returns whether a modern client repeats a request after it was asked to open URLs.
    pub(super) fn is_after_urls(&self) -> bool {
        self.caller.era == Era::Modern
            && self.frame.param_string(Param::RequestState).as_deref() == Some(elicit::STATE)
    }

    /// The error for a modern client that was asked to open a link and did not.
    pub(super) fn declined_sign_in(&self) -> Option<Failure> {
        let params = self.frame.object()?;
        params.object("inputResponses")?.find(INPUT_KEY)?;
        let logins = &self.shared.logins;
        let link = logins.link(&self.target.server.spec, &self.caller.principal)?;
        Some(self.linked(&link))
    }

    /// The error for a client that cannot be asked to open a link.
    fn linked(&self, link: &str) -> Failure {
        let name: Arc<str> = self.target.server.name().as_str().into();
        let message = format!(
            "server `{name}` needs you to sign in: open {link} in a browser (it works once, within ten minutes) and call again; \
             or run `toolwharf login {name}`"
        );
        let data = format!(
            "{{\"reason\":\"needs_login\",\"server\":{},\"url\":{}}}",
            quote(&name),
            quote(link)
        );
        RpcError::internal(message)
            .with_data(data.into_bytes())
            .into()
    }
}
