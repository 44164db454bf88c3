//! Names and other texts that both engines can store.

use std::borrow::Cow;

/// Maximum length of a name, in bytes. In Postgres, a server name and a tool name must fit into one index entry of
/// 2,704 bytes.
pub const MAX_KEY: usize = 1_024;

/// Replaces the NULs of a text. (`QueryBuilder` panics on a NUL.)
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}

/// Converts a text to a name: replaces NULs, and truncates it to [`MAX_KEY`] bytes.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    match clean(text) {
        Cow::Borrowed(text) => text[..text.floor_char_boundary(MAX_KEY)].into(),
        Cow::Owned(text) => text[..text.floor_char_boundary(MAX_KEY)].to_owned().into(),
    }
}

/// Converts an enum to and from its words in a column. `$what` names the enum in the error for an unknown word.
#[rustfmt::skip]
macro_rules! words {
    ($name:ident, $what:literal, { $($variant:ident => $word:literal,)+ }) => {
        impl $name {
            /// The word used in the column and in the API.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(word: String) -> std::result::Result<Self, String> {
                match word.as_str() {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!(concat!("unknown ", $what, " {:?}"), word)),
                }
            }
        }
    };
}

pub(crate) use words;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_stored_is_changed() {
        assert_eq!(clean("a\0b"), "a\u{fffd}b");
        assert_eq!(name(&"ü".repeat(1000)), "ü".repeat(512));
        assert_eq!(name(&format!("\0{}", "x".repeat(2000))).len(), MAX_KEY);
    }
}
