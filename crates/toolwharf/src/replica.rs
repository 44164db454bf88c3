//! This gateway as one of several on the same Postgres: that it is there, and what only it may do.
//!
//! A replica is a member as long as the database hears of it in time. A member that was lost has lost all leases, and joins again
//! under another id. It stops what it holds leases for before the database gives them to another: the time is
//! reckoned from before the last renewal was sent, on this machine's monotonic clock. A renewal is one only if the database still has all
//! leases that it gave: after a failover some may be missing. What it cannot stop itself, since it is
//! stopped, the sentinel kills. Deliberately absent on SQLite, where there is one gateway.

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
use runtime::{process::Spawner, sentinel::monotonic_nanos};
use store::{NewReplica, ReplicaRow, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Renewals in the time of a lease.
const RENEWALS: u32 = 3;
/// From one look at what others changed to the next, unless a hint comes before.
const LOOK: Duration = Duration::from_secs(1);
/// The file in the data directory that names the last membership: whoever has the directory next ends it.
const FILE: &str = "replica";
/// From one time that old changes are forgotten to the next.
const PRUNE: Duration = Duration::from_secs(600);
/// Seconds that the clock of a machine may be away from the database's before that is told.
const MAX_SKEW_SECONDS: u64 = 5;
/// The lease of whoever removes what is too old.
pub(crate) const SWEEP: &str = "sweep";
/// The lease of whoever makes servers of resources of Kubernetes.
pub(crate) const RESOURCES: &str = "kubernetes";

pub(crate) struct Replica {
    store: Store,
    /// For renewals: no lease is lost because others use all connections.
    own: Store,
    lease: Duration,
    member: Mutex<Arc<Member>>,
    /// How often it was lost.
    losses: AtomicU64,
    /// The replicas that there were at its last look, and the fences of what they held.
    seen: Mutex<(Vec<String>, Vec<i64>)>,
    /// How often that was something else than before.
    turns: AtomicU64,
    spawner: Spawner,
    file: PathBuf,
    /// Where other replicas reach it.
    address: String,
    /// Seconds by which the database's clock was ahead of this machine's at the last renewal.
    clock: AtomicI64,
}

/// Why this replica does not have a lease.
pub(crate) enum NotTaken {
    /// That replica has it.
    By(Box<ReplicaRow>),
    /// Nobody, or the database does not say.
    No(String),
}

/// One membership.
struct Member {
    id: String,
    /// What it holds is not its own any more.
    lost: CancellationToken,
    until: Mutex<Until>,
    /// Leases with their fences.
    held: Mutex<HashMap<String, i64>>,
}

/// How long it may go on by its last renewal.
#[derive(Clone, Copy)]
struct Until {
    /// When it has to stop what it holds leases for.
    stop: Instant,
    /// When that is killed, in nanoseconds of the monotonic clock.
    kill: u64,
}

impl Until {
    /// By a renewal that is sent now.
    fn of(lease: Duration) -> Self {
        let nanos = u64::try_from((lease * 9 / 10).as_nanos()).unwrap_or(u64::MAX);
        Self {
            stop: Instant::now() + lease * 3 / 4,
            kill: monotonic_nanos().saturating_add(nanos),
        }
    }
}

impl Replica {
    /// Joins the replicas of this database; `None` if one gateway has it for itself. Whoever calls this holds the lock
    /// of the data directory: the gateway that had it before is dead, and not waited for.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn join(
        store: &Store,
        lease: Duration,
        spawner: &Spawner,
        data_dir: &Path,
        address: String,
    ) -> store::Result<Option<Arc<Self>>> {
        if !store.has_replicas() {
            return Ok(None);
        }
        let own = store.apart();
        let file = data_dir.join(FILE);
        if let Ok(before) = fs::read_to_string(&file) {
            store.replica_remove(before.trim()).await?;
        }
        let member = add(&own, lease, &file, &address).await?;
        Ok(Some(Arc::new(Self {
            store: store.clone(),
            own,
            lease,
            member: Mutex::new(member),
            losses: AtomicU64::new(0),
            seen: Mutex::default(),
            turns: AtomicU64::new(0),
            spawner: spawner.clone(),
            file,
            address,
            clock: AtomicI64::new(0),
        })))
    }

    fn member(&self) -> Arc<Member> {
        self.member.lock().clone()
    }

    /// The id of its membership.
    pub(crate) fn id(&self) -> String {
        self.member().id.clone()
    }

    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Another number whenever a replica came or went, or a lease got another holder.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// All replicas that are there.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn list(&self) -> store::Result<Vec<ReplicaRow>> {
        self.store.replica_list().await
    }

    /// How many replicas there are (`None`: the database does not say), and leases that this one holds.
    pub(crate) async fn counts(&self) -> (Option<u64>, u64) {
        let replicas = self.store.replica_list().await.ok();
        let held = self.member().held.lock().len();
        (replicas.map(|all| all.len() as u64), held as u64)
    }

    /// Stays a member, and removes those that are lost, for ever.
    pub(crate) async fn follow(&self) {
        let mut pruned: Option<Instant> = None;
        let mut away = false;
        loop {
            let member = self.member();
            let stop = member.until.lock().stop;
            let began = Instant::now();
            let renewed = match member.lost.is_cancelled() {
                true => {
                    // What ran under a lease is dead. What needs none is started again, and may live.
                    if stop.elapsed() > self.lease / 4 {
                        self.spawner.end_all_at(None);
                    }
                    self.rejoin().await
                }
                false => match tokio::time::timeout_at(stop, self.renew(&member)).await {
                    Ok(renewed) => renewed,
                    Err(_) => {
                        self.lose(&member, "the database did not hear of it in time");
                        continue;
                    }
                },
            };
            if let Err(error) = &renewed
                && !away
            {
                tracing::warn!("this replica is not renewed: {error}");
            }
            away = renewed.is_err();
            if !away {
                // A slow database keeps it from the next renewal no longer than this.
                let by = began + self.lease / 2;
                let kept = tokio::time::timeout_at(by, self.keep_house()).await;
                if let Ok(Err(error)) = kept {
                    tracing::debug!("not all was seen to: {error}");
                }
            }
            if !away && pruned.is_none_or(|at| at.elapsed() > PRUNE) {
                pruned = self.store.change_prune().await.is_ok().then(Instant::now);
            }
            // Soon again while the database is away. A slow one is asked as often as a quick one.
            let stop = self.member().until.lock().stop;
            let next = match away {
                true => Instant::now() + self.lease / 10,
                false => began + self.lease / RENEWALS,
            };
            tokio::time::sleep_until(if member.lost.is_cancelled() {
                next
            } else {
                next.min(stop)
            })
            .await;
        }
    }

    async fn renew(&self, member: &Member) -> store::Result<()> {
        let until = Until::of(self.lease);
        let held = member.held.lock().clone();
        let renewed = self.own.replica_renew(&member.id, self.lease).await?;
        let Some(has) = renewed else {
            self.lose(member, "it was taken for lost");
            return self.rejoin().await;
        };
        // What was given back meanwhile does not matter.
        let lacks = {
            let now = member.held.lock();
            let mut held = held.iter().filter(|(name, _)| now.contains_key(*name));
            held.any(|(name, fence)| has.get(name) != Some(fence))
        };
        if lacks {
            self.lose(member, "the database lacks a lease that it gave");
            return self.rejoin().await;
        }
        *member.until.lock() = until;
        self.warn_sentinel(member);
        self.note_clock();
        Ok(())
    }

    /// Notices failovers and who is lost, who is there, and what they hold.
    async fn keep_house(&self) -> store::Result<()> {
        if self.store.timeline_is_new().await? {
            let time = self.lease.as_secs();
            tracing::warn!(
                "the database goes on from a standby or a backup, and may lack what was written last: leases that are free are given in {time} s"
            );
            self.store.timeline_begin().await?;
        }
        for lost in self.store.replica_remove_lost().await? {
            tracing::warn!(id = lost.id, host = lost.name, "a replica is lost");
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

    /// Tells once when the clock of this machine is far from the database's.
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
                "the clock of this machine is {} s {} the database's, which is gone by",
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
            "this replica is lost: {why}; it stops what it holds leases for"
        );
        member.lost.cancel();
    }

    async fn rejoin(&self) -> store::Result<()> {
        let member = add(&self.own, self.lease, &self.file, &self.address).await?;
        tracing::info!(id = member.id, "this replica joined again");
        *self.member.lock() = member;
        self.spawner.end_all_at(None);
        Ok(())
    }

    /// Tells the sentinel when what runs here has to be gone, if anything runs under a lease.
    fn warn_sentinel(&self, member: &Member) {
        let runs_nothing = [SWEEP, RESOURCES];
        let held = member.held.lock();
        let runs = held
            .keys()
            .any(|name| !runs_nothing.contains(&name.as_str()));
        drop(held);
        let kill = member.until.lock().kill;
        self.spawner.end_all_at(runs.then_some(kill));
    }

    /// Takes a lease, or has it already: its fence, and a token that is cancelled when it is lost.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn take(&self, name: &str) -> Result<(i64, CancellationToken), NotTaken> {
        let member = self.member();
        // It may have been stopped, and not have noticed that it is lost.
        if member.lost.is_cancelled() || member.until.lock().stop <= Instant::now() {
            let why = "this replica cannot reach the database";
            return Err(NotTaken::No(why.to_owned()));
        }
        if let Some(fence) = member.held.lock().get(name) {
            return Ok((*fence, member.lost.clone()));
        }
        let told = |error: store::Error| NotTaken::No(error.to_string());
        let taken = self.store.lease_take(name, &member.id, self.lease).await;
        let Some(fence) = taken.map_err(told)? else {
            return Err(self.held_elsewhere(name).await.unwrap_or_else(told));
        };
        member.held.lock().insert(name.to_owned(), fence);
        self.warn_sentinel(&member);
        Ok((fence, member.lost.clone()))
    }

    /// Whether it has a lease, as far as it knows.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.member().held.lock().contains_key(name)
    }

    /// The fences of all leases that are held.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn fences(&self) -> store::Result<BTreeSet<i64>> {
        let leases = self.store.lease_list().await?;
        Ok(leases.iter().map(|lease| lease.fence).collect())
    }

    /// Agrees with the others on the heir of sessions: this replica, unless another one that is not `from` is it already. Nothing is
    /// stopped when that is lost. `None`: the database does not say.
    pub(crate) async fn heir(&self, sessions: &str, from: Option<&str>) -> Option<String> {
        let name = format!("sessions:{sessions}");
        let agreed = self.store.lease_agree(&name, &self.id(), from).await;
        agreed.ok().flatten()
    }

    /// The replica that has a lease, if that is another one.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) async fn holder(&self, name: &str) -> store::Result<Option<ReplicaRow>> {
        let leases = self.store.lease_list().await?;
        let Some(lease) = leases.into_iter().find(|lease| lease.name == name) else {
            return Ok(None);
        };
        let replicas = self.store.replica_list().await?;
        let mut others = replicas.into_iter().filter(|row| row.id != self.id());
        Ok(others.find(|row| row.id == lease.holder))
    }

    /// Who has a lease that this replica does not get.
    async fn held_elsewhere(&self, name: &str) -> store::Result<NotTaken> {
        let leases = self.store.lease_list().await?;
        let Some(lease) = leases.into_iter().find(|lease| lease.name == name) else {
            let why = "its lease is about to be given; after a failover of the database that takes the time of a lease";
            return Ok(NotTaken::No(why.to_owned()));
        };
        let replicas = self.store.replica_list().await?;
        let holder = replicas.into_iter().find(|row| row.id == lease.holder);
        Ok(match holder {
            Some(row) => NotTaken::By(Box::new(row)),
            None => NotTaken::No(format!("it ran on replica {}, which is lost", lease.holder)),
        })
    }

    /// Gives a lease back, if it has it.
    pub(crate) async fn give_back(&self, name: &str) {
        let member = self.member();
        // First, or it would be missed when the next renewal looks for it.
        let fence = member.held.lock().remove(name);
        let Some(fence) = fence else { return };
        match self.store.lease_release(name, fence).await {
            Ok(()) => self.warn_sentinel(&member),
            Err(error) => {
                member.held.lock().insert(name.to_owned(), fence);
                tracing::warn!(lease = name, "a lease is not given back: {error}");
            }
        }
    }

    /// Tells of each topic that was changed, for ever, and again until that was taken in: once of all at the beginning.
    pub(crate) async fn changes(&self, changed: impl AsyncFn(&str) -> bool) {
        let mut seen: HashMap<String, String> = HashMap::new();
        let mut hints = None;
        loop {
            if hints.is_none() {
                hints = self.store.change_listen().await.ok().flatten();
            }
            if let Ok(all) = self.store.change_list().await {
                for (topic, revision) in all {
                    if seen.get(&topic) != Some(&revision) && changed(&topic).await {
                        seen.insert(topic, revision);
                    }
                }
            }
            let hinted = async {
                match &mut hints {
                    Some(listening) => listening.next().await,
                    None => std::future::pending().await,
                }
            };
            if let Ok(Err(_)) = tokio::time::timeout(LOOK, hinted).await {
                hints = None;
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Gives up what it holds, for it stops.
    pub(crate) async fn leave(&self) {
        if let Err(error) = self.store.replica_remove(&self.id()).await {
            tracing::warn!("this replica stays in the list until it expires: {error}");
        }
    }
}

async fn add(
    store: &Store,
    lease: Duration,
    file: &Path,
    address: &str,
) -> store::Result<Arc<Member>> {
    let until = Until::of(lease);
    let id = store::new_id();
    let replica = NewReplica {
        id: &id,
        name: &host(),
        version: env!("CARGO_PKG_VERSION"),
        address: Some(address),
    };
    store.replica_add(replica, lease).await?;
    if let Err(error) = fs::write(file, &id) {
        tracing::warn!(
            "after a crash of this gateway its servers wait for its lease: cannot write {}: {error}",
            file.display()
        );
    }
    Ok(Arc::new(Member {
        id,
        lost: CancellationToken::new(),
        until: Mutex::new(until),
        held: Mutex::default(),
    }))
}

/// The name of this host.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
