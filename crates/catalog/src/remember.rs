//! Data remembered about a server between runs: its catalog, as text, and the definitions of its tools when they
//! were first seen.
//!
//! A server that turns malicious keeps its tool names and changes only their definitions. A tool whose definition
//! differs from the approved one can therefore be kept back until a person approves the new one ([`Pinning`]).
//! Deliberately absent: where this is stored.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use mcp::{
    Era,
    client::ServerInfo,
    json::{self, Object, as_string, quote},
};
use model::{NativeName, Pinning};

use crate::{
    catalog::{Catalog, Item, List},
    kind::ListKind,
};

/// Size limit of a catalog snapshot. A larger one is not kept.
const MAX_SNAPSHOT_BYTES: usize = 16 << 20;

impl Catalog {
    /// The catalog as JSON text. `None` if it is too large to keep or nothing is known yet.
    #[must_use]
    pub fn to_snapshot(&self) -> Option<String> {
        let info = self.info.as_ref()?;
        let era = match info.era {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        };
        let mut out = format!("{{\"era\":\"{era}\",\"result\":").into_bytes();
        out.extend_from_slice(&info.result);
        for kind in ListKind::ALL {
            out.extend_from_slice(format!(",\"{}\":[", kind.key()).as_bytes());
            for (at, raw) in self.of(kind).raws().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(raw);
            }
            out.push(b']');
            if out.len() > MAX_SNAPSHOT_BYTES {
                return None;
            }
        }
        if self.takes_turns {
            out.extend_from_slice(b",\"takesTurns\":true");
        }
        out.push(b'}');
        String::from_utf8(out).ok()
    }

    /// Parses a snapshot. `None` if the text is not a valid snapshot.
    #[must_use]
    pub fn from_snapshot(text: &str, max_depth: usize) -> Option<Self> {
        let text = Bytes::copy_from_slice(text.as_bytes());
        json::validate(&text, max_depth.saturating_add(2)).ok()?;
        let object = Object::of(&text)?;
        let era = match object.string("era").as_deref() {
            Some("legacy") => Era::Legacy,
            Some("modern") => Era::Modern,
            _ => return None,
        };
        let result = text.slice(object.find("result")?);
        let mut catalog = Self::default();
        catalog.info = Some(ServerInfo::remembered(era, result).ok()?);
        catalog.takes_turns = object.raw("takesTurns") == Some(b"true");
        for kind in ListKind::ALL {
            let items = json::elements(&text, object.find(kind.key())?);
            let items = items.map(|span| text.slice(span));
            catalog.set(kind, List::of(kind, items, false));
        }
        Some(catalog)
    }
}

/// The approved definition of a tool, and one that awaits approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub digest: Arc<str>,
    pub pending: Option<Arc<str>>,
    /// Digest of the configuration under which the server last listed the tool. Empty: unknown.
    pub config: Arc<str>,
    /// Why the definition could not be saved. While this is set, a change would go unnoticed after the next start.
    pub unkept: Option<Arc<str>>,
}

/// The pinned definitions of one server's tools.
pub type Pins = BTreeMap<NativeName, Pin>;

/// A definition to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub tool: NativeName,
    pub digest: Arc<str>,
    /// JSON text.
    pub definition: String,
    /// Digest of the server's configuration.
    pub config: Arc<str>,
    pub news: News,
}

/// How a definition compares with the pinned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The tool is new.
    Tool,
    /// The definition equals the approved one. The configuration has changed since the tool was last listed, or another
    /// definition was listed in between.
    Same,
    /// The definition differs, but so does the server's configuration: it counts as approved.
    Configured,
    /// The definition differs although the configuration is the same.
    Words,
}

/// Compares what a server lists under its configuration with the approved definitions. Returns the current pins and the
/// definitions to save.
#[must_use]
pub fn compare(
    known: &Pins,
    tools: &[Item],
    config: &Arc<str>,
    policy: Pinning,
) -> (Pins, Vec<Seen>) {
    let mut pins = known.clone();
    let mut seen = Vec::new();
    if policy == Pinning::Off {
        return (pins, seen);
    }
    for item in tools {
        let tool = NativeName::new(item.native.clone());
        let digest: Arc<str> = definition_digest(&item.raw).into();
        let fresh = || Pin {
            digest: digest.clone(),
            pending: None,
            config: config.clone(),
            unkept: None,
        };
        let news = match pins.get_mut(&tool) {
            None if item.native.len() > store::MAX_KEY => {
                let why = format!("the tool's name is longer than {} bytes", store::MAX_KEY);
                let unkept = Some(why.into());
                pins.insert(tool, Pin { unkept, ..fresh() });
                continue;
            }
            None => {
                pins.insert(tool.clone(), fresh());
                News::Tool
            }
            Some(pin) if item.native.len() > store::MAX_KEY => {
                pin.digest = digest;
                continue;
            }
            Some(pin) if pin.digest == digest => {
                // The server lists the approved definition again, so nothing awaits approval.
                if pin.pending.take().is_none() && pin.config == *config {
                    continue;
                }
                pin.config = config.clone();
                News::Same
            }
            Some(pin) if !pin.config.is_empty() && pin.config != *config => {
                *pin = Pin {
                    unkept: pin.unkept.take(),
                    ..fresh()
                };
                News::Configured
            }
            Some(pin) => {
                let is_known = pin.pending.as_ref() == Some(&digest) && pin.config == *config;
                if is_known {
                    continue;
                }
                pin.pending = Some(digest.clone());
                pin.config = config.clone();
                News::Words
            }
        };
        seen.push(Seen {
            tool,
            digest,
            definition: String::from_utf8_lossy(&item.raw).into_owned(),
            config: config.clone(),
            news,
        });
    }
    (pins, seen)
}

