//! What a conversation consists of, whichever model it is held with.
//!
//! The form is that of the Anthropic Messages API, because it is the one that can say most: blocks of text, thinking,
//! tool calls and results. Invariant: a block of the model that is read, kept and written again says the same; fields
//! and blocks that are unknown here are kept as text and come back.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::raw::{Fields, Raw};

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person, and results of tools.
    User,
    /// The model.
    Assistant,
}

/// All that one side said before the other spoke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Block>,
}

/// A part of a message. `more` holds the fields that have no name here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
        /// Such as `citations`.
        #[serde(flatten)]
        more: Fields,
    },
    /// What the model thought, and the signature without which it does not take it back.
    Thinking {
        thinking: String,
        signature: String,
        #[serde(flatten)]
        more: Fields,
    },
    /// The model asks for a tool.
    ToolUse {
        id: String,
        name: String,
        /// An object, as the model wrote it.
        input: Raw,
        #[serde(flatten)]
        more: Fields,
    },
    /// What came of a tool; only in messages of the user.
    ToolResult {
        tool_use_id: String,
        content: Vec<Part>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    Image(Image),
    /// A block of a kind that is unknown here (`redacted_thinking`, tools of the model's provider, …): the whole
    /// object, as it came.
    #[serde(untagged)]
    Other(Raw),
}

/// A part of a tool's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
    Image(Image),
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub source: ImageSource,
}

/// Where it is: always in the message itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    Base64 {
        /// `image/png`, for instance.
        media_type: String,
        data: String,
    },
}

impl Message {
    pub fn user(content: Vec<Block>) -> Self {
        let role = Role::User;
        Self { role, content }
    }

    pub fn assistant(content: Vec<Block>) -> Self {
        let role = Role::Assistant;
        Self { role, content }
    }

    /// Bytes that count against a conversation's bound: text, arguments and pictures.
    pub fn bytes(&self) -> usize {
        self.content.iter().map(Block::bytes).sum()
    }
}

impl Block {
    pub fn text(text: impl Into<String>) -> Self {
        let (text, more) = (text.into(), Fields::default());
        Self::Text { text, more }
    }

    /// Whether it is what the model thought, and not what it said.
    pub(crate) fn is_thought(&self) -> bool {
        match self {
            Self::Thinking { .. } => true,
            Self::Other(raw) => raw.read::<Fields>().is_ok_and(|fields| {
                let kind = fields.get("type").map(Raw::get);
                kind == Some("\"redacted_thinking\"")
            }),
            _ => false,
        }
    }

    fn bytes(&self) -> usize {
        let more = |fields: &Fields| -> usize {
            fields.0.iter().map(|(k, v)| k.len() + v.get().len()).sum()
        };
        match self {
            Self::Text { text, more: rest } => text.len() + more(rest),
            Self::Thinking {
                thinking,
                signature,
                more: rest,
            } => thinking.len() + signature.len() + more(rest),
            Self::ToolUse {
                id,
                name,
                input,
                more: rest,
            } => id.len() + name.len() + input.get().len() + more(rest),
            Self::ToolResult {
                tool_use_id,
                content,
                ..
            } => tool_use_id.len() + content.iter().map(Part::bytes).sum::<usize>(),
            Self::Image(image) => image.bytes(),
            Self::Other(raw) => raw.get().len(),
        }
    }

