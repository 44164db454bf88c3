//! JSON kept as text: data from models and servers is written back byte for byte.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// Valid JSON text. Cheap to clone. Two values are equal if their texts are.
#[derive(Clone)]
pub struct Raw(Arc<RawValue>);

impl Raw {
    /// # Errors
    /// The text is not exactly one JSON value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Serialises a value.
    #[must_use]
    pub fn of(value: &impl Serialize) -> Self {
        serde_json::value::to_raw_value(value)
            .map(|raw| Self(raw.into()))
            .unwrap_or_else(|_| Self::empty_object())
    }

    #[must_use]
    pub fn empty_object() -> Self {
        Self(
            RawValue::from_string("{}".to_owned())
                .expect("braces are JSON")
                .into(),
        )
    }

    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Returns true if the value is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.get().trim_start().starts_with('{')
    }

    /// Deserialises the value.
    ///
    /// # Errors
    /// The value has another shape than `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Raw {}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

/// An object's fields in their original order, with their values as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(String, Raw)>);

impl Fields {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Raw> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, v)| v)
    }

    /// Removes a field and returns it as a `T`. A field of another shape stays.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        let value = self.0[at].1.read().ok()?;
        self.0.remove(at);
        Some(value)
    }

    /// Replaces the value of a field, or appends the field.
    pub fn set(&mut self, name: &str, value: Raw) {
        match self.0.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry::<String, Raw>()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
