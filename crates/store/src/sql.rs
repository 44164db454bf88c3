//! Runs one query text on both engines.
//!
//! [`rows!`], [`row!`] and [`execute!`] take a connection ([`Conn`]) or a transaction ([`Tx`]), a query text and its
//! arguments, and run them with a timeout on either engine. Input that only one engine refuses is refused here for
//! both: SQLite would accept a NUL and Postgres would not, so [`Key`], [`Text`] and [`Doc`] refuse it. Every argument
//! that comes from outside has one of these types.
//!
//! Dropping a [`Tx`] rolls it back.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use model::ProjectId;
use serde_json::Value;
use sqlx::{
    Database, Encode, Executor as _, PgConnection, PgPool, Postgres, Sqlite, SqliteConnection,
    SqlitePool, Type, encode::IsNull, error::BoxDynError, pool::PoolConnection,
    postgres::PgTypeInfo, sqlite::SqliteTypeInfo, types::Json,
};

use crate::{
    Page,
    connect::DISK_TIMEOUT,
    error::{Error, Result},
    journal::Journal,
    names::MAX_KEY,
    writer::{Writer, Writing},
};

/// Client-side timeout for a Postgres statement, for a database that does not respond. Postgres itself cancels a
/// statement after 2 s (`statement_timeout`).
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(3);

/// The connections to a database.
#[derive(Clone, Debug)]
pub(crate) enum Pool {
    /// SQLite allows one writer at a time, and a second writer would only wait for the lock. So one connection can
    /// write, and the others are read-only. (The journal of calls has its own connection for writing.)
    Sqlite {
        read: SqlitePool,
        write: Writer,
        journal: Journal,
    },
    Postgres(PgPool),
}

/// A connection from the pool. Each statement is its own transaction.
pub(crate) enum Conn {
    Sqlite(PoolConnection<Sqlite>),
    Writer(Writing),
    Postgres(PoolConnection<Postgres>),
}

pub(crate) enum Tx {
    Sqlite(Writing),
    Postgres(Whole),
}

/// A Postgres transaction. Unless the transaction is committed, its connection is closed and not returned to the pool.
///
/// If a `BEGIN` is cancelled while the database does not respond, sqlx (0.9) returns the connection to the pool inside
/// a transaction that it does not know about. Later statements on that connection would succeed but never be committed.
pub(crate) struct Whole {
    conn: PoolConnection<Postgres>,
    is_done: bool,
}

impl Whole {
    pub(crate) async fn begin(pool: &PgPool) -> sqlx::Result<Self> {
        let conn = pool.acquire().await?;
        let is_done = false;
        let mut whole = Self { conn, is_done };
        whole.conn.execute("BEGIN").await?;
        Ok(whole)
    }

    pub(crate) async fn commit(mut self) -> sqlx::Result<()> {
        self.conn.execute("COMMIT").await?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.is_done {
            self.conn.close_on_drop();
        }
    }
}

impl Deref for Whole {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for Whole {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

/// The target of a statement.
pub(crate) enum On<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl On<'_> {
    pub(crate) fn timeout(&self) -> Duration {
        match self {
            Self::Sqlite(_) => DISK_TIMEOUT,
            Self::Postgres(_) => STATEMENT_TIMEOUT,
        }
    }
}

impl Pool {
    /// A connection for statements that change nothing.
    pub(crate) async fn read(&self) -> Result<Conn> {
        Ok(match self {
            Self::Sqlite { read, .. } => Conn::Sqlite(read.acquire().await?),
            Self::Postgres(pool) => Conn::Postgres(pool.acquire().await?),
        })
    }

    /// A connection for one statement that changes something.
    pub(crate) async fn write(&self) -> Result<Conn> {
        Ok(match self {
            Self::Sqlite { write, .. } => Conn::Writer(write.acquire().await?),
            Self::Postgres(pool) => Conn::Postgres(pool.acquire().await?),
        })
    }

    /// A transaction that will write.
    pub(crate) async fn begin(&self) -> Result<Tx> {
        Ok(match self {
            Self::Sqlite { write, .. } => {
                let mut writing = write.acquire().await?;
                within(DISK_TIMEOUT, writing.begin()).await?;
                Tx::Sqlite(writing)
            }
            Self::Postgres(pool) => {
                Tx::Postgres(within(STATEMENT_TIMEOUT, Whole::begin(pool)).await?)
            }
        })
    }
}

impl Conn {
    pub(crate) fn on(&mut self) -> On<'_> {
        match self {
            Self::Sqlite(conn) => On::Sqlite(conn),
            Self::Writer(conn) => On::Sqlite(conn),
            Self::Postgres(conn) => On::Postgres(conn),
        }
    }
}

