//! HTTP proxies: their URLs, and the hosts that are reached without one. Connections are opened elsewhere.

use std::{fmt, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use percent_encoding::percent_decode_str;

use crate::Hidden;

/// A proxy that is reached over plain HTTP. `Debug` and `Display` show its host and port.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    authorization: Option<Hidden>,
}

impl Proxy {
    /// Parses `http://user:password@host:port`. Only the host is required.
    ///
    /// # Errors
    /// The URL has another form. The text contains no credentials.
    pub fn parse(url: &str) -> Result<Self, String> {
        let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
        let split = url.split_once("://");
        let (scheme, rest) = split
            .filter(|(scheme, _)| is_scheme(scheme))
            .unwrap_or(("http", url));
        // A password with an unescaped `/` must not be shown as a path, so the last `@` counts.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let parsed = host_and_port(place)
            .filter(|_| scheme.eq_ignore_ascii_case("http"))
            .filter(|_| !user.is_some_and(|user| user.contains(['/', '?', '#'])));
        let Some((host, port)) = parsed else {
            return Err(format!(
                "the proxy `{}://{}` is not of the form http://host:port; proxies over TLS or SOCKS are not supported",
                scheme,
                place.escape_debug()
            ));
        };
        let authorization = user.map(|user| {
            let mut user: Vec<u8> = percent_decode_str(user).collect();
            if !user.contains(&b':') {
                user.push(b':');
            }
            Hidden::new(format!("Basic {}", STANDARD.encode(user)))
        });
        Ok(Self {
            host: host.to_ascii_lowercase(),
            port: port.unwrap_or(80),
            authorization,
        })
    }

    /// The host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of `Proxy-Authorization`.
    #[must_use]
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_ref().map(Hidden::reveal)
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Hosts that are reached without a proxy, in the format of `NO_PROXY`.
///
/// Entries are separated by commas or blanks: `*`, an address, a network (`10.0.0.0/8`), or a host name, which includes
/// the names below it (`example.com`, `.example.com` and `*.example.com` mean the same). All except `*` and networks may
/// end with a port. Names are not resolved, so an address does not cover the names that lead to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoProxy(Vec<Exempt>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exempt {
    All,
    /// Addresses whose first `bits` bits are those of `base`.
    Network {
        base: IpAddr,
        bits: u32,
        port: Option<u16>,
    },
    Domain {
        name: String,
        port: Option<u16>,
    },
}

impl NoProxy {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let entries = text.split(|c: char| c == ',' || c.is_whitespace());
        Self(entries.filter_map(Exempt::parse).collect())
    }

    /// Returns whether a host is reached without a proxy. `host` is a name or an address, which may be in brackets.
    #[must_use]
    pub fn covers(&self, host: &str, port: u16) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let host = host.to_ascii_lowercase();
        let ip = host.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        self.0.iter().any(|entry| match entry {
            Exempt::All => true,
            Exempt::Network {
                base,
                bits,
                port: only,
            } => {
                only.is_none_or(|only| only == port)
                    && ip.is_some_and(|ip| shared_bits(*base, ip) >= Some(*bits))
            }
            Exempt::Domain { name, port: only } => {
                let above = host.strip_suffix(name.as_str());
                only.is_none_or(|only| only == port)
                    && above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
        })
    }
}

impl Exempt {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::All);
        }
        if let Some((base, bits)) = entry.split_once('/')
            && let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>())
        {
            let port = None;
            return Some(Self::Network { base, bits, port });
        }
        let entry = entry.to_ascii_lowercase();
        let entry = entry.strip_prefix('*').unwrap_or(&entry);
        let entry = entry.trim_start_matches('.');
        let (host, port) = host_and_port(entry)?;
        Some(match host.parse::<IpAddr>() {
            Ok(ip) => {
                let base = ip.to_canonical();
                let bits = if base.is_ipv4() { 32 } else { 128 };
                Self::Network { base, bits, port }
            }
            Err(_) => Self::Domain {
                name: host.trim_end_matches('.').to_owned(),
                port,
            },
        })
    }
}

