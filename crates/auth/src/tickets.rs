//! Tickets: secrets held by a browser or a link, which all replicas accept.
//!
//! A ticket is a secret with a value that the database keeps for a limited time. The value is encrypted and bound to
//! the secret. The database has only a digest of the secret; the browser or the link has the secret itself. Secrets are
//! encrypted, too, so that a secret that Toolwharf did not generate is rejected without a query.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use store::{NewTicket, Store, TicketRow, Time, encryption::DataKey};

use crate::sealed::{opened_text, sealed_text};

/// Lifetime of a browser session.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Lifetime of all tickets that can be used once.
pub const LINK: Duration = Duration::from_secs(10 * 60);

/// The purpose of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A browser session.
    Session,
    /// A link that signs a browser in.
    Link,
    /// A sign-in to Toolwharf, at an issuer.
    SignIn,
    /// A sign-in to a server, at its issuer.
    Login,
    /// A sign-in to a server where the user pastes the redirect URL. The issuer sees the ticket's secret.
    Paste,
    /// A link that was used.
    Used,
    /// A form token that was used.
    Form,
}

impl Kind {
    /// The kind's name in the database.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Link => "link",
            Self::SignIn => "sign-in",
            Self::Login => "login",
            Self::Paste => "paste",
            Self::Used => "used",
            Self::Form => "form",
        }
    }

    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::Session => SESSION_LIFETIME,
            _ => LINK,
        }
    }

    /// Maximum number of tickets of this kind. If there are that many, a new one replaces the one that would expire first.
    pub(crate) fn most(self) -> u32 {
        match self {
            Self::Session | Self::Used | Self::Form => 16_384,
            _ => 1024,
        }
    }

    /// Returns true if the secrets of this kind are generated and encrypted by [`Tickets::issue`].
    fn is_ours(self) -> bool {
        !matches!(self, Self::Paste | Self::Used | Self::Form)
    }
}

pub struct Tickets {
    store: Store,
    key: DataKey,
}

impl Tickets {
    /// `key`: the key of the installation.
    pub fn new(store: Store, key: DataKey) -> Self {
        Self { store, key }
    }

    /// Creates tickets in a new database. Also returns the database's directory.
    #[cfg(any(test, feature = "test-util"))]
    pub async fn for_test() -> (tempfile::TempDir, std::sync::Arc<Self>) {
        let dir = tempfile::tempdir().expect("a directory");
        let location = store::Location::Sqlite(dir.path().join("wharf.db"));
        let store = Box::pin(Store::open(&location))
            .await
            .expect("a new database");
        (dir, Self::new(store, DataKey::random()).into())
    }

    /// Makes a ticket and returns its secret.
    ///
    /// # Errors
    /// Database errors.
    pub async fn issue<T: Serialize>(&self, kind: Kind, value: &T) -> store::Result<String> {
        let secret = sealed_text(&self.key, &["secret", kind.name()], "");
        self.put(kind, &secret, value).await?;
        Ok(secret)
    }

    /// Stores a ticket for an existing secret. Returns false if a ticket with this secret exists.
    ///
    /// # Errors
    /// Database errors.
    pub async fn put<T: Serialize>(
        &self,
        kind: Kind,
        secret: &str,
        value: &T,
    ) -> store::Result<bool> {
        let digest = model::sha256_hex(secret);
        let text = serde_json::to_string(value)
            .expect("tickets contain no maps with keys other than text");
        let sealed = sealed_text(&self.key, &place(kind, &digest), &text);
        let ticket = NewTicket {
            kind: kind.name(),
            digest: &digest,
            sealed: &sealed,
            expires_at: store::now() + kind.lasts(),
            most: kind.most(),
        };
        // This future is boxed, because it is large (a transaction of three statements) and rarely needed.
        Box::pin(self.store.ticket_put(ticket)).await
    }

    /// The value of a valid ticket, and when it expires.
    ///
    /// # Errors
    /// Database errors.
    pub async fn read<T: DeserializeOwned>(
        &self,
        kind: Kind,
        secret: &str,
    ) -> store::Result<Option<(T, Time)>> {
        if !self.may_be(kind, secret) {
            return Ok(None);
        }
        let digest = model::sha256_hex(secret);
        let row = self.store.ticket_get(kind.name(), &digest).await?;
        Ok(row.and_then(|row| self.opened(kind, &digest, &row)))
    }

    /// Like [`Self::read`], and removes the ticket.
    ///
    /// # Errors
    /// Database errors.
    pub async fn take<T: DeserializeOwned>(
        &self,
        kind: Kind,
        secret: &str,
    ) -> store::Result<Option<T>> {
        if !self.may_be(kind, secret) {
            return Ok(None);
        }
        let digest = model::sha256_hex(secret);
        let row = self.store.ticket_take(kind.name(), &digest).await?;
        let taken = row.and_then(|row| self.opened(kind, &digest, &row));
        Ok(taken.map(|(value, _)| value))
    }

    /// The digests of all secrets of a kind.
    ///
    /// # Errors
    /// Database errors.
    pub(crate) async fn digests(&self, kind: Kind) -> store::Result<Vec<String>> {
        self.store.ticket_digests(kind.name()).await
    }

