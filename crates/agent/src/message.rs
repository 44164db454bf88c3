//! The content of a conversation, in one format for all models.
//!
//! It follows the Anthropic Messages API, which is the most expressive one: blocks of text, thinking, tool calls and
//! results. Invariant: a block that is read, stored and written again means the same. Unknown fields and blocks are
//! kept as text and written back.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::raw::{Fields, Raw};

/// Maximum bytes of an image that model APIs accept, as base64.
const MAX_IMAGE_BYTES: usize = 5 * 1024 * 1024;

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user, and tool results.
    User,
    Assistant,
}

/// One message: everything that the user or the model says before the other one responds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Block>,
}

/// A part of a message. `more` holds unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
        /// Unknown fields, for example `citations`.
        #[serde(flatten)]
        more: Fields,
    },
    /// The model's thinking, with the signature that the API requires to accept it back.
    Thinking {
        thinking: String,
        signature: String,
        #[serde(flatten)]
        more: Fields,
    },
    /// A tool call by the model.
    ToolUse {
        id: String,
        name: String,
        /// An object, as the model wrote it.
        input: Raw,
        #[serde(flatten)]
        more: Fields,
    },
    /// The result of a tool call. Only in user messages.
    ToolResult {
        tool_use_id: String,
        content: Vec<Part>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    Image(Image),
    /// A block of an unknown kind (`redacted_thinking`, the provider's own tools, …): the whole object, unchanged.
    #[serde(untagged)]
    Other(Raw),
}

/// A part of a tool result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
    Image(Image),
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub source: ImageSource,
}

/// The image data, always embedded in the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    Base64 {
        /// The media type, for example `image/png`.
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

    /// Bytes that count towards a conversation's limit: text, arguments and images.
    pub fn bytes(&self) -> usize {
        self.content.iter().map(Block::bytes).sum()
    }
}

impl Block {
    pub fn text(text: impl Into<String>) -> Self {
        let (text, more) = (text.into(), Fields::default());
        Self::Text { text, more }
    }

    /// Returns true for thinking, as opposed to the answer itself.
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

    /// Parses a block. If it lacks a field that its kind needs, it becomes [`Block::Other`].
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

/// A block to be written, optionally with the mark that the prefix up to here is cacheable.
pub(crate) struct Marked<'a> {
    pub(crate) block: &'a Block,
    pub(crate) cached: bool,
}

/// The Messages API's mark for a cacheable prefix.
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
        // Thinking cannot have the mark (Messages API, "prompt caching").
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

/// A user's message: text, and images if the model accepts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMessage {
    pub text: String,
    pub images: Vec<Image>,
}

impl From<&str> for UserMessage {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for UserMessage {
    fn from(text: String) -> Self {
        let images = Vec::new();
        Self { text, images }
    }
}

impl UserMessage {
    /// Converts the message to blocks, images first, because models read them best in that order.
    ///
    /// # Errors
    /// The message is empty, or it has an image that model APIs refuse.
    pub(crate) fn into_blocks(self) -> Result<Vec<Block>, String> {
        let mut blocks = Vec::new();
        for Image {
            source: ImageSource::Base64 { data, .. },
        } in self.images
        {
            let image = picture(data).map_err(|why| format!("an image cannot be sent: {why}"))?;
            blocks.push(Block::Image(image));
        }
        if !self.text.trim().is_empty() {
            blocks.push(Block::text(self.text));
        }
        match blocks.is_empty() {
            true => Err("the message is empty".to_owned()),
            false => Ok(blocks),
        }
    }
}

/// An image from base64.
///
/// # Errors
/// Why model APIs would refuse it.
pub(crate) fn picture(data: String) -> Result<Image, String> {
    if data.len() > MAX_IMAGE_BYTES {
        let size = data.len();
        return Err(format!(
            "it has {size} bytes as base64, but the limit is {MAX_IMAGE_BYTES}"
        ));
    }
    match STANDARD.decode(&data).ok().as_deref().and_then(kind) {
        Some(media_type) => Ok(Image::base64(media_type, data)),
        None => Err("it is not a PNG, JPEG, GIF or WebP file".to_owned()),
    }
}

/// Detects the media type from the first bytes. APIs refuse an image whose declared type is wrong.
pub fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Some("image/webp"),
        _ => None,
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
        // A block of a known kind with an unexpected shape is stored unchanged.
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