/// Splits `host:port`. The host is a name or an address; an IPv6 address with a port is in brackets.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<IpAddr>().ok()?;
            (
                host,
                port.strip_prefix(':')
                    .or(Some(port).filter(|port| port.is_empty()))?,
            )
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    let port = match port {
        "" => None,
        port => Some(port.parse().ok()?),
    };
    (!host.is_empty() && host.chars().all(is_plain)).then_some((host, port))
}

/// The number of leading bits that two addresses share, or `None` if they are of different kinds.
fn shared_bits(one: IpAddr, other: IpAddr) -> Option<u32> {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            Some((u32::from(one) ^ u32::from(other)).leading_zeros())
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            Some((u128::from(one) ^ u128::from(other)).leading_zeros())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u03_a_proxy_is_host_port_and_credentials() {
        for (url, shown, authorization) in [
            ("http://proxy.example:3128", "proxy.example:3128", None),
            ("proxy.example:3128/", "proxy.example:3128", None),
            ("HTTP://Proxy.example", "proxy.example:80", None),
            ("http://10.0.0.1:8/path?x", "10.0.0.1:8", None),
            ("http://me:a%40b@[::1]:8", "[::1]:8", Some("Basic bWU6YUBi")),
            ("me@proxy", "proxy:80", Some("Basic bWU6")),
        ] {
            let proxy = Proxy::parse(url).expect(url);
            assert_eq!(proxy.to_string(), shown, "{url}");
            assert_eq!(proxy.authorization(), authorization, "{url}");
            assert!(!format!("{proxy:?}").contains("Basic"), "{url}");
        }
        for (url, shown) in [
            ("https://me:hunter2@proxy", "`https://proxy`"),
            ("socks5://me:hunter2@proxy:1", "`socks5://proxy:1`"),
            ("http://me:hunter2/x@proxy:1", "`http://proxy:1`"),
            ("http://me:hunter2@proxy:http", "`http://proxy:http`"),
            ("me:hunter2://x@proxy:1", "`http://proxy:1`"),
            ("http://", "`http://`"),
            ("http://a b", "`http://a b`"),
            ("", "`http://`"),
        ] {
            let error = Proxy::parse(url).expect_err(url);
            assert!(error.contains(shown), "{url}: {error}");
            assert!(error.contains("http://host:port"), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn u03_hosts_of_no_proxy_are_reached_directly() {
        let list = NoProxy::parse(
            ".example.com, *.star.org direct:81,,10.0.0.0/8,192.0.2.1,192.0.2.2:81,fd00::/8,[::5]:81,Upper",
        );
        for (host, port, expected) in [
            ("registry.org", 443, false),
            ("example.com", 443, true),
            ("a.EXAMPLE.com.", 443, true),
            ("badexample.com", 443, false),
            ("star.org", 80, true),
            ("a.star.org", 80, true),
            ("direct", 81, true),
            ("a.direct", 81, true),
            ("direct", 82, false),
            ("10.200.0.1", 80, true),
            ("11.0.0.1", 80, false),
            ("[::ffff:10.0.0.1]", 80, true),
            ("192.0.2.1", 9, true),
            ("192.0.2.2", 81, true),
            ("192.0.2.2", 82, false),
            ("192.0.2.3", 81, false),
            ("[fd12::1]", 80, true),
            ("[fe80::1]", 80, false),
            ("::5", 81, true),
            ("[::5]", 82, false),
            ("upper", 1, true),
        ] {
            assert_eq!(list.covers(host, port), expected, "{host}:{port}");
        }
        assert!(NoProxy::parse("a,*").covers("anything", 1));
        assert!(NoProxy::parse("0.0.0.0/0").covers("192.0.2.1", 1));
        assert!(!NoProxy::parse("").covers("anything", 1));
        assert!(!NoProxy::parse(".,:81,*.,/8").covers("anything", 81));
    }
}
