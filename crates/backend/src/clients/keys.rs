//! Keys of clients: the trait for creating and revoking them, and its implementation on the store.

use config::Client;
use model::ProjectId;
use store::{NewKey, Role, Store};

use super::Error;

/// A new key.
pub struct Made {
    pub id: String,
    pub token: String,
}

/// The name of a client's key, as shown in audit records.
pub fn name(client: &Client) -> String {
    format!("client:{}", client.name)
}

/// Creates and revokes keys.
pub trait Keyring: Sync {
    type Error: From<Error>;

    /// Creates a key that may call tools, in one project or in all of them.
    fn make(
        &self,
        client: &Client,
        project: Option<&ProjectId>,
    ) -> impl Future<Output = Result<Made, Self::Error>> + Send;

    /// Revokes a key. A missing key is not an error.
    fn revoke(&self, id: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns true if the key with this id is valid.
    fn lives(&self, id: &str) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// Creates keys directly in the store.
pub struct Stored<'s> {
    pub store: &'s Store,
}

/// A failing database, or a client's file that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error(transparent)]
    Clients(#[from] Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Keyring for Stored<'_> {
    type Error = StoredError;

    async fn make(
        &self,
        client: &Client,
        project: Option<&ProjectId>,
    ) -> Result<Made, StoredError> {
        let token = auth::new_token();
        let key = NewKey {
            projects: project.map(std::slice::from_ref).unwrap_or_default(),
            name: &name(client),
            visible: None,
            role: Role::Call,
            hash: &auth::hash(&token),
            hint: auth::hint(&token),
            expires_at: None,
            tools: None,
        };
        let id = self.store.key_put_numbered(key).await?.id;
        Ok(Made { id, token })
    }

    async fn revoke(&self, id: &str) -> Result<(), StoredError> {
        match self.store.key_revoke(None, id).await {
            Ok(_) | Err(store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn lives(&self, id: &str) -> Result<bool, StoredError> {
        let keys = self.store.keys_hashed().await?;
        let now = store::now();
        let mut keys = keys.iter();
        Ok(keys.any(|row| row.key.id == id && row.key.is_living(now)))
    }
}
