//! Session ids that contain the session's parameters, sealed with a key of the installation.
//!
//! Any gateway with the key can resume a session that another gateway opened, or that this one opened before a restart.
//! An id is bound to its principal: it cannot be opened for any other. Ids of sessions in memory are not opened.
//! Deliberately absent: which sessions have ended.

use bytes::Bytes;
use engine::Scope;
use mcp::{
    Version,
    server::{ClientInfo, SessionId, declared},
};
use model::{ProjectId, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::encryption::DataKey;
use zeroize::Zeroizing;

use auth::sealed::{opened_text, sealed_text};

/// Maximum characters of an id.
const MAX_ID_CHARS: usize = 512;
/// Seconds after which an id that is not known in memory is rejected.
const MAX_AGE_SECONDS: i64 = 7 * 24 * 60 * 60;
/// Maximum clock difference between two hosts, in seconds.
const SKEW_SECONDS: i64 = 60 * 60;
/// Maximum bytes of a client's name, and of its version.
const MAX_NAME_BYTES: usize = 48;

pub struct Seal(DataKey);

/// The contents of an id. The field names are short, since the id is sent with each request.
#[derive(Serialize, Deserialize)]
struct Inside {
    /// When the session was opened: seconds since 1970.
    t: i64,
    v: String,
    /// The client's capabilities.
    c: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    p: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<String>,
    /// The client's name and version, truncated.
    n: String,
    r: String,
    /// The address at which other replicas reach the replica that opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    o: Option<String>,
}

impl Seal {
    pub fn new(key: DataKey) -> Self {
        Self(key)
    }

    /// Makes the id of a new session.
    pub(crate) fn seal(
        &self,
        principal: &str,
        scope: &Scope,
        face: &ClientInfo,
        opener: Option<&str>,
    ) -> SessionId {
        let info: Value = serde_json::from_slice(&face.info).unwrap_or_default();
        let text = |key: &str| cut(info[key].as_str().unwrap_or_default());
        let mut inside = Inside {
            t: store::now().timestamp(),
            v: face.version.to_string(),
            c: declared::to_bits(&face.capabilities),
            p: scope.project.as_ref().map(ToString::to_string),
            s: scope.server.as_ref().map(ToString::to_string),
            n: text("name"),
            r: text("version"),
            o: opener.map(str::to_owned),
        };
        let id = self.sealed(principal, &inside);
        if id.len() <= MAX_ID_CHARS {
            return id.into();
        }
        inside.n = String::new();
        inside.r = String::new();
        self.sealed(principal, &inside).into()
    }

    fn sealed(&self, principal: &str, inside: &Inside) -> String {
        let text = serde_json::to_string(inside).expect("it has no maps");
        sealed_text(&self.0, &["session", principal], &text)
    }

    fn opened_text(&self, place: &[&str], id: &str) -> Option<Zeroizing<String>> {
        if id.len() > MAX_ID_CHARS {
            return None;
        }
        let (text, _) = opened_text(&self.0, place, id.as_bytes())?;
        Some(text)
    }

    fn inside(&self, principal: &str, id: &str) -> Option<Inside> {
        let text = self.opened_text(&["session", principal], id)?;
        serde_json::from_str(&text).ok()
    }

    /// The replica that opened a session of this principal; empty if the id names none.
    pub(crate) fn opener(&self, principal: &str, id: &str) -> Option<String> {
        let inside = self.inside(principal, id)?;
        Some(inside.o.unwrap_or_default())
    }

    /// Makes the id of an HTTP+SSE session. It contains only the replica that opened it.
    pub(crate) fn seal_sse(&self, principal: &str, opener: &str) -> SessionId {
        sealed_text(&self.0, &["sse", principal], opener).into()
    }

    /// The replica that opened an HTTP+SSE session.
    pub(crate) fn sse_opener(&self, principal: &str, id: &str) -> Option<String> {
        let opener = self.opened_text(&["sse", principal], id)?;
        Some(opener.to_string())
    }

    /// Seals the address of the replica that holds a call or task, for use in handles ([`engine::place_of`]).
    pub fn seal_place(&self, address: &str) -> String {
        sealed_text(&self.0, &["place"], address)
    }

    /// The replica that a handle names.
    pub(crate) fn place(&self, sealed: &str) -> Option<String> {
        let address = self.opened_text(&["place"], sealed)?;
        Some(address.to_string())
    }

    /// Opens an id; `None` if it was not sealed here for this principal, or is too old.
    pub(crate) fn open(&self, principal: &str, id: &str) -> Option<(Scope, ClientInfo)> {
        let inside = self.inside(principal, id)?;
        let age = store::now().timestamp() - inside.t;
        if !(-SKEW_SECONDS..=MAX_AGE_SECONDS).contains(&age) {
            return None;
        }
        let scope = Scope {
            project: inside.p.map(|id| ProjectId::parse(&id)).transpose().ok()?,
            server: inside
                .s
                .map(|name| ServerName::parse(&name))
                .transpose()
                .ok()?,
            ..Scope::default()
        };
        let info = json!({"name": inside.n, "version": inside.r}).to_string();
        let face = ClientInfo {
            version: Version::parse(&inside.v)?,
            info: Bytes::from(info),
            capabilities: declared::of_bits(inside.c),
            is_gateway: false,
        };
        Some((scope, face))
    }
}

/// Truncates a text to `MAX_NAME_BYTES`, without control characters.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_NAME_BYTES);
    let plain = text[..end].chars().filter(|char| !char.is_control());
    plain.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn face(name: &str) -> ClientInfo {
        ClientInfo {
            version: Version::V2025_06_18,
            info: json!({"name": name, "version": "1.2", "title": "x"})
                .to_string()
                .into(),
            capabilities: Bytes::from_static(br#"{"elicitation":{}}"#),
            is_gateway: false,
        }
    }

    #[test]
    fn an_id_opens_for_its_principal_only_and_unchanged() {
        let seal = Seal::new(DataKey::random());
        let scope = Scope {
            project: ProjectId::parse("p").ok(),
            ..Scope::default()
        };
        let id = seal.seal("ann", &scope, &face("client"), None);
        let (opened, read) = seal.open("ann", id.as_str()).expect("its own");
        assert_eq!(opened, scope);
        assert_eq!(read.version, Version::V2025_06_18);
        assert_eq!(read.capabilities, r#"{"elicitation":{}}"#);
        assert_eq!(read.info, r#"{"name":"client","version":"1.2"}"#);
        assert!(seal.open("bob", id.as_str()).is_none());
        assert!(
            Seal::new(DataKey::random())
                .open("ann", id.as_str())
                .is_none()
        );
        for at in 0..id.as_str().len() {
            let mut changed = id.as_str().to_owned().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(seal.open("ann", &changed).is_none(), "{at}");
            assert!(seal.open("ann", &id.as_str()[..at]).is_none(), "{at}");
        }
        assert_ne!(seal.seal("ann", &scope, &face("client"), None), id);
    }

    #[test]
    fn an_id_is_short_whatever_the_client_is_called() {
        let seal = Seal::new(DataKey::random());
        let name = "n".repeat(64);
        let scope = Scope {
            project: ProjectId::parse(&name).ok(),
            server: ServerName::parse(&name).ok(),
            ..Scope::default()
        };
        assert!(scope.project.is_some() && scope.server.is_some());
        for name in ["\"".repeat(1000), "ü".repeat(1000), "\n".repeat(1000)] {
            let id = seal.seal("ann", &scope, &face(&name), None);
            assert!(id.as_str().len() <= MAX_ID_CHARS);
            assert_eq!(
                seal.open("ann", id.as_str()).map(|(own, _)| own),
                Some(scope.clone())
            );
        }
    }

    #[test]
    fn an_id_has_its_time() {
        let seal = Seal::new(DataKey::random());
        let now = store::now().timestamp();
        for (t, opens) in [
            (now - MAX_AGE_SECONDS + 60, true),
            (now - MAX_AGE_SECONDS - 60, false),
            (now + SKEW_SECONDS - 60, true),
            (now + SKEW_SECONDS + 60, false),
        ] {
            let inside = Inside {
                t,
                v: "2025-11-25".into(),
                c: 0,
                p: None,
                s: None,
                n: String::new(),
                r: String::new(),
                o: None,
            };
            let id = seal.sealed("ann", &inside);
            assert_eq!(seal.open("ann", &id).is_some(), opens, "{}", t - now);
        }
    }
}
