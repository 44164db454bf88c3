//! Sign-ins of callers to servers, sealed before they come here, and what issuers know us as.
//!
//! A sign-in has a version. Whoever changes it names the version that they saw, and whoever renews it takes a lease first: of a
//! hundred who find it expired, in one process or in several, one asks the issuer.

use std::fmt;

use model::{ProjectId, ServerKey, ServerName};
use sqlx::FromRow;

use crate::{
    Page, Store, Time,
    error::{Error, Result},
    id::now,
    project::scope,
    sql::{Filter, Key, Text, execute, page, row},
};

/// A sign-in as it is kept.
#[derive(Clone, PartialEq, FromRow)]
pub struct LoginRow {
    /// `None`: the server is one of the configuration file.
    pub project_id: Option<String>,
    #[sqlx(try_from = "String")]
    pub server: ServerName,
    /// Empty: it is everybody's.
    pub principal: String,
    pub version: i64,
    pub issuer: String,
    /// Why somebody has to sign in again.
    pub needs_login: Option<String>,
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
    pub expires_at: Option<Time>,
    pub leased_until: Option<Time>,
    pub updated_at: Time,
}

/// What a sign-in becomes.
#[derive(Clone, Copy)]
pub struct NewLogin<'a> {
    pub version: i64,
    pub issuer: &'a str,
    pub needs_login: Option<&'a str>,
    pub nonce: &'a [u8],
    pub sealed: &'a [u8],
    pub expires_at: Option<Time>,
}

/// What an issuer knows us as, sealed.
#[derive(Clone, PartialEq, FromRow)]
pub struct LoginClientRow {
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
}

const COLUMNS: &str = "SELECT NULLIF(project_id, '') AS project_id, server, principal, version, issuer, needs_login, nonce,
    sealed, expires_at, leased_until, updated_at FROM kb.logins";

impl Store {
    /// A sign-in, if there is one; `principal` is empty for everybody's.
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
        let mut conn = self.pool.read().await?;
        page!(
            conn,
            LoginRow,
            COLUMNS,
            Filter::default()
                .and("project_id =", Some(scope(server.owner.as_ref()).0))
                .and("server =", Some(server.name.as_str()))
                .and("principal =", principal)
                .and("principal >", page.after.as_deref()),
            "principal",
            page
        )
    }

    /// The sign-in to the server that was renewed last and is of use.
    pub async fn login_latest(&self, server: &ServerKey) -> Result<Option<LoginRow>> {
        let mut conn = self.pool.read().await?;
        row!(
            conn,
            LoginRow,
            "SELECT NULLIF(project_id, '') AS project_id, server, principal, version, issuer, needs_login, nonce,
                 sealed, expires_at, leased_until, updated_at
             FROM kb.logins WHERE project_id = $1 AND server = $2 AND needs_login IS NULL
             ORDER BY updated_at DESC, principal LIMIT 1",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
        )
    }

    /// Keeps a sign-in in the place of the version before it (1: whatever was there), and ends the lease.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another version is kept than the one before this.
    pub async fn login_put(
        &self,
        server: &ServerKey,
        principal: &str,
        login: NewLogin<'_>,
    ) -> Result<()> {
        let mut conn = self.pool.write().await?;
        let changed = execute!(
            conn,
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
                let why = "another version of it is kept than the one that was to be replaced";
                Err(Error::conflict("sign-in to", &server.name, why))
            }
            _ => Ok(()),
        }
    }

    /// Takes the lease of a version of a sign-in, if nobody has it; whether it was taken.
    pub async fn login_lease(
        &self,
        server: &ServerKey,
        principal: &str,
        version: i64,
        until: Time,
    ) -> Result<bool> {
        let mut conn = self.pool.write().await?;
        let taken = execute!(
            conn,
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

    /// Gives the lease of a version back.
    pub async fn login_release(
        &self,
        server: &ServerKey,
        principal: &str,
        version: i64,
    ) -> Result<()> {
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
            "UPDATE kb.logins SET leased_until = NULL
             WHERE project_id = $1 AND server = $2 AND principal = $3 AND version = $4",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
            version,
        )?;
        Ok(())
    }

    /// Ends the leases that an earlier process left on a file, which only its own process has open. On Postgres they may be another one's, and end by
    /// themselves.
    pub async fn login_release_left(&self) -> Result<()> {
        if self.kind() != "sqlite" {
            return Ok(());
        }
        let mut conn = self.pool.write().await?;
        execute!(conn, "UPDATE kb.logins SET leased_until = NULL")?;
        Ok(())
    }

    /// # Errors
    /// [`Error::NotFound`] if there is no such sign-in.
    pub async fn login_delete(&self, server: &ServerKey, principal: &str) -> Result<()> {
        let mut conn = self.pool.write().await?;
        let removed = execute!(
            conn,
            "DELETE FROM kb.logins WHERE project_id = $1 AND server = $2 AND principal = $3",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(principal),
        )?;
        match removed {
            0 => Err(Error::not_found("sign-in to", &server.name)),
            _ => Ok(()),
        }
    }

    /// Binds the client id of an entry to an issuer, unless it is bound already; the issuer that it is bound to.
    pub async fn login_issuer_bind(
        &self,
        server: &ServerKey,
        client: &str,
        issuer: &str,
    ) -> Result<String> {
        let mut conn = self.pool.write().await?;
        let bound = row!(
            conn,
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

    /// The issuer that the client id of an entry is bound to, if it is.
    pub async fn login_issuer_get(
        &self,
        server: &ServerKey,
        client: &str,
    ) -> Result<Option<String>> {
        let mut conn = self.pool.read().await?;
        let bound = row!(
            conn,
            (String,),
            "SELECT issuer FROM kb.login_issuers WHERE project_id = $1 AND server = $2 AND client = $3",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
            Key(client),
        )?;
        Ok(bound.map(|(issuer,)| issuer))
    }

    /// Forgets which issuers the client ids of a server are bound to.
    pub async fn login_issuer_forget(&self, server: &ServerKey) -> Result<()> {
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
            "DELETE FROM kb.login_issuers WHERE project_id = $1 AND server = $2",
            scope(server.owner.as_ref()),
            Key(server.name.as_str()),
        )?;
        Ok(())
    }

    /// What an issuer knows us as, of those that come back to this address.
    pub async fn login_client_get(
        &self,
        issuer: &str,
        redirect_uri: &str,
    ) -> Result<Option<LoginClientRow>> {
        let mut conn = self.pool.read().await?;
        row!(
            conn,
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
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
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
        let mut conn = self.pool.read().await?;
        let row = row!(
            conn,
            (Option<Vec<u8>>,),
            "SELECT login_key FROM kb.master_key WHERE id = 1",
        )?;
        Ok(row.and_then(|(key,)| key))
    }

    /// Gives the installation a key for sign-ins that this master key wrapped, if it has none; the one that it has then.
    ///
    /// # Errors
    /// [`Error::Conflict`] if this is not the master key in use.
    pub async fn login_key_set_if_none(&self, master: &str, wrapped: &[u8]) -> Result<Vec<u8>> {
        let mut conn = self.pool.write().await?;
        let row = row!(
            conn,
            (Vec<u8>,),
            "UPDATE kb.master_key SET login_key = COALESCE(login_key, $2) WHERE id = 1 AND key_id = $1
             RETURNING login_key",
            Key(master),
            wrapped,
        )?;
        let why = "it is not the one in use: it was rotated meanwhile";
        let (key,) = row.ok_or_else(|| Error::conflict("master key", master, why))?;
        Ok(key)
    }
}

impl LoginRow {
    /// Whose server it is a sign-in to.
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
