//! Membership and leases of this replica. Several gateways can share one Postgres; each has a row with a heartbeat, and
//! holds leases for work that only one replica may do.
//!
//! A replica remains a member as long as it renews its heartbeat in time. A lost member has lost all its leases and
//! rejoins with a new id. It stops the work under its leases before the database can give them to another replica: the
//! deadline is measured on this machine's monotonic clock, from before the last renewal was sent. A renewal counts only
//! if the database still has all leases that it granted: after a failover some may be missing. If this process is
//! suspended and misses its deadline, the sentinel process kills its servers. Not used with SQLite, which allows one
//! gateway only.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use model::clock;
use parking_lot::Mutex;
use runtime::sentinel::monotonic_nanos;
use store::{NewReplica, ReplicaRow, Sight, Store, Topic};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::locks::Locks;

/// Renewals per lease period.
const RENEWALS_PER_LEASE: u32 = 3;
/// Interval between polls for changes made by other replicas. A notification triggers one earlier.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The file in the data directory with the ids of the last memberships, one per line. The next gateway on this directory
/// ends them. During an upgrade, two gateways have one each, and either may be the one that remains.
const MEMBERSHIP_FILE: &str = "replica";
/// Maximum ids in that file.
const MAX_REMEMBERED: usize = 8;
/// Interval between removals of old change records.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Clock skew against the database, in seconds, above which a warning is logged.
const MAX_SKEW_SECONDS: u64 = 5;
/// The lease for removing expired data.
pub(crate) const SWEEP: &str = "sweep";
/// The lease for making a scheduled backup.
pub(crate) const BACKUP: &str = "backup";
/// The lease for handling Kubernetes resources.
pub const RESOURCES: &str = "kubernetes";

pub struct Replica {
    store: Store,
    /// A separate connection for renewals, so that a full connection pool never costs a lease.
    own: Store,
    lease: Duration,
    member: Mutex<Arc<Member>>,
    /// Number of times this replica has lost its membership.
    losses: AtomicU64,
    /// The replicas and the fencing tokens of all leases at the last check.
    seen: Mutex<(Vec<String>, Vec<i64>)>,
    /// Counts changes of `seen`.
    turns: AtomicU64,
    end_all_at: EndAllAt,
    /// Guards taking and releasing a lease, by name: the response to one request never arrives after the next request
    /// was sent.
    locks: Locks,
    file: PathBuf,
    /// The address at which other replicas reach this one.
    address: String,
    /// Seconds by which the database's clock was ahead of this machine's at the last renewal.
    clock: AtomicI64,
}

/// Schedules the sentinel to kill all servers, in nanoseconds of the monotonic clock; `None`: never.
type EndAllAt = Box<dyn Fn(Option<u64>) + Send + Sync>;

/// Why this replica does not have a lease.
pub enum NotTaken {
    /// Another replica has the lease.
    By(Box<ReplicaRow>),
    /// No replica has the lease, or the database does not respond.
    No(String),
}

/// One membership.
struct Member {
    id: String,
    /// Cancelled when the membership and its leases are lost.
    lost: CancellationToken,
    until: Mutex<Until>,
    leases: Mutex<Leases>,
}

/// Fencing tokens by lease name.
type Fences = HashMap<String, i64>;

/// The leases of one membership.
#[derive(Default)]
struct Leases {
    held: Fences,
    /// Leases whose release is not confirmed yet by the database, which may still have them. They are not held. A lease
    /// cannot be taken again before its release is confirmed: it would have the same fencing token.
    leaving: Fences,
}

impl Leases {
    /// Begins to release a lease. Returns its fencing token if it is held.
    fn leave(&mut self, name: &str) -> Option<i64> {
        let (name, fence) = self.held.remove_entry(name)?;
        self.leaving.insert(name, fence);
        Some(fence)
    }

    /// Records that the database has removed this lease.
    fn left(&mut self, name: &str, fence: i64) {
        if self.leaving.get(name) == Some(&fence) {
            self.leaving.remove(name);
        }
    }

    /// Returns true if the database (`has`) lacks a lease that was held before the query (`before`) and still is.
    fn are_lacking(&self, before: &Fences, has: &Fences) -> bool {
        let is_lacking = |(name, fence): (&String, &i64)| {
            self.held.get(name) == Some(fence) && has.get(name) != Some(fence)
        };
        before.iter().any(is_lacking)
    }
}

