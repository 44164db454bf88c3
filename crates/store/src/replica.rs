//! Replicas: the gateways on one Postgres, and what only one of them may do at a time.
//!
//! A replica is there as long as its row is, and a lease as long as its holder's row: one row is renewed for all leases
//! of a replica, and all of them are lost at once. Whoever finds a row that has expired removes it. The lock of the row
//! decides between that and a late renewal: one of them finds nothing to change. All times are the database's.
//!
//! A standby that takes over may lack the last leases that were given, and the numbers of their fences. No lease is given before those have
//! run out, and then with higher numbers: see [`Store::timeline_begin`].
//!
//! On SQLite there are no replicas: the methods do nothing there.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use model::clock;
use sqlx::FromRow;

use crate::{
    Store, Time,
    error::{Error, Result},
    id::{floor, now},
    sealing,
    sql::{Key, Pool, Text, execute, row, rows},
};

/// How long ago a call that is still open may have begun, and more: it lasts an hour at most.
const OPEN: Duration = Duration::from_secs(2 * 3600);
/// The error of calls and runs that were open in a failover of the database.
const FAILED_OVER: &str = "the database was failed over before the end was recorded";
/// The error of calls and runs that a replica left open.
const LEFT: &str = "its gateway was lost before the end was recorded";

/// More fences than can be lost in a failover.
const LOST_FENCES: i64 = 1_000_000;

/// Removes replicas; these, as [`ReplicaRow`]. `$1` is what is said of what they left open, `$2` the least id of an open call.
macro_rules! removed {
    ($which:literal) => {
        concat!(
            "WITH lost AS (DELETE FROM kb.toolwharf_replicas WHERE ",
            $which,
            " RETURNING *),
             calls AS (UPDATE kb.agent_run_tool_calls AS c
                 SET status = 'unknown', error = $1, finished_at = clock_timestamp()
                 FROM lost WHERE c.process = lost.process AND c.status = 'open' AND c.id >= $2),
             runs AS (UPDATE kb.agent_runs AS r
                 SET status = 'interrupted', error = $1, finished_at = clock_timestamp()
                 FROM lost WHERE r.process = lost.process AND r.status = 'running')
             SELECT id, name, version, address, started_at, seen_at, expires_at FROM lost"
        )
    };
}

/// A replica that is there.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct ReplicaRow {
    pub id: String,
    /// Of its host.
    pub name: String,
    pub version: String,
    /// Where the other replicas reach it.
    pub address: Option<String>,
    pub started_at: Time,
    pub seen_at: Time,
    pub expires_at: Time,
}

/// A replica that joins.
#[derive(Clone, Copy, Debug)]
pub struct NewReplica<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub version: &'a str,
    pub address: Option<&'a str>,
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct LeaseRow {
    pub name: String,
    /// The id of a replica.
    pub holder: String,
    /// Higher than that of every lease that was taken before.
    pub fence: i64,
    pub since: Time,
}

