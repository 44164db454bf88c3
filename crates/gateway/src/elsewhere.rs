//! Servers that run on one replica. The other replicas reach a server through that replica.
//!
//! At the internal listener, the other replicas see a server of protocol version 2026-07-28, with native names and
//! unfiltered lists. The replica that the client connected to applies tool settings (disabled, withheld, renamed),
//! permissions and deadlines, and writes the audit record. Orders (start, stop, restart) are also sent over the
//! internal listener. Deliberately absent: instances of a single session or user. They run on the replica that their
//! server belongs to.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use engine::{Command, Gate, Gateway, Held, RemoteReplica, Runs, Scope, server::Server};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use lifecycle::Last;
use mcp::{Frame, client::Sign};
use model::{Declared, ProjectId, RunBy, ServerKey, ServerName, ServerSpec};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use runtime::Fence;
use store::{Home, ReplicaRow, Store};

use super::{
    Body, HttpGateway,
    forward::BESIDE_PREFIX,
    guard::Refusal,
    http::{collect, empty, method_not_allowed, refusal, scope, unreadable},
    listener::Routes,
    peers::{Forwarded, Peers},
    wire::Wire,
};
use crate::http::Upload;
use auth::{Principal, Role};
use backend::replica::NotTaken;

/// Signs requests to one server on one replica.
struct Way {
    peers: Arc<Peers>,
    /// The replica's id.
    to: String,
    path: String,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Way");
        shown.field("to", &self.to).field("path", &self.path);
        shown.finish_non_exhaustive()
    }
}

impl Sign for Way {
    fn sign(&self, request: &mut Request<Bytes>) {
        self.peers.sign(&self.to, &self.path, request);
    }
}

/// Decides which replica runs a registered server.
pub struct Leases {
    pub peers: Arc<Peers>,
    pub gateway: Gateway,
    pub store: Store,
    /// The installation id, which all replicas on the same database share.
    pub installation: Arc<str>,
    /// The host and data directory of volumes that this replica creates.
    pub home: Home,
}

impl Leases {
    /// Why this replica may not start a registered server that no other replica runs. For a server whose lease this
    /// replica already holds, only `unusable` matters.
    async fn hindrance(&self, server: &ServerSpec, lease: &str) -> Result<Option<String>, String> {
        if let Some(why) = &server.unusable {
            return Ok(Some(why.clone()));
        }
        let Some(id) = server.registered_as() else {
            return Ok(None);
        };
        if self.peers.replica.holds(lease) {
            return Ok(None);
        }
        let left = Box::pin(self.store.registration_left(id)).await;
        let (left, home) = left.map_err(|error| error.to_string())?;
        let home = home.filter(|home| home.installation != self.home.installation);
        let restart = server.restart.unwrap_or_default();
        let last = Last::from_word(&left).filter(|last| !last.starts_again(restart));
        Ok(match last {
            Some(Last::ByHand) => {
                Some("it was stopped by hand; `toolwharf start` starts it".into())
            }
            Some(Last::Finished) => {
                Some("it has exited, and its restart policy does not restart it; `toolwharf start` starts it".into())
            }
            Some(Last::Failed) => {
                Some("it has failed, and its restart policy does not restart it; `toolwharf start` starts it".into())
            }
            Some(Last::Up) | None => home
                .filter(|_| !self.follows(server))
                .map(|home| far_from(&home)),
        })
    }

    fn follows(&self, server: &ServerSpec) -> bool {
        let launch = server.launch().filter(|_| server.registered_as().is_some());
        launch.is_none_or(|launch| self.gateway.runtimes().volumes_follow(launch))
    }

    /// Takes the lease of a server. Gives the lease back if the server's volumes belong to another host.
    async fn take(
        &self,
        server: &ServerSpec,
        lease: &str,
    ) -> Result<Result<Runs, Box<ReplicaRow>>, String> {
        let (number, lost) = match Box::pin(self.peers.replica.take(lease)).await {
            Ok(taken) => taken,
            Err(NotTaken::No(why)) => return Err(why),
            Err(NotTaken::By(row)) => return Ok(Err(row)),
        };
        if !self.follows(server) {
            let settled = self.store.registration_settle(id_of(server), &self.home);
            let settled = Box::pin(settled).await;
            match settled {
                Ok(home) if home == self.home => {}
                settled => {
                    Box::pin(self.peers.replica.give_back(lease)).await;
                    let home = settled.map_err(|error| error.to_string())?;
                    return Ok(Ok(Runs::Nowhere(far_from(&home))));
                }
            }
        }
        let installation = self.installation.clone();
        let fence = Some(Fence {
            installation,
            number,
        });
        Ok(Ok(Runs::Here(Held { lost, fence })))
    }
}

/// The message for a server that waits for its volumes.
fn far_from(home: &Home) -> String {
    format!(
        "its volumes are on host {} (data directory {}), where no gateway runs: start that gateway, or register the server \
         again without them",
        home.host, home.installation
    )
}

