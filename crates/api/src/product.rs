//! Products, which bring servers to a project.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Time, schema};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Products {
    pub products: Vec<Product>,
    /// Pass it as `after` to get the next page. `null` on the last page.
    pub next: Option<String>,
}

/// An installed product.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Product {
    pub name: String,
    pub version: String,
    pub description: String,
    /// The product's servers.
    pub servers: Vec<String>,
    /// The number of the servers' tools that clients do not see because definitions changed or cannot be stored.
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
    /// The manifest as it was sent. Only for callers that may change servers.
    #[schema(schema_with = schema::optional_object)]
    pub manifest: Option<Value>,
}

/// The result of an installation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstalledProduct {
    #[serde(flatten)]
    pub product: Product,
    /// Servers that the previous version had and this one does not.
    pub removed: Vec<String>,
}