/// The deadlines that follow from the last renewal.
#[derive(Clone, Copy)]
struct Until {
    /// When the work under its leases must stop.
    stop: Instant,
    /// When the sentinel kills the servers under its leases, in nanoseconds of the monotonic clock.
    kill: u64,
}

impl Until {
    /// The deadlines of a renewal that is sent now.
    fn of(lease: Duration) -> Self {
        let nanos = u64::try_from((lease * 9 / 10).as_nanos()).unwrap_or(u64::MAX);
        Self {
            stop: Instant::now() + lease * 3 / 4,
            kill: monotonic_nanos().saturating_add(nanos),
        }
    }
}

impl Replica {
    /// Joins the replicas of this database; `None` if the database allows one gateway only. `is_alone`: the caller is the
    /// only gateway on the data directory, so the earlier one is dead and its membership can be removed immediately.
    /// `end_all_at` schedules the sentinel.
    ///
    /// # Errors
    /// Database errors.
    pub async fn join(
        store: &Store,
        lease: Duration,
        end_all_at: impl Fn(Option<u64>) + Send + Sync + 'static,
        data_dir: &Path,
        address: String,
        is_alone: bool,
    ) -> store::Result<Option<Arc<Self>>> {
        if !store.has_replicas() {
            return Ok(None);
        }
        let own = store.apart();
        let file = data_dir.join(MEMBERSHIP_FILE);
        let mut earlier = remembered(&file);
        if is_alone {
            for id in earlier.drain(..) {
                store.replica_remove(&id).await?;
            }
        }
        let member = add(&own, lease, &address).await?;
        remember(&file, earlier, &member.id);
        Ok(Some(Arc::new(Self {
            store: store.clone(),
            own,
            lease,
            member: Mutex::new(member),
            losses: AtomicU64::new(0),
            seen: Mutex::default(),
            turns: AtomicU64::new(0),
            end_all_at: Box::new(end_all_at),
            locks: Locks::default(),
            file,
            address,
            clock: AtomicI64::new(0),
        })))
    }

    fn member(&self) -> Arc<Member> {
        self.member.lock().clone()
    }

    /// The id of the current membership.
    pub fn id(&self) -> String {
        self.member().id.clone()
    }

    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// A counter that changes when a replica joins or leaves, or a lease gets another holder.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// All current replicas.
    ///
    /// # Errors
    /// Database errors.
    pub async fn list(&self) -> store::Result<Vec<ReplicaRow>> {
        self.store.replica_list().await
    }

    /// The number of replicas (`None`: the database does not respond), and of leases that this one holds.
    pub async fn counts(&self) -> (Option<u64>, u64) {
        let replicas = self.store.replica_list().await.ok();
        let held = self.member().leases.lock().held.len();
        (replicas.map(|all| all.len() as u64), held as u64)
    }

    /// Renews the membership and removes lost replicas, in a loop.
    pub async fn follow(&self) {
        let mut pruned: Option<Instant> = None;
        let mut away = false;
        loop {
            let member = self.member();
            let stop = member.until.lock().stop;
            let began = Instant::now();
            let renewed = match member.lost.is_cancelled() {
                true => {
                    // Servers that ran under a lease are dead by now. Unschedule the sentinel: servers that need no
                    // lease are started again, and it must not kill those.
                    if stop.elapsed() > self.lease / 4 {
                        (self.end_all_at)(None);
                    }
                    self.rejoin().await
                }
                false => match tokio::time::timeout_at(stop, self.renew(&member)).await {
                    Ok(renewed) => renewed,
                    Err(_) => {
                        self.lose(&member, "its heartbeat did not reach the database in time");
                        continue;
                    }
                },
            };
            if let Err(error) = &renewed
                && !away
            {
                tracing::warn!("cannot renew the membership of this replica: {error}");
            }
            away = renewed.is_err();
            if !away {
                // The time is limited, so that a slow database does not delay the next renewal.
                let by = began + self.lease / 2;
                let keeping = async {
                    self.give_back_again().await;
                    self.keep_house().await
                };
                let kept = tokio::time::timeout_at(by, keeping).await;
                if let Ok(Err(error)) = kept {
                    tracing::debug!("housekeeping is incomplete: {error}");
                }
            }
            // Only one replica needs to do this.
            if !away && self.holds(SWEEP) && pruned.is_none_or(|at| at.elapsed() > PRUNE_INTERVAL) {
                pruned = self.store.change_prune().await.is_ok().then(Instant::now);
            }
            // Retry sooner while the database is unavailable, but not while it is only slow.
            let stop = self.member().until.lock().stop;
            let next = match away {
                true => Instant::now() + self.lease / 10,
                false => began + self.lease / RENEWALS_PER_LEASE,
            };
            tokio::time::sleep_until(if member.lost.is_cancelled() {
                next
            } else {
                next.min(stop)
            })
            .await;
        }
    }

