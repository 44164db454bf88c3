//! Who may speak to us at all: `Host`, `Origin`, and the bearer token where one is needed
//! (2026-07-28 basic/transports/streamable-http "Security & Endpoint").

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use http::{HeaderMap, StatusCode, header};
use mcp::RpcError;
use model::Settings;
use sha2::{Digest, Sha256};

/// The rules of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
    /// On every address: which of the machine's own addresses a client names is not known beforehand.
    any_ip: bool,
    token: Arc<str>,
    /// Whether MCP needs the token, too: where others than this machine's users can connect.
    mcp_needs_token: bool,
    anonymous: Arc<str>,
}

/// A refusal, as HTTP says it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) error: RpcError,
}

impl Guard {
    pub(crate) fn new(settings: &Settings, address: IpAddr, token: Arc<str>) -> Self {
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
            token,
            mcp_needs_token: !address.is_loopback(),
            anonymous: "anonymous".into(),
        }
    }

    /// Checks `Host` and `Origin`, against DNS rebinding.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
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
        if origins.next().is_some() || !self.origin_allowed(&origin) {
            let origin: String = origin.chars().take(100).collect();
            return Err(forbidden(format!(
                "Origin `{origin}` is not allowed here; add it to `allowed_origins`"
            )));
        }
        Ok(())
    }

    fn host_allowed(&self, host: &str) -> bool {
        if self.hosts.contains(without_port(host)) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        let name = without_port(&host);
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
        host.is_some_and(|host| {
            let name = without_port(host);
            matches!(name, "localhost" | "127.0.0.1" | "[::1]")
        })
    }

    /// Who asks for MCP. Everything of a session is bound to this.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Arc<str>, Refusal> {
        let Some(bearer) = bearer(headers) else {
            return if self.mcp_needs_token {
                Err(self.unauthorized())
            } else {
                Ok(self.anonymous.clone())
            };
        };
        if self.mcp_needs_token && !self.is_token(bearer) {
            return Err(self.unauthorized());
        }
        let digest = Sha256::digest(bearer.as_bytes());
        Ok(digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
            .into())
    }

    /// Checks the administrator's token.
    pub(crate) fn administrator(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if bearer(headers).is_some_and(|bearer| self.is_token(bearer)) {
            Ok(())
        } else {
            Err(self.unauthorized())
        }
    }

    fn is_token(&self, bearer: &str) -> bool {
        // Over digests, so that the time it takes says nothing about the token.
        Sha256::digest(bearer.as_bytes()) == Sha256::digest(self.token.as_bytes())
    }

    fn unauthorized(&self) -> Refusal {
        Refusal {
            status: StatusCode::UNAUTHORIZED,
            error: RpcError::new(
                mcp::error::INVALID_REQUEST,
                "a token is needed: send `Authorization: Bearer …` with the one in the data directory's `admin-token`",
            ),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn without_port(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
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
        let guard = Guard::new(&settings, address.parse().expect(address), "t".into());
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
        check("0.0.0.0", "evil.example.com", None, false);
    }

    #[test]
    fn a_public_address_needs_the_token() {
        let guard = |address: &str| {
            Guard::new(
                &Settings::default(),
                address.parse().expect(address),
                "secret".into(),
            )
        };
        let mut headers = HeaderMap::new();
        assert!(guard("127.0.0.1").principal(&headers).is_ok());
        assert!(guard("0.0.0.0").principal(&headers).is_err());
        headers.insert(
            header::AUTHORIZATION,
            "Bearer secret".parse().expect("a header"),
        );
        assert!(guard("0.0.0.0").principal(&headers).is_ok());
        assert!(guard("127.0.0.1").administrator(&headers).is_ok());
        headers.insert(
            header::AUTHORIZATION,
            "Bearer other".parse().expect("a header"),
        );
        assert!(guard("0.0.0.0").principal(&headers).is_err());
        assert!(guard("127.0.0.1").administrator(&headers).is_err());
    }
}
