//! The other replicas: which one owns a session, and how to send a request to it.
//!
//! A session belongs to the replica that opened it. If that replica is lost, the first replica that was asked becomes
//! its heir. A lease on a part of the lost replica's sessions records the heir. Requests between replicas use a
//! separate listener. Each carries a head sealed with a key of the installation, which contains the time, the target
//! replica, method, path, the relevant headers and the digest of the body. A head can be used only once. Deliberately
//! absent: forwarded requests are never forwarded again, and responses are not sealed.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use engine::CALLER;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header,
};
use http_client::{Client, Incoming, Options, Proxies};
use mcp::server::modern;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::encryption::DataKey;
use tokio::{
    net::{TcpListener, UdpSocket},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::guard::{PROJECT_ID, TOOLS};
use auth::{
    BASE,
    sealed::{NONCE_BYTES, opened_text, sealed_text},
};
use backend::replica::Replica;

/// The header that contains the sealed head.
const HEAD_HEADER: HeaderName = HeaderName::from_static("toolwharf-hop");
/// Request headers that are forwarded.
const REQUEST_HEADERS: [HeaderName; 11] = [
    header::AUTHORIZATION,
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static("mcp-session-id"),
    modern::PROTOCOL_VERSION,
    modern::METHOD,
    modern::NAME,
    HeaderName::from_static("last-event-id"),
    PROJECT_ID,
    TOOLS,
    // The address at which a trusted proxy serves the gateway: tokens name it as their audience.
    BASE,
];
/// Prefix of the headers that repeat tool arguments (2026-07-28 basic/transports/streamable-http). They are forwarded,
/// too.
const PARAM_PREFIX: &str = "mcp-param-";
/// Seconds for which a sealed head is valid, and by which the clocks of two replicas may differ. Both use the
/// database's time, as accurately as its response time allows.
const MAX_AGE_SECONDS: i64 = 30;
/// Maximum number of opened heads that are remembered to prevent replay. Enough for about 20,000 requests per second.
const MAX_SEEN: usize = 512 << 10;
/// Connect timeout. A replica on the same network that takes longer counts as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a replica that was away is tried again.
const AWAY_TTL: Duration = Duration::from_secs(5);
/// Number of parts that a lost replica's sessions are divided into, so that several replicas share them.
const SESSION_PARTS: u8 = 8;
/// Time after which a cached heir is queried again.
const HEIR_TTL: Duration = Duration::from_secs(5);
/// Interval between updates of the list of replicas.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the response of a replica that left the list. A leaving replica still answers the requests that
/// were already sent to it, and keeps running for three times this long ([`Peers::linger`]).
const LAST_ANSWER_TIMEOUT: Duration = LIST_INTERVAL;
/// Minimum time between two updates when a replica is not in the list.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(200);

/// Another replica.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) host: String,
    address: String,
    /// Cancelled when the replica disappears from the list.
    pub(super) lost: CancellationToken,
}

pub struct Peers {
    pub(super) replica: Arc<Replica>,
    /// The address at which others reach this replica. Session ids contain it.
    address: String,
    key: DataKey,
    client: Client,
    known: Mutex<Known>,
    /// When the last successful list query began. One query runs at a time, so that an older result never replaces a
    /// newer one.
    looking: tokio::sync::Mutex<Option<Instant>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Known {
    peers: Vec<Peer>,
    looked: Option<Instant>,
    away: HashMap<String, Instant>,
    /// The ids of heirs, by opener and part.
    heirs: HashMap<String, (String, Instant)>,
}

impl Known {
    /// The first matching replica that was not away recently.
    fn living(&self, is_meant: impl Fn(&Peer) -> bool) -> Option<Peer> {
        let is_away = |peer: &Peer| {
            let since = self.away.get(&peer.address);
            since.is_some_and(|since| since.elapsed() < AWAY_TTL)
        };
        let mut peers = self.peers.iter();
        peers.find(|peer| is_meant(peer) && !is_away(peer)).cloned()
    }
}

/// Opened heads, oldest first.
#[derive(Default)]
struct Seen {
    nonces: HashSet<[u8; NONCE_BYTES]>,
    order: VecDeque<(i64, [u8; NONCE_BYTES])>,
}

impl Seen {
    /// Records a head; an error if it was used before.
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
                "this replica has received too many forwarded requests; try again",
            ));
        }
        if !self.nonces.insert(nonce) {
            return Err((
                StatusCode::FORBIDDEN,
                "this forwarded request was already received once",
            ));
        }
        self.order.push_back((made, nonce));
        Ok(())
    }
}

/// The contents of a sealed head.
#[derive(Serialize, Deserialize)]
struct Head {
    /// When the head was made: seconds since 1970.
    t: i64,
    /// The replica that the head is addressed to.
    to: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    /// SHA-256 of the body, in hex.
    body: String,
    /// The principal on whose behalf the replica itself makes the request; the replica has checked their permissions.
    /// `None` for a forwarded client request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
}

