//! Change notifications between replicas.
//!
//! Triggers add a row for each change, in the transaction that made the change. Rows do not become visible in the order
//! of their numbers, and old rows are deleted. Each replica therefore remembers which rows it has seen ([`Sight`]); the
//! number of rows or the highest row number would not be enough. SQLite allows one gateway only, so there are no
//! changes by others.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use model::ProjectId;

use crate::connect::ACQUIRE_TIMEOUT;
use crate::{
    Store, Time,
    error::{Error, Result},
    sql::{Pool, execute, rows},
};

/// When a change is older than this, no change with a lower number can become visible any more. The database ends open
/// transactions much earlier (`statement_timeout`, `idle_in_transaction_session_timeout`).
const SETTLE_TIME: TimeDelta = TimeDelta::minutes(2);
/// Maximum time between two polls that are guaranteed to miss no change. Changes are kept for twice that long.
const MAX_GAP: TimeDelta = TimeDelta::minutes(30);

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Keys,
    /// Browser sessions that ended before they expired.
    Sessions,
    Approvals,
    Logins,
    /// Registered servers.
    Servers,
    /// Servers whose bodies are recorded for a while.
    Recordings,
    /// Secrets of the servers in the configuration file.
    Secrets,
    /// Any project. The topic does not name the project.
    Projects,
    /// A project, its servers, secrets or tool settings.
    Project(ProjectId),
}

impl Topic {
    pub const ALL: [Self; 8] = [
        Self::Keys,
        Self::Sessions,
        Self::Approvals,
        Self::Logins,
        Self::Servers,
        Self::Recordings,
        Self::Secrets,
        Self::Projects,
    ];

    /// Returns `None` for an unknown topic, from a later or an earlier version. For a changed project there is also a
    /// row `projects`, because some versions know only that topic.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "keys" => Some(Self::Keys),
            "sessions" => Some(Self::Sessions),
            "approvals" => Some(Self::Approvals),
            "logins" => Some(Self::Logins),
            "servers" => Some(Self::Servers),
            "recordings" => Some(Self::Recordings),
            "secrets" => Some(Self::Secrets),
            _ => {
                let id = text.strip_prefix("projects/")?;
                ProjectId::parse(id).ok().map(Self::Project)
            }
        }
    }
}

/// Records which changes a replica has seen.
#[derive(Debug, Default)]
pub struct Sight {
    /// The database history that the numbers belong to. After a failover, the same number may be a different change.
    history: String,
    looked: Option<Time>,
    /// All changes up to this number have been seen.
    floor: i64,
    /// Changes above the floor that have been seen.
    seen: BTreeSet<i64>,
}

/// The history, the time of the poll and, if the poll found one, a change: its number, topic and time.
type Row = (String, Time, Option<i64>, Option<String>, Option<Time>);

impl Sight {
    /// Returns whether the rows above the floor include every new change. `false` after a failover or a long gap.
    fn goes_on(&self, history: &str, now: Time) -> bool {
        let looked = self.looked.is_some_and(|at| now - at <= MAX_GAP);
        looked && self.history == history
    }

    /// Records the rows above the floor, and returns the topics of the new ones.
    fn note(&mut self, rows: Vec<Row>) -> BTreeSet<Topic> {
        let mut topics = BTreeSet::new();
        for (history, now, id, topic, at) in rows {
            (self.history, self.looked) = (history, Some(now));
            let (Some(id), Some(topic), Some(at)) = (id, topic, at) else {
                continue;
            };
            if self.seen.insert(id) {
                topics.extend(Topic::parse(&topic));
            }
            if now - at > SETTLE_TIME {
                self.floor = self.floor.max(id);
            }
        }
        let floor = self.floor;
        self.seen.retain(|id| *id > floor);
        topics
    }
}

impl Store {
    /// Returns what changed since the last poll with this `sight`. Returns all topics on the first poll, when the
    /// history of the database changed, and after a gap in which changes may have been added and deleted.
    pub async fn change_list(&self, sight: &mut Sight) -> Result<BTreeSet<Topic>> {
        if !self.has_replicas() {
            return Ok(BTreeSet::new());
        }
        let rows = self.changes_after(sight.floor).await?;
        let goes_on = |(history, now, ..): &Row| sight.goes_on(history, *now);
        if rows.first().is_some_and(goes_on) {
            return Ok(sight.note(rows));
        }
        let mut anew = Sight::default();
        anew.note(self.changes_after(anew.floor).await?);
        *sight = anew;
        Ok(Topic::ALL.into())
    }

    async fn changes_after(&self, floor: i64) -> Result<Vec<Row>> {
        rows!(
            self.pool.read().await?,
            Row,
            "SELECT look.history, look.now, changed.id, changed.topic, changed.at
             FROM (SELECT kb.toolwharf_timeline() || ' ' || (SELECT COUNT(*) FROM kb.toolwharf_timelines) AS history,
                          clock_timestamp() AS now) AS look
             LEFT JOIN kb.toolwharf_changes AS changed ON changed.id > $1 ORDER BY changed.id",
            floor,
        )
    }

    /// Deletes changes older than one hour, and leases older than 30 days that say which replica continues the sessions
    /// of a lost one.
    pub async fn change_prune(&self) -> Result<()> {
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_changes WHERE at < clock_timestamp() - INTERVAL '1 hour'"
        )?;
        execute!(
            self.pool.write().await?,
            "DELETE FROM kb.toolwharf_leases
             WHERE name LIKE 'sessions:%' AND since < clock_timestamp() - INTERVAL '30 days'"
        )?;
        Ok(())
    }

    /// Listens for changes until the connection breaks. `None` on SQLite.
    ///
    /// # Errors
    /// Database errors.
    pub async fn change_listen(&self) -> Result<Option<Hints>> {
        let Pool::Postgres(pool) = &self.pool else {
            return Ok(None);
        };
        let listening = async {
            let mut listener = sqlx::postgres::PgListener::connect_with(pool).await?;
            listener.listen("toolwharf_changes").await?;
            Ok::<_, sqlx::Error>(Hints(listener))
        };
        match tokio::time::timeout(ACQUIRE_TIMEOUT, listening).await {
            Ok(hints) => Ok(Some(hints?)),
            Err(_) => Err(Error::timed_out()),
        }
    }
}

/// Hints that something changed.
pub struct Hints(sqlx::postgres::PgListener);

impl Hints {
    /// Waits for the next hint and discards the others that have already arrived.
    ///
    /// # Errors
    /// The connection broke. Hints may have been missed.
    pub async fn next(&mut self) -> Result<()> {
        if self.0.try_recv().await?.is_none() {
            return Err(Error::timed_out());
        }
        while self.0.next_buffered().is_some() {}
        Ok(())
    }
}
