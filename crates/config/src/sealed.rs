//! Stored secrets of server files: the values that `toolwharf secret set NAME` stores, for `${NAME}` in entries.
//!
//! Invariants: `Debug` shows no value, and all clones of a [`Sealed`] have the same values. Deliberately absent: the
//! database, and decryption.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The current secrets. Clones share them.
#[derive(Clone, Default)]
pub struct Sealed(Arc<RwLock<Arc<SealedValues>>>);

/// The secrets at one moment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SealedValues(BTreeMap<String, Result<String, String>>);

impl Sealed {
    pub fn get(&self) -> Arc<SealedValues> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set(&self, values: SealedValues) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(values);
    }
}

impl SealedValues {
    /// `value`: the secret, or why it cannot be decrypted.
    pub fn insert(&mut self, name: String, value: Result<String, String>) {
        self.0.insert(name, value);
    }

    pub fn get(&self, name: &str) -> Option<Result<&str, &str>> {
        let value = self.0.get(name)?.as_ref();
        Some(value.map(String::as_str).map_err(String::as_str))
    }

    /// These secrets and `more`.
    #[must_use]
    pub fn with(&self, more: &BTreeMap<String, String>) -> Self {
        let mut all = self.clone();
        for (name, value) in more {
            all.insert(name.clone(), Ok(value.clone()));
        }
        all
    }
}

impl PartialEq for Sealed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.get() == other.get()
    }
}

impl Eq for Sealed {}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl fmt::Debug for SealedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} hidden]", self.0.len())
    }
}