    async fn renew(&self, member: &Arc<Member>) -> store::Result<()> {
        let until = Until::of(self.lease);
        let held = member.leases.lock().held.clone();
        let renewed = self.own.replica_renew(&member.id, self.lease).await?;
        let Some(has) = renewed else {
            self.lose(member, "the other replicas considered it lost");
            return self.rejoin().await;
        };
        // Leases released in the meantime do not matter, even if they were taken again.
        let lacks = member.leases.lock().are_lacking(&held, &has);
        if lacks {
            self.lose(member, "the database has lost one of its leases");
            return self.rejoin().await;
        }
        *member.until.lock() = until;
        self.warn_sentinel(member);
        self.note_clock();
        Ok(())
    }

    /// Detects failovers, removes lost replicas, and updates the known replicas and leases.
    async fn keep_house(&self) -> store::Result<()> {
        if self.store.timeline_is_new().await? {
            let time = self.lease.as_secs();
            tracing::warn!(
                "the database failed over or was restored, and may lack the latest writes: no free lease is granted for {time} s"
            );
            self.store.timeline_begin().await?;
        }
        for lost in self.store.replica_remove_lost().await? {
            tracing::warn!(
                id = lost.id,
                host = lost.name,
                "another replica sent no heartbeat and counts as lost"
            );
        }
        let (replicas, leases) =
            tokio::try_join!(self.store.replica_list(), self.store.lease_list())?;
        let now = (
            replicas.into_iter().map(|replica| replica.id).collect(),
            leases.iter().map(|lease| lease.fence).collect(),
        );
        let mut seen = self.seen.lock();
        if *seen != now {
            *seen = now;
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Logs once when the clock of this machine differs too much from the database's.
    fn note_clock(&self) {
        let ahead = clock::ahead();
        let seconds = (ahead + ahead.signum() * 500_000) / 1_000_000;
        if self
            .clock
            .swap(seconds, Ordering::Relaxed)
            .abs_diff(seconds)
            > MAX_SKEW_SECONDS
        {
            tracing::warn!(
                "the clock of this machine is {} s {} the database's clock; Toolwharf uses the database's clock",
                seconds.abs(),
                if seconds > 0 { "behind" } else { "ahead of" }
            );
        }
    }

    fn lose(&self, member: &Member, why: &str) {
        if member.lost.is_cancelled() {
            return;
        }
        self.losses.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            id = member.id,
            "this replica no longer holds its leases: {why}; the servers and calls under these leases are stopped"
        );
        member.lost.cancel();
    }

    async fn rejoin(&self) -> store::Result<()> {
        let member = add(&self.own, self.lease, &self.address).await?;
        tracing::info!(id = member.id, "this replica has rejoined");
        let mut earlier = remembered(&self.file);
        earlier.retain(|id| *id != self.id());
        remember(&self.file, earlier, &member.id);
        let mut current = self.member.lock();
        *current = member;
        (self.end_all_at)(None);
        Ok(())
    }

    /// Schedules the sentinel to kill the servers at the deadline, if any run under a lease.
    fn warn_sentinel(&self, member: &Arc<Member>) {
        // The lock is held until the sentinel is scheduled, so that deadlines are passed on in order. Memberships that
        // have ended are ignored.
        let current = self.member.lock();
        if !Arc::ptr_eq(&current, member) {
            return;
        }
        let runs_nothing = [SWEEP, RESOURCES];
        let is_run = |name: &String| !runs_nothing.contains(&name.as_str());
        let runs = member.leases.lock().held.keys().any(is_run);
        let kill = member.until.lock().kill;
        (self.end_all_at)(runs.then_some(kill));
    }

    /// Takes a lease, unless this replica holds it already. Returns the lease's fencing token, and a token that is
    /// cancelled when the lease is lost.
    ///
    /// # Errors
    /// Why it was not taken.
    pub async fn take(&self, name: &str) -> Result<(i64, CancellationToken), NotTaken> {
        let member = self.member();
        // The process may have been suspended, and not have noticed that its membership is lost.
        if member.lost.is_cancelled() || member.until.lock().stop <= Instant::now() {
            let why = "this replica cannot reach the database";
            return Err(NotTaken::No(why.to_owned()));
        }
        let _one_at_a_time = self.locks.of(name).lock().await;
        let (held, leaving) = {
            let leases = member.leases.lock();
            let of = |fences: &Fences| fences.get(name).copied();
            (of(&leases.held), of(&leases.leaving))
        };
        if let Some(fence) = held {
            return Ok((fence, member.lost.clone()));
        }
        let told = |error: store::Error| NotTaken::No(error.to_string());
        if let Some(fence) = leaving {
            self.release(&member, name, fence).await.map_err(told)?;
        }
        let taken = self.store.lease_take(name, &member.id, self.lease).await;
        let Some(fence) = taken.map_err(told)? else {
            return Err(self.held_elsewhere(name).await.unwrap_or_else(told));
        };
        member.leases.lock().held.insert(name.to_owned(), fence);
        self.warn_sentinel(&member);
        Ok((fence, member.lost.clone()))
    }

    /// Returns true if this replica holds the lease, as far as it knows.
    pub fn holds(&self, name: &str) -> bool {
        self.member().leases.lock().held.contains_key(name)
    }

    /// The fencing tokens of all leases.
    ///
    /// # Errors
    /// Database errors.
    pub(crate) async fn fences(&self) -> store::Result<BTreeSet<i64>> {
        let leases = self.store.lease_list().await?;
        Ok(leases.iter().map(|lease| lease.fence).collect())
    }

    /// Returns the heir of these sessions, which is the replica that continues them. All replicas agree on the heir. If
    /// the role is free, or held by `from`, which this replica cannot reach, then this replica becomes the heir. The
    /// role is a lease, but losing it stops no work. `None`: the database does not respond, or this replica is lost.
    pub async fn heir(&self, sessions: &str, from: Option<&str>) -> Option<String> {
        let name = format!("sessions:{sessions}");
        let agreed = self.store.lease_agree(&name, &self.id(), from).await;
        agreed.ok().flatten()
    }

    /// The other replica that holds a lease, if any.
    ///
    /// # Errors
    /// Database errors.
    pub async fn holder(&self, name: &str) -> store::Result<Option<ReplicaRow>> {
        let leases = self.store.lease_list().await?;
        let Some(lease) = leases.into_iter().find(|lease| lease.name == name) else {
            return Ok(None);
        };
        let replicas = self.store.replica_list().await?;
        let mut others = replicas.into_iter().filter(|row| row.id != self.id());
        Ok(others.find(|row| row.id == lease.holder))
    }

    /// The reason why this replica did not get a lease.
    async fn held_elsewhere(&self, name: &str) -> store::Result<NotTaken> {
        let leases = self.store.lease_list().await?;
        let Some(lease) = leases.into_iter().find(|lease| lease.name == name) else {
            let why = "the server's lease is not free yet: after a database failover, leases are granted again after one lease period";
            return Ok(NotTaken::No(why.to_owned()));
        };
        let replicas = self.store.replica_list().await?;
        let holder = replicas.into_iter().find(|row| row.id == lease.holder);
        Ok(match holder {
            Some(row) => NotTaken::By(Box::new(row)),
            None => NotTaken::No(format!(
                "the server ran on replica {}, which is lost",
                lease.holder
            )),
        })
    }

    /// Releases a lease, if it is held. If the database does not confirm that, the release is repeated after the next
    /// renewal.
    pub async fn give_back(&self, name: &str) {
        let member = self.member();
        // Marks the lease as released before the database does. Otherwise the next renewal would report it as missing.
        let Some(fence) = member.leases.lock().leave(name) else {
            return;
        };
        self.warn_sentinel(&member);
        let _one_at_a_time = self.locks.of(name).lock().await;
        if let Err(error) = self.release(&member, name, fence).await {
            tracing::warn!(lease = name, "cannot release the lease yet: {error}");
        }
    }

    /// Repeats releases that the database did not confirm.
    async fn give_back_again(&self) {
        let member = self.member();
        let leaving = member.leases.lock().leaving.clone();
        for (name, fence) in leaving {
            let _one_at_a_time = self.locks.of(&*name).lock().await;
            if let Err(error) = self.release(&member, &name, fence).await {
                tracing::debug!(lease = name, "cannot release the lease yet: {error}");
                return;
            }
        }
    }

    async fn release(&self, member: &Member, name: &str, fence: i64) -> store::Result<()> {
        self.store.lease_release(name, fence).await?;
        member.leases.lock().left(name, fence);
        Ok(())
    }

    /// Passes changed topics to `take_in`, in a loop, together with those that failed before. Starts with all topics.
    pub async fn changes(&self, take_in: impl AsyncFn(BTreeSet<Topic>) -> BTreeSet<Topic>) {
        let mut sight = Sight::default();
        let mut changed = BTreeSet::new();
        let mut hints = None;
        loop {
            if hints.is_none() {
                hints = self.store.change_listen().await.ok().flatten();
            }
            if let Ok(topics) = self.store.change_list(&mut sight).await {
                changed.extend(topics);
            }
            if !changed.is_empty() {
                changed = take_in(changed).await;
            }
            let hinted = async {
                match &mut hints {
                    Some(listening) => listening.next().await,
                    None => std::future::pending().await,
                }
            };
            if let Ok(Err(_)) = tokio::time::timeout(POLL_INTERVAL, hinted).await {
                hints = None;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Ends the membership, on shutdown.
    pub async fn leave(&self) {
        if let Err(error) = self.store.replica_remove(&self.id()).await {
            tracing::warn!("this replica stays listed until its lease expires: {error}");
        }
    }
}

async fn add(store: &Store, lease: Duration, address: &str) -> store::Result<Arc<Member>> {
    let until = Until::of(lease);
    let id = store::new_id();
    let replica = NewReplica {
        id: &id,
        name: &host(),
        version: env!("CARGO_PKG_VERSION"),
        address: Some(address),
    };
    store.replica_add(replica, lease).await?;
    Ok(Arc::new(Member {
        id,
        lost: CancellationToken::new(),
        until: Mutex::new(until),
        leases: Mutex::default(),
    }))
}

/// The ids of the last memberships, oldest first.
fn remembered(file: &Path) -> Vec<String> {
    let ids = fs::read_to_string(file).unwrap_or_default();
    ids.lines().map(str::to_owned).collect()
}

/// Writes the ids of earlier memberships that may still exist, and the current one.
fn remember(file: &Path, mut ids: Vec<String>, current: &str) {
    ids.push(current.to_owned());
    let from = ids.len().saturating_sub(MAX_REMEMBERED);
    if let Err(error) = fs::write(file, ids[from..].join("\n")) {
        tracing::warn!(
            "cannot write {}: {error}. After a crash of this gateway, its servers start only when its lease has expired",
            file.display()
        );
    }
}

pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use testkit::postgres::Database;

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const NAME: &str = "server:x";

    /// The calls to the sentinel, in order: true if a time was set.
    type Told = Arc<Mutex<Vec<bool>>>;

    async fn replica(database: &Database, dir: &Path) -> (Arc<Replica>, Told) {
        joined(database, dir, true).await
    }

    async fn joined(database: &Database, dir: &Path, is_alone: bool) -> (Arc<Replica>, Told) {
        let location = store::Location::Postgres(database.url().to_owned());
        let store = Store::open(&location).await.expect("it opens");
        let told = Told::default();
        let tell = told.clone();
        let end_all_at = move |at: Option<u64>| tell.lock().push(at.is_some());
        let joined = Replica::join(&store, LEASE, end_all_at, dir, "a:1".into(), is_alone);
        (joined.await.expect("it joins").expect("on Postgres"), told)
    }

    async fn take(replica: &Replica) -> Option<i64> {
        let taken = replica.take(NAME).await.ok();
        taken.map(|(fence, _)| fence)
    }

    async fn renew(replica: &Replica) {
        let member = replica.member();
        replica.renew(&member).await.expect("the database answers");
    }

    /// Whichever of the two is killed during an upgrade, the next gateway need not wait for a lease.
    #[tokio::test]
    async fn o06_the_next_gateway_ends_both_memberships_of_an_upgrade() {
        let database = Database::create().await;
        let dir = tempfile::tempdir().expect("a directory");
        let (old, _) = joined(&database, dir.path(), true).await;
        let (new, _) = joined(&database, dir.path(), false).await;
        assert_eq!(old.list().await.expect("the database answers").len(), 2);
        drop((old, new));
        let (next, _) = joined(&database, dir.path(), true).await;
        let listed = next.list().await.expect("the database answers");
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].id, next.id());

        let file = dir.path().join(MEMBERSHIP_FILE);
        for _ in 0..2 * MAX_REMEMBERED {
            remember(&file, remembered(&file), "another");
        }
        assert_eq!(remembered(&file).len(), MAX_REMEMBERED);
    }

    #[tokio::test]
    async fn a_lease_that_is_not_given_back_is_not_held_and_is_given_back_later() {
        let database = Database::create().await;
        let dir = tempfile::tempdir().expect("a directory");
        let (replica, told) = replica(&database, dir.path()).await;
        let other = replica.take("server:y").await.ok().expect("it is free").0;
        let fence = take(&replica).await.expect("it is free");

        // The database refuses the release, or appears to.
        database
            .run(
                "CREATE FUNCTION kb.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
                 CREATE TRIGGER no BEFORE DELETE ON kb.toolwharf_leases FOR EACH ROW EXECUTE FUNCTION kb.no()",
            )
            .await;
        replica.give_back(NAME).await;
        assert!(!replica.holds(NAME));
        assert_eq!(take(&replica).await, None, "it may be on its way");
        renew(&replica).await;

        // The release arrived after all, and the membership is not lost.
        database.run("DROP TRIGGER no ON kb.toolwharf_leases; DELETE FROM kb.toolwharf_leases WHERE name = 'server:x'").await;
        renew(&replica).await;
        assert_eq!(replica.losses(), 0);
        let again = take(&replica).await.expect("it is free");
        assert!(again > fence, "{again} {fence}");
        replica.give_back_again().await;
        renew(&replica).await;
        assert_eq!(replica.losses(), 0);
        let fences = replica.fences().await.expect("the database answers");
        assert_eq!(fences, BTreeSet::from([other, again]));
        replica.give_back(NAME).await;
        replica.give_back("server:y").await;
        assert_eq!(told.lock().last(), Some(&false), "nothing runs");
    }

    #[tokio::test]
    async fn what_was_not_given_back_is_given_back_after_a_renewal() {
        let database = Database::create().await;
        let dir = tempfile::tempdir().expect("a directory");
        let (replica, _) = replica(&database, dir.path()).await;
        take(&replica).await.expect("it is free");
        replica.member().leases.lock().leave(NAME);
        replica.give_back_again().await;
        assert!(
            replica
                .fences()
                .await
                .expect("the database answers")
                .is_empty()
        );
        assert!(replica.member().leases.lock().leaving.is_empty());
    }

    #[test]
    fn a_lease_that_was_given_back_and_taken_again_during_a_renewal_is_not_lacking() {
        let of = |fence| Fences::from([(NAME.to_owned(), fence)]);
        let mut leases = Leases {
            held: of(2),
            ..Leases::default()
        };
        assert!(!leases.are_lacking(&of(1), &of(2)));
        assert!(!leases.are_lacking(&of(1), &Fences::new()));
        assert!(!leases.are_lacking(&of(2), &of(2)));
        assert!(leases.are_lacking(&of(2), &Fences::new()));
        // A late confirmation affects only the lease that it was for.
        assert_eq!(leases.leave(NAME), Some(2));
        assert!(!leases.are_lacking(&of(2), &Fences::new()));
        leases.left(NAME, 1);
        assert_eq!(leases.leaving, of(2));
        leases.left(NAME, 2);
        assert!(leases.leaving.is_empty());
    }
}
