//! Callers' sign-ins to servers, sealed by the caller, and the gateway's client registrations with issuers.
//!
//! A sign-in has a version. To change it, a caller names the version that it saw. To renew it, a caller first takes a
//! lease, so that when many callers find it expired, in one process or in several, only one of them contacts the
//! issuer.

use std::fmt;

use model::{ProjectId, ServerKey, ServerName};
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::now,
    project::scope,
    sql::{Filter, Key, Text, execute, page, row, table},
};

/// A stored sign-in.
#[derive(Clone, PartialEq, FromRow)]
pub struct LoginRow {
    /// `None`: the server comes from the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    /// Empty: the sign-in is shared by all callers.
    pub principal: String,
    pub version: i64,
    pub issuer: String,
    /// Why the user has to sign in again. `None`: the sign-in can still be used.
    pub needs_login: Option<String>,
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
    pub expires_at: Option<Time>,
    pub leased_until: Option<Time>,
    pub updated_at: Time,
}

/// A new version of a sign-in.
#[derive(Clone, Copy)]
pub struct NewLogin<'a> {
    pub version: i64,
    pub issuer: &'a str,
    pub needs_login: Option<&'a str>,
    pub nonce: &'a [u8],
    pub sealed: &'a [u8],
    pub expires_at: Option<Time>,
}

/// The gateway's client registration with an issuer, sealed.
#[derive(Clone, PartialEq, FromRow)]
pub struct LoginClientRow {
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
}

table!(
    $, "kb.logins",
    "NULLIF(project_id, '') AS project_id, server, principal, version, issuer, needs_login, nonce, sealed, expires_at,
     leased_until, updated_at"
);

impl Store {
    /// A principal's sign-in, if there is one. An empty `principal` means the shared sign-in.
    pub async fn login_get(&self, server: &ServerKey, principal: &str) -> Result<Option<LoginRow>> {
        let all = self
            .login_page(server, Some(principal), &Page::default())
            .await?;
        Ok(all.into_iter().next())
    }

    /// The sign-ins to a server, by principal. `page.after` is a principal.
    pub async fn login_list(&self, server: &ServerKey, page: &Page) -> Result<Vec<LoginRow>> {
        self.login_page(server, None, page).await
    }

    async fn login_page(
        &self,
        server: &ServerKey,
        principal: Option<&str>,
        page: &Page,
    ) -> Result<Vec<LoginRow>> {
        page!(
            self.pool.read().await?,
            LoginRow,
            query!(select ""),
            Filter::default()
                .and("project_id =", Some(scope(server.owner.as_ref()).0))
                .and("server =", Some(server.name.as_str()))
                .and("principal =", principal)
                .and("principal >", page.after.as_deref()),
            "principal",
            page
        )
    }

    /// The most recently renewed sign-in to the server that can still be used.
    pub async fn login_latest(&self, server: &ServerKey) -> Result<Option<LoginRow>> {
        row!(
            self.pool.read().await?,
            LoginRow,
            query!(select "WHERE project_id = $1 AND server = $2 AND needs_login IS NULL
                 ORDER BY updated_at DESC, principal LIMIT 1"),
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
        )
    }

    /// Stores a sign-in in place of the version before it, and ends the lease. Version 1 replaces any version.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the stored version is not the one before this.
    pub async fn login_put(
        &self,
        server: &ServerKey,
        principal: &str,
        login: NewLogin<'_>,
    ) -> Result<()> {
        let changed = execute!(
            self.pool.write().await?,
            "INSERT INTO kb.logins AS l (project_id, server, principal, version, issuer, needs_login, nonce, sealed,
                 expires_at, leased_until, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, $10)
             ON CONFLICT (project_id, server, principal) DO UPDATE SET
                 version = excluded.version, issuer = excluded.issuer, needs_login = excluded.needs_login,
                 nonce = excluded.nonce, sealed = excluded.sealed, expires_at = excluded.expires_at,
                 leased_until = NULL, updated_at = excluded.updated_at
             WHERE l.version = excluded.version - 1",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
            login.version,
            Text(login.issuer),
            login.needs_login.map(Text),
            login.nonce,
            login.sealed,
            login.expires_at,
            now(),
        )?;
        match changed {
            0 => {
                let why = "it has changed since it was read: try again";
                Err(Error::conflict("sign-in to", &server.name, why))
            }
            _ => Ok(()),
        }
    }

    /// Takes the lease for one version of a sign-in if it is free, and returns whether it was taken.
    pub async fn login_lease(
        &self,
        server: &ServerKey,
        principal: &str,
        version: i64,
        until: Time,
    ) -> Result<bool> {
        let taken = execute!(
            self.pool.write().await?,
            "UPDATE kb.logins SET leased_until = $5
             WHERE project_id = $1 AND server = $2 AND principal = $3 AND version = $4
                 AND (leased_until IS NULL OR leased_until < $6)",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
            version,
            until,
            now(),
        )?;
        Ok(taken > 0)
    }

