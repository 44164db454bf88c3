//! Tickets: values stored for a limited time under the digest of a secret. The caller seals the values.
//!
//! The number of tickets of a kind is limited: a new one replaces the one that would expire first.

use sqlx::FromRow;

use crate::{
    Store, Time,
    error::Result,
    id::now,
    sql::{Key, Text, execute, row, rows},
};

/// A `LIMIT` above any number of tickets, because SQLite requires a `LIMIT` with `OFFSET`.
const NO_LIMIT: i64 = 1 << 32;

/// The value of a ticket.
#[derive(Clone, PartialEq, Eq, FromRow)]
pub struct TicketRow {
    pub sealed: String,
    pub expires_at: Time,
}

#[derive(Clone, Copy)]
pub struct NewTicket<'a> {
    pub kind: &'a str,
    pub digest: &'a str,
    pub sealed: &'a str,
    pub expires_at: Time,
    /// Maximum number of tickets of this kind.
    pub most: u32,
}

impl Store {
    /// Stores a ticket unless the digest is taken, and returns whether it was stored.
    pub async fn ticket_put(&self, ticket: NewTicket<'_>) -> Result<bool> {
        let mut tx = self.pool.begin().await?;
        execute!(
            tx,
            "DELETE FROM kb.toolwharf_tickets WHERE kind = $1 AND expires_at <= $2",
            Key(ticket.kind),
            now(),
        )?;
        let put = execute!(
            tx,
            "INSERT INTO kb.toolwharf_tickets (kind, digest, sealed, expires_at) VALUES ($1, $2, $3, $4)
             ON CONFLICT (kind, digest) DO NOTHING",
            Key(ticket.kind),
            Key(ticket.digest),
            Text(ticket.sealed),
            ticket.expires_at,
        )?;
        execute!(
            tx,
            "DELETE FROM kb.toolwharf_tickets WHERE kind = $1 AND digest IN (
                 SELECT digest FROM kb.toolwharf_tickets WHERE kind = $1
                 ORDER BY expires_at DESC, digest LIMIT $2 OFFSET $3)",
            Key(ticket.kind),
            NO_LIMIT,
            i64::from(ticket.most),
        )?;
        tx.commit().await?;
        Ok(put == 1)
    }

    /// A ticket that has not expired.
    pub async fn ticket_get(&self, kind: &str, digest: &str) -> Result<Option<TicketRow>> {
        row!(
            self.pool.read().await?,
            TicketRow,
            "SELECT sealed, expires_at FROM kb.toolwharf_tickets WHERE kind = $1 AND digest = $2 AND expires_at > $3",
            Key(kind),
            Key(digest),
            now(),
        )
    }

    /// Takes a ticket that has not expired. Only one caller gets it.
    pub async fn ticket_take(&self, kind: &str, digest: &str) -> Result<Option<TicketRow>> {
        let taken = row!(
            self.pool.write().await?,
            TicketRow,
            "DELETE FROM kb.toolwharf_tickets WHERE kind = $1 AND digest = $2 RETURNING sealed, expires_at",
            Key(kind),
            Key(digest),
        )?;
        Ok(taken.filter(|ticket| ticket.expires_at > now()))
    }

    /// The digests of all tickets of a kind.
    pub async fn ticket_digests(&self, kind: &str) -> Result<Vec<String>> {
        let all = rows!(
            self.pool.read().await?,
            (String,),
            "SELECT digest FROM kb.toolwharf_tickets WHERE kind = $1",
            Key(kind),
        )?;
        Ok(all.into_iter().map(|(digest,)| digest).collect())
    }
}
