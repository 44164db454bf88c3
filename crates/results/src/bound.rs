//! The bound on what a model gets at a time.

/// The maximum length of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// In estimated tokens ([`discovery::tokens`]). Includes the notes.
    Tokens(usize),
    /// In bytes, without the notes.
    Bytes(usize),
}

impl Bound {
    /// Returns whether a text is within the bound.
    #[must_use]
    pub fn fits(self, text: &str) -> bool {
        match self {
            Self::Tokens(most) => discovery::has_at_most(text.as_bytes(), most),
            Self::Bytes(most) => text.len() <= most,
        }
    }

    /// The longest beginning of the text within the bound.
    #[must_use]
    pub fn head(self, text: &str) -> &str {
        let end = match self {
            Self::Tokens(most) => discovery::beginning(text.as_bytes(), most),
            Self::Bytes(most) => most,
        };
        &text[..text.floor_char_boundary(end)]
    }

    /// The bound for the rest of an answer that ends with this note ([`noted`]).
    #[must_use]
    pub(crate) fn beside(self, note: &str) -> Self {
        match self {
            // One more, since texts side by side may have one token more than each for itself.
            Self::Tokens(most) => {
                let tokens = discovery::tokens(noted("", note).as_bytes()) + 1;
                Self::Tokens(most.saturating_sub(tokens))
            }
            Self::Bytes(most) => Self::Bytes(most),
        }
    }

    /// Takes room for a piece of an answer. Returns false, and takes nothing, if there is not enough.
    pub(crate) fn take(&mut self, piece: &str) -> bool {
        if !self.fits(piece) {
            return false;
        }
        match self {
            Self::Tokens(left) => *left -= discovery::tokens(piece.as_bytes()),
            Self::Bytes(left) => *left -= piece.len(),
        }
        true
    }
}

/// A text with a note at its end.
pub(crate) fn noted(text: &str, note: &str) -> String {
    format!("{text}\n\n[{note}]")
}
