//! Loop detection: prevents a gateway from being its own upstream, directly or through other gateways.
//!
//! A gateway identifies itself in its requests with an empty object under [`KEY`] in `_meta`. A gateway that receives
//! one adds its name and the gateways behind it ([`Behind`]) to the `_meta` of the response. The caller checks them
//! ([`Chain::judge`]). Other clients and servers never see this exchange. A child process finds the gateways above it
//! in [`VARIABLE`], so it knows them before it starts any servers.
//!
//! A gateway's name is random for each run, followed by a digest of the random part and the installation. Other
//! processes of the same installation can recognise the name; it does not reveal the installation to anyone else.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::json::{self, Object, quote};

/// The `_meta` key in requests and responses.
pub const KEY: &str = "dev.toolwharf/chain";
/// The environment variable with the names of the gateways above a child, outermost first, separated by commas.
pub const VARIABLE: &str = "TOOLWHARF_CHAIN";
/// Maximum number of hops in a chain of gateways.
pub const MAX_HOPS: usize = 4;
/// Limits on the gateways read from one response: how many, and the bytes of each name.
const MAX_BEHIND: usize = 256;
const MAX_NAME_BYTES: usize = 64;
const MAX_REASON_CHARS: usize = 300;

/// A gateway's position in the chain of gateways.
#[derive(Debug, Clone)]
pub struct Chain {
    installation: Arc<str>,
    own: Arc<str>,
    /// The gateways that started this one, outermost first.
    above: Arc<[String]>,
}

/// A gateway's report about itself and the gateways behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    pub gateway: String,
    /// All gateways behind it, without duplicates.
    pub behind: Vec<String>,
    /// Length of the longest chain from this gateway on, including itself.
    pub depth: usize,
    /// Why the gateway runs no servers, if its position in the chain is the reason.
    pub refused: Option<String>,
}

/// Why a connection to a gateway is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    #[error("it is this Toolwharf itself; remove the entry")]
    Itself,
    #[error(
        "it leads back to this Toolwharf through another one; remove the entry in one of the two"
    )]
    Circle,
    #[error(
        "it leads to a chain of {depth} Toolwharfs, behind {above} others; at most {MAX_HOPS} hops are allowed; \
         remove the entry"
    )]
    TooLong { depth: usize, above: usize },
    #[error("{0}")]
    Refused(String),
}

impl Blocked {
    /// Returns true if the problem can disappear without a change to this gateway's configuration.
    #[must_use]
    pub fn may_change(&self) -> bool {
        matches!(self, Self::Circle | Self::TooLong { .. })
    }
}

impl Chain {
    /// `inherited` is the value of [`VARIABLE`] if this gateway was started by another one.
    #[must_use]
    pub fn new(installation: &str, inherited: Option<&str>) -> Self {
        let above = inherited
            .unwrap_or_default()
            .split(',')
            .filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
            .take(MAX_BEHIND)
            .map(str::to_owned)
            .collect();
        let random = hex::encode(rand::random::<[u8; 8]>());
        let mark = mark(&random, installation);
        Self {
            own: format!("{random}-{mark}").into(),
            installation: installation.into(),
            above,
        }
    }

    /// The value of [`VARIABLE`] for child processes.
    #[must_use]
    pub fn for_children(&self) -> String {
        let mut all = String::new();
        for name in self.above.iter() {
            all.push_str(name);
            all.push(',');
        }
        all.push_str(&self.own);
        all
    }

    /// Why this gateway must not run servers: it would start itself repeatedly, or the chain is too long.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        if self.above.iter().any(|name| self.is_own(name)) {
            return Some(
                "it is this Toolwharf itself: it uses the same data directory; remove the entry, or start the \
                 other Toolwharf with another --data-dir"
                    .to_owned(),
            );
        }
        (self.above.len() > MAX_HOPS).then(|| {
            format!(
                "{} Toolwharfs started one another; at most {MAX_HOPS} hops are allowed",
                self.above.len() + 1
            )
        })
    }

    /// Returns true if `name` is this gateway or another process of its installation.
    fn is_own(&self, name: &str) -> bool {
        *name == *self.own
            || name
                .split_once('-')
                .is_some_and(|(random, own)| mark(random, &self.installation) == own)
    }

    /// Checks whether this gateway may connect to `other`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn judge(&self, other: &Behind) -> Result<(), Blocked> {
        if self.is_own(&other.gateway) {
            return Err(Blocked::Itself);
        }
        if let Some(why) = &other.refused {
            return Err(Blocked::Refused(why.clone()));
        }
        if other.behind.iter().any(|name| self.is_own(name)) {
            return Err(Blocked::Circle);
        }
        if self.above.len() + other.depth > MAX_HOPS {
            return Err(Blocked::TooLong {
                depth: other.depth,
                above: self.above.len() + 1,
            });
        }
        Ok(())
    }

    /// The `_meta` member for a response, given the connected gateways: JSON text.
    pub fn answer<'b>(&self, connected: impl IntoIterator<Item = &'b Behind>) -> String {
        let mut names: Vec<&str> = Vec::new();
        let mut depth = 0;
        for next in connected {
            depth = depth.max(next.depth);
            names.push(&next.gateway);
            names.extend(next.behind.iter().map(String::as_str));
        }
        names.sort_unstable();
        names.dedup();
        names.truncate(MAX_BEHIND);
        let behind: Vec<String> = names.into_iter().map(quote).collect();
        let mut text = format!(
            "\"{KEY}\":{{\"gateway\":{},\"behind\":[{}],\"depth\":{}",
            quote(&self.own),
            behind.join(","),
            depth + 1
        );
        if let Some(why) = self.refusal() {
            text.push_str(&format!(",\"refused\":{}", quote(&why)));
        }
        text.push('}');
        text
    }
}