impl Gate for Leases {
    fn is_for_one(&self, server: &ServerSpec) -> bool {
        let run_by = self.gateway.settings().replicas.project_servers;
        match server.declared {
            Declared::Registered => true,
            Declared::Project => run_by == RunBy::One && server.launch().is_some(),
            Declared::File => false,
        }
    }

    fn enter<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, Result<Runs, String>> {
        Box::pin(async move {
            let lease = lease_of(server);
            if server.unusable.is_some() {
                // Another replica may be able to run the server: perhaps a secret is missing only on this one.
                Box::pin(self.peers.replica.give_back(&lease)).await;
            }
            let row = match Box::pin(self.hindrance(server, &lease)).await? {
                Some(why) => {
                    let holder = Box::pin(self.peers.replica.holder(&lease)).await;
                    match holder.map_err(|error| error.to_string())? {
                        Some(row) => Box::new(row),
                        None => return Ok(Runs::Nowhere(why)),
                    }
                }
                None => match Box::pin(self.take(server, &lease)).await? {
                    Ok(runs) => return Ok(runs),
                    Err(row) => row,
                },
            };
            let why = format!("the server runs on replica {} ({})", row.id, row.name);
            let Some(address) = &row.address else {
                return Err(why);
            };
            let peer = self
                .peers
                .at(address)
                .await
                .filter(|peer| peer.id == row.id);
            let Some(peer) = peer else { return Err(why) };
            let owner = server.owner.as_ref().map_or("-", |owner| owner.as_str());
            let name = utf8_percent_encode(server.name.as_str(), NON_ALPHANUMERIC);
            let path = format!("/mcp/{owner}/{name}");
            Ok(Runs::RemoteReplica(RemoteReplica {
                why,
                url: format!("http://{address}{path}"),
                lost: peer.lost,
                sign: Arc::new(Way {
                    peers: self.peers.clone(),
                    to: peer.id,
                    path,
                }),
            }))
        })
    }

    fn leave<'a>(&'a self, server: &'a ServerSpec) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let lease = lease_of(server);
            Box::pin(self.peers.replica.give_back(&lease)).await;
        })
    }
}

/// The stored status of servers that should run.
const REGISTERED: &str = "registered";
/// Path prefix of orders. The order and the server's id follow.
const ORDERS_PREFIX: &str = "/order/";
/// Timeout for an order to be accepted. An order that takes longer is still carried out.
const ORDER_TIMEOUT: Duration = Duration::from_secs(30);

async fn follow(server: &Server, order: Command) -> Result<(), String> {
    match tokio::time::timeout(ORDER_TIMEOUT, server.command(order)).await {
        Ok(false) => Err(format!(
            "too many commands are queued for server `{}`; try again",
            server.name()
        )),
        _ => Ok(()),
    }
}

/// Returns the key of the project's server that a path names.
fn key(owner: &str, name: &str) -> Option<ServerKey> {
    let name = percent_decode_str(name).decode_utf8().ok()?;
    Some(ServerKey {
        owner: Some(ProjectId::parse(owner).ok()?),
        name: ServerName::parse(&name).ok()?,
    })
}

fn word(order: Command) -> &'static str {
    match order {
        Command::Start => "start",
        Command::Stop => "stop",
        Command::Restart => "restart",
    }
}

fn lease_of(server: &ServerSpec) -> String {
    match (server.registered_as(), &server.owner) {
        (None, Some(owner)) => format!("server:{owner}/{}", server.name),
        (id, _) => format!("server:{}", id.unwrap_or_default()),
    }
}

fn id_of(server: &ServerSpec) -> &str {
    server.registered_as().unwrap_or_default()
}

impl HttpGateway {
    /// Answers a request that another replica makes on behalf of a principal (not a forwarded client request).
    pub(super) async fn answer_replica(
        self: Arc<Self>,
        request: Request<Upload>,
        forwarded: Forwarded,
        wire: Arc<Wire>,
        other: Arc<dyn Routes>,
    ) -> Response<Body> {
        let answered = match request.uri().path().starts_with(BESIDE_PREFIX) {
            true => self.answer_beside(request, &forwarded, wire, other).await,
            false => self.answer_about_server(request, &forwarded, wire).await,
        };
        match answered {
            Ok(response) => response,
            Err(refusal) => Self::refuse(&refusal),
        }
    }

    /// Answers a request of another replica that is not MCP.
    async fn answer_beside(
        &self,
        request: Request<Upload>,
        forwarded: &Forwarded,
        wire: Arc<Wire>,
        other: Arc<dyn Routes>,
    ) -> Result<Response<Body>, Refusal> {
        let (parts, mut body) = request.into_parts();
        let text = collect(&mut body, self.gateway.settings().limits.max_body_bytes).await?;
        let text = body.counted(text);
        Self::check_forwarded(Some(forwarded), &text)?;
        let caller = forwarded.caller.clone().unwrap_or_default();
        // The other replica has already checked the caller's permissions.
        let who = Arc::new(Principal::new(caller, Role::Admin, None));
        let path = parts
            .uri
            .path()
            .strip_prefix(BESIDE_PREFIX)
            .unwrap_or_default();
        let uri = Uri::try_from(path).unwrap_or_default();
        let mut request = Request::new(text);
        *request.headers_mut() = parts.headers;
        *request.uri_mut() = uri;
        Ok(other.answer_replica(who, request, wire.account()).await)
    }