    /// Releases the lease for one version.
    pub async fn login_release(
        &self,
        server: &ServerKey,
        principal: &str,
        version: i64,
    ) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "UPDATE kb.logins SET leased_until = NULL
             WHERE project_id = $1 AND server = $2 AND principal = $3 AND version = $4",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
            version,
        )?;
        Ok(())
    }

    /// Ends the leases that an earlier process left in a SQLite file. No other process can hold a lease there, since
    /// only one process opens the file. Does nothing on Postgres, where leases may belong to another process and expire
    /// after a while.
    pub async fn login_release_left(&self) -> Result<()> {
        if self.kind() != "sqlite" {
            return Ok(());
        }
        let mut conn = self.pool.write().await?;
        execute!(conn, "UPDATE kb.logins SET leased_until = NULL")?;
        Ok(())
    }

    /// # Errors
    /// [`Error::NotFound`] if the sign-in does not exist.
    pub async fn login_delete(&self, server: &ServerKey, principal: &str) -> Result<()> {
        let removed = execute!(
            self.pool.write().await?,
            "DELETE FROM kb.logins WHERE project_id = $1 AND server = $2 AND principal = $3",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
        )?;
        Error::unless_found(removed, "sign-in to", &server.name)
    }

    /// Binds the client id of a server's entry to an issuer, unless it is already bound. Returns the issuer that it is
    /// bound to.
    pub async fn login_issuer_bind(
        &self,
        server: &ServerKey,
        client: &str,
        issuer: &str,
    ) -> Result<String> {
        let bound = row!(
            self.pool.write().await?,
            (String,),
            "INSERT INTO kb.login_issuers AS l (project_id, server, client, issuer, bound_at)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (project_id, server, client) DO UPDATE SET issuer = l.issuer
             RETURNING issuer",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(client),
            Text(issuer),
            now(),
        )?;
        let (bound,) = bound.ok_or_else(|| Error::not_found("sign-in to", &server.name))?;
        Ok(bound)
    }

    /// The issuer that the client id of an entry is bound to, if any.
    pub async fn login_issuer_get(
        &self,
        server: &ServerKey,
        client: &str,
    ) -> Result<Option<String>> {
        let bound = row!(
            self.pool.read().await?,
            (String,),
            "SELECT issuer FROM kb.login_issuers WHERE project_id = $1 AND server = $2 AND client = $3",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(client),
        )?;
        Ok(bound.map(|(issuer,)| issuer))
    }

    /// Deletes the issuer bindings of a server's client ids.
    pub async fn login_issuer_forget(&self, server: &ServerKey) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.login_issuers WHERE project_id = $1 AND server = $2",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
        )?;
        Ok(())
    }

    /// The gateway's registration with this issuer for this redirect URI.
    pub async fn login_client_get(
        &self,
        issuer: &str,
        redirect_uri: &str,
    ) -> Result<Option<LoginClientRow>> {
        row!(
            self.pool.read().await?,
            LoginClientRow,
            "SELECT nonce, sealed FROM kb.login_clients WHERE issuer = $1 AND redirect_uri = $2",
            Key(issuer),
            Key(redirect_uri),
        )
    }

    pub async fn login_client_put(
        &self,
        issuer: &str,
        redirect_uri: &str,
        client: &LoginClientRow,
    ) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.login_clients (issuer, redirect_uri, nonce, sealed, updated_at)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (issuer, redirect_uri) DO UPDATE SET
                 nonce = excluded.nonce, sealed = excluded.sealed, updated_at = excluded.updated_at",
            Key(issuer),
            Key(redirect_uri),
            &client.nonce[..],
            &client.sealed[..],
            now(),
        )?;
        Ok(())
    }

    /// The wrapped key that sign-ins are sealed with, if there is one.
    pub async fn login_key(&self) -> Result<Option<Vec<u8>>> {
        let row = row!(
            self.pool.read().await?,
            (Option<Vec<u8>>,),
            "SELECT login_key FROM kb.master_key WHERE id = 1",
        )?;
        Ok(row.and_then(|(key,)| key))
    }

    /// Stores a sign-in key that was wrapped with this master key, unless there is one. Returns the stored key.
    ///
    /// # Errors
    /// [`Error::Conflict`] if this is not the master key in use.
    pub async fn login_key_set_if_none(&self, master: &str, wrapped: &[u8]) -> Result<Vec<u8>> {
        let row = row!(
            self.pool.write().await?,
            (Vec<u8>,),
            "UPDATE kb.master_key SET login_key = COALESCE(login_key, $2) WHERE id = 1 AND key_id = $1
             RETURNING login_key",
            Key(master),
            wrapped,
        )?;
        let why = "it is no longer in use: it was rotated";
        let (key,) = row.ok_or_else(|| Error::conflict("master key", master, why))?;
        Ok(key)
    }
}

impl LoginRow {
    /// The server that this sign-in is for.
    #[must_use]
    pub fn key(&self) -> ServerKey {
        let owner = self.project_id.as_deref().map(ProjectId::parse);
        ServerKey {
            owner: owner.and_then(std::result::Result::ok),
            name: self.server.clone(),
        }
    }
}

impl fmt::Debug for LoginRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginRow")
            .field("server", &self.server)
            .field("principal", &self.principal)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
