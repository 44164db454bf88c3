//! Encryption with a passphrase: Argon2id makes the key, XChaCha20-Poly1305 encrypts. The sealed text is JSON that names
//! the costs of Argon2id, so that later versions can raise them.

use anyhow::{Context, bail};
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Minimum length of a passphrase for a new backup, in characters.
pub const MIN_PASSPHRASE_CHARS: usize = 8;
/// Costs of Argon2id: memory in KiB, passes and lanes (RFC 9106, section 4, the second recommended option).
const COSTS: Costs = Costs {
    memory_kib: 64 << 10,
    passes: 3,
    lanes: 4,
};
/// The highest costs that are accepted in a file. More would only be an attack on this machine.
const MAX_COSTS: Costs = Costs {
    memory_kib: 1 << 20,
    passes: 16,
    lanes: 16,
};
/// The purpose that the sealed data is bound to.
const PURPOSE: &[u8] = b"toolwharf backup keys";

/// A passphrase. Wiped when it is dropped.
pub struct Passphrase(Zeroizing<String>);

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Costs {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    costs: Costs,
    #[serde(with = "hex_bytes")]
    salt: Vec<u8>,
    #[serde(with = "hex_bytes")]
    nonce: Vec<u8>,
    #[serde(with = "hex_bytes")]
    sealed: Vec<u8>,
}

impl Passphrase {
    /// A passphrase for opening what was sealed with it.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// A passphrase for a new backup.
    ///
    /// # Errors
    /// If it has fewer than [`MIN_PASSPHRASE_CHARS`] characters.
    pub fn for_new(text: String) -> anyhow::Result<Self> {
        let passphrase = Self::new(text);
        if passphrase.0.chars().count() < MIN_PASSPHRASE_CHARS {
            bail!("the passphrase is too short: use at least {MIN_PASSPHRASE_CHARS} characters");
        }
        Ok(passphrase)
    }

    /// Encrypts. Takes about 0.2 s and 64 MiB of memory.
    pub(super) fn seal(&self, plain: &[u8]) -> anyhow::Result<Vec<u8>> {
        let salt: [u8; 16] = rand::random();
        let nonce: [u8; 24] = rand::random();
        let payload = Payload {
            msg: plain,
            aad: PURPOSE,
        };
        let sealed = self
            .cipher(COSTS, &salt)?
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| anyhow::anyhow!("the keys cannot be encrypted"))?;
        let sealed = Sealed {
            costs: COSTS,
            salt: salt.to_vec(),
            nonce: nonce.to_vec(),
            sealed,
        };
        Ok(serde_json::to_vec(&sealed)?)
    }

    /// Decrypts.
    ///
    /// # Errors
    /// If this is not the passphrase, or the text is not a sealed one.
    pub(super) fn open(&self, text: &[u8]) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let sealed: Sealed = serde_json::from_slice(text)
            .map_err(|_| anyhow::anyhow!("the encrypted keys have an unknown form"))?;
        let (costs, max) = (sealed.costs, MAX_COSTS);
        if costs.memory_kib > max.memory_kib || costs.passes > max.passes || costs.lanes > max.lanes
        {
            bail!("the encrypted keys ask for more work than any version of Toolwharf does");
        }
        let nonce: [u8; 24] = sealed
            .nonce
            .try_into()
            .map_err(|_| anyhow::anyhow!("the encrypted keys have an unknown form"))?;
        let payload = Payload {
            msg: &sealed.sealed,
            aad: PURPOSE,
        };
        self.cipher(costs, &sealed.salt)?
            .decrypt(&XNonce::from(nonce), payload)
            .map(Zeroizing::new)
            .map_err(|_| anyhow::anyhow!("this is not the passphrase of the backup"))
    }

    fn cipher(&self, costs: Costs, salt: &[u8]) -> anyhow::Result<XChaCha20Poly1305> {
        let why = "the costs of the passphrase are invalid";
        let params = Params::new(costs.memory_kib, costs.passes, costs.lanes, Some(32));
        let params = params
            .map_err(|error| anyhow::anyhow!("{error}"))
            .context(why)?;
        let mut key = Zeroizing::new([0u8; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(self.0.as_bytes(), salt, key.as_mut_slice())
            .map_err(|error| anyhow::anyhow!("{error}"))
            .context(why)?;
        Ok(XChaCha20Poly1305::new((&*key).into()))
    }
}

mod hex_bytes {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        hex::decode(text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_passphrase_opens_what_it_sealed() {
        let right = Passphrase::for_new("correct horse".to_owned()).unwrap();
        let sealed = right.seal(b"the keys").unwrap();
        let text = String::from_utf8(sealed.clone()).unwrap();
        assert!(
            !text.contains("the keys") && !text.contains("horse"),
            "{text}"
        );
        assert_eq!(right.open(&sealed).unwrap().as_slice(), b"the keys");
        let wrong = Passphrase::new("correct horsf".to_owned());
        let error = wrong.open(&sealed).unwrap_err().to_string();
        assert_eq!(error, "this is not the passphrase of the backup");
        assert!(right.open(b"{}").is_err());
        let costly = text.replace("\"memory_kib\":65536", "\"memory_kib\":99999999");
        let error = right.open(costly.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more work"), "{error}");
    }

    #[test]
    fn a_short_passphrase_is_refused() {
        let error = Passphrase::for_new("1234567".to_owned()).err().unwrap();
        assert!(!error.to_string().contains("1234567"), "{error}");
    }
}
