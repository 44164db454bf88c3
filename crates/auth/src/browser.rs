//! Browser sessions, and the one-time links that open a session.
//!
//! Invariants: cookies and links contain ticket secrets ([`Tickets`]), so all replicas accept them. A link works once.
//! A session opened with a key ends with the key; a session opened at an issuer ends when the issuer settings change.
//! Sessions used at this replica are cached, and dropped from the cache within a second after they end at another
//! replica. `gateway::Guard` decides whether a request may use its cookie.
//!
//! Browsers send a host's cookies to every port of that host, and any port can set them. So a session has a second
//! secret, the page secret: only the response that opens the session contains it. The page keeps it in its origin's
//! storage and sends it as [`PAGE_SECRET`]. The server keeps a digest of it. A page secret is valid only with the
//! cookie of the same session.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{HeaderMap, HeaderName, header};
use model::{OidcSettings, ProjectId, sha256_hex};
use serde::{Deserialize, Serialize};
use store::Time;

use super::{Principal, Role, base_of};
use crate::tickets::{Kind, Tickets};

/// The header with which a page of this gateway proves that it belongs to the session of its cookie.
pub const PAGE_SECRET: HeaderName = HeaderName::from_static("toolwharf-session");

/// A newly opened session.
pub struct Opened {
    /// The value of `Set-Cookie`.
    pub cookie: String,
    /// The page secret. No later response contains it.
    pub page_secret: String,
}

/// The cookie of the sessions at one address of the gateway.
#[derive(Clone)]
struct SessionCookie {
    name: String,
    path: String,
    secure: bool,
}

pub struct Browsers {
    /// The cookie at the address in the settings.
    cookie: SessionCookie,
    tickets: Arc<Tickets>,
    /// A digest of the issuer settings.
    rules: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Sessions that were used at this replica, by the digests of their cookies.
    sessions: HashMap<String, Session>,
    /// Counts the events after which cached sessions may be stale. A session that was read before the latest event is
    /// not cached.
    ends: u64,
}

#[derive(Clone)]
struct Session {
    who: Arc<Principal>,
    /// The digest of the page secret.
    page: String,
    until: Time,
}

/// The stored data of a session, or of a link that opens one.
#[derive(Serialize, Deserialize)]
struct Kept {
    id: String,
    role: Option<Role>,
    projects: BTreeMap<ProjectId, Role>,
    rules: String,
    /// The digest of the page secret. It is empty for links, and for sessions of older versions, which are not
    /// accepted.
    #[serde(default)]
    page: String,
}

impl SessionCookie {
    fn at(base: &str) -> Self {
        let (origin, prefix) = model::origin_and_prefix(base);
        let secure = origin.starts_with("https://");
        // Browsers share cookies between all ports of a host. Several gateways may also share a port, below different
        // paths.
        let port = origin
            .rsplit(':')
            .next()
            .filter(|port| port.parse::<u16>().is_ok());
        let of = prefix.replace('/', "-");
        // A `__Host-` cookie is always of the path `/`. In return, other hosts of the domain cannot set it. Pages below
        // other paths of this host are of the same origin, so no path would protect a session from them.
        let (name, path) = match secure {
            true => (format!("__Host-toolwharf{of}"), "/"),
            false => (
                format!("toolwharf-{}{of}", port.unwrap_or("80")),
                if prefix.is_empty() { "/" } else { prefix },
            ),
        };
        Self {
            name,
            path: path.to_owned(),
            secure,
        }
    }

