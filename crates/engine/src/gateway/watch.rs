//! Subscriptions of clients: to resources and to list changes.

use std::sync::Arc;

use bytes::Bytes;
use mcp::{
    Era, Frame, Kind, RpcError, extensions,
    frame::Param,
    json::{self, quote},
    outbox::Weight,
    protocol::{meta, method},
    tasks,
};
use model::Sharing;
use tokio::time::Instant;

use crate::{
    Gateway,
    call::relay::{Target, connection, relay, string_at},
    client_state::hub::{Filter, Hub, Listener, Registration, Resource},
    exchange::{Answer, Caller},
    gateway::{no_scope, routed},
    server::{Server, State, connection::Connection, subscriptions::Upstream},
    views::view::View,
};

impl Gateway {
    /// `resources/subscribe` and `resources/unsubscribe` of a legacy client.
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller,
        view: &View,
        frame: &Frame,
    ) -> Result<Answer, RpcError> {
        let target = self.resource_target(caller, view, frame)?;
        let (_, exposed) = routed(frame, Param::Uri)?;
        let native = target.name.clone().unwrap_or_default();
        let session = caller.session.as_ref();
        let listener = session.and_then(|session| self.shared.hub.of_session(session));
        let listener =
            listener.ok_or_else(|| RpcError::internal("the session has no event stream"))?;
        let server = target.server.clone();
        let resource = |in_second| Resource {
            server: server.id().clone(),
            native: native.clone(),
            in_second,
        };
        let hub = &self.shared.hub;
        if frame.method() == method::RESOURCES_SUBSCRIBE {
            let most = self.shared.limits().max_subscriptions;
            let resource = resource(self.watches_in_second(caller, &server).await);
            let Some(first) = hub.watch(&listener, &resource, &exposed, most) else {
                return Err(RpcError::internal(
                    "this client already has its share of the subscriptions (`max_subscriptions`): unsubscribe from some resources first",
                ));
            };
            let answer = self
                .watch_upstream(caller, frame, target, &resource, first)
                .await;
            if answer.code.is_some() {
                hub.unwatch(&listener, &resource);
            }
            return Ok(answer);
        }
        for resource in [resource(false), resource(true)] {
            if hub.unwatch(&listener, &resource) {
                self.unwatch_upstream(&server, &resource).await;
            }
        }
        Ok(Answer::result(frame, b"{}"))
    }

    /// Returns whether a legacy client's subscriptions go to the legacy conversation with a modern server.
    async fn watches_in_second(&self, caller: &Caller, server: &Arc<Server>) -> bool {
        if server.era() != Some(Era::Modern) {
            return false;
        }
        let deadline = Instant::now() + server.spec.call_timeout;
        let era = caller.era_upstream();
        let found = connection(&self.shared, caller, server, era, deadline).await;
        found.is_ok_and(|connection| server.is_second(&connection))
    }

    /// Subscribes to a resource at the server. Returns the answer for a legacy client.
    async fn watch_upstream(
        &self,
        caller: &Caller,
        frame: &Frame,
        target: Target,
        resource: &Resource,
        first: bool,
    ) -> Answer {
        let server = target.server.clone();
        let native = &*resource.native;
        if server.era() == Some(Era::Modern) && !resource.in_second {
            server.upstream.add_acknowledged(native).await;
            return Answer::result(frame, b"{}");
        }
        // The server is asked even if another client watches the resource, so that the client gets the server's own
        // answer.
        let answer = relay(&self.shared, caller, frame, target).await;
        if let Some(upstream) = upstream_of(&server, resource) {
            if answer.code.is_none() {
                upstream.add(native);
            } else if first {
                upstream.remove(native);
            }
        }
        answer
    }

    async fn unwatch_upstream(&self, server: &Arc<Server>, resource: &Resource) {
        if let Some(upstream) = upstream_of(server, resource) {
            upstream.remove(&resource.native);
        }
        let connection = match server.state() {
            State::Ready(first) if resource.in_second => first.second.get(),
            State::Ready(first) => Some(first),
            _ => None,
        };
        let is_legacy = |connection: &Arc<Connection>| connection.client.info().era == Era::Legacy;
        if let Some(connection) = connection.filter(is_legacy) {
            let members = format!("\"uri\":{}", quote(&resource.native));
            let asked = connection
                .client
                .ask(method::RESOURCES_UNSUBSCRIBE, &members);
            let _ = tokio::time::timeout(server.spec.call_timeout, asked).await;
        }
    }

    /// Removes all subscriptions of a listener.
    pub(crate) async fn forget(&self, listener: &Listener) {
        for resource in Hub::watched_by(listener) {
            if self.shared.hub.unwatch(listener, &resource)
                && let Some(server) = self.shared.server(&resource.server)
            {
                self.unwatch_upstream(&server, &resource).await;
            }
        }
    }

    /// `subscriptions/listen` of a modern client. Runs until it is cancelled (2026-07-28 basic/patterns/subscriptions).
    pub(crate) async fn listen(&self, caller: &Caller, frame: &Frame) -> Result<Answer, RpcError> {
        let wanted = frame
            .object()
            .and_then(|params| params.object("notifications"))
            .ok_or_else(|| {
                RpcError::invalid_params("Invalid params: `notifications` must be an object")
            })?;
        if wanted.raw("taskIds").is_some_and(|ids| ids != b"null")
            && !extensions::declares(&caller.face().capabilities, extensions::TASKS)
        {
            return Err(tasks::missing("`taskIds`"));
        }
        let flag = |key: &str| wanted.raw(key) == Some(b"true");
        let filter = Filter {
            tools: flag("toolsListChanged"),
            prompts: flag("promptsListChanged"),
            resources: flag("resourcesListChanged"),
        };
        let tag = Bytes::copy_from_slice(frame.id());
        let (scope, outbox) = (caller.scope.clone(), caller.outbox.clone());
        let mut listener = Listener::new(scope, filter, outbox, caller.principal.clone());
        listener.tag = Some(tag.clone());
        let registration = self.shared.hub.register(listener);
        let listening = Listening {
            gateway: self.clone(),
            registration: Some(registration),
        };
        let listener = listening.listener();
        let view = self
            .settled(&caller.scope)
            .await
            .ok_or_else(|| no_scope(&caller.scope))?;
        let mut honoured = Vec::new();
        if let Some(uris) = wanted.find("resourceSubscriptions") {
            for span in json::elements(frame.text(), uris) {
                let Some(exposed) = string_at(frame, &span) else {
                    continue;
                };
                if self.watch_for(&listener, &view, &exposed).await {
                    honoured.push(quote(&exposed));
                }
            }
        }
        let mut said: Vec<String> = [
            ("toolsListChanged", filter.tools),
            ("promptsListChanged", filter.prompts),
            ("resourcesListChanged", filter.resources),
        ]
        .into_iter()
        .filter(|(_, wanted)| *wanted)
        .map(|(key, _)| format!("\"{key}\":true"))
        .collect();
        if !honoured.is_empty() {
            said.push(format!(
                "\"resourceSubscriptions\":[{}]",
                honoured.join(",")
            ));
        }
        let own = format!(
            "\"_meta\":{{\"{}\":{}}}",
            meta::SUBSCRIPTION_ID,
            String::from_utf8_lossy(&tag)
        );
        let params = format!("{{{own},\"notifications\":{{{}}}}}", said.join(","));
        let acknowledged = Frame::notification(method::ACKNOWLEDGED, Some(params.as_bytes()));
        caller
            .outbox
            .push(Weight::Must, acknowledged.text().clone());
        self.shared.over.cancelled().await;
        Ok(Answer::result(
            frame,
            format!("{{\"resultType\":\"complete\",{own}}}").as_bytes(),
        ))
    }

    /// Watches a resource for a modern client. Returns whether the server supports it.
    async fn watch_for(&self, listener: &Arc<Listener>, view: &View, exposed: &str) -> bool {
        let Ok((server, native)) = view.resource(exposed, Era::Modern) else {
            return false;
        };
        let subscribes = server
            .catalog()
            .info
            .as_ref()
            .is_some_and(|info| info.flag("resources", "subscribe"));
        // The shared instance uses another user's sign-in, and so may see other resources.
        if !subscribes || server.is_personal {
            return false;
        }
        let most = self.shared.limits().max_subscriptions;
        let hub = &self.shared.hub;
        let resource = Resource {
            server: server.id().clone(),
            native: native.clone(),
            in_second: false,
        };
        let Some(first) = hub.watch(listener, &resource, exposed, most) else {
            return false;
        };
        if !first {
            return true;
        }
        if server.era() == Some(Era::Modern) {
            return server.upstream.add_acknowledged(&native).await;
        }
        let deadline = Instant::now() + server.spec.call_timeout;
        let Ok(connection) = server.connection(deadline).await else {
            return false;
        };
        let members = format!("\"uri\":{}", quote(&native));
        let asked = connection.client.ask(method::RESOURCES_SUBSCRIBE, &members);
        let agreed = matches!(
            tokio::time::timeout_at(deadline, asked).await,
            Ok(Ok(frame)) if frame.kind() == Kind::Result
        );
        if agreed {
            server.upstream.add(&native);
        } else {
            self.shared.hub.unwatch(listener, &resource);
        }
        agreed
    }
}

/// The resources that are watched again after a reconnect. `None`: the subscription belongs to one client's instance.
fn upstream_of<'a>(server: &'a Server, resource: &Resource) -> Option<&'a Upstream> {
    let is_shared = !server.is_personal && server.spec.sharing == Sharing::Shared;
    match resource.in_second {
        true => is_shared.then_some(&server.watched_in_second),
        false => Some(&server.upstream),
    }
}

/// Removes the subscriptions of a modern listener when its request ends for any reason.
struct Listening {
    gateway: Gateway,
    registration: Option<Registration>,
}

impl Listening {
    fn listener(&self) -> Arc<Listener> {
        self.registration
            .as_ref()
            .expect("only drop takes the registration")
            .listener()
            .clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let gateway = self.gateway.clone();
            self.gateway
                .shared
                .spawn(async move { gateway.forget(registration.listener()).await });
        }
    }
}
