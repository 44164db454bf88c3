//! Keeps a gateway from standing behind itself, directly or through other gateways.
//!
//! A gateway says in its own requests that it is one: an empty object under [`KEY`] in `_meta`. A gateway that reads
//! this adds to the `_meta` of its answer who it is and which gateways are behind it ([`Behind`]). The asker compares
//! ([`Chain::judge`]). Everybody else sees nothing of it. Children of a gateway find the gateways above them in
//! [`VARIABLE`], so that they know it before they start servers of their own.
//!
//! A gateway's name is random for each run. It ends with a digest of that and of the installation, so that another
//! process of the same installation is recognised and nobody else learns which installation it is.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::json::{self, Object, quote};

/// The `_meta` key of requests and answers.
pub const KEY: &str = "dev.toolwharf/chain";
/// The environment variable that names the gateways above a child, the outermost first, divided by commas.
pub const VARIABLE: &str = "TOOLWHARF_CHAIN";
/// Most steps from one gateway to the next in a chain.
pub const MAX_HOPS: usize = 4;
/// Most gateways of an answer that are looked at, and the longest name of one.
const MAX_BEHIND: usize = 256;
const MAX_NAME: usize = 64;
const MAX_REASON: usize = 300;

/// A gateway's place among gateways.
#[derive(Debug, Clone)]
pub struct Chain {
    installation: Arc<str>,
    own: Arc<str>,
    /// Those that started this one, the outermost first.
    above: Arc<[String]>,
}

/// What a gateway says of itself and of those that it is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    pub gateway: String,
    /// All gateways behind it, each once.
    pub behind: Vec<String>,
    /// Gateways in the longest row from here on, itself included.
    pub depth: usize,
    /// Why it has no servers, if its place among gateways is the reason.
    pub refused: Option<String>,
}

/// Why a gateway is not connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    #[error("it is this Toolwharf itself; remove the entry")]
    Itself,
    #[error("it leads back to this Toolwharf through another one; remove the entry here or there")]
    Circle,
    #[error(
        "it is the first of {depth} Toolwharfs in a row, with {above} before it; at most {MAX_HOPS} steps lead from one to the next"
    )]
    TooLong { depth: usize, above: usize },
    #[error("{0}")]
    Refused(String),
}

impl Blocked {
    /// Whether it can come right without a change of this gateway's own configuration.
    #[must_use]
    pub fn may_change(&self) -> bool {
        matches!(self, Self::Circle | Self::TooLong { .. })
    }
}

impl Chain {
    /// `inherited` is the value of [`VARIABLE`] where a client started this gateway.
    #[must_use]
    pub fn new(installation: &str, inherited: Option<&str>) -> Self {
        let above = inherited
            .unwrap_or_default()
            .split(',')
            .filter(|name| !name.is_empty() && name.len() <= MAX_NAME)
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

    /// The value of [`VARIABLE`] for children.
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

    /// Why this gateway must have no servers, if it must not: it would start itself over and over.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        if self.above.iter().any(|name| self.is_own(name)) {
            return Some(
                "it is this Toolwharf itself: it works on the same data directory; remove the entry, or give the \
                 other one a --data-dir of its own"
                    .to_owned(),
            );
        }
        (self.above.len() > MAX_HOPS).then(|| {
            format!(
                "{} Toolwharfs have started one another; at most {MAX_HOPS} steps lead from one to the next",
                self.above.len() + 1
            )
        })
    }

    /// Whether a name is this gateway's, or that of another process of its installation.
    fn is_own(&self, name: &str) -> bool {
        *name == *self.own
            || name
                .split_once('-')
                .is_some_and(|(random, own)| mark(random, &self.installation) == own)
    }

    /// Whether a gateway that says this may be connected to.
    ///
    /// # Errors
    /// Why not.
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

    /// The member for the `_meta` of an answer, where these gateways are connected: JSON text.
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

/// The member for the `_meta` of a request that asks for [`Behind`]: JSON text.
#[must_use]
pub fn question() -> String {
    format!("\"{KEY}\":{{}}")
}

impl Behind {
    /// Reads the `_meta` of a result.
    #[must_use]
    pub fn of(result: &Object<'_>) -> Option<Self> {
        let own = result.object("_meta")?.object(KEY)?;
        let short = |text: &str| text.chars().take(MAX_REASON).collect::<String>();
        let behind = own.raw("behind").map(|array| {
            json::elements(array, 0..array.len())
                .filter_map(|span| json::as_string(&array[span]))
                .filter(|name| name.len() <= MAX_NAME)
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
                .filter(|name| name.len() <= MAX_NAME)?
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
        assert!(refused.to_string().contains("5 Toolwharfs in a row"));
        assert!(refused.may_change());
    }

    #[test]
    fn children_know_who_is_above_them() {
        let root = Chain::new("root", None);
        assert_eq!(root.refusal(), None);
        // The same installation again: it started itself.
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
