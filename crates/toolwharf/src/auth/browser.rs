//! Browser sessions: who is behind a cookie, and the one-time links that open a session.
//!
//! Invariants: a cookie and a link are secrets of tickets ([`Tickets`]), so all replicas know them; a link is good once; a session of a key
//! lasts no longer than the key, and one of an issuer's no longer than the settings of issuers stay as they are. A session that was used
//! here is in memory, and forgotten within a second of its end at another replica. Whether a request may use its cookie at all is `gateway::Guard`'s to say.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{HeaderMap, header};
use model::{OidcSettings, ProjectId};
use serde::{Deserialize, Serialize};
use store::Time;

use super::{Principal, Role};
use crate::tickets::{Kind, Tickets, digest};

/// The sessions of all browsers.
pub(crate) struct Browsers {
    cookie: String,
    secure: bool,
    tickets: Arc<Tickets>,
    /// What the settings of issuers are known by.
    rules: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Sessions that were used here, by the digests of their cookies.
    sessions: HashMap<String, Session>,
    /// How often sessions may have ended before their time. What was read before the last of these is not remembered.
    ends: u64,
}

#[derive(Clone)]
struct Session {
    who: Arc<Principal>,
    until: Time,
}

/// What the database keeps of a session, and of a link that opens one.
#[derive(Serialize, Deserialize)]
struct Kept {
    id: String,
    role: Option<Role>,
    projects: BTreeMap<ProjectId, Role>,
    rules: String,
}

impl Browsers {
    /// For a gateway at this address, with these issuers.
    pub(super) fn new(
        base: &str,
        issuers: &BTreeMap<String, OidcSettings>,
        tickets: Arc<Tickets>,
    ) -> Self {
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
            tickets,
            rules: digest(&format!("{issuers:?}")),
            known: Mutex::default(),
        }
    }

    /// Opens a session; the value of `Set-Cookie`.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn open(&self, who: &Principal) -> store::Result<String> {
        let value = self.tickets.issue(Kind::Session, &self.kept(who)).await?;
        Ok(self.set_cookie(&value, Kind::Session.lasts().as_secs()))
    }

    /// Ends the session of these headers, if they have one; the value of `Set-Cookie`.
    ///
    /// # Errors
    /// Those of the database: it may go on.
    pub(crate) async fn close(&self, headers: &HeaderMap) -> store::Result<String> {
        if let Some(value) = self.value(headers) {
            self.tickets.take::<Kept>(Kind::Session, value).await?;
            let mut known = self.known();
            known.ends += 1;
            known.sessions.remove(&digest(value));
        }
        Ok(self.set_cookie("", 0))
    }

    fn set_cookie(&self, value: &str, seconds: u64) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        let name = &self.cookie;
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }

    /// Whose session that is, whether or not their key is still living.
    ///
    /// # Errors
    /// Those of the database, if the session is not known here.
    pub(super) async fn principal(
        &self,
        headers: &HeaderMap,
    ) -> store::Result<Option<Arc<Principal>>> {
        let Some(value) = self.value(headers) else {
            return Ok(None);
        };
        let digest = digest(value);
        let (session, ends) = {
            let known = self.known();
            (known.sessions.get(&digest).cloned(), known.ends)
        };
        if let Some(session) = session.filter(|session| session.until > store::now()) {
            return Ok(Some(session.who));
        }
        let read = self.tickets.read::<Kept>(Kind::Session, value).await?;
        let Some((kept, until)) = read else {
            return Ok(None);
        };
        let Some(who) = self.living(kept) else {
            return Ok(None);
        };
        let session = Session {
            who: who.clone(),
            until,
        };
        let mut known = self.known();
        if known.ends == ends {
            known.remember(digest, session);
        }
        Ok(Some(who))
    }

    /// The cookie's value, if headers have one of ours.
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
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn link(&self, who: &Principal) -> store::Result<String> {
        self.tickets.issue(Kind::Link, &self.kept(who)).await
    }

    /// Whom that link is for; it is used up.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn redeem(&self, link: &str) -> store::Result<Option<Arc<Principal>>> {
        let kept = self.tickets.take::<Kept>(Kind::Link, link).await?;
        Ok(kept.and_then(|kept| self.living(kept)))
    }

    fn kept(&self, who: &Principal) -> Kept {
        Kept {
            id: who.id.to_string(),
            role: who.role,
            projects: who.projects.clone(),
            rules: self.rules.clone(),
        }
    }

    /// Who they are; `None`: the settings of issuers have changed since, and may give them another role.
    fn living(&self, kept: Kept) -> Option<Arc<Principal>> {
        let is_of_key = kept.id.starts_with("key:");
        (is_of_key || kept.rules == self.rules).then(|| {
            Arc::new(Principal {
                id: kept.id.into(),
                role: kept.role,
                projects: kept.projects,
            })
        })
    }

    /// Whether somebody with that id has a session that was used here.
    pub(super) fn lives(&self, id: &str) -> bool {
        let now = store::now();
        let known = self.known();
        let mut living = known
            .sessions
            .values()
            .filter(|session| session.until > now);
        living.any(|session| *session.who.id == *id)
    }

    /// Forgets what has ended; whose sessions these were.
    pub(super) fn expire(&self) -> Vec<Arc<str>> {
        let now = store::now();
        self.forget(|_, session| session.until <= now)
    }

    /// Forgets what has ended at other replicas; whose sessions these were.
    ///
    /// # Errors
    /// Those of the database.
    pub(super) async fn refresh(&self) -> store::Result<Vec<Arc<str>>> {
        // Before the look: a session that is used meanwhile is not taken for one that has ended.
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
    /// Remembers a session; one too many has the one forgotten that ends first.
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

    async fn browsers(base: &str) -> (tempfile::TempDir, Browsers) {
        let (dir, tickets) = Tickets::for_test().await;
        (dir, Browsers::new(base, &BTreeMap::new(), tickets))
    }

    fn headers(cookie: &str) -> HeaderMap {
        let value = cookie.parse().expect("a cookie");
        [(header::COOKIE, value)].into_iter().collect()
    }

    /// The same session at another replica, or after a restart.
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

        let set = browsers.open(&who).await.expect("a session");
        let (cookie, rest) = set.split_once("; ").expect("attributes");
        assert!(cookie.starts_with("toolwharf-6280="), "{set}");
        assert_eq!(rest, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
        let sent = headers(&format!("other=1; {cookie}"));
        let guess = headers("toolwharf-6280=guess");
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
        let over = browsers.open(&who).await.expect("a session");
        assert!(
            over.starts_with("__Host-toolwharf=") && over.ends_with("; Secure"),
            "{over}"
        );
    }

    #[tokio::test]
    async fn a_session_is_known_to_all_replicas_until_it_ends_at_one() {
        let (_dir, one) = browsers("http://127.0.0.1:6280").await;
        let other = elsewhere(&one, &BTreeMap::new());
        let project = ProjectId::parse("p").expect("an id");
        let who = Principal::new("user:corp:ann", Role::Manage, Some(project));
        let set = one.open(&who).await.expect("a session");
        let sent = headers(set.split_once("; ").expect("attributes").0);
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
            let set = browsers.open(&who).await.expect("a session");
            let sent = headers(set.split_once("; ").expect("attributes").0);
            let found = other.principal(&sent).await.expect("an answer");
            assert_eq!(found.is_some(), lives, "{id}");
        }
    }
}
