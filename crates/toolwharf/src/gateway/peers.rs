//! The other replicas: which of them works on a session, and how it is asked.
//!
//! A session is worked on by the replica that opened it, for as long as that is there; after that by its heir, the first that
//! was asked for it: a lease says which, for a part of the lost one's sessions. Requests go over a listener of their own, each with a
//! head that is sealed with a key of the installation: it says when and for which replica it was made, what was asked, with
//! the headers that matter, and the digest of the body. It opens once. Deliberately absent: a request that was forwarded is never
//! forwarded again, and answers are not sealed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use engine::{CALLER, secrets::DataKey};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use mcp::server::modern;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::{
    net::{TcpListener, UdpSocket},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::http::PROJECT_ID;
use crate::{
    replica::Replica,
    sealed::{NONCE_BYTES, opened_text, sealed_text},
};

/// The header that a forwarded request is sealed in.
const HOP: HeaderName = HeaderName::from_static("toolwharf-hop");
/// Headers of a request that go along.
const CARRIED: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static("mcp-session-id"),
    modern::PROTOCOL_VERSION,
    modern::METHOD,
    modern::NAME,
    HeaderName::from_static("last-event-id"),
    PROJECT_ID,
];
/// What those begin with that repeat arguments of a tool (2026-07-28 basic/transports/streamable-http).
const PARAM: &str = "mcp-param-";
/// Seconds that a sealed head is good for, and by which the times of two replicas may differ: both have the database's, as exactly as it answers.
const MAX_AGE_SECONDS: i64 = 30;
/// Heads that were opened and are remembered, so that none opens twice: some 20,000 requests a second.
const MAX_SEEN: usize = 512 << 10;
/// A replica on the same network that has not accepted a connection by then is away.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a replica that was away is not asked again.
const AWAY: Duration = Duration::from_secs(5);
/// Parts of a lost replica's sessions, so that several replicas share them.
const PARTS: u8 = 8;
/// How long the heir of sessions is not asked for again.
const HEIR: Duration = Duration::from_secs(5);
/// From one look at the list of replicas to the next.
const LOOK: Duration = Duration::from_secs(1);
/// The least time between two looks when a replica is not in the list.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A replica that can be asked.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) host: String,
    address: String,
    /// It is not in the list any more.
    pub(super) lost: CancellationToken,
}

