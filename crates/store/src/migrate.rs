//! Schema migrations.
//!
//! Migrations are SQL files in `crates/store/migrations`, one folder for each engine, with the same numbers from 1
//! without a gap. A released migration is never edited: `kb.schema_migrations` records the digest of its text, and a
//! database with another digest is refused.
//!
//! A program can use a database that is newer than itself if the migrations that it does not know allow it (`needs` in
//! `kb.schema_migrations`). So gateways can be upgraded one after the other. A migration that removes something, or
//! changes its meaning, therefore takes two steps: one version writes both forms and reads the new one, and the next
//! version removes the old one.
//!
//! A migration run is one transaction that takes a lock, checks which migrations are applied, and applies the missing
//! ones. Two programs that start at the same time take turns, and a program that is killed leaves the schema as it was.

use std::time::Duration;

use tokio::time::Instant;

use crate::connect::Location;
use crate::{
    error::{Error, OpenError},
    id::now,
    sql::{On, Pool, Tx, execute, row, rows},
};

/// Timeout for another program's migration, and for the migrations of this program.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);

struct Migration {
    name: &'static str,
    /// A program can use a database with this migration if it knows at least this schema version. Recorded from
    /// [`NEEDS_RECORDED`] on.
    needs: i64,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! migrations {
    ($($name:literal $needs:literal),* $(,)?) => {
        &[$(Migration {
            name: $name,
            needs: $needs,
            sqlite: include_str!(concat!("../migrations/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../migrations/postgres/", $name, ".sql")),
        }),*]
    };
}

/// All migrations, in order. The first is version 1.
const MIGRATIONS: &[Migration] = migrations![
    "0001_tables" 1,
    "0002_indexes" 2,
    "0003_hosted_servers" 3,
    "0004_conversations" 4,
    "0005_lighter_calls" 5,
    "0006_runs" 6,
    "0007_pins_and_configurations" 7,
    "0008_logins" 8,
    "0009_keys_of_all_projects" 9,
    "0010_steps_of_calls" 10,
    "0011_replicas" 11,
    "0012_processes" 11,
    "0013_homes" 12,
    "0014_timelines" 12,
    "0015_tickets" 12,
    "0016_changes_of_projects" 12,
    "0017_bound_clients" 12,
    "0018_left" 12,
    "0019_recordings" 12,
    "0020_keys_and_callers" 12,
    "0021_secrets" 12,
    "0022_backups" 12,
    "0023_results" 12,
    "0024_tools_of_keys" 12,
    "0025_journals" 12,
];

/// The first version whose migration records `needs`.
pub(crate) const NEEDS_RECORDED: i64 = 13;

/// The first version that has journals of calls.
pub(crate) const HAS_JOURNALS: i64 = 25;

/// The schema version of this program.
pub const LATEST: i64 = MIGRATIONS.len() as i64;

/// Returns true if a program with this schema version can use a database that this program has migrated.
pub fn is_usable_with(version: i64) -> bool {
    let known = usize::try_from(version).unwrap_or_default();
    let mut later = MIGRATIONS.iter().skip(known);
    later.all(|migration| migration.needs <= version)
}

/// The advisory lock of Postgres for migrations: any number that no other program is likely to use.
const ADVISORY_LOCK_ID: i64 = 0x746f_6f6c_7768_6166;

/// Migrates the schema to `version`.
pub(crate) async fn run(pool: &Pool, location: &Location, version: i64) -> Result<(), OpenError> {
    let failed = |source| OpenError::Database {
        location: location.to_string(),
        source,
    };
    let mut tx = pool.begin().await.map_err(failed)?;
    run_in(&mut tx, location, version).await?;
    tx.commit().await.map_err(failed)
}

/// Like [`run`], inside a transaction that the caller commits.
pub(crate) async fn run_in(
    tx: &mut Tx,
    location: &Location,
    version: i64,
) -> Result<(), OpenError> {
    let failed = |source| OpenError::Database {
        location: location.to_string(),
        source,
    };
    prepare(tx).await.map_err(failed)?;
    let applied = rows!(
        tx,
        (i64, String),
        "SELECT version, checksum FROM kb.schema_migrations ORDER BY version"
    );
    let applied = applied.map_err(failed)?;
    let (known, later): (Vec<_>, Vec<_>) =
        (applied.into_iter()).partition(|(version, _)| *version <= LATEST);
    if let Some((found, _)) = later.last() {
        let needs = needs(tx).await.map_err(failed)?;
        if needs.is_none_or(|needs| needs > LATEST) {
            return Err(OpenError::Newer {
                found: *found,
                known: LATEST,
            });
        }
    }
    for next in check(&known, tx)?..=version {
        apply(tx, next).await.map_err(failed)?;
    }
    Ok(())
}

/// Checks that these migrations, in order, are the first ones of this program. `engine`: `sqlite` or `postgres`.
///
/// # Errors
/// [`OpenError::Newer`] if this program does not know the last one, [`OpenError::Changed`] if one is different.
pub(crate) fn check_known(applied: &[(i64, String)], engine: &str) -> Result<(), OpenError> {
    match applied.last() {
        Some((found, _)) if *found > LATEST => Err(OpenError::Newer {
            found: *found,
            known: LATEST,
        }),
        _ => check_with(applied, |migration| match engine {
            "sqlite" => migration.sqlite,
            _ => migration.postgres,
        })
        .map(|_| ()),
    }
}

/// Returns whether the database has the table with the secrets of the configuration file.
pub(crate) async fn has_secrets(pool: &Pool) -> Result<bool, Error> {
    let is_it = |migration: &Migration| migration.name.ends_with("_secrets");
    let index = MIGRATIONS.iter().position(is_it);
    let version = index.and_then(|index| i64::try_from(index + 1).ok());
    let row = row!(
        pool.read().await?,
        (i64,),
        "SELECT version FROM kb.schema_migrations WHERE version = $1",
        version,
    )?;
    Ok(row.is_some())
}

/// The oldest schema version that a program must know to use a database with the migrations that are unknown to this
/// program. `None` if one of these migrations does not record it.
async fn needs(tx: &mut Tx) -> Result<Option<i64>, Error> {
    let row = row!(
        tx,
        (Option<i64>,),
        "SELECT CASE WHEN COUNT(*) = COUNT(needs) THEN MAX(needs) END FROM kb.schema_migrations WHERE version > $1",
        LATEST
    )?;
    Ok(row.and_then(|(needs,)| needs))
}

/// Takes the lock, and creates the schema and the version table if they are missing.
async fn prepare(tx: &mut Tx) -> Result<(), Error> {
    if let Tx::Postgres(_) = tx {
        wait_for_turn(tx).await?;
        // `IF NOT EXISTS` would require the right to create schemas even if this one exists.
        let schema = row!(tx, (bool,), "SELECT to_regnamespace('kb') IS NOT NULL")?;
        if schema != Some((true,)) {
            execute!(tx, "CREATE SCHEMA kb")?;
        }
    }
    execute!(
        tx,
        "CREATE TABLE IF NOT EXISTS kb.schema_migrations (
             version BIGINT NOT NULL PRIMARY KEY,
             name TEXT NOT NULL,
             checksum TEXT NOT NULL,
             applied_at TEXT NOT NULL
         )"
    )?;
    Ok(())
}