    /// Reads a block from an object's fields. What lacks a field that its kind needs is [`Block::Other`].
    fn read(whole: &Raw) -> Result<Self, serde_json::Error> {
        let mut fields: Fields = whole.read()?;
        let kind: String = fields
            .get("type")
            .ok_or_else(|| serde_json::Error::custom("a content block has no `type`"))?
            .read()?;
        let other = || Ok(Self::Other(whole.clone()));
        fields.0.retain(|(key, _)| key != "type");
        Ok(match kind.as_str() {
            "text" => match fields.take("text") {
                Some(text) => Self::Text { text, more: fields },
                None => return other(),
            },
            "thinking" => match (fields.take("thinking"), fields.take("signature")) {
                (Some(thinking), Some(signature)) => Self::Thinking {
                    thinking,
                    signature,
                    more: fields,
                },
                _ => return other(),
            },
            "tool_use" => match (fields.take("id"), fields.take("name"), fields.take("input")) {
                (Some(id), Some(name), Some(input)) => Self::ToolUse {
                    id,
                    name,
                    input,
                    more: fields,
                },
                _ => return other(),
            },
            "tool_result" => match (fields.take("tool_use_id"), fields.take("content")) {
                (Some(tool_use_id), Some(content)) => Self::ToolResult {
                    tool_use_id,
                    content,
                    is_error: fields.take("is_error").unwrap_or(false),
                },
                _ => return other(),
            },
            "image" => match fields.take("source") {
                Some(source) => Self::Image(Image { source }),
                None => return other(),
            },
            _ => return other(),
        })
    }
}

impl Part {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text { text } => text.len(),
            Self::Image(image) => image.bytes(),
        }
    }
}

impl Image {
    pub fn base64(media_type: impl Into<String>, data: impl Into<String>) -> Self {
        let (media_type, data) = (media_type.into(), data.into());
        Self {
            source: ImageSource::Base64 { media_type, data },
        }
    }

    fn bytes(&self) -> usize {
        let ImageSource::Base64 { media_type, data } = &self.source;
        media_type.len() + data.len()
    }
}

/// A block as it is written, with the mark that what comes before it may be cached.
pub(crate) struct Marked<'a> {
    pub(crate) block: &'a Block,
    pub(crate) cached: bool,
}

/// The mark of the Messages API for a prefix that is worth keeping.
#[derive(Serialize)]
#[serde(tag = "type", rename = "ephemeral")]
pub(crate) struct CacheControl {}

impl Serialize for Marked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithMark<'a> {
            #[serde(flatten)]
            block: &'a Block,
            cache_control: CacheControl,
        }
        let block = self.block;
        // The model's own thinking cannot bear the mark (Messages API, "prompt caching").
        if !self.cached || matches!(block, Block::Thinking { .. } | Block::Other(_)) {
            return block.serialize(serializer);
        }
        let cache_control = CacheControl {};
        WithMark {
            block,
            cache_control,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Raw::deserialize(deserializer)?;
        Self::read(&whole).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, is: impl Fn(&Block) -> bool) {
        let block: Block = serde_json::from_str(json).expect(json);
        assert!(is(&block), "{block:?}");
        assert_eq!(serde_json::to_string(&block).expect("a block"), json);
    }

    #[test]
    fn blocks_come_back_as_they_were() {
        check(r#"{"type":"text","text":"é\n"}"#, |b| {
            matches!(b, Block::Text { .. })
        });
        let cited =
            r#"{"type":"text","text":"x","citations":[{"page":1.50,"n":12345678901234567890123}]}"#;
        check(cited, |b| matches!(b, Block::Text { .. }));
        let thinking = r#"{"type":"thinking","thinking":"hm","signature":"c2ln"}"#;
        check(thinking, |b| matches!(b, Block::Thinking { .. }));
        let call = r#"{"type":"tool_use","id":"t","name":"n","input":{ "b": 1.0e2, "a": 12345678901234567890123 },"caller":{"type":"direct"}}"#;
        check(call, |b| matches!(b, Block::ToolUse { .. }));
        let result = r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}}],"is_error":true}"#;
        check(result, |b| matches!(b, Block::ToolResult { .. }));
        let redacted = r#"{"type":"redacted_thinking","data":"Zm9v", "x":1.50}"#;
        check(redacted, |b| matches!(b, Block::Other(_)));
        // A known kind in an unknown shape is kept whole.
        check(r#"{"type":"text","text":7}"#, |b| {
            matches!(b, Block::Other(_))
        });
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for bad in ["7", r#"{"text":"x"}"#, r#"{"type":7}"#, "[]"] {
            assert!(serde_json::from_str::<Block>(bad).is_err(), "{bad}");
        }
    }
}
