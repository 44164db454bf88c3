//! Browser sessions: who is behind a cookie, and the one-time links that open a session.
//!
//! Invariants: they are in memory and end with the process; cookies and links are known by SHA-256 digest only; a link
//! is good once; a session of a key lasts no longer than the key. Whether a request may use its cookie at all is
//! `gateway::Guard`'s to say.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, header};
use tokio::time::Instant;

use super::{
    Principal,
    keys::{Digest, digest},
};

/// How long somebody stays signed in.
const SESSION: Duration = Duration::from_secs(12 * 60 * 60);
/// How long a link is good.
pub(crate) const LINK: Duration = Duration::from_secs(10 * 60);
/// Sessions, and links, at a time; one more ends the oldest.
const MAX_SESSIONS: usize = 1024;

/// The sessions of all browsers.
pub(crate) struct Browsers {
    cookie: String,
    secure: bool,
    sessions: Mutex<Expiring<Digest, Arc<Principal>>>,
    links: Mutex<Expiring<Digest, Arc<Principal>>>,
}

impl Browsers {
    /// For a gateway at this address.
    pub(super) fn new(base: &str) -> Self {
        let secure = base.starts_with("https://");
        // Browsers keep cookies of one host together, whatever the port.
        let port = base
            .rsplit(':')
            .next()
            .filter(|port| port.parse::<u16>().is_ok());
        Self {
            cookie: match secure {
                true => "__Host-toolwharf".to_owned(),
                false => format!("toolwharf-{}", port.unwrap_or("80")),
            },
            secure,
            sessions: Mutex::new(Expiring::new(SESSION)),
            links: Mutex::new(Expiring::new(LINK)),
        }
    }

    /// Opens a session; the value of `Set-Cookie`.
    pub(crate) fn open(&self, who: Arc<Principal>) -> String {
        let value = secret();
        lock(&self.sessions).put(digest(&value), who, Instant::now());
        self.set_cookie(&value, SESSION.as_secs())
    }

    /// Ends the session of these headers, if they have one; the value of `Set-Cookie`.
    pub(crate) fn close(&self, headers: &HeaderMap) -> String {
        if let Some(value) = self.value(headers) {
            lock(&self.sessions).take(&digest(value), Instant::now());
        }
        self.set_cookie("", 0)
    }

    fn set_cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        let name = &self.cookie;
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Whose session that is, whether or not their key is still living.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Option<Arc<Principal>> {
        let value = self.value(headers)?;
        lock(&self.sessions)
            .get(&digest(value), Instant::now())
            .cloned()
    }

    /// Whether headers have a cookie of ours.
    fn value<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
        let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
        cookies.find_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.cookie).then_some(value)
        })
    }

    /// Makes a link for them; the secret part of it.
    pub(crate) fn link(&self, who: Arc<Principal>) -> String {
        let value = secret();
        lock(&self.links).put(digest(&value), who, Instant::now());
        value
    }

    /// Whom that link is for; it is used up.
    pub(crate) fn redeem(&self, link: &str) -> Option<Arc<Principal>> {
        lock(&self.links).take(&digest(link), Instant::now())
    }

    /// Whether somebody with that id has a session.
    pub(super) fn lives(&self, id: &str) -> bool {
        let sessions = lock(&self.sessions);
        let mut living = sessions.living(Instant::now());
        living.any(|who| *who.id == *id)
    }

    /// Forgets what has ended; whose sessions these were.
    pub(super) fn expire(&self) -> Vec<Arc<str>> {
        let now = Instant::now();
        lock(&self.links).expire(now);
        let ended = lock(&self.sessions).expire(now);
        ended.into_iter().map(|who| who.id.clone()).collect()
    }
}

/// 256 random bits.
pub(super) fn secret() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most [`MAX_SESSIONS`] values, each for the same time.
pub(super) struct Expiring<K, V> {
    lasts: Duration,
    values: HashMap<K, (Instant, V)>,
}

