//! Encryption of secrets: one data key per project, wrapped by the master key.
//!
//! Both use XChaCha20-Poly1305. Sealed data is bound to its place (project, name, version), so that rows cannot be
//! swapped. Keys are wiped when they are dropped and do not appear in `Debug` output. Deliberately absent: where keys
//! and rows are stored.

use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use model::ProjectId;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// The plain text of a master key's check value.
const CHECK_TEXT: &[u8] = b"toolwharf";

/// Sealed data could not be opened: it was sealed with another key, or modified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it was encrypted with another key, or was changed")]
pub struct CannotOpen;

/// The text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a master key is 64 hexadecimal digits, as `openssl rand -hex 32` prints them")]
pub struct NotAKey;

struct Key(Zeroizing<[u8; KEY_BYTES]>);

impl Key {
    fn random() -> Self {
        Self(Zeroizing::new(rand::random()))
    }

    fn seal(&self, place: &[u8], plain: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let payload = Payload {
            msg: plain,
            aad: place,
        };
        let sealed = self
            .cipher()
            .encrypt(&XNonce::from(nonce), payload)
            .expect("a secret is smaller than 256 GiB");
        (nonce.to_vec(), sealed)
    }

    fn open(&self, place: &[u8], nonce: &[u8], sealed: &[u8]) -> Result<Vec<u8>, CannotOpen> {
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| CannotOpen)?;
        let payload = Payload {
            msg: sealed,
            aad: place,
        };
        self.cipher()
            .decrypt(&XNonce::from(nonce), payload)
            .map_err(|_| CannotOpen)
    }

    /// An id of the key that does not reveal the key.
    fn id(&self, purpose: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(purpose);
        hash.update(*self.0);
        hex::encode(&hash.finalize()[..8])
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }
}

/// Joins parts unambiguously, as associated data.
fn place(parts: &[&[u8]]) -> Vec<u8> {
    let mut place = Vec::new();
    for part in parts {
        place.extend_from_slice(&(part.len() as u64).to_be_bytes());
        place.extend_from_slice(part);
    }
    place
}

fn login_place(parts: &[&str]) -> Vec<u8> {
    let parts: Vec<&[u8]> = std::iter::once("login")
        .chain(parts.iter().copied())
        .map(str::as_bytes)
        .collect();
    place(&parts)
}

fn utf8(plain: Vec<u8>) -> Result<Zeroizing<String>, CannotOpen> {
    String::from_utf8(plain).map(Zeroizing::new).map_err(|bad| {
        bad.into_bytes().zeroize();
        CannotOpen
    })
}

/// The key that wraps all others. Not stored in any database.
pub struct MasterKey(Key);

impl MasterKey {
    #[must_use]
    pub fn random() -> Self {
        Self(Key::random())
    }

    /// Parses 64 hexadecimal digits. White space around the digits is ignored.
    ///
    /// # Errors
    /// [`NotAKey`]
    pub fn parse(text: &str) -> Result<Self, NotAKey> {
        let digits = text.trim().as_bytes();
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        hex::decode_to_slice(digits, &mut *key).map_err(|_| NotAKey)?;
        Ok(Self(Key(key)))
    }

    /// The 64 digits, for safekeeping.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0.0.as_slice()))
    }

    /// An id of the key that does not reveal the key.
    #[must_use]
    pub fn id(&self) -> String {
        self.0.id(b"toolwharf master key\0")
    }

    /// A check value that only this key can open. It is stored with the wrapped keys.
    #[must_use]
    pub fn check(&self) -> Vec<u8> {
        self.wrapped(&[b"check"], CHECK_TEXT)
    }

    #[must_use]
    pub fn opens(&self, check: &[u8]) -> bool {
        self.unwrapped(&[b"check"], check)
            .is_ok_and(|inside| *inside == CHECK_TEXT)
    }

    #[must_use]
    pub fn wrap(&self, project: &ProjectId, key: &DataKey) -> Vec<u8> {
        self.wrapped(&[b"data key", project.as_str().as_bytes()], &*key.0.0)
    }

    /// # Errors
    /// [`CannotOpen`]
    pub fn unwrap(&self, project: &ProjectId, wrapped: &[u8]) -> Result<DataKey, CannotOpen> {
        self.unwrap_at(&[b"data key", project.as_str().as_bytes()], wrapped)
    }

    /// Like [`MasterKey::wrap`], for the key that encrypts sign-ins.
    #[must_use]
    pub fn wrap_login_key(&self, key: &DataKey) -> Vec<u8> {
        self.wrapped(&[b"login key"], &*key.0.0)
    }

    /// # Errors
    /// [`CannotOpen`]
    pub fn unwrap_login_key(&self, wrapped: &[u8]) -> Result<DataKey, CannotOpen> {
        self.unwrap_at(&[b"login key"], wrapped)
    }

    fn unwrap_at(&self, place: &[&[u8]], wrapped: &[u8]) -> Result<DataKey, CannotOpen> {
        let plain = self.unwrapped(place, wrapped)?;
        let key: [u8; KEY_BYTES] = plain.as_slice().try_into().map_err(|_| CannotOpen)?;
        Ok(DataKey(Key(Zeroizing::new(key))))
    }

    fn wrapped(&self, parts: &[&[u8]], plain: &[u8]) -> Vec<u8> {
        let (mut wrapped, sealed) = self.0.seal(&place(parts), plain);
        wrapped.extend_from_slice(&sealed);
        wrapped
    }

    fn unwrapped(&self, parts: &[&[u8]], wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, CannotOpen> {
        let (nonce, sealed) = wrapped.split_at_checked(NONCE_BYTES).ok_or(CannotOpen)?;
        self.0
            .open(&place(parts), nonce, sealed)
            .map(Zeroizing::new)
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id())
    }
}