impl Tx {
    pub(crate) fn on(&mut self) -> On<'_> {
        match self {
            Self::Sqlite(tx) => On::Sqlite(tx),
            Self::Postgres(tx) => On::Postgres(tx),
        }
    }

    pub(crate) async fn commit(self) -> Result<()> {
        match self {
            Self::Sqlite(tx) => within(DISK_TIMEOUT, tx.commit()).await,
            Self::Postgres(tx) => within(STATEMENT_TIMEOUT, tx.commit()).await,
        }
    }
}

/// Times out after `limit`. The connection returns to the pool only when the engine has finished with the
/// cancelled statement.
pub(crate) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = std::result::Result<T, sqlx::Error>>,
) -> Result<T> {
    match tokio::time::timeout(limit, statement).await {
        Ok(result) => result.map_err(Error::from),
        Err(_) => Err(Error::timed_out()),
    }
}

/// Runs the same expression with the connection of either engine; `$Db` names the engine.
macro_rules! on {
    ($on:expr, |$conn:ident: $Db:ident| $run:expr) => {
        match $on.on() {
            // `on` is bound outside of the `async` block, so that a connection acquired for this one statement lives as
            // long as the `match`.
            on => {
                $crate::sql::within(on.timeout(), async {
                    match on {
                        $crate::sql::On::Sqlite($conn) => {
                            type $Db = sqlx::Sqlite;
                            $run.await
                        }
                        $crate::sql::On::Postgres($conn) => {
                            type $Db = sqlx::Postgres;
                            $run.await
                        }
                    }
                })
                .await
            }
        }
    };
}

/// Runs a query and returns all its rows.
macro_rules! rows {
    ($on:expr, $row:ty, $text:expr $(, $arg:expr)* $(,)?) => {
        $crate::sql::on!($on, |conn: Db| sqlx::query_as::<Db, $row>($text)
            $(.bind($arg))*
            .fetch_all(conn))
    };
}

/// Runs a query and returns its row, if there is one.
macro_rules! row {
    ($on:expr, $row:ty, $text:expr $(, $arg:expr)* $(,)?) => {
        $crate::sql::on!($on, |conn: Db| sqlx::query_as::<Db, $row>($text)
            $(.bind($arg))*
            .fetch_optional(conn))
    };
}

/// Runs a statement and returns the number of changed rows.
macro_rules! execute {
    ($on:expr, $text:expr $(, $arg:expr)* $(,)?) => {
        $crate::sql::on!($on, |conn: Db| async {
            let done = sqlx::query::<Db>($text)$(.bind($arg))*.execute(conn).await?;
            Ok(done.rows_affected())
        })
    };
}

/// Returns one page of the rows that satisfy a [`Filter`], in the order `$order`.
macro_rules! page {
    ($on:expr, $row:ty, $select:expr, $filter:expr, $order:literal, $page:expr) => {{
        let filter: $crate::sql::Filter<'_> = $filter;
        let text = filter.text($select, $order);
        $crate::sql::on!($on, |conn: Db| {
            // The statement is not cached, because there are many combinations of conditions and each is rare.
            let mut query = sqlx::query_as::<Db, $row>(sqlx::AssertSqlSafe(text)).persistent(false);
            for value in filter.values() {
                query = query.bind(value);
            }
            query.bind($page.limit()).fetch_all(conn)
        })
    }};
}

/// Names a table and the columns of its row type, once per module. Defines `query!`:
///
/// - `query!(select "WHERE …")` reads rows.
/// - `query!(select "more columns", "WHERE …")` reads rows with more columns.
/// - `query!(returning "INSERT …")` returns the rows that it writes.
///
/// The first argument must be `$`: `query!` is defined inside a macro, and can name its own parameters only with a `$`
/// that is passed in.
#[rustfmt::skip]
macro_rules! table {
    ($d:tt, $name:literal, $columns:literal) => {
        macro_rules! query {
            (select $d rest:literal) => {
                concat!("SELECT ", $columns, " FROM ", $name, " ", $d rest)
            };
            (select $d more:literal, $d rest:literal) => {
                concat!("SELECT ", $columns, ", ", $d more, " FROM ", $name, " ", $d rest)
            };
            (returning $d statement:literal) => {
                concat!($d statement, " RETURNING ", $columns)
            };
        }
    };
}

