//! Who may speak to us at all: `Host`, `Origin`, and a key where one is needed
//! (2026-07-28 basic/transports/streamable-http "Security & Endpoint").

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use http::{HeaderMap, StatusCode, header};
use mcp::RpcError;
use model::Settings;
use sha2::{Digest, Sha256};

use super::http::PROJECT_ID;
use crate::auth::{self, Keys, Principal, Role};

/// The rules of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
    /// On every address: which of the machine's own addresses a client names is not known beforehand.
    any_ip: bool,
    keys: Arc<Keys>,
    /// Whether MCP needs a key, too: where others than this machine's users can connect, or it is wanted.
    closed: bool,
    anonymous: Arc<Principal>,
}

/// A refusal, as HTTP says it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) error: RpcError,
}

impl Guard {
    pub(crate) fn new(settings: &Settings, address: IpAddr, keys: Arc<Keys>) -> Self {
        let mut hosts: BTreeSet<String> = settings
            .allowed_hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .collect();
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        hosts.insert(match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        });
        Self {
            hosts,
            origins: settings
                .allowed_origins
                .iter()
                .map(|origin| origin.to_ascii_lowercase())
                .collect(),
            any_ip: address.is_unspecified(),
            keys,
            closed: settings.require_key || !address.is_loopback(),
            anonymous: passer_by(engine::ANONYMOUS.into()),
        }
    }

    /// Checks `Host` and `Origin`, against DNS rebinding, and that nothing is said twice that decides who asks for what:
    /// whoever is in between may have looked at the other one.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        for name in [header::HOST, header::AUTHORIZATION, PROJECT_ID] {
            if headers.get_all(&name).iter().nth(1).is_some() {
                let what = format!("header {name} is there more than once");
                return Err(Refusal {
                    status: StatusCode::BAD_REQUEST,
                    error: RpcError::new(mcp::error::INVALID_REQUEST, what),
                });
            }
        }
        let forbidden = |what: String| Refusal {
            status: StatusCode::FORBIDDEN,
            error: RpcError::new(mcp::error::INVALID_REQUEST, what),
        };
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        if !self.host_allowed(host) {
            let host: String = host.chars().take(100).collect();
            return Err(forbidden(format!(
                "Host `{host}` is not allowed here; add it to `allowed_hosts`"
            )));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let ours = is_of(&origin, host);
        if origins.next().is_some() || !(ours || self.origin_allowed(&origin)) {
            let origin: String = origin.chars().take(100).collect();
            return Err(forbidden(format!(
                "Origin `{origin}` is not allowed here; add it to `allowed_origins`"
            )));
        }
        Ok(())
    }

    fn host_allowed(&self, host: &str) -> bool {
        let Some(name) = host_name(host) else {
            return false;
        };
        if self.hosts.contains(name) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        let name = &host[..name.len()];
        let is_ip = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok();
        self.hosts.contains(name) || self.hosts.contains(&host) || (self.any_ip && is_ip)
    }

    fn origin_allowed(&self, origin: &str) -> bool {
        if self.origins.contains(origin) || self.origins.contains("*") {
            return true;
        }
        let host = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        let name = host.and_then(host_name);
        matches!(name, Some("localhost" | "127.0.0.1" | "[::1]"))
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Who asks for MCP. Everything of a session is bound to this.
    ///
    /// # Errors
    /// Without a living key where one is needed, and with one of ours that is not living everywhere.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Arc<Principal>, Refusal> {
        let Some(bearer) = bearer(headers) else {
            return if self.closed {
                Err(unauthorized(NO_KEY))
            } else {
                Ok(self.anonymous.clone())
            };
        };
        if let Some(principal) = self.keys.identify(bearer) {
            return Ok(principal);
        }
        if self.closed || bearer.starts_with(auth::PREFIX) {
            return Err(unauthorized(UNKNOWN_KEY));
        }
        let digest = Sha256::digest(bearer.as_bytes());
        let digest = hex::encode(&digest[..16]);
        Ok(passer_by(format!("bearer:{digest}").into()))
    }

    /// Whose key this is; for what always needs one.
    ///
    /// # Errors
    /// Without a living key.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Arc<Principal>, Refusal> {
        let bearer = bearer(headers).ok_or_else(|| unauthorized(NO_KEY))?;
        let principal = self.keys.identify(bearer);
        principal.ok_or_else(|| unauthorized(UNKNOWN_KEY))
    }
}

const NO_KEY: &str = "a key is needed: send `Authorization: Bearer twh_…`; the administrator's is in the data \
                      directory's `admin-token`, and `toolwharf key create` makes others";
const UNKNOWN_KEY: &str = "this key opens nothing here: it is unknown, revoked or expired; `toolwharf key create` makes a new one";

fn unauthorized(why: &str) -> Refusal {
    Refusal {
        status: StatusCode::UNAUTHORIZED,
        error: RpcError::new(mcp::error::INVALID_REQUEST, why),
    }
}