    /// The value of `Set-Cookie`.
    fn set(&self, value: &str, seconds: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        let Self { name, path, .. } = self;
        format!("{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

impl Browsers {
    /// `base`: the address of this gateway.
    pub(super) fn new(
        base: &str,
        issuers: &BTreeMap<String, OidcSettings>,
        tickets: Arc<Tickets>,
    ) -> Self {
        Self {
            cookie: SessionCookie::at(base),
            tickets,
            rules: sha256_hex(format!("{issuers:?}")),
            known: Mutex::default(),
        }
    }

    /// The cookie at the address of a request.
    fn cookie(&self, headers: &HeaderMap) -> Cow<'_, SessionCookie> {
        match base_of(headers) {
            Some(base) => Cow::Owned(SessionCookie::at(base)),
            None => Cow::Borrowed(&self.cookie),
        }
    }

    /// Opens a session for the browser that sent these headers.
    ///
    /// # Errors
    /// Database errors.
    pub async fn open(&self, who: &Principal, headers: &HeaderMap) -> store::Result<Opened> {
        let page_secret = hex::encode(rand::random::<[u8; 32]>());
        let kept = Kept {
            page: sha256_hex(&page_secret),
            ..self.kept(who)
        };
        let value = self.tickets.issue(Kind::Session, &kept).await?;
        Ok(Opened {
            cookie: self
                .cookie(headers)
                .set(&value, Kind::Session.lasts().as_secs()),
            page_secret,
        })
    }

    /// Ends a session if the headers contain its cookie and its page secret. Returns a `Set-Cookie` value that deletes
    /// the cookie, even if no session ended.
    ///
    /// # Errors
    /// Database errors. The session may still be open.
    pub async fn close(&self, headers: &HeaderMap) -> store::Result<String> {
        let is_pages = self.principal(headers).await?.is_some();
        if let Some(value) = self.value(headers).filter(|_| is_pages) {
            self.tickets.take::<Kept>(Kind::Session, value).await?;
            let mut known = self.known();
            known.ends += 1;
            known.sessions.remove(&sha256_hex(value));
        }
        Ok(self.cookie(headers).set("", 0))
    }

    /// The user of the session, by cookie and page secret. Does not check whether the user's key is still valid.
    ///
    /// # Errors
    /// Database errors, if the session is not cached.
    pub(super) async fn principal(
        &self,
        headers: &HeaderMap,
    ) -> store::Result<Option<Arc<Principal>>> {
        let mut secrets = headers.get_all(PAGE_SECRET).into_iter();
        let (Some(secret), None) = (secrets.next(), secrets.next()) else {
            return Ok(None);
        };
        // Digests are compared, so that the timing reveals nothing about the secret.
        let page = sha256_hex(secret.as_bytes());
        let session = self.session(headers).await?;
        let session = session.filter(|session| session.page == page);
        Ok(session.map(|session| session.who))
    }

    /// The user of the session, by its cookie alone. Only for pages that are opened by navigation.
    ///
    /// # Errors
    /// Database errors, if the session is not cached.
    pub(super) async fn by_cookie(
        &self,
        headers: &HeaderMap,
    ) -> store::Result<Option<Arc<Principal>>> {
        Ok(self.session(headers).await?.map(|session| session.who))
    }

    async fn session(&self, headers: &HeaderMap) -> store::Result<Option<Session>> {
        let Some(value) = self.value(headers) else {
            return Ok(None);
        };
        let digest = sha256_hex(value);
        let (session, ends) = {
            let known = self.known();
            (known.sessions.get(&digest).cloned(), known.ends)
        };
        if let Some(session) = session.filter(|session| session.until > store::now()) {
            return Ok(Some(session));
        }
        let read = self.tickets.read::<Kept>(Kind::Session, value).await?;
        let Some((kept, until)) = read else {
            return Ok(None);
        };
        let page = kept.page.clone();
        let Some(who) = self.living(kept).filter(|_| !page.is_empty()) else {
            return Ok(None);
        };
        let session = Session { who, page, until };
        let mut known = self.known();
        if known.ends == ends {
            known.remember(digest, session.clone());
        }
        Ok(Some(session))
    }

    /// The value of the session cookie, if the headers contain one.
    fn value<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let own = self.cookie(headers);
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
        let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
        cookies.find_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == own.name).then_some(value)
        })
    }

    /// Makes a one-time sign-in link and returns its secret part.
    ///
    /// # Errors
    /// Database errors.
    pub async fn link(&self, who: &Principal) -> store::Result<String> {
        self.tickets.issue(Kind::Link, &self.kept(who)).await
    }

    /// Redeems a link and returns its user.
    ///
    /// # Errors
    /// Database errors.
    pub async fn redeem(&self, link: &str) -> store::Result<Option<Arc<Principal>>> {
        let kept = self.tickets.take::<Kept>(Kind::Link, link).await?;
        Ok(kept.and_then(|kept| self.living(kept)))
    }

    fn kept(&self, who: &Principal) -> Kept {
        Kept {
            id: who.id.to_string(),
            role: who.role,
            projects: who.projects.clone(),
            rules: self.rules.clone(),
            page: String::new(),
        }
    }

    /// The stored user; `None` if the issuer settings have changed since, so that the user may have another role now.
    fn living(&self, kept: Kept) -> Option<Arc<Principal>> {
        let is_of_key = kept.id.starts_with("key:");
        (is_of_key || kept.rules == self.rules).then(|| {
            Arc::new(Principal {
                id: kept.id.into(),
                role: kept.role,
                projects: kept.projects,
                tools: None,
            })
        })
    }

    /// Returns true if this principal has a valid session that was used at this replica.
    pub(super) fn lives(&self, id: &str) -> bool {
        let now = store::now();
        let known = self.known();
        let mut living = known
            .sessions
            .values()
            .filter(|session| session.until > now);
        living.any(|session| *session.who.id == *id)
    }

    /// Drops expired sessions from the cache and returns their principals.
    pub(super) fn expire(&self) -> Vec<Arc<str>> {
        let now = store::now();
        self.forget(|_, session| session.until <= now)
    }

    /// Drops sessions that ended at other replicas from the cache and returns their principals.
    ///
    /// # Errors
    /// Database errors.
    pub(super) async fn refresh(&self) -> store::Result<Vec<Arc<str>>> {
        // The list is read before the query, so that a session that is first used during the query does not count as
        // ended.
        let before: Vec<String> = {
            let mut known = self.known();
            known.ends += 1;
            known.sessions.keys().cloned().collect()
        };
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let living = self.tickets.digests(Kind::Session).await?;
        let living: HashSet<String> = living.into_iter().collect();
        let gone: HashSet<String> = before
            .into_iter()
            .filter(|digest| !living.contains(digest))
            .collect();
        Ok(self.forget(|digest, _| gone.contains(digest)))
    }

    fn forget(&self, is_over: impl Fn(&str, &Session) -> bool) -> Vec<Arc<str>> {
        let mut known = self.known();
        let sessions = &mut known.sessions;
        let ended = sessions.extract_if(|digest, session| is_over(digest, session));
        ended.map(|(_, session)| session.who.id.clone()).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Caches a session. If the cache is full, evicts the session that expires first.
    fn remember(&mut self, digest: String, session: Session) {
        if self.sessions.len() >= Kind::Session.most() as usize {
            let all = self.sessions.iter();
            let soonest = all.min_by_key(|(_, session)| session.until);
            if let Some(soonest) = soonest.map(|(digest, _)| digest.clone()) {
                self.sessions.remove(&soonest);
            }
        }
        self.sessions.insert(digest, session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BASE;

    async fn browsers(base: &str) -> (tempfile::TempDir, Browsers) {
        let (dir, tickets) = Tickets::for_test().await;
        (dir, Browsers::new(base, &BTreeMap::new(), tickets))
    }

    fn headers(cookie: &str, page_secret: &str) -> HeaderMap {
        let cookie = cookie.parse().expect("a cookie");
        let secret = page_secret.parse().expect("a header");
        [(header::COOKIE, cookie), (PAGE_SECRET, secret)]
            .into_iter()
            .collect()
    }

    /// The headers that the page of a session sends.
    fn sent(opened: &Opened) -> HeaderMap {
        let (cookie, _) = opened.cookie.split_once("; ").expect("attributes");
        headers(&format!("other=1; {cookie}"), &opened.page_secret)
    }

    /// Opens the same sessions at another replica, or after a restart.
    fn elsewhere(browsers: &Browsers, issuers: &BTreeMap<String, OidcSettings>) -> Browsers {
        Browsers::new("http://127.0.0.1:6280", issuers, browsers.tickets.clone())
    }

    #[tokio::test]
    async fn a_link_is_good_once_and_a_cookie_is_its_browsers_alone() {
        let (_dir, browsers) = browsers("http://127.0.0.1:6280").await;
        let who = Principal::new("key:a", Role::Admin, None);
        let link = browsers.link(&who).await.expect("a link");
        let redeem = async || browsers.redeem(&link).await.expect("an answer");
        assert_eq!(redeem().await.as_deref(), Some(&who));
        assert_eq!(redeem().await, None);

        let opened = browsers
            .open(&who, &HeaderMap::new())
            .await
            .expect("a session");
        let (cookie, rest) = opened.cookie.split_once("; ").expect("attributes");
        assert!(cookie.starts_with("toolwharf-6280="), "{cookie}");
        assert_eq!(rest, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
        let sent = sent(&opened);
        let guess = headers("toolwharf-6280=guess", &opened.page_secret);
        let found = async |headers| browsers.principal(headers).await.expect("an answer");
        assert_eq!(found(&sent).await.as_deref(), Some(&who));
        assert!(found(&guess).await.is_none());
        assert!(browsers.lives("key:a"));
        browsers.close(&sent).await.expect("ended");
        assert!(found(&sent).await.is_none() && !browsers.lives("key:a"));
    }

    #[tokio::test]
    async fn where_it_can_a_cookie_is_sent_over_tls_only() {
        let (_dir, browsers) = browsers("https://tools.example.com").await;
        let who = Principal::new("key:a", Role::Admin, None);
        let over = browsers
            .open(&who, &HeaderMap::new())
            .await
            .expect("a session")
            .cookie;
        assert!(
            over.starts_with("__Host-toolwharf=") && over.ends_with("; Secure"),
            "{over}"
        );
    }

    #[tokio::test]
    async fn a_cookie_is_for_the_address_that_the_request_names() {
        let (_dir, browsers) = browsers("http://127.0.0.1:6280").await;
        let who = Principal::new("key:a", Role::Admin, None);
        let base = [(BASE, "https://a.example/tools".parse().expect("a value"))];
        let outside: HeaderMap = base.clone().into_iter().collect();
        let opened = browsers.open(&who, &outside).await.expect("a session");
        let (cookie, rest) = opened.cookie.split_once("; ").expect("attributes");
        assert!(cookie.starts_with("__Host-toolwharf-tools="), "{cookie}");
        assert!(
            rest.contains("Path=/;") && rest.ends_with("; Secure"),
            "{rest}"
        );
        let mut sent = headers(cookie, &opened.page_secret);
        // Without the proxy, the gateway has another cookie.
        let found = browsers.principal(&sent).await.expect("an answer");
        assert!(found.is_none());
        sent.extend(base);
        let found = browsers.principal(&sent).await.expect("an answer");
        assert_eq!(found.expect("signed in").id, who.id);
        let closed = browsers.close(&sent).await.expect("closed");
        assert!(closed.starts_with("__Host-toolwharf-tools=;"), "{closed}");
    }

    #[tokio::test]
    async fn gateways_below_different_paths_of_a_host_have_different_cookies() {
        for (base, name, path) in [
            (
                "https://a.example/tools",
                "__Host-toolwharf-tools=",
                "; Path=/; ",
            ),
            (
                "http://a.example:8080/x/y",
                "toolwharf-8080-x-y=",
                "; Path=/x/y; ",
            ),
            (
                "http://[::1]/tools",
                "toolwharf-80-tools=",
                "; Path=/tools; ",
            ),
        ] {
            let (_dir, browsers) = browsers(base).await;
            let who = Principal::new("key:a", Role::Admin, None);
            let opened = browsers
                .open(&who, &HeaderMap::new())
                .await
                .expect("a session");
            let cookie = &opened.cookie;
            assert!(
                cookie.starts_with(name) && cookie.contains(path),
                "{cookie}"
            );
            let found = browsers.principal(&sent(&opened)).await;
            assert_eq!(found.expect("an answer").as_deref(), Some(&who), "{base}");
        }
    }

    #[tokio::test]
    async fn a_session_is_known_to_all_replicas_until_it_ends_at_one() {
        let (_dir, one) = browsers("http://127.0.0.1:6280").await;
        let other = elsewhere(&one, &BTreeMap::new());
        let project = ProjectId::parse("p").expect("an id");
        let who = Principal::new("user:corp:ann", Role::Manage, Some(project));
        let sent = sent(&one.open(&who, &HeaderMap::new()).await.expect("a session"));
        let found = other.principal(&sent).await.expect("an answer");
        assert_eq!(found.as_deref(), Some(&who));
        assert_eq!(other.refresh().await.expect("an answer"), []);
        one.close(&sent).await.expect("ended");
        let ended = other.refresh().await.expect("an answer");
        assert_eq!(ended, [who.id]);
        assert!(other.principal(&sent).await.expect("an answer").is_none());
    }

    #[tokio::test]
    async fn other_settings_of_issuers_end_their_sessions() {
        let (_dir, browsers) = browsers("http://127.0.0.1:6280").await;
        let issuer = ("corp".to_owned(), OidcSettings::default());
        let other = elsewhere(&browsers, &BTreeMap::from([issuer]));
        for (id, lives) in [("key:a", true), ("user:corp:ann", false)] {
            let who = Principal::new(id, Role::Admin, None);
            let sent = sent(
                &browsers
                    .open(&who, &HeaderMap::new())
                    .await
                    .expect("a session"),
            );
            let found = other.principal(&sent).await.expect("an answer");
            assert_eq!(found.is_some(), lives, "{id}");
        }
    }

    #[tokio::test]
    async fn a_session_takes_its_cookie_and_its_page_secret_together() {
        let (_dir, browsers) = browsers("http://127.0.0.1:6280").await;
        let other = elsewhere(&browsers, &BTreeMap::new());
        let who = Principal::new("key:a", Role::Admin, None);
        let attacker = Principal::new("key:b", Role::Read, None);
        let own = browsers
            .open(&who, &HeaderMap::new())
            .await
            .expect("a session");
        let theirs = browsers
            .open(&attacker, &HeaderMap::new())
            .await
            .expect("a session");
        let cookie = |of: &Opened| of.cookie.split(';').next().map(str::to_owned);
        let [own_cookie, their_cookie] = [&own, &theirs].map(|of| cookie(of).expect("a cookie"));
        let mut twice = sent(&own);
        twice.append(PAGE_SECRET, theirs.page_secret.parse().expect("a header"));
        let mut alone = sent(&own);
        alone.remove(PAGE_SECRET);
        let refused = [
            ("no secret", alone.clone()),
            ("an empty one", headers(&own_cookie, "")),
            (
                "the digest",
                headers(&own_cookie, &sha256_hex(&own.page_secret)),
            ),
            (
                "the cookie's value",
                headers(&own_cookie, &own_cookie["toolwharf-6280=".len()..]),
            ),
            (
                "that of another session",
                headers(&own_cookie, &theirs.page_secret),
            ),
            (
                "another session's cookie",
                headers(&their_cookie, &own.page_secret),
            ),
            ("two", twice),
        ];
        for (what, sent) in refused {
            for replica in [&browsers, &other] {
                let found = replica.principal(&sent).await.expect("an answer");
                assert_eq!(found, None, "{what}");
            }
            browsers.close(&sent).await.expect("an answer");
        }
        // None of these requests ended the session. Navigation needs the cookie only.
        for replica in [&browsers, &other] {
            let found = replica.principal(&sent(&own)).await.expect("an answer");
            assert_eq!(found.as_deref(), Some(&who));
            let found = replica.by_cookie(&alone).await.expect("an answer");
            assert_eq!(found.as_deref(), Some(&who));
        }
    }

    #[tokio::test]
    async fn a_session_of_an_older_version_has_no_page_secret_and_counts_for_nothing() {
        let (_dir, browsers) = browsers("http://127.0.0.1:6280").await;
        let kept = browsers.kept(&Principal::new("key:a", Role::Admin, None));
        let mut kept = serde_json::to_value(kept).expect("a value");
        kept.as_object_mut().expect("an object").remove("page");
        let issued = browsers.tickets.issue(Kind::Session, &kept).await;
        let cookie = format!("toolwharf-6280={}", issued.expect("a ticket"));
        for secret in ["", "guess"] {
            let sent = headers(&cookie, secret);
            assert_eq!(browsers.principal(&sent).await.expect("an answer"), None);
            assert_eq!(browsers.by_cookie(&sent).await.expect("an answer"), None);
        }
    }
}