pub(crate) use {execute, on, page, row, rows, table};

/// The optional conditions of a query. A fixed query text with `$1 IS NULL OR …` could not use an index, and sqlx's
/// `QueryBuilder` panics on a value that [`Key`] refuses.
#[derive(Default)]
pub(crate) struct Filter<'a> {
    conditions: Vec<(&'static str, Key<'a>)>,
}

impl<'a> Filter<'a> {
    /// Selects the rows of a project (`None`: of all) that follow the previous page, in a list with the newest first.
    pub(crate) fn newest_first(project: Option<&'a ProjectId>, page: &'a Page) -> Self {
        Self::default()
            .and("project_id =", project.map(ProjectId::as_str))
            .and("id <", page.after.as_deref())
    }

    /// Adds `condition`, which is a column and an operator, unless `value` is `None`.
    pub(crate) fn and(mut self, condition: &'static str, value: Option<&'a str>) -> Self {
        self.conditions
            .extend(value.map(|value| (condition, Key(value))));
        self
    }

    pub(crate) fn text(&self, select: &str, order: &str) -> String {
        let mut text = format!("{select} WHERE TRUE");
        for (index, (condition, _)) in self.conditions.iter().enumerate() {
            text.push_str(&format!(" AND {condition} ${}", index + 1));
        }
        let limit = self.conditions.len() + 1;
        format!("{text} ORDER BY {order} LIMIT ${limit}")
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = Key<'a>> {
        self.conditions.iter().map(|(_, value)| *value)
    }
}

/// An indexed name: no NUL, at most [`MAX_KEY`] bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a>(pub(crate) &'a str);

/// A text of any length without a NUL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a>(pub(crate) &'a str);

/// A JSON document without a NUL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doc<'a>(pub(crate) &'a Value);

const NUL_ERROR: &str = "a text cannot contain the character U+0000";

impl<'a> Key<'a> {
    fn checked(&self) -> std::result::Result<&'a str, BoxDynError> {
        if self.0.len() > MAX_KEY {
            return Err(format!(
                "a name may have at most {MAX_KEY} bytes, but this name has {}",
                self.0.len()
            )
            .into());
        }
        Text(self.0).checked()
    }
}

impl<'a> Text<'a> {
    fn checked(&self) -> std::result::Result<&'a str, BoxDynError> {
        if self.0.contains('\0') {
            return Err(NUL_ERROR.into());
        }
        Ok(self.0)
    }
}

impl<'a> Doc<'a> {
    fn checked(&self) -> std::result::Result<Json<&'a Value>, BoxDynError> {
        fn has_nul(value: &Value) -> bool {
            match value {
                Value::String(text) => text.contains('\0'),
                Value::Array(items) => items.iter().any(has_nul),
                Value::Object(map) => map.iter().any(|(key, v)| key.contains('\0') || has_nul(v)),
                Value::Null | Value::Bool(_) | Value::Number(_) => false,
            }
        }
        if has_nul(self.0) {
            return Err(NUL_ERROR.into());
        }
        Ok(Json(self.0))
    }
}

macro_rules! checked_argument {
    ($($name:ident as $inner:ty),*) => {$(
        impl Type<Sqlite> for $name<'_> {
            fn type_info() -> SqliteTypeInfo {
                <$inner as Type<Sqlite>>::type_info()
            }
        }

        impl Type<Postgres> for $name<'_> {
            fn type_info() -> PgTypeInfo {
                <$inner as Type<Postgres>>::type_info()
            }
        }

        impl Encode<'_, Sqlite> for $name<'_> {
            fn encode_by_ref(
                &self,
                buffer: &mut <Sqlite as Database>::ArgumentBuffer,
            ) -> std::result::Result<IsNull, BoxDynError> {
                Encode::<Sqlite>::encode(self.checked()?, buffer)
            }
        }

        impl Encode<'_, Postgres> for $name<'_> {
            fn encode_by_ref(
                &self,
                buffer: &mut <Postgres as Database>::ArgumentBuffer,
            ) -> std::result::Result<IsNull, BoxDynError> {
                Encode::<Postgres>::encode(self.checked()?, buffer)
            }
        }
    )*};
}

checked_argument!(
    Key as &'static str,
    Text as &'static str,
    Doc as Json<&'static Value>
);
