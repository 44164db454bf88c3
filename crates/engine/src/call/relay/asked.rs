//! Requests that servers send during a call, and how clients of the other era get them.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use mcp::{
    Era, Frame, Kind, RpcError, bridge,
    client::{Call, CallerId, Event},
    elicit,
    error::METHOD_NOT_FOUND,
    frame::Param,
    json::Object,
    protocol::method,
    server::Asked,
};
use tokio::time::Instant;

use super::{Failure, Relay, Step};
use crate::{
    client_state::hold::{Held, Origin, is_ours},
    exchange::{Answer, Caller},
    server::{
        Server,
        connection::Connection,
        questions::{Ask, Asks, Open, Questions, answered},
        queue::Permit,
    },
    shared::Shared,
};

impl Relay<'_> {
    /// Collects all requests that a legacy server has sent so far in a call and that its modern client supports. The
    /// others are refused.
    pub(super) fn gather_questions(
        &self,
        first: Frame,
        call: &mut Call,
        connection: &Connection,
    ) -> Result<Option<Step>, Failure> {
        let client = &connection.client;
        let mut admitted = Vec::new();
        let mut admit = |question: Frame| match self.refusal(&question) {
            Some(refusal) => client.send_behind(Frame::error(question.id(), &refusal)),
            None => admitted.push(question),
        };
        admit(first);
        let over = loop {
            match call.next().now_or_never() {
                Some(Ok(Event::Request(question))) => admit(question),
                Some(Ok(Event::Notification(frame))) => self.forward(&frame),
                Some(Ok(Event::Response(frame))) => break Ok(Step::Response(frame)),
                Some(Err(error)) => break Err(Failure::Call(error)),
                Some(Ok(Event::Unclear(_))) => {}
                None if admitted.is_empty() => return Ok(None),
                None => return Ok(Some(Step::Input(admitted))),
            }
        };
        // The client now gets the response to its call, so these requests can no longer be passed to it.
        for question in admitted {
            let why =
                RpcError::internal("the call has ended, so its client can no longer be asked");
            client.send_behind(Frame::error(question.id(), &why));
        }
        over.map(Some)
    }

    /// Why this client does not get the request.
    fn refusal(&self, request: &Frame) -> Option<RpcError> {
        let tool = self.target.name.as_deref().unwrap_or(self.frame.method());
        refusal(self.caller, request, tool, &self.target.server)
    }

    /// Passes a legacy server's request to a legacy client.
    pub(super) fn ask_legacy(
        &self,
        question: Frame,
        connection: &Connection,
        asked: &Questions,
        by: CallerId,
    ) {
        if let Some(refusal) = self.refusal(&question) {
            let refusal = Frame::error(question.id(), &refusal);
            return connection.client.send_behind(refusal);
        }
        let params = Some(question.body()).filter(|params| !params.is_empty());
        let asking = self.ask(question.method(), params);
        let open = Open::new(&self.target.server.asked_now, by).with(self.caller.pause());
        asked.push(question, asking, self.shared.limits().held_call_ttl, open);
    }

    /// Sends a request to a client with a session.
    pub(super) fn ask(&self, method: &str, params: Option<&[u8]>) -> Result<Asked, RpcError> {
        ask(self.caller, method, params)
    }

    /// Asks a legacy client for the input that a modern server requires, and builds the retry.
    pub(super) async fn gather_input(
        &self,
        response: &Frame,
        opened: &mut Vec<String>,
    ) -> Result<Frame, Failure> {
        let state = response
            .object()
            .and_then(|result| result.string("requestState"));
        let requests = bridge::input_requests(response);
        let _pause = self.caller.pause();
        let answers = requests.iter().map(|(key, method, params)| async move {
            let face = self.caller.face();
            if bridge::capability_for(method)
                .is_some_and(|needed| !bridge::declares(&face.capabilities, needed))
            {
                return Err(RpcError::internal(format!(
                    "server `{}` needs {method}, which the client does not support",
                    self.target.server.name()
                )));
            }
            let (mut params, mut id) = (params.clone(), None);
            if method == method::ELICIT && elicit::is_url(&params) {
                if !elicit::opens_urls(&face.capabilities) {
                    return Err(RpcError::internal(
                        "the server asks the user to open a URL, but the client does not declare the capability `elicitation.url`",
                    ));
                }
                let fresh = format!("{:032x}", rand::random::<u128>());
                let (with_id, known) = elicit::with_id(&params, &fresh);
                (params, id) = (with_id, Some(known));
            }
            let asked = self.ask(method, Some(&params))?;
            let frame = answered(asked, self.shared.limits().held_call_ttl).await?;
            let answer = match frame.kind() {
                Kind::Result => frame.body_bytes(),
                // In the modern era, only elicitation can be cancelled.
                _ if method == method::ELICIT => Bytes::from_static(b"{\"action\":\"cancel\"}"),
                _ => return Err(RpcError::from_json(frame.body())),
            };
            let id = id.filter(|_| elicit::is_accepted(&answer));
            Ok(((key.clone(), answer), id))
        });
        let answers = futures_util::future::try_join_all(answers).await?;
        let (answers, ids): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        opened.extend(ids.into_iter().flatten());
        bridge::retry(self.frame, &answers, state.as_deref()).ok_or_else(|| {
            RpcError::internal("the request has no `params` to add the client's answers to").into()
        })
    }

    /// Asks a modern client to open the URLs that a legacy server requires, and to repeat the request.
    pub(super) fn urls_required(&self, response: &Frame, server: Era) -> Option<Answer> {
        if self.caller.era != Era::Modern || server != Era::Legacy {
            return None;
        }
        let urls = elicit::required(response);
        if urls.is_empty() || !elicit::opens_urls(&self.caller.face().capabilities) {
            return None;
        }
        let urls: Vec<_> = urls
            .into_iter()
            .enumerate()
            .map(|(at, params)| {
                let key = format!("url{}", at + 1);
                (key, method::ELICIT.to_owned(), params)
            })
            .collect();
        let result = bridge::input_required(&urls, elicit::STATE);
        Some(Answer::result(self.frame, result.as_bytes()))
    }

    /// Why a request is not repeated: its client declined to open a required URL.
    pub(super) fn declined(&self) -> Option<Failure> {
        let state = self.frame.param_string(Param::RequestState)?;
        if state != elicit::STATE || !elicit::is_declined(self.frame) {
            return None;
        }
        let server = self.target.server.name();
        let plain = || {
            let what = "needs a URL to be opened first, but the client declined to open it";
            RpcError::internal(format!("server `{server}` {what}")).into()
        };
        Some(self.declined_sign_in().unwrap_or_else(plain))
    }

    /// `params.requestState`, if this gateway issued it.
    pub(super) fn own_state(&self) -> Option<String> {
        let state = self.frame.param_string(Param::RequestState)?;
        // Calls to this server are held by the gateway that runs it.
        let is_ours = is_ours(&state) && !self.target.server.is_elsewhere();
        is_ours.then(|| state.into_owned())
    }

    fn origin(&self) -> Origin {
        Origin {
            principal: self.caller.principal.clone(),
            server: self.target.server.id().clone(),
            method: self.frame.method().to_owned(),
            target: self.target.name.clone().unwrap_or_default(),
        }
    }

    /// Puts the call on hold and asks the modern client for input.
    pub(super) fn hold(
        &self,
        call: Call,
        connection: Arc<Connection>,
        permit: Permit,
        requests: Vec<Frame>,
    ) -> Result<Answer, Failure> {
        let asks = requests
            .into_iter()
            .enumerate()
            .map(|(at, request)| Ask {
                key: format!("input{}", at + 1),
                request,
            })
            .collect();
        let server = self.target.server.clone();
        let open = Open::new(&server.asked_now, permit.caller());
        let asks = Asks::new(&connection.client, asks, open);
        self.put(Held {
            call,
            connection,
            server,
            permit,
            asks,
        })
    }

    fn put(&self, held: Held) -> Result<Answer, Failure> {
        let wanted: Vec<(String, String, Bytes)> = held
            .asks
            .iter()
            .map(|ask| {
                let params = Some(ask.request.body_bytes()).filter(|params| !params.is_empty());
                (
                    ask.key.clone(),
                    ask.request.method().to_owned(),
                    params.unwrap_or_else(|| Bytes::from_static(b"{}")),
                )
            })
            .collect();
        let limits = self.shared.limits();
        let state = self.shared.held.put(self.origin(), held, &limits)?;
        let result = bridge::input_required(&wanted, &state);
        Ok(Answer::result(self.frame, result.as_bytes()))
    }

    /// Continues a call on hold: passes the client's answers to the server.
    pub(super) async fn resume(&self, state: &str) -> Result<Answer, Failure> {
        let mut held = self.shared.held.take(state, &self.origin())?;
        let responses = self
            .frame
            .object()
            .and_then(|params| params.object("inputResponses"));
        let answer = |ask: &Ask| {
            let answer = Object::raw(responses.as_ref()?, &ask.key)?;
            Some(Frame::result(ask.request.id(), answer))
        };
        while let Some(ask) = held.asks.take_if(|ask| answer(ask).is_some()) {
            if let Some(frame) = answer(&ask) {
                let sent = held.connection.client.send(&frame).await;
                sent.map_err(Failure::Call)?;
            }
        }
        if !held.asks.is_empty() {
            return self.put(held);
        }
        drop(held.asks);
        let mut deadline = Instant::now() + self.timeout();
        self.see_through(held.call, held.connection, held.permit, &mut deadline)
            .await
    }
}

