//! What was changed by whichever replica, so that the others read it anew.
//!
//! Triggers add a row for each change, in the transaction that made it. Rows become visible in another order than they are numbered, and old ones
//! are removed. So a replica remembers which it has seen ([`Sight`]); neither a count nor the highest number would do. On SQLite there is
//! one gateway, and there are no changes of others.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use model::ProjectId;

use crate::{
    Store, Time,
    error::{Error, Result},
    open::ACQUIRE,
    sql::{Pool, execute, rows},
};

/// The age from which no change with a lower number becomes visible any more. Open transactions are ended by the database much earlier
/// (`statement_timeout`, `idle_in_transaction_session_timeout`).
const SETTLED: TimeDelta = TimeDelta::minutes(2);
/// The longest time between two looks of which all changes are known. Changes are kept for twice that long.
const MAX_GAP: TimeDelta = TimeDelta::minutes(30);

/// What may be changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Keys,
    /// Of browsers, that ended before their time.
    Sessions,
    Approvals,
    Logins,
    /// Registered servers.
    Servers,
    /// Any of the projects.
    Projects,
    /// A project, its servers, secrets or tool settings.
    Project(ProjectId),
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Keys,
        Self::Sessions,
        Self::Approvals,
        Self::Logins,
        Self::Servers,
        Self::Projects,
    ];

    /// `None`: a later version has it, or an earlier one. `projects` stands beside the project that was changed, for versions that know no
    /// other topic of it.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "keys" => Some(Self::Keys),
            "sessions" => Some(Self::Sessions),
            "approvals" => Some(Self::Approvals),
            "logins" => Some(Self::Logins),
            "servers" => Some(Self::Servers),
            _ => {
                let id = text.strip_prefix("projects/")?;
                ProjectId::parse(id).ok().map(Self::Project)
            }
        }
    }
}

/// Which changes a replica has seen.
#[derive(Debug, Default)]
pub struct Sight {
    /// The history of the database that they are of: in another one the same number is another change.
    history: String,
    looked: Option<Time>,
    /// All changes up to this number have been seen.
    floor: i64,
    /// Those above it.
    seen: BTreeSet<i64>,
}

/// A change, or none, with the history and the time of the look.
type Row = (String, Time, Option<i64>, Option<String>, Option<Time>);

impl Sight {
    /// Whether what is above the floor is all that can be new at such a look.
    fn goes_on(&self, history: &str, now: Time) -> bool {
        let looked = self.looked.is_some_and(|at| now - at <= MAX_GAP);
        looked && self.history == history
    }

    /// Takes in the rows above the floor; what of it is new.
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
            if now - at > SETTLED {
                self.floor = self.floor.max(id);
            }
        }
        let floor = self.floor;
        self.seen.retain(|id| *id > floor);
        topics
    }
}

impl Store {
    /// What was changed since the last look with this `sight`. All topics at the first one, when the database goes on in another history, and
    /// after a time in which changes may have come and gone.
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
        let mut conn = self.pool.read().await?;
        rows!(
            conn,
            Row,
            "SELECT look.history, look.now, changed.id, changed.topic, changed.at
             FROM (SELECT kb.toolwharf_timeline() || ' ' || (SELECT COUNT(*) FROM kb.toolwharf_timelines) AS history,
                          clock_timestamp() AS now) AS look
             LEFT JOIN kb.toolwharf_changes AS changed ON changed.id > $1 ORDER BY changed.id",
            floor,
        )
    }

    /// Forgets what nobody needs any more: changes older than an hour, and heirs of sessions of a month ago.
    pub async fn change_prune(&self) -> Result<()> {
        let mut conn = self.pool.write().await?;
        execute!(
            conn,
            "DELETE FROM kb.toolwharf_changes WHERE at < clock_timestamp() - INTERVAL '1 hour'"
        )?;
        execute!(
            conn,
            "DELETE FROM kb.toolwharf_leases
             WHERE name LIKE 'sessions:%' AND since < clock_timestamp() - INTERVAL '30 days'"
        )?;
        Ok(())
    }

    /// Hears of changes as they are made, until the connection breaks; `None` on SQLite.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn change_listen(&self) -> Result<Option<Hints>> {
        let Pool::Postgres(pool) = &self.pool else {
            return Ok(None);
        };
        let listening = async {
            let mut listener = sqlx::postgres::PgListener::connect_with(pool).await?;
            listener.listen("toolwharf_changes").await?;
            Ok::<_, sqlx::Error>(Hints(listener))
        };
        match tokio::time::timeout(ACQUIRE, listening).await {
            Ok(hints) => Ok(Some(hints?)),
            Err(_) => Err(Error::timed_out()),
        }
    }
}

/// Hints that something was changed.
pub struct Hints(sqlx::postgres::PgListener);

impl Hints {
    /// Waits for the next one, and takes those that have come with it.
    ///
    /// # Errors
    /// The connection broke; some may have been missed.
    pub async fn next(&mut self) -> Result<()> {
        if self.0.try_recv().await?.is_none() {
            return Err(Error::timed_out());
        }
        while self.0.next_buffered().is_some() {}
        Ok(())
    }
}
