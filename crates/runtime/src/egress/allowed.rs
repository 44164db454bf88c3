//! The allow-list.

use std::net::{IpAddr, SocketAddr};

use model::Proxy;
use parking_lot::Mutex;

use super::parent::Parents;

/// Limit for the refused destinations that are kept for an error message.
const MAX_REFUSED: usize = 8;

/// Hosts that may be reached.
#[derive(Debug)]
pub struct Allowed {
    entries: Vec<Entry>,
    /// True if names may also resolve to private and loopback addresses.
    private: bool,
    /// The list's name in refusals, such as "the server's `network.allow`".
    list: &'static str,
    /// Proxies that connections go through.
    parents: Parents,
    /// The first [`MAX_REFUSED`] requested destinations that are not on the list.
    refused: Mutex<Vec<String>>,
    /// The last failure to reach a host that is on the list.
    failure: Mutex<Option<String>>,
}

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
    /// All names that end with this text, which begins with a dot.
    Below(String),
}

impl Allowed {
    /// # Errors
    ///
    /// Says which entry is invalid, and why.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        entries
            .iter()
            .map(|entry| Entry::parse(entry))
            .collect::<Result<_, _>>()
            .map(|entries| Self {
                entries,
                private: false,
                list: "the server's `network.allow`",
                parents: Parents::default(),
                refused: Mutex::default(),
                failure: Mutex::default(),
            })
    }

    /// A list of exactly these hosts and ports, reached through `parents`. The operator of Toolwharf configured them,
    /// so a name may resolve to a private or loopback address.
    pub(crate) fn configured(
        places: impl IntoIterator<Item = (String, u16)>,
        list: &'static str,
        parents: Parents,
    ) -> Self {
        let entry = |(host, port): (String, u16)| Entry {
            host: match host.parse::<IpAddr>() {
                Ok(ip) => Host::Address(ip.to_canonical()),
                Err(_) => Host::Name(host.to_ascii_lowercase()),
            },
            port: Some(port),
        };
        Self {
            entries: places.into_iter().map(entry).collect(),
            private: true,
            list,
            parents,
            refused: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Why a host on the list could not be reached, if that happened.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(super) fn failed(&self, why: &str) {
        *self.failure.lock() = Some(why.to_owned());
    }

    /// The destinations that were refused, as `host:port`.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().clone()
    }

    /// Records a refused destination. Returns the reason.
    pub(super) fn refuse(&self, place: &str) -> String {
        let mut refused = self.refused.lock();
        if refused.len() < MAX_REFUSED && !refused.iter().any(|known| known == place) {
            refused.push(place.to_owned());
        }
        format!("`{place}` is not in {}", self.list)
    }

    pub(super) fn private(&self) -> bool {
        self.private
    }

    pub(super) fn parent(&self, host: &str, port: u16, tunnel: bool) -> Option<&Proxy> {
        self.parents.find(host, port, tunnel)
    }

    /// Returns the addresses with their ports. `None` means every port.
    ///
    /// # Errors
    ///
    /// The first entry that is a name.
    pub fn addresses(&self) -> Result<Vec<(IpAddr, Option<u16>)>, String> {
        let address = |entry: &Entry| match &entry.host {
            Host::Address(ip) => Ok((*ip, entry.port)),
            Host::Name(name) => Err(name.clone()),
            Host::Below(domain) => Err(format!("*{domain}")),
        };
        self.entries.iter().map(address).collect()
    }

    pub(super) fn name(&self, name: &str, port: u16) -> bool {
        self.entries.iter().any(|entry| {
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
        self.entries.iter().any(|entry| {
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