/// Takes the Postgres lock by polling, because a statement that waits for the lock would exceed the timeout for
/// ordinary statements.
pub(crate) async fn wait_for_turn(tx: &mut Tx) -> Result<(), Error> {
    execute!(tx, "SET LOCAL statement_timeout = 0")?;
    let since = Instant::now();
    while since.elapsed() < MIGRATION_TIMEOUT {
        let taken = row!(
            tx,
            (bool,),
            "SELECT pg_try_advisory_xact_lock($1)",
            ADVISORY_LOCK_ID
        )?;
        if taken == Some((true,)) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Error::timed_out())
}

/// Checks that the applied migrations are the ones of this program, and returns the next version.
fn check(applied: &[(i64, String)], tx: &Tx) -> Result<i64, OpenError> {
    check_with(applied, |migration| text(migration, tx))
}

fn check_with(
    applied: &[(i64, String)],
    text: impl Fn(&Migration) -> &'static str,
) -> Result<i64, OpenError> {
    let mut next = 1;
    for (version, digest) in applied {
        let index = usize::try_from(version - 1).unwrap_or(usize::MAX);
        let migration = MIGRATIONS.get(index).filter(|_| *version == next);
        if migration.is_none_or(|known| *digest != model::sha256_hex(text(known))) {
            return Err(OpenError::Changed { version: *version });
        }
        next += 1;
    }
    Ok(next)
}

