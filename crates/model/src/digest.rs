//! Digests as text.

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a text, in lower-case hex.
#[must_use]
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    hex::encode(Sha256::digest(bytes))
}