/// Why a client does not get a request. `tool` is the tool that needs it.
pub(crate) fn refusal(
    caller: &Caller,
    request: &Frame,
    tool: &str,
    server: &Server,
) -> Option<RpcError> {
    let Some(capability) = bridge::capability_for(request.method()) else {
        return Some(RpcError::method_not_found(request.method()));
    };
    let face = caller.face();
    let capability = if request.method() == method::ELICIT
        && elicit::is_url(request.body())
        && !elicit::opens_urls(&face.capabilities)
    {
        "elicitation.url"
    } else {
        capability
    };
    let name = server.name();
    (!bridge::declares(&face.capabilities, capability)).then(|| {
        RpcError::new(
            METHOD_NOT_FOUND,
            format!(
                "the client does not support {}: `{tool}` of server `{name}` needs a client with the capability `{capability}`",
                request.method()
            ),
        )
    })
}

/// Sends a request to a legacy client and waits for its answer.
pub(crate) async fn ask_client(
    shared: &Shared,
    caller: &Caller,
    method: &str,
    params: Option<&[u8]>,
) -> Result<Frame, RpcError> {
    answered(ask(caller, method, params)?, shared.limits().held_call_ttl).await
}

/// Sends a request to a client with a session.
fn ask(caller: &Caller, method: &str, params: Option<&[u8]>) -> Result<Asked, RpcError> {
    let session = caller.session.as_ref();
    let session = session
        .ok_or_else(|| RpcError::internal("the client has no session, so it cannot be asked"))?;
    session.ask(&caller.outbox, method, params)
}