/// The `_meta` member of a request that asks for [`Behind`]: JSON text.
#[must_use]
pub fn question() -> String {
    format!("\"{KEY}\":{{}}")
}

impl Behind {
    /// Reads the `_meta` of a result.
    #[must_use]
    pub fn of(result: &Object<'_>) -> Option<Self> {
        let own = result.object("_meta")?.object(KEY)?;
        let short = |text: &str| text.chars().take(MAX_REASON_CHARS).collect::<String>();
        let behind = own.raw("behind").map(|array| {
            json::elements(array, 0..array.len())
                .filter_map(|span| json::as_string(&array[span]))
                .filter(|name| name.len() <= MAX_NAME_BYTES)
                .take(MAX_BEHIND)
                .map(std::borrow::Cow::into_owned)
                .collect()
        });
        let depth = own
            .raw("depth")
            .and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
        Some(Self {
            gateway: own
                .string("gateway")
                .filter(|name| name.len() <= MAX_NAME_BYTES)?
                .into_owned(),
            behind: behind.unwrap_or_default(),
            depth: depth.unwrap_or(1),
            refused: own.string("refused").map(|why| short(&why)),
        })
    }
}

fn mark(random: &str, installation: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(random);
    hash.update([0]);
    hash.update(installation);
    hex::encode(&hash.finalize()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(chain: &Chain, connected: &[Behind]) -> Behind {
        let result = format!("{{\"_meta\":{{{}}}}}", chain.answer(connected));
        Behind::of(&Object::of(result.as_bytes()).expect("an object")).expect("what was said")
    }

    #[test]
    fn a_gateway_knows_itself_and_its_installation() {
        let one = Chain::new("install", None);
        let other_process = Chain::new("install", None);
        let stranger = Chain::new("elsewhere", None);
        assert_eq!(one.judge(&said(&one, &[])), Err(Blocked::Itself));
        assert_eq!(one.judge(&said(&other_process, &[])), Err(Blocked::Itself));
        assert_eq!(one.judge(&said(&stranger, &[])), Ok(()));
        assert!(!said(&one, &[]).gateway.contains("install"));
    }

    #[test]
    fn a_circle_over_others_is_seen() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Chain::new(name, None));
        let behind_b = said(&b, &[said(&a, &[])]);
        assert_eq!(behind_b.depth, 2);
        let behind_c = said(&c, &[behind_b]);
        assert_eq!(a.judge(&behind_c), Err(Blocked::Circle));
        assert_eq!(Chain::new("d", None).judge(&behind_c), Ok(()));
    }

    #[test]
    fn a_row_has_an_end() {
        let mut last = said(&Chain::new("0", None), &[]);
        for at in 1..=MAX_HOPS {
            let next = Chain::new(&at.to_string(), None);
            assert_eq!(next.judge(&last), Ok(()), "{at}");
            last = said(&next, &[last]);
        }
        let one_more = Chain::new("more", None);
        let refused = one_more.judge(&last).expect_err("too long");
        assert!(refused.to_string().contains("a chain of 5 Toolwharfs"));
        assert!(refused.may_change());
    }

    #[test]
    fn children_know_who_is_above_them() {
        let root = Chain::new("root", None);
        assert_eq!(root.refusal(), None);
        // A second process of the same installation: the gateway started itself.
        let again = Chain::new("root", Some(&root.for_children()));
        assert!(again.refusal().is_some_and(|why| why.contains("itself")));
        assert!(matches!(
            root.judge(&said(&again, &[])),
            Err(Blocked::Itself)
        ));
        let mut above = root.for_children();
        for at in 1..=MAX_HOPS {
            let child = Chain::new(&at.to_string(), Some(&above));
            assert_eq!(child.refusal(), None, "{at}");
            above = child.for_children();
        }
        let last = Chain::new("last", Some(&above));
        assert!(
            last.refusal()
                .is_some_and(|why| why.contains("6 Toolwharfs"))
        );
        let word = said(&last, &[]);
        assert!(matches!(
            Chain::new("x", None).judge(&word),
            Err(Blocked::Refused(_))
        ));
    }

    #[test]
    fn nonsense_is_nothing() {
        for text in [
            r#"{}"#,
            r#"{"_meta":{}}"#,
            r#"{"_meta":{"dev.toolwharf/chain":1}}"#,
            r#"{"_meta":{"dev.toolwharf/chain":{"gateway":1}}}"#,
        ] {
            assert_eq!(
                Behind::of(&Object::of(text.as_bytes()).unwrap()),
                None,
                "{text}"
            );
        }
    }
}