/// Somebody on this machine without a key: may use what there is.
fn passer_by(id: Arc<str>) -> Arc<Principal> {
    Arc::new(Principal {
        id,
        role: Role::Call,
        project: None,
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a page of this origin came from this very host: our own page then, for the host's name was checked. The
/// scheme may differ, since TLS may end at a proxy.
fn is_of(origin: &str, host: &str) -> bool {
    let of = origin.strip_prefix("http://");
    let of = of.or_else(|| origin.strip_prefix("https://"));
    of.is_some_and(|of| !of.is_empty() && of.eq_ignore_ascii_case(host))
}

/// The host of `host` or `host:port`; `None` where anything else is in it, such as a user or a path.
fn host_name(text: &str) -> Option<&str> {
    let end = match text.strip_prefix('[') {
        Some(inner) => inner.find(']')? + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (name, port) = text.split_at(end);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~[]:".contains(&byte);
    let has_port = match port.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    (name.bytes().all(plain) && has_port).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, host: &str, origin: Option<&str>, allowed: bool) {
        let mut settings = Settings::default();
        settings.allowed_hosts.insert("tools.example.com".into());
        settings
            .allowed_origins
            .insert("https://chat.example.com".into());
        let guard = Guard::new(&settings, address.parse().expect(address), Arc::default());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect(host));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect(origin));
        }
        assert_eq!(guard.check(&headers).is_ok(), allowed, "{host} {origin:?}");
    }

    #[test]
    fn foreign_hosts_and_origins_are_refused() {
        check("127.0.0.1", "localhost:6280", None, true);
        check(
            "127.0.0.1",
            "[::1]:6280",
            Some("http://localhost:3000"),
            true,
        );
        check(
            "127.0.0.1",
            "Tools.Example.com",
            Some("https://chat.example.com"),
            true,
        );
        check("127.0.0.1", "evil.example.com", None, false);
        check(
            "127.0.0.1",
            "localhost",
            Some("http://evil.example.com"),
            false,
        );
        check(
            "127.0.0.1",
            "localhost",
            Some("http://localhost.evil.com"),
            false,
        );
        check("127.0.0.1", "localhost", Some("null"), false);
        check("127.0.0.1", "10.0.0.7", None, false);
        check("0.0.0.0", "10.0.0.7:80", None, true);
        // Pages of our own.
        check(
            "0.0.0.0",
            "10.0.0.7:6280",
            Some("http://10.0.0.7:6280"),
            true,
        );
        check(
            "127.0.0.1",
            "Tools.example.com",
            Some("https://tools.example.com"),
            true,
        );
        check(
            "0.0.0.0",
            "10.0.0.7:6280",
            Some("http://10.0.0.7:8080"),
            false,
        );
        check("0.0.0.0", "10.0.0.7", Some("http://10.0.0.8"), false);
        check(
            "127.0.0.1",
            "evil.example.com",
            Some("http://evil.example.com"),
            false,
        );
        check("0.0.0.0", "evil.example.com", None, false);
    }

    #[test]
    fn a_host_is_a_name_and_a_port_and_nothing_else() {
        for address in ["127.0.0.1", "0.0.0.0"] {
            for host in [
                "user@localhost",
                "user:password@localhost",
                "localhost:6280:80",
                "localhost:80x",
                "localhost:x",
                "localhost:",
                "localhost:99999",
                "localhost/evil",
                "localhost evil",
                "localhost, evil.example.com",
                "localhost#evil",
                "[::1]evil",
                "[::1]:80evil",
                "[::1]@evil:80",
                "[::1",
                "::1",
                "127.0.0.1@evil.example.com",
            ] {
                check(address, host, None, false);
            }
            for origin in [
                "http://user@localhost",
                "http://localhost/path",
                "http://localhost:80x",
                "http://localhost:",
                "http://localhost@evil.example.com",
                "http://localhost:80@evil.example.com",
                "http://[::1]evil.example.com",
                "http://localhost evil",
                "localhost",
                "https://",
                "",
            ] {
                check(address, "localhost", Some(origin), false);
            }
            check(address, "[::1]:65535", Some("https://[::1]:1"), true);
        }
    }

    #[test]
    fn what_decides_is_said_once() {
        let guard = Guard::new(
            &Settings::default(),
            "127.0.0.1".parse().expect("an address"),
            Arc::default(),
        );
        for (name, value) in [
            ("host", "localhost"),
            ("authorization", "Bearer a"),
            ("x-project-id", "a"),
        ] {
            let name: http::HeaderName = name.parse().expect(name);
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "localhost".parse().expect("a host"));
            headers.insert(&name, value.parse().expect(value));
            assert!(guard.check(&headers).is_ok(), "{name}");
            headers.append(&name, value.parse().expect(value));
            let refusal = guard.check(&headers).expect_err("it is there twice");
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{name}");
            assert!(refusal.error.message.contains(name.as_str()), "{name}");
        }
    }

    #[test]
    fn who_may_ask() {
        let check =
            |address: &str, require_key: bool, bearer: Option<&str>, who: &str, key: bool| {
                let settings = Settings {
                    require_key,
                    ..Settings::default()
                };
                let keys = Keys::administrator("twh_secret");
                let guard = Guard::new(&settings, address.parse().expect(address), keys);
                let mut headers = HeaderMap::new();
                if let Some(bearer) = bearer {
                    let value = format!("Bearer {bearer}").parse().expect(bearer);
                    headers.insert(header::AUTHORIZATION, value);
                }
                let found = match guard.principal(&headers) {
                    Ok(principal) => principal
                        .id
                        .split(':')
                        .next()
                        .unwrap_or_default()
                        .to_owned(),
                    Err(refusal) => refusal.status.as_str().to_owned(),
                };
                assert_eq!(found, who, "{address} {require_key} {bearer:?}");
                assert_eq!(guard.key(&headers).is_ok(), key, "{address} {bearer:?}");
            };
        check("127.0.0.1", false, None, "anonymous", false);
        check("127.0.0.1", false, Some("theirs"), "bearer", false);
        check("127.0.0.1", false, Some("twh_other"), "401", false);
        check("127.0.0.1", false, Some("twh_secret"), "key", true);
        for (address, require_key) in [("127.0.0.1", true), ("0.0.0.0", false), ("::", false)] {
            check(address, require_key, None, "401", false);
            check(address, require_key, Some("theirs"), "401", false);
            check(address, require_key, Some("twh_other"), "401", false);
            check(address, require_key, Some("twh_secret"), "key", true);
        }
    }
}
