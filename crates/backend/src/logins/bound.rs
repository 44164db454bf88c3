//! Binds the client id of an entry to an issuer.
//!
//! An entry may have a `clientId` and no `issuer`. The server then names its issuer, and could later name another one
//! to receive the client's secret. The client id is therefore bound to the first issuer that was found, in the database
//! and for all replicas.
//!
//! Invariant: [`Logins::bind`] runs between every discovery and the first request that carries the client's secret. If
//! callers sign in separately, a sign-out of one of them does not remove the binding.

use model::{LoginMode, ServerKey};
use oauth::{Code, Discovery};
use store::Page;

use super::{Logins, Place, mode, opened};
use crate::logins::Id;

impl Logins {
    /// Binds the client id of an entry to the issuer that was found, or checks an existing binding.
    ///
    /// # Errors
    /// If it is bound to another issuer, or the database does not respond.
    pub(super) async fn bind(
        &self,
        server: &ServerKey,
        place: &Place,
        discovery: &Discovery,
    ) -> Result<(), oauth::Error> {
        let login = &place.login;
        let (Some(url), Some(id), None) = (&place.url, &login.client_id, &login.issuer) else {
            return Ok(());
        };
        let client = model::sha256_hex(format!("{id}\0{url}"));
        let found = &discovery.metadata.issuer;
        let bound = async {
            let known = self.store.login_issuer_get(server, &client).await?;
            let first = match known {
                Some(known) => return Ok(known),
                None => self.issuer_of_sign_ins(server, id).await?,
            };
            let first = first.as_ref().unwrap_or(found);
            self.store.login_issuer_bind(server, &client, first).await
        };
        let bound = bound.await.map_err(|error: store::Error| oauth::Error {
            code: Code::Unreachable,
            what: format!("the issuer that the client id belongs to cannot be looked up: {error}"),
        })?;
        if bound == *found {
            return Ok(());
        }
        let way_out = match mode(login) {
            LoginMode::User => String::new(),
            _ => {
                let of = server
                    .owner
                    .as_ref()
                    .map_or_else(String::new, |owner| format!(" --project {owner}"));
                format!(
                    ", or run `toolwharf logout {}{of}` to bind the client id again",
                    server.name
                )
            }
        };
        Err(oauth::Error {
            code: Code::Mismatch,
            what: format!(
                "the server names the issuer {}, but the entry's `clientId` was first used with {}, and the client's secret is \
                 sent only to that issuer: if the change is intended, set `issuer` in the entry's `login`{way_out}",
                oauth::excerpt(found),
                oauth::excerpt(&bound),
            ),
        })
    }

    /// The issuer of a sign-in with this client id that predates bindings.
    async fn issuer_of_sign_ins(
        &self,
        server: &ServerKey,
        client: &str,
    ) -> store::Result<Option<String>> {
        for row in self.store.login_list(server, &Page::default()).await? {
            let issuer = row.issuer.clone();
            let id = Id {
                server: server.clone(),
                principal: row.principal.as_str().into(),
            };
            let stored = opened(self, &id, row).await;
            if stored.is_ok_and(|stored| stored.client.id == client) {
                return Ok(Some(issuer));
            }
        }
        Ok(None)
    }
}