/// The key of one project's secrets.
pub struct DataKey(Key);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
}

impl DataKey {
    #[must_use]
    pub fn random() -> Self {
        Self(Key::random())
    }

    /// An id of the installation whose sign-ins are sealed with this key. It does not reveal the key.
    #[must_use]
    pub fn installation(&self) -> String {
        self.0.id(b"toolwharf installation\0")
    }

    #[must_use]
    pub fn seal(&self, project: &ProjectId, name: &str, version: i64, value: &str) -> Sealed {
        let (nonce, sealed) = self
            .0
            .seal(&Self::place(project, name, version), value.as_bytes());
        Sealed { nonce, sealed }
    }

    /// Seals data of sign-ins for a place. The parts, in this order, have to be unique.
    #[must_use]
    pub fn seal_login(&self, parts: &[&str], value: &str) -> Sealed {
        let (nonce, sealed) = self.0.seal(&login_place(parts), value.as_bytes());
        Sealed { nonce, sealed }
    }

    /// # Errors
    /// [`CannotOpen`]
    pub fn open_login(
        &self,
        parts: &[&str],
        sealed: &Sealed,
    ) -> Result<Zeroizing<String>, CannotOpen> {
        utf8(
            self.0
                .open(&login_place(parts), &sealed.nonce, &sealed.sealed)?,
        )
    }

    /// # Errors
    /// [`CannotOpen`]
    pub fn open(
        &self,
        project: &ProjectId,
        name: &str,
        version: i64,
        sealed: &Sealed,
    ) -> Result<Zeroizing<String>, CannotOpen> {
        let place = Self::place(project, name, version);
        utf8(self.0.open(&place, &sealed.nonce, &sealed.sealed)?)
    }

    fn place(project: &ProjectId, name: &str, version: i64) -> Vec<u8> {
        place(&[
            b"secret",
            project.as_str().as_bytes(),
            name.as_bytes(),
            &version.to_be_bytes(),
        ])
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_in_its_place_only() {
        let project = ProjectId::parse("p").expect("a name");
        let other = ProjectId::parse("q").expect("a name");
        let master = MasterKey::random();
        let key = DataKey::random();
        let sealed = key.seal(&project, "TOKEN", 3, "hunter2 ü");
        let opened = |project, name, version, sealed: &Sealed| {
            key.open(project, name, version, sealed)
                .map(|value| value.to_string())
        };
        assert_eq!(
            opened(&project, "TOKEN", 3, &sealed).as_deref(),
            Ok("hunter2 ü")
        );
        assert_eq!(opened(&other, "TOKEN", 3, &sealed), Err(CannotOpen));
        assert_eq!(opened(&project, "TOKE", 3, &sealed), Err(CannotOpen));
        assert_eq!(opened(&project, "TOKEN", 4, &sealed), Err(CannotOpen));
        for at in 0..sealed.sealed.len() {
            let mut changed = sealed.clone();
            changed.sealed[at] ^= 1;
            assert_eq!(opened(&project, "TOKEN", 3, &changed), Err(CannotOpen));
        }
        let wrapped = master.wrap(&project, &key);
        let unwrapped = master.unwrap(&project, &wrapped).expect("its own");
        assert!(unwrapped.open(&project, "TOKEN", 3, &sealed).is_ok());
        assert!(master.unwrap(&other, &wrapped).is_err());
        assert!(MasterKey::random().unwrap(&project, &wrapped).is_err());
        assert!(master.unwrap(&project, &wrapped[..10]).is_err());
    }

    #[test]
    fn a_master_key_is_read_back_and_checked() {
        let key = MasterKey::random();
        let same = MasterKey::parse(&format!(" {}\n", key.to_text().as_str())).expect("a key");
        assert_eq!(same.id(), key.id());
        assert!(same.opens(&key.check()));
        assert!(!MasterKey::random().opens(&key.check()));
        assert!(!key.opens(b""));
        let short = "a".repeat(63);
        let odd = format!("{}ü", "a".repeat(62));
        let signed = format!("+{}", "a".repeat(63));
        for text in ["", &short, &odd, &signed] {
            assert!(MasterKey::parse(text).is_err(), "{text}");
        }
        assert!(!format!("{key:?}").contains(key.to_text().as_str()));
    }
}
