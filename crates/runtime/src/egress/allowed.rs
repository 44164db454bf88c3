//! The list of what may be reached.

use std::net::{IpAddr, SocketAddr};

/// Hosts that may be reached.
#[derive(Debug)]
pub(crate) struct Allowed(Vec<Entry>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    host: Host,
    /// `None`: every port.
    port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
    /// With the dot that it begins with.
    Below(String),
}

impl Allowed {
    /// # Errors
    ///
    /// What is wrong with which entry.
    pub(crate) fn parse(entries: &[String]) -> Result<Self, String> {
        entries
            .iter()
            .map(|entry| Entry::parse(entry))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The addresses, and the ports of them: `None` is every port.
    ///
    /// # Errors
    ///
    /// An entry that is a name.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn addresses(&self) -> Result<Vec<(IpAddr, Option<u16>)>, String> {
        let address = |entry: &Entry| match &entry.host {
            Host::Address(ip) => Ok((*ip, entry.port)),
            Host::Name(name) => Err(name.clone()),
            Host::Below(domain) => Err(format!("*{domain}")),
        };
        self.0.iter().map(address).collect()
    }

    pub(super) fn name(&self, name: &str, port: u16) -> bool {
        self.0.iter().any(|entry| {
            let host = match &entry.host {
                Host::Name(allowed) => allowed == name,
                Host::Below(domain) => name.len() > domain.len() && name.ends_with(domain.as_str()),
                Host::Address(_) => false,
            };
            host && entry.port.is_none_or(|allowed| allowed == port)
        })
    }

    pub(super) fn address(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.0.iter().any(|entry| {
            entry.host == Host::Address(ip)
                && entry.port.is_none_or(|allowed| allowed == address.port())
        })
    }
}

impl Entry {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is not `host`, `host:port` or `*.domain`",
                text.escape_debug()
            )
        };
        if let Ok(ip) = text.parse::<IpAddr>() {
            let host = Host::Address(ip.to_canonical());
            return Ok(Self { host, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match bare.unwrap_or(host).parse::<IpAddr>() {
            Ok(ip) => Host::Address(ip.to_canonical()),
            Err(_) => {
                let (name, below) = match host.strip_prefix('*') {
                    Some(domain) => (domain.strip_prefix('.').ok_or_else(wrong)?, true),
                    None => (host, false),
                };
                if !plausible(name) {
                    return Err(wrong());
                }
                let name = name.to_ascii_lowercase();
                if below {
                    Host::Below(format!(".{name}"))
                } else {
                    Host::Name(name)
                }
            }
        };
        Ok(Self { host, port })
    }
}

pub(super) fn plausible(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(entries: &[&str]) -> Allowed {
        let entries: Vec<_> = entries.iter().map(|&entry| entry.to_owned()).collect();
        Allowed::parse(&entries).unwrap()
    }

    #[test]
    fn names_are_allowed_as_they_are_written() {
        let list = allowed(&["api.example.com", "db.example.com:5432", "*.example.org"]);
        for (name, port, expected) in [
            ("api.example.com", 443, true),
            ("api.example.com", 80, true),
            ("x.api.example.com", 443, false),
            ("example.com", 443, false),
            ("db.example.com", 5432, true),
            ("db.example.com", 443, false),
            ("a.b.example.org", 1, true),
            ("example.org", 1, false),
            ("evilexample.org", 1, false),
        ] {
            assert_eq!(list.name(name, port), expected, "{name}:{port}");
        }
        let list = allowed(&["10.0.0.1:80", "[::1]:9", "2001:db8::1"]);
        for (address, expected) in [
            ("10.0.0.1:80", true),
            ("10.0.0.1:81", false),
            ("[::ffff:10.0.0.1]:80", true),
            ("[::1]:9", true),
            ("[2001:db8::1]:7", true),
        ] {
            assert_eq!(
                list.address(address.parse().unwrap()),
                expected,
                "{address}"
            );
        }
        for wrong in [
            "", "*", "*x.com", "a b", "a:99999", "a:", "http://a", "a/b", "*.*.a", "a..b",
        ] {
            let error = Allowed::parse(&[wrong.to_owned()]).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