async fn apply(tx: &mut Tx, version: i64) -> Result<(), Error> {
    let index = usize::try_from(version - 1).expect("versions begin at 1");
    let migration = &MIGRATIONS[index];
    let text = text(migration, tx);
    let statements = async {
        match tx.on() {
            On::Sqlite(conn) => sqlx::raw_sql(text).execute(conn).await.map(|_| ()),
            On::Postgres(conn) => sqlx::raw_sql(text).execute(conn).await.map(|_| ()),
        }
    };
    match tokio::time::timeout(MIGRATION_TIMEOUT, statements).await {
        Ok(result) => result?,
        Err(_) => return Err(Error::timed_out()),
    }
    execute!(
        tx,
        "INSERT INTO kb.schema_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
        version,
        migration.name,
        model::sha256_hex(text),
        now().to_rfc3339(),
    )?;
    if version >= NEEDS_RECORDED {
        execute!(
            tx,
            "UPDATE kb.schema_migrations SET needs = $2 WHERE version = $1",
            version,
            migration.needs,
        )?;
    }
    Ok(())
}

fn text(migration: &Migration, tx: &Tx) -> &'static str {
    match tx {
        Tx::Sqlite(_) => migration.sqlite,
        Tx::Postgres(_) => migration.postgres,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use testkit::postgres::Database;

    use super::*;
    use crate::Store;

    /// A new database, with the guard that keeps it from being deleted.
    enum Place {
        Sqlite(TempDir),
        Postgres(Database),
    }

    impl Place {
        async fn both() -> [Self; 2] {
            let dir = tempfile::tempdir().unwrap();
            [Self::Sqlite(dir), Self::Postgres(Database::create().await)]
        }

        fn location(&self) -> Location {
            match self {
                Self::Sqlite(dir) => Location::Sqlite(dir.path().join("wharf.db")),
                Self::Postgres(database) => Location::Postgres(database.url().to_owned()),
            }
        }
    }

    /// The schema as reported by the database, one line per object.
    async fn schema(store: &Store) -> Vec<String> {
        let mut conn = store.pool.read().await.unwrap();
        let text = match &store.pool {
            Pool::Sqlite { .. } => {
                "SELECT type || ' ' || name || ' ' || COALESCE(sql, '') FROM kb.sqlite_master
                 UNION ALL
                 SELECT 'column ' || m.name || '.' || c.name || ' ' || c.type || ' ' || c.\"notnull\"
                 FROM kb.sqlite_master AS m, pragma_table_xinfo(m.name, 'kb') AS c WHERE m.type = 'table'
                 UNION ALL SELECT 'version ' || version || checksum FROM kb.schema_migrations
                 ORDER BY 1"
            }
            Pool::Postgres(_) => {
                "SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' '
                     || is_nullable || COALESCE(collation_name, '')
                 FROM information_schema.columns WHERE table_schema = 'kb'
                 UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'kb'
                 UNION ALL
                 SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
                 FROM pg_constraint WHERE connamespace = 'kb'::regnamespace
                 UNION ALL SELECT 'version ' || version || checksum FROM kb.schema_migrations
                 ORDER BY 1"
            }
        };
        let lines = rows!(conn, (String,), text).unwrap();
        lines.into_iter().map(|(line,)| line).collect()
    }

    /// Each `table.column`, and whether it may be NULL.
    async fn columns(store: &Store) -> Vec<(String, bool)> {
        let mut conn = store.pool.read().await.unwrap();
        let text = match &store.pool {
            Pool::Sqlite { .. } => {
                "SELECT m.name || '.' || c.name, c.\"notnull\" = 0
                 FROM kb.sqlite_master AS m, pragma_table_xinfo(m.name, 'kb') AS c
                 WHERE m.type = 'table' ORDER BY m.name, c.cid"
            }
            Pool::Postgres(_) => {
                "SELECT table_name || '.' || column_name, is_nullable = 'YES'
                 FROM information_schema.columns WHERE table_schema = 'kb'
                 ORDER BY table_name COLLATE \"C\", ordinal_position"
            }
        };
        rows!(conn, (String, bool), text).unwrap()
    }

    #[tokio::test]
    async fn every_earlier_version_becomes_the_latest() {
        for place in 0..2 {
            let mut expect = None;
            for version in 0..=LATEST {
                let place = Place::both().await.into_iter().nth(place).unwrap();
                let location = place.location();
                if version > 0 {
                    let old = Store::open_with(&location, version).await.unwrap();
                    old.close().await;
                }
                let store = Store::open(&location).await.unwrap();
                let found = schema(&store).await;
                assert!(found.len() > 100, "{found:#?}");
                let expect = expect.get_or_insert_with(|| found.clone());
                assert_eq!(found, *expect, "from version {version} at {location}");
            }
        }
    }

    #[tokio::test]
    async fn both_engines_have_the_same_tables() {
        let [sqlite, postgres] = Place::both().await;
        let sqlite = Store::open(&sqlite.location()).await.unwrap();
        let postgres = Store::open(&postgres.location()).await.unwrap();
        let found = columns(&sqlite).await;
        assert_eq!(found, columns(&postgres).await);
    }

    #[tokio::test]
    async fn p01_the_table_of_project_servers() {
        for place in Place::both().await {
            let store = Store::open(&place.location()).await.unwrap();
            let found = columns(&store).await;
            let found: Vec<_> = found
                .iter()
                .filter_map(|(column, _)| column.strip_prefix("project_mcp_servers."))
                .collect();
            let expect = [
                "id",
                "project_id",
                "product_id",
                "name",
                "description",
                "transport",
                "config",
                "enabled",
                "created_at",
                "updated_at",
            ];
            assert_eq!(found, expect);
            let mut tx = store.pool.begin().await.unwrap();
            execute!(
                tx,
                "INSERT INTO kb.projects VALUES ('p', 'p', '', true, '{}', NULL, '2026-01-01', '2026-01-01')"
            )
            .unwrap();
            let mut put = async |transport| {
                // A user who knows only the table could write this statement.
                execute!(
                    tx,
                    "INSERT INTO kb.project_mcp_servers
                     VALUES ($1, 'p', NULL, $1, '', $1, '{}', true, '2026-01-01', '2026-01-01')",
                    transport
                )
            };
            for transport in ["stdio", "sse", "http"] {
                assert_eq!(put(transport).await.unwrap(), 1, "{transport}");
            }
            assert!(matches!(
                put("carrier pigeon").await,
                Err(Error::Invalid(_))
            ));
        }
    }

    /// Of several keys with one name, the newest keeps it. The others get the next free numbers.
    #[tokio::test]
    async fn keys_with_the_same_name_get_numbers() {
        for place in Place::both().await {
            let location = place.location();
            let old = Store::open_with(&location, 18).await.unwrap();
            let mut tx = old.pool.begin().await.unwrap();
            for (id, name, day, revoked) in [
                ("1", "ci", 1, false),
                ("2", "ci", 2, false),
                ("3", "ci", 2, false),
                ("4", "ci (2)", 1, false),
                ("5", "alone", 1, false),
                ("6", "ci", 9, true),
                ("7", "ci (2)", 3, false),
            ] {
                let at = now() + chrono::Duration::days(day);
                execute!(
                    tx,
                    "INSERT INTO kb.api_keys (id, name, role, hash, hint, created_at, revoked_at)
                     VALUES ($1, $2, 'call', $1, '', $3, $4)",
                    id,
                    name,
                    at,
                    revoked.then_some(at),
                )
                .unwrap();
            }
            tx.commit().await.unwrap();
            old.close().await;
            let store = Store::open(&location).await.unwrap();
            let keys = store.key_list(None, &crate::Page::default()).await.unwrap();
            let names: Vec<_> = keys
                .iter()
                .map(|key| (key.id.as_str(), key.name.as_str()))
                .collect();
            assert_eq!(
                names,
                [
                    ("1", "ci (4)"),
                    ("2", "ci (3)"),
                    ("3", "ci"),
                    ("4", "ci (2) (2)"),
                    ("5", "alone"),
                    ("6", "ci"),
                    ("7", "ci (2)"),
                ]
            );
        }
    }

    #[tokio::test]
    async fn a_newer_or_a_changed_database_is_refused_and_left_alone() {
        for place in Place::both().await {
            let location = place.location();
            let store = Store::open(&location).await.unwrap();
            let before = schema(&store).await;
            let tamper = async |text: &'static str| {
                let mut conn = store.pool.write().await.unwrap();
                execute!(conn, text).unwrap();
            };
            tamper("INSERT INTO kb.schema_migrations VALUES (99, 'later', 'x', '', NULL)").await;
            let error = Store::open(&location).await.unwrap_err();
            let OpenError::Newer { found: 99, known } = &error else {
                panic!("{error:?}");
            };
            assert_eq!(*known, LATEST);
            assert!(error.to_string().contains("99"), "{error}");
            tamper("UPDATE kb.schema_migrations SET needs = 99 WHERE version = 99").await;
            let error = Store::open(&location).await.unwrap_err();
            assert!(matches!(error, OpenError::Newer { .. }), "{error:?}");
            // The newer version now declares that this version can run at the same time.
            tamper("UPDATE kb.schema_migrations SET needs = 13 WHERE version = 99").await;
            Store::open(&location).await.unwrap().close().await;
            tamper("DELETE FROM kb.schema_migrations WHERE version = 99").await;
            assert_eq!(schema(&store).await, before);

            tamper("UPDATE kb.schema_migrations SET checksum = 'x' WHERE version = 1").await;
            let error = Store::open(&location).await.unwrap_err();
            assert!(
                matches!(error, OpenError::Changed { version: 1 }),
                "{error:?}"
            );
            tamper("DELETE FROM kb.schema_migrations WHERE version = 1").await;
            let error = Store::open(&location).await.unwrap_err();
            assert!(
                matches!(error, OpenError::Changed { version: 2 }),
                "{error:?}"
            );
        }
    }

    #[test]
    fn o06_an_old_program_can_use_what_it_is_new_enough_for() {
        for (version, expected) in [(1, false), (11, false), (12, true), (LATEST, true)] {
            assert_eq!(is_usable_with(version), expected, "{version}");
        }
        // Of a later version, nothing is pending.
        assert!(is_usable_with(LATEST + 1));
    }

    #[test]
    fn migrations_are_numbered_without_a_gap() {
        let mut needs = 0;
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            let number = format!("{:04}_", index + 1);
            assert!(migration.name.starts_with(&number), "{}", migration.name);
            // `needs` never decreases from one migration to the next.
            let version = i64::try_from(index).expect("few") + 1;
            assert!((needs..=version).contains(&migration.needs));
            needs = migration.needs;
        }
    }
}
