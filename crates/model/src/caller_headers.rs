//! Header values that a server's entry takes from its callers: `"X-Tenant": "${header:X-Tenant}"`.
//!
//! Invariants: only named headers are passed on, and never one that [`never_passed`] lists. `Debug` shows names and no
//! values. Deliberately absent: HTTP, and how entries are read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// Maximum length of a caller's value, in bytes.
pub const MAX_HEADER_VALUE_BYTES: usize = 8 << 10;

/// A header value with parts that each caller supplies.
#[derive(Clone, PartialEq, Eq)]
pub struct HeaderTemplate(pub Vec<HeaderPart>);

#[derive(Clone, PartialEq, Eq)]
pub enum HeaderPart {
    /// May contain secrets that were filled in.
    Text(String),
    /// The value of the caller's header with this name, in lower case. `default` replaces a missing or empty one.
    Caller {
        name: String,
        default: Option<String>,
    },
}

/// A caller's values of the headers that entries name, by header name in lower case. None of them is empty. Cheap to
/// clone.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CallerValues(Option<Arc<BTreeMap<String, String>>>);

impl HeaderTemplate {
    /// The callers' headers that it needs or uses.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts().map(|(name, _)| name)
    }

    /// The callers' headers without which it has no value.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        let required = self.parts().filter(|(_, default)| default.is_none());
        required.map(|(name, _)| name)
    }

    fn parts(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().filter_map(|part| match part {
            HeaderPart::Text(_) => None,
            HeaderPart::Caller { name, default } => Some((name.as_str(), default.as_deref())),
        })
    }

    /// The header's value for a caller. `None`: the caller lacks a required header.
    #[must_use]
    pub fn fill(&self, values: &CallerValues) -> Option<String> {
        let parts = self.0.iter().map(|part| match part {
            HeaderPart::Text(text) => Some(text.as_str()),
            HeaderPart::Caller { name, default } => values.get(name).or(default.as_deref()),
        });
        parts.collect()
    }

    /// The template as it is written in an entry.
    #[must_use]
    pub fn source(&self) -> String {
        let part = |part: &HeaderPart| match part {
            HeaderPart::Text(text) => text.clone(),
            HeaderPart::Caller { name, default } => match default {
                Some(default) => format!("${{header:{name}:-{default}}}"),
                None => format!("${{header:{name}}}"),
            },
        };
        self.0.iter().map(part).collect()
    }
}

impl fmt::Debug for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl CallerValues {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(String::as_str)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().flat_map(|all| all.iter());
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The values of these headers only.
    #[must_use]
    pub fn of(&self, names: &BTreeSet<&str>) -> Self {
        let named = self.iter().filter(|(name, _)| names.contains(name));
        named
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

impl FromIterator<(String, String)> for CallerValues {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(values: I) -> Self {
        let values = values.into_iter().filter(|(_, value)| !value.is_empty());
        let all: BTreeMap<String, String> = values.collect();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }
}

impl fmt::Debug for CallerValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.iter().map(|(name, _)| name);
        f.debug_set().entries(names).finish()
    }
}

/// Why a header of callers is never passed on, for a name in lower case. `None`: an entry may name it.
#[must_use]
pub fn never_passed(name: &str) -> Option<&'static str> {
    let is_of_connection = matches!(
        name,
        "connection"
            | "keep-alive"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "host"
            | "expect"
    );
    Some(match name {
        "authorization" => "it holds the caller's key or token for this gateway",
        "cookie" => "it may hold a sign-in to this gateway",
        _ if is_of_connection || name.starts_with("proxy-") => {
            "it belongs to the connection between the caller and this gateway"
        }
        _ if name.starts_with("mcp-") || name == "last-event-id" => {
            "it belongs to the MCP conversation between the caller and this gateway"
        }
        _ if name.starts_with("content-") => "it describes the body of the caller's request",
        _ if name.starts_with("toolwharf-") => "it is used between gateways",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[(&str, &str)]) -> CallerValues {
        let all = all.iter();
        all.map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn a_template_is_filled_for_each_caller() {
        let caller = |name: &str, default: Option<&str>| HeaderPart::Caller {
            name: name.to_owned(),
            default: default.map(str::to_owned),
        };
        let template = HeaderTemplate(vec![
            HeaderPart::Text("Bearer ".to_owned()),
            caller("x-token", None),
            caller("x-zone", Some("eu")),
        ]);
        for (given, expect) in [
            (values(&[("x-token", "a")]), Some("Bearer aeu")),
            (
                values(&[("x-token", "a"), ("x-zone", "us")]),
                Some("Bearer aus"),
            ),
            // An empty value counts as missing.
            (
                values(&[("x-token", "a"), ("x-zone", "")]),
                Some("Bearer aeu"),
            ),
            (values(&[("x-token", "")]), None),
            (values(&[("x-zone", "us")]), None),
        ] {
            assert_eq!(template.fill(&given).as_deref(), expect, "{given:?}");
        }
        assert_eq!(template.required().collect::<Vec<_>>(), ["x-token"]);
        assert_eq!(
            template.source(),
            "Bearer ${header:x-token}${header:x-zone:-eu}"
        );
    }

    #[test]
    fn values_are_not_shown() {
        let given = values(&[("x-token", "hunter2"), ("x-other", "hunter3")]);
        let template = HeaderTemplate(vec![HeaderPart::Text("hunter2".to_owned())]);
        let shown = format!("{given:?} {template:?}");
        assert!(!shown.contains("hunter"), "{shown}");
        assert!(shown.contains("x-token"), "{shown}");
        let one = given.of(&BTreeSet::from(["x-other"]));
        assert_eq!(one, values(&[("x-other", "hunter3")]));
        assert!(given.of(&BTreeSet::from(["x-more"])).is_empty());
    }

    #[test]
    fn what_is_the_gateways_own_is_never_passed() {
        for name in [
            "authorization",
            "cookie",
            "host",
            "connection",
            "transfer-encoding",
            "proxy-authorization",
            "mcp-session-id",
            "content-type",
        ] {
            assert!(never_passed(name).is_some(), "{name}");
        }
        for name in ["x-tenant", "x-upstream-authorization", "accept-language"] {
            assert_eq!(never_passed(name), None, "{name}");
        }
    }
}
