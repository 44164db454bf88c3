//! Proof of possession (RFC 9449): tokens that are valid only together with one of our keys.
//!
//! Each sign-in has a separate key, stored with its tokens. Invariants: `Debug` never shows a key, and no proof is used
//! twice.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, Response};
use parking_lot::Mutex;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{now, request::random};

/// The header with the nonce that an issuer or a server requires in proofs (RFC 9449, 8 and 9).
pub const NONCE: &str = "dpop-nonce";
/// The error code for a proof without the required nonce.
pub const WANTS_NONCE: &str = "use_dpop_nonce";
/// The only algorithm of our keys.
pub(crate) const ALGORITHM: &str = "ES256";
/// Maximum bytes of a nonce.
const MAX_NONCE_BYTES: usize = 1024;

/// An ES256 key, as PKCS#8 in base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Generates a key. `None` if the system has no random numbers.
    pub(crate) fn generate() -> Option<Self> {
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(kind, &SystemRandom::new()).ok()?;
        Some(Self(URL_SAFE_NO_PAD.encode(key)))
    }

    /// Creates a proof for one request to `url` (query and fragment are removed). Pass the access token if the request
    /// carries one. `None` if the key is damaged.
    pub(crate) fn proof(
        &self,
        method: &str,
        url: &str,
        nonce: Option<&str>,
        token: Option<&str>,
    ) -> Option<HeaderValue> {
        let random_numbers = SystemRandom::new();
        let pkcs8 = URL_SAFE_NO_PAD.decode(&self.0).ok()?;
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(kind, &pkcs8, &random_numbers).ok()?;
        // An uncompressed point: 4, x, y (SEC 1, 2.3.3).
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = json!({
            "typ": "dpop+jwt", "alg": ALGORITHM,
            "jwk": { "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y) },
        });
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let mut claims = json!({ "jti": random(), "htm": method, "htu": url, "iat": now() });
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        if let Some(token) = token {
            claims["ath"] = encode(&Sha256::digest(token)).into();
        }
        let [header, claims] = [header, claims].map(|part| encode(part.to_string().as_bytes()));
        let text = format!("{header}.{claims}");
        let signature = pair.sign(&random_numbers, text.as_bytes()).ok()?;
        HeaderValue::from_str(&format!("{text}.{}", encode(signature.as_ref()))).ok()
    }
}

/// Creates proofs for requests that carry one access token.
#[derive(Debug)]
pub struct Prover {
    key: Key,
    token: String,
    /// The latest nonce from the server.
    nonce: Mutex<Option<String>>,
}

impl Prover {
    #[must_use]
    pub fn new(key: Key, token: String) -> Self {
        let nonce = Mutex::default();
        Self { key, token, nonce }
    }

    /// Creates a proof for one request.
    #[must_use]
    pub fn proof(&self, method: &str, url: &str) -> Option<HeaderValue> {
        let nonce = self.nonce.lock().clone();
        self.key
            .proof(method, url, nonce.as_deref(), Some(&self.token))
    }

    /// Stores the nonce that the server requires from now on.
    pub fn learn(&self, nonce: &str) {
        *self.nonce.lock() = Some(nonce.to_owned());
    }
}

/// The nonce of a response, if it has an acceptable length.
pub fn nonce<B>(response: &Response<B>) -> Option<&str> {
    let nonce = response.headers().get(NONCE)?.to_str().ok()?;
    (1..=MAX_NONCE_BYTES)
        .contains(&nonce.len())
        .then_some(nonce)
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
    use serde_json::Value;

    use super::*;

    /// Verifies a proof as a server does (RFC 9449, 4.3).
    fn checked(proof: &HeaderValue) -> Value {
        let proof = proof.to_str().expect("text");
        let header = decode_header(proof).expect("a header");
        assert_eq!(header.typ.as_deref(), Some("dpop+jwt"));
        let key = DecodingKey::from_jwk(&header.jwk.expect("a key")).expect("a public key");
        let mut validation = Validation::new(Algorithm::ES256);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        let claims = decode::<Value>(proof, &key, &validation);
        claims.expect("its signature is right").claims
    }

    #[test]
    fn a_proof_is_of_one_request() {
        let key = Key::generate().expect("a key");
        assert!(!format!("{key:?}").contains(&key.0));
        let prover = Prover::new(key, "token".to_owned());
        let proof = || prover.proof("POST", "https://h/mcp?key=1#x");
        let first = checked(&proof().expect("a proof"));
        assert_eq!(first["htm"], "POST");
        assert_eq!(first["htu"], "https://h/mcp");
        // printf token | openssl dgst -sha256 -binary | basenc --base64url
        assert_eq!(first["ath"], "PEaenWxYddN6Q_NT1PiOYfz4EsZu7jRXRlpAsNpBU-A");
        assert_eq!(first["nonce"], Value::Null);
        prover.learn("n1");
        let second = checked(&proof().expect("a proof"));
        assert_eq!(second["nonce"], "n1");
        assert_ne!(second["jti"], first["jti"]);
    }
}