/// The hash of a tool's definition without `_meta`. The order of keys does not matter.
#[must_use]
pub fn definition_digest(raw: &[u8]) -> String {
    let mut canonical = String::with_capacity(raw.len());
    canonical_value(raw, true, &mut canonical);
    model::sha256_hex(canonical)
}

/// Sorts keys, drops white space, and writes each string in one form. The depth is bounded because the text was
/// validated.
fn canonical_value(raw: &[u8], top: bool, out: &mut String) {
    match raw.first() {
        Some(b'{') => {
            let Some(object) = Object::of(raw) else {
                return;
            };
            let mut members: Vec<(Cow<'_, str>, json::Member)> = object
                .members()
                .map(|member| (json::unescape(&raw[member.key.clone()]), member))
                .filter(|(key, _)| !(top && key == "_meta"))
                .collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            out.push('{');
            for (_, member) in members {
                let (key, value) = (member.key, &raw[member.value]);
                out.push_str(&canonical_string(&raw[key.start - 1..key.end + 1]));
                out.push(':');
                canonical_value(value, false, out);
                out.push(',');
            }
            out.push('}');
        }
        Some(b'[') => {
            out.push('[');
            for span in json::elements(raw, 0..raw.len()) {
                canonical_value(&raw[span], false, out);
                out.push(',');
            }
            out.push(']');
        }
        Some(b'"') => out.push_str(&canonical_string(raw)),
        _ => out.push_str(&String::from_utf8_lossy(raw)),
    }
}

/// A string in one form. One with a lone surrogate stays as it is written.
fn canonical_string(raw: &[u8]) -> String {
    let text = as_string(raw).map(|text| quote(&text));
    text.unwrap_or_else(|| String::from_utf8_lossy(raw).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(texts: &[&'static str]) -> Vec<Item> {
        let texts = texts.iter();
        let raws = texts.map(|text| Bytes::from_static(text.as_bytes()));
        List::of(ListKind::Tools, raws, false).items.to_vec()
    }

    #[test]
    fn the_spelling_of_a_definition_does_not_matter() {
        let same = [
            r#"{"name":"a","inputSchema":{"x":[1,"ü"],"y":{}}}"#,
            r#"{ "inputSchema" : {"y":{ },"x": [ 1, "\u00fc" ]}, "na\u006de":"a" }"#,
            r#"{"name":"a","inputSchema":{"x":[1,"ü"],"y":{}},"_meta":{"n":1}}"#,
        ];
        for text in same {
            assert_eq!(
                definition_digest(text.as_bytes()),
                definition_digest(same[0].as_bytes()),
                "{text}"
            );
        }
        for text in [
            r#"{"name":"a","inputSchema":{"x":["ü",1],"y":{}}}"#,
            r#"{"name":"a","inputSchema":{"x":[1,"u"],"y":{}}}"#,
            r#"{"name":"a","inputSchema":{"x":[1,"ü"],"y":{"_meta":1}}}"#,
            r#"{"name":"a","inputSchema":{"x":[1,"ü"]},"y":{}}"#,
            r#"{"name":"a","inputSchema":{"x":[1,"\ud83d"],"y":{}}}"#,
            r#"{"name":"a","inputSchema":{"x":[1,""],"y":{}}}"#,
        ] {
            assert_ne!(
                definition_digest(text.as_bytes()),
                definition_digest(same[0].as_bytes()),
                "{text}"
            );
        }
    }

    /// Halves of emoji are part of a definition, too.
    #[test]
    fn a_lone_surrogate_is_not_left_out_of_a_digest() {
        let digest = |text: &str| definition_digest(text.as_bytes());
        let one = digest(r#"{"a":"x\ud83d","\ud83d":1}"#);
        for other in [
            r#"{"a":"x\ud83e","\ud83d":1}"#,
            r#"{"a":"x\ud83d","\ud83e":1}"#,
            r#"{"a":"x","\ud83d":1}"#,
            r#"{"a":"x\\ud83d","\ud83d":1}"#,
            r#"{"a":"x\ufffd","\ud83d":1}"#,
        ] {
            assert_ne!(digest(other), one, "{other}");
        }
        assert_eq!(digest(r#"{"\ud83d":1, "a":"x\ud83d"}"#), one);
    }

    fn news(seen: &[Seen]) -> Vec<News> {
        seen.iter().map(|seen| seen.news).collect()
    }

    #[test]
    fn a_changed_definition_is_noticed_once_and_forgotten_when_it_returns() {
        let old = items(&[r#"{"name":"a","description":"x"}"#, r#"{"name":"b"}"#]);
        let new = items(&[r#"{"name":"a","description":"y"}"#, r#"{"name":"b"}"#]);
        let (policy, config) = (Pinning::Quarantine, &"c".into());
        let (pins, seen) = compare(&Pins::new(), &old, config, policy);
        assert_eq!(news(&seen), [News::Tool; 2]);
        assert_eq!(
            compare(&pins, &old, config, policy),
            (pins.clone(), Vec::new())
        );
        let (pending, seen) = compare(&pins, &new, config, policy);
        assert_eq!(news(&seen), [News::Words]);
        assert_eq!(seen[0].tool.as_str(), "a");
        assert_eq!(compare(&pending, &new, config, policy).1, Vec::new());
        let (back, seen) = compare(&pending, &old, config, policy);
        assert_eq!((back, news(&seen)), (pins.clone(), vec![News::Same]));
        assert_eq!(
            compare(&pins, &new, config, Pinning::Off),
            (pins, Vec::new())
        );
    }

    #[test]
    fn another_configuration_is_agreed_to_with_what_it_brings() {
        let old = items(&[r#"{"name":"a","description":"x"}"#, r#"{"name":"b"}"#]);
        let new = items(&[r#"{"name":"a","description":"y"}"#, r#"{"name":"b"}"#]);
        let policy = Pinning::Quarantine;
        let [one, two, none]: [Arc<str>; 3] = ["one", "two", ""].map(Arc::from);
        let (pins, _) = compare(&Pins::new(), &old, &one, policy);
        let (pins, seen) = compare(&pins, &new, &two, policy);
        assert_eq!(news(&seen), [News::Configured, News::Same]);
        // The new configuration also approves a pending definition.
        let (pins, seen) = compare(&pins, &old, &two, policy);
        assert_eq!(news(&seen), [News::Words]);
        let (pins, seen) = compare(&pins, &old, &one, policy);
        assert_eq!(news(&seen), [News::Configured, News::Same]);
        assert!(pins.values().all(|pin| pin.pending.is_none()), "{pins:?}");
        // If the configuration of the pin is unknown, a changed definition does not count as approved.
        let (pins, _) = compare(&Pins::new(), &old, &none, policy);
        let (pins, seen) = compare(&pins, &new, &one, policy);
        assert_eq!(news(&seen), [News::Words, News::Same]);
        assert!(pins.values().all(|pin| pin.config == one), "{pins:?}");
    }

    #[test]
    fn a_name_that_cannot_be_remembered_is_no_news_and_marked() {
        let name = "n".repeat(store::MAX_KEY + 1);
        let raw = format!("{{\"name\":\"{name}\"}}");
        let long = List::of(ListKind::Tools, [raw.into()], false);
        let (pins, seen) = compare(&Pins::new(), &long.items, &"c".into(), Pinning::Quarantine);
        assert_eq!(seen, []);
        let why = pins[name.as_str()].unkept.as_deref();
        assert!(why.is_some_and(|why| why.contains("1024 bytes")), "{why:?}");
    }

    #[test]
    fn a_catalog_survives_as_text() {
        let mut catalog = Catalog::default();
        assert_eq!(catalog.to_snapshot(), None);
        let result = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x"}}"#;
        catalog.info =
            ServerInfo::remembered(Era::Legacy, Bytes::from_static(result.as_bytes())).ok();
        let tools = [
            r#"{"z":12345678901234567890123,"name":"a"}"#,
            r#"{"name":"ü"}"#,
        ];
        let raws = tools.map(|text| Bytes::from_static(text.as_bytes()));
        catalog.set(ListKind::Tools, List::of(ListKind::Tools, raws, false));
        let text = catalog.to_snapshot().expect("it is small");
        let back = Catalog::from_snapshot(&text, 64).expect("it is one");
        assert_eq!(back.to_snapshot().as_ref(), Some(&text));
        let raw: Vec<&[u8]> = back
            .list(ListKind::Tools)
            .iter()
            .map(|item| &*item.raw)
            .collect();
        assert_eq!(raw, tools.map(str::as_bytes));
        for broken in ["", "{}", &text[1..], &text.replace("legacy", "old")] {
            assert!(Catalog::from_snapshot(broken, 64).is_none(), "{broken}");
        }
    }
}