    async fn answer_about_server(
        &self,
        request: Request<Upload>,
        forwarded: &Forwarded,
        wire: Arc<Wire>,
    ) -> Result<Response<Body>, Refusal> {
        let (parts, mut body) = request.into_parts();
        if parts.method != Method::POST {
            return Ok(method_not_allowed());
        }
        if let Some(about) = parts.uri.path().strip_prefix(ORDERS_PREFIX) {
            Self::check_forwarded(Some(forwarded), b"")?;
            return self.follow_order(about).await;
        }
        let caller = forwarded.caller.clone().unwrap_or_default();
        let principal = Arc::new(Principal::new(caller, Role::Call, None));
        let scope = scope(parts.uri.path(), &parts.headers)?;
        let scope = Scope {
            is_bare: true,
            ..self.admit(&principal, scope).await?
        };
        let (most, depth) = {
            let limits = &self.gateway.settings().limits;
            (limits.max_body_bytes, limits.max_depth)
        };
        let text = collect(&mut body, most).await?;
        let text = body.counted(text);
        Self::check_forwarded(Some(forwarded), &text)?;
        match Frame::parse(text, depth) {
            Ok(frame) => Ok(self
                .modern(parts.headers, frame, scope, principal, wire)
                .await),
            Err(invalid) => Ok(unreadable(&invalid)),
        }
    }

    /// `about`: the order, then the id of a registered server or `PROJECT/NAME`.
    async fn follow_order(&self, about: &str) -> Result<Response<Body>, Refusal> {
        let missing = |what: &str| refusal(StatusCode::NOT_FOUND, what);
        let (said, id) = about
            .split_once('/')
            .ok_or_else(|| missing("the path contains no command (start, stop or restart)"))?;
        let mut orders = [Command::Start, Command::Stop, Command::Restart].into_iter();
        let order = orders.find(|order| word(*order) == said);
        let order = order.ok_or_else(|| missing("unknown command: use start, stop or restart"))?;
        let fleet = self.gateway.fleet();
        let server = match id.split_once('/') {
            Some((owner, name)) => key(owner, name).and_then(|key| fleet.get(&key).cloned()),
            None => fleet.by_id(id).cloned(),
        };
        let server = server.ok_or_else(|| missing("this replica has not loaded the server yet"))?;
        let followed = follow(&server, order).await;
        followed.map_err(|why| refusal(StatusCode::SERVICE_UNAVAILABLE, &why))?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    /// Sends an order to the replica that runs the server.
    ///
    /// # Errors
    /// Why the order failed, and what to do about it.
    pub async fn order(
        &self,
        who: &Principal,
        server: &Arc<Server>,
        order: Command,
    ) -> Result<(), String> {
        let name = server.name();
        if let Some(peers) = self.peers.as_ref().filter(|_| server.is_elsewhere()) {
            let lease = lease_of(&server.spec);
            let holder = Box::pin(peers.replica.holder(&lease)).await;
            let holder = holder.map_err(|error| error.to_string())?;
            if let Some(row) = holder {
                let why = || {
                    format!(
                        "server `{name}` runs on replica {} ({}), which does not answer; try again",
                        row.id, row.name
                    )
                };
                let address = row.address.as_deref().unwrap_or_default();
                let peer = Box::pin(peers.at(address)).await.ok_or_else(why)?;
                let name = utf8_percent_encode(name.as_str(), NON_ALPHANUMERIC);
                let which = match (server.spec.registered_as(), &server.spec.owner) {
                    (None, Some(owner)) => format!("{owner}/{name}"),
                    (id, _) => id.unwrap_or_default().to_owned(),
                };
                let uri = Uri::try_from(format!("{ORDERS_PREFIX}{}/{which}", word(order)));
                let uri = uri.map_err(|error| error.to_string())?;
                let head = (&Method::POST, &uri, &HeaderMap::new());
                let none = BTreeSet::new();
                let asked = peers.send(&peer, head, &none, Bytes::new(), Some(&who.id));
                let answer = Box::pin(asked).await.map_err(|_| why())?;
                return match answer.status() {
                    StatusCode::NO_CONTENT => Ok(()),
                    _ => Err(why()),
                };
            }
        }
        let registered = server.spec.registered_as().filter(|_| self.peers.is_some());
        if let Some(id) = registered.filter(|_| order != Command::Stop) {
            // The new status allows any replica that takes the lease to start the server.
            let store = self.projects.store();
            let asked = store.registration_set_status(id, REGISTERED, REGISTERED);
            let asked = Box::pin(asked).await;
            asked.map_err(|error| error.to_string())?;
        }
        follow(server, order).await?;
        if let Some(id) = registered.filter(|_| order == Command::Stop) {
            // The status is stored even if no replica ran the server.
            let store = self.projects.store();
            let by_hand = Last::ByHand.word();
            let stopped = Box::pin(store.registration_set_status(id, by_hand, by_hand)).await;
            stopped.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
