//! Products of projects.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Products {
    pub products: Vec<Product>,
    /// Give it as `after` for the next page; none on the last.
    pub next: Option<String>,
}

/// A product that is installed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Product {
    pub name: String,
    pub version: String,
    pub description: String,
    /// The servers that it brought.
    pub servers: Vec<String>,
    /// Tools of theirs that are kept back: their definitions changed, or cannot be remembered.
    #[serde(default)]
    pub kept_back: usize,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Time,
}

/// A product with its manifest.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WholeProduct {
    #[serde(flatten)]
    pub product: Product,
    /// As it was given; only for those who may change servers.
    #[schema(schema_with = schema::optional_object)]
    pub manifest: Option<Value>,
}

/// What an installation did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstalledProduct {
    #[serde(flatten)]
    pub product: Product,
    /// Servers that the version before brought and this one does not.
    pub removed: Vec<String>,
}