impl<K: Copy + Eq + Hash, V> Expiring<K, V> {
    pub(super) fn new(lasts: Duration) -> Self {
        let values = HashMap::new();
        Self { lasts, values }
    }

    pub(super) fn put(&mut self, key: K, value: V, now: Instant) {
        if self.values.len() >= MAX_SESSIONS {
            let oldest = self.values.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.values.remove(&oldest);
            }
        }
        self.values.insert(key, (now + self.lasts, value));
    }

    fn get(&self, key: &K, now: Instant) -> Option<&V> {
        let (until, value) = self.values.get(key)?;
        (*until > now).then_some(value)
    }

    pub(super) fn take(&mut self, key: &K, now: Instant) -> Option<V> {
        let (until, value) = self.values.remove(key)?;
        (until > now).then_some(value)
    }

    fn living(&self, now: Instant) -> impl Iterator<Item = &V> {
        let living = self.values.values().filter(move |(until, _)| *until > now);
        living.map(|(_, value)| value)
    }

    fn expire(&mut self, now: Instant) -> Vec<V> {
        let ended = self.values.extract_if(|_, (until, _)| *until <= now);
        ended.map(|(_, (_, value))| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Role;

    fn headers(cookie: &str) -> HeaderMap {
        let value = cookie.parse().expect("a cookie");
        [(header::COOKIE, value)].into_iter().collect()
    }

    #[test]
    fn a_link_is_good_once_and_a_cookie_is_its_browsers_alone() {
        let browsers = Browsers::new("http://127.0.0.1:6280");
        let who = Arc::new(Principal::new("key:a", Role::Admin, None));
        let link = browsers.link(who.clone());
        assert_eq!(browsers.redeem(&link), Some(who.clone()));
        assert_eq!(browsers.redeem(&link), None);

        let set = browsers.open(who.clone());
        let (cookie, rest) = set.split_once("; ").expect("attributes");
        assert!(cookie.starts_with("toolwharf-6280="), "{set}");
        assert_eq!(rest, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
        let sent = headers(&format!("other=1; {cookie}"));
        assert_eq!(browsers.principal(&sent), Some(who.clone()));
        let guess = headers("toolwharf-6280=guess");
        assert!(browsers.principal(&guess).is_none() && browsers.lives("key:a"));
        browsers.close(&sent);
        assert!(browsers.principal(&sent).is_none() && !browsers.lives("key:a"));

        let over = Browsers::new("https://tools.example.com").open(who);
        assert!(
            over.starts_with("__Host-toolwharf=") && over.ends_with("; Secure"),
            "{over}"
        );
    }

    #[test]
    fn what_has_expired_is_gone() {
        let (start, mut all) = (Instant::now(), Expiring::new(LINK));
        all.put(1, "one", start);
        all.put(2, "two", start + LINK / 2);
        let late = start + LINK;
        assert_eq!((all.get(&1, late), all.get(&2, late)), (None, Some(&"two")));
        assert_eq!(all.living(late).collect::<Vec<_>>(), [&"two"]);
        assert_eq!(all.take(&1, late), None);
        all.put(1, "again", start);
        assert_eq!(all.expire(late), ["again"]);
        assert_eq!(all.take(&2, late), Some("two"));
    }

    #[test]
    fn one_more_session_than_there_may_be_ends_the_oldest() {
        let browsers = Browsers::new("http://127.0.0.1:6280");
        let first = browsers.open(Arc::new(Principal::new("key:first", Role::Read, None)));
        for n in 0..MAX_SESSIONS {
            browsers.open(Arc::new(Principal::new(
                format!("key:{n}"),
                Role::Read,
                None,
            )));
        }
        let (cookie, _) = first.split_once("; ").expect("attributes");
        assert!(browsers.principal(&headers(cookie)).is_none());
        assert_eq!(lock(&browsers.sessions).values.len(), MAX_SESSIONS);
    }
}
