//! The part of a server's row that describes the Kubernetes resource which declares it.
//!
//! It is stored in the registration, under a key that submitted registrations cannot have. Values of Kubernetes Secrets
//! in it are encrypted with the installation's key for sign-ins, and bound to this place.

use std::collections::BTreeMap;

use model::ServerName;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{
    RegistrationRow,
    encryption::{CannotOpen, DataKey, Sealed},
};

/// The key of the resource in a stored registration.
pub(super) const RESOURCE: &str = "kubernetes";

/// The resource that declares a server. It has the server's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    pub namespace: String,
    pub uid: String,
    /// The uid of its definition. A definition that is deleted and created again has another uid.
    pub definition: String,
    /// Encrypted values of variables, as hexadecimal digits.
    secrets: Option<[String; 2]>,
}

impl Resource {
    #[cfg(feature = "kubernetes")]
    pub fn new(
        namespace: &str,
        uid: &str,
        definition: &str,
        name: &ServerName,
        secrets: &BTreeMap<String, String>,
        key: &DataKey,
    ) -> Self {
        let text = serde_json::to_string(secrets).expect("a map of strings is valid JSON");
        let sealed = key.seal_login(&place(namespace, name), &text);
        let secrets = (!secrets.is_empty())
            .then(|| [hex::encode(&sealed.nonce), hex::encode(&sealed.sealed)]);
        Self {
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            definition: definition.to_owned(),
            secrets,
        }
    }

    /// The resource that declares a row's server, if any.
    pub fn of(row: &RegistrationRow) -> Option<Self> {
        Self::deserialize(row.config.get(RESOURCE)?).ok()
    }

    pub(super) fn has_secrets(&self) -> bool {
        self.secrets.is_some()
    }

    /// Decrypts the values of the variables.
    ///
    /// # Errors
    /// [`CannotOpen`]
    pub fn open(
        &self,
        name: &ServerName,
        key: &DataKey,
    ) -> Result<BTreeMap<String, String>, CannotOpen> {
        let Some([nonce, sealed]) = &self.secrets else {
            return Ok(BTreeMap::new());
        };
        let bytes = |text: &String| hex::decode(text).map_err(|_| CannotOpen);
        let (nonce, sealed) = (bytes(nonce)?, bytes(sealed)?);
        let text = key.open_login(&place(&self.namespace, name), &Sealed { nonce, sealed })?;
        serde_json::from_str(&text).map_err(|_| CannotOpen)
    }

    #[cfg(feature = "kubernetes")]
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("all fields are strings")
    }
}

fn place<'a>(namespace: &'a str, name: &'a ServerName) -> [&'a str; 3] {
    ["kubernetes", namespace, name.as_str()]
}

/// A registration as it was submitted.
pub fn given(row: &RegistrationRow) -> Value {
    let mut config = row.config.clone();
    if let Some(members) = config.as_object_mut() {
        members.remove(RESOURCE);
    }
    config
}