    /// Encrypts a text for a link. Nothing is stored.
    pub fn seal(&self, text: &str) -> String {
        sealed_text(&self.key, &["link"], text)
    }

    /// Decrypts a text that [`Self::seal`] encrypted; `None` for any other.
    pub fn open(&self, link: &str) -> Option<String> {
        let (text, _) = opened_text(&self.key, &["link"], link.as_bytes())?;
        Some(text.to_string())
    }

    /// A token for one `POST` of the form on `page`, valid for [`LINK`]. Accepted only together with the same
    /// `bound`, which identifies a browser or link.
    ///
    /// It is encrypted rather than stored, so that showing a page writes nothing to the database.
    pub fn form_token(&self, page: &str, bound: &str) -> String {
        let until = (store::now() + LINK).timestamp_millis().to_string();
        sealed_text(&self.key, &["form", page, bound], &until)
    }

    /// Uses up a form token. Returns false unless it was made for this page and this `bound`, has not expired, and was
    /// not used before.
    ///
    /// # Errors
    /// Database errors.
    pub async fn use_form_token(
        &self,
        page: &str,
        bound: &str,
        token: &str,
    ) -> store::Result<bool> {
        let opened = opened_text(&self.key, &["form", page, bound], token.as_bytes());
        let until = opened.and_then(|(until, _)| until.parse().ok());
        if until.is_none_or(|until: i64| until <= store::now().timestamp_millis()) {
            return Ok(false);
        }
        self.put(Kind::Form, token, &()).await
    }

    fn may_be(&self, kind: Kind, secret: &str) -> bool {
        let is_ours = || opened_text(&self.key, &["secret", kind.name()], secret.as_bytes());
        !kind.is_ours() || is_ours().is_some()
    }

    fn opened<T: DeserializeOwned>(
        &self,
        kind: Kind,
        digest: &str,
        row: &TicketRow,
    ) -> Option<(T, Time)> {
        let (text, _) = opened_text(&self.key, &place(kind, digest), row.sealed.as_bytes())?;
        Some((serde_json::from_str(&text).ok()?, row.expires_at))
    }
}

fn place(kind: Kind, digest: &str) -> [&str; 3] {
    ["ticket", kind.name(), digest]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ticket_is_of_its_kind_and_is_taken_once() {
        let (_dir, tickets) = Tickets::for_test().await;
        let secret = tickets.issue(Kind::Link, &"ann").await.expect("a ticket");
        let read = async |kind| {
            let read = tickets.read::<String>(kind, &secret).await;
            read.expect("an answer").map(|(who, _)| who)
        };
        assert_eq!(read(Kind::Link).await.as_deref(), Some("ann"));
        assert_eq!(read(Kind::SignIn).await, None);
        let take = async || {
            tickets
                .take::<String>(Kind::Link, &secret)
                .await
                .expect("an answer")
        };
        assert_eq!(take().await.as_deref(), Some("ann"));
        assert_eq!(take().await, None);
    }

    #[tokio::test]
    async fn a_secret_that_was_not_made_here_has_nobody_ask_the_database() {
        let (_dir, tickets) = Tickets::for_test().await;
        tickets.store.close().await;
        let other = sealed_text(&tickets.key, &["secret", "sign-in"], "");
        for secret in ["", "guess", &other] {
            let read = tickets.read::<String>(Kind::Session, secret).await;
            assert!(read.expect("no question").is_none(), "{secret}");
        }
        let own = sealed_text(&tickets.key, &["secret", "session"], "");
        let read = tickets.read::<String>(Kind::Session, &own).await;
        assert!(read.is_err());
    }

    #[tokio::test]
    async fn a_used_link_is_noted_once() {
        let (_dir, tickets) = Tickets::for_test().await;
        let link = tickets.seal("server");
        assert_eq!(tickets.open(&link).as_deref(), Some("server"));
        assert!(tickets.put(Kind::Used, &link, &()).await.expect("noted"));
        assert!(!tickets.put(Kind::Used, &link, &()).await.expect("known"));
    }

    #[tokio::test]
    async fn a_form_token_is_for_one_post_of_its_own_form() {
        let (_dir, tickets) = Tickets::for_test().await;
        let token = tickets.form_token("/login/a", "session");
        let used = async |page, bound, token: &str| {
            let used = tickets.use_form_token(page, bound, token).await;
            used.expect("an answer")
        };
        for (page, bound, token) in [
            ("/login/a", "session", ""),
            ("/login/a", "session", "guess"),
            ("/login/b", "session", &*token),
            ("/login/a", "another", &*token),
            ("/login/a", "", &*token),
            ("/login/a", "session", &*tickets.seal("9999999999999")),
        ] {
            assert!(!used(page, bound, token).await, "{page} {bound} {token}");
        }
        assert!(used("/login/a", "session", &token).await);
        assert!(!used("/login/a", "session", &token).await, "a second time");
        let old = sealed_text(&tickets.key, &["form", "/login/a", "session"], "1");
        assert!(!used("/login/a", "session", &old).await, "too old");
    }
}
