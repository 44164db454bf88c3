//! Calls of a user who has to sign in to the server first. The client is asked to open a link, and the call continues.
//!
//! Until the first sign-in to a server, it has no tools. [`sign_in_tool`] is the tool that is offered in their
//! place, and [`sign_in`] precedes a call of a tool that is still unknown.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mcp::{
    Era, Frame, RpcError, bridge, client::CallError, elicit, frame::Param, json::quote,
    outbox::Weight, protocol::method,
};

use super::{Failure, Opening, Relay, Target};
use crate::{
    exchange::{Answer, Caller},
    server::{Server, questions::answered, unavailable::Unavailable},
    shared::Shared,
};

/// The key of the request to a modern client.
const INPUT_KEY: &str = "login";

/// The result of the request to sign in.
enum Prompted {
    /// The user has signed in.
    SignedIn,
    /// A modern client has to open a link, and to repeat its request.
    Input(Answer),
    /// The client cannot open this link, or the user did not sign in with it.
    Link(String),
    /// This gateway has no link: it has no address for browsers, or no person signs in to the server.
    NoLink,
}

/// Asks the caller to sign in to a server whose tools are unknown until somebody does. Returns `None` once somebody
/// has, otherwise the answer for the caller.
///
/// # Errors
/// The link, for a client that cannot be asked to open it, or why there is none.
pub(crate) async fn sign_in(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    server: &Arc<Server>,
) -> Result<Option<Answer>, RpcError> {
    let target = target(server);
    let relay = Relay::new(shared, caller, frame, &target, None);
    match relay.ask_first().await {
        Ok(Prompted::SignedIn) => Ok(None),
        Ok(Prompted::Input(answer)) => Ok(Some(answer)),
        Ok(Prompted::Link(link)) => Err(relay.linked(&link)),
        Ok(Prompted::NoLink) => Err(relay.refused(&server.unavailable_now())),
        Err(failure) => Err(relay.explain(failure)),
    }
}

/// Answers a call of the tool that signs in to a server.
pub(crate) async fn sign_in_tool(
    shared: &Arc<Shared>,
    caller: &Caller,
    frame: &Frame,
    server: &Arc<Server>,
) -> Answer {
    let target = target(server);
    let relay = Relay::new(shared, caller, frame, &target, None);
    let name = server.name();
    let (text, is_error) = match relay.ask_first().await {
        Ok(Prompted::SignedIn) => {
            let text = format!("Server `{name}` needs no sign-in now. List the tools again.");
            (text, false)
        }
        Ok(Prompted::Input(answer)) => return answer,
        Ok(Prompted::Link(link)) => {
            let text = format!(
                "To sign in to server `{name}`, open {link} in a browser (it works once, within ten minutes). Then list the \
                 tools again."
            );
            (text, false)
        }
        Ok(Prompted::NoLink) => (relay.refused(&server.unavailable_now()).message, true),
        Err(failure) => (relay.explain(failure).message, true),
    };
    Answer::of_tool(frame, caller.era, &text, is_error)
}

fn target(server: &Arc<Server>) -> Target {
    Target {
        server: server.clone(),
        rename: None,
        name: None,
        headers: None,
    }
}

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
        let logins = &self.shared.logins;
        // Subscribed before the link is given out, so that no sign-in is missed.
        let signed_in = logins.signed_in(&self.target.server.spec, &self.caller.principal);
        match self.ask_to_sign_in(signed_in).await? {
            Prompted::SignedIn => self.run(opening).await,
            Prompted::Input(answer) => Ok(answer),
            Prompted::Link(link) => Err(self.linked(&link).into()),
            Prompted::NoLink => Err(failure),
        }
    }

    /// Lets the caller sign in to a server that has no tools until then.
    async fn ask_first(&self) -> Result<Prompted, Failure> {
        let server = &self.target.server;
        let logins = &self.shared.logins;
        let signed_in = logins.signed_in(&server.spec, &self.caller.principal);
        // Why it is not up does not matter here, other than a sign-in.
        let _ = server.up().await;
        if !server.awaits_sign_in() {
            return Ok(Prompted::SignedIn);
        }
        self.ask_to_sign_in(signed_in).await
    }

    /// Gives the caller a link, and waits until `signed_in` if their client can be asked to open it.
    async fn ask_to_sign_in(&self, signed_in: BoxFuture<'static, ()>) -> Result<Prompted, Failure> {
        let server = &self.target.server;
        let logins = &self.shared.logins;
        let Some(link) = logins.link(&server.spec, &self.caller.principal) else {
            return Ok(Prompted::NoLink);
        };
        let face = self.caller.face();
        if !elicit::opens_urls(&face.capabilities) {
            return Ok(Prompted::Link(link));
        }
        let name = server.name();
        let message = quote(&format!(
            "Sign in to the server `{name}` to continue the call"
        ));
        let params = format!(
            "\"mode\":\"url\",\"message\":{message},\"url\":{}",
            quote(&link)
        );
        let ttl = self.shared.limits().held_call_ttl;
        let _pause = self.caller.pause();
        let mut complete = None;
        match self.caller.era {
            Era::Modern if !self.is_after_urls() => {
                let asked = format!("{{{params}}}").into();
                let asked = [(INPUT_KEY.to_owned(), method::ELICIT.to_owned(), asked)];
                let result = bridge::input_required(&asked, elicit::STATE);
                return Ok(Prompted::Input(Answer::result(
                    self.frame,
                    result.as_bytes(),
                )));
            }
            Era::Modern if elicit::is_declined(self.frame) => return Ok(Prompted::Link(link)),
            Era::Modern => {}
            Era::Legacy if self.caller.session.is_none() => return Ok(Prompted::Link(link)),
            Era::Legacy => {
                let id = format!("{:032x}", rand::random::<u128>());
                let params = format!("{{{params},\"elicitationId\":{}}}", quote(&id));
                let asked = self.ask(method::ELICIT, Some(params.as_bytes()))?;
                let answer = answered(asked, ttl).await?;
                if !elicit::is_accepted(answer.body()) {
                    return Ok(Prompted::Link(link));
                }
                complete = Some(elicit::complete(&id));
            }
        }
        if tokio::time::timeout(ttl, signed_in).await.is_err() {
            return Ok(Prompted::Link(link));
        }
        if let Some(complete) = complete {
            let outbox = &self.caller.outbox;
            outbox.push(Weight::Notification, complete.text().clone());
        }
        Ok(Prompted::SignedIn)
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
        Some(self.linked(&link).into())
    }

    /// The error for a client that cannot be asked to open a link.
    fn linked(&self, link: &str) -> RpcError {
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
        RpcError::internal(message).with_data(data.into_bytes())
    }
}