/// The other replicas, as this one sees them.
pub(crate) struct Peers {
    pub(super) replica: Arc<Replica>,
    /// Where others reach this one: its name in sessions' ids.
    address: String,
    key: DataKey,
    client: Client<HttpConnector, Full<Bytes>>,
    known: Mutex<Known>,
    /// When the last look began that was answered. One looks at a time, so that no older answer comes after a newer one.
    looking: tokio::sync::Mutex<Option<Instant>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Known {
    peers: Vec<Peer>,
    looked: Option<Instant>,
    away: HashMap<String, Instant>,
    /// The ids of replicas that took over sessions.
    heirs: HashMap<String, (String, Instant)>,
}

impl Known {
    /// The first such replica that was not away just now.
    fn living(&self, is_meant: impl Fn(&Peer) -> bool) -> Option<Peer> {
        let is_away = |peer: &Peer| {
            let since = self.away.get(&peer.address);
            since.is_some_and(|since| since.elapsed() < AWAY)
        };
        let mut peers = self.peers.iter();
        peers.find(|peer| is_meant(peer) && !is_away(peer)).cloned()
    }
}

/// Heads that were opened, the oldest first.
#[derive(Default)]
struct Seen {
    nonces: HashSet<[u8; NONCE_BYTES]>,
    order: VecDeque<(i64, [u8; NONCE_BYTES])>,
}

impl Seen {
    /// Whether this is the first time.
    fn note(&mut self, nonce: [u8; NONCE_BYTES], made: i64, now: i64) -> Result<(), Refused> {
        while let Some((made, oldest)) = self.order.front()
            && made + MAX_AGE_SECONDS < now
        {
            self.nonces.remove(oldest);
            self.order.pop_front();
        }
        if self.order.len() >= MAX_SEEN {
            return Err((
                StatusCode::SERVICE_UNAVAILABLE,
                "too many forwarded requests",
            ));
        }
        if !self.nonces.insert(nonce) {
            return Err((
                StatusCode::FORBIDDEN,
                "this forwarded request was answered before",
            ));
        }
        self.order.push_back((made, nonce));
        Ok(())
    }
}

/// What a sealed head says.
#[derive(Serialize, Deserialize)]
struct Head {
    /// When it was made: seconds since 1970.
    t: i64,
    /// The replica that it is for.
    to: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    /// SHA-256 of the body, in hex.
    body: String,
    /// The principal whose call the replica itself makes: it has checked what they may do. `None`: a client's request, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
}

/// What the head of a request from another replica says besides the request.
#[derive(Clone)]
pub(super) struct Forwarded {
    /// The digest that its body has to have.
    digest: String,
    pub(super) caller: Option<Arc<str>>,
}

impl Forwarded {
    pub(super) fn is_of(&self, body: &[u8]) -> bool {
        self.digest == digest(body)
    }
}

/// Why a request on the internal listener is not answered.
pub(super) type Refused = (StatusCode, &'static str);

/// What one replica works on.
#[derive(Clone, Copy)]
pub(super) enum Work<'w> {
    /// A session, with the address of the replica that opened it.
    Session { id: &'w str, opener: &'w str },
    /// What the replica of this address has and no other.
    Place(&'w str),
}

/// Why there is no answer.
pub(super) enum Unanswered {
    /// It did not take the request.
    Away,
    /// It is a member under another id by now, and did not take the request.
    Moved,
    /// It may have.
    Lost(String),
}

/// The internal listener, and the address at which other replicas reach it.
///
/// # Errors
/// If there is no such address; says which setting to use.
pub(crate) async fn bind(
    listen: Option<SocketAddr>,
    database_url: &str,
) -> anyhow::Result<(TcpListener, String)> {
    const WAY_OUT: &str =
        "set `listen` under `[replicas]` to an address that the other replicas reach";
    let ip = match listen {
        Some(wanted) if !wanted.ip().is_unspecified() => wanted.ip(),
        _ => towards(database_url).await.context(WAY_OUT)?,
    };
    let wanted = listen.unwrap_or(SocketAddr::new(ip, 0));
    let listener = TcpListener::bind(wanted)
        .await
        .with_context(|| format!("cannot listen on {wanted} for other replicas: {WAY_OUT}"))?;
    let port = listener.local_addr()?.port();
    Ok((listener, SocketAddr::new(ip, port).to_string()))
}

/// The address of this machine on the way to the database. Nothing is sent.
async fn towards(database_url: &str) -> anyhow::Result<IpAddr> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let url: url::Url = database_url.parse()?;
    let named = url
        .query_pairs()
        .find(|(key, _)| key == "host" || key == "hostaddr");
    let host = match &named {
        Some((_, host)) => host.to_string(),
        None => url.host_str().unwrap_or_default().to_owned(),
    };
    if host.is_empty() || host.starts_with('/') || host.starts_with("%2F") {
        return Ok(local);
    }
    let host = host.trim_matches(['[', ']']);
    let found = tokio::net::lookup_host((host, url.port().unwrap_or(5432)))
        .await?
        .next();
    let found = found.with_context(|| format!("the database's host {host} has no address"))?;
    let any: IpAddr = match found {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(found).await?;
    Ok(socket.local_addr()?.ip())
}

impl Peers {
    pub(crate) fn new(replica: Arc<Replica>, address: String, key: DataKey) -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        Arc::new(Self {
            replica,
            address,
            key,
            client: Client::builder(TokioExecutor::new()).build(connector),
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until others that are there have noticed that this one is not any more, also where they are slow; not much longer than `by`.
    pub(crate) async fn linger(&self, by: Instant) {
        let has_others = !self.known.lock().peers.is_empty();
        if has_others {
            let now = Instant::now();
            let until = (now + LOOK * 3).min(by.max(now + LOOK + LOOK / 2));
            tokio::time::sleep_until(until).await;
        }
    }

    /// Keeps the list of replicas as the database has it, for ever. While the database is away it stays as it was.
    pub(crate) async fn follow(&self) {
        loop {
            self.look().await;
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&self) {
        let asked = Instant::now();
        let mut last = self.looking.lock().await;
        if last.is_some_and(|began| began >= asked) {
            return;
        }
        let began = Instant::now();
        let rows = Box::pin(self.replica.list()).await;
        *last = Some(began);
        let mut known = self.known.lock();
        known.looked = Some(Instant::now());
        let Ok(rows) = rows else { return };
        let mut old = std::mem::take(&mut known.peers);
        for row in rows {
            let Some(address) = row.address.filter(|address| *address != self.address) else {
                continue;
            };
            let kept = old.iter().position(|peer| peer.id == row.id);
            known.peers.push(match kept {
                Some(at) => old.swap_remove(at),
                None => Peer {
                    id: row.id,
                    host: row.name,
                    address,
                    lost: CancellationToken::new(),
                },
            });
        }
        for gone in old {
            gone.lost.cancel();
        }
        known.away.retain(|_, since| since.elapsed() < AWAY);
        known.heirs.retain(|_, (_, since)| since.elapsed() < HEIR);
    }

    /// The replica that works on it; `None`: this one.
    pub(super) async fn worker(&self, work: Work<'_>) -> Option<Peer> {
        match work {
            Work::Place(address) => self.at(address).await,
            Work::Session { opener, .. } if opener == self.address => None,
            Work::Session { id, opener } => match self.at(opener).await {
                Some(peer) => Some(peer),
                None => Box::pin(self.heir(id, opener)).await,
            },
        }
    }

    /// The replica that others reach there, if it is not away.
    pub(super) async fn at(&self, address: &str) -> Option<Peer> {
        let is_unknown = {
            let known = self.known.lock();
            let is_old = known.looked.is_none_or(|at| at.elapsed() > LOOK_AGAIN);
            is_old && !known.peers.iter().any(|peer| peer.address == address)
        };
        if is_unknown {
            // It may be new.
            self.look().await;
        }
        self.known.lock().living(|peer| peer.address == address)
    }

    /// The replica that took over a session of one that is lost; `None`: this one, from now on.
    async fn heir(&self, session: &str, opener: &str) -> Option<Peer> {
        let part = Sha256::digest(session)[0] % PARTS;
        let sessions = format!("{opener}/{part}");
        let mut unreachable: Option<String> = None;
        // The first answer may be of somebody new, the second of somebody lost.
        for attempt in 0..3 {
            let known = self.known.lock().heirs.get(&sessions).cloned();
            let id = match known {
                Some((id, since)) if since.elapsed() < HEIR => id,
                _ => {
                    let heir = self.replica.heir(&sessions, unreachable.as_deref());
                    let agreed = Box::pin(heir).await?;
                    let now = (agreed.clone(), Instant::now());
                    self.known.lock().heirs.insert(sessions.clone(), now);
                    agreed
                }
            };
            if id == self.replica.id() {
                return None;
            }
            let living = self.known.lock().living(|peer| peer.id == id);
            if living.is_some() {
                return living;
            }
            self.known.lock().heirs.remove(&sessions);
            match attempt {
                0 => self.look().await,
                _ => unreachable = Some(id),
            }
        }
        None
    }

    /// Does not ask a replica for a while.
    pub(super) fn note_away(&self, peer: &Peer) {
        let mut known = self.known.lock();
        if known
            .away
            .insert(peer.address.clone(), Instant::now())
            .is_none()
        {
            tracing::warn!(
                id = peer.id,
                host = peer.host,
                "a replica does not answer at {}",
                peer.address
            );
        }
    }

    /// Sends a request to a replica; the answer's head. `caller`: the request is this replica's own, on behalf of that principal.
    ///
    /// # Cancel safety
    /// Dropped, it closes the connection, which ends the request there as a client's going away does.
    pub(super) async fn send(
        &self,
        peer: &Peer,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        body: Bytes,
        caller: Option<&str>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let lost = || {
            Unanswered::Lost(format!(
                "replica {} ({}) was lost while it worked on this request, which may have been carried out",
                peer.id, peer.host
            ))
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let head = self.head(&peer.id, (method, path, headers), &body, caller);
        let head = head
            .ok_or_else(|| Unanswered::Lost("a header has characters that are not ASCII".into()))?;
        let request = Request::post(format!("http://{}/", peer.address)).header(HOP, head);
        let request = request
            .body(Full::new(body))
            .map_err(|_| Unanswered::Away)?;
        let answer = tokio::select! {
            answer = self.client.request(request) => answer,
            () = peer.lost.cancelled() => return Err(lost()),
        };
        match answer {
            Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {
                self.look().await;
                Err(Unanswered::Moved)
            }
            Ok(answer) => Ok(answer),
            Err(error) if error.is_connect() => Err(Unanswered::Away),
            Err(_) => Err(lost()),
        }
    }

    /// The sealed head of a request to the replica of that id; `None` if a header is not ASCII.
    fn head(
        &self,
        to: &str,
        (method, path, headers): (&Method, &str, &HeaderMap),
        body: &[u8],
        caller: Option<&str>,
    ) -> Option<HeaderValue> {
        let carried = headers
            .iter()
            .filter(|(name, _)| CARRIED.contains(name) || name.as_str().starts_with(PARAM));
        let carried =
            carried.map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let head = Head {
            t: store::now().timestamp(),
            to: to.to_owned(),
            method: method.to_string(),
            path: path.to_owned(),
            headers: carried.collect::<Option<_>>()?,
            body: digest(body),
            caller: caller.map(str::to_owned),
        };
        HeaderValue::try_from(seal(&self.key, &head)).ok()
    }

    /// Makes a request one of this replica's own to the one of that id, on behalf of the principal that it names.
    pub(super) fn sign(&self, to: &str, path: &str, request: &mut Request<Bytes>) {
        let caller = request.headers_mut().remove(CALLER);
        // Lists and subscriptions have no caller. They are made for no principal.
        let caller = Some(
            caller
                .as_ref()
                .map_or("", |caller| caller.to_str().unwrap_or_default()),
        );
        let parts = (request.method(), path, request.headers());
        let head = self.head(to, parts, request.body(), caller);
        let headers = request.headers_mut();
        headers.clear();
        // Without one it is refused.
        headers.extend(head.map(|head| (HOP, head)));
    }

    /// Opens the sealed head of a request that another replica forwards.
    ///
    /// # Errors
    /// Without one, and with one that is forged, old, of somebody else or was opened before.
    pub(super) fn open(
        &self,
        headers: &HeaderMap,
    ) -> Result<(http::request::Builder, Forwarded), Refused> {
        const FORGED: Refused = (
            StatusCode::FORBIDDEN,
            "only replicas of this installation are answered here",
        );
        let (head, nonce) = headers
            .get(HOP)
            .and_then(|text| opened(&self.key, text.as_bytes()))
            .ok_or(FORGED)?;
        let now = store::now().timestamp();
        if !(-MAX_AGE_SECONDS..=MAX_AGE_SECONDS).contains(&(now - head.t)) {
            return Err((
                StatusCode::FORBIDDEN,
                "this forwarded request is too old, or of a replica that has another time than the database",
            ));
        }
        if head.to != self.replica.id() {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this request is for another replica",
            ));
        }
        self.seen.lock().note(nonce, head.t, now)?;
        let mut request = Request::builder()
            .method(head.method.as_str())
            .uri(head.path);
        for (name, value) in head.headers {
            request = request.header(name, value);
        }
        let forwarded = Forwarded {
            digest: head.body,
            caller: head.caller.map(Into::into),
        };
        Ok((request, forwarded))
    }
}

fn seal(key: &DataKey, head: &Head) -> String {
    let text = serde_json::to_string(head).expect("it has no maps");
    sealed_text(key, &["hop"], &text)
}

fn opened(key: &DataKey, text: &[u8]) -> Option<(Head, [u8; NONCE_BYTES])> {
    let (text, nonce) = opened_text(key, &["hop"], text)?;
    Some((serde_json::from_str(&text).ok()?, nonce))
}

fn digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_opens_unchanged_and_with_its_key_only() {
        let key = DataKey::random();
        let head = Head {
            t: 1,
            to: "a".into(),
            method: "POST".into(),
            path: "/mcp".into(),
            headers: vec![("accept".into(), "x".into())],
            body: digest(b"{}"),
            caller: None,
        };
        let text = seal(&key, &head).into_bytes();
        let (read, _) = opened(&key, &text).expect("its own");
        assert_eq!((read.path.as_str(), read.headers), ("/mcp", head.headers));
        assert!(opened(&DataKey::random(), &text).is_none());
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(opened(&key, &changed).is_none(), "{at}");
        }
        // What else the key seals is no head.
        let other = sealed_text(&key, &["session", "ann"], "{}");
        assert!(opened(&key, other.as_bytes()).is_none());
    }

    #[test]
    fn a_head_is_taken_once_and_forgotten_when_it_is_too_old() {
        let mut seen = Seen::default();
        assert!(seen.note([1; NONCE_BYTES], 100, 100).is_ok());
        assert!(seen.note([1; NONCE_BYTES], 100, 130).is_err());
        assert!(seen.note([2; NONCE_BYTES], 131, 131).is_ok());
        assert_eq!(seen.order.len(), 1);
    }

    #[tokio::test]
    async fn the_address_is_the_one_on_the_way_to_the_database() {
        for (url, ip) in [
            ("postgres://u@127.0.0.1:5433/d", "127.0.0.1:"),
            ("postgres:///d?host=/run/postgresql", "127.0.0.1:"),
            ("postgres://u@[::1]/d", "[::1]:"),
        ] {
            let (_, address) = bind(None, url).await.expect(url);
            assert!(address.starts_with(ip), "{url}: {address}");
        }
        let fixed = "0.0.0.0:0".parse().expect("an address");
        let (_, address) = bind(Some(fixed), "postgres://u@127.0.0.1/d")
            .await
            .expect("bound");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
    }
}