/// The parts of a sealed head that are needed after the head was checked against its request.
#[derive(Clone)]
pub(super) struct Forwarded {
    /// The expected digest of the body.
    digest: String,
    pub(super) caller: Option<Arc<str>>,
}

impl Forwarded {
    pub(super) fn is_of(&self, body: &[u8]) -> bool {
        self.digest == model::sha256_hex(body)
    }
}

/// Why a request on the internal listener is refused.
pub(super) type Refused = (StatusCode, &'static str);

/// Work that exactly one replica is responsible for.
#[derive(Clone, Copy)]
pub(super) enum Work<'w> {
    /// A session, with the address of the replica that opened it.
    Session { id: &'w str, opener: &'w str },
    /// State that only the replica at this address has.
    Place(&'w str),
}

/// Why a replica did not respond.
pub(super) enum Unanswered {
    /// The request was not delivered.
    Away,
    /// The replica has rejoined under another id, and did not accept the request.
    Moved,
    /// The request may have been carried out.
    Lost(String),
}

/// Binds the internal listener, and returns the address at which other replicas reach it.
///
/// # Errors
/// If no such address is found; the error names the setting to use.
pub async fn bind(
    listen: Option<SocketAddr>,
    database_url: &str,
) -> anyhow::Result<(TcpListener, String)> {
    const WAY_OUT: &str =
        "set `listen` under `[replicas]` to an address that the other replicas can reach";
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

/// The local address of the route to the database. Sends nothing.
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
    let found =
        found.with_context(|| format!("the host `{host}` of the database has no address"))?;
    let any: IpAddr = match found {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(found).await?;
    Ok(socket.local_addr()?.ip())
}

impl Peers {
    pub fn new(replica: Arc<Replica>, address: String, key: DataKey) -> Arc<Self> {
        let client = Client::new(Options {
            connect_timeout: CONNECT_TIMEOUT,
            proxies: Proxies::none(),
            ..Options::default()
        });
        Arc::new(Self {
            replica,
            address,
            key,
            client,
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until all other replicas, even slow ones, have noticed that this replica is leaving. Returns shortly after
    /// `by` at the latest.
    pub async fn linger(&self, by: Instant) {
        let has_others = !self.known.lock().peers.is_empty();
        if has_others {
            let now = Instant::now();
            let until =
                (now + LIST_INTERVAL * 3).min(by.max(now + LIST_INTERVAL + LIST_INTERVAL / 2));
            tokio::time::sleep_until(until).await;
        }
    }

    /// Keeps the list of replicas up to date, in a loop. While the database is unavailable, the list stays as it was.
    pub async fn follow(&self) {
        loop {
            self.look().await;
            tokio::time::sleep(LIST_INTERVAL).await;
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
        known.away.retain(|_, since| since.elapsed() < AWAY_TTL);
        known
            .heirs
            .retain(|_, (_, since)| since.elapsed() < HEIR_TTL);
    }

    /// The replica responsible for `work`; `None` if that is this replica.
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

    /// The replica at this address, unless it is away.
    pub(super) async fn at(&self, address: &str) -> Option<Peer> {
        let is_unknown = {
            let known = self.known.lock();
            let is_old = known
                .looked
                .is_none_or(|at| at.elapsed() > MIN_LIST_INTERVAL);
            is_old && !known.peers.iter().any(|peer| peer.address == address)
        };
        if is_unknown {
            // The replica may be new, so the list is updated.
            self.look().await;
        }
        self.known.lock().living(|peer| peer.address == address)
    }

    /// The heir of a lost replica's session; `None` if this replica is the heir, or becomes it now.
    async fn heir(&self, session: &str, opener: &str) -> Option<Peer> {
        let part = Sha256::digest(session)[0] % SESSION_PARTS;
        let sessions = format!("{opener}/{part}");
        let mut unreachable: Option<String> = None;
        // The first result may name a replica that is not listed yet, the second one may name a replica that is lost.
        for attempt in 0..3 {
            let known = self.known.lock().heirs.get(&sessions).cloned();
            let id = match known {
                Some((id, since)) if since.elapsed() < HEIR_TTL => id,
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

    /// Stops sending requests to a replica for [`AWAY_TTL`].
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

    /// Sends a request to a replica and returns the head of the response. `caller`: the principal, for a request that
    /// this replica makes itself; `None` for a forwarded one. `passed_on`: names of headers that servers get, in lower
    /// case.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection, which cancels the request at the other replica, as if
    /// the client had disconnected.
    pub(super) async fn send(
        &self,
        peer: &Peer,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        passed_on: &BTreeSet<String>,
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
        let head = (method, path, headers);
        let head = self.head(&peer.id, head, passed_on, &body, caller);
        let head = head.ok_or_else(|| Unanswered::Lost("a request header is not ASCII".into()))?;
        let request = Request::post(format!("http://{}/", peer.address)).header(HEAD_HEADER, head);
        let request = request.body(body).map_err(|_| Unanswered::Away)?;
        let answer = answered(self.client.send(request), &peer.lost).await;
        match answer.ok_or_else(lost)? {
            Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {
                self.look().await;
                Err(Unanswered::Moved)
            }
            Ok(answer) => Ok(answer),
            Err(error) if error.is_connect() => Err(Unanswered::Away),
            Err(_) => Err(lost()),
        }
    }

    /// The sealed head of a request to a replica; `None` if a header is not ASCII.
    fn head(
        &self,
        to: &str,
        (method, path, headers): (&Method, &str, &HeaderMap),
        passed_on: &BTreeSet<String>,
        body: &[u8],
        caller: Option<&str>,
    ) -> Option<HeaderValue> {
        let carried = headers.iter().filter(|(name, _)| {
            REQUEST_HEADERS.contains(name)
                || name.as_str().starts_with(PARAM_PREFIX)
                || passed_on.contains(name.as_str())
        });
        let carried =
            carried.map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let head = Head {
            t: store::now().timestamp(),
            to: to.to_owned(),
            method: method.to_string(),
            path: path.to_owned(),
            headers: carried.collect::<Option<_>>()?,
            body: model::sha256_hex(body),
            caller: caller.map(str::to_owned),
        };
        HeaderValue::try_from(seal(&self.key, &head)).ok()
    }

    /// Turns a request into one that this replica makes to another, on behalf of the principal in its caller header.
    pub(super) fn sign(&self, to: &str, path: &str, request: &mut Request<Bytes>) {
        let caller = request.headers_mut().remove(CALLER);
        // Lists and subscriptions have no caller: they are made for no principal.
        let caller = Some(
            caller
                .as_ref()
                .map_or("", |caller| caller.to_str().unwrap_or_default()),
        );
        let parts = (request.method(), path, request.headers());
        let head = self.head(to, parts, &BTreeSet::new(), request.body(), caller);
        let headers = request.headers_mut();
        headers.clear();
        // If the head could not be made, the other replica refuses the request.
        headers.extend(head.map(|head| (HEAD_HEADER, head)));
    }

    /// Opens the sealed head of a request from another replica.
    ///
    /// # Errors
    /// If the head is missing, forged, too old, addressed to another replica or already used.
    pub(super) fn open(
        &self,
        headers: &HeaderMap,
    ) -> Result<(http::request::Builder, Forwarded), Refused> {
        const FORGED: Refused = (
            StatusCode::FORBIDDEN,
            "this address answers only replicas of this installation",
        );
        let (head, nonce) = headers
            .get(HEAD_HEADER)
            .and_then(|text| opened(&self.key, text.as_bytes()))
            .ok_or(FORGED)?;
        let now = store::now().timestamp();
        if !(-MAX_AGE_SECONDS..=MAX_AGE_SECONDS).contains(&(now - head.t)) {
            return Err((
                StatusCode::FORBIDDEN,
                "this forwarded request is too old, or its replica's clock differs from the database's",
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

/// The answer of a replica; `None` if the replica was lost before.
async fn answered<T>(answering: impl Future<Output = T>, lost: &CancellationToken) -> Option<T> {
    let gone = async {
        lost.cancelled().await;
        tokio::time::sleep(LAST_ANSWER_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        answer = answering => Some(answer),
        () = gone => None,
    }
}

fn opened(key: &DataKey, text: &[u8]) -> Option<(Head, [u8; NONCE_BYTES])> {
    let (text, nonce) = opened_text(key, &["hop"], text)?;
    Some((serde_json::from_str(&text).ok()?, nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaving replica still answers requests that others sent before they noticed.
    #[tokio::test(start_paused = true)]
    async fn a_replica_that_left_the_list_may_still_answer() {
        let lost = CancellationToken::new();
        lost.cancel();
        let after = async |time: Duration| {
            let answering = async {
                tokio::time::sleep(time).await;
                "an answer"
            };
            answered(answering, &lost).await
        };
        assert_eq!(after(Duration::ZERO).await, Some("an answer"));
        assert_eq!(after(LAST_ANSWER_TIMEOUT / 2).await, Some("an answer"));
        assert_eq!(after(LAST_ANSWER_TIMEOUT * 2).await, None);
    }

    #[test]
    fn a_head_opens_unchanged_and_with_its_key_only() {
        let key = DataKey::random();
        let head = Head {
            t: 1,
            to: "a".into(),
            method: "POST".into(),
            path: "/mcp".into(),
            headers: vec![("accept".into(), "x".into())],
            body: model::sha256_hex(b"{}"),
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
        // Other texts sealed with the same key are not heads.
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
