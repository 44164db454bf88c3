//! This gateway as one of several on the same Postgres: that it is there, and what only it may do.
//!
//! A replica is a member as long as the database hears of it in time. A member that was lost joins again under another id, and
//! has lost all leases. When it has to stop is reckoned from before its last renewal was sent, on this machine's monotonic clock, so it is
//! always before the database gives what it holds to another.
//! Deliberately absent on SQLite, where there is one gateway.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use store::{NewReplica, Store};
use tokio::time::Instant;

/// Renewals in the time of a lease.
const RENEWALS: u32 = 3;

pub(crate) struct Replica {
    store: Store,
    lease: Duration,
    member: Mutex<Arc<str>>,
    /// How often it was lost.
    losses: AtomicU64,
}

impl Replica {
    /// Joins the replicas of this database; `None` if one gateway has it for itself.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn join(store: &Store, lease: Duration) -> store::Result<Option<Arc<Self>>> {
        if !store.has_replicas() {
            return Ok(None);
        }
        let replica = Self {
            store: store.clone(),
            lease,
            member: Mutex::new("".into()),
            losses: AtomicU64::new(0),
        };
        replica.add().await?;
        Ok(Some(Arc::new(replica)))
    }

    /// The id of its membership.
    pub(crate) fn id(&self) -> Arc<str> {
        self.member.lock().clone()
    }

    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// How many replicas there are, and leases that this one holds; `None`: the database does not say.
    pub(crate) async fn counts(&self) -> (Option<u64>, Option<u64>) {
        let replicas = self.store.replica_list().await.ok();
        let leases = self.store.lease_list().await.ok();
        let own = self.id();
        (
            replicas.map(|all| all.len() as u64),
            leases.map(|all| all.iter().filter(|one| *one.holder == *own).count() as u64),
        )
    }

    async fn add(&self) -> store::Result<()> {
        let id = store::new_id();
        let replica = NewReplica {
            id: &id,
            name: &host(),
            version: env!("CARGO_PKG_VERSION"),
            address: None,
        };
        self.store.replica_add(replica, self.lease).await?;
        *self.member.lock() = id.into();
        Ok(())
    }

    /// Stays a member, and removes those that are lost, for ever.
    pub(crate) async fn follow(&self) {
        let mut tick = tokio::time::interval(self.lease / RENEWALS);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut away = false;
        let mut pruned: Option<Instant> = None;
        loop {
            tick.tick().await;
            let renewed = self.renew().await;
            if let Err(error) = &renewed
                && !away
            {
                tracing::warn!("this replica is not renewed: {error}");
            }
            away = renewed.is_err();
            if away {
                continue;
            }
            if pruned.is_none_or(|at| at.elapsed() > Duration::from_secs(600)) {
                pruned = self.store.change_prune().await.is_ok().then(Instant::now);
            }
        }
    }

    async fn renew(&self) -> store::Result<()> {
        if !self.store.replica_renew(&self.id(), self.lease).await? {
            self.losses.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(id = %self.id(), "this replica was taken for lost, and joins again");
            self.add().await?;
        }
        for lost in self.store.replica_remove_lost().await? {
            tracing::warn!(id = lost.id, host = lost.name, "a replica is lost");
        }
        Ok(())
    }

    /// Gives up what it holds, for it stops.
    pub(crate) async fn leave(&self) {
        if let Err(error) = self.store.replica_remove(&self.id()).await {
            tracing::warn!("this replica stays in the list until it expires: {error}");
        }
    }
}

/// The name of this host.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
