//! The way back of a call: notifications and the response of the server, as its caller reads them.

use mcp::{
    Era, Frame, Kind, RpcError, bridge,
    json::{Object, Splice, quote},
    outbox::Weight,
    protocol::{meta, method},
};

use super::{Relay, makes_modern_tasks, wants_task};
use crate::{exchange::Answer, log_message, server::connection::Connection, uri};

impl Relay<'_> {
    /// Forwards a notification from the server to the caller.
    pub(super) fn forward(&self, frame: &Frame) {
        let mut splice = Splice::new();
        match frame.method() {
            method::PROGRESS => {
                let Some(token) = &self.token else { return };
                if let Some(at) = frame
                    .object()
                    .and_then(|params| params.find(meta::PROGRESS_TOKEN))
                {
                    splice.replace(at, self.frame.text()[token.clone()].to_vec());
                }
            }
            method::MESSAGE => {
                let wanted = match (self.caller.era, self.log_level()) {
                    // 2026-07-28 server/utilities/logging: no log messages, unless the request asks for them.
                    (Era::Modern, None) => false,
                    (_, least) => log_message::is_wanted(frame, least),
                };
                if !wanted {
                    return;
                }
                if self.caller.scope.server.is_none() {
                    let (label, _) = self.target.server.label(&self.caller.scope);
                    log_message::expose(frame, label.as_str(), &mut splice);
                }
            }
            // A cancellation concerns only the connection to this gateway.
            method::CANCELLED => return,
            _ => {}
        }
        self.caller
            .outbox
            .push(Weight::Notification, splice.apply(frame.text()));
    }

    /// Converts the server's response for the caller.
    pub(super) fn answer(&self, response: &Frame, connection: &Connection) -> Answer {
        let era = connection.client.info().era;
        let asked = self.frame.method();
        let server = &self.target.server;
        if self.caller.era == Era::Legacy
            && era == Era::Modern
            && let Some(kind) = bridge::unknown_result_type(response)
        {
            let what = format!(
                "server `{}` sent a result of type {}, which this client cannot read: it needs a client of protocol version 2026-07-28",
                server.name(),
                quote(&kind)
            );
            return Answer::error(self.frame, &RpcError::internal(server.redact(&what)));
        }
        if asked == method::TOOLS_CALL && response.kind() == Kind::Result {
            if let Some(created) = self
                .shared
                .tasks
                .created(self.caller, server, response, era)
            {
                return Answer::result(self.frame, created.as_bytes());
            }
            if era == Era::Modern && wants_task(self.caller, self.frame) {
                return self.kept(response, connection);
            }
        }
        self.plain(response, era)
    }

    /// The answer to a call that should have become a task but did not.
    fn kept(&self, response: &Frame, connection: &Connection) -> Answer {
        let answer = self.plain(response, Era::Modern);
        if !makes_modern_tasks(connection) {
            // 2025-11-25 basic/utilities/tasks "Capability Negotiation": the request for a task is ignored.
            return answer;
        }
        let result = Object::of(&answer.text).and_then(|answer| answer.raw("result"));
        let server = &self.target.server;
        let result = result.unwrap_or(b"{}");
        let kept = (self.shared.tasks).kept(self.caller, server, self.frame, result);
        kept.unwrap_or_else(|error| Answer::error(self.frame, &error))
    }

    fn plain(&self, response: &Frame, era: Era) -> Answer {
        let asked = self.frame.method();
        let mut splice = Splice::new();
        bridge::response_down(response, self.caller.era, era, asked, &mut splice);
        if self.caller.scope.server.is_none() {
            let prefix = self.target.server.uri_prefix(&self.caller.scope);
            uri::expose_result(response, asked, prefix, &mut splice);
        }
        let code =
            (response.kind() == Kind::Error).then(|| RpcError::from_json(response.body()).code);
        Answer::relayed(response.rewritten(self.frame.id(), splice), code)
    }
}
