//! Replicas: the gateways on one Postgres, and the leases for work that only one of them may do at a time.
//!
//! A replica exists as long as its row exists, and a lease as long as its holder's row. Renewing a replica's row renews
//! all its leases, and a replica that loses its row loses all of them at once. Any replica deletes expired rows that it
//! finds. The row lock orders a deletion and a late renewal: the second of the two finds nothing to change. All times
//! are database times.
//!
//! After a failover, the new primary may lack the latest leases and fencing tokens. No lease is granted before those
//! have expired, and then only with higher tokens: see [`Store::timeline_begin`].
//!
//! SQLite has no replicas: the methods do nothing there.

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

/// Upper bound for the age of an open call, with a margin: a call lasts one hour at most.
const MAX_OPEN_CALL_AGE: Duration = Duration::from_secs(2 * 3600);
/// The error of calls and runs that were open during a database failover.
const FAILOVER_ERROR: &str = "the database failed over before the result was recorded";
/// The error of calls and runs that a lost replica left open.
const LOST_REPLICA_ERROR: &str = "the replica was lost before the result was recorded";

/// An upper bound for the number of fencing tokens that a failover can lose.
const MAX_LOST_FENCES: i64 = 1_000_000;

/// Deletes replicas and returns them as [`ReplicaRow`]s. `$1` is the error for the calls and runs that they left open,
/// `$2` the lowest id of an open call.
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

/// A live replica.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct ReplicaRow {
    pub id: String,
    /// The name of the replica's host.
    pub name: String,
    pub version: String,
    /// The address for other replicas.
    pub address: Option<String>,
    pub started_at: Time,
    pub seen_at: Time,
    pub expires_at: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct NewReplica<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub version: &'a str,
    pub address: Option<&'a str>,
}

/// A lease, with the replica that holds it.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct LeaseRow {
    pub name: String,
    /// The id of a replica.
    pub holder: String,
    /// The fencing token: higher than that of every earlier lease.
    pub fence: i64,
    pub since: Time,
}

impl Store {
    /// Returns whether several gateways can share this database.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        matches!(self.pool, Pool::Postgres(_))
    }

    /// Adds a replica, which is lost after `lease` unless it is renewed.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the id is taken.
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
            sealing::KNOWN_VERSION,
        )?;
        let (at,) =
            added.ok_or_else(|| Error::conflict("replica", replica.id, "its id is taken"))?;
        clock::agree(at.into(), before, SystemTime::now());
        Ok(())
    }

    /// Renews a replica and all its leases. Returns the leases with their fencing tokens, or `None` if the replica is
    /// lost. A lost replica must rejoin with a new id.
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

    /// Returns whether the database was promoted from a standby or restored from a backup and no replica has handled
    /// that yet ([`Store::timeline_begin`]). The last commits may then be missing.
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

    /// Handles a failover to a standby or a restore from a backup. The results of calls and runs may be missing, so
    /// open calls and runs are closed like those of a lost replica. Results that are reported later replace the status
    /// written here. From now on, no lease is granted for one lease period, and no fencing token is used twice.
    pub async fn timeline_begin(&self) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_run_tool_calls SET status = 'unknown', error = $1, finished_at = clock_timestamp()
             WHERE status = 'open' AND id >= $2",
            Text(FAILOVER_ERROR),
            Key(&floor(now() - MAX_OPEN_CALL_AGE)),
        )?;
        execute!(
            self.pool.write().await?,
            "UPDATE kb.agent_runs SET status = 'interrupted', error = $1, finished_at = clock_timestamp()
             WHERE status = 'running'",
            Text(FAILOVER_ERROR),
        )?;
        // The latest changes may be undone, while the caches of all replicas still contain them. These rows notify
        // replicas of earlier versions. Replicas of the current version notice the new history.
        execute!(
            self.pool.write().await?,
            "INSERT INTO kb.toolwharf_changes (topic, at)
             SELECT topic, clock_timestamp()
             FROM (VALUES ('keys'), ('projects'), ('servers'), ('approvals'), ('logins')) AS t (topic)",
        )?;
        // This step comes last, so that after a failure in an earlier step all steps are repeated.
        row!(
            self.pool.write().await?,
            (i64,),
            "WITH begun AS (
                 INSERT INTO kb.toolwharf_timelines (id, since) VALUES (kb.toolwharf_timeline(), clock_timestamp())
                 ON CONFLICT (id) DO NOTHING RETURNING id)
             SELECT setval('kb.toolwharf_fences', nextval('kb.toolwharf_fences') + $1) FROM begun",
            MAX_LOST_FENCES,
        )?;
        Ok(())
    }

    /// Removes a replica, releases its leases and closes what it left open.
    pub async fn replica_remove(&self, id: &str) -> Result<()> {
        if !self.has_replicas() {
            return Ok(());
        }
        rows!(
            self.pool.write().await?,
            ReplicaRow,
            removed!("id = $3"),
            Text(LOST_REPLICA_ERROR),
            Key(&floor(now() - MAX_OPEN_CALL_AGE)),
            Key(id),
        )?;
        Ok(())
    }

    /// Removes lost replicas and returns them. Releases their leases, and closes the calls that they left open as
    /// `unknown` and the runs as `interrupted`.
    pub async fn replica_remove_lost(&self) -> Result<Vec<ReplicaRow>> {
        if !self.has_replicas() {
            return Ok(Vec::new());
        }
        rows!(
            self.pool.write().await?,
            ReplicaRow,
            removed!("expires_at <= clock_timestamp()"),
            Text(LOST_REPLICA_ERROR),
            Key(&floor(now() - MAX_OPEN_CALL_AGE)),
        )
    }

    /// All live replicas, oldest first.
    pub async fn replica_list(&self) -> Result<Vec<ReplicaRow>> {
        if !self.has_replicas() {
            return Ok(Vec::new());
        }
        rows!(
            self.pool.read().await?,
            ReplicaRow,
            "SELECT id, name, version, address, started_at, seen_at, expires_at FROM kb.toolwharf_replicas
             WHERE expires_at > clock_timestamp() ORDER BY started_at, id",
        )
    }

    /// Takes a lease for a live replica if the lease is free or already held by it, and returns the fencing token.
    /// Returns `None` if another replica holds the lease, if this replica is lost, or if a database failover was less
    /// than `lease` ago: another replica may then hold the lease although the database lost it.
    pub async fn lease_take(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<i64>> {
        let taken = row!(
            self.pool.write().await?,
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

    /// Lets the replicas agree on the holder of a lease. `holder` takes it if it is free, or if it belongs to `from`,
    /// which `holder` cannot reach. Returns the replica that holds the lease, or `None` if `holder` is lost.
    pub async fn lease_agree(
        &self,
        name: &str,
        holder: &str,
        from: Option<&str>,
    ) -> Result<Option<String>> {
        let agreed = row!(
            self.pool.write().await?,
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

    /// Releases a lease if it still has this fencing token.
    pub async fn lease_release(&self, name: &str, fence: i64) -> Result<()> {
        execute!(
            self.pool.write().await?,
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
        rows!(
            self.pool.read().await?,
            LeaseRow,
            "SELECT name, holder, fence, since FROM kb.toolwharf_leases ORDER BY name",
        )
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
