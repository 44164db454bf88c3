//! Encryption of texts that leave this process and are read back later. Uses the installation's key; the result is
//! base64.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use store::encryption::{DataKey, Sealed};
use zeroize::Zeroizing;

/// Bytes of the nonce, which differs for each encryption.
pub const NONCE_BYTES: usize = 24;

/// Encrypts a text and binds it to a place. The result is the nonce, followed by the ciphertext.
pub fn sealed_text(key: &DataKey, place: &[&str], text: &str) -> String {
    let Sealed { mut nonce, sealed } = key.seal_login(place, text);
    nonce.extend(sealed);
    URL_SAFE_NO_PAD.encode(nonce)
}

/// Decrypts a text; also returns its nonce. `None` if it was encrypted for another place or with another key.
pub fn opened_text(
    key: &DataKey,
    place: &[&str],
    text: &[u8],
) -> Option<(Zeroizing<String>, [u8; NONCE_BYTES])> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
    let sealed = Sealed {
        nonce: nonce.to_vec(),
        sealed: sealed.to_vec(),
    };
    Some((key.open_login(place, &sealed).ok()?, *nonce))
}