impl Store {
    /// Whether several gateways can share this database.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        matches!(self.pool, Pool::Postgres(_))
    }

    /// Adds a replica, which is lost after `lease` unless it is renewed.
    ///
    /// # Errors
    /// [`Error::Conflict`] if its id is known.
    pub async fn replica_add(&self, replica: NewReplica<'_>, lease: Duration) -> Result<()> {
        if !self.has_replicas() {
            return Ok(());
        }
        let mut conn = self.pool.write().await?;
        let before = SystemTime::now();
        let added = row!(
            conn,
            (Time,),
            "INSERT INTO kb.toolwharf_replicas (id, name, version, address, process, knows, started_at, seen_at, expires_at)
             SELECT $1, $2, $3, $4, $6, $7, at, at, at + $5 * INTERVAL '1 millisecond'
             FROM (SELECT clock_timestamp() AS at) AS t ON CONFLICT (id) DO NOTHING RETURNING seen_at",
            Key(replica.id),
            Text(replica.name),
            Text(replica.version),
            replica.address.map(Text),
            millis(lease),
            Key(&self.process),
            sealing::KNOWN,
        )?;
        let (at,) =
            added.ok_or_else(|| Error::conflict("replica", replica.id, "its id is known"))?;
        clock::agree(at.into(), before, SystemTime::now());
        Ok(())
    }

    /// Renews a replica, and with it all that it holds: these leases, with their fences. `None`: it is lost, and may not come back under this id.
    pub async fn replica_renew(
        &self,
        id: &str,
        lease: Duration,
    ) -> Result<Option<HashMap<String, i64>>> {
        let mut conn = self.pool.write().await?;
        let before = SystemTime::now();
        let rows = rows!(
            conn,
            (Time, Option<String>, Option<i64>),
            "WITH renewed AS (UPDATE kb.toolwharf_replicas
                 SET seen_at = clock_timestamp(), expires_at = clock_timestamp() + $2 * INTERVAL '1 millisecond'
                 WHERE id = $1 AND expires_at > clock_timestamp() RETURNING id, seen_at)
             SELECT renewed.seen_at, lease.name, lease.fence
             FROM renewed LEFT JOIN kb.toolwharf_leases AS lease ON lease.holder = renewed.id",
            Key(id),
            millis(lease),
        )?;
        let Some((at, ..)) = rows.first() else {
            return Ok(None);
        };
        clock::agree((*at).into(), before, SystemTime::now());
        let held = rows
            .into_iter()
            .filter_map(|(_, name, fence)| name.zip(fence));
        Ok(Some(held.collect()))
    }

    /// Whether the database goes on from a standby or a backup, and nobody has taken that in yet ([`Store::timeline_begin`]). What was committed
    /// last may be missing then.
    pub async fn timeline_is_new(&self) -> Result<bool> {
        if !self.has_replicas() {
            return Ok(false);
        }
        let known = row!(
            self.pool.read().await?,
            (String,),
            "SELECT id FROM kb.toolwharf_timelines WHERE id = kb.toolwharf_timeline()",
        )?;
        Ok(known.is_none())
    }

    /// Takes in that the database goes on from a standby or a backup. The ends of calls and runs may be missing: open ones are closed as those of
    /// a lost replica are, and what becomes known of them goes before that. From now on no lease is given for a while, and no fence twice.
    pub async fn timeline_begin(&self) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_run_tool_calls SET status = 'unknown', error = $1, finished_at = clock_timestamp()
             WHERE status = 'open' AND id >= $2",
            Text(FAILED_OVER),
            Key(&floor(now() - OPEN)),
        )?;
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_runs SET status = 'interrupted', error = $1, finished_at = clock_timestamp()
             WHERE status = 'running'",
            Text(FAILED_OVER),
        )?;
        // What was changed last may be undone, and everybody's caches are of before. Earlier versions are told so; the others see the history.
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.toolwharf_changes (topic, at)
             SELECT topic, clock_timestamp()
             FROM (VALUES ('keys'), ('projects'), ('servers'), ('approvals'), ('logins')) AS t (topic)",
        )?;
        // At last: whatever is given up before this is begun anew.
        row!(
            self.pool.write().await?,
            (i64,),
            "WITH begun AS (
                 INSERT INTO kb.toolwharf_timelines (id, since) VALUES (kb.toolwharf_timeline(), clock_timestamp())
                 ON CONFLICT (id) DO NOTHING RETURNING id)
             SELECT setval('kb.toolwharf_fences', nextval('kb.toolwharf_fences') + $1) FROM begun",
            LOST_FENCES,
        )?;
        Ok(())
    }

    /// Removes a replica, which frees what it held and closes what it left open.
    pub async fn replica_remove(&self, id: &str) -> Result<()> {
        if !self.has_replicas() {
            return Ok(());
        }
        rows!(
            self.pool.write().await?,
            ReplicaRow,
            removed!("id = $3"),
            Text(LEFT),
            Key(&floor(now() - OPEN)),
            Key(id),
        )?;
        Ok(())
    }

    /// Removes the replicas that are lost, which frees what they held and closes what they left open: calls as `unknown`, and runs as
    /// `interrupted`. These replicas.
    pub async fn replica_remove_lost(&self) -> Result<Vec<ReplicaRow>> {
        if !self.has_replicas() {
            return Ok(Vec::new());
        }
        rows!(
            self.pool.write().await?,
            ReplicaRow,
            removed!("expires_at <= clock_timestamp()"),
            Text(LEFT),
            Key(&floor(now() - OPEN)),
        )
    }

    /// All replicas that are there, the oldest first.
    pub async fn replica_list(&self) -> Result<Vec<ReplicaRow>> {
        if !self.has_replicas() {
            return Ok(Vec::new());
        }
        let mut conn = self.pool.read().await?;
        rows!(
            conn,
            ReplicaRow,
            "SELECT id, name, version, address, started_at, seen_at, expires_at FROM kb.toolwharf_replicas
             WHERE expires_at > clock_timestamp() ORDER BY started_at, id",
        )
    }

    /// Takes a lease that is free, for a replica that is there, or has it already; its fence. `None`: somebody else has it, or the
    /// replica is lost, or the database goes on from a standby for less than `lease`, so that somebody may have it who does not know.
    pub async fn lease_take(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<i64>> {
        let mut conn = self.pool.write().await?;
        let taken = row!(
            conn,
            (i64,),
            "INSERT INTO kb.toolwharf_leases AS lease (name, holder, fence, since)
             SELECT $1, id, nextval('kb.toolwharf_fences'), clock_timestamp()
             FROM kb.toolwharf_replicas WHERE id = $2 AND expires_at > clock_timestamp() AND EXISTS (
                 SELECT 1 FROM kb.toolwharf_timelines
                 WHERE id = kb.toolwharf_timeline() AND since <= clock_timestamp() - $3 * INTERVAL '1 millisecond')
             ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder WHERE lease.holder = EXCLUDED.holder
             RETURNING fence",
            Key(name),
            Key(holder),
            millis(lease),
        )?;
        Ok(taken.map(|(fence,)| fence))
    }

    /// Agrees on who has a lease: `holder` takes it if it is free, or if `from` has it, whom `holder` cannot reach. The replica that
    /// has it; `None`: `holder` is lost.
    pub async fn lease_agree(
        &self,
        name: &str,
        holder: &str,
        from: Option<&str>,
    ) -> Result<Option<String>> {
        let mut conn = self.pool.write().await?;
        let agreed = row!(
            conn,
            (String,),
            "INSERT INTO kb.toolwharf_leases AS lease (name, holder, fence, since)
             SELECT $1, id, nextval('kb.toolwharf_fences'), clock_timestamp()
             FROM kb.toolwharf_replicas WHERE id = $2 AND expires_at > clock_timestamp()
             ON CONFLICT (name) DO UPDATE SET (holder, fence, since) = (
                 SELECT EXCLUDED.holder, EXCLUDED.fence, EXCLUDED.since WHERE lease.holder = $3
                 UNION ALL SELECT lease.holder, lease.fence, lease.since WHERE lease.holder IS DISTINCT FROM $3)
             RETURNING holder",
            Key(name),
            Key(holder),
            from.map(Key),
        )?;
        Ok(agreed.map(|(holder,)| holder))
    }

    /// Gives a lease back, if this fence is still that of the lease.
    pub async fn lease_release(&self, name: &str, fence: i64) -> Result<()> {
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
            "DELETE FROM kb.toolwharf_leases WHERE name = $1 AND fence = $2",
            Key(name),
            fence,
        )?;
        Ok(())
    }

    /// All leases that are held, by name.
    pub async fn lease_list(&self) -> Result<Vec<LeaseRow>> {
        if !self.has_replicas() {
            return Ok(Vec::new());
        }
        let mut conn = self.pool.read().await?;
        rows!(
            conn,
            LeaseRow,
            "SELECT name, holder, fence, since FROM kb.toolwharf_leases ORDER BY name",
        )
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
